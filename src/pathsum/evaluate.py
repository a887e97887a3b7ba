"""Losses of a model: on held-out text, by position, and on random tokens that repeat."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.heads import (
    copying_score,
    prefix_matching_score,
    previous_token_score,
    repeated_tokens,
)
from pathsum.loss import cross_entropy_rows
from pathsum.model import AttentionOnlyTransformer, Hook, check_numbers

BATCH = 16  # sequences at a time


@torch.no_grad()
def token_losses(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    hook: Hook | None = None,
) -> Float[Tensor, "batch pos"]:
    """Each token's loss in nats, on the CPU; the model keeps its device and no logits are kept.

    Runs BATCH sequences at a time, each time with the `hook`, if there is one. ValueError unless
    inputs and targets are of one shape and hold ids the model has, and if a loss is NaN.
    """
    device, parts = model.W_E.device, []
    if inputs.shape != targets.shape:
        raise ValueError(
            f"every input needs one target, got {tuple(inputs.shape)} and {tuple(targets.shape)}"
        )
    for what, values in ("inputs", inputs), ("targets", targets), ("W_E", model.W_E):
        if values.device.type == "meta":
            check_numbers(values, what)
    if not 0 <= int(targets.min()) <= int(targets.max()) < model.config.d_vocab:
        raise ValueError(
            f"targets must lie in 0..{model.config.d_vocab - 1}, got {int(targets.min())}.."
            f"{int(targets.max())}: was the text encoded with this model's tokenizer?"
        )
    for x, y in zip(inputs.split(BATCH), targets.split(BATCH)):
        resid = model.final_residual(x.to(device), hook)
        parts.append(
            cross_entropy_rows(resid.flatten(0, 1), model.W_U, y.to(device).flatten())
            .reshape(x.shape)
            .cpu()
        )
    losses = torch.cat(parts)
    check_numbers(losses, "the losses")
    return losses


def in_context_score(losses: Float[Tensor, "batch pos"]) -> float:
    """Mean loss late in the context minus early in it, in nats; more negative is more use of it.

    Late is the last eighth of the positions, early the second eighth (for 256: 224-255 and 32-63).
    Source: Olsson et al. 2022, who compare the 500th with the 50th token of 512; averaging over
    positions makes the score less noisy on a small sample.
    """
    eighth = losses.shape[1] // 8
    if eighth < 1:
        raise ValueError(f"needs at least 8 positions, got {losses.shape[1]}")
    check_numbers(losses, "losses")
    return float(losses[:, -eighth:].mean() - losses[:, eighth : 2 * eighth].mean())


@torch.no_grad()
def repeat_scores(
    model: AttentionOnlyTransformer, sequences: int = 16, seed: int = 0, start_id: int = 0
) -> dict[str, float | list]:
    """What the model does on random tokens repeated twice: losses per copy, and scores per head.

    Copies have half the context each. Keys: `first_copy` and `second_copy` (nats per token; each
    copy's first token is left out, since nothing predicts it), `prefix_matching` and
    `previous_token` (n_layers lists of n_heads numbers, 0 to 1).
    """
    c = model.config
    period = (c.n_ctx - 1) // 2
    generator = torch.Generator().manual_seed(seed)
    tokens = repeated_tokens(sequences, period, 2, c.d_vocab, generator, start_id)
    losses = token_losses(model, tokens[:, :-1], tokens[:, 1:])
    shape = (c.n_layers, c.n_heads)
    prefix, previous = torch.zeros(shape), torch.zeros(shape)

    def record(site: str, value: Tensor) -> None:
        if site.endswith(".pattern"):
            layer = int(site[1])
            prefix[layer] += prefix_matching_score(value, period).sum(0).cpu()
            previous[layer] += previous_token_score(value).sum(0).cpu()

    for part in tokens.split(BATCH):
        model.final_residual(part.to(model.W_E.device), hook=record)
    return {
        "first_copy": float(losses[:, 1:period].mean()),
        "second_copy": float(losses[:, period + 1 :].mean()),
        "prefix_matching": (prefix / sequences).tolist(),
        "previous_token": (previous / sequences).tolist(),
    }


def training_record(
    model: AttentionOnlyTransformer,
    inputs: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
) -> dict:
    """Everything the trainer logs of a model: held-out losses, repeats, and head scores.

    `inputs` begin with the start token, as `pathsum.dataset.blocks` makes them.
    """
    losses = token_losses(model, inputs, targets)
    return {
        "heldout_loss": float(losses.mean()),
        "in_context_score": in_context_score(losses),
        "loss_by_position": losses.mean(0).tolist(),
        **repeat_scores(model, start_id=int(inputs[0, 0])),
        "copying": copying_score(model).tolist(),
    }
