"""Chapters as notebooks: plain, complete, the same each time, and running from top to bottom."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbclient import NotebookClient

from pathsum.notebooks import STUB, editions
from pathsum.plain_markdown import Book, Label, Page, PlainMarkdownError

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(
    path.relative_to(ROOT)
    for path in (ROOT / "notebooks").rglob("*.ipynb")
    if ".ipynb_checkpoints" not in path.parts
)

# One chapter with every form that the builder knows.
CHAPTER = """\
---
file_format: mystnb
kernelspec:
  name: python3
  display_name: Python 3
---

# A chapter

(sec-start)=
## Where it starts

See {numref}`fig-one`, {numref}`picture %s <fig-one>`, {eq}`eq-two`, {ref}`sec-start`, {doc}`index`,
[the welcome](index.md), {cite:t}`elhage2021` and {cite:p}`elhage2021`; but `{eq}`, ``{eq}`eq-two` `` and
`[x](index.md)` are code.

$$
x \\, W_U
$$ (eq-one)

$$ y $$ (eq-two)

```{math}
:label: eq-three
z \\otimes z
```

% a remark for authors

| symbol | where |
| --- | --- |
| {eq}`eq-one` | {eq}`eq-three` |

::::{admonition} Exercise 1.1: the *sum* (5 minutes)
:class: exercise
Write `total`, as in {eq}`eq-one`.

:::{hint}
- one line
:::
::::

```{code-cell} python
---
tags: [exercise, hide-input]
mystnb: {code_prompt_show: Show a solution}
---
def total(x: list[int]) -> int:
    \"\"\"The sum.\"\"\"
    ### BEGIN SOLUTION
    answer = sum(x)
    return answer
    ### END SOLUTION
```

```{code-cell} python
---
mystnb:
  figure:
    name: fig-one
    caption: It *rises*, as {eq}`eq-one` says.
  image:
    alt: A line from 0 to 3.
---
from IPython.display import SVG
SVG('<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20"><path d="M0 20L20 0" stroke="#000"/></svg>')
```

:::{admonition} An aside
:class: dropdown
Folded.
:::
"""


@pytest.fixture(scope="module")
def small_book(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A book of two pages with the project's own settings."""
    place = tmp_path_factory.mktemp("small-book")
    for name in ("_config.yml", "requirements.lock", "ext", "tools", "book/static"):
        copy = shutil.copytree if (root / name).is_dir() else shutil.copyfile
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        copy(root / name, place / name)
    subprocess.run([sys.executable, "tools/vendor.py"], cwd=root, check=True)
    shutil.copytree(root / "_vendor", place / "_vendor")
    (place / "src").mkdir()
    shutil.copyfile(root / "book/references.bib", place / "book/references.bib")
    (place / "book/index.md").write_text("# The welcome\n\n{cite:t}`olsson2022`\n\n```{bibliography}\n```\n")
    (place / "book/chapter.md").write_text(CHAPTER, encoding="utf-8")
    toc = {"format": "jb-book", "root": "book/index"}
    toc["parts"] = [{"caption": "C", "numbered": True, "chapters": [{"file": "book/chapter"}]}]
    (place / "_toc.yml").write_text(yaml.safe_dump(toc))
    return place


def cells(text: str, kind: str) -> list[str]:
    return ["".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == kind]


def raw_myst(markdown: str) -> list[str]:
    """What of MyST is left in some Markdown, outside of code and formulas."""
    found = []
    viewer = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, allow_labels=False)
    for token in viewer.parse(markdown):
        if token.type == "fence" and token.info.startswith("{"):
            found.append(token.info)
        for child in token.children or []:
            if child.type == "text" and re.search(r":::|\{[\w:]+\}$|^\([\w-]+\)=$", child.content):
                found.append(child.content)
            if child.type == "link_open" and ".md" in str(child.attrs["href"]):
                found.append(str(child.attrs["href"]))
    return found


def test_the_search_for_raw_myst_finds_it():
    for raw in (":::{note}\nx\n:::", "```{math}\nx\n```", "see {eq}`x`", "(sec)=", "[x](y.md)"):
        assert raw_myst(raw), raw
    assert not raw_myst("`{eq}` and ``{eq}`x` `` and $x$")


