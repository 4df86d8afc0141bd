"""The experiment that the options of a command describe."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from turnout.cli.options import WorldOptions
from turnout.errors import InvalidInput
from turnout.experiment import Experiment, Variant, parse_variant
from turnout.experiment.spec import parse_parameters
from turnout.policies import FixedDeadline

#: Rounds of a run with training, unless told otherwise.
N_TRAINED_ROUNDS = 100

#: More runs than this are asked about.
_MOST_CELLS = 1000


def experiment_of(
    name: str,
    selectors: Sequence[Variant | str],
    seeds: Sequence[int] | int,
    options: WorldOptions,
    training: Mapping[str, Any] | None = None,
) -> Experiment:
    """Return the experiment that the options of a command describe, checked.

    Args:
        name: Of the experiment.
        selectors: Variants, or texts such as ``"e3cs:quota=0.8"``.
        seeds: The seeds, or how many.
        options: Which world, and how large.
        training: Fields of the recipe that were given; None = no training.
    """
    return Experiment(selectors, **settings_of(name, seeds, options, training))


def settings_of(
    name: str,
    seeds: Sequence[int] | int,
    options: WorldOptions,
    training: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what ``Experiment`` takes beside selectors.

    Args:
        name: Of the experiment.
        seeds: The seeds, or how many.
        options: Which world, and how large.
        training: Fields of the recipe that were given; None = no training.
    """
    usual = {} if training is None else {"n_rounds": N_TRAINED_ROUNDS}
    return {
        "name": name,
        "world": _world(_only(options.world or ["volatile"])),
        "seeds": seeds,
        "policy": FixedDeadline() if options.deadline is None else FixedDeadline(options.deadline),
        "training": training,
        "bounds": options.bounds,
        **usual,
        **sizes_of(options),
    }


def world_axis(worlds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what ``--world`` sweeps over: nothing unless it was given several times.

    Args:
        worlds: Names and files.

    Raises:
        InvalidInput: A world was given twice, or a file cannot be read.
    """
    if len(worlds) < 2:
        return {}
    named = {_stem(text): _world(text) for text in worlds}
    if len(named) < len(worlds):
        raise InvalidInput(f"--world names one world twice: {', '.join(worlds)}.", field="world")
    return {"world": named}


def agreed(n_cells: int, yes: bool) -> None:
    """Ask before a great many runs.

    Args:
        n_cells: How many runs.
        yes: It was said already.

    Raises:
        InvalidInput: There are too many, and nobody to ask.
    """
    if yes or n_cells <= _MOST_CELLS:
        return
    if not sys.stdin.isatty():
        raise InvalidInput(
            f"these are {n_cells:,} runs, more than {_MOST_CELLS:,}: give --yes if you want them "
            "all, or fewer values, selectors or seeds."
        )
    typer.confirm(f"These are {n_cells:,} runs. Go on?", abort=True)


def sizes_of(options: WorldOptions) -> dict[str, int]:
    """Return the sizes that were given, by field of ``Experiment``."""
    sizes = {name: getattr(options, name) for name in ("n_clients", "cohort_size", "n_rounds")}
    return {name: size for name, size in sizes.items() if size is not None}


def variant_with(selector: str, parameters: Sequence[str] | None) -> Variant:
    """Return the variant of a text, with the parameters of ``--param`` put over its own."""
    variant = parse_variant(selector)
    changes = parse_parameters(",".join(parameters or []))
    if not changes:
        return variant
    return dataclasses.replace(variant, parameters={**variant.parameters, **changes}, label="")


def _only(worlds: Sequence[str]) -> str:
    if len(worlds) > 1:
        raise InvalidInput(
            f"--world was given {len(worlds)} times, and this command runs one world: turnout "
            "compare takes several.",
            field="world",
        )
    return worlds[0]


def _stem(text: str) -> str:
    return Path(text).stem if text.endswith(".toml") else text


def _world(text: str) -> Any:
    """Return a world's name, or the table in a file."""
    path = Path(text)
    if path.suffix != ".toml":
        return text
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"--world {text} cannot be read: {error}.") from error
    return table.get("world", table)
