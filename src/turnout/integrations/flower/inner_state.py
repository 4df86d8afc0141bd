"""What an inner strategy has learned: momenta, clipping norms, privacy spent.

Everything a strategy changed since it was made is saved with the checkpoint, also what it changed
in the configurations of ``start``: numbers, texts, arrays, Flower's records, lists and dictionaries
of them, and objects with ``state_dict``. What was set by hand and never changed is not saved, so a
setting may be changed between two runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

from turnout.errors import StateFileError
from turnout.integrations.flower.inner import layers
from turnout.plain import CONTAINERS, CannotEncode, Codec, Rule
from turnout.session.post import log
from turnout.types import Array

#: Kind of an object that is restored by its own ``load_state_dict``.
_STATE = "state"


@runtime_checkable
class _HasState(Protocol):
    """An object that gives its state and takes it back, such as an optimiser."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...


class InnerState:
    """Remembers how a strategy was made, so that it can tell what has changed."""

    def __init__(self, strategy: Strategy) -> None:
        self._owners: dict[str, Strategy | ConfigRecord] = {
            str(number): layer for number, layer in enumerate(layers(strategy))
        }
        self._unsaved: set[str] = set()
        self._before = self._everything()

    def watch(self, name: str, config: ConfigRecord) -> None:
        """Remember how a configuration was given: strategies may change it on the way."""
        self._owners[name] = config
        self._before = {
            key: value for key, value in self._before.items() if not key.startswith(f"{name}.")
        } | self._values_of(name, config)

    def changed(self) -> tuple[dict[str, Any], list[Array]]:
        """Return what is different now: plain data by attribute, and the arrays it refers to."""
        now = self._everything()
        plain: dict[str, Any] = {name: None for name in self._before if name not in now}
        arrays: list[Array] = []
        for name, (value, parts) in now.items():
            if name not in self._before or not _is_same(self._before[name], (value, parts)):
                plain[name] = {"value": value, "first": len(arrays), "count": len(parts)}
                arrays += parts
        return plain, arrays

    def restore(self, plain: Mapping[str, Any], arrays: list[Array]) -> None:
        """Put saved attributes back, and take away those that were removed."""
        for name, saved in plain.items():
            key, _, attribute = name.partition(".")
            owner = self._owners[key]
            values: MutableMapping[str, Any] = (
                owner if isinstance(owner, ConfigRecord) else vars(owner)
            )
            if saved is None:
                values.pop(attribute, None)
                continue
            parts = arrays[saved["first"] : saved["first"] + saved["count"]]
            decode, plain_value = _codec(parts).decode, saved["value"]
            if not isinstance(plain_value, dict) or plain_value.get("kind") != _STATE:
                values[attribute] = decode(plain_value)
            elif attribute in values:
                values[attribute].load_state_dict(decode(plain_value["of"]))
            else:
                raise StateFileError(
                    f"it has the state of {type(owner).__name__}.{attribute}, and there is no such "
                    "object here: make it in the constructor of the strategy."
                )

    def _everything(self) -> dict[str, tuple[Any, list[Array]]]:
        attributes: dict[str, tuple[Any, list[Array]]] = {}
        for name, owner in self._owners.items():
            attributes |= self._values_of(name, owner)
        return attributes

    def _values_of(
        self, name: str, owner: Strategy | ConfigRecord
    ) -> dict[str, tuple[Any, list[Array]]]:
        encoded = {}
        values = owner if isinstance(owner, ConfigRecord) else vars(owner)
        for attribute, value in values.items():
            if _is_fixed(value):
                continue
            parts: list[Array] = []
            try:
                encoded[f"{name}.{attribute}"] = (_codec(parts).encode(value), parts)
            except CannotEncode as error:
                self._tell(type(owner).__name__, attribute, error)
        return encoded

    def _tell(self, owner: str, attribute: str, error: CannotEncode) -> None:
        name = f"{owner}.{attribute}"
        if name not in self._unsaved:
            self._unsaved.add(name)
            log.warning(
                "%s holds a %s, which the checkpoint does not keep: after a restart it is as new",
                *(name, error),
            )


def encode_arrays(record: ArrayRecord, parts: list[Array]) -> list[list[Any]]:
    """Return the description of a record; the bytes of its arrays are added to ``parts``."""
    table = []
    for key, array in record.items():
        table.append([key, array.dtype, list(array.shape), array.stype, len(parts)])
        parts.append(np.frombuffer(array.data, dtype=np.uint8))
    return table


def decode_arrays(table: list[list[Any]], parts: list[Array]) -> ArrayRecord:
    """Return the record that ``encode_arrays`` described, byte for byte, if it can be read."""
    arrays = {
        key: FlowerArray(dtype=dtype, shape=tuple(shape), stype=stype, data=parts[i].tobytes())
        for key, dtype, shape, stype, i in table
    }
    for array in arrays.values():
        if array.stype == "numpy.ndarray":
            array.numpy()
    return ArrayRecord(arrays)


def _is_fixed(value: Any) -> bool:
    """Return whether a value is a part of the program and not of what was learned."""
    if isinstance(value, Strategy | ModuleType | type | os.PathLike):
        return True
    return callable(value) and not hasattr(value, "state_dict")


def _codec(parts: list[Array]) -> Codec:
    """Return the codec whose arrays and bytes are kept beside the plain data, in ``parts``."""

    def put(array: Array) -> int:
        parts.append(array)
        return len(parts) - 1

    return Codec(
        Rule(float, lambda value, _: float(value)),  # also NumPy's own, which is one
        Rule(
            (np.ndarray, np.generic),
            lambda value, _: put(np.array(value)),
            lambda of, _: np.array(parts[of]),
            "array",
        ),
        Rule(
            bytes,
            lambda value, _: put(np.frombuffer(value, dtype=np.uint8)),
            lambda of, _: parts[of].tobytes(),
            "bytes",
        ),
        Rule(
            ArrayRecord,
            lambda record, _: encode_arrays(record, parts),
            lambda of, _: decode_arrays(of, parts),
            "arrays",
        ),
        _of_dict(MetricRecord, "metrics"),
        _of_dict(ConfigRecord, "config"),
        *CONTAINERS,
        Rule(_HasState, lambda value, walk: walk(value.state_dict()), kind=_STATE),
    )


def _of_dict(cls: type[MetricRecord | ConfigRecord], kind: str) -> Rule:
    return Rule(cls, lambda record, walk: walk(dict(record)), lambda of, walk: cls(walk(of)), kind)


def _is_same(before: tuple[Any, list[Array]], now: tuple[Any, list[Array]]) -> bool:
    if before[0] != now[0] or len(before[1]) != len(now[1]):
        return False
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(before[1], now[1], strict=True)
    )
