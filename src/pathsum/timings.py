"""How long each chapter's notebook takes, and how much memory: `python -m pathsum.timings`.

It runs the notebooks with solutions one after the other in fresh kernels and writes
book/results/timings.json: of each, the seconds of processor time and the peak memory of its kernel,
and the seconds by the clock of the whole and of each cell. Processor time is what the notebooks and
the teacher's guide print: it is the same on a busy machine, and on an idle one with one thread
(OMP_NUM_THREADS=1) it is what the clock says. Name chapters to measure only those. `--figures
FOLDER` saves every figure as an SVG file instead, ready for slides.
"""

import argparse
import json
import os
import platform
import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from pathsum.files import write_atomically
from pathsum.notebooks import TIMINGS, read_book

SVG_CELL = "%config InlineBackend.figure_formats = ['svg']"


def run_notebook(path: Path, folder: Path, svg: bool = False) -> nbformat.NotebookNode:
    """The executed notebook, with the seconds of each cell in its metadata. CellExecutionError."""
    content = nbformat.read(path, as_version=4)
    if svg:
        content.cells.insert(0, nbformat.v4.new_code_cell(SVG_CELL, id="svg"))
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(content, timeout=1200, kernel_name="python3", resources=resources)
    started: dict[int, float] = {}

    def begin(cell: Any, cell_index: int) -> None:
        started[cell_index] = time.perf_counter()

    def end(cell: Any, cell_index: int) -> None:
        cell.metadata["seconds"] = round(time.perf_counter() - started[cell_index], 2)

    client.on_cell_execute, client.on_cell_complete = begin, end
    return client.execute()


def measure(path: Path, folder: Path, figures: Path | None = None) -> dict[str, Any]:
    """Seconds and peak memory in MB (2**20 bytes) of one notebook, in a process of its own.

    Its only child is the kernel, so that the children's time and peak are the kernel's.
    RuntimeError if a cell fails.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # so that the peak is this notebook's alone
        os.close(reading)
        try:
            started = time.perf_counter()
            executed = run_notebook(path, folder, figures is not None)
            clock = time.perf_counter() - started
            if figures:
                save_figures(executed, figures)
            kernel = resource.getrusage(resource.RUSAGE_CHILDREN)
            unit = 2**20 if sys.platform == "darwin" else 2**10
            found = {
                "seconds": round(kernel.ru_utime + kernel.ru_stime, 1),
                "clock_seconds": round(clock, 1),
                "peak_mb": round(kernel.ru_maxrss / unit),
                "cells": {
                    c.id: c.metadata["seconds"] for c in executed.cells if "seconds" in c.metadata
                },
            }
            os.write(writing, json.dumps(found).encode())
        except CellExecutionError as error:
            os.write(writing, json.dumps({"error": str(error)[-2000:]}).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    found = json.loads(answer or b'{"error": "the process ended without a word"}')
    if "error" in found:
        raise RuntimeError(f"{path.name} does not run: {found['error']}")
    return found


def save_figures(executed: nbformat.NotebookNode, folder: Path) -> list[Path]:
    """Every figure of an executed notebook as an SVG file named after it; the files."""
    saved = []
    for cell in executed.cells:
        drawn = [
            o.data["image/svg+xml"]
            for o in cell.get("outputs", [])
            if "image/svg+xml" in o.get("data", {})
        ]
        for i, text in enumerate(drawn):
            name = re.sub(r"[^\w-]", "-", cell.id) + (f"-{i + 1}" if len(drawn) > 1 else "")
            saved.append(folder / f"{name}.svg")
            write_atomically(saved[-1], text)
    return saved


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("chapters", nargs="*", help="names of chapters; without any, all")
    options.add_argument(
        "--figures", type=Path, help="save every figure as SVG there; no times are kept"
    )
    chosen = options.parse_args()
    root = Path.cwd()
    there = [chapter.name for chapter in read_book(root)[0] if chapter.executable]
    if unknown := set(chosen.chapters) - set(there):
        sys.exit(f"timings: there is no chapter {sorted(unknown)}; there are {there}")
    old = (
        json.loads((root / TIMINGS).read_text(encoding="utf-8"))
        if (root / TIMINGS).exists()
        else {}
    )
    results = {name: row for name, row in old.get("chapters", {}).items() if name in there}
    for name in chosen.chapters or there:
        path = root / f"notebooks/solutions/{name}.ipynb"
        try:
            found = measure(path, root, chosen.figures)
        except RuntimeError as error:
            sys.exit(f"timings: {error}")
        print(f"{name:<24} {found['seconds']:>7.1f} s {found['peak_mb']:>6} MB", flush=True)
        results[name] = found
    if chosen.figures:
        print(f"{len(list(chosen.figures.glob('*.svg')))} figures in {chosen.figures}")
        return
    machine = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    ordered = {name: results[name] for name in there if name in results}
    write_atomically(
        root / TIMINGS, json.dumps({"machine": machine, "chapters": ordered}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
