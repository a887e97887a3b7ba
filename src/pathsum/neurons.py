"""Neurons of an MLP one by one: what each adds to the right logit, what opens it, what it says."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.model import Hook
from pathsum.standard import StandardTransformer
from pathsum.standard_paths import frozen_hook, frozen_standard


def neuron_contributions(
    model: StandardTransformer,
    tokens: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
) -> list[Float[Tensor, "batch pos d_mlp"]]:
    """Per layer, what each neuron at each place adds to the right logits less the mean logits.

    By every route, to its own prediction and to later ones, with patterns, scales and gates frozen:
    then the score is affine in what a neuron holds, and its value times the gradient is exact. Over all
    neurons of a layer the sum is what the frozen run loses when they hold 0 (biases apart).
    """
    hold, held = frozen_hook(frozen_standard(model, tokens)), []

    def hook(site: str, value: Tensor) -> Tensor | None:
        if site == "embed":
            return value.detach().requires_grad_()
        value_held = hold(site, value)
        if site.endswith(".post"):
            value_held.retain_grad()
            held.append(value_held)
        return value_held

    final, W_U = model.final_residual(tokens, hook), model.W_U.detach()
    (final * (W_U.mT[targets] - W_U.mean(1))).sum().backward()
    return [(post * post.grad).detach() for post in held]


def holders(values: Float[Tensor, "*batch n"], share: float = 0.5) -> Int[Tensor, "*batch"]:
    """How many of the largest sizes in the last axis hold `share` of their sum; at least 1."""
    sizes = values.abs().sort(-1, descending=True).values
    running = sizes.cumsum(-1)
    return (running < share * running[..., -1:]).sum(-1) + 1


def token_share(
    values: Float[Tensor, "batch pos d_mlp"], tokens: Int[Tensor, "batch pos"], least: int = 20
) -> Float[Tensor, " d_mlp"]:
    """The share of each neuron's variance that the token it stands on decides, 0 to 1.

    1 - variance within tokens (unbiased) / variance over all places, over tokens that come at least
    `least` times. ValueError if no token does.
    """
    flat, ids = values.flatten(0, 1).double(), tokens.flatten()
    kinds, group, counts = ids.unique(return_inverse=True, return_counts=True)
    often = counts[group] >= least
    if not bool(often.any()):
        raise ValueError(f"no token comes {least} times in {tuple(tokens.shape)}: pass more text")
    flat, group = flat[often], group[often]
    sums = torch.zeros(len(kinds), flat.shape[1], dtype=torch.float64).index_add(0, group, flat)
    within = (flat - (sums / counts[:, None])[group]).square().sum(0)
    degrees = len(flat) - len(group.unique())
    return (1 - within / degrees / flat.var(0)).float()


def top_inputs(
    post: Float[Tensor, "batch pos"], tokens: Int[Tensor, "batch pos"], top: int = 4
) -> tuple[list[int], float]:
    """The tokens on which a neuron's activation above 0 adds up to most, and their share of it all."""
    summed = torch.zeros(int(tokens.max()) + 1, dtype=torch.float64)
    summed.index_add_(0, tokens.flatten(), post.flatten().clamp_min(0).double())
    best = summed.topk(min(top, len(summed)))
    return best.indices.tolist(), float(best.values.sum() / summed.sum().clamp_min(1e-30))


def direct_logits(
    model: StandardTransformer, layer: int, neurons: list[int] | Int[Tensor, " n"]
) -> Float[Tensor, "n d_vocab"]:
    """What one unit of each neuron adds to the logits by the direct route, less the mean.

    The last LayerNorm's gain is in it, its scale (which differs from place to place) is not.
    """
    W_out = model.W_out[layer].detach()[neurons]
    centred = W_out - W_out.mean(-1, keepdim=True)
    logits = centred * model.norm_gain[-1].detach() @ model.W_U.detach()
    return logits - logits.mean(-1, keepdim=True)


def neuron_hook(layer: int, neurons: Int[Tensor, " n"], means: Float[Tensor, " d_mlp"]) -> Hook:
    """A hook that holds some neurons of a layer at their means, wherever they stand."""

    def hook(site: str, value: Tensor) -> Tensor | None:
        if site != f"L{layer}.post":
            return None
        changed = value.clone()
        changed[..., neurons] = means[neurons].to(value)
        return changed

    return hook
