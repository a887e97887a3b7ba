"""How fast the analysis of weights is beside TransformerLens 3.9, and how it grows.

    python benchmarks/analysis.py                     everything; rewrites the results file
    python benchmarks/analysis.py eigenvalues table   these parts again, the others as they are
    python benchmarks/analysis.py --quick             tiny sizes, in seconds; results are printed
    python benchmarks/analysis.py --quick --alone     and without TransformerLens, so without ratios

Results: src/pathsum/data/analysis.json, which the book's page on speed reads. Each side of a comparison
is a process of its own with one thread (`tasks.py`); both get the same random weights and take turns,
and a ratio is the median over these turns. The results must agree: two sides that differ by more than
0.001 stop the run. TransformerLens's environment is made first if need be. All of it takes some five
minutes of an idle core and 10 GB of memory, which TransformerLens fills for composition; where less is
free, its side of that comparison is left out and said to be.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch

from pathsum.files import write_atomically

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "src" / "pathsum" / "data" / "analysis.json"
sys.path.insert(0, str(HERE))

from environment import python_with_transformer_lens

TINY = {"n_layers": 2, "n_heads": 3, "d_model": 24, "d_head": 4, "d_vocab": 300}
GPT2 = {"n_layers": 12, "n_heads": 12, "d_model": 768, "d_head": 64, "d_vocab": 50_257}
TEXT = {"model": "attn-only-2l", "sequences": 16}
ONE_SEQUENCE = {"model": "attn-only-2l", "sequences": 1}
BOOK = {"n_layers": 2, "n_heads": 8, "d_model": 256, "d_head": 32, "d_vocab": 4096}
TOLERANCE = 1e-3  # largest difference of a score or loss between the two sides; they are of order 1
FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16")

# comparison: our task, the size, sides beside ours, what the ratio should reach
COMPARISONS = {
    "eigenvalues": ("eigenvalues", GPT2, [("transformer_lens", "eigenvalues")], 15),
    "composition": ("composition", GPT2, [("transformer_lens", "composition")], 50),
    "terms": (
        "terms",
        TEXT,
        [("transformer_lens", "terms"), ("pathsum", "terms_one_by_one")],
        None,
    ),
}
NEEDED_GIB = {("transformer_lens", "composition"): 11, ("transformer_lens", "eigenvalues"): 6}
GROWTH = {  # what grows: the task, the field, its values, the other sizes
    "vocabulary": ("eigenvalues", "d_vocab", [12_500, 25_000, 50_000, 100_000, 200_000], GPT2),
    "layers": ("composition", "n_layers", [2, 4, 8, 12, 24], {**GPT2, "d_vocab": 8}),
    "context": ("terms", "n_ctx", [128, 256, 512, 1024, 2048], BOOK),
    "table": ("top_entries", "d_vocab", [6_250, 12_500, 25_000, 50_257], GPT2),
}


def quick(size: dict) -> dict:
    """A size of the same kind that runs in no time."""
    if "model" in size:
        return ONE_SEQUENCE
    return TINY | ({"n_ctx": 8} if "n_ctx" in size else {})


class Worker:
    """A process that measures one task of one library, size after size; closed by `with`."""

    def __init__(self, library: str, task: str, size: dict) -> None:
        python = python_with_transformer_lens() if library == "transformer_lens" else sys.executable
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self.process = subprocess.Popen(
            [str(python), str(HERE / "tasks.py"), library, task],
            env=os.environ | threads,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.measure(quick(size))  # libraries start, threads are made

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def measure(self, size: dict) -> tuple[dict, torch.Tensor]:
        """Seconds and memory at this size, and the result. RuntimeError if the process failed."""
        self.process.stdin.write(json.dumps(size) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{self.process.args[2:]} must answer and did not: see its error above"
            )
        record = json.loads(line)
        return record, torch.load(record.pop("result"))


def free_gib() -> float:
    """Memory that a new process may take, in GiB."""
    text = Path("/proc/meminfo").read_text()
    (kib,) = [line.split()[1] for line in text.splitlines() if line.startswith("MemAvailable")]
    return int(kib) / 2**20


def compare(task: str, size: dict, sides: list[tuple[str, str]], repeats: int) -> dict:
    """Turns of all sides; per side its seconds, peak and ratio to ours. RuntimeError if they differ."""
    ours = ("pathsum", task)
    left_out = [side for side in sides if size == GPT2 and free_gib() < NEEDED_GIB.get(side, 0)]
    taken = [ours] + [side for side in sides if side not in left_out]
    records: dict = {side: [] for side in taken}
    differences, reference = dict.fromkeys(taken, 0.0), torch.empty(0)
    with ExitStack() as stack:
        workers = {side: stack.enter_context(Worker(*side, size)) for side in taken}
        for side in taken * repeats:
            record, result = workers[side].measure(size)
            records[side].append(record)
            reference = result if side == ours else reference
            difference = float((result - reference).abs().max())
            differences[side] = max(differences[side], difference)
            if not difference < TOLERANCE:  # so NaN stops the run too
                raise RuntimeError(
                    f"{side} must give what pathsum gives within {TOLERANCE}, and differs by "
                    f"{difference}: nothing is written"
                )
    found: dict = {"size": size, "sides": {}, "left_out": ["/".join(side) for side in left_out]}
    for side in taken:
        seconds = [record["cpu_s"] for record in records[side]]
        ratios = [t / r["cpu_s"] for t, r in zip(seconds, records[ours], strict=True)]
        found["sides"]["/".join(side)] = {
            "cpu_s": seconds,
            "median_cpu_s": round(median(seconds), 4),
            "extra_mib": max(record["extra_mib"] for record in records[side]),
            "ratio": round(median(ratios), 1),
            "largest_difference": differences[side],
        }
    return found


def growth(task: str, field: str, values: list[int], size: dict) -> dict:
    """One process, sizes ascending: seconds and extra memory at each."""
    with Worker("pathsum", task, {**size, field: values[0]}) as worker:
        points = [{field: n, **worker.measure({**size, field: n})[0]} for n in values]
    return {"task": task, "field": field, "size": size, "points": points}


def machine() -> dict:
    """What a ratio may depend on: processor, its vector units, versions."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    flags = facts.get("flags", "").split()
    return {
        "processor": facts.get("model name", platform.machine()),
        "vector_units": [flag for flag in FLAGS if flag in flags],
        "threads": 1,
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
        "pathsum": version("pathsum"),
    }


