"""Tables of scores on a narrow terminal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from turnout.cli import app
from turnout.cli.output import console, print_json
from turnout.data import ArrayFile, DataMissing

SIZES = ("--rounds", "6", "--clients", "20", "--cohort", "4", "--seeds", "3", "--jobs", "1")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def compared(monkeypatch: pytest.MonkeyPatch, width: int, *arguments: str) -> list[str]:
    monkeypatch.setattr(console, "_width", width)
    command = ["compare", "random", "e3cs", *SIZES, "--out", "a", *arguments]
    result: Any = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    lines: list[str] = result.stdout.splitlines()
    return lines


def headings_in(lines: list[str]) -> list[str]:
    return [line for line in lines if "selector" in line and "┃" in line]


@pytest.mark.parametrize("width", [80, 130])
def test_one_table_fits_and_has_the_time_to_the_highest_target_first(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    options = ("--train", "--target", "0.2", "--target", "0.9")
    lines = compared(monkeypatch, width, *options)
    assert max(map(len, lines)) <= width
    (heading,) = headings_in(lines)
    columns = [column.strip() for column in heading.strip("┃").split("┃")]
    assert columns[0] == "selector"
    assert columns[1].startswith("time to 0.9 (")
    assert columns[2:5] == ["vs random", "least served", "accuracy"]
    end = next(i for i, line in enumerate(lines) if line.startswith("└"))
    assert lines[end + 1].startswith("No run reached 90 %.")
    assert lines[-1].startswith("Run folder")
    told = " ".join(lines)
    assert "Not shown: loss; " in told
    assert "--explain" in told
    assert "is better)" not in told  # explanations come when they are asked for


def test_explanations_and_differences_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--train", "--target", "0.2", "--explain")
    lines = compared(monkeypatch, 80, *options)
    assert max(map(len, lines)) <= 80
    assert len(headings_in(lines)) == 2
    text = "\n".join(lines)
    for part in ("Difference to random, paired by seed", "vs random: ", "accuracy: Share of the"):
        assert part in text
    assert "\nloss: " not in text  # what is not shown is not explained
    assert "More: --explain" not in text


def test_columns_that_were_asked_for_are_all_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = "success_ratio,cep,jain_of_counts,total_time_s,round_time_s"
    text = "\n".join(compared(monkeypatch, 60, "--metrics", keys))
    assert "Not shown" not in text
    assert all(name in text for name in ("success", "CEP", "Jain", "time", "round"))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DataMissing, match=r"^nope\.npz does not exist\. Give the path of a file"):
        ArrayFile("nope.npz").find()


def test_printed_json_has_null_for_numbers_that_are_not_finite(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({"mean": math.nan, "ends": [1.0, -math.inf], "n": 3, "label": "nan"})
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"mean": None, "ends": [1.0, None], "n": 3, "label": "nan"}
