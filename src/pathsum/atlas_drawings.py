"""The atlas's drawings as SVG text: light, sharp at any width, in the colours of the page around them.

Each takes plain numbers, token strings and the words that say what is seen, and returns markup in
which every string is escaped. Colours come from the classes of `data/atlas/atlas.css`.
"""

import base64
from collections.abc import Sequence
from html import escape
from io import BytesIO

import matplotlib
import numpy as np
import torch
from jaxtyping import Complex, Float
from matplotlib.image import imsave
from torch import Tensor

LINEAR = 0.01  # of the largest eigenvalue: below it distances are linear, above logarithmic
CELL, MARGIN, BELOW = 10.0, 40.0, 40.0  # of a pattern: side of a cell, room for tokens
DIGITS = 99  # steps in which a pattern's values are kept for the reader's pointer


def svg(width: float, height: float, body: str, words: str, more: str = "") -> str:
    """A drawing that scales with its column, and its description."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(words)}"{more}>'
        f"{body}</svg>"
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """A label; `kind` is its class: "end" and "mid" align it."""
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{kind}>{escape(words)}</text>'


def eigenvalue_planes(planes: dict[str, Complex[Tensor, " n"]], words: str) -> str:
    """Eigenvalues in units of the largest, side by side; the distance from 0 is logarithmic.

    As `pathsum.figures.eigenvalue_planes`: filled dots have a real part above 0, rings have not, and
    dashed circles lie at 0.01, 0.1 and 1. ValueError if one is not finite.
    """
    side, body = 180.0, ""
    for number, (name, values) in enumerate(planes.items()):
        if not bool(values.isfinite().all()):
            raise ValueError(f"eigenvalues of {name} must be finite, got NaN or infinity")
        x0, y0, reach = number * (side + 20) + side / 2, side / 2 + 16, side / 2 - 6
        scaled = values / values.abs().max().clamp_min(1e-30)
        sizes = scaled.abs().clamp_min(1e-30)
        placed = scaled / sizes * torch.log1p(sizes / LINEAR) / np.log1p(1 / LINEAR) * reach
        body += text(x0 - side / 2, 9.0, name)
        for circle in (0.01, 0.1, 1):
            r = np.log1p(circle / LINEAR) / np.log1p(1 / LINEAR) * reach
            body += f'<circle class="grid" cx="{x0:g}" cy="{y0:g}" r="{r:.1f}"/>'
        body += f'<path class="axis" d="M{x0 - reach:g} {y0:g}h{2 * reach:g}M{x0:g} {y0 - reach:g}v{2 * reach:g}"/>'
        spots = {"dot": "", "ring": ""}
        for z in placed.tolist():
            x, y = x0 + z.real, y0 - z.imag  # a ring is two half circles, a dot the end of a line
            ring = f"M{x - 2.7:.1f} {y:.1f}a2.7 2.7 0 1 1 5.4 0a2.7 2.7 0 1 1-5.4 0"
            spots["dot" if z.real > 0 else "ring"] += f"M{x:.1f} {y:.1f}h0" if z.real > 0 else ring
        body += "".join(f'<path class="{kind}" d="{d}"/>' for kind, d in spots.items() if d)
    return svg(len(planes) * (side + 20) - 20, side + 22, body, words)


def profile(
    attention: Float[Tensor, " offset"], positional: Float[Tensor, " offset"], words: str
) -> str:
    """Mean attention by tokens back as bars, and the score that positions alone make as a line."""
    width, left, n = 380.0, 34.0, len(attention)
    step = (width - left) / n
    top = max(float(attention.max()), 0.01)
    low, high = float(positional.min()), float(positional.max())
    body = text(0.0, 9.0, "mean attention") + text(0.0, 111.0, "score from positions alone, nats")
    bars = "".join(
        f"M{left + k * step:.1f} 88v{-68 * float(a) / top:.1f}h{0.8 * step:.1f}V88z"
        for k, a in enumerate(attention)
        if float(a) / top > 0.004
    )
    body += f'<path class="bar" d="{bars}"/><path class="axis" d="M{left:g} 88H{width:g}"/>'
    body += text(left - 4, 26.0, f"{top:.2f}", "end") + text(left - 4, 91.0, "0", "end")

    def place(value: float) -> float:
        return 172 - 52 * (value - low) / max(high - low, 1e-9)

    points = " ".join(
        f"{left + (k + 0.4) * step:.1f},{place(float(p)):.1f}" for k, p in enumerate(positional)
    )
    if low < 0 < high:
        body += f'<path class="grid" d="M{left:g} {place(0.0):.1f}H{width:g}"/>'
    body += f'<polyline class="line" points="{points}"/><path class="axis" d="M{left:g} 180H{width:g}"/>'
    body += text(left - 4, 124.0, f"{high:.1f}", "end") + text(left - 4, 175.0, f"{low:.1f}", "end")
    for k in (0, 1, 2, 4, 8, 16, 32, 63):
        if k < n and (k in (0, 63) or k >= 4):
            body += text(left + (k + 0.4) * step, 192.0, str(k), "mid")
    body += text(left + 47.5 * step, 192.0, "tokens back", "mid")
    return svg(width + 8, 202.0, body, words)


def pattern(
    values: Float[Tensor, "dest src"], tokens: Sequence[str], top: float, unit: str, words: str
) -> str:
    """Destinations down, sources across, from 0 to `top`; what lies ahead of a destination is empty.

    The colours are one small picture; the values are kept in the element too, in steps of
    `top` / 99, for a script that reads out a cell. ValueError unless there is a token per row and
    column, if a value is not finite, or for a `top` that is not above 0.
    """
    if values.shape != (len(tokens), len(tokens)):
        raise ValueError(f"needs a token per row and column, got {len(tokens)} for {values.shape}")
    if not bool(values.isfinite().all()) or not top > 0:
        raise ValueError(f"values must be finite and top above 0, got top={top}")
    n, shares = len(tokens), (values / top).clamp(0, 1).double().numpy()
    colours = matplotlib.colormaps["viridis"](shares)
    colours[..., 3] = np.tri(n)
    buffer = BytesIO()
    imsave(buffer, np.ascontiguousarray(colours), format="png", metadata={"Software": None})
    picture = base64.b64encode(buffer.getvalue()).decode()
    side = n * CELL
    body = (
        f'<image x="{MARGIN:g}" y="0" width="{side:g}" height="{side:g}" preserveAspectRatio="none" '
        f'href="data:image/png;base64,{picture}"/>'
    )
    down = [(i + 0.5) * CELL + 3 for i in range(n)]
    rows = "".join(text(MARGIN - 4, y, token) for y, token in zip(down, tokens))
    columns = "".join(text(-side - 4, MARGIN + y, token) for y, token in zip(down, tokens))
    body += f'<g class="end rows">{rows}</g><g class="end" transform="rotate(-90)">{columns}</g>'
    steps = "".join(
        f"{round(DIGITS * float(shares[i, j])):02d}" for i in range(n) for j in range(i + 1)
    )
    more = (
        f' class="atlas-pattern" data-v="{steps}" data-top="{top:.4g}" data-unit="{escape(unit)}"'
    )
    return svg(MARGIN + side, side + BELOW, body, words, more)