def their_version() -> str:
    code = "from importlib.metadata import version; print(version('transformer-lens'))"
    python = python_with_transformer_lens()
    return subprocess.check_output([python, "-c", code], text=True).strip()


def measure(part: str, tiny: bool, repeats: int, libraries: list[str]) -> tuple[str, dict]:
    """Where a part belongs in the results file, "comparisons" or "growth", and what it measured."""
    print(f"{part} ...", file=sys.stderr, flush=True)
    if part in GROWTH:
        task, field, values, size = GROWTH[part]
        return "growth", growth(task, field, *([4, 8, 16], TINY) if tiny else (values, size))
    task, size, sides, goal = COMPARISONS[part]
    sides = [side for side in sides if side[0] in libraries]
    compared = compare(task, quick(size) if tiny else size, sides, repeats)
    return "comparisons", {"goal": goal, "repeats": repeats, **compared}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [*COMPARISONS, *GROWTH]
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(every)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; results are printed")
    parser.add_argument("--alone", action="store_true", help="with --quick: no TransformerLens")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each comparison")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(every):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    if options.alone and not options.quick:
        parser.error("--alone leaves the ratios out, so it goes with --quick only")
    libraries = ["pathsum"] if options.alone else ["pathsum", "transformer_lens"]
    facts = machine()
    if not options.alone:
        facts["transformer_lens"] = their_version()
    found: dict = {"comparisons": {}, "growth": {}}
    for part in options.parts or every:
        kind, result = measure(
            part, options.quick, 1 if options.quick else options.repeats, libraries
        )
        if (
            RESULTS.is_file() and not options.quick
        ):  # read late: other parts may run at the same time
            found = json.loads(RESULTS.read_text(encoding="utf-8"))
        found["machine"] = facts
        found[kind][part] = result
        if not options.quick:
            write_atomically(RESULTS, json.dumps(found, indent=1) + "\n")
    if options.quick:
        print(json.dumps(found, indent=1))
    else:
        print(f"written: {RESULTS.relative_to(HERE.parent)}", file=sys.stderr)


if __name__ == "__main__":
    main()
