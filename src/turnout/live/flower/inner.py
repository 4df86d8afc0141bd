"""The inner strategy: what it sees, how it takes every chosen node, and how its state is saved.

Flower's strategies sample by ``fraction_train`` and wait for ``min_train_nodes`` and
``min_available_nodes``. While they prepare a round, these are set to take every node in sight, and
restored afterwards. ``min_available_nodes`` keeps a meaning: the first round waits for this many
nodes, as long as ``start_s`` allows.

Everything that a strategy changed since it was made is saved with the checkpoint, also changes to
the configurations of ``start``: numbers, texts, arrays, Flower's records, lists and dictionaries of
them, and objects with ``state_dict``. Settings that never changed are not saved, so they may differ
between two runs.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Bulyan, FedMedian, FedTrimmedAvg, Strategy

from turnout.core.errors import InvalidInput, StateFileError, TurnoutError
from turnout.core.plain import CONTAINERS, CannotEncode, Codec, Rule
from turnout.core.types import Array
from turnout.live.transport import log

#: Kind of an object that is restored by its own ``load_state_dict``.
_STATE = "state"

#: The methods of a strategy that Flower's loop calls.
HOOKS = (
    "configure_train",
    "aggregate_train",
    "configure_evaluate",
    "aggregate_evaluate",
    "summary",
)

#: Attributes by which Flower's strategies sample and wait, and what makes them take everyone.
_EVERYONE: Mapping[str, float] = {
    "fraction_train": 1.0,
    "min_train_nodes": 0,
    "min_available_nodes": 0,
}
_EVERYONE_EVALUATED: Mapping[str, float] = {
    **_EVERYONE,
    "fraction_evaluate": 1.0,
    "min_evaluate_nodes": 0,
}

#: A strategy asks for the nodes once or twice; one that asks more often is waiting.
_MOST_LOOKS = 6
#: Sends messages with a timeout, and returns the replies.
Exchange = Callable[[list[Message], float | None], Iterable[Message]]


class UnsuitableStrategy(TurnoutError, RuntimeError):
    """The inner strategy samples by itself, waits for nodes or needs other numbers."""


def name_of(strategy: Strategy) -> str:
    """Return the class of a strategy, with those inside it.

    A wrapped one reads ``DifferentialPrivacyServerSideFixedClipping(FedAvg)``.
    """
    names = [type(layer).__name__ for layer in layers(strategy)]
    return "(".join(names) + ")" * (len(names) - 1)


def layers(strategy: Strategy) -> list[Strategy]:
    """Return a strategy and the strategies it wraps, the outermost first."""
    found = [strategy]
    for layer in found:  # it grows meanwhile
        for value in vars(layer).values():
            if isinstance(value, Strategy) and not any(value is one for one in found):
                found.append(value)
    return found


@contextmanager
def taking_everyone(strategy: Strategy, *, evaluate: bool = False) -> Iterator[None]:
    """Let a strategy take every node it sees, for as long as the context is open."""
    wanted = _EVERYONE_EVALUATED if evaluate else _EVERYONE
    with ExitStack() as stack:
        for layer in layers(strategy):
            changed = {name: value for name, value in wanted.items() if hasattr(layer, name)}
            for name, value in changed.items():
                stack.callback(setattr, layer, name, getattr(layer, name))
                setattr(layer, name, value)
        yield


@contextmanager
def standing_in(
    strategy: Strategy, hooks: Mapping[str, Callable[..., Any]]
) -> Iterator[Callable[..., Any]]:
    """Put hooks in the place of a strategy's own, and yield its loop."""
    own = vars(strategy)
    with ExitStack() as stack:
        for name, hook in hooks.items():
            if name in own:
                stack.callback(own.__setitem__, name, own[name])
            else:
                stack.callback(own.pop, name)
            own[name] = hook
        yield strategy.start


def evaluation_size(strategy: Strategy, n_nodes: int) -> int:
    """Return how many of the nodes a strategy evaluates on."""
    fraction = setting(strategy, "fraction_evaluate", 1.0)
    at_least = int(setting(strategy, "min_evaluate_nodes", 0))
    return min(n_nodes, max(int(n_nodes * fraction), at_least))


