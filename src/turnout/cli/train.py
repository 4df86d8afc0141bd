"""``turnout train``: one run of one selector that trains a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnout.cli.experiments import experiment_of, variant_with
from turnout.cli.options import (
    Clients,
    Cohort,
    Deadline,
    Fresh,
    Param,
    Rounds,
    Seed,
    Worlds,
    end_badly_on_problems,
    row_of,
    run_shown,
)
from turnout.cli.output import AsJson, console, metric_table, show
from turnout.cli.tracking import Track, checked_trackers
from turnout.cli.training_options import (
    AggregationText,
    Data,
    Device,
    EvaluateEvery,
    HoldOut,
    Local,
    ModelText,
    PartitionText,
    ServerLr,
    StopAtTarget,
    Target,
    Trainer,
    recipe_options,
)
from turnout.runs.catalogue import shown_in

__all__ = ["train"]


def train(
    context: typer.Context,
    selector: Annotated[str, typer.Argument(help="A name from turnout list, or module:Class.")],
    param: Param = None,
    source: Data = None,
    partition: PartitionText = None,
    model: ModelText = None,
    local: Local = None,
    aggregation: AggregationText = None,
    server_lr: ServerLr = None,
    hold_out: HoldOut = None,
    target_accuracy: Target = None,
    stop_at_target: StopAtTarget = False,
    evaluate_every: EvaluateEvery = None,
    device: Device = None,
    trainer: Trainer = None,
    world: Worlds = None,
    n_rounds: Rounds = None,
    n_clients: Clients = None,
    cohort_size: Cohort = None,
    deadline: Deadline = None,
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Run folder; default: runs/ and a name made of the settings."),
    ] = None,
    track: Track = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Train a model in a simulated federation, with one selector.

    An interrupted run goes on where it stopped when the same command is given again.

    Example: [bold]turnout train e3cs --data digits --model mlp --rounds 20 --target 0.8[/]
    """
    variant = variant_with(selector, param)
    recipe = recipe_options(context.params)
    experiment = experiment_of("train", [variant], [seed], context.params, recipe)
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
