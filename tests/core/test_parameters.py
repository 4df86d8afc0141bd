"""The documented domain of every parameter is the one that is enforced, in both directions."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import turnout
from turnout import Constant
from turnout.core.describe import describe

#: The words in which a docstring says what is allowed, joined by commas and "or".
WORDS = re.compile(
    r'"(?P<text>[^"]+)"|(?P<constant>True|False|None|inf\b)|(?P<schedule>schedule)'
    r"|(?P<even>even )?(?P<kind>number|integer)"
    r"(?: (?P<sign>>=|>) (?P<bound>[\d.e-]+)"
    r"| in (?P<left>[\[(])(?P<low>[\d.]+), (?P<high>[\d.]+)\])"
)

NUMBERS = (-math.inf, -1.0, -1, -1e-12, 0, 0.0, 1e-12, 1e-9, 0.5, 1, 1.0, 1.5, 2, 3, 4, 1e12)
VALUES = (
    *NUMBERS,
    *(math.nan, math.inf, np.float64("nan"), np.float64(0.5), np.int64(4), 2**70),
    *(None, True, False, np.True_, 1j, np.array(0.5), np.array([0.5, 0.5])),
    *("", "no", "yes", "none", "0.5", "exact", "packing", "theorem-1", b"exact"),
    *((), [], [0.5], {}, {"schedule": "constant", "value": 0.5}, object()),
    *(Constant(number) for number in (*NUMBERS, math.nan, None, "0.5")),
    *(Constant, float, turnout.StepAfter(5, before=0.5, after=0.5)),
)
#: Parameters that another one needs to be of any use.
OTHERS = {("e3cs", "eta"): {"horizon": 9}, ("fedcs", "request"): {"by": "packing"}}
#: Not words but a selector's name, its parameters or a list: test_guarded.py, test_mix.py and
#: test_tifl.py of tests/selectors.
ELSEWHERE = {("guarded", "inner"), ("guarded", "inner_parameters")}
ELSEWHERE |= {("tifl", "probabilities"), ("mix", "members"), ("mix", "parameters_of")}
CASES = [
    pytest.param(name, parameter, id=f"{name}-{parameter.name}")
    for name in turnout.list_selectors()
    for parameter in describe(name).parameters
    if (name, parameter.name) not in ELSEWHERE
]


def is_allowed(value, words):
    """Return whether one of the documented words admits the value."""
    return any(admits(word, value, words) for word in words)


def admits(word, value, words):
    if word["schedule"]:
        numbers = [other for other in words if other["kind"]]
        is_schedule = isinstance(value, Constant | turnout.StepAfter)
        return is_schedule and is_allowed(value(0), numbers)
    if word["text"]:
        return isinstance(value, str) and value == word["text"]
    if word["constant"] == "inf":
        return type(value) is float and value == math.inf
    if word["constant"]:
        return value is {"True": True, "False": False, "None": None}[word["constant"]]
    kinds = int | np.integer if word["kind"] == "integer" else int | float | np.number
    if isinstance(value, bool | complex) or not isinstance(value, kinds):
        return False
    if word["even"] and value % 2:
        return False
    low = float(word["bound"] or word["low"])
    above = value > low if word["sign"] == ">" or word["left"] == "(" else value >= low
    return above and value <= float(word["high"] or "inf") and math.isfinite(value)


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_what_is_documented_is_what_is_enforced(name, parameter):
    words = list(WORDS.finditer(parameter.allowed))
    assert words, parameter.allowed
    assert set(re.split("(, | or )", WORDS.sub("", parameter.allowed))) <= {"", ", ", " or "}
    assert is_allowed(parameter.default, words)
    others = OTHERS.get((name, parameter.name), {})
    values = [*VALUES, *(word["text"] for word in words if word["text"])]
    assert {is_allowed(value, words) for value in values} == {True, False}
    refused = {i: refused_field(name, {**others, parameter.name: v}) for i, v in enumerate(values)}
    expected = {i: None if is_allowed(v, words) else parameter.name for i, v in enumerate(values)}
    assert refused == expected, [values[i] for i in refused if refused[i] != expected[i]]


def refused_field(name, parameters):
    """Return the parameter that is refused, None if all are accepted."""
    try:
        turnout.make(name, **parameters)
    except turnout.InvalidInput as error:
        return error.field
    return None


def test_a_word_is_no_boolean():
    with pytest.raises(turnout.InvalidInput, match=r"standardize must be True or False, got 'no'"):
        turnout.make("nccb", standardize="no")


ADVICE = re.compile(r'(?:Keep|Try|Start with) "?([\w-]+(?:\.\d+)?)"?(?: first|[.;:,]| unless)')
ADVISED = [
    pytest.param(parameter.default, advice[1], id=f"{name}-{parameter.name}")
    for name in turnout.list_selectors(plugins=False)
    for parameter in describe(name).parameters
    if (advice := ADVICE.search(parameter.meaning))
]


@pytest.mark.parametrize(("default", "advised"), ADVISED)
def test_defaults_are_what_is_advised(default, advised):
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    assert (default if is_number else str(default)) == (float(advised) if is_number else advised)


def test_most_parameters_have_advice():
    assert len(ADVISED) > 0.6 * len(CASES)
