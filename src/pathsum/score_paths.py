"""Path expansion of attention scores: what feeds a head's queries, and what its keys."""

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from pathsum.model import AttentionOnlyTransformer
from pathsum.paths import bias_term, frozen_run, head_outputs, linear_read
from pathsum.standard import refuse_mlps


def score_terms(
    model: AttentionOnlyTransformer, tokens: Int[Tensor, "batch pos"], head: int, layer: int = 1
) -> Float[Tensor, "query_part key_part batch dest src"]:
    """The scores of one head, split by what feeds its query and its key.

    Part 0 is the embedding with its position, then comes what each head of the layers before wrote,
    in order: for layer 1, part 1 + h is head (0, h). There [0, 0] is no composition, [1:, 0] Q-,
    [0, 1:] K-composition, [1:, 1:] both. With LayerNorm reads are scaled as in this run and a last
    part holds what its biases add. The sum over both axes equals the site `Ll.scores`.
    IndexError if there is no such head; ValueError for a model with MLPs, and for smeared keys, whose
    scores W_QK alone does not make. Source: Elhage et al. 2021, Path Expansion of Attention Scores.
    """
    refuse_mlps(model, "score_terms")
    c = model.config
    if not (0 <= layer < c.n_layers and 0 <= head < c.n_heads):
        raise IndexError(
            f"there is no head {(layer, head)}: layers are 0..{c.n_layers - 1}, heads "
            f"0..{c.n_heads - 1}"
        )
    if c.smear:
        raise ValueError(
            "scores are sums over pairs of parts only where a key comes from its own position, got "
            "a model with smear=True: take one without, or read the site L0.scores"
        )
    frozen = frozen_run(model, tokens)
    parts = model.W_E.detach()[tokens][None]
    for earlier in range(layer):
        read = linear_read(model, frozen, earlier, parts.sum(0))
        written = head_outputs(model, earlier, frozen.patterns[earlier], read).movedim(1, 0)
        parts = torch.cat([parts, written])
    read = linear_read(model, frozen, layer, parts)
    read[0] += model.W_pos[: tokens.shape[1]]
    if c.norm:
        read = torch.cat([read, bias_term(model, frozen, layer, parts[:1])])
    q, k = read @ model.W_Q[layer, head].detach(), read @ model.W_K[layer, head].detach()
    return einsum(q, k, "q batch dest f, k batch src f -> q k batch dest src") / c.d_head**0.5
