"""The drawings of a live run: answers, waits, and parts of the fair share."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from turnout.report.sketch import Sketch, bars
from turnout.results.live import ENDS, LiveRun, Seen

#: Edges of the parts in the drawing of fairness; 1 is just the fair share.
_EDGES = np.array([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, np.inf])


def sketches(run: LiveRun) -> list[Sketch]:
    """Return what can be drawn of a live run.

    Args:
        run: The run.
    """
    drawn = (_answers(run), _waits(run), _shares(run))
    return [sketch for sketch in drawn if sketch is not None]


def css(kind: Seen) -> str:
    """Return the class of a status in the style sheet.

    Args:
        kind: The status.
    """
    return kind.name.lower().replace("_", "-")


def _answers(run: LiveRun) -> Sketch | None:
    parts = {css(kind): (kind.words, run.per_round[:, kind].astype(float)) for kind in ENDS}
    caption = "What became of the chosen."
    level = float(run.min_answers) if run.min_answers > 1 and not run.is_simulated else None
    if level is not None:
        caption += f" Dashed: the {run.min_answers} answers in time that a round needs."
    return bars("answers", "Answers by round", caption, parts, "", level)


def _waits(run: LiveRun) -> Sketch | None:
    if not np.isfinite(run.answers.wall_s).any():
        return None
    parts = {
        "training": ("of training", run.answers.length_s),
        "waiting": ("of waiting", run.waited_s),
    }
    caption = (
        "Wall time of each round. Waiting is all time without training: until enough clients were "
        "there, for what they were asked, and for the server's own work before it closed the round."
    )
    return bars("waits", "Training and waiting by round", caption, parts, "s")


def _shares(run: LiveRun) -> Sketch | None:
    """Return how many clients got how much of their fair share."""
    ratio = np.zeros(0) if run.shares is None else run.shares.ratio
    counts = np.histogram(ratio[np.isfinite(ratio)], _EDGES)[0].astype(np.float64)
    caption = (
        "100 % is just its share of the places of the rounds in which a client could be chosen."
    )
    title = "Clients by their part of the fair share"
    drawn = bars("shares", title, caption, {"part": ("clients", counts)}, "")
    if drawn is None or not counts.any():
        return None
    names = [f"{low:.0%} to {high:.0%}" for low, high in itertools.pairwise(_EDGES[:-1])]
    places = [
        f"{name}: {count:.0f} clients"
        for name, count in zip([*names, "200% and more"], counts, strict=True)
    ]
    return dataclasses.replace(
        drawn,
        places=places,
        top=f"{drawn.top} clients",
        first="0 %",
        last="over 200 %",
        legend={},
    )
