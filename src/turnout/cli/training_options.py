"""What the commands that train share: their options, and the recipe that these describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from turnout.data import Partition, Source
from turnout.errors import InvalidInput
from turnout.experiment.codec import ConfigError, decode
from turnout.experiment.kinds import FAMILIES
from turnout.experiment.spec import parse_parameters, parse_spec
from turnout.training import Aggregation, LocalWork, Model, Training

_PANEL = "Training"


def _kinds(base: type) -> str:
    return ", ".join(FAMILIES[base])


def _option(name: str, help: str, **more: Any) -> Any:
    return typer.Option(name, help=help, rich_help_panel=_PANEL, **more)


StopAtTarget = Annotated[
    bool, _option("--stop-at-target", "End a run when it reaches the highest target.")
]


@dataclass(frozen=True)
class TrainingOptions:
    """What is trained; named as the fields of ``Training``."""

    source: Annotated[
        str | None,
        _option("--data", f"name or name:key=value,...; default: digits. Names: {_kinds(Source)}."),
    ] = None
    partition: Annotated[
        str | None,
        _option("--partition", f"Default: dirichlet:alpha=0.5. Names: {_kinds(Partition)}."),
    ] = None
    model: Annotated[
        str | None,
        _option("--model", f"Default: mlp. Names: {_kinds(Model)}; or module:factory of your own."),
    ] = None
    local: Annotated[
        str | None,
        _option(
            "--local",
            "Local work: key=value,... of epochs or steps, batch_size, lr, momentum, proximal, "
            "weight_decay. Default: epochs=5, batch_size=10, lr=0.05.",
        ),
    ] = None
    aggregation: Annotated[
        str | None,
        _option("--aggregation", f"Default: mean-returned. Names: {_kinds(Aggregation)}."),
    ] = None
    buffers: Annotated[
        str | None,
        _option(
            "--buffers",
            "Running moments of batch normalisation: average (default), or local: each client "
            "keeps its own.",
        ),
    ] = None
    server_lr: Annotated[
        float | None, _option("--server-lr", "Factor on the step of the global model; default: 1.")
    ] = None
    hold_out: Annotated[
        float | None,
        _option("--hold-out", "Share of its examples a client keeps for evaluation; default: 0."),
    ] = None
    target_accuracy: Annotated[
        list[float] | None,
        _option(
            "--target", "Accuracy whose rounds and time are reported; may be given several times."
        ),
    ] = None
    evaluate_every: Annotated[
        int | None,
        _option("--evaluate-every", "Rounds between two looks at the test set; default: 1.", min=1),
    ] = None
    device: Annotated[str | None, _option("--device", "cpu (default), cuda, cuda:1, mps ...")] = (
        None
    )
    trainer: Annotated[
        str | None,
        _option("--trainer", "fast (default), or reference: one client after the other."),
    ] = None


#: Recipe's fields that are given as text, by option.
_FAMILY_OPTIONS: Mapping[str, tuple[str, type]] = {
    "source": ("--data", Source),
    "partition": ("--partition", Partition),
    "model": ("--model", Model),
    "aggregation": ("--aggregation", Aggregation),
}


def recipe_options(options: TrainingOptions, stop_at_target: bool = False) -> dict[str, Any]:
    """Return the fields of a recipe that were given, with what their texts stand for.

    Args:
        options: Those of the command.
        stop_at_target: Whether a run ends when it reaches the highest target.

    Returns:
        Values by field; what was not given is left out.

    Raises:
        InvalidInput: A text is wrong; the message names its option.

    """
    values = {**vars(options), "stop_at_target": stop_at_target or None}
    recipe = {name: value for name, value in values.items() if value not in (None, ())}
    for name, (option, base) in _FAMILY_OPTIONS.items():
        if name in recipe:
            recipe[name] = _chosen(option, recipe[name], base)
    if "local" in recipe:
        recipe["local"] = _local(recipe["local"])
    return recipe


def _chosen(option: str, text: str, base: type) -> Any:
    """Return what ``name:key=value,...`` stands for."""
    try:
        name, parameters = parse_spec(text)
        return decode({"kind": name, **parameters}, base)
    except ConfigError as error:
        raise InvalidInput(f"{option} {text}: {error.problem}") from error


def _local(text: str) -> LocalWork:
    try:
        recipe: Training = decode({"local": parse_parameters(text)}, Training)
    except ConfigError as error:
        raise InvalidInput(f"--local {text}: {error.problem}") from error
    return recipe.local