def sampling_settings(strategy: Strategy) -> str:
    """Return the attributes that look like sampling or waiting, for an error message."""
    words = ("fraction", "sample", "min_", "num_", "per_round", "clients", "nodes")
    found = {
        f"{name} = {value!r}": None
        for layer in layers(strategy)
        for name, value in vars(layer).items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and any(word in name for word in words)
        and name not in _EVERYONE_EVALUATED
    }
    return ", ".join(found) or "its configure_train"


def check_numbers(strategy: Strategy, cohort_size: int, select_size: int, min_answers: int) -> None:
    """Refuse a cohort that the strategy, or one inside it, cannot work with.

    A robust strategy with fewer answers than it needs is no error, but the log says so.
    """
    for layer in layers(strategy):
        own, name = vars(layer), type(layer).__name__
        if own.get("fraction_train") == 0.0:
            raise InvalidInput(
                f"fraction_train is 0.0 in {name}, which switches training off: leave it at 1.0; "
                "cohort_size decides how many nodes train."
            )
        sampled = own.get("num_sampled_clients")
        if sampled is not None and sampled != cohort_size:
            raise InvalidInput(
                f"num_sampled_clients is {sampled} in {name} and cohort_size is {cohort_size}: the "
                "noise is made for num_sampled_clients answers; set both to the same number."
            )
        if own.get("accountant") is not None and sampled != select_size:
            raise InvalidInput(
                f"num_sampled_clients is {sampled} in {name}, but the policy selects {select_size} "
                "nodes: privacy accounting allows no over-selection; use a policy without it."
            )
        _check_robust(layer, own, name, cohort_size)
        needed, wrong = answers_needed(layer)
        if min_answers < needed and wrong:
            log.warning(
                "%s needs %d answers to withstand %d wrong, and rounds count with %d: set "
                "quorum=Quorum(min_answers=%d)",
                *(name, needed, wrong, min_answers, needed),
            )


def answers_needed(layer: Strategy) -> tuple[int, int]:
    """Return how many answers a robust strategy needs, and how many wrong ones it then withstands.

    Args:
        layer: The strategy; one that is not robust needs one answer and withstands none.
    """
    malicious = vars(layer).get("num_malicious_nodes")
    if malicious is not None and isinstance(layer, Bulyan):
        return 4 * malicious + 3, malicious
    if malicious:
        return 2 * malicious + 3, malicious
    if isinstance(layer, FedMedian):
        return 3, 1
    if isinstance(layer, FedTrimmedAvg) and layer.beta > 0.0:
        return math.ceil(1.0 / layer.beta), 1  # it drops int(beta * answers) at either end
    return 1, 0


def _check_robust(layer: Strategy, own: Mapping[str, Any], name: str, cohort_size: int) -> None:
    malicious, kept = own.get("num_malicious_nodes"), own.get("num_nodes_to_select")
    if malicious is not None and cohort_size < (needed := answers_needed(layer)[0]):
        raise InvalidInput(
            f"cohort_size must be at least {needed} for {name} with num_malicious_nodes = "
            f"{malicious}, got {cohort_size}."
        )
    if kept is not None and kept > cohort_size:
        raise InvalidInput(
            f"num_nodes_to_select is {kept} in {name} and cohort_size is {cohort_size}: it cannot "
            "keep more than answer."
        )


def setting(strategy: Strategy, name: str, default: float) -> float:
    """Return a number of the outermost layer that has it."""
    for layer in layers(strategy):
        value = getattr(layer, name, None)
        if isinstance(value, int | float):
            return float(value)
    return default


