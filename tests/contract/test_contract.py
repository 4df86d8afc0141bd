from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import turnout
from turnout import StepAfter
from turnout.testing import CHECKS, name_of_check, yield_checks


@dataclass(frozen=True)
class Variant:
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    expected_failures: Mapping[str, str] | None = None  # None = what the class declares
    effort: float = 1.0

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.name}({inside})"


# A network is trained in every observe; a small memory and few steps keep that short.
SMALL_NETWORK = {"clusters": 3, "threshold": 2, "width": 8, "memory": 32, "steps": 3}
UNIFORM = {"learns": "quota 1 gives everyone the same chance"}
LOOP = {"vectorised": "DepRound is published as a loop over the clients"}
CAPPED = {"learns": "after 3 participations nobody is preferred any more"}

REGISTERED = [Variant(name) for name in turnout.names() if name != "nccb"]
NEURAL = [
    Variant("nccb", SMALL_NETWORK | {"bonus": bonus}, effort=0.1)
    for bonus in ("exact", "diagonal")
    if "nccb" in turnout.names()
]
PARAMETERS: list[tuple[str, dict[str, Any], Mapping[str, str] | None]] = [
    ("e3cs", {"quota": 0.0}, None),
    ("e3cs", {"quota": 1.0}, UNIFORM),
    ("e3cs", {"quota": StepAfter(625, before=0.0, after=1.0)}, None),
    ("e3cs", {"draw": "dependent-rounding"}, LOOP),
    ("e3cs", {"draw": "multinomial"}, None),
    ("e3cs", {"estimate": "gain"}, None),
    ("e3cs", {"estimate": "gain", "quota": 0.0}, None),
    ("e3cs", {"eta": "theorem-1", "horizon": 300}, None),
    ("fedcs", {"by": "expected-duration"}, None),
    ("fedcs", {"by": "packing"}, None),
    ("data-weighted", {"replacement": True}, None),
    ("dirichlet", {"concentration": 0.5}, None),
    ("k-linucb", {"standardize": False, "explore": 500.0}, None),  # raw rewards are hundreds
    ("oort", {"max_participation": 3}, CAPPED),
    ("oort", {"normalize": False}, None),
    ("oort", {"preferred_duration": 2.0}, None),
    ("rbcs-f", {"clip": False}, None),
]
VARIANTS = [
    *REGISTERED,
    *NEURAL,
    *(Variant(name, given, expected, effort=0.3) for name, given, expected in PARAMETERS),
]


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


def test_every_registered_selector_is_checked() -> None:
    assert {variant.name for variant in VARIANTS} == set(turnout.names())
