"""TransformerLens in an environment of its own, on top of the one that runs this.

    python benchmarks/environment.py           TransformerLens 3.9, made if need be; its Python
    python benchmarks/environment.py 4         TransformerLens 4.3

It is a virtual environment in _build that also sees the packages in use here, so PyTorch is not
installed twice, and nothing of TransformerLens's many requirements enters the book's environment.
Its own packages are those of requirements-transformer-lens-*.txt, nothing else.
"""

import hashlib
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAJORS = ("3", "4")


def requirements(major: str) -> Path:
    """The file of pins for TransformerLens 3 or 4. ValueError for another."""
    if major not in MAJORS:
        raise ValueError(
            f"there are pins for TransformerLens {' and '.join(MAJORS)}, got {major!r}"
        )
    return HERE / f"requirements-transformer-lens-{major}.txt"


def python_with_transformer_lens(major: str = "3", folder: Path | None = None) -> Path:
    """The interpreter of the environment, which is made where it is missing or made of other pins.

    In _build/transformer-lens-MAJOR unless `folder` is given; about a minute, and 300 MB.
    CalledProcessError, with pip's words on the terminal, if the package index is out of reach.
    """
    pins, here = requirements(major), sysconfig.get_path("purelib")
    folder = folder or HERE.parent / "_build" / f"transformer-lens-{major}"
    python, ready = folder / "bin" / "python", folder / "ready"
    state = hashlib.sha256((pins.read_text() + here + sys.version).encode()).hexdigest()
    if ready.is_file() and ready.read_text() == state:
        return python
    venv.create(folder, with_pip=True, clear=True)
    own = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    # A line that begins with import is run at start: the packages here come after its own ones.
    line = f"import site; site.addsitedir({here!r})\n"
    (Path(own) / "packages_below.pth").write_text(line)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--requirement", pins], check=True)
    ready.write_text(state)
    return python


if __name__ == "__main__":
    print(python_with_transformer_lens(*sys.argv[1:2]))
