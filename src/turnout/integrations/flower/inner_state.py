"""What an inner strategy has learned: momenta, clipping norms, privacy spent.

Everything a strategy changed since it was made is saved with the checkpoint: numbers, texts,
arrays, Flower's records, lists and dictionaries of them, and objects with ``state_dict``. What was
set by hand and never changed is not saved, so a setting may be changed between two runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

from turnout.errors import StateFileError
from turnout.integrations.flower.inner import layers
from turnout.integrations.flower.mailbox import log
from turnout.types import Array

__all__ = ["InnerState", "decode_arrays", "encode_arrays"]


class _CannotSave(Exception):
    """A value has a type that is not saved."""


class InnerState:
    """Remembers how a strategy was made, so that it can tell what has changed."""

    def __init__(self, strategy: Strategy) -> None:
        self._layers = layers(strategy)
        self._unsaved: set[str] = set()
        self._before = self._everything()

    def changed(self) -> tuple[dict[str, Any], list[Array]]:
        """Return what is different now: plain data by attribute, and the arrays it refers to."""
        plain: dict[str, Any] = {}
        arrays: list[Array] = []
        for name, (value, parts) in self._everything().items():
            if name not in self._before or not _is_same(self._before[name], (value, parts)):
                plain[name] = {"value": value, "first": len(arrays), "count": len(parts)}
                arrays += parts
        return plain, arrays

    def restore(self, plain: Mapping[str, Any], arrays: list[Array]) -> None:
        """Put saved attributes back."""
        for name, saved in plain.items():
            number, _, attribute = name.partition(".")
            layer = self._layers[int(number)]
            if not hasattr(layer, attribute):
                owner = type(layer).__name__
                raise StateFileError(f"it has {attribute} of {owner}, which has none here.")
            parts = arrays[saved["first"] : saved["first"] + saved["count"]]
            now = getattr(layer, attribute)
            if isinstance(saved["value"], dict) and saved["value"].get("kind") == "state":
                now.load_state_dict(_decode(saved["value"]["of"], parts))
            else:
                setattr(layer, attribute, _decode(saved["value"], parts))

    def _everything(self) -> dict[str, tuple[Any, list[Array]]]:
        found = {}
        for number, layer in enumerate(self._layers):
            for attribute, value in vars(layer).items():
                if _is_fixed(value):
                    continue
                parts: list[Array] = []
                try:
                    found[f"{number}.{attribute}"] = (_encode(value, parts), parts)
                except _CannotSave as error:
                    self._tell(type(layer).__name__, attribute, error)
        return found

    def _tell(self, owner: str, attribute: str, error: _CannotSave) -> None:
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
    """Return the record that ``encode_arrays`` described, byte for byte."""
    made = {
        key: FlowerArray(dtype=dtype, shape=tuple(shape), stype=stype, data=parts[i].tobytes())
        for key, dtype, shape, stype, i in table
    }
    return ArrayRecord(made)


def _is_fixed(value: Any) -> bool:
    """Return whether a value is a part of the program and not of what was learned."""
    if isinstance(value, Strategy | ModuleType | type | os.PathLike):
        return True
    return callable(value) and not hasattr(value, "state_dict")


def _encode(value: Any, parts: list[Array]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        parts.append(np.array(value))
        return {"kind": "array", "of": len(parts) - 1}
    if isinstance(value, bytes):
        parts.append(np.frombuffer(value, dtype=np.uint8))
        return {"kind": "bytes", "of": len(parts) - 1}
    if isinstance(value, ArrayRecord):
        return {"kind": "arrays", "of": encode_arrays(value, parts)}
    if isinstance(value, MetricRecord | ConfigRecord):
        kind = "metrics" if isinstance(value, MetricRecord) else "config"
        return {"kind": kind, "of": _encode(dict(value), parts)}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {"kind": kind, "of": [_encode(one, parts) for one in value]}
    if isinstance(value, dict):
        pairs = [[_encode(key, parts), _encode(one, parts)] for key, one in value.items()]
        return {"kind": "dict", "of": pairs}
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return {"kind": "state", "of": _encode(value.state_dict(), parts)}
    raise _CannotSave(type(value).__name__)


def _decode(saved: Any, parts: list[Array]) -> Any:
    if not isinstance(saved, dict):
        return saved
    return _DECODERS[saved["kind"]](saved["of"], parts)


_DECODERS: dict[str, Callable[[Any, list[Array]], Any]] = {
    "array": lambda of, parts: np.array(parts[of]),
    "bytes": lambda of, parts: parts[of].tobytes(),
    "arrays": decode_arrays,
    "metrics": lambda of, parts: MetricRecord(_decode(of, parts)),
    "config": lambda of, parts: ConfigRecord(_decode(of, parts)),
    "list": lambda of, parts: [_decode(one, parts) for one in of],
    "tuple": lambda of, parts: tuple(_decode(one, parts) for one in of),
    "dict": lambda of, parts: {_decode(key, parts): _decode(one, parts) for key, one in of},
}


def _is_same(one: tuple[Any, list[Array]], other: tuple[Any, list[Array]]) -> bool:
    if one[0] != other[0] or len(one[1]) != len(other[1]):
        return False
    return all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one[1], other[1], strict=True)
    )
