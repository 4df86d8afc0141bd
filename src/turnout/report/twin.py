"""The twin of a live federation in the report: what was recorded, and what a fitted world does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.types import FloatArray
from turnout.report.figure import Axis, Chart, Line, Mark, Panel
from turnout.results.groups import WorldGroup
from turnout.twin.check import QUANTILES, Played, replayed
from turnout.twin.fit import fit_log
from turnout.twin.log import log_of

#: Live runs with fewer rounds get no twin in the report.
LEAST_ROUNDS = 30
#: Worlds that are drawn, and rounds that are played in each at most.
_DRAWS, _MOST_ROUNDS = 40, 300
#: More clients are not played for a page.
_MOST_CLIENTS = 20_000
_CAPTION = (
    "A world was fitted to the records (turnout fit), and the recorded choices were played in "
    "{draws} worlds drawn from it. Orange: recorded. Blue: the worlds, with a band that holds the "
    "middle 90 %. Where the recorded line leaves the band, do not trust the twin."
)
#: How the recorded numbers and the twin's are drawn.
_RECORDED, _TWIN = 1, 0


def twin_charts(world: WorldGroup, order: Mapping[str, int]) -> Iterator[Chart]:
    """Yield fitted against recorded distributions, for a live federation with enough rounds.

    Args:
        world: Cells that compare.
        order: The number of each selector.
    """
    live = [each for each in world.cells if each.choices is not None and each.is_live]
    cells = [each for each in live if not each.run.overlaps]
    too_large = any(each.settings.n_clients > _MOST_CLIENTS for each in cells)
    if too_large or not cells or max(each.n_rounds for each in cells) < LEAST_ROUNDS:
        return
    try:
        log = log_of(cells)
        fitted = fit_log(log)
    except InvalidInput:  # such as no answer at all, which the page shows elsewhere
        return
    rounds = np.arange(log.last.run.n_rounds)[-_MOST_ROUNDS:]
    found = replayed(fitted, log.last, rounds, _DRAWS)
    caption = _CAPTION.format(draws=_DRAWS)
    panels = [panel for panel in _rounds(found) if panel is not None]
    yield Chart("twin", "Rounds", caption, panels, n_columns=3, is_wide=True)
    panels = [panel for panel in _clients(found) if panel is not None]
    yield Chart("twin-clients", "Clients", "As above.", panels, n_columns=3, is_wide=True)


def _rounds(found: Played) -> Iterator[Panel | None]:
    yield _over_rounds(found, "clients there")
    yield _cumulative(found, "answers", Axis("answers in a round"))
    yield _cumulative(found, "round length", Axis("length of a round", "s"))


def _clients(found: Played) -> Iterator[Panel | None]:
    yield _quantiles(found)
    yield _by_client(found, "rounds there, by client")
    yield _by_client(found, "answers, by client")


def _over_rounds(found: Played, name: str) -> Panel | None:
    if name not in found.recorded:
        return None
    recorded, drawn = found.recorded[name], found.drawn[name]
    at = np.arange(1.0, recorded.size + 1.0)
    return Panel(_pair(at, recorded, drawn), Axis("round"), Axis("clients there"))


def _cumulative(found: Played, name: str, axis: Axis) -> Panel | None:
    recorded, drawn = found.recorded[name], found.drawn[name]
    both = np.concatenate((recorded, drawn.ravel()))
    grid = np.linspace(both.min(), np.quantile(both, 0.995), 60)
    share = np.array([(recorded <= x).mean() for x in grid])
    shares = np.array([(drawn <= x).mean(axis=1) for x in grid]).T
    return Panel(_pair(grid, share, shares), axis, Axis("rounds up to this", is_share=True))


def _quantiles(found: Played) -> Panel | None:
    recorded, drawn = (each["durations of answers"] for each in found)
    if np.isnan(recorded).any() or np.isnan(drawn).any():
        return None
    marks = _pair(QUANTILES, recorded, drawn)
    return Panel(marks, Axis("share of the answers", is_share=True), Axis("seconds of an answer"))


def _by_client(found: Played, name: str) -> Panel | None:
    if name not in found.recorded:
        return None
    recorded, drawn = found.recorded[name], found.drawn[name]
    order = np.argsort(recorded, kind="stable")
    at = np.arange(1.0, recorded.size + 1.0)
    axis = Axis("clients, fewest first")
    return Panel(_pair(at, recorded[order], drawn[:, order]), axis, Axis(name.split(",")[0]))


def _pair(at: FloatArray, recorded: FloatArray, drawn: FloatArray) -> list[Mark]:
    """Return the middle 90 % of the drawn worlds, and what was recorded above it."""
    low, middle, high = np.quantile(drawn, (0.05, 0.5, 0.95), axis=0)
    return [
        Line("fitted", _TWIN, at, middle, low, high),
        Line("recorded", _RECORDED, at, recorded),
    ]
