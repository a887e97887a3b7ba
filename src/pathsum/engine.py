"""Where training steps are computed: device, precision, and the processes that share a batch.

One process needs torch alone. Several, started by `accelerate launch` or `torchrun`, go through
Hugging Face Accelerate (`pip install "pathsum[accelerate]"`): each holds all weights, works on its
own part of every batch, and averages its gradients with the others' before the optimisers run, so
that all take the same step. There are few, stacked parameters, hence one plain average of each
instead of a wrapped module; the loss is computed outside the module anyway.
"""

import os
import platform
import signal
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class RunError(RuntimeError):
    """A run that can't start or go on, with what to do about it."""


class ProcessLost(RunError):
    """Another process of the run has ended, or whoever started them all stops this one."""


@dataclass(frozen=True)
class Engine:
    """How steps are computed; the numbers of a run depend on it only through rounding."""

    device: torch.device
    precision: str = "fp32"  # of a step's products: "fp32" or "bf16"; weights are always fp32
    accumulate: int = 1  # pieces of a process's part of a batch, worked on one after another
    compile: str | None = None  # backend of torch.compile that fuses forward and backward pass
    accelerator: Any = None  # accelerate.Accelerator of several processes, None for one

    @property
    def processes(self) -> int:
        return self.accelerator.num_processes if self.accelerator else 1

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        return self.accelerator.process_index if self.accelerator else 0

    @property
    def writes(self) -> bool:
        """Whether this process measures and writes; of several only the first does."""
        return self.rank == 0

    def pieces(self, batch: list[int]) -> list[list[int]]:
        """This process's part of a batch, in `accumulate` pieces of equal size.

        Over all processes every entry comes exactly once. RunError if it can't be split evenly.
        """
        count = self.processes * self.accumulate
        if len(batch) % count:
            raise RunError(
                f"a batch of {len(batch)} sequences can't be split evenly into {count} pieces "
                f"({self.processes} processes x {self.accumulate} accumulated): choose a --batch "
                "that is a multiple, or another --accumulate"
            )
        size, first = len(batch) // count, self.rank * self.accumulate
        return [batch[i * size : (i + 1) * size] for i in range(first, first + self.accumulate)]

    def autocast(self) -> AbstractContextManager:
        """The context in which a step's products are computed in `precision`."""
        bf16 = self.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=bf16)

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over the processes. ProcessLost if one is gone."""
        if self.accelerator is None:
            return
        try:
            for tensor in tensors:
                tensor.copy_(self.accelerator.reduce(tensor, "mean"))
        except RuntimeError as error:
            raise _lost("another process of this run has ended") from error

    @contextmanager
    def first(self) -> Iterator[None]:
        """A context that the first process passes before the others enter it."""
        together = [torch.zeros((), device=self.device)]
        if not self.writes:
            self.average(together)
        yield
        if self.writes:
            self.average(together)

    def facts(self) -> dict:
        """What a run's record says of it."""
        kind = self.device.type
        names = {"cpu": platform.machine, "cuda": lambda: torch.cuda.get_device_name(self.device)}
        return {
            "device": names[kind]() if kind in names else kind,
            "precision": self.precision,
            "processes": self.processes,
            "accumulate": self.accumulate,
            "compile": self.compile,
        }


ON_CPU = Engine(torch.device("cpu"))


def _lost(what: str) -> ProcessLost:
    return ProcessLost(
        f"{what}: see above for the reason, then start all of them again with --resume to go on "
        "from the last checkpoint"
    )


def usable_device(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA if there is one, else the CPU. RunError if unusable."""
    cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "cpu")
    there = {"cpu": True, "cuda": cuda, "mps": torch.backends.mps.is_available()}
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in there:
        raise RunError(f"a device is auto, cpu, cuda, cuda:NUMBER or mps, got {name!r}")
    if not there[device.type] or (device.index or 0) >= max(1, torch.cuda.device_count()):
        found = [kind for kind, usable in there.items() if usable]
        raise RunError(
            f"there is no device {name!r} here: torch {torch.__version__} sees {', '.join(found)} "
            f"({torch.cuda.device_count()} CUDA devices); use one of these, or --device auto"
        )
    return device


def usable_precision(name: str, device: torch.device) -> str:
    """ "fp32" or "bf16"; `auto` is what `accelerate launch --mixed_precision` said, else bf16 on CUDA."""
    told = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if name == "auto" and told == "no":
        return "bf16" if device.type == "cuda" else "fp32"
    name = told if name == "auto" else name
    if name not in ("fp32", "bf16"):
        raise RunError(
            f"precision is fp32 or bf16, got {name!r}: fp16 would need its losses scaled; every "
            "GPU on which this is fast has bf16 too"
        )
    return name


def start_engine(
    device: str = "auto",
    precision: str = "auto",
    accumulate: int = 1,
    compile: str | None = None,
) -> Engine:
    """The engine of this process, joined with the others if a launcher started several.

    RunError for what is not there: a device, a precision, Accelerate.
    """
    if accumulate < 1:
        raise RunError(f"--accumulate must be 1 or more pieces, got {accumulate}")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        place = usable_device(device)
        return Engine(place, usable_precision(precision, place), accumulate, compile)
    if device not in ("auto", "cpu"):
        raise RunError(
            f"each of several processes gets its own device, so --device is auto or cpu, got "
            f"{device!r}: choose devices with the launcher (accelerate launch --gpu_ids 0,1)"
        )
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise RunError(
            "several processes need the package accelerate, which is not installed: run "
            '`pip install "pathsum[accelerate]"`, or start one process with '
            "`python -m pathsum.train`"
        ) from error
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision="no")
    signal.signal(signal.SIGTERM, _stopped)
    place = accelerator.device
    return Engine(place, usable_precision(precision, place), accumulate, compile, accelerator)


def _stopped(number: int, frame: object) -> None:
    raise _lost("the launcher stopped this process, as it does when another one has ended")
