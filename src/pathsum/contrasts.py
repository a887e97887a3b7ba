"""Questions that come in two versions: what a model has to know for the one and not for the other.

A contrast is a batch of prompts, the same prompts with something changed, and the token that is right
after the first version. Its score is the logit of that token less the mean of all logits, at the last
position: linear in the residual stream, so that what parts of the model add to it can be added up.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from pathsum.heads import repeated_tokens
from pathsum.model import AttentionOnlyTransformer, Hook, cache, check_tokens
from pathsum.tokenizer import load_tokenizer

CHANGES = ("match", "answer")
NAMES = "add get run set close read write name call copy open value update test start find".split()


@dataclass(frozen=True)
class Contrast:
    """Prompts in two versions of one length, and the token that is right after the clean one.

    `noise`, if given, is added to the embeddings of the corrupted version. ValueError when the
    versions differ in length or number, or answers or noise do not fit them.
    """

    clean: Tensor  # (batch, pos) token ids
    corrupted: Tensor  # (batch, pos)
    answers: Tensor  # (batch,)
    noise: Tensor | None = None  # (batch, pos, d_model)

    def __post_init__(self) -> None:
        one, other = tuple(self.clean.shape), tuple(self.corrupted.shape)
        if one != other or len(one) != 2:
            raise ValueError(
                f"clean and corrupted prompts must both be (batch, pos), got {one} and {other}: "
                "patching needs the same position in both, so make them equally long"
            )
        if tuple(self.answers.shape) != one[:1]:
            raise ValueError(
                f"every prompt needs one answer: expected ({one[0]},), got {tuple(self.answers.shape)}"
            )
        if self.noise is not None and tuple(self.noise.shape[:2]) != one:
            raise ValueError(f"noise must be (batch, pos, d_model) for prompts of {one}")

    def swapped(self) -> "Contrast":
        """The same two versions, each in the other's place; the answers stay."""
        if self.noise is not None:
            raise ValueError("a contrast with noise has no second list of tokens to swap with")
        return Contrast(self.corrupted, self.clean, self.answers)

    def embeddings(
        self, model: AttentionOnlyTransformer
    ) -> tuple[Float[Tensor, "batch pos d_model"], Float[Tensor, "batch pos d_model"]]:
        """What the two versions put into the residual stream: (clean, corrupted)."""
        for tokens in (self.clean, self.corrupted):
            check_tokens(tokens, model.config)
        clean, corrupted = model.W_E[self.clean], model.W_E[self.corrupted]
        return clean, corrupted if self.noise is None else corrupted + self.noise

    def runs(self, model: AttentionOnlyTransformer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Every site's value in the clean and in the corrupted run, as `cache` gives them."""
        _, corrupted = self.embeddings(model)
        return cache(model, self.clean), cache(model, self.corrupted, embedded(corrupted))

    def scorer(
        self, model: AttentionOnlyTransformer
    ) -> Callable[[Float[Tensor, "batch d_model"]], Float[Tensor, " batch"]]:
        """A function from what W_U reads at the last position to each prompt's score."""
        direction = model.W_U[:, self.answers].mT - model.W_U.mean(1)
        return lambda final: (final * direction).sum(-1)


def embedded(values: Float[Tensor, "batch pos d_model"]) -> Hook:
    """A hook that puts these in the embeddings' place."""
    return lambda site, value: values if site == "embed" else None


def induction_contrast(
    d_vocab: int, change: str = "match", batch: int = 64, period: int = 16, seed: int = 0
) -> Contrast:
    """Random tokens of which half have come a second time; what came next is the answer.

    After the start token x_1 ... x_period, then x_1 ... x_k with k half of it: right is x_k+1. The
    corrupted version has another random token in the first copy, in the place of x_k ("match": the
    present token has no earlier copy) or of x_k+1 ("answer": there is one, and something else came after
    it). ValueError for another change or a period below 4.
    """
    if change not in CHANGES or period < 4:
        raise ValueError(
            f"change must be one of {CHANGES} and period at least 4, got {change!r} and {period}"
        )
    generator = torch.Generator().manual_seed(seed)
    twice = repeated_tokens(batch, period, 2, d_vocab, generator)
    half = period // 2
    clean = twice[:, : 1 + period + half]
    corrupted = clean.clone()
    place = half + (change == "answer")
    corrupted[:, place] = torch.randint(1, d_vocab, (batch,), generator=generator)
    return Contrast(clean, corrupted, clean[:, half + 1])


def trigram_contrast() -> Contrast:
    """`def name(` against `if name(`, for 16 names: does `self` come next?

    The skip-trigram "def ... ( -> self" of the paper's list, in the book's tokens.
    """
    tokenizer = load_tokenizer()

    def prompts(word: str) -> Tensor:
        return torch.stack([tokenizer.encode(f"\n    {word} {name}(") for name in NAMES])

    answer = int(tokenizer.encode("self")[1])
    return Contrast(prompts("def"), prompts("if"), torch.full((len(NAMES),), answer))


def noised(
    contrast: Contrast,
    model: AttentionOnlyTransformer,
    positions: list[int],
    sd: float = 3.0,
    seed: int = 0,
) -> Contrast:
    """The clean prompts, and as their corrupted version themselves with noisy embeddings.

    Gaussian noise of `sd` times the standard deviation of all of W_E, at the `positions` alone. Needs
    no second prompt, which is the point of it. IndexError for a position outside. Source: Meng et al.
    2022, causal tracing.
    """
    batch, length = contrast.clean.shape
    for position in positions:
        if not 0 <= position < length:
            raise IndexError(f"the prompts have positions 0..{length - 1}, got {position}")
    generator = torch.Generator().manual_seed(seed)
    noise = torch.zeros(batch, length, model.config.d_model)
    drawn = torch.randn(batch, len(positions), model.config.d_model, generator=generator)
    noise[:, positions] = sd * float(model.W_E.std()) * drawn
    return replace(contrast, corrupted=contrast.clean, noise=noise)
