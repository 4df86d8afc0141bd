"""``turnout compare``: several selectors in the same worlds, with confidence intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from turnout.cli.comparison import comparison_rows, comparison_tables
from turnout.cli.options import (
    Clients,
    Cohort,
    Deadline,
    Jobs,
    OptionalWorld,
    Rounds,
    end_badly_on_problems,
    experiment_of,
    print_json,
    run_shown,
)
from turnout.cli.output import AsJson, console
from turnout.cli.training_options import (
    N_ROUNDS,
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
    given_recipe,
)
from turnout.errors import InvalidInput
from turnout.experiment import Experiment

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

Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="Runs per selector; default: 5.")]


def compare(
    selectors: Selectors = None,
    train: Annotated[
        bool, typer.Option("--train", help="Train a real model; see the options of training.")
    ] = False,
    data: Data = None,
    partition: PartitionText = None,
    model: ModelText = None,
    local: Local = None,
    aggregation: AggregationText = None,
    server_lr: ServerLr = None,
    hold_out: HoldOut = None,
    target: Target = None,
    stop_at_target: StopAtTarget = False,
    evaluate_every: EvaluateEvery = None,
    device: Device = None,
    trainer: Trainer = None,
    world: OptionalWorld = None,
    rounds: Rounds = None,
    clients: Clients = None,
    cohort: Cohort = None,
    deadline: Deadline = None,
    seeds: Seeds = None,
    config: Config = None,
    out: Out = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Run selectors in the same simulated federations and compare them, seed by seed.

    An interrupted comparison goes on where it stopped when the same command is given again.

    Example: [bold]turnout compare random e3cs E3CS-0.8=e3cs:quota=0.8 --rounds 300 --seeds 3[/]
    """
    recipe = given_recipe(
        source=data,
        partition=partition,
        model=model,
        local=local,
        aggregation=aggregation,
        server_lr=server_lr,
        hold_out=hold_out,
        target_accuracy=target,
        stop_at_target=stop_at_target,
        evaluate_every=evaluate_every,
        device=device,
        trainer=trainer,
    )
    if config is not None:
        if selectors:
            raise InvalidInput("--config and selectors exclude each other: give one of them.")
        if world is not None or deadline is not None:
            raise InvalidInput("--world and --deadline go into the file of --config.")
        sizes = {"n_clients": clients, "cohort_size": cohort, "n_rounds": rounds, "seeds": seeds}
        from_file = _resized(Experiment.from_toml(config), sizes)
        experiment = _with_training(from_file, recipe, train)
    elif selectors:
        if recipe and not train:
            raise InvalidInput("options of training were given without --train.")
        sizes = {"n_clients": clients, "cohort_size": cohort}
        sizes["n_rounds"] = rounds or (N_ROUNDS if train else None)
        training = recipe if train else None
        experiment = experiment_of(
            selectors, "compare", world or "volatile", sizes, seeds or 5, deadline, training
        )
    else:
        raise InvalidInput("give selectors, e.g. turnout compare random e3cs, or --config FILE.")
    folder = out or Path("runs") / f"{experiment.name}-{experiment.digest[:8]}"
    grid = run_shown(experiment, folder, quiet=as_json, n_jobs=jobs)
    if as_json:
        print_json(comparison_rows(grid))
    else:
        console.print(*comparison_tables(grid))
        console.print(f"Run folder: {folder}", highlight=False)
    end_badly_on_problems(grid)


def _resized(experiment: Experiment, sizes: Mapping[str, int | None]) -> Experiment:
    """Return the experiment of a file, with the sizes that were given on the command line."""
    given: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    return dataclasses.replace(experiment, **given) if given else experiment


def _with_training(experiment: Experiment, recipe: dict[str, Any], train: bool) -> Experiment:
    """Return the experiment of a file, with the options of training put over its own table."""
    if experiment.training is None and not train:
        if recipe:
            raise InvalidInput("options of training were given without --train.")
        return experiment
    in_file = experiment.table().get("training", {})
    return dataclasses.replace(experiment, training={**in_file, **recipe})
