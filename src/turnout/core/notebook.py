"""How notebooks show objects: a few lines of text and small curves."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from itertools import cycle

import numpy as np

from turnout.core.types import Array

_WIDTH, _HEIGHT, _EDGE = 280, 64, 3
_MOST_POINTS = 200
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b3589a", "#d99000", "#38a3dd", "#7a7f87", "#948700")


def lines_with_curves(text: str, curves: Mapping[str, Array]) -> str:
    """Return HTML: lines of text, and under them curves with one scale.

    Args:
        text: What ``repr`` says.
        curves: By name, (T,) values; those that are not finite are left out.
    """
    finite = {name: _finite(values) for name, values in curves.items()}
    drawn = {name: points for name, points in finite.items() if len(points)}
    return f"<pre>{escape(text)}</pre>{_picture(drawn) if drawn else ''}"


def _finite(values: Array) -> Array:
    """Return (points, 2): position and value of at most so many points as can be seen."""
    at = np.flatnonzero(np.isfinite(values))
    some = at[np.linspace(0, at.size - 1, min(at.size, _MOST_POINTS)).round().astype(np.int64)]
    points: Array = np.stack([some, values[some]], axis=1)
    return points


def _picture(curves: Mapping[str, Array]) -> str:
    together = np.concatenate([*curves.values()])
    low, high = together.min(axis=0), together.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    room = np.array([_WIDTH, _HEIGHT]) - 2 * _EDGE
    lines, colours = [], dict(zip(curves, cycle(_COLOURS), strict=False))
    for name, points in curves.items():
        x, y = (((points - low) / span) * room + _EDGE).T
        path = " ".join(f"{a:.1f},{_HEIGHT - b:.1f}" for a, b in zip(x, y, strict=True))
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="1.5">'
            f"<title>{escape(name)}</title></polyline>"
        )
    names = ", ".join(
        f'<span style="color:{colour}">{escape(name)}</span>' for name, colour in colours.items()
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img">{"".join(lines)}</svg>'
        f"<div><small>{names}: {low[1]:.4g} to {high[1]:.4g}</small></div>"
    )
