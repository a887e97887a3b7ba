#!/usr/bin/env bash
# report_failure.sh TITLE FILE: opens an issue with the end of the file, or comments on the open one.
set -euo pipefail
title=$1
body=$(mktemp)
{
  echo "Seen by [this run]($GITHUB_SERVER_URL/$GITHUB_REPOSITORY/actions/runs/$GITHUB_RUN_ID):"
  echo '```'
  tail -c 6000 "$2" 2>/dev/null || echo "no report was written"
  echo '```'
} > "$body"
open=$(gh issue list --state open --search "in:title \"$title\"" --json number,title \
  --jq ".[] | select(.title == \"$title\") | .number" | head -n 1)
if [ -n "$open" ]; then
  gh issue comment "$open" --body-file "$body"
else
  gh issue create --title "$title" --body-file "$body"
fi
