"""Models of a minute: sizes, training on a synthetic task, and how well it went.

Each size is as small as it can be and still be a transformer of this book. Training ends when the task
is solved, or after MOST_STEPS steps.
"""

import time

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pathsum.model import AttentionOnlyTransformer, Config, Hook
from pathsum.presets import TrainConfig, learning_rate_factor
from pathsum.runs import optimizers
from pathsum.synthetic import D_VOCAB, N_CTX, Batch, Task

WIDTH = {"d_model": 64, "d_head": 32, "d_vocab": D_VOCAB, "n_ctx": N_CTX}
SIZES = {  # name -> what it has
    "0 layers": Config(n_layers=0, n_heads=1, **WIDTH),
    **{
        f"1 layer, {heads}": Config(n_layers=1, n_heads=int(heads[0]), **WIDTH)
        for heads in ("1 head", "2 heads", "4 heads")
    },
    "1 layer, 1 smeared head": Config(n_layers=1, n_heads=1, smear=True, **WIDTH),
    **{
        f"2 layers, {heads}": Config(n_layers=2, n_heads=int(heads[0]), **WIDTH)
        for heads in ("1 head", "2 heads", "4 heads")
    },
}
MOST_STEPS = 4000
BATCH = 32  # sequences a step
EVERY = 100  # steps between measurements
SOLVED = 0.99  # share of right answers from which a task counts as solved
TESTED = 512  # sequences of a measurement


def scored_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Mean loss in nats where the batch asks for an answer."""
    return cross_entropy(logits[batch.scored], batch.targets[batch.scored])


@torch.no_grad()
def performance(
    model: AttentionOnlyTransformer, batch: Batch, hook: Hook | None = None
) -> dict[str, float]:
    """`loss` in nats and `accuracy` from 0 to 1, where answers are asked for."""
    return scores(model(batch.inputs, hook), batch)


def scores(logits: Tensor, batch: Batch) -> dict[str, float]:
    """`loss` and `accuracy` of logits (batch, pos, d_vocab)."""
    right = logits.argmax(-1)[batch.scored] == batch.targets[batch.scored]
    return {"loss": float(scored_loss(logits, batch)), "accuracy": float(right.float().mean())}


def unseen_batch(task: Task) -> Batch:
    """Sequences that training does not see; the same ones every time."""
    return task.draw(TESTED, torch.Generator().manual_seed(10_000))


def trained(
    task: Task, config: Config, seed: int = 0, steps: int = MOST_STEPS
) -> tuple[AttentionOnlyTransformer, dict]:
    """A model trained on the task, and its record: steps, seconds, loss, accuracy, solved.

    The rate falls to nothing over the last steps of the budget; a run that has solved the task at
    two measurements in a row stops early. ValueError for fewer than one step.
    """
    settings = TrainConfig(config, "none", steps, muon_lr=0.01, adam_lr=3e-3, decay=0.5)
    model = AttentionOnlyTransformer(config, seed=seed)
    steppers = optimizers(model, settings)
    rates = [[g["lr"] for g in o.param_groups] for o in steppers]
    generator = torch.Generator().manual_seed(seed)
    unseen, began, solved = unseen_batch(task), time.perf_counter(), 0
    for step in range(steps):
        for optimizer, full in zip(steppers, rates):
            optimizer.zero_grad(set_to_none=True)
            for group, rate in zip(optimizer.param_groups, full):
                group["lr"] = rate * learning_rate_factor(step, settings)
        batch = task.draw(BATCH, generator)
        scored_loss(model(batch.inputs), batch).backward()
        for optimizer in steppers:
            optimizer.step()
        if (step + 1) % EVERY == 0 or step + 1 == steps:
            now = performance(model, batch=unseen)
            solved = solved + 1 if now["accuracy"] >= SOLVED else 0
            if solved == 2:
                break
    record = {"steps": step + 1, "seconds": round(time.perf_counter() - began, 1), **now}
    return model.requires_grad_(False), {**record, "solved": solved > 0}
