"""The losses of single clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from turnout.report.curves import Trace, identity, share_line
from turnout.report.figures import Chart, axes
from turnout.results.groups import VariantCells, WorldGroup
from turnout.types import FloatArray

_N_BINS = 30
#: The bins end here; the few losses above are counted in the last one.
_HIGHEST_PERCENTILE = 99.0


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


def _losses(variant: VariantCells) -> FloatArray:
    parts = [cell.scores["loss"] for cell in variant.cells if "loss" in cell.scores]
    together = np.concatenate(parts) if parts else np.zeros(0)
    return together[np.isfinite(together) & (together >= 0.0)]


def _steps(who: Trace, edges: FloatArray, losses: FloatArray) -> Trace:
    counts, _ = np.histogram(np.minimum(losses, edges[-1]), edges)
    return share_line(who, np.repeat(edges, 2)[1:-1], np.repeat(counts / losses.size, 2))
