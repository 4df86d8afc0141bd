"""``turnout simulate`` and ``turnout train``: one run of one selector."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from turnout.cli.app import documented
from turnout.cli.options import (
    Out,
    StopAtTarget,
    Track,
    TrainingOptions,
    WorldOptions,
    checked_trackers,
    exit_on_problems,
    recipe_options,
    run_shown,
    settings_of,
)
from turnout.cli.output import AsJson, console, metric_table, show
from turnout.experiment import Experiment, parse_variant
from turnout.experiment.variants import parse_parameters
from turnout.results.catalogue import shown_in

Seed = Annotated[int, typer.Option(min=0)]


@documented
def simulate(
    selector: str,
    *,
    param: list[str] | None = None,
    federation: WorldOptions,
    seed: Seed = 0,
    out: Path | None = None,
    fresh: bool = False,
    as_json: AsJson = False,
) -> None:
    """Run one selector in a simulated federation and show its results.

    Example: [bold]turnout simulate e3cs --param quota=0.8 --world e3cs --rounds 500[/]

    Args:
        selector: A name from turnout list, or module:Class.
        param: key=value; may be given several times.
        federation: Which world, and how large.
        seed: Fixes all random draws: the same seed, the same run.
        out: Keep the run in this folder.
        fresh: Repeat the run, even if it is complete.
        as_json: For programs.
    """
    _run(selector, param, federation, seed, out, fresh, as_json)


@documented
def train(
    selector: str,
    *,
    param: list[str] | None = None,
    training: TrainingOptions,
    stop_at_target: StopAtTarget = False,
    federation: WorldOptions,
    seed: Seed = 0,
    out: Out = None,
    track: Track = None,
    fresh: bool = False,
    as_json: AsJson = False,
) -> None:
    """Train a model in a simulated federation, with one selector.

    An interrupted run resumes when the same command is given again.

    Example: [bold]turnout train e3cs --data digits --model mlp --rounds 20 --target 0.8[/]

    Args:
        selector: A name from turnout list, or module:Class.
        param: key=value; may be given several times.
        training: What is trained.
        stop_at_target: Whether a run ends when it reaches the highest target.
        federation: Which world, and how large.
        seed: Fixes all random draws: the same seed, the same run.
        out: The run folder.
        track: Trackers that follow the run.
        fresh: Repeat the run, even if it is complete.
        as_json: For programs.
    """
    recipe = recipe_options(training, stop_at_target)
    _run(selector, param, federation, seed, out, fresh, as_json, recipe, checked_trackers(track))


def _run(
    selector: str,
    param: Sequence[str] | None,
    federation: WorldOptions,
    seed: int,
    out: Path | None,
    fresh: bool,
    as_json: bool,
    recipe: Mapping[str, Any] | None = None,
    track: Sequence[str] = (),
) -> None:
    """Run one selector and show its numbers.

    A run that trains is always kept. Another one is kept if a folder was given; else it is in a
    temporary folder, which stays only if the run failed, for the sake of its traceback.
    """
    command: Literal["simulate", "train"] = "simulate" if recipe is None else "train"
    variant = parse_variant(selector)
    changes = parse_parameters(",".join(param or []))
    if changes:  # over the parameters in the text of the selector
        own = {**variant.parameters, **changes}
        variant = dataclasses.replace(variant, parameters=own, label="")
    experiment = Experiment([variant], **settings_of(command, [seed], federation, recipe))
    if out is None and recipe is not None:
        out = Path("runs") / f"train-{experiment.digest[:8]}"
    with contextlib.ExitStack() as at_end:
        folder = out or Path(tempfile.mkdtemp(prefix="turnout-"))
        if out is None:
            at_end.callback(shutil.rmtree, folder)
        results = run_shown(
            experiment,
            folder,
            quiet=as_json,
            track=track,
            is_kept=out is not None,
            n_jobs=1,
            fresh=fresh,
        )
        if results.failed:
            at_end.pop_all()
        exit_on_problems(results)
    sizes = {name: getattr(experiment, name) for name in ("n_clients", "cohort_size", "n_rounds")}
    row = {"label": variant.label, **sizes, "seed": seed, **(results.runs[0].summary or {})}
    title = f"{variant.label}, seed {seed}"
    if row.get("stopped_at_target"):
        title += f" (stopped at its target after {row['rounds_run']} rounds)"
    targets = () if experiment.training is None else experiment.training.target_accuracy
    kept = {} if recipe is None else {"folder": str(folder)}
    show(metric_table(title, shown_in(command, targets), row), [row | kept], as_json)
    if out is not None and not as_json:
        console.print(f"Run folder: {out}")