def test_every_form_becomes_plain_markdown(small_book: Path):
    text = editions(small_book)[Path("notebooks/chapter.ipynb")]
    markdown = "\n\n".join(cells(text, "markdown"))
    assert not raw_myst(markdown)
    assert "but `{eq}`, ``{eq}`eq-two` `` and\n`[x](index.md)` are code" in markdown
    address = "https://transformer-circuits.pub/2021/framework/index.html"
    for expected in (
        "See Figure 1.1, picture 1.1, (1.2), Where it starts, [The welcome](index.ipynb),",
        f"[the welcome](index.ipynb), Elhage et al. ([2021]({address})) and (Elhage et al., [2021]({address}));",
        "$$\nx \\, W_U \\tag{1.1}\n$$",
        "$$ y \\tag{1.2} $$",
        "$$\nz \\otimes z \\tag{1.3}\n$$",
        "| (1.1) | (1.3) |",
        "> **Exercise 1.1: the *sum* (5 minutes)**\n>\n> Write `total`, as in (1.1).\n>\n> > **Hint**\n> >\n> > - one line",
        "**Figure 1.1.** It *rises*, as (1.1) says.",
        "A line from 0 to 3.",
        "<summary>An aside</summary>\n\nFolded.",
    ):
        assert expected in markdown, expected
    assert "remark for authors" not in markdown


def test_the_reader_gets_a_stub_and_the_solutions_edition_the_answer(small_book: Path):
    made = editions(small_book)
    reader = cells(made[Path("notebooks/chapter.ipynb")], "code")
    solved = cells(made[Path("notebooks/solutions/chapter.ipynb")], "code")
    head = 'def total(x: list[int]) -> int:\n    """The sum."""\n'
    assert f"{head}    {STUB}" in reader
    assert f"{head}    answer = sum(x)\n    return answer" in solved
    assert not any("answer" in source or "SOLUTION" in source for source in reader)


def test_numbers_in_notebooks_are_those_of_the_site(small_book: Path):
    command = [sys.executable, "tools/book.py"]
    run = subprocess.run(command, cwd=small_book, text=True, capture_output=True)
    assert run.returncode == 0, run.stdout + run.stderr
    page = (small_book / "_build/html/book/chapter.html").read_text(encoding="utf-8")
    assert re.findall(r'class="eqno">\(([\d.]+)\)', page) == ["1.1", "1.2", "1.3"]
    assert re.findall(r'class="caption-number">(Figure [\d.]+)', page) == ["Figure 1.1"]
    shown = re.sub(r"<[^>]+>", "", page)
    assert "See Figure 1.1, picture 1.1, (1.2), Where it starts, The welcome" in shown
    assert "SOLUTION" not in shown and "answer = sum(x)" in shown


def test_a_broken_cell_fails_the_build(small_book: Path):
    page = small_book / "book/chapter.md"
    sound = page.read_text(encoding="utf-8")
    page.write_text(sound + "\n```{code-cell} python\n1 / 0\n```\n", encoding="utf-8")
    command = [sys.executable, "tools/book.py"]
    run = subprocess.run(command, cwd=small_book, text=True, capture_output=True)
    page.write_text(sound, encoding="utf-8")
    assert run.returncode != 0
    assert "ZeroDivisionError" in run.stdout + run.stderr
    assert "The book is ready" not in run.stdout


