"""``turnout show``: the tables of run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli.comparison import (
    Baseline,
    MetricKeys,
    named_metrics,
    print_across,
    print_scores,
    score_row,
)
from turnout.cli.live_tables import live_row, print_live
from turnout.cli.options import print_json
from turnout.cli.output import AsJson, console, note
from turnout.results import Results, WorldGroup, open_runs
from turnout.results.groups import differences
from turnout.results.live import live_runs
from turnout.results.scores import known_label
from turnout.results.tables import usual_metrics

RunFolders = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Run folders, single cells, or folders above them."),
]


def show(
    runs: RunFolders,
    metrics: MetricKeys = None,
    baseline: Baseline = None,
    as_json: AsJson = False,
) -> None:
    """Show what is in run folders: means over seeds, and differences paired by seed.

    A folder may be half finished. Runs of different worlds get a table each. Of a live run, it
    also shows the clients by name: who was late, failed or silent, and why.

    Example: [bold]turnout show runs/demo --metrics success_ratio,cep --baseline random[/]
    """
    wanted = named_metrics(metrics)
    results = opened(runs, baseline)
    if as_json:
        keys = [metric.key for metric in wanted] or list(results.metrics)
        print_json([row for world in results.worlds for row in _rows(world, keys, baseline)])
        return
    for world in results.worlds:
        known = _baseline(world, baseline)
        title = f"{world.settings.experiment}: {world.title}"
        for each in live_runs(world):
            print_live(each.run, each.title)
        print_scores(world.scores, title, usual_metrics(world), wanted, known)
    if len(results.worlds) > 1:
        text = "; ".join(differences(results.worlds))
        console.print(f"The worlds differ: {text}.", highlight=False, markup=False)
        print_across(results.across, wanted or usual_metrics(results.worlds[0]), baseline)


def opened(runs: list[Path], baseline: str | None = None) -> Results:
    """Return what folders hold, after naming what is wrong with them.

    Args:
        runs: The folders.
        baseline: A label that must be among theirs.
    """
    results = open_runs(*runs)
    if baseline is not None:
        known_label(baseline, results.labels)
    for problem in results.problems:
        note(str(problem), soft_wrap=True)
    return results


def _baseline(world: WorldGroup, baseline: str | None) -> str | None:
    """Return the baseline if the world has it; else its first selector is meant."""
    return baseline if baseline in world.scores.labels else None


def _rows(world: WorldGroup, keys: list[str], baseline: str | None) -> list[dict[str, Any]]:
    scores = world.scores
    first = _baseline(world, baseline) or scores.labels[0]
    place: dict[str, Any] = {
        "experiment": world.settings.experiment,
        "world": world.settings.world_id,
    }
    rows = {label: place | score_row(scores, label, keys, first) for label in scores.labels}
    for each in live_runs(world):
        rows[each.label].setdefault("live", []).append(live_row(each.run))
    return list(rows.values())
