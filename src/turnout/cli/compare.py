"""``turnout compare``: several selectors in the same worlds, with confidence intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli.comparison import (
    Baseline,
    MetricKeys,
    comparison_rows,
    grid_metrics,
    named_metrics,
    print_scores,
)
from turnout.cli.options import (
    Address,
    Backend,
    Clients,
    Cohort,
    Deadline,
    Fresh,
    Jobs,
    OptionalWorld,
    Rounds,
    ShardText,
    end_badly_on_problems,
    experiment_of,
    grid_options,
    print_json,
    print_shard,
    run_shown,
    sizes_of,
)
from turnout.cli.output import AsJson, console
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
from turnout.errors import InvalidInput
from turnout.experiment import Experiment
from turnout.results import open_runs
from turnout.results.drawing import FORMATS, require_matplotlib
from turnout.results.figures import draw_results
from turnout.results.scores import known_label

__all__ = ["compare"]


Selectors = Annotated[
    list[str] | None,
    typer.Argument(
        help="name, name:key=value,... or label=name:key=value,...; names are those of turnout list"
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", help="An experiment as TOML, instead of selectors.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Run folder; default: runs/ and a name made of the settings."),
]

#: What is wrong when there is something to train with, and nothing to train.
_NOT_TRAINED = "options of training were given without --train."

Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="Runs per selector; default: 5.")]


def compare(
    context: typer.Context,
    selectors: Selectors = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train a real model; see the options of training.")
    ] = False,
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
    world: OptionalWorld = None,
    n_rounds: Rounds = None,
    n_clients: Clients = None,
    cohort_size: Cohort = None,
    deadline: Deadline = None,
    seeds: Seeds = None,
    config: Config = None,
    out: Out = None,
    jobs: Jobs = None,
    backend: Backend = "local",
    address: Address = None,
    shard: ShardText = None,
    fresh: Fresh = False,
    metrics: MetricKeys = None,
    baseline: Baseline = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Folder for figures: PDF, SVG and PNG.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run selectors in the same simulated federations and compare them, seed by seed.

    An interrupted comparison goes on where it stopped when the same command is given again. With
    more selectors, seeds or rounds and the same --out, only what is missing is run: [bold]turnout
    compare random e3cs oort --rounds 500 --seeds 5 --out runs/mine[/]. Runs of a selector of your
    own are run again when its file was edited.

    Example: [bold]turnout compare random e3cs E3CS-0.8=e3cs:quota=0.8 --rounds 300 --seeds 3[/]
    """
    recipe = recipe_options(context.params)
    if config is not None:
        if selectors:
            raise InvalidInput("--config and selectors exclude each other: give one of them.")
        if world is not None or deadline is not None:
            raise InvalidInput("--world and --deadline go into the file of --config.")
        experiment = _from_file(config, context.params, recipe)
    elif selectors:
        if recipe and not train:
            raise InvalidInput(_NOT_TRAINED)
        training = recipe if train else None
        experiment = experiment_of("compare", selectors, seeds or 5, context.params, training)
    else:
        raise InvalidInput("give selectors, e.g. turnout compare random e3cs, or --config FILE.")
    wanted = named_metrics(metrics)
    if baseline is not None:
        known_label(baseline, experiment.labels)
    if figures is not None:
        require_matplotlib()
    folder = out or Path("runs") / f"{experiment.name}-{experiment.digest[:8]}"
    running = grid_options(context.params)
    grid = run_shown(experiment, folder, quiet=as_json, **running)
    if shard is not None:
        print_shard(running["shard"], folder, [grid], as_json)
    elif as_json:
        print_json(comparison_rows(grid, baseline))
    else:
        title = (
            f"{experiment.n_rounds:,} rounds, {experiment.cohort_size:,} of "
            f"{experiment.n_clients:,} clients"
        )
        print_scores(grid.scores, title, grid_metrics(grid), wanted, baseline)
        console.print(f"Run folder: {folder}", highlight=False)
    if figures is not None and shard is None:
        draw_results(open_runs(folder).only(grid.labels), figures, formats=FORMATS)
    end_badly_on_problems(grid)


def _from_file(config: Path, options: Mapping[str, Any], recipe: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a file, changed by what was given on the command line."""
    experiment = Experiment.from_toml(config)
    changes: dict[str, Any] = dict(sizes_of(options))
    if options["seeds"] is not None:
        changes["seeds"] = options["seeds"]
    if experiment.training is not None:
        changes["training"] = dataclasses.replace(experiment.training, **recipe)
    elif options["train"]:
        changes["training"] = recipe
    elif recipe:
        raise InvalidInput(_NOT_TRAINED)
    return dataclasses.replace(experiment, **changes)
