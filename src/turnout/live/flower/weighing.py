"""Aggregation rules that depend on who took part, before Flower's averaging strategies.

A rule of ``turnout.training`` computes the next model from the replies. The inner strategy then
receives the replies with this model in place of their own. Their mean is therefore the model of the
rule, whatever their weights are. Adaptive strategies such as FedAdam use it as the mean of the
round. Metrics, arrays of integers and the buffers of batch normalisation remain the clients' own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg, Strategy

from turnout.core.errors import InvalidInput
from turnout.core.plain import below
from turnout.core.selector import Selector
from turnout.core.types import Array, IntArray
from turnout.experiment.codec import decode
from turnout.live.flower import inner as within
from turnout.live.flower.stale import NO_MEAN, arrays_of, put_arrays
from turnout.live.flower.transport import read_array
from turnout.live.settings import LiveSettings
from turnout.training import Aggregation
from turnout.training.aggregate import Answered, Memory

#: How the names of what is remembered begin in a checkpoint.
_PREFIX = "aggregation."
#: The ends of the keys of buffers, which are averaged and not part of a step.
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def rule_of(
    aggregation: object, inner: Strategy, selector: Selector, settings: LiveSettings
) -> Aggregation:
    """Return the rule, or refuse a strategy or a selector that it cannot work with.

    Args:
        aggregation: A rule, or its description as in a recipe: ``"online-weights"`` or a table.
        inner: The inner strategy.
        selector: The selector.
        settings: The settings of the run.
    """
    rule = aggregation
    if not isinstance(rule, Aggregation):
        rule = decode(rule, Aggregation, ("aggregation",))
    assert isinstance(rule, Aggregation)
    name = within.name_of(inner)
    if len(within.layers(inner)) > 1:
        raise InvalidInput(
            f"aggregation does not work with {name}: its clipping and its noise are made for the "
            "plain mean of the replies. Leave aggregation out.",
            field="aggregation",
        )
    if not isinstance(inner, FedAvg) or isinstance(inner, NO_MEAN):
        raise InvalidInput(
            f"aggregation has no meaning for {name}, which does not take a weighted mean of the "
            "replies. Leave it out, or use FedAvg, FedProx, FedAvgM, FedAdagrad, FedAdam or "
            "FedYogi.",
            field="aggregation",
        )
    if settings.overlaps:
        raise InvalidInput(
            "aggregation needs synchronous rounds: the answers of a round that overlaps come from "
            "several draws and models. Leave out aggregation or schedule.",
            field="aggregation",
        )
    rule.check(type(selector).__name__, selector.reports_probability)
    return rule


class Weighing:
    """Applies a rule to the replies of each round, and keeps what the rule remembers.

    Args:
        rule: The rule.
    """

    def __init__(self, rule: Aggregation) -> None:
        self.rule = rule
        self._memory: Memory = {}
        self._n_clients = -1  # as many as the memory has room for
        self._used: IntArray = np.zeros(0, dtype=np.int64)

    def combine(self, model: ArrayRecord, replies: Sequence[Message], answered: Answered) -> None:
        """Put the next model into the replies.

        Args:
            model: What the clients started from.
            replies: One for each client that returned.
            answered: The clients, with the weights of the replies in place of numbers of examples.
                A client with an unknown weight has NaN in ``all_examples``, and counts as the mean.
        """
        start = _weights_of(model)
        self._grow(answered.all_examples.size, start)
        sizes = answered.all_examples.copy()
        sizes[answered.clients] = answered.num_examples
        sizes[np.isnan(sizes)] = np.nanmean(sizes)
        first = _flat(start.values())
        updates = (_flat(read_array(arrays_of(x)[key]) for key in start) - first for x in replies)
        step = self.rule.step(updates, answered._replace(all_examples=sizes), self._memory)
        ends = np.cumsum([old.size for old in start.values()])[:-1]
        new = {
            key: FlowerArray(np.asarray(old + part.reshape(old.shape), old.dtype))
            for (key, old), part in zip(start.items(), np.split(step, ends), strict=True)
        }
        for reply in replies:
            put_arrays(reply, new)
        self._used = answered.clients

    def end_round(self, model: ArrayRecord, n_clients: int) -> None:
        """Let the rule learn which clients returned in this round.

        Args:
            model: The model.
            n_clients: Number of clients now.
        """
        self._grow(n_clients, _weights_of(model))
        returned = np.zeros(n_clients, dtype=np.bool_)
        returned[self._used] = True
        self._used = self._used[:0]
        self.rule.remember(self._memory, returned)

    def state(self) -> dict[str, Array]:
        """Return what is remembered, by names without a slash."""
        return {f"{_PREFIX}{name}": values.copy() for name, values in self._memory.items()}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Continue from what ``state`` returned.

        Args:
            arrays: The arrays of a checkpoint.
        """
        self._memory = {name: np.array(x) for name, x in below(_PREFIX, arrays).items()}

    def _grow(self, n_clients: int, start: Mapping[str, Array]) -> None:
        if n_clients != self._n_clients:
            n_weights = sum(old.size for old in start.values())
            self._memory = self.rule.grown(self._memory, n_clients, n_weights)
            self._n_clients = n_clients


def _weights_of(model: ArrayRecord) -> dict[str, Array]:
    """Return the arrays that take steps."""
    arrays = {key: read_array(array) for key, array in model.items()}
    return {
        key: values
        for key, values in arrays.items()
        if values.dtype.kind == "f" and not key.endswith(_BUFFERS)
    }


def _flat(arrays: Iterable[Array]) -> Array:
    return np.concatenate([values.ravel() for values in arrays])
