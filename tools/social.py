"""The picture that other sites show beside a link to the book: `python tools/social.py` draws it.

1200 × 630 pixels, book/static/social.png: the strongest induction pattern of the shipped two-layer model on
a repeated random text.
"""

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch

from pathsum import load_model
from pathsum.heads import prefix_matching_score
from pathsum.model import cache

PLACE = Path(__file__).resolve().parent.parent / "book/static/social.png"
PERIOD = 24


def main() -> None:
    model = load_model("attn-only-2l")
    once = torch.randint(
        1, model.config.d_vocab, (PERIOD,), generator=torch.Generator().manual_seed(2)
    )
    tokens = torch.cat([torch.zeros(1, dtype=torch.int64), once, once])[None]
    patterns = cache(model, tokens)["L1.pattern"]
    head = int(prefix_matching_score(patterns, PERIOD).mean(0).argmax())
    fig = plt.figure(figsize=(12, 6.3), dpi=100, facecolor="#10151c")
    ax = fig.add_axes((0.53, 0.08, 0.44, 0.84))
    ax.imshow(patterns[0, head], cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    ax.set_axis_off()
    fig.text(
        0.05,
        0.62,
        "Transformer Circuits,\nExecuted",
        color="white",
        fontsize=32,
        weight="bold",
        va="center",
    )
    fig.text(
        0.05, 0.36, "A paper as a book that runs:\nsmall attention-only transformers,\ntaken apart in front of you",
        color="#c8d2dc", fontsize=20, va="center", linespacing=1.4,
    )  # fmt: skip
    temporary = PLACE.with_name("social.tmp.png")
    fig.savefig(temporary, facecolor=fig.get_facecolor(), metadata={"Software": None})
    temporary.replace(PLACE)
    print(f"L1H{head} drawn in {PLACE.relative_to(PLACE.parent.parent.parent)}")


if __name__ == "__main__":
    main()
