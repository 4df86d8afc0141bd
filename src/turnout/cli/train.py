"""``turnout train``: one run of one selector that trains a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.experiments import experiment_of, variant_with
from turnout.cli.option_groups import with_groups
from turnout.cli.options import (
    Fresh,
    Out,
    Param,
    Seed,
    WorldOptions,
    end_badly_on_problems,
    row_of,
    run_shown,
)
from turnout.cli.output import AsJson, console, metric_table, show
from turnout.cli.tracking import Track, checked_trackers
from turnout.cli.training_options import StopAtTarget, TrainingOptions, recipe_options
from turnout.runs.catalogue import shown_in


@with_groups
def train(
    *,
    selector: Annotated[str, typer.Argument(help="A name from turnout list, or module:Class.")],
    param: Param = None,
    training: TrainingOptions,
    stop_at_target: StopAtTarget = False,
    federation: WorldOptions,
    seed: Seed = 0,
    out: Out = None,
    track: Track = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Train a model in a simulated federation, with one selector.

    An interrupted run goes on where it stopped when the same command is given again.

    Example: [bold]turnout train e3cs --data digits --model mlp --rounds 20 --target 0.8[/]
    """
    variant = variant_with(selector, param)
    recipe = recipe_options(training, stop_at_target)
    experiment = experiment_of("train", [variant], [seed], federation, recipe)
    folder = out or Path("runs") / f"train-{experiment.digest[:8]}"
    trackers = checked_trackers(track)
    grid = run_shown(experiment, folder, quiet=as_json, track=trackers, n_jobs=1, fresh=fresh)
    end_badly_on_problems(grid)
    row = row_of(grid)
    title = f"{variant.label}, seed {seed}"
    if row["stopped_at_target"]:
        title += f" (stopped at its target after {row['rounds_run']} rounds)"
    targets = () if experiment.training is None else experiment.training.target_accuracy
    show(
        metric_table(title, shown_in("train", targets), row),
        [row | {"folder": str(folder)}],
        as_json,
    )
    if not as_json:
        console.print(f"Run folder: {folder}", highlight=False)
