"""Errors name the field that they are about, as data and not only in their text."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import turnout
from turnout import InvalidInput
from turnout.core import require
from turnout.core.schedules import StepAfter, StepDecay, at_round
from turnout.training import Custom, LocalWork, Training
from turnout.worlds import ByClass, Diurnal, FirstK

#: Where the fields of an object are checked.
CHECKING = ("__init__", "__post_init__", "check_parameters")


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("rounds", lambda: require.integer("rounds", 0, minimum=1)),
        ("rate", lambda: require.fraction("rate", 2)),
        ("fair", lambda: require.boolean("fair", "no")),
        ("draw", lambda: require.choice("draw", "x", ("a", "b"))),
        ("quota", lambda: at_round("quota", StepAfter(3, 0.0, 2.0), 5, maximum=1.0)),
        ("explore_decay", lambda: turnout.make("oort", explore_decay=1.5)),
        ("width", lambda: turnout.make("nccb", width=3)),
        ("at", lambda: StepDecay(1.0, 3)),  # type: ignore[arg-type]
        ("amplitude", lambda: Diurnal(rate=0.9, amplitude=0.5)),
        ("rates", lambda: ByClass(())),
        ("count", lambda: FirstK(count=2, share=0.5)),
        ("path", lambda: Custom("nowhere")),
        ("epochs", lambda: LocalWork(epochs=1, steps=1)),
        ("model", lambda: Training(model="mlp")),  # type: ignore[arg-type]
        ("clients", lambda: turnout.Selection(0, np.array([2, 1]))),
    ],
)
def test_errors_carry_their_field(field, bad) -> None:
    with pytest.raises(InvalidInput) as raised:
        bad()
    assert raised.value.field == field


def test_an_error_about_no_single_field_has_none() -> None:
    assert InvalidInput("two arrays differ").field is None


def test_the_field_survives_a_process() -> None:
    again = pickle.loads(pickle.dumps(InvalidInput("rate is 2", field="rate")))
    assert (str(again), again.field) == ("rate is 2", "rate")


def constructor_errors() -> Iterator[tuple[str, ast.Call]]:
    root = Path(turnout.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name in CHECKING:
                for call in ast.walk(node):
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "InvalidInput":
                        yield f"{path.relative_to(root).as_posix()}:{call.lineno}", call


@pytest.mark.slow
def test_every_error_of_a_constructor_says_its_field() -> None:
    errors = list(constructor_errors())
    assert len(errors) > 20
    silent = [
        place for place, call in errors if "field" not in {word.arg for word in call.keywords}
    ]
    assert silent == []
