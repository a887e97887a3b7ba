"""OV circuits of a standard model's heads, from token to logit, with LayerNorm's gains in them."""

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.factored import FactoredMatrix
from pathsum.heads import positivity
from pathsum.standard import StandardTransformer


@torch.no_grad()
def token_reads(
    model: StandardTransformer, layer: int, effective: bool = False
) -> Float[Tensor, "d_vocab d_model"]:
    """What a layer's heads read of every token: its embedding behind LayerNorm, bias left out.

    `effective`: of the embedding and what the MLPs before the layer make of it, the token standing
    alone, without position or attention. For layer 0 the two are the same. IndexError for another
    layer.
    """
    if not 0 <= layer < model.config.n_layers:
        raise IndexError(f"layer must be 0..{model.config.n_layers - 1}, got {layer}")
    stream = model.W_E.detach()[None]
    for earlier in range(layer if effective else 0):
        stream = stream + model._mlp(earlier, stream, None)
    centred = stream[0] - stream[0].mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    return centred * scale * model.norm_gain[layer]


@torch.no_grad()
def standard_ov(
    model: StandardTransformer, layer: int, effective: bool = False
) -> FactoredMatrix:
    """Each head's full OV circuit, (n_heads, d_vocab, d_vocab), direct from its output to the logits.

    `token_reads` @ W_V @ W_O, then the last LayerNorm's centring and gain, then W_U; its scale, which
    differs from place to place, is left out. What later MLPs make of the output is not in it.
    """
    W_O = model.W_O[layer].detach()
    written = (W_O - W_O.mean(-1, keepdim=True)) * model.norm_gain[-1].detach()
    reads = token_reads(model, layer, effective)
    return FactoredMatrix(reads @ model.W_V[layer].detach(), written @ model.W_U.detach())


def standard_copying(
    model: StandardTransformer, effective: bool = False
) -> Float[Tensor, "n_layers n_heads"]:
    """`positivity` of the eigenvalues of each `standard_ov`, -1 to 1: how much a head copies."""
    layers = range(model.config.n_layers)
    scores = [positivity(standard_ov(model, n, effective).eigenvalues()) for n in layers]
    return torch.stack(scores).float()
