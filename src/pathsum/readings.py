"""What a model does with one text, heads switched off or not: what the viewers draw."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.circuits import check_head
from pathsum.heads import value_weighted
from pathsum.model import AttentionOnlyTransformer, cache, check_numbers
from pathsum.patching import ablation_hook, both, frozen_hook
from pathsum.tokenizer import load_tokenizer

KINDS = ("zero", "mean")  # with one text there is no other to resample from


@dataclass(frozen=True)
class Reading:
    """One run over one text of `pos` tokens, the start token first."""

    words: list[str]  # printable tokens
    patterns: Float[Tensor, "layer head dest src"]  # attention, 0 to 1
    moved: Float[Tensor, "layer head dest src"]  # attention times the length of the value
    losses: Float[Tensor, " targets"]  # nats; of the tokens after the start token
    following: Float[Tensor, " d_vocab"]  # probabilities of the token after the text

    def likeliest(self, k: int = 5) -> list[tuple[int, float]]:
        """The k likeliest next tokens, (id, probability)."""
        best = self.following.topk(k)
        return list(zip(best.indices.tolist(), best.values.tolist()))


def tokens_of(model: AttentionOnlyTransformer, text: object) -> Tensor:
    """The text as (1, pos) ids with the start token; errors for no text, an empty or a long one."""
    if not isinstance(text, str):
        raise TypeError(
            f"the text must be a string, got {type(text).__name__}: pass the text itself; patterns "
            "that you have already are drawn by pathsum.viewers.pattern_view(tokens, patterns)"
        )
    if not text:
        raise ValueError("the text must hold at least one character, got '': type something")
    tokens, most = load_tokenizer().encode(text), model.config.n_ctx
    if len(tokens) > most:
        raise ValueError(
            f"the model reads up to {most} tokens, got {len(tokens)} with the start token: shorten "
            f"the text, for example to its first {len(text) * (most - 1) // len(tokens)} characters"
        )
    return tokens[None].to(model.W_E.device)


def reading(
    model: AttentionOnlyTransformer,
    text: object,
    off: Iterable[tuple[int, int]] = (),
    kind: str = "zero",
    freeze: bool = False,
) -> Reading:
    """A run over a text with the heads `off`, (layer, head) pairs, switched off.

    What they write is nothing ("zero") or its mean over the positions of this text ("mean"). With
    `freeze` all heads look where they look in the intact run. TypeError unless the text is a
    string; ValueError for an empty or too long one, another kind, or numbers that are not finite;
    IndexError for a head that the model lacks.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {KINDS}, got {kind!r}")
    tokens, off = tokens_of(model, text), [check_head(model, head) for head in off]
    values = intact = cache(model, tokens)
    layers = range(model.config.n_layers)
    if off:
        hook = ablation_hook(off, kind, intact)
        if freeze:
            hook = both(frozen_hook([intact[f"L{layer}.pattern"] for layer in layers]), hook)
        values = cache(model, tokens, hook)
    check_numbers(values["logits"], "the logits")
    heads = (model.config.n_heads, tokens.shape[1], tokens.shape[1])
    patterns = [values[f"L{layer}.pattern"] for layer in layers]
    moved = [value_weighted(values[f"L{layer}.pattern"], values[f"L{layer}.v"]) for layer in layers]
    surprise = -values["logits"][0].log_softmax(-1).cpu()
    return Reading(
        words=load_tokenizer().token_strings(tokens[0]),
        patterns=torch.cat(patterns).cpu() if patterns else torch.zeros(0, *heads),
        moved=torch.cat(moved).cpu() if moved else torch.zeros(0, *heads),
        losses=surprise[:-1].gather(-1, tokens[0, 1:, None].cpu())[:, 0],
        following=(-surprise[-1]).exp(),
    )
