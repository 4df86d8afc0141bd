"""Odd values for every public entry: turnout's own errors and ``TypeError``, nothing else."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np

import turnout
from turnout import data, experiment, sampling, training, worlds
from turnout.core import registry, require
from turnout.results import metrics

N_CLIENTS = 6


#: Values that no entry may stumble over.
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 10**30, -(10**400), 2**63, 0.5, -0.0, 1e308, 5e-324),
    *(math.nan, math.inf, -math.inf, 1j, Fraction(1, 3), "", "x", ":", "e3cs", "a:b", "random"),
    *("\x00", "\ud800", b"x", [], [1], [[1], [1, 2]], (), (1, "x"), {}, {"x": 1}, {1: 2}, set()),
    *(np.array(3), np.array([]), np.array([np.nan]), np.array(["x"]), np.array([{}], dtype=object)),
    *(np.ones(N_CLIENTS), np.ones(N_CLIENTS, dtype=bool), np.ones((2, 2, 2)), np.arange(3)),
    *(np.float32(0.3), np.int8(-3), np.bool_(True), np.datetime64("2020-01-01"), np.complex64(1)),
    *(object(), object, lambda *_: None, range(3), iter([1]), 10**4000, Ellipsis),
)


def entries() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Yield name, function and sound arguments of each entry."""
    packages = (turnout, data, experiment, metrics, sampling, training, worlds)
    skipped = {"register", "Selector", "Schedule", "simulate", "train", "open_runs", "TextFile"}
    skipped |= {"rounds", "collect"}  # of records, which only the round loop makes
    public = [(package, name) for package in packages for name in package.__all__]
    moved = ("Bounds", "Constant", "ExponentialDecay", "Lemma1", "Linear", "Roster", "StepAfter")
    for package, name in [*public, *((turnout, name) for name in (*moved, "StepDecay"))]:
        entry = getattr(package, name)
        is_other = isinstance(entry, type) and issubclass(entry, BaseException | Enum)
        is_abstract = inspect.isabstract(entry) or getattr(entry, "_is_protocol", False)
        if callable(entry) and not is_other and not is_abstract and name not in skipped:
            yield f"{package.__name__}.{name}", entry, _sound_arrays(entry)
    for name in turnout.list_selectors(plugins=False):
        make = _maker(name)
        yield f"make({name})", make, registry.find(name).default_parameters()
    yield from _methods()


def _sound_arrays(entry: Callable[..., Any]) -> dict[str, Any]:
    """Return sound arguments of a function of arrays, by their names."""
    if not {"sampling", "metrics"}.intersection(entry.__module__.split(".")):
        return {}
    record = {"clients": np.array([0, 2, 1]), "offsets": np.array([0, 2, 3])}
    matrix = np.array([[True, False, True], [False, True, True]])
    sound = {
        **record,
        **{"completed": np.array([True, False, True]), "n_clients": 3, "n_rounds": 2},
        **{"success": matrix, "played": matrix * 0.5, "cohort_size": 1, "counts": np.arange(3)},
        **{"status": np.array([0, 1, 3]), "spent": np.ones(3), "values": np.array([0.1, 0.7])},
        **{"log_weight": np.zeros(4), "probability": np.full(4, 0.5), "weight": np.ones(4)},
        **{"cost": np.arange(4.0), "gain": np.ones(4), "price": 1.0, "score": np.arange(4.0)},
        **{"size": 2, "n": 4, "m": 2, "k": 1, "target": 0.5, "rng": np.random.default_rng(0)},
        "ctx": turnout.RoundContext(
            0, 2, np.ones(N_CLIENTS, dtype=bool), columns={"num_samples": np.ones(N_CLIENTS)}
        ),
    }
    return {name: sound[name] for name in inspect.signature(entry).parameters if name in sound}


def _maker(name: str) -> Callable[..., Any]:
    def make(**parameters: Any) -> None:
        selector = turnout.make(name, **parameters)
        if name != "nccb":
            selector.reset(3)

    return make


def _methods() -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    ctx = turnout.RoundContext(0, 2, np.ones(N_CLIENTS, dtype=bool))
    rng = np.random.default_rng(0)
    for name in ("random", "e3cs", "round-robin"):
        selector = turnout.make(name)
        selector.reset(N_CLIENTS)
        selection = selector.select(ctx, rng)
        outcome = turnout.Outcome([0, 0], [1.0, 1.0])
        yield f"{name}.select", selector.select, {"ctx": ctx, "rng": rng}
        yield f"{name}.observe", selector.observe, {"selection": selection, "outcome": outcome}
        for method in ("reset", "grow", "load_state", "prepare"):
            yield f"{name}.{method}", getattr(selector.clone(), method), {}
    duration, survived = np.array([1.0, 2.0]), np.array([True, False])
    for policy in (worlds.FixedDeadline(5.0), worlds.FirstK(), worlds.OverSelect()):
        sound = {"duration": duration, "survived": survived, "cohort_size": 1}
        yield f"{policy}.close", policy.close, sound | {"deadline": 5.0}
    roster = turnout.Roster(["a", "b"])
    for method in ("join", "leave", "index_of", "id_of", "indices", "available", "from_json"):
        yield f"Roster.{method}", getattr(roster, method), {}
    sizes = {"n_clients": 5, "cohort_size": 2, "n_rounds": 2, "seed": 0}
    yield "simulate", turnout.simulate, {"selector": "random", "environment": "e3cs", **sizes}


def arguments_of(entry: Callable[..., Any], sound: dict[str, Any], rng: Any) -> dict[str, Any]:
    """Return arguments by name, about half of them odd."""
    arguments = {}
    for parameter in inspect.signature(entry).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        name = parameter.name
        is_optional = name in sound or parameter.default is not parameter.empty
        if is_optional and rng.random() < 0.6:
            if name in sound:
                arguments[name] = sound[name]
        else:
            arguments[name] = ODD[rng.integers(len(ODD))]
    for name, value in sound.items():
        if name not in arguments:
            arguments[name] = value if rng.random() < 0.6 else ODD[rng.integers(len(ODD))]
    return arguments


def shown(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={require.shown(value)[:60]}" for name, value in arguments.items())


def offence(entry: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """Return what an entry did wrong with some arguments; empty if nothing."""
    positional = [
        arguments.pop(p.name)
        for p in inspect.signature(entry).parameters.values()
        if p.kind is p.POSITIONAL_ONLY and p.name in arguments
    ]
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            entry(*positional, **arguments)
    except (turnout.TurnoutError, TypeError):
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    return ""


def test_odd_values_raise_nothing_but_our_errors(tmp_path, monkeypatch, n_tries):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(13)
    table = list(entries())
    offences = {}
    for number in range(n_tries(5_000, 100_000)):
        name, entry, sound = table[number % len(table)]
        arguments = arguments_of(entry, sound, rng)
        wrong = offence(entry, dict(arguments))
        if wrong:
            offences.setdefault((name, wrong), shown(arguments))
    assert not offences, "\n".join(f"{key}: {text}" for key, text in offences.items())
