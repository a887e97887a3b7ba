"""What publishing needs: workflows, one repository address, descriptions, a map, links that are checked."""

import http.server
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_there_are_workflows_for_tests_publishing_and_the_week():
    assert [path.stem for path in WORKFLOWS] == ["publish", "tests", "weekly"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_names_only_commands_that_are_there(path: Path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content["permissions"]["contents"] == "read"
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in content["jobs"].values():
        assert {"timeout-minutes", "needs"} & job.keys(), "a job without an end"
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            if "uses" in step:
                assert re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])
            for word in re.findall(
                r"(?:python|bash) ([\w./-]+\.(?:py|sh)|\.ci/run)", step.get("run", "")
            ):
                assert (ROOT / word).is_file(), word
            for target in re.findall(r"^make ([\w-]+)", step.get("run", "")):
                assert target in targets
            for module in re.findall(r"python -m (pathsum\.\w+)", step.get("run", "")):
                assert (ROOT / "src" / f"{module.replace('.', '/')}.py").is_file()


def test_the_tests_are_run_by_the_same_command_as_everywhere():
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    assert "bash .ci/run" in [step.get("run") for step in jobs["tests"]["steps"]]


def test_the_weekly_run_reports_its_failures():
    jobs = yaml.safe_load((ROOT / ".github/workflows/weekly.yml").read_text())["jobs"]
    for job in jobs.values():
        (report,) = [step for step in job["steps"] if step.get("if") == "failure()"]
        assert "report_failure.sh" in report["run"] and "GH_TOKEN" in report["env"]
    assert (
        subprocess.run(["bash", "-n", ROOT / "tools/report_failure.sh"], check=False).returncode
        == 0
    )


def test_a_failure_is_added_to_the_open_issue_of_its_title(tmp_path: Path):
    """With a stand-in for `gh` that writes down how it was called."""
    (tmp_path / "log.txt").write_text("notation does not run\n")
    calls = {}
    for number in ("", "7"):
        stand_in = tmp_path / "gh"
        stand_in.write_text(
            f'#!/bin/sh\n[ "$2" = list ] && echo "{number}" && exit\necho "$@" > {tmp_path}/call\n'
        )
        stand_in.chmod(0o755)
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GITHUB_SERVER_URL": "s"}
        environment |= {"GITHUB_REPOSITORY": "o/r", "GITHUB_RUN_ID": "1"}
        command = ["bash", ROOT / "tools/report_failure.sh", "A title", tmp_path / "log.txt"]
        subprocess.run(command, env=environment, check=True)
        calls[number] = (tmp_path / "call").read_text()
    assert calls[""].startswith("issue create --title A title --body-file")
    assert calls["7"].startswith("issue comment 7 --body-file")


def test_the_citation_file_holds_what_it_must():
    content = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= content.keys()
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{content["version"]}"' in project
    assert content["references"][0]["title"] == "A Mathematical Framework for Transformer Circuits"


def test_binder_and_the_devcontainer_use_the_one_source_of_pins():
    lines = (ROOT / ".binder/requirements.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "-r ../requirements.lock",
        "-e .",
    ]
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make .venv/.ready"
    assert (
        ":3.11" in container["image"]
        and (ROOT / ".binder/runtime.txt").read_text() == "python-3.11\n"
    )


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, int]]]:
    """A site with a page, a missing one, one that works at the third try and one that refuses robots."""
    asked: dict[str, int] = {}

    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked[self.path] = asked.get(self.path, 0) + 1
            code = {"/there": 200, "/robots": 403}.get(self.path, 404)
            if self.path == "/busy":
                code = 200 if asked[self.path] >= 3 else 503
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", asked
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_links_are_asked_for_again_before_they_are_called_dead(server, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from links import answer

    address, asked = server
    assert answer(f"{address}/there", 3, 0) == ""
    assert answer(f"{address}/busy", 3, 0) == "" and asked["/busy"] == 3
    assert answer(f"{address}/gone", 3, 0).startswith("404") and asked["/gone"] == 1
    assert answer(f"{address}/robots", 3, 0) == "refused: 403"
    assert "after 2 tries" in answer("http://127.0.0.1:9/", 2, 0)


def test_the_links_of_the_book_are_found(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from links import addresses

    found = addresses(ROOT)
    assert "https://transformer-circuits.pub/2021/framework/index.html" in found
    assert not [address for address in found if re.search(r"[)\].,*]$|127\.0\.0\.1", address)]


@pytest.mark.slow
def test_published_pages_describe_themselves_and_work_under_any_path(built_book: Path):
    pages = sorted((built_book / "book").glob("*.html"))
    seen = []
    for path in pages:
        text = path.read_text(encoding="utf-8")
        about = re.search(r'<meta name="description" content="([^"]{20,170})"', text)
        title = re.search(r"<title>([^<]+)</title>", text)
        assert about and title, path.name
        seen.append(about[1])
        assert re.search(r'property="og:image" content="https://[^"]+/_static/social\.png"', text)
        for address in re.findall(r'(?:href|src)="([^"]+)"', text):
            assert not address.startswith("/"), (
                f"{path.name}: {address} works at the root of a site only"
            )
    assert len(set(seen)) == len(seen), "two pages with one description"
    listed = re.findall(r"<loc>([^<]+)</loc>", (built_book / "sitemap.xml").read_text())
    assert {address.rsplit("/", 1)[1] for address in listed} >= {path.name for path in pages}
    lost = (built_book / "404.html").read_text(encoding="utf-8")
    site = listed[0].rsplit("book/", 1)[0]
    assert f'href="{site}book/index.html"' in lost and (built_book / "search.html").is_file()
    assert (built_book / "_static/social.png").stat().st_size > 10_000


def test_the_site_may_stand_anywhere(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "ext"))
    from book_publish import site_url

    monkeypatch.setenv("SITE_URL", "https://example.org/some/place")
    assert site_url(ROOT) == "https://example.org/some/place/"
    monkeypatch.delenv("SITE_URL")
    assert re.fullmatch(r"https://[\w-]+\.github\.io/[\w-]+/", site_url(ROOT))


@pytest.mark.slow
@pytest.mark.network
def test_notebooks_run_with_colabs_versions_and_no_network(tmp_path: Path):
    """numpy, IPython, ipywidgets and matplotlib are Colab's; Python and torch are those at hand."""
    command = [sys.executable, "tools/colab.py", tmp_path / "colab"]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "nothing moved" in done.stdout and "numpy 2.1.3" in done.stdout
    assert "composition: ran, 6 exercises wait" in done.stdout
