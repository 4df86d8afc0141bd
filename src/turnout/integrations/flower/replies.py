"""Replies that a strategy can use: what is malformed is kept from it, and from the selector.

Flower's averaging strategies end the whole app when one reply has other keys, other shapes or no
weight, and take a model of NaN as it comes. So each reply is looked at on its own when it arrives,
and against the others before they are aggregated. The faulty ones are dropped; their nodes failed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Strategy,
)

from turnout.integrations.flower.inner import layers
from turnout.session.forms import ArrayForm, most_common, other_forms
from turnout.session.reports import number
from turnout.types import LARGEST_REPORT, Array

#: Key and length of each metric, 0 for a single number.
MetricForm = frozenset[tuple[str, int]]

#: What reading the bytes of a damaged array can raise.
UNREADABLE = (ValueError, TypeError, OSError, EOFError, MemoryError, AttributeError, SyntaxError)

#: Strategies that divide by the length of an update, and so cannot take one of length 0.
_CLIPPING = (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)


@dataclass(frozen=True, slots=True)
class Checked:
    """A reply that was looked at."""

    reply: Message
    fault: str | None  #: why it cannot be used, None if it can
    metrics: Mapping[str, Any]
    arrays: tuple[str, ArrayForm] = ("", ())  #: name of the record and its form
    measures: tuple[str, MetricForm] = ("", frozenset())

    def number(self, key: str) -> float:
        """Return one metric; NaN if it is missing or impossible."""
        return number(self.metrics, key)

    def weighing(self, key: str | None, weight: float) -> Message:
        """Return the reply with the weight that is believed."""
        if key is not None and weight < self.number(key):
            is_whole = isinstance(self.metrics[key], int)
            believed = int(weight) if is_whole else weight
            self.reply.content.metric_records[self.measures[0]][key] = believed
        return self.reply


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """What the inner strategy demands of replies; nothing special if it does not average."""

    weight_key: str | None = None  #: key of the weight in the MetricRecord
    same_shapes: bool = False  #: whether arrays are combined element by element
    must_change: bool = False  #: whether a model that comes back unchanged breaks it
    counts_once: bool = False  #: whether its noise is made for one answer of each node

    @classmethod
    def of(cls, strategy: Strategy) -> ReplyRules:
        """Return the rules of a strategy, or of the one it wraps."""
        within = layers(strategy)
        must_change = any(isinstance(layer, _CLIPPING) for layer in within)
        counts_once = any("num_sampled_clients" in vars(layer) for layer in within)
        for layer in within:
            if isinstance(layer, FedAvg):
                is_tree = isinstance(layer, FedXgbBagging | FedXgbCyclic)
                return cls(layer.weighted_by_key, not is_tree, must_change, counts_once)
        return cls(must_change=must_change, counts_once=counts_once)

    def check(self, reply: Message, *, train: bool) -> Checked:
        """Look at a reply on its own."""
        if not reply.has_content():
            return Checked(reply, "it has no content", {})
        arrays, measured = reply.content.array_records, reply.content.metric_records
        metrics = {k: v for record in reversed(list(measured.values())) for k, v in record.items()}
        fault, forms = _look_at_arrays(arrays) if train else (None, [])
        if fault is None and self.weight_key is not None:
            n_arrays = len(arrays) if train else 1
            fault = _fault_of_metrics(metrics, self.weight_key, n_arrays, len(measured))
        if fault is not None or self.weight_key is None:
            return Checked(reply, fault, metrics)
        name = next(iter(measured))
        measures = frozenset(
            (key, len(value) if isinstance(value, list) else 0) for key, value in metrics.items()
        )
        return Checked(reply, None, metrics, forms[0] if forms else ("", ()), (name, measures))

    def misfits(
        self, replies: Sequence[Checked], *, sent: ArrayRecord | None, needed: Sequence[str]
    ) -> dict[int, str]:
        """Return which sound replies do not fit the others, by position, and why.

        ``sent`` is the model that was sent out, None if no arrays come back, and ``needed`` the
        metric keys that the selector wants.
        """
        if self.weight_key is None or not replies:
            return {}
        faults = {} if sent is None else self._other_arrays(replies, form_of_arrays(sent))
        faults |= self._other_metrics(replies, needed, self.weight_key)
        if self.must_change and sent is not None:
            same = (i for i, one in enumerate(replies) if i not in faults and _is_model(one, sent))
            faults |= dict.fromkeys(same, "it is the model unchanged, which cannot be clipped")
        weights = [one.number(self.weight_key) for i, one in enumerate(replies) if i not in faults]
        if not any(weight > 0.0 for weight in weights):
            reason = f"no reply has a {self.weight_key} above 0"
            return {i: faults.get(i, reason) for i in range(len(replies))}
        return faults

    def _other_arrays(self, replies: Sequence[Checked], sent: ArrayForm) -> dict[int, str]:
        forms = [(name, self._comparable(form)) for name, form in (one.arrays for one in replies)]
        return other_forms(forms, self._comparable(sent))

    def _comparable(self, form: ArrayForm) -> ArrayForm:
        return form if self.same_shapes else tuple((key, (), "") for key, _, _ in form)

    def _other_metrics(
        self, replies: Sequence[Checked], needed: Sequence[str], weight_key: str
    ) -> dict[int, str]:
        wanted = {(key, 0) for key in (weight_key, *needed)}
        known = [len(wanted & one.measures[1]) for one in replies]
        forms = [one.measures for one in replies]
        complete = zip(forms, known, strict=True)
        usual = most_common([form for form, n_known in complete if n_known == max(known)])
        faults = {
            i: f"its metrics are {_names(form[1])} instead of {_names(usual[1])}"
            for i, form in enumerate(forms)
            if form != usual
        }
        lacking = {i for i, one in enumerate(replies) if (weight_key, 0) not in one.measures[1]}
        return faults | dict.fromkeys(lacking, f"its metrics lack {weight_key!r}")


def form_of_arrays(arrays: ArrayRecord) -> ArrayForm:
    """Return keys, shapes and kinds of the arrays of a record, in order."""
    found = ((key, read_array(array)) for key, array in arrays.items())
    return tuple((key, values.shape, values.dtype.kind) for key, values in found)


def _is_model(one: Checked, sent: ArrayRecord) -> bool:
    """Return whether a reply brings back the numbers that were sent."""
    arrays = one.reply.content.array_records[one.arrays[0]]
    return list(arrays) == list(sent) and all(
        np.array_equal(read_array(arrays[key]), read_array(sent[key])) for key in sent
    )


def _look_at_arrays(
    records: Mapping[str, ArrayRecord],
) -> tuple[str | None, list[tuple[str, ArrayForm]]]:
    """Return what is wrong with the arrays of a reply, and the form of each record."""
    forms: list[tuple[str, ArrayForm]] = []
    for name, record in records.items():
        form: list[tuple[str, tuple[int, ...], str]] = []
        for key, array in record.items():
            try:
                values = read_array(array)
            except UNREADABLE as error:
                return f"its array {key!r} cannot be read ({type(error).__name__})", []
            if values.dtype.kind in "fc" and not np.isfinite(values).all():
                return f"its array {key!r} is not finite", []
            form.append((key, values.shape, values.dtype.kind))
        forms.append((name, tuple(form)))
    return None, forms


def _fault_of_metrics(
    metrics: Mapping[str, Any], weight_key: str, n_arrays: int, n_metrics: int
) -> str | None:
    if n_arrays != 1 or n_metrics != 1:
        return f"it has {n_arrays} ArrayRecords and {n_metrics} MetricRecords, not one of each"
    for key, value in metrics.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, bool) or not isinstance(item, int | float):
                return f"its metric {key!r} is no number"
            if isinstance(item, int) and abs(item) > LARGEST_REPORT:
                return f"its metric {key!r} is too large"
    weight = metrics.get(weight_key, 0.0)
    if isinstance(weight, list) or not 0.0 <= weight <= LARGEST_REPORT:
        return f"its weight {weight_key!r} is {weight!r}"
    return None


def _names(form: MetricForm) -> str:
    return ", ".join(sorted(f"{key}[{n}]" if n else key for key, n in form)) or "none"


def read_array(array: FlowerArray) -> Array:
    """Return the numbers, read-only where possible; raise one of ``UNREADABLE`` if there are none.

    The usual bytes are a header that follows from type and shape, and the numbers behind it.
    """
    data = array.data
    usual = _usual(array.dtype, tuple(array.shape)) if array.stype == "numpy.ndarray" else None
    if usual is None:
        return array.numpy()
    header, dtype, size = usual
    if len(data) != len(header) + size * dtype.itemsize or not data.startswith(header):
        return array.numpy()
    return np.frombuffer(data, dtype, offset=len(header)).reshape(array.shape)


@lru_cache(maxsize=4096)
def _usual(name: str, shape: tuple[int, ...]) -> tuple[bytes, np.dtype[Any], int] | None:
    """Return the header of an array that was written in C order, its type and its size."""
    try:
        dtype = np.dtype(name)
        described = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": shape,
        }
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, described)
    except UNREADABLE:
        return None
    if dtype.hasobject:
        return None
    return buffer.getvalue(), dtype, math.prod(shape)
