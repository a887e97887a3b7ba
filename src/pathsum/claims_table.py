"""Measured claims for a reader: a table in a notebook, a page of the book, seeds in words."""

from html import escape
from statistics import mean, stdev

VERDICTS = ("exact", "holds", "weaker", "not seen", "not measured")  # from strongest to none
INTRODUCTION = """# The claims, measured

*What does the paper claim, and which of it do we see in models of our own?*

Each row is a claim of {cite:t}`elhage2021` in our words, what the paper reports for it, what must be
seen here for the claim to hold, and what was seen in the shipped models. The criteria were
fixed beforehand, and none was loosened to pass. **exact** is an identity that holds to rounding error; **holds**
meets its criterion; **weaker** points the same way but misses part of it; **not seen** is what it
says: not in these models, which are far smaller than the paper's and saw other text. The chapter says
what we think the reason is. **not measured** needs a model that is not shipped.

The words and numbers are those of seed 0, the training run that the chapters look at. Where the same
model was trained with other seeds too, the claim is measured on each of them: mean ± standard deviation
of the number that the criterion speaks of, smallest and largest in brackets. The verdict is then the
weakest of all seeds, so one seed that misses is enough to lose a **holds**.

This page and `book/results/claims.json` are written by `python -m pathsum.claims run`, and a test
measures a sample again.
"""


def spread(row: dict) -> str:
    """What several seeds gave, in words: "3 seeds: 0.71 ± 0.02 (0.69 to 0.73) nats; holds in 3"."""
    each = row.get("seeds", [])
    numbers = [one["number"] for one in each if one["number"] is not None]
    if len(each) < 2 or len(numbers) < 2:
        return ""
    counts = {v: sum(one["verdict"] == v for one in each) for v in VERDICTS}
    verdicts = ", ".join(f"{v} in {n}" for v, n in counts.items() if n)
    low, high = f"{min(numbers):.3g}", f"{max(numbers):.3g}"
    middle = f"{mean(numbers):.3g} ± {stdev(numbers):.2g} ({low} to {high})"
    numbers_said = f"at most {high}" if row["over_seeds"] == "exact" else middle
    return f"{len(each)} seeds: {numbers_said} {row['unit']}; {verdicts}"


class ClaimsTable:
    """Measured claims as a table: HTML in a page or notebook, plain text elsewhere."""

    def __init__(self, rows: list[dict]) -> None:
        self.rows = rows

    def _repr_html_(self) -> str:
        heads = ("claim", "statement", "criterion", "seen here", "verdict")
        keys = ("id", "statement", "criterion", "detail", "verdict")
        head = "".join(f'<th scope="col">{name}</th>' for name in heads)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(str(row[key]))}</td>" for key in keys) + "</tr>"
            for row in self.rows
        )
        return f'<table class="table claims"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    def __repr__(self) -> str:
        return "\n".join(f"{r['id']}: {r['verdict']}. {r['detail']}" for r in self.rows)


def page(rows: list[dict]) -> str:
    """The claims page in Markdown: a count of verdicts, then one table a chapter."""
    verdicts = [row.get("over_seeds", row["verdict"]) for row in rows]
    counts = {v: verdicts.count(v) for v in VERDICTS}
    text = [INTRODUCTION, ", ".join(f"{n} {v}" for v, n in counts.items() if n).capitalize() + "."]
    chapters = dict.fromkeys(row["page"] for row in rows)
    for chapter in chapters:
        name = chapter.replace("-", " ").capitalize()
        text += [f"\n## {name}\n", f"Shown in [{name}]({chapter}.md).\n"]
        text += ["| claim | statement | paper | criterion | seen here | verdict |"]
        text += ["| --- | --- | --- | --- | --- | --- |"]
        keys = ("id", "statement", "paper", "criterion")
        for row, verdict in zip(rows, verdicts):
            if row["page"] != chapter:
                continue
            over = f". *{words}*" if (words := spread(row)) else ""
            cells = [row[key] for key in keys] + [row["detail"] + over, f"**{verdict}**"]
            text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"
