"""The texts that chapters and claims measure on: the demo text, held-out blocks spread evenly."""

from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from pathsum.dataset import heldout_sample
from pathsum.demo import DEMO_TEXT
from pathsum.tokenizer import load_tokenizer


def demo_tokens() -> Int[Tensor, "1 pos"]:
    return load_tokenizer().encode(DEMO_TEXT)[None]


@lru_cache
def _heldout() -> tuple[Tensor, Tensor]:
    return heldout_sample()


def spread_sample(blocks: int) -> tuple[Int[Tensor, "batch pos"], Int[Tensor, "batch pos"]]:
    """This many blocks of the shipped held-out text, evenly spread over it."""
    inputs, targets = _heldout()
    picks = torch.linspace(0, len(inputs) - 1, blocks).long()
    return inputs[picks], targets[picks]
