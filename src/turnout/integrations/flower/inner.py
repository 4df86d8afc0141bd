"""The inner strategy: it must take everyone chosen, wait for nobody, and get the numbers it needs.

Flower's strategies sample by ``fraction_train`` and wait for ``min_train_nodes`` and
``min_available_nodes``. While they prepare a round these are set to "everyone in sight", and put
back afterwards. ``min_available_nodes`` keeps a meaning: the first round waits for so many nodes,
as long as ``wait_for_nodes_s`` allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from flwr.serverapp.strategy import Bulyan, Strategy

from turnout.errors import InvalidInput, TurnoutError

#: What Flower's loop calls on a strategy.
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
    found: list[Strategy] = []
    ahead = [strategy]
    while ahead:
        layer = ahead.pop(0)
        if any(layer is one for one in found):
            continue
        found.append(layer)
        ahead += [value for value in vars(layer).values() if isinstance(value, Strategy)]
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


def evaluates(strategy: Strategy) -> bool:
    """Return whether a strategy evaluates on clients at all."""
    return _setting(strategy, "fraction_evaluate", 1.0) != 0.0


def evaluation_size(strategy: Strategy, n_nodes: int) -> int:
    """Return how many of the nodes a strategy evaluates on."""
    fraction = _setting(strategy, "fraction_evaluate", 1.0)
    at_least = int(_setting(strategy, "min_evaluate_nodes", 0))
    return min(n_nodes, max(int(n_nodes * fraction), at_least))


def first_wait(strategy: Strategy, cohort_size: int) -> int:
    """Return how many nodes the first round waits for."""
    return max(cohort_size, int(_setting(strategy, "min_available_nodes", 0)))


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


def check_numbers(strategy: Strategy, cohort_size: int, select_size: int) -> None:
    """Refuse a cohort that the strategy, or one inside it, cannot work with."""
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


def _check_robust(layer: Strategy, own: Mapping[str, Any], name: str, cohort_size: int) -> None:
    malicious, kept = own.get("num_malicious_nodes"), own.get("num_nodes_to_select")
    if malicious is not None:
        is_bulyan = isinstance(layer, Bulyan)
        needed = 4 * malicious + 3 if is_bulyan else 2 * malicious + 3 if malicious else 1
        if cohort_size < needed:
            raise InvalidInput(
                f"cohort_size must be at least {needed} for {name} with num_malicious_nodes = "
                f"{malicious}, got {cohort_size}."
            )
    if kept is not None and kept > cohort_size:
        raise InvalidInput(
            f"num_nodes_to_select is {kept} in {name} and cohort_size is {cohort_size}: it cannot "
            "keep more than answer."
        )


def refuse_waiting(strategy: Strategy) -> None:
    """Raise: the strategy keeps looking for nodes that will not come."""
    raise UnsuitableStrategy(
        f"{name_of(strategy)} waits for more nodes than were chosen, and would wait for ever: look "
        f"at {sampling_settings(strategy)}. It must take all nodes that grid.get_node_ids() shows; "
        "how many that are is decided by cohort_size."
    )


def refuse_sampling(strategy: Strategy, n_chosen: int, n_messages: int, n_hit: int) -> None:
    """Raise: the strategy does not write to exactly the chosen nodes."""
    raise UnsuitableStrategy(
        f"{name_of(strategy)} samples by itself: {n_chosen} nodes were chosen, and it wrote "
        f"{n_messages} messages, to {n_hit} of them. Look at {sampling_settings(strategy)}: "
        "configure_train must write one message to every node that grid.get_node_ids() shows."
    )


def _setting(strategy: Strategy, name: str, default: float) -> float:
    for layer in layers(strategy):
        value = getattr(layer, name, None)
        if isinstance(value, int | float):
            return float(value)
    return default
