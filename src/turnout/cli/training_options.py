"""What the commands that train share: options as text, put together to a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from turnout.data import Partition, Source
from turnout.errors import InvalidInput
from turnout.experiment.codec import FAMILIES, ConfigError, decode, encode
from turnout.experiment.variants import parse_parameters, parse_spec
from turnout.names import import_object
from turnout.training import Aggregation, Model, Training

__all__ = [
    "N_ROUNDS",
    "AggregationText",
    "Data",
    "Device",
    "EvaluateEvery",
    "HoldOut",
    "Local",
    "ModelText",
    "PartitionText",
    "ServerLr",
    "StopAtTarget",
    "Target",
    "Trainer",
    "given_recipe",
]

#: Rounds of a run with training, unless told otherwise.
N_ROUNDS = 100

_PANEL = "Training"


def _kinds(base: type) -> str:
    return ", ".join(FAMILIES[base])


def _option(name: str, help: str, **more: Any) -> Any:
    return typer.Option(name, help=help, rich_help_panel=_PANEL, **more)


Data = Annotated[
    str | None,
    _option("--data", f"name or name:key=value,...; default: digits. Names: {_kinds(Source)}."),
]
PartitionText = Annotated[
    str | None, _option("--partition", f"Default: dirichlet:alpha=0.5. Names: {_kinds(Partition)}.")
]
ModelText = Annotated[
    str | None,
    _option("--model", f"Default: mlp. Names: {_kinds(Model)}; or module:factory of your own."),
]
Local = Annotated[
    str | None,
    _option(
        "--local",
        "Local work: key=value,... of epochs or steps, batch_size, lr, momentum, proximal, "
        "weight_decay. Default: epochs=5, batch_size=10, lr=0.05.",
    ),
]
AggregationText = Annotated[
    str | None,
    _option("--aggregation", f"Default: mean-returned. Names: {_kinds(Aggregation)}."),
]
ServerLr = Annotated[
    float | None, _option("--server-lr", "Factor on the step of the global model; default: 1.")
]
HoldOut = Annotated[
    float | None,
    _option("--hold-out", "Share of its examples a client keeps for evaluation; default: 0."),
]
Target = Annotated[
    list[float] | None,
    _option("--target", "Accuracy whose rounds and time are reported; may be given several times."),
]
StopAtTarget = Annotated[
    bool, _option("--stop-at-target", "End a run when it reaches the highest target.")
]
EvaluateEvery = Annotated[
    int | None,
    _option("--evaluate-every", "Rounds between two looks at the test set; default: 1.", min=1),
]
Device = Annotated[str | None, _option("--device", "cpu (default), cuda, cuda:1, mps ...")]
Trainer = Annotated[
    str | None, _option("--trainer", "fast (default), or reference: one client after the other.")
]

#: Recipe's fields that are given as text, by option.
_FAMILY_OPTIONS: Mapping[str, tuple[str, type]] = {
    "source": ("--data", Source),
    "partition": ("--partition", Partition),
    "model": ("--model", Model),
    "aggregation": ("--aggregation", Aggregation),
}


def given_recipe(**options: Any) -> dict[str, Any]:
    """Return the part of a recipe that the options describe, checked; names are its fields."""
    table = {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != []  # 0 was given
    }
    for name, (option, base) in _FAMILY_OPTIONS.items():
        if name in table:
            table[name] = _chosen(option, table[name], base)
    if "local" in table:
        table["local"] = _local(table["local"])
    return table


def _chosen(option: str, text: str, base: type) -> dict[str, Any]:
    """Return the table of ``name:key=value,...``."""
    try:
        name, parameters = parse_spec(text)
        table = {"kind": name, **parameters}
        if base is Model and ":" in name and not _is_recipe(name):
            table = {"kind": "custom", "path": name, "parameters": parameters}
        return _tabled(decode(table, base))
    except ConfigError as error:
        raise InvalidInput(f"{option} {text}: {error.problem}") from error


def _local(text: str) -> dict[str, Any]:
    try:
        given = parse_parameters(text)
        return _tabled(decode({"local": given}, Training).local)
    except ConfigError as error:
        raise InvalidInput(f"--local {text}: {error.problem}") from error


def _tabled(made: object) -> dict[str, Any]:
    table: dict[str, Any] = encode(made)
    return table


def _is_recipe(path: str) -> bool:
    """Return whether a path names a model's recipe rather than a module or a function."""
    try:
        imported = import_object(path)
    except InvalidInput:
        return False
    return isinstance(imported, type) and issubclass(imported, Model)
