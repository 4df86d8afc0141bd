"""What a chart is: plotly traces and layout without colours, which the page paints by theme."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Chart", "Section", "axes"]


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
    """Return a layout with titled axes."""
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}}, **more}
