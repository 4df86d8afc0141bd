"""Fields that say what they may hold."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from turnout.domains import (
    CheckedFields,
    Count,
    Fraction,
    Index,
    NonNegative,
    PositiveOrInfinite,
    choice,
)
from turnout.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Sample(CheckedFields):
    name: str = ""
    seed: Index = 0
    size: Count | None = None
    share: Fraction = 0.5
    weight: NonNegative = 1.0
    seconds: PositiveOrInfinite = math.inf
    network: Literal["3g", "5g"] = "5g"
    order: Annotated[str, choice("up", "down")] = "up"
    words: tuple[str, ...] | Literal["english"] = ()


@dataclass(frozen=True, slots=True)
class Larger(Sample):
    more: Count = 1


def test_what_is_inside_is_kept():
    sample = Sample("a", 3, 2, 1.0, 0.0, 2.5, "3g", "down", ("the",))
    assert (sample.seed, sample.size, sample.order) == (3, 2, "down")


@pytest.mark.parametrize("cls", [Sample, Larger])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -1),
        ("size", 0),
        ("share", 1.1),
        ("weight", -0.5),
        ("seconds", 0.0),
        ("network", "4g"),
        ("order", "left"),
        ("share", None),
    ],
)
def test_what_is_outside_is_refused(cls, field, value):
    with pytest.raises(InvalidInput, match=f"^{field} must be ") as error:
        cls(**{field: value})
    assert error.value.field == field


def test_fields_of_a_subclass_are_checked_too():
    with pytest.raises(InvalidInput, match=r"^more must be an integer >= 1, got 0\.$"):
        Larger(more=0)
