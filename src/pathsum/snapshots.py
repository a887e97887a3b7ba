"""Models in the making: a few snapshots of two training runs, in 8 bits a weight.

A whole run keeps 60 snapshots of 5 MB. Around the phase change some of them ship: each weight is
rounded to a whole number of sixteenths of its group's root mean square (a row of W_E, a column of
W_U, a head's matrix), and the file is compressed. Step 0 is not stored, since the run's seed makes
it again, and the last step is the shipped model. The index says what the rounding costs.
"""

import argparse
import hashlib
import json
import sys
import zlib
from importlib import resources
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from pathsum.checkpoints import CheckpointError, load_model, load_run, model_card
from pathsum.dataset import heldout_sample
from pathsum.evaluate import token_losses
from pathsum.files import moved_into_place, write_atomically
from pathsum.model import AttentionOnlyTransformer
from pathsum.standard import config_of, transformer

SNAPSHOTS = Path(str(resources.files("pathsum") / "data" / "snapshots"))
STEPS = {  # around the phase change; what the package ships
    "attn-only-2l": (174, 489, 657, 761, 882, 1023, 1373, 2137),
    "attn-only-1l": (882, 2137),
}
LEVELS = 16  # steps of the rounding in one root mean square
SPREAD = 14  # every so many blocks of held-out text measure the rounding
SHARED = {"W_E": (1,), "W_U": (0,)}  # axes over which one scale is shared; else a head's matrix


def index() -> dict[str, dict]:
    """What ships: model name -> step -> file name, sha256, tokens, and losses for the rounding."""
    return json.loads((SNAPSHOTS / "index.json").read_text(encoding="utf-8"))


def snapshot_steps(name: str) -> list[int]:
    """The steps that `load_snapshot` knows of a model, first (0) to last (the shipped model)."""
    return [0, *sorted(map(int, index().get(name, {}))), model_card(name)["training"]["steps"]]


def snapshot_tokens(name: str, step: int) -> int:
    """How many tokens the run had seen at a step."""
    card = model_card(name)
    return step * card["training"]["batch"] * card["config"]["n_ctx"]


def load_snapshot(name: str, step: int) -> AttentionOnlyTransformer:
    """A shipped model as it was at an earlier step of its training, from the package alone.

    CheckpointError for a step that does not ship, or for a file that was changed.
    """
    card, stored = model_card(name), index().get(name, {})
    config, steps = config_of(card["config"]), card["training"]["steps"]
    if step == steps:
        return load_model(name)
    if step == 0:
        model = transformer(config, seed=card["training"]["seed"])
        return model.requires_grad_(False).eval()
    if str(step) not in stored:
        raise CheckpointError(
            f"no snapshot of {name} at step {step} ships, only of {snapshot_steps(name)}: take one "
            "of these, or train the model again and use load_run"
        )
    path = SNAPSHOTS / stored[str(step)]["file"]
    content = path.read_bytes()
    found, expected = hashlib.sha256(content).hexdigest(), stored[str(step)]["sha256"]
    if found != expected:
        raise CheckpointError(
            f"{path.name} has sha256 {found[:16]}..., expected {expected[:16]}...: the file was "
            "changed or cut short; install pathsum again"
        )
    model = transformer(config)
    model.load_state_dict(unpacked(content))
    return model.requires_grad_(False).eval()


def packed(weights: dict[str, Tensor]) -> bytes:
    """Weights as 8-bit whole numbers and fp16 scales, in one compressed safetensors file."""
    tensors = {}
    for name, weight in weights.items():
        axes = SHARED.get(name, (-2, -1))
        mean_square = weight.float().square().mean(axes, keepdim=True)
        scale = (mean_square.sqrt() / LEVELS).half()
        rounded = (weight.float() / scale.float().clamp_min(1e-8)).round()
        tensors[f"{name}.scale"] = scale
        tensors[name] = rounded.clamp(-127, 127).to(torch.int8).contiguous()
    return zlib.compress(save(tensors), level=9)


def unpacked(content: bytes) -> dict[str, Tensor]:
    """The weights in `packed` bytes, as fp32."""
    tensors = load(zlib.decompress(content))
    names = [name for name in tensors if not name.endswith(".scale")]
    return {name: tensors[name].float() * tensors[f"{name}.scale"].float() for name in names}


def export(run: Path, name: str, steps: tuple[int, ...]) -> None:
    """Ship snapshots of the run behind the model `name`; measures what the rounding does to each."""
    inputs, targets = (part[::SPREAD] for part in heldout_sample())
    folder, entries = SNAPSHOTS / name, {}
    for step in steps:
        exact = load_run(run, step)
        content = packed(dict(exact.named_parameters()))
        file = folder / f"step-{step:06d}.safetensors.z"
        with moved_into_place(file) as temporary:
            temporary.write_bytes(content)
        rounded = transformer(exact.config)
        rounded.load_state_dict(unpacked(content))
        before, after = (token_losses(m, inputs, targets) for m in (exact, rounded))
        entries[str(step)] = {
            "file": f"{name}/{file.name}",
            "sha256": hashlib.sha256(content).hexdigest(),
            "heldout_loss": round(float(after.mean()), 5),
            "heldout_loss_fp16": round(float(before.mean()), 5),
            "rms_change": round(float((after - before).square().mean().sqrt()), 5),
        }
    known = index() if (SNAPSHOTS / "index.json").exists() else {}
    write_atomically(
        SNAPSHOTS / "index.json", json.dumps({**known, name: entries}, indent=1) + "\n"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.snapshots", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    exporter = commands.add_parser("export", help="ship snapshots of a finished run")
    exporter.add_argument("run", type=Path)
    exporter.add_argument("name", choices=STEPS)
    commands.add_parser("list", help="what ships, and what the rounding costs")
    options = parser.parse_args(arguments)
    if options.command == "list":
        for name, steps in index().items():
            for step, entry in steps.items():
                cost = entry["heldout_loss"] - entry["heldout_loss_fp16"]
                size = (SNAPSHOTS / entry["file"]).stat().st_size / 1e6
                print(f"{name} step {step:>5}: {size:.1f} MB, rounding {cost:+.4f} nats")
        return
    try:
        export(options.run, options.name, STEPS[options.name])
    except (CheckpointError, OSError) as error:
        sys.exit(f"pathsum.snapshots: {error}")


if __name__ == "__main__":
    main()
