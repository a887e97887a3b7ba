"""Lay out what the live figures of the book download: models, tokenizer, a list of both.

    _build/site/live/data/models.json               what there is, with sizes and hashes
    _build/site/live/data/NAME-HASH.safetensors     a shipped checkpoint, byte for byte
    _build/site/live/data/step-STEP-HASH.z          a snapshot of its training, byte for byte
    _build/site/live/data/tokenizer-HASH.json

A name changes with its content, so that a browser never pairs an old file with a new page. Models
that the page cannot compute exactly (with LayerNorm or smeared keys) are left out.
"""

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

from pathsum.checkpoints import MODELS, model_card, model_names, training_log
from pathsum.demo import DEMO_TEXT
from pathsum.snapshots import SNAPSHOTS, index, snapshot_tokens

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "site"
WATCHED = "attn-only-2l"  # the model whose training a live figure goes through


def hashed(path: Path) -> str:
    """The file's name with the first twelve digits of its sha256 before the ending."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return f"{path.stem}-{digest}{path.suffix}"


def runs_in_page(config: dict) -> bool:
    """Whether the page's engine computes such a model exactly."""
    return not config.get("norm") and not config.get("smear")


def moments(name: str) -> tuple[list[dict], dict[str, Path]]:
    """(the stored snapshots of a model for the page, first to last; file name -> file)."""
    listed, files = [], {}
    for step, entry in index()[name].items():
        path = SNAPSHOTS / entry["file"]
        files[hashed(path)] = path
        listed.append(
            {
                "name": f"{name}@{step}",
                "file": hashed(path),
                "bytes": path.stat().st_size,
                "step": int(step),
                "tokens": snapshot_tokens(name, int(step)),
            }
        )
    return listed, files


def contents() -> tuple[dict, dict[str, Path]]:
    """(the list for the page, file name -> the package's file)."""
    tokenizer = MODELS.parent / "tokenizer.json"
    files, models = {hashed(tokenizer): tokenizer}, []
    for name in model_names():
        card, path = model_card(name), MODELS / f"{name}.safetensors"
        if runs_in_page(card["config"]):
            last = training_log(name)[-1]
            files[hashed(path)] = path
            models.append(
                {
                    "name": name,
                    "file": hashed(path),
                    "bytes": path.stat().st_size,
                    "config": card["config"],
                    "heldout_loss": card["final"]["heldout_loss"],
                    "prefix_matching": last["prefix_matching"],
                    "previous_token": last["previous_token"],
                }
            )
    watched, snapshots = moments(WATCHED)
    return {
        "tokenizer": hashed(tokenizer),
        "demo": DEMO_TEXT,
        "models": models,
        "moments": {WATCHED: watched},
    }, files | snapshots


def lay_out(site: Path = SITE) -> Path:
    """The folder `site`, made anew unless it holds exactly these files already."""
    listing, files = contents()
    text = json.dumps(listing, indent=1) + "\n"
    data = site / "live" / "data"
    there = {path.name for path in data.glob("*")} if data.is_dir() else set()
    if there == {"models.json", *files} and (data / "models.json").read_text() == text:
        return site
    site.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=site.parent, prefix="site-") as temporary:
        fresh = Path(temporary) / "site"
        (fresh / "live" / "data").mkdir(parents=True)
        for name, path in files.items():
            shutil.copyfile(path, fresh / "live" / "data" / name)
        (fresh / "live" / "data" / "models.json").write_text(text)
        shutil.rmtree(site, ignore_errors=True)
        fresh.rename(site)
    return site


if __name__ == "__main__":
    print(lay_out().relative_to(ROOT))
