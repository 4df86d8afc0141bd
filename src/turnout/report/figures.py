"""What a chart is: plotly traces and layout without colours, which the page paints by theme."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from turnout.names import shortened


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure: traces and layout for plotly, or the maps to choose from."""

    key: str
    title: str
    caption: str
    traces: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)
    maps: dict[str, Any] | None = None
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """Charts under one heading."""

    title: str
    charts: list[Chart]


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Return a layout with titled axes.

    Args:
        x: Title of the horizontal axis.
        y: Title of the vertical axis.
        **more: Other settings of plotly's layout.
    """
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}, **more}


def label(text: str, most: int = 28) -> str:
    """Return a text from a file for a chart: short, and harmless.

    Plotly reads a little HTML in names and ticks. They are escaped here; a template escapes only
    what it shows itself.

    Args:
        text: Any text.
        most: Characters that fit.
    """
    return escape(shortened(text, most))
