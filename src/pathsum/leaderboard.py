"""Which size solves which task, and how well its story explains it: `python -m pathsum.leaderboard run`.

Every size is trained on every task with three seeds, about a minute each at most; finished models stay in
the working folder, so that a run which was stopped goes on. Then all are measured and the result file and
the models that the book loads are written.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import safe_open
from torch import Tensor
from tqdm.auto import tqdm

from pathsum.files import write_atomically
from pathsum.model import AttentionOnlyTransformer
from pathsum.runs import save_atomically
from pathsum.stories import beside_shortcut, measured
from pathsum.synthetic import TASKS, task_named
from pathsum.tiny import SIZES, unseen_batch, trained

RESULTS = Path(__file__).resolve().parents[2] / "book" / "results" / "synthetic.json"
WEIGHTS = Path(__file__).resolve().parent / "data" / "synthetic.safetensors"
SEEDS = (0, 1, 2)
SHIPPED = (  # task and size of the models in the package, all of seed 0
    ("copying", "0 layers"),
    ("previous", "1 layer, 1 head"),
    ("grammar", "1 layer, 2 heads"),
    ("grammar", "1 layer, 4 heads"),
    ("loops", "1 layer, 4 heads"),
    ("loops", "2 layers, 1 head"),
    ("repeats", "2 layers, 2 heads"),
    ("recall", "1 layer, 1 smeared head"),
    ("recall", "2 layers, 2 heads"),
    ("modes", "2 layers, 2 heads"),
)


def runs() -> Iterator[tuple[str, str, int]]:
    """Every (task, size, seed) of the board."""
    for seed in SEEDS:
        for task in TASKS:
            for size in SIZES:
                yield task, size, seed


def size_named(name: str) -> str:
    """The name again; ValueError if there is no such size."""
    if name not in SIZES:
        raise ValueError(f"there is no size {name!r}: choose one of {'; '.join(SIZES)}")
    return name


def _filled(size: str, tensors: dict[str, Tensor]) -> AttentionOnlyTransformer:
    model = AttentionOnlyTransformer(SIZES[size])
    model.load_state_dict({name: value.float() for name, value in tensors.items()})
    return model.requires_grad_(False)


def load_tiny(task: str, size: str) -> AttentionOnlyTransformer:
    """The shipped model (seed 0) of a task and size; ValueError for one that is not in the package."""
    task_named(task), size_named(size)
    if (task, size) not in SHIPPED:
        ours = "; ".join(f"{t} with {s}" for t, s in SHIPPED)
        raise ValueError(
            f"the package has no model of {size!r} for {task!r}, only {ours}: train it with "
            "pathsum.tiny.trained(TASKS[task], SIZES[size])"
        )
    prefix = f"{task}/{size}/"
    with safe_open(WEIGHTS, "pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]
        return _filled(size, {n.removeprefix(prefix): file.get_tensor(n) for n in names})


def _trained(work: Path, task: str, size: str, seed: int) -> tuple[AttentionOnlyTransformer, dict]:
    """The model of this run and its record, from the working folder or else trained into it."""
    path = work / f"{task}, {size}, {seed}.safetensors"
    if not path.exists():
        model, record = trained(TASKS[task], SIZES[size], seed)
        weights = {name: p.contiguous() for name, p in model.named_parameters() if p.numel()}
        save_atomically(weights, path, {"record": json.dumps(record)})
    with safe_open(path, "pt") as file:
        empty = AttentionOnlyTransformer(SIZES[size]).state_dict()
        tensors = {**empty, **{name: file.get_tensor(name) for name in file.keys()}}
        return _filled(size, tensors), json.loads(file.metadata()["record"])


def results() -> list[dict]:
    """The result file: one row for each run, in the order of `runs`."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m pathsum.leaderboard", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="train what is missing, measure, write both files")
    runner.add_argument("--work", type=Path, default=Path("runs/synthetic"))
    runner.add_argument("--out", type=Path, default=RESULTS)
    runner.add_argument("--weights", type=Path, default=WEIGHTS)
    options = parser.parse_args(arguments)
    rows, shipped = [], {}
    for task, size, seed in tqdm(list(runs()), unit="model"):
        model, record = _trained(options.work, task, size, seed)
        test = TASKS[task], unseen_batch(TASKS[task])
        story = measured(model, *test) if record["solved"] else {}
        row = {"task": task, "size": size, "seed": seed, **record, **story}
        rows.append(row | beside_shortcut(model, *test))
        if seed == 0 and (task, size) in SHIPPED:
            half = {n: p.half() for n, p in model.state_dict().items()}
            shipped |= {f"{task}/{size}/{n}": p.contiguous() for n, p in half.items()}
    save_atomically(shipped, options.weights)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, json.dumps(rows, indent=1) + "\n")
    solved = sum(row["solved"] for row in rows)
    print(f"{solved} of {len(rows)} runs solve their task; written to {options.out}")


if __name__ == "__main__":
    main()