def test_a_changed_helper_runs_every_cell_again_and_a_changed_style_none(small_book: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from book import forget_stale_results

    built = small_book / "_build"
    forget_stale_results(small_book)

    def remaining(change: Path, text: str) -> set[str]:
        for name in (".jupyter_cache", ".doctrees", "html"):
            (built / name).mkdir(exist_ok=True)
        change.write_text(text)
        forget_stale_results(small_book)
        return {p.name for p in built.iterdir()} & everything

    everything = {".jupyter_cache", ".doctrees", "html"}
    assert remaining(small_book / "book/chapter.md", CHAPTER) == everything
    assert remaining(small_book / "src/helper.py", "x = 1\n") == set()
    assert remaining(small_book / "src/helper.py", "x = 1\n") == everything
    assert remaining(small_book / "src/helper.py", "x = 2\n") == set()
    assert remaining(small_book / "book/static/custom.css", "b {}\n") == {".jupyter_cache"}


@pytest.mark.parametrize(
    ("markdown", "words"),
    [
        pytest.param("see {eq}`nowhere`", "nothing is labelled 'nowhere'", id="unknown label"),
        pytest.param("{cite:t}`nobody2020`", "references.bib has no entry", id="unknown citation"),
        pytest.param("{doc}`missing`", "no page 'missing'", id="unknown page"),
        pytest.param("[x](missing.md)", "not in the table of contents", id="unknown link"),
        pytest.param("{term}`word`", "role {term} has no plain form", id="unknown role"),
        pytest.param("```{list-table}\n* - x\n```", "{list-table} has no plain form", id="unknown directive"),
        pytest.param("- a\n\n  :::{note}\n  x\n  :::", "out of the list", id="directive in a list"),
        pytest.param("```{image} none.png\n```", "picture 'none.png'", id="missing picture"),
    ],
)
def test_a_form_that_cannot_be_plain_is_refused_with_the_place(markdown: str, words: str):
    with pytest.raises(PlainMarkdownError, match=f"book/page.md: .*{re.escape(words)}"):
        Page(Book(), "page").plain(markdown)


def test_an_unclosed_solution_is_refused(small_book: Path):
    page = small_book / "book/chapter.md"
    sound = page.read_text(encoding="utf-8")
    page.write_text(sound.replace("    ### END SOLUTION\n", ""), encoding="utf-8")
    try:
        with pytest.raises(PlainMarkdownError, match="without its partner"):
            editions(small_book)
    finally:
        page.write_text(sound, encoding="utf-8")


def test_a_reference_to_another_page_is_a_link():
    book = Book(labels={"eq-far": Label("2.1", "far")}, titles={"far": "Far"})
    assert Page(book, "near").plain("{eq}`eq-far`") == "[(2.1)](far.ipynb)"


def test_the_committed_notebooks_are_those_the_chapters_make(root: Path):
    made = {path: text.encode() for path, text in editions(root).items()}
    assert set(NOTEBOOKS) == made.keys(), "run `make notebooks`"
    differing = [str(path) for path, text in made.items() if (root / path).read_bytes() != text]
    assert not differing, f"run `make notebooks`: {differing}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=str)
def test_a_notebook_is_plain_and_valid(root: Path, path: Path):
    text = (root / path).read_text(encoding="utf-8")
    nbformat.validate(json.loads(text))
    assert not [raw for source in cells(text, "markdown") for raw in raw_myst(source)]
    code = cells(text, "code")
    assert not code or code[0].startswith("# Setup"), "the first code cell installs the package"
    assert not any(cell.get("outputs") for cell in json.loads(text)["cells"])
    ids = [cell["id"] for cell in json.loads(text)["cells"]]
    assert len(ids) == len(set(ids))
    if "solutions" in path.parts:
        assert not any(STUB in source for source in code)
    else:
        assert not any("SOLUTION" in source for source in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=str)
def test_a_notebook_imports_only_what_its_first_cell_installs(root: Path, path: Path):
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    declared = project["dependencies"] + project["optional-dependencies"]["viewers"]
    allowed = {requirement.split(">=")[0] for requirement in declared}
    allowed |= {"pathsum", "IPython"} | sys.stdlib_module_names
    for source in cells((root / path).read_text(encoding="utf-8"), "code")[1:]:
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, names


def run_notebook(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The executed notebook; an error in a cell raises."""
    content = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    return NotebookClient(content, timeout=300, kernel_name="python3", resources=resources).execute()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=str)
def test_a_notebook_runs_from_top_to_bottom(root: Path, path: Path, tmp_path: Path):
    executed = run_notebook(root / path, tmp_path)
    errors = [o for cell in executed.cells for o in cell.get("outputs", []) if o.output_type == "error"]
    expected = [c for c in executed.cells if "raises-exception" in c.metadata.get("tags", [])]
    assert len(errors) == len(expected)


def test_the_setup_cell_stops_with_a_readable_line_when_nothing_can_be_installed(root: Path):
    source = cells((root / "notebooks/index.ipynb").read_text(encoding="utf-8"), "code")[0]
    source = source.replace("    %pip", "    pass  # %pip")
    blocked = "import sys; sys.modules['pathsum'] = None\nimport importlib.util\n"
    blocked += "importlib.util.find_spec = lambda name: None\n"
    run = subprocess.run([sys.executable, "-c", blocked + source], text=True, capture_output=True)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("ImportError: pathsum could not be installed")
    assert "During handling" not in run.stderr


CLOSED = """
import socket

class NoSocket(socket.socket):
    def __init__(self, *arguments, **settings):
        raise OSError("sockets are closed in this test")

socket.socket = NoSocket
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer-overview", "zero-layer"])
def test_a_chapter_runs_with_every_socket_closed(root: Path, tmp_path: Path, name: str):
    notebook = nbformat.read(root / f"notebooks/solutions/{name}.ipynb", as_version=4)
    cells = [c.source for c in notebook.cells if c.cell_type == "code" and c.id != "setup"]
    script = tmp_path / "chapter.py"
    script.write_text("\n\n".join([CLOSED, *cells]), encoding="utf-8")
    environment = {**os.environ, "MPLBACKEND": "agg", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "correct" in done.stdout
