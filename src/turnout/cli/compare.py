"""``turnout compare``: several selectors in the same worlds, with confidence intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli.app import documented
from turnout.cli.options import (
    GridOptions,
    Out,
    StopAtTarget,
    Track,
    TrainingOptions,
    WorldOptions,
    agreed,
    checked_trackers,
    exit_on_problems,
    print_shard,
    recipe_options,
    run_shown,
    settings_of,
    sizes_of,
)
from turnout.cli.output import AsJson, console, print_json
from turnout.cli.scores import (
    Baseline,
    Explain,
    MetricKeys,
    named_metrics,
    print_across,
    print_scores,
    score_row,
)
from turnout.core.errors import InvalidInput
from turnout.experiment import ConfigError, Experiment, Point, Sweep, run_sweep
from turnout.experiment.sweep import joined, world_axis
from turnout.experiment.variants import parse_parameters
from turnout.report.charts import draw_results
from turnout.report.to_matplotlib import FORMATS, require_matplotlib
from turnout.results import Results
from turnout.results.catalogue import all_metrics
from turnout.results.metric import Facts, Metric
from turnout.results.scores import known_label
from turnout.results.tables import usual_columns

_NO_SELECTORS = "give selectors, e.g. turnout compare random e3cs, or --config FILE."
#: What is wrong when there is something to train with, and nothing to train.
_NOT_TRAINED = "options of training were given without --train."


@documented
def compare(
    selectors: list[str] | None = None,
    *,
    train: bool = False,
    training: TrainingOptions,
    stop_at_target: StopAtTarget = False,
    federation: WorldOptions,
    seeds: Annotated[int | None, typer.Option(min=1)] = None,
    sweep: list[str] | None = None,
    config: Path | None = None,
    out: Out = None,
    computing: GridOptions,
    track: Track = None,
    yes: bool = False,
    metrics: MetricKeys = None,
    baseline: Baseline = None,
    explain: Explain = False,
    figures: Path | None = None,
    as_json: AsJson = False,
) -> None:
    r"""Run selectors in the same simulated federations and compare them, seed by seed.

    An interrupted comparison resumes when the same command is given again. If you
    add selectors, seeds or rounds and keep --out, only what is missing is run: [bold]turnout
    compare random e3cs oort --rounds 500 --seeds 5 --out runs/mine[/]. After you edit the file of
    your own selector, its runs are repeated.

    Several --world, and --sweep, make a grid of experiments. Each has its own folder.

    Example: [bold]turnout compare random e3cs E3CS-0.8=e3cs:quota=0.8 --rounds 300 --seeds 3[/]

    Args:
        selectors: name, name:key=value,... or label=name:key=value,...; names are those of turnout
            list. A list of values, e3cs:quota=\[0,0.5], adds one selector for each value.
        train: Train a real model; see Training below.
        training: What is trained.
        stop_at_target: Whether a run ends when it reaches the highest target.
        federation: Which world, and how large.
        seeds: Runs per selector; default: 5.
        sweep: key=\[value,...]: an experiment for each value, such as
            training.partition.alpha=\[0.1,1]; may be given several times.
        config: An experiment as TOML, instead of selectors.
        out: The run folder.
        computing: How the runs are computed.
        track: Trackers that follow the runs.
        yes: Do not ask for confirmation above 1,000 runs.
        metrics: What the tables show.
        baseline: The selector that the others are compared with.
        explain: Whether differences and explanations follow the table.
        figures: Folder for figures: PDF, SVG and PNG.
        as_json: For programs.
    """
    recipe = recipe_options(training, stop_at_target)
    plan = _plan(selectors or [], config, federation, seeds, recipe, train).over(
        _swept(sweep or [])
    )
    agreed(plan.n_cells, yes)
    wanted = named_metrics(metrics)
    if baseline is not None:
        known_label(baseline, plan.base.labels)
    if figures is not None:
        require_matplotlib()
    folder = out or Path("runs") / f"{plan.base.name}-{plan.digest[:8]}"
    running = {**computing.for_run(track), "track": checked_trackers(track)}
    points = plan.points()
    grids = run_sweep(plan, folder, run_shown, quiet=as_json, **running)
    results, shard = joined(grids, folder), running["shard"]
    if shard is not None:
        print_shard(shard, folder, grids, as_json)
    elif as_json:
        by_point = zip(points, grids, strict=True)
        print_json([row for point, each in by_point for row in _rows(point, each, baseline)])
    else:
        for point, each in zip(points, grids, strict=True):
            name = f"{point.experiment.name}: " if len(grids) > 1 else ""
            title = f"{name}{point.experiment.title}"
            print_scores(
                each.scores, title, _usual(point.experiment), wanted, baseline, explain=explain
            )
        if len(grids) > 1:
            print_across(results.across, wanted or _usual(plan.base), baseline, explain=explain)
        console.print(f"Run folder: {folder}")
    if figures is not None and shard is None and results.worlds:
        draw_results(results, figures, formats=FORMATS)
    exit_on_problems(results)


def _usual(experiment: Experiment) -> list[Metric[Facts]]:
    """Return the metrics that the table of an experiment shows by default."""
    recipe = experiment.training
    return usual_columns(recipe is not None, recipe.target_accuracy if recipe else ())


def _rows(point: Point, results: Results, baseline: str | None) -> Iterator[dict[str, Any]]:
    """Yield all metrics of each selector for JSON, with differences to a baseline."""
    written = [key for run in results.runs for key in run.summary or ()]
    not_compared = {metric.key for metric in all_metrics() if metric.group == "computing"}
    keys = [key for key in dict.fromkeys(written) if key not in not_compared]
    variants = {variant.label: variant for variant in point.experiment.selectors}
    for label in results.labels:
        yield {
            "sweep": point.settings,
            **score_row(results.scores, label, keys, baseline or results.labels[0]),
            "selector": variants[label].name,
            "parameters": variants[label].parameters,
            "folder": str(results.folder),
            "problems": [run.message for run in results.failed if run.label == label],
        }


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


def _plan(
    selectors: Sequence[str],
    config: Path | None,
    federation: WorldOptions,
    seeds: int | None,
    recipe: Mapping[str, Any],
    train: bool,
) -> Sweep:
    """Return the sweep that the options describe; if there is a file, they change its settings."""
    if config is None:
        if not selectors:
            raise InvalidInput(_NO_SELECTORS)
        if recipe and not train:
            raise InvalidInput(_NOT_TRAINED)
        worlds = federation.world or []
        first = dataclasses.replace(federation, world=worlds[:1])
        settings = settings_of("compare", seeds or 5, first, recipe if train else None)
        return Sweep(Experiment(selectors, **settings), world_axis(worlds))
    if selectors:
        raise InvalidInput("--config and selectors exclude each other: give one of them.")
    if federation.world or federation.deadline is not None or federation.schedule is not None:
        raise InvalidInput("--world, --deadline and --schedule go into the file of --config.")
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
