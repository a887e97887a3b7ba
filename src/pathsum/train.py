"""Train a toy model.

One process: python -m pathsum.train PRESET

Every GPU of this machine, the batch split among them: accelerate launch -m pathsum.train PRESET

Two processes on a CPU: accelerate launch --multi_gpu --num_processes 2 -m pathsum.train PRESET
--device cpu (Accelerate starts only one with --cpu).
"""

import argparse
import ctypes
import sys
from dataclasses import replace
from pathlib import Path

import torch

from pathsum.corpus import CorpusError
from pathsum.dataset import encoded
from pathsum.engine import ProcessLost, RunError, start_engine
from pathsum.presets import PRESETS, TrainConfig
from pathsum.runs import Run, log_lines
from pathsum.tokenizer import load_tokenizer


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks: training steps were 1.1 to 1.5 times as fast with it.

    By default each tensor above 32 MB goes back to the system when freed, and the next one pays
    for fresh pages. No effect on other systems.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            trim_threshold, mmap_max = -1, -4  # names from malloc.h
            mallopt(mmap_max, 0)
            mallopt(trim_threshold, 2**31 - 1)


def parser() -> argparse.ArgumentParser:
    """Of the command line; what is left out there is the preset's."""
    parser = argparse.ArgumentParser(
        prog="python -m pathsum.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--out", type=Path, help="run folder (default: runs/PRESET-Nl-seedS)")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument(
        "--device", default="auto", help="auto (CUDA if there is one), cpu, cuda, cuda:N, mps"
    )
    parser.add_argument(
        "--precision", default="auto", help="auto (bf16 on CUDA, else fp32), fp32, bf16"
    )
    parser.add_argument(
        "--accumulate", type=int, default=1, help="pieces in which a process works on its batch"
    )
    parser.add_argument(
        "--compile", action="store_const", const="inductor", help="fuse the steps by torch.compile"
    )
    parser.add_argument("--layers", type=int, help="number of attention layers")
    parser.add_argument("--norm", choices=["pre"], help="add LayerNorm at every read")
    parser.add_argument(
        "--smear", action="store_true", default=None, help="mix each key with the one before it"
    )
    for name in ("steps", "batch", "seed", "save-every"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("muon-lr", "adam-lr"):
        parser.add_argument(f"--{name}", type=float)
    parser.add_argument("--data", help="corpus name, file:PATH or hf:NAME (see pathsum.corpus)")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        help="a tokenizer.json of ours or GPT-2's (default: the shipped one)",
    )
    return parser


def settings(options: argparse.Namespace) -> TrainConfig:
    """The preset with what the command line changes; ValueError for values that make no sense."""
    config = PRESETS[options.preset]
    sizes = {"n_layers": options.layers, "norm": options.norm, "smear": options.smear}
    given = {k: v for k, v in sizes.items() if v is not None}
    names = ("steps", "batch", "seed", "save_every", "muon_lr", "adam_lr", "data")
    chosen = {k: getattr(options, k) for k in names if getattr(options, k) is not None}
    return replace(config, model=replace(config.model, **given), **chosen)


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    keep_freed_memory()
    engine = None
    try:
        config = settings(options)
        kind = "-ln" if config.model.norm else "-smear" if config.model.smear else ""
        name = f"{options.preset}-{config.model.n_layers}l{kind}-seed{config.seed}"
        out = options.out or Path("runs") / name
        tokenizer = load_tokenizer(options.tokenizer)
        if tokenizer.d_vocab != config.model.d_vocab:
            raise RunError(
                f"the {options.preset} preset has d_vocab={config.model.d_vocab:,} and the tokenizer "
                f"{tokenizer.d_vocab:,} tokens: make one that fits with `python -m pathsum.tokenizer "
                f"train {config.data} --d-vocab {config.model.d_vocab} --out FILE`, or take GPT-2's "
                "tokenizer.json if it is 50,257, then add --tokenizer FILE"
            )
        engine = start_engine(
            options.device, options.precision, options.accumulate, options.compile
        )
        with engine.first():  # fetches and encodes the text, which the others then find
            data = encoded(config.data, tokenizer=tokenizer)
        run = Run(out, config, data, engine)
        run.start(options.resume)
        run.train()
    except KeyboardInterrupt:
        sys.exit("pathsum.train: interrupted; --resume goes on from the last checkpoint")
    except torch.OutOfMemoryError as error:
        sys.exit(
            f"pathsum.train: the memory of {options.device!r} is full ({str(error).splitlines()[0]}): "
            f"split the batch with --accumulate {2 * options.accumulate}, or make it smaller with "
            "--batch"
        )
    except (RunError, CorpusError, OSError, ValueError) as error:
        heard = engine is None or engine.writes or isinstance(error, ProcessLost)
        sys.exit(f"pathsum.train: {error}" if heard else 1)  # several say the same only once
    if not engine.writes:
        return
    print(
        f"{out}: step {run.step}, last held-out loss {log_lines(out)[-1]['heldout_loss']:.3f} nats"
    )


if __name__ == "__main__":
    main()