@Grid.register
class _Delegate:
    """Passes everything on to another grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


class GridView(_Delegate):
    """Shows a strategy some nodes only; refuses it if it keeps asking for more."""

    def __init__(self, grid: Grid, nodes: Sequence[int], strategy: Strategy) -> None:
        super().__init__(grid)
        self._nodes, self._strategy, self._looks = nodes, strategy, 0

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes of the view."""
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            raise UnsuitableStrategy(
                f"{name_of(self._strategy)} waits for more nodes than were chosen, and would wait "
                f"forever: look at {sampling_settings(self._strategy)}. It must take all nodes "
                "that grid.get_node_ids() shows; cohort_size decides how many these are."
            )
        return list(self._nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what the grid knows of the nodes of the view."""
        shown = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in shown]


class LoopGrid(_Delegate):
    """The grid that Flower's loop works with; turnout sends and receives."""

    def __init__(self, grid: Grid, exchange: Exchange) -> None:
        super().__init__(grid)
        self._exchange = exchange

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send the messages of a round and return the replies that count."""
        return self._exchange(list(messages), timeout)


def numbering(n_before: int, n_rounds: int) -> Callable[[logging.LogRecord], bool]:
    """Return a filter that counts the rounds in Flower's log on from those before a restart."""

    def renumber(record: logging.LogRecord) -> bool:
        if record.msg == "[ROUND %s/%s]" and isinstance(record.args, tuple):
            record.args = (cast(int, record.args[0]) + n_before, n_rounds)
        return True

    return renumber


@runtime_checkable
class _HasState(Protocol):
    """An object that gives its state and takes it back, such as an optimiser."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...


class InnerState:
    """Remembers how a strategy was made, so that it can save what has changed.

    Args:
        strategy: The inner strategy, with those inside it.
    """

    def __init__(self, strategy: Strategy) -> None:
        #: The class of each owner, and its attributes or entries.
        self._owners: dict[str, tuple[str, MutableMapping[str, Any]]] = {
            str(number): (type(layer).__name__, vars(layer))
            for number, layer in enumerate(layers(strategy))
        }
        self._unsaved: set[str] = set()
        self._before = self._prints(self._owners)

    def watch(self, name: str, config: ConfigRecord) -> None:
        """Remember a configuration as it was given: strategies may change it later."""
        self._owners[name] = ("ConfigRecord", config)
        before = {key: x for key, x in self._before.items() if not key.startswith(f"{name}.")}
        self._before = before | self._prints([name])

    def changed(self) -> tuple[dict[str, Any], list[Array]]:
        """Return what has changed: plain data by attribute, and the arrays it refers to."""
        now = self._encoded(self._owners)
        plain: dict[str, Any] = {name: None for name in self._before if name not in now}
        arrays: list[Array] = []
        for name, (value, parts) in now.items():
            if self._before.get(name) != _print(value, parts):
                plain[name] = {"value": value, "first": len(arrays), "count": len(parts)}
                arrays += parts
        return plain, arrays

    def restore(self, plain: Mapping[str, Any], arrays: list[Array]) -> None:
        """Restore saved attributes, and remove those that were removed."""
        for name, saved in plain.items():
            key, _, attribute = name.partition(".")
            owner, values = self._owners[key]
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
                    f"it has the state of {owner}.{attribute}, and there is no such object here: "
                    "make it in the constructor of the strategy."
                )

    def _prints(self, keys: Iterable[str]) -> dict[str, Any]:
        return {name: _print(*encoded) for name, encoded in self._encoded(keys).items()}

    def _encoded(self, keys: Iterable[str]) -> dict[str, tuple[Any, list[Array]]]:
        """Return what can be saved of some owners, by owner and attribute."""
        encoded = {}
        for key in keys:
            owner, values = self._owners[key]
            for attribute, value in values.items():
                if _is_fixed(value):
                    continue
                parts: list[Array] = []
                try:
                    encoded[f"{key}.{attribute}"] = (_codec(parts).encode(value), parts)
                except CannotEncode as error:
                    name = f"{owner}.{attribute}"
                    if name not in self._unsaved:
                        log.warning(
                            "%s holds a %s, which the checkpoint does not save: a restart loses it",
                            *(name, error),
                        )
                    self._unsaved.add(name)
        return encoded


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
    """Return whether a value is part of the program and not of the learned state."""
    if isinstance(value, Strategy | ModuleType | type | os.PathLike):
        return True
    return callable(value) and not hasattr(value, "state_dict")


def _codec(parts: list[Array]) -> Codec:
    """Return the codec that puts arrays and bytes into ``parts``, beside the plain data."""

    def put(array: Array) -> int:
        parts.append(array)
        return len(parts) - 1

    return Codec(
        Rule(float, lambda value, _: float(value)),  # NumPy's float64 is one, too
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


def _print(value: Any, parts: list[Array]) -> Any:
    """Return what differs if an encoded value has changed: attributes may share arrays."""
    return value, [(part.dtype, part.shape, part.tobytes()) for part in parts]
