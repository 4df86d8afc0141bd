"""What people write: ``name:key=value,...``, and models by their path."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from turnout import InvalidInput
from turnout.experiment import ConfigError, Experiment
from turnout.experiment.codec import decode
from turnout.experiment.variants import parse_parameters
from turnout.training import Custom, Mlp, Model


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("", {}),
        ("quota=.25", {"quota": 0.25}),
        ("a=5.,b=-.5e3,c=+1", {"a": 5.0, "b": -500.0, "c": 1}),
        ("a=1,b=true,c=inf,d=1e3", {"a": 1, "b": True, "c": math.inf, "d": 1000.0}),
        ("a = dependent-rounding , b=2", {"a": "dependent-rounding", "b": 2}),
        (
            "a=../x.npz,b=~/y,c=./z,d=mine:Net",
            {"a": "../x.npz", "b": "~/y", "c": "./z", "d": "mine:Net"},
        ),
        ('a=\'b, c\',d="e\\"=f"', {"a": "b, c", "d": 'e"=f'}),
        ("a=[],b=[1,.5,word],c=[[1,2],[3]]", {"a": [], "b": [1, 0.5, "word"], "c": [[1, 2], [3]]}),
        (
            "q={schedule=step-decay,start=.1,at=[3, 6]},x={}",
            {"q": {"schedule": "step-decay", "start": 0.1, "at": [3, 6]}, "x": {}},
        ),
    ],
)
def test_parameters_as_text(text: str, table: dict[str, Any]) -> None:
    assert parse_parameters(text) == table


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("quota", ["'quota'", "is not key=value"]),
        ("a=1,", ["'' in 'a=1,'", "is not key=value"]),
        ("a=1,,b=2", ["is not key=value"]),
        ("1a=1", ["'1a=1'"]),
        ("a=", ["a= is not key=value"]),
        ("a=my data", ["a=my data", 'key="a b"']),
        ("a={b=}", ["b= is not key=value"]),
        ("a=1,a=2", ["a: occurs twice"]),
        ("a=[1", ["a=[1"]),
        ("a={b=1", ["a={b=1"]),
        ('a="x', ['a="x']),
        ("a=1 # no", ["a=1 # no"]),
        ("a=1\nb=2", ["a=1\nb=2"]),
        ("a=007", ["a=007"]),
    ],
)
def test_text_that_is_no_parameter_is_refused(text: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_parameters(text)
    for part in parts:
        assert part in str(raised.value)


def test_a_path_may_be_a_model() -> None:
    assert decode("torch.nn:Linear", Model) == Custom("torch.nn:Linear")
    table = {"kind": "torch.nn:Linear", "in_features": 3}
    assert decode(table, Model) == Custom("torch.nn:Linear", {"in_features": 3})
    assert decode({"kind": "turnout.training:Mlp", "hidden": [3]}, Model) == Mlp((3,))


def test_a_file_may_name_a_model_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    text = 'selectors = ["random"]\n[training]\nmodel = "torch.nn:Linear"\n'
    file.write_text(text, encoding="utf-8")
    experiment = Experiment.from_toml(file)
    assert experiment.training is not None
    assert experiment.training.model == Custom("torch.nn:Linear")
    assert Experiment.from_table(experiment.table()) == experiment
    file.write_text(text.replace("torch.nn:", "no_such_module:"), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"line 3: training.model.kind: .*cannot be imported"):
        Experiment.from_toml(file)
