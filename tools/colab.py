"""A clean environment with Colab's versions, in which the notebooks are run without a network.

    python tools/colab.py FOLDER                        the Python that runs this, its own torch lent
    python tools/colab.py FOLDER --python python3.13    another Python, with Colab's torch installed

Colab's list is of August 2026. The package is installed as the first cell of a notebook would do it;
nothing that was there may move. Then each notebook runs from top to bottom in a kernel that can reach no
other machine. PyPI's torch for Linux brings several gigabytes of CUDA libraries, so that the second form
takes long; name an index with CPU builds in PIP_EXTRA_INDEX_URL if you have one.
"""

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
COLAB = {
    "numpy": "2.1.3",
    "ipywidgets": "7.7.1",
    "ipython": "7.34.0",
    "ipykernel": "6.17.1",
    "matplotlib": "3.10.0",
    "einops": "0.8.2",
    "tokenizers": "0.22.2",
    "safetensors": "0.8.0",
}
COLAB_TORCH = "2.11.0"
LENT = (
    "torch",
    "torchgen",
    "functorch",
    "sympy",
    "mpmath",
    "networkx",
    "jinja2",
    "markupsafe",
    "fsspec",
)
LENT += ("filelock", "typing_extensions", "setuptools")
NOTEBOOKS = ("notation", "composition")
CLOSED = """
import socket
def _refuse(*_, **__):
    raise OSError("this kernel can reach no other machine")
_connect = socket.socket.connect
def _here_only(self, address):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "localhost", "::1"):
        _refuse()
    return _connect(self, address)
socket.socket.connect = _here_only
socket.getaddrinfo = socket.create_connection = _refuse
"""


def plain(name: str) -> str:
    return name.lower().replace("_", "-")


def lend_torch(site: Path) -> None:
    """Link this interpreter's torch and what it imports into another environment, metadata and all."""
    own = Path(sysconfig.get_path("purelib"))
    for path in own.iterdir():
        name = path.name.split("-")[0].removesuffix(".py")
        lent = name in LENT or name.startswith(("nvidia", "cuda", "triton"))
        if lent and not (site / path.name).exists():
            (site / path.name).symlink_to(path)


def prepare(folder: Path, python: str | None) -> Path:
    """The environment before the package comes; its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python or sys.executable, "-m", "venv", folder / "env"], check=True)
    inside = folder / "env/bin/python"
    pins = [f"{name}=={version}" for name, version in COLAB.items()]
    if python:
        pins.append(f"torch=={COLAB_TORCH}")
    else:
        ask = [inside, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        lend_torch(
            Path(subprocess.run(ask, check=True, text=True, capture_output=True).stdout.strip())
        )
    pip(inside, "install", "--quiet", *pins)
    return inside


def pip(python: Path, *command: str) -> str:
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", *command],
        text=True,
        capture_output=True,
    )
    if done.returncode:
        sys.exit(f"colab: pip {' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def versions(python: Path) -> dict[str, str]:
    """What is installed, by name."""
    return {
        plain(p["name"]): p["version"] for p in json.loads(pip(python, "list", "--format", "json"))
    }


def install(python: Path, folder: Path) -> None:
    """Install the package from a copy of the sources; sys.exit if anything moves."""
    shutil.copytree(
        ROOT / "src", folder / "source/src", ignore=shutil.ignore_patterns("*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copyfile(ROOT / name, folder / "source" / name)
    before = versions(python)
    pip(python, "install", "--quiet", f"{folder / 'source'}[viewers]")
    after = versions(python)
    moved = {name: (old, after.get(name)) for name, old in before.items() if after.get(name) != old}
    if moved:
        sys.exit(f"colab: installing the package moved {moved}")
    print(f"installed beside torch {after['torch']} and numpy {after['numpy']}; nothing moved")
    print("new:", ", ".join(sorted(after.keys() - before.keys())))


def run(python: Path, name: str, folder: Path) -> None:
    """Run one notebook in the environment's kernel, which can reach no other machine."""
    spec = folder / "kernels/colab"
    spec.mkdir(parents=True, exist_ok=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "c", "language": "python"})
    )
    content = nbformat.read(ROOT / f"notebooks/{name}.ipynb", as_version=4)
    content.cells.insert(0, nbformat.v4.new_code_cell(CLOSED, id="closed"))
    client = NotebookClient(
        content, timeout=1200, kernel_name="colab", resources={"metadata": {"path": folder}}
    )
    client.create_kernel_manager()
    client.km.kernel_spec_manager.kernel_dirs.insert(0, str(folder / "kernels"))
    executed = client.execute()
    said = "".join(o.get("text", "") for c in executed.cells for o in c.get("outputs", []))
    print(f"{name}: ran, {said.count('not written yet')} exercises wait for an answer")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("folder", type=Path, help="made anew")
    options.add_argument("--python", help="another interpreter, such as python3.13")
    options.add_argument("--notebooks", nargs="*", default=list(NOTEBOOKS))
    chosen = options.parse_args()
    folder = chosen.folder.resolve()
    python = prepare(folder, chosen.python)
    install(python, folder)
    for name in chosen.notebooks:
        run(python, name, folder)


if __name__ == "__main__":
    main()
