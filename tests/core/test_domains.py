"""Fields that say what they may hold."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from turnout.core.domains import (
    CheckedFields,
    Count,
    Fraction,
    Index,
    NonNegative,
    Positive,
    PositiveOrInfinite,
    choice,
    integer,
    number,
)
from turnout.core.errors import InvalidInput


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
    rate: Positive | Literal["auto"] = 1.0


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
        ("rate", "manual"),
        ("rate", None),
    ],
)
def test_what_is_outside_is_refused(cls, field, value):
    with pytest.raises(InvalidInput, match=f"^{field} must be ") as error:
        cls(**{field: value})
    assert error.value.field == field


def test_fields_of_a_subclass_are_checked_too():
    with pytest.raises(InvalidInput, match=r"^more must be an integer >= 1, got 0\.$"):
        Larger(more=0)


def test_a_text_beside_a_number_is_allowed():
    assert Sample(rate="auto").rate == "auto"


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (integer(2), "integer >= 2"),
        (number(), "number"),
        (number(minimum=0.0), "number >= 0"),
        (number(above=1.0, or_infinite=True), "number > 1 or inf"),
        (number(above=0.0, maximum=1.0), "number in (0, 1]"),
        (number(minimum=0.5, maximum=2.0), "number in [0.5, 2]"),
        (number(minimum=0.0, below=1.0), "number in [0, 1)"),
        (integer(1, 512), "integer in [1, 512]"),
        (choice("a"), '"a"'),
        (choice("a", "b", "c"), '"a", "b" or "c"'),
    ],
)
def test_a_domain_has_words(domain, words):
    assert domain.words == words


@pytest.mark.parametrize(
    ("domain", "value", "message"),
    [
        (number(minimum=0.0, below=1.0), 1.0, "a finite number >= 0.0 and < 1.0, got 1.0"),
        (number(above=0.0, maximum=1.0), 0.0, "a finite number > 0.0 and <= 1.0, got 0.0"),
        (integer(1, 512), 513, "an integer >= 1 and <= 512, got 513"),
    ],
)
def test_a_domain_says_what_it_wants(domain, value, message):
    with pytest.raises(InvalidInput) as error:
        domain("x", value)
    assert str(error.value) == f"x must be {message}."
