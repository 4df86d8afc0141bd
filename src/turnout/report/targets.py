"""Which accuracies a table of training asks for, and the losses of single clients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from turnout.report.curves import Trace, identity, plain
from turnout.report.figures import Chart, axes
from turnout.report.groups import VariantCells, WorldGroup
from turnout.runs.cell import Cell
from turnout.types import FloatArray

__all__ = ["loss_histogram", "targets_of"]

#: Accuracies to look for in runs that name none; the highest that anyone reached are shown.
_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
_MOST_TARGETS = 4
_N_LEVELS = 3

_N_BINS = 30
#: The bins end here; the few losses above are counted in the last one.
_HIGHEST_PERCENTILE = 99.0


def targets_of(world: WorldGroup) -> list[float]:
    """Return the accuracies that the runs name as targets, else round numbers they reached."""
    named = [_named(cell.settings.training.get("target_accuracy")) for cell in world.cells]
    targets_named = sorted({target for targets in named for target in targets})
    if targets_named:
        return targets_named[-_MOST_TARGETS:]
    best = max((_best_accuracy(cell) for cell in world.cells), default=math.nan)
    return [level for level in _LEVELS if level <= best][-_N_LEVELS:]


def loss_histogram(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    """Yield the distribution over clients of the final model's loss, as steps."""
    losses = {variant.name: _losses(variant) for variant in world.variants}
    present = [values for values in losses.values() if values.size]
    if not present:
        return
    top = float(np.percentile(np.concatenate(present), _HIGHEST_PERCENTILE, method="lower"))
    edges = np.linspace(0.0, top if top > 0.0 else 1.0, _N_BINS + 1)
    traces = [
        _steps(identity(variant, order), edges, losses[variant.name])
        for variant in world.variants
        if losses[variant.name].size
    ]
    caption = (
        "Share of clients by the loss of the final model on their own examples, all seeds. The last"
        " step holds everything above. The Jain index of these losses is in the summary."
    )
    layout = axes("loss of a client", "share of clients", hovermode="x")
    yield Chart("local-loss", "Local losses at the end", caption, traces, layout, is_wide=True)


def _named(setting: Any) -> list[float]:
    several = setting if isinstance(setting, list) else [setting]
    return [
        float(target) for target in several if type(target) in (int, float) and 0.0 < target <= 1.0
    ]


def _best_accuracy(cell: Cell) -> float:
    values = cell.series.get("accuracy", np.zeros(0))
    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else -math.inf


def _losses(variant: VariantCells) -> FloatArray:
    parts = [cell.scores["loss"] for cell in variant.cells if "loss" in cell.scores]
    together = np.concatenate(parts) if parts else np.zeros(0)
    return together[np.isfinite(together) & (together >= 0.0)]


def _steps(who: Trace, edges: FloatArray, losses: FloatArray) -> Trace:
    counts, _ = np.histogram(np.minimum(losses, edges[-1]), edges)
    return {
        **who,
        "meta": {**who["meta"], "role": "line"},
        "type": "scatter",
        "mode": "lines",
        "x": plain(np.repeat(edges, 2)[1:-1]),
        "y": plain(np.repeat(counts / losses.size, 2)),
        "hovertemplate": "%{y:.1%}<extra>%{fullData.name}</extra>",
    }
