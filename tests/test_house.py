"""The house rules: imports flow one way, one source of pins, nothing moves a reader's packages."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
import yaml

from pathsum.notebooks import toc_pages

TOP_LEVEL = {
    ".binder", ".ci", ".devcontainer", ".gitattributes", ".github", ".gitignore", "CITATION.cff", "CONVENTIONS.md", "LICENSE", "Makefile", "NOTICE",
    "README.md", "_config.yml", "_toc.yml", "benchmarks", "book", "environment.yml", "ext", "notebooks",
    "pyproject.toml", "requirements.lock", "src", "tests", "tools",
}  # fmt: skip


# Files that are read for the repository's address; notebooks are made from the one that holds it.
ADDRESSED = {".py", ".md", ".yml", ".toml", ".js", ".css", ".cff", ".json", ".sh", ".txt", ".bib", ".html"}


def tracked(root: Path, *patterns: str) -> list[Path]:
    """The files that git knows, or would take in with the next add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=root, text=True, capture_output=True, check=True).stdout
    return [path for name in names.splitlines() if (path := root / name).is_file()]


def plain_name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~; ]", requirement)[0]).lower()


@pytest.fixture(scope="module")
def project(root: Path) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def lock(root: Path) -> dict[str, str]:
    lines = (root / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(pin.count("==") == 1 for pin in pins), pins
    return {plain_name(pin): pin.split("==")[1] for pin in pins}


def imported_modules(path: Path, modules: set[str]) -> set[str]:
    """Those of the package's modules that a file imports, at the top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = f"pathsum.{node.module or ''}".strip(".") if node.level else node.module
            names = [base] + [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("pathsum.")} & modules
    return found


def test_modules_import_only_from_the_left(root: Path):
    text = (root / "CONVENTIONS.md").read_text(encoding="utf-8")
    line = re.search(r"^> \w+ →.*?\n\n", text, re.MULTILINE | re.DOTALL)[0]
    order = re.findall(r"\w+", line)
    package = root / "src/pathsum"
    modules = {path: path.stem for path in package.glob("*.py") if path.stem != "__init__"}
    modules |= {path: path.parent.name for path in package.glob("*/*.py")}
    names = set(modules.values())
    assert names == set(order), f"not in the order of CONVENTIONS.md, or only there: {names ^ set(order)}"
    for path, name in modules.items():
        for other in imported_modules(path, names) - {name}:
            assert order.index(other) < order.index(name), f"{path.name} imports {other}, to its right"


def test_import_reader_sees_imports_inside_functions(tmp_path: Path):
    source = "from pathsum import model\ndef f():\n    import pathsum.heads\n    from .train import x\n"
    (tmp_path / "probe.py").write_text(source)
    found = imported_modules(tmp_path / "probe.py", {"model", "heads", "train", "muon"})
    assert found == {"model", "heads", "train"}


def test_the_package_is_imported_without_torch():
    code = "import sys, pathsum; assert pathsum.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_unknown_name_of_the_package_says_where_to_look():
    import pathsum

    with pytest.raises(AttributeError, match="imported from its module"):
        pathsum.full_ov_circuit


def test_the_package_has_lower_bounds_only(project: dict):
    extras = project["optional-dependencies"].values()
    for requirement in project["dependencies"] + [r for extra in extras for r in extra]:
        # TransformerLens 4 is another library: it has no HookedTransformer (see pathsum.interop).
        if requirement != "transformer-lens>=3.9,<4":
            assert re.fullmatch(r"[\w.-]+>=[\d.]+", requirement), requirement
    assert project["requires-python"] == ">=3.11"
    wanted = {"torch>=2.9", "numpy>=1.26", "ipywidgets>=7.7.1"}
    assert wanted <= set(project["dependencies"])


def test_every_dependency_is_pinned_in_the_lock(project: dict, lock: dict[str, str]):
    extras = project["optional-dependencies"].values()
    declared = project["dependencies"] + [r for extra in extras for r in extra]
    apart = {"transformer-lens"}  # in an environment of its own, with pins of its own
    assert {plain_name(requirement) for requirement in declared} - apart <= lock.keys()


def test_environment_yml_carries_the_pins_of_the_lock(root: Path, lock: dict[str, str]):
    environment = yaml.safe_load((root / "environment.yml").read_text())
    (pip,) = [part["pip"] for part in environment["dependencies"] if isinstance(part, dict)]
    assert pip[-1] == "-e ."
    assert {plain_name(pin): pin.split("==")[1] for pin in pip[:-1]} == lock


def test_the_versions_in_use_are_those_of_the_lock(lock: dict[str, str]):
    command = [sys.executable, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    listed = json.loads(subprocess.run(command, text=True, capture_output=True, check=True).stdout)
    installed = {plain_name(p["name"]): p["version"].split("+")[0] for p in listed}
    differing = {name: installed.get(name) for name in lock if installed.get(name) != lock[name]}
    assert not differing, f"not as in requirements.lock (run `make test`): {differing}"


def test_no_build_tag_and_no_retired_import_stands_anywhere(root: Path):
    patterns = ("*.py", "*.md", "*.yml", "*.toml", "*.lock", "*.ipynb", "Makefile", ".ci/run")
    for path in tracked(root, *patterns):
        if path != Path(__file__):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"\+cu\d|==[\d.]+\+", text), f"a pinned build in {path}"
            assert "pkg_resources" not in text, path


def test_the_repository_address_is_written_once(root: Path):
    address = yaml.safe_load((root / "_config.yml").read_text())["repository"]["url"]
    sources = [p for p in tracked(root) if p.suffix in ADDRESSED]
    holders = [str(p.relative_to(root)) for p in sources if address in p.read_text(encoding="utf-8")]
    assert holders == ["_config.yml"]


def test_the_top_level_holds_what_the_readme_maps(root: Path):
    found = {path.relative_to(root).parts[0] for path in tracked(root)}
    assert found == TOP_LEVEL


def test_shapes_are_checked_while_the_tests_run():
    import torch
    from jaxtyping import TypeCheckError
    from pathsum.loss import mean_cross_entropy

    with pytest.raises(TypeCheckError):
        mean_cross_entropy(torch.zeros(3), torch.zeros(2, 2), torch.zeros(3, dtype=torch.int64))


@pytest.mark.slow
@pytest.mark.network
def test_installing_the_package_moves_no_package_that_is_there(root: Path, tmp_path: Path):
    """Into an environment like Colab's: older numpy and ipywidgets, and a torch of its own.

    numpy and ipywidgets are installed for real. torch is represented by the metadata that pip
    reads, since a second real one costs gigabytes; pip decides by that metadata alone.
    """
    before = {"numpy": "2.1.3", "ipywidgets": "7.7.1", "torch": "2.11.0"}
    source = tmp_path / "source"
    for path in tracked(root, "src", "pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        (source / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, source / path.relative_to(root))
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env/bin/python"

    def run(*command: str) -> str:
        done = subprocess.run([python, *command], text=True, capture_output=True, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = ("-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "numpy==2.1.3", "ipywidgets==7.7.1")
    site = Path(run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    record = site / "torch-2.11.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n")
    (record / "INSTALLER").write_text("pip\n")
    (record / "RECORD").write_text("torch-2.11.0.dist-info/METADATA,,\n")

    run(*pip, "install", "--quiet", f"{source}[viewers]")

    listed = {p["name"]: p["version"] for p in json.loads(run(*pip, "list", "--format", "json"))}
    assert {name: listed[name] for name in before} == before
    assert run("-c", "import pathsum; print(pathsum.__version__)").strip() == listed["pathsum"]
    shipped = {p.relative_to(source / "src") for p in (source / "src").rglob("*") if p.is_file()}
    missing = {p for p in shipped if "data" in p.parts and not (site / p).is_file()}
    assert not missing, f"not installed with the package: {sorted(map(str, missing))}"


def test_exercises_carry_the_number_of_their_chapter(root: Path):
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    for file, number in toc_pages(toc):
        text = (root / f"{file}.md").read_text(encoding="utf-8")
        found = re.findall(r"^:::\{admonition\} (?:Exercise|Question) (\d+)\.(\d+)", text, re.MULTILINE)
        assert [chapter for chapter, _ in found] == [number] * len(found), file
        assert [int(exercise) for _, exercise in found] == list(range(1, len(found) + 1)), file
        if number and file != "book/notation":
            assert len(found) >= 4, f"{file} has {len(found)} exercises"
