"""Replies that can be aggregated: what is malformed is kept from the model, and from the selector.

NVFlare's FedAvg adds each reply to a running sum. One with another shape ends in an exception after
half of it was added, one of NaN makes the model NaN, and one with an empty model is the new model
if it is the only one. So each reply is looked at before anything is added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from nvflare.apis.fl_constant import FLMetaKey, ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.base_fedavg import _get_num_steps_weight

from turnout.session.forms import ArrayForm, Form, other_forms
from turnout.session.port import Heard, Kind
from turnout.types import LARGEST_REPORT

#: Kinds of numbers that can be averaged.
_NUMBERS = "fiub"
_LONGEST_REASON = 200


class Reply(NamedTuple):
    """A reply that was looked at.

    Attributes:
        model: The client's model.
        form: Its type of parameters and the form of its arrays.
    """

    model: FLModel
    form: Form


def read(result: Shareable) -> FLModel | Heard:
    """Return what a client sent; what is heard of it instead if there is no model in it."""
    try:
        code = result.get_return_code(ReturnCode.OK)
        if code != ReturnCode.OK:
            return Heard(Kind.FAILED, reason=f"return code {code}"[:_LONGEST_REASON])
        return FLModelUtils.from_shareable(result)
    except Exception as error:  # whatever a client sent: it must not end the task of the others
        return Heard(Kind.GARBLED, reason=f"reply not readable ({type(error).__name__})")


def check(received: FLModel, model: ArrayForm, *, averages: bool) -> Heard:
    """Return what is heard of a client that has sent a model.

    Args:
        received: What it sent.
        model: The form of the model that was sent out.
        averages: Whether replies are averaged, and not combined by an aggregator of the user's own.
    """
    try:
        fault, form = _look(received, model, averages=averages)
    except Exception as error:  # the same
        fault, form = f"it cannot be read ({type(error).__name__})", ()
    if fault is not None:
        return Heard(Kind.FAILED, reason=f"reply dropped, {fault}"[:_LONGEST_REASON])
    metrics = plain_metrics(received.metrics)
    if averages and received.metrics is not None:
        received.metrics = {k: x for k, x in metrics.items() if isinstance(x, float)}
    reply = Reply(received, (str(received.params_type), form))
    said = (received.meta or {}).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
    weight = math.nan if said is None else _get_num_steps_weight(received)
    return Heard(metrics=metrics, content=reply, weight=weight)


def weighing(reply: Reply, weight: float) -> FLModel:
    """Return a reply's model with the number of steps that is believed.

    Args:
        reply: A reply that was looked at.
        weight: How much it weighs.
    """
    model = reply.model
    if weight < _get_num_steps_weight(model):
        model.meta[FLMetaKey.NUM_STEPS_CURRENT_ROUND] = weight
    return model


def misfits(answers: Sequence[Heard], model: ArrayForm, *, averages: bool) -> dict[int, str]:
    """Return which sound replies do not fit the others, by position, and why."""
    return other_forms([heard.content.form for heard in answers], model) if averages else {}


def form_of(params: Mapping[str, Any]) -> ArrayForm:
    """Return keys, shapes and kinds of parameters, sorted by key."""
    return tuple((str(key), *_shape_and_kind(params[key])) for key in sorted(params, key=str))


def is_finite(params: Mapping[str, Any]) -> bool:
    """Return whether all numbers are finite."""
    return all(_is_finite(value) for value in params.values())


def plain_metrics(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a client reports in plain, finite numbers; the rest is left out."""
    plain: dict[str, Any] = {}
    for name, value in (metrics or {}).items():
        if not isinstance(name, str) or isinstance(value, str | bytes | Mapping):
            continue
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            continue
        if math.isfinite(number) and abs(number) <= LARGEST_REPORT:
            plain[name] = number
    return plain


def _look(received: FLModel, model: ArrayForm, *, averages: bool) -> tuple[str | None, ArrayForm]:
    """Return what is wrong with a reply, and the form of its arrays."""
    params = received.params
    if not isinstance(params, Mapping) or not params:
        return "it has no parameters", ()
    if not averages:
        return None, ()
    form = form_of(params)
    known = {key: (shape, kind) for key, shape, kind in model}
    for key, shape, kind in form:
        if kind not in _NUMBERS:
            return f"its array {key!r} is no numbers", ()
        if known and key not in known:
            return f"the model has no array {key!r}", ()
        if known and known[key][0] != shape:
            return f"its array {key!r} has shape {shape} instead of {known[key][0]}", ()
    for key, value in params.items():
        if not _is_finite(value):
            return f"its array {key!r} is not finite", ()
    if _get_num_steps_weight(received) > LARGEST_REPORT:
        return "its number of steps is too large", ()
    return None, form


def _shape_and_kind(value: Any) -> tuple[tuple[int, ...], str]:
    if hasattr(value, "detach"):  # a tensor; NumPy has no bfloat16
        is_float = value.is_floating_point()
        return tuple(value.shape), "f" if is_float else "c" if value.is_complex() else "i"
    array = np.asarray(value)
    return array.shape, array.dtype.kind


def _is_finite(value: Any) -> bool:
    if hasattr(value, "detach"):
        return bool(value.isfinite().all())
    return bool(np.isfinite(np.asarray(value)).all())
