from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import turnout
from turnout import StepAfter
from turnout.core.registry import find
from turnout.testing import CHECKS, ToyFederation, name_of_check, yield_checks


@dataclass(frozen=True)
class Variant:
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    expected_failures: Mapping[str, str] | None = None  # None = what the class declares
    effort: float = 1.0

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.name}({inside})"


# A network is trained in every observe; a small memory and one step keep that short.
SMALL_NETWORK = {"clusters": 3, "threshold": 2, "width": 8, "memory": 32, "steps": 1}
UNIFORM = {"learns": "quota 1 gives everyone the same chance"}
EQUAL = {"learns": "floor 1 and cap 1 give everyone the same places"}
REPLACED = {"replacement": True}
LOOP = {"vectorised": "DepRound is published as a loop over the clients"}
CAPPED = {"learns": "after 3 participations nobody is preferred any more"}

EFFORT = {"cpow-d": 0.15, "fedcor": 0.15}  # the code of pow-d; trains a process every ten rounds


def effort_of(name: str) -> float:
    """Half for those who learn nothing: their state cannot drift in a long run."""
    learns = find(name).observe is not turnout.Selector.observe
    return EFFORT.get(name, 1.0 if learns else 0.5)


REGISTERED = [
    Variant(name, effort=effort_of(name)) for name in turnout.list_selectors() if name != "nccb"
]
NEURAL = [
    Variant("nccb", SMALL_NETWORK | {"bonus": bonus}, effort=0.05)
    for bonus in ("exact", "diagonal")
    if "nccb" in turnout.list_selectors()
]
OTHERS = [
    Variant("e3cs", {"quota": 0.0}),  # weights drift furthest apart: the full 5,000 rounds
    Variant("e3cs", {"quota": 1.0}, UNIFORM, effort=0.15),
    Variant("e3cs", {"quota": StepAfter(625, before=0.0, after=1.0)}, effort=0.15),
    Variant("e3cs", {"draw": "dependent-rounding"}, LOOP, effort=0.15),
    Variant("e3cs", {"draw": "multinomial"}, effort=0.15),
    Variant("e3cs", {"estimate": "gain"}, effort=0.15),
    Variant("e3cs", {"estimate": "gain", "quota": 0.0}, effort=0.3),
    Variant("e3cs", {"eta": "theorem-1", "horizon": 300}, effort=0.15),
    Variant("e3cs", {"share": 0.001, "quota": 0.0}, effort=0.15),
    Variant("fedcor", {"warmup": 1, "interval": 3, "iterations": 3}, effort=0.15),
    Variant("fedcs", {"by": "expected-duration"}, effort=0.15),
    Variant("fedcs", {"by": "packing"}, effort=0.15),
    Variant("fedcs", {"by": "packing", "request": 0.5}, effort=0.15),
    Variant("data-weighted", {"replacement": True}, effort=0.15),
    Variant("dirichlet", {"concentration": 0.5}, effort=0.15),
    Variant("divfl", {"sampled": None, "candidates": 40}, effort=0.15),
    Variant("guarded", {"inner": "oort"}, {}, effort=0.15),
    Variant("guarded", {"inner": "pow-d", "floor": 1.0, "cap": 1.0}, EQUAL, effort=0.15),
    Variant("guarded", {"inner": "e3cs", "floor": 0.0, "cap": math.inf}, {}, effort=0.15),
    Variant("guarded", {"inner": "data-weighted", "inner_parameters": REPLACED}, effort=0.15),
    Variant("mix", {"members": {"pow-d": 0.5, "e3cs": 0.5}}, effort=0.15),
    Variant("k-linucb", {"standardize": False, "explore": 500.0}, effort=0.15),  # raw rewards
    Variant("oort", {"max_participation": 3}, CAPPED, effort=0.15),
    Variant("oort", {"normalize": False}, effort=0.15),
    Variant("oort", {"rules": "fedscale", "fairness": 0.3}, effort=0.15),
    Variant("oort", {"preferred_duration": 2.0}, effort=0.15),
    Variant("pace", {"alert": True, "doubt": True}, effort=0.15),
    Variant("rbcs-f", {"clip": False}, effort=0.15),
    Variant("ucb-cs", {"stored_index": True}, effort=0.15),
]
VARIANTS = [*REGISTERED, *NEURAL, *OTHERS]


@pytest.mark.parametrize("number", range(1, len(CHECKS) + 1), ids=map(name_of_check, CHECKS))
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_contract(variant: Variant, number: int) -> None:
    checks = yield_checks(
        lambda: turnout.make(variant.name, **variant.parameters),
        expected_failures=variant.expected_failures,
        effort=variant.effort,
    )
    _, check = list(checks)[number - 1]
    check()


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_probabilities_are_reported_as_declared(variant: Variant) -> None:
    selector = turnout.make(variant.name, **variant.parameters)
    selector.prepare(8)
    selections = ToyFederation(8, 3).play(selector, range(4))
    reported = {each.probability is not None for each in selections if each.clients.size}
    assert reported == {selector.reports_probability}


def test_every_registered_selector_is_checked() -> None:
    assert {variant.name for variant in VARIANTS} == set(turnout.list_selectors())
