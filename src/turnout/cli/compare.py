"""``turnout compare``: several selectors in the same worlds, with confidence intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli.comparison import (
    Baseline,
    MetricKeys,
    comparison_rows,
    grid_metrics,
    named_metrics,
    print_across,
    print_scores,
)
from turnout.cli.experiments import agreed, experiment_of, sizes_of, world_axis
from turnout.cli.option_groups import with_groups
from turnout.cli.options import (
    GridOptions,
    Out,
    WorldOptions,
    end_badly_on_problems,
    print_json,
    print_shard,
    run_shown,
)
from turnout.cli.output import AsJson, console
from turnout.cli.tracking import Track, checked_trackers
from turnout.cli.training_options import StopAtTarget, TrainingOptions, recipe_options
from turnout.errors import InvalidInput
from turnout.experiment import ConfigError, Grid, Sweep, run_sweep
from turnout.experiment.spec import parse_parameters
from turnout.results import open_runs
from turnout.results.across import Across
from turnout.results.drawing import FORMATS, require_matplotlib
from turnout.results.figures import draw_results
from turnout.results.scores import known_label
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric

Selectors = Annotated[
    list[str] | None,
    typer.Argument(
        help="name, name:key=value,... or label=name:key=value,...; names are those of turnout "
        "list. A list of values, e3cs:quota=\\[0,0.5], is a selector for each."
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", help="An experiment as TOML, instead of selectors.")
]
SweepTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        help="key=\\[value,...]: an experiment for each value, such as "
        "training.partition.alpha=\\[0.1,1]; may be given several times.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask before more than 1,000 runs.")]

#: What is wrong when there is something to train with, and nothing to train.
_NOT_TRAINED = "options of training were given without --train."

Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="Runs per selector; default: 5.")]


@with_groups
def compare(
    *,
    selectors: Selectors = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train a real model; see the options of training.")
    ] = False,
    training: TrainingOptions,
    stop_at_target: StopAtTarget = False,
    federation: WorldOptions,
    seeds: Seeds = None,
    sweep: SweepTexts = None,
    config: Config = None,
    out: Out = None,
    computing: GridOptions,
    track: Track = None,
    yes: Yes = False,
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

    --world given several times and --sweep make a grid of experiments, each in a folder of its own.

    Example: [bold]turnout compare random e3cs E3CS-0.8=e3cs:quota=0.8 --rounds 300 --seeds 3[/]
    """
    recipe = recipe_options(training, stop_at_target)
    if config is None:
        plan = _from_options(selectors or [], federation, seeds or 5, train, recipe)
    elif selectors:
        raise InvalidInput("--config and selectors exclude each other: give one of them.")
    else:
        plan = _from_file(config, federation, seeds, train, recipe)
    plan = plan.over(_swept(sweep or []))
    agreed(plan.n_cells, yes)
    wanted = named_metrics(metrics)
    if baseline is not None:
        known_label(baseline, plan.base.labels)
    if figures is not None:
        require_matplotlib()
    folder = out or Path("runs") / f"{plan.base.name}-{plan.digest[:8]}"
    running = {**computing.for_run(track), "track": checked_trackers(track)}
    grids = run_sweep(plan, folder, run_shown, quiet=as_json, **running)
    shard = running["shard"]
    if shard is not None:
        print_shard(shard, folder, grids, as_json)
    elif as_json:
        print_json(
            [
                {"sweep": point.settings, **row}
                for point, grid in zip(plan.points(), grids, strict=True)
                for row in comparison_rows(grid, baseline)
            ]
        )
    else:
        _print_grids(grids, wanted, baseline)
        console.print(f"Run folder: {folder}", highlight=False)
    if figures is not None and shard is None:
        results = open_runs(folder)
        labels = [label for label in plan.base.labels if label in results.labels]
        draw_results(results.only(labels), figures, formats=FORMATS)
    end_badly_on_problems(*grids)


def _from_options(
    selectors: Sequence[str],
    federation: WorldOptions,
    seeds: int,
    train: bool,
    recipe: Mapping[str, Any],
) -> Sweep:
    """Return what the command line asks for."""
    if not selectors:
        raise InvalidInput("give selectors, e.g. turnout compare random e3cs, or --config FILE.")
    if recipe and not train:
        raise InvalidInput(_NOT_TRAINED)
    worlds = federation.world or []
    first = dataclasses.replace(federation, world=worlds[:1])
    experiment = experiment_of("compare", selectors, seeds, first, recipe if train else None)
    return Sweep(experiment, world_axis(worlds))


def _print_grids(
    grids: Sequence[Grid], wanted: Sequence[Metric[Facts]], baseline: str | None
) -> None:
    """Print the tables of each point of a sweep, and what they say together."""
    for grid in grids:
        experiment = grid.experiment
        point = f"{experiment.name}: " if len(grids) > 1 else ""
        title = (
            f"{point}{experiment.n_rounds:,} rounds, {experiment.cohort_size:,} of "
            f"{experiment.n_clients:,} clients"
        )
        print_scores(grid.scores, title, grid_metrics(grid), wanted, baseline)
    if len(grids) > 1:
        across = Across([grid.scores for grid in grids])
        print_across(across, wanted or grid_metrics(grids[0]), baseline)


def _swept(texts: Sequence[str]) -> dict[str, Any]:
    """Return the table of ``--sweep``: values by dotted key."""
    table: dict[str, Any] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not key:
            raise InvalidInput(f"--sweep {text}: write key=[value,...], e.g. n_clients=[50,100].")
        if key in table:
            raise InvalidInput(f"--sweep names {key} twice: give all its values in one list.")
        try:
            table[key] = parse_parameters(f"values={values}")["values"]
        except ConfigError as error:
            raise InvalidInput(f"--sweep {text}: {error.problem}") from error
    return table


def _from_file(
    config: Path,
    federation: WorldOptions,
    seeds: int | None,
    train: bool,
    recipe: Mapping[str, Any],
) -> Sweep:
    """Return what a file asks for, changed by what was given on the command line."""
    if federation.world or federation.deadline is not None:
        raise InvalidInput("--world and --deadline go into the file of --config.")
    sweep = Sweep.from_toml(config)
    changes: dict[str, Any] = dict(sizes_of(federation))
    if federation.bounds:
        changes["bounds"] = True
    if seeds is not None:
        changes["seeds"] = seeds
    if sweep.base.training is not None:
        changes["training"] = dataclasses.replace(sweep.base.training, **recipe)
    elif train:
        changes["training"] = recipe
    elif recipe:
        raise InvalidInput(_NOT_TRAINED)
    return dataclasses.replace(sweep, base=dataclasses.replace(sweep.base, **changes))
