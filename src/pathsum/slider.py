"""A slider over training: how attention on one text changes, in a page without a kernel.

The drawing is one piece of HTML that holds its data and a short script, so that it works alike in
the book, in a notebook and in a saved file, and asks no network for anything. Without JavaScript it
says so; a static figure belongs beside it.
"""

import base64
import html
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import matplotlib as mpl
import torch
from torch import Tensor

TEMPLATE = "slider.html"
MAX_TOKENS = 40  # labels of more do not fit a telephone
COLOURS = 64  # of viridis, evenly spaced


@dataclass(frozen=True)
class TrainingSlider:
    """Shows itself at the end of a cell; `html` is what it shows."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


def training_slider(
    tokens: Sequence[str],
    moments: Sequence[str],
    heads: Mapping[str, Tensor],
    scores: Mapping[str, tuple[str, Tensor]],
) -> TrainingSlider:
    """Attention patterns of some heads over one text, at moments of training chosen by a slider.

    Args:
        tokens: the text as printable strings, one per position
        moments: what the slider says at each of its places, such as "3.6 million tokens"
        heads: a head's name, and its patterns, (moment, dest, src); rows sum to 1
        scores: a head's name, and what is said below it: words, and a number per moment

    ValueError when sizes disagree, for weights outside 0 to 1, or for a text that is too long.
    """
    if not 1 < len(tokens) <= MAX_TOKENS:
        raise ValueError(f"a slider shows 2 to {MAX_TOKENS} tokens, got {len(tokens)}: shorten it")
    if set(heads) != set(scores):
        raise ValueError(f"every head needs a score: heads {set(heads)}, scores {set(scores)}")
    panels, size = [], (len(moments), len(tokens), len(tokens))
    for name, patterns in heads.items():
        values = torch.as_tensor(patterns).detach().cpu().float()
        words, numbers = scores[name]
        if tuple(values.shape) != size or len(numbers) != len(moments):
            raise ValueError(
                f"{name}: expected patterns {size} and {len(moments)} scores, got "
                f"{tuple(values.shape)} and {len(numbers)}"
            )
        if not (values.min() >= -1e-5 and values.max() <= 1 + 1e-5):
            raise ValueError(
                f"{name}: attention lies between 0 and 1, got {float(values.min()):.3g} to "
                f"{float(values.max()):.3g}: pass patterns, after the softmax"
            )
        levels = (255 * values.clamp(0, 1)).round().to(torch.uint8)
        data = base64.b64encode(levels.numpy().tobytes()).decode()
        rounded = [round(float(number), 2) for number in numbers]
        panels.append({"name": name, "words": words, "scores": rounded, "levels": data})
    ramp = mpl.colormaps["viridis"].resampled(COLOURS)
    colours = [mpl.colors.to_hex(ramp(i)) for i in range(COLOURS)]
    view = {"tokens": list(tokens), "moments": list(moments), "panels": panels, "colours": colours}
    name = f"ts-{uuid.uuid4().hex[:8]}"
    text = json.dumps(view, allow_nan=False, ensure_ascii=False)
    for mark in "<>&":  # no token can end the script element around it
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    places = "".join(_place(name, number, panel) for number, panel in enumerate(panels))
    template = (resources.files("pathsum") / "data" / TEMPLATE).read_text(encoding="utf-8")
    parts = {
        "NAME": name,
        "LAST": str(len(moments) - 1),
        "SHOWN": html.escape(moments[-1]),
        "PANELS": places,
        "VIEW": text,
    }
    for key, part in parts.items():
        template = template.replace(f"@{key}@", part)
    return TrainingSlider(template)


def _place(name: str, number: int, panel: dict) -> str:
    """The empty place of one head's picture, with its title and its line of text."""
    title = html.escape(panel["name"])
    return (
        f'<div class="{name}-panel"><div class="{name}-title">{title}</div>'
        f'<canvas id="{name}-c{number}" role="img" aria-label="{title}"></canvas>'
        f'<div id="{name}-s{number}"></div></div>'
    )
