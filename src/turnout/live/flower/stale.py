"""Stale replies: which strategies can aggregate them, and how they are rewritten before.

Where rounds overlap, a client trains on a model that has changed by the time it answers. What the
client has learned is a step: its answer minus the model that it received. As in FedBuff (Nguyen et
al., 2022), the step is added to the present model, multiplied by the staleness weight. Let w be the
present model. With weights n_i, staleness weights s_i, answers w_i and the models b_i that the
clients received, the next model is

    w + sum_i n_i / (sum_j n_j) * s_i * (w_i - b_i).

``turnout.training`` computes the same. Flower's strategies divide by the sum of the weights, so a
factor on ``num-examples`` would cancel if all answers are equally stale. Instead, each answer is
rewritten as w + s_i (w_i - b_i) and keeps its weight n_i. FedAvg then returns the model above.
FedAdam and other adaptive strategies use the difference between this model and w as their gradient.
An answer with staleness 0 and weight 1 stays unchanged, bit for bit. With ``mixes``, as in FedAsync
(Xie et al., 2019), b_i is w for every answer.

Two kinds of arrays are not steps. Arrays of integers, such as counters, are averaged unchanged. The
running moments of batch normalisation, ``running_mean`` and ``running_var`` in torch, are averaged
with the weights n_i s_i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    FedYogi,
    MultiKrum,
    QFedAvg,
    Strategy,
)

from turnout.core.errors import InvalidInput
from turnout.core.types import Array, FloatArray
from turnout.live.flower.inner import layers
from turnout.live.flower.transport import read_array
from turnout.live.reports import squared_distance
from turnout.live.transport import Reply
from turnout.worlds import Answers

#: The last part of the names of arrays that are averaged, because they are not steps.
_MOMENTS = ("running_mean", "running_var")
#: Set to True on your own strategy if its ``aggregate_train`` uses the weighted mean of the
#: replies and nothing else of them.
DECLARED = "averages_replies"

_PRIVACY = (
    "its noise is made for rounds in which every node answers once, and nothing is proven about "
    "the privacy of rounds that overlap"
)
_COMPARES = (
    "it compares the replies of a round with one another, and a stale step differs from the others "
    "because of its age and its weight"
)
_TREES = "trees are grown on one model and cannot be added to another"
#: Strategies that cannot take stale replies, and why.
_CANNOT: Mapping[type[Strategy], str] = {
    FedMedian: _COMPARES,
    FedTrimmedAvg: _COMPARES,
    MultiKrum: _COMPARES,  # Krum is one
    Bulyan: _COMPARES,
    QFedAvg: "it divides by the sizes of the updates, so that a smaller step would weigh more",
    FedXgbBagging: _TREES,
    FedXgbCyclic: _TREES,
    DifferentialPrivacyServerSideAdaptiveClipping: _PRIVACY,
    DifferentialPrivacyServerSideFixedClipping: _PRIVACY,
    DifferentialPrivacyClientSideAdaptiveClipping: _PRIVACY,
    DifferentialPrivacyClientSideFixedClipping: _PRIVACY,
}
#: The same: they do not take a weighted mean of the replies.
NO_MEAN = tuple(_CANNOT)
#: Classes whose ``aggregate_train`` uses the weighted mean of the replies and nothing else of them.
_AVERAGES = frozenset({FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi})


def check_overlap(strategy: Strategy, schedule: object) -> None:
    """Refuse a strategy that cannot take replies from clients of several rounds.

    Args:
        strategy: The inner strategy.
        schedule: The schedule, for the message.

    Raises:
        InvalidInput: It cannot; the message says why.
    """
    for layer in layers(strategy):
        why = _reason(layer)
        if why is not None:
            raise InvalidInput(
                f"{type(layer).__name__} cannot be used with {type(schedule).__name__}: {why}. Use "
                "FedAvg, FedProx, FedAvgM, FedAdagrad, FedAdam or FedYogi, or leave out schedule.",
                field="schedule",
            )


def _reason(layer: Strategy) -> str | None:
    if getattr(layer, DECLARED, False):
        return None
    for kind, why in _CANNOT.items():
        if isinstance(layer, kind):
            return why
    owner = next(cls for cls in type(layer).__mro__ if "aggregate_train" in vars(cls))
    if owner in _AVERAGES and "aggregate_train" not in vars(layer):
        return None
    return (
        f"it has an aggregate_train of its own, and turnout does not know what that does with "
        f"replies; if it uses their weighted mean and nothing else of them, set {DECLARED} = True "
        "on the class"
    )


def unlike_their_models(
    replies: Sequence[Reply], models: Sequence[ArrayRecord], faults: Mapping[int, str]
) -> dict[int, str]:
    """Return which replies differ in form from the model that their client received, and why.

    Args:
        replies: The replies.
        models: The model that the client of each reply received.
        faults: Faults that are known already, by position.
    """
    found = dict(faults)
    for i, (reply, model) in enumerate(zip(replies, models, strict=True)):
        have = {key: shape for key, shape, _ in reply.form.arrays[1]}
        want = {key: tuple(array.shape) for key, array in model.items()}
        if i not in found and have != want:
            found[i] = "its arrays have other keys or shapes than the model that it got"
    return found


@dataclass(frozen=True)
class StaleSteps:
    """Rewrites the replies of a round as steps from the present model.

    Args:
        present: The present model.
        bases: The model that the client of each reply received.
        answers: The staleness and the staleness weight of each reply.
        examples: (s,) the weight of each in the average.
    """

    present: ArrayRecord
    bases: Sequence[ArrayRecord]
    answers: Answers
    examples: FloatArray

    def rewrite(self, messages: Sequence[Message]) -> list[Message]:
        """Return the replies with rewritten models, each as often as it counts.

        Args:
            messages: The replies; they are changed in place.
        """
        records = [arrays_of(message) for message in messages]
        answers = self.answers
        factors = answers.rule.of_updates(answers.staleness, lambda: self._deviations(records))
        examples = np.where(np.isfinite(self.examples), self.examples, 1.0) * answers.times
        weighted = float(examples @ factors)
        share = float(examples.sum()) / weighted if weighted > 0.0 else math.nan
        bases = [self.present] * len(records) if answers.mixes else self.bases
        for message, base, factor in zip(messages, bases, factors.tolist(), strict=True):
            of_moments = 1.0 if math.isnan(share) else factor * share
            put_arrays(message, self._rewritten(arrays_of(message), base, factor, of_moments))
        times = answers.times.tolist()
        return [one for one, n in zip(messages, times, strict=True) for _ in range(n)]

    def _rewritten(
        self, record: ArrayRecord, base: ArrayRecord, factor: float, of_moments: float
    ) -> dict[str, FlowerArray]:
        """Return the arrays of a reply that change."""
        changed = {}
        for key, array in record.items():
            own = read_array(array)
            if own.dtype.kind not in "fc":
                continue
            if key.rpartition(".")[2] in _MOMENTS:
                if of_moments == 1.0:
                    continue
                new = of_moments * np.asarray(own, dtype=np.float64)
            elif base is self.present and factor == 1.0:
                continue
            else:
                step = np.subtract(own, read_array(base[key]), dtype=_precise(own))
                new = read_array(self.present[key]) + factor * step
            changed[key] = FlowerArray(np.asarray(new, dtype=own.dtype))
        return changed

    def _deviations(self, records: Sequence[ArrayRecord]) -> FloatArray:
        """Return (s,) the squared distance of each step from the mean of the fresh ones."""
        fresh = np.flatnonzero(self.answers.staleness == 0).tolist()
        total = np.zeros(len(records))
        if not fresh:
            return np.full(len(records), np.nan)
        for key, array in self.present.items():
            kind = np.dtype(array.dtype).kind
            if kind not in "fc" or key.rpartition(".")[2] in _MOMENTS:
                continue
            steps = [
                np.subtract(read_array(record[key]), read_array(base[key]), dtype=np.float64)
                for record, base in zip(records, self.bases, strict=True)
            ]
            mean = np.mean([steps[row] for row in fresh], axis=0)
            total += [squared_distance(step, mean) for step in steps]
        return total


def arrays_of(reply: Message) -> ArrayRecord:
    """Return the arrays of a reply that was checked: it has one record of them."""
    return next(iter(reply.content.array_records.values()))


def put_arrays(reply: Message, new: Mapping[str, FlowerArray]) -> None:
    """Replace arrays of a reply by a new record: a grid in this process may hand over our own.

    Args:
        reply: The reply.
        new: The arrays that change, by key.
    """
    name, own = next(iter(reply.content.array_records.items()))
    reply.content[name] = ArrayRecord({key: new.get(key, own[key]) for key in own})


def _precise(array: Array) -> type:
    return np.complex128 if array.dtype.kind == "c" else np.float64
