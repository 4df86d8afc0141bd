"""Tables of scores on a narrow terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from turnout.cli import app
from turnout.cli.output import console
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


def test_a_narrow_terminal_gets_one_table_of_means_and_one_of_differences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ("--train", "--target", "0.5", "--target", "0.9")
    lines = compared(monkeypatch, 80, *options)
    assert max(map(len, lines)) <= 80
    headings = [line for line in lines if "selector" in line and "┃" in line]
    assert len(headings) == 2
    assert all(name in headings[0] for name in ("accuracy", "success", "time to 0.9"))
    told = " ".join(lines)
    assert "Not shown: loss; " in told
    assert "\nloss: " not in "\n".join(lines)  # what is not shown is not explained
    wide = [line for line in compared(monkeypatch, 200, *options) if "┃" in line]
    assert "rounds to 0.5" in wide[0]
    assert len(wide) == 2


def test_columns_that_were_asked_for_are_all_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = "success_ratio,cep,jain_of_counts,total_time_s,round_time_s"
    text = "\n".join(compared(monkeypatch, 60, "--metrics", keys))
    assert "Not shown" not in text
    assert all(name in text for name in ("success", "CEP", "Jain", "time", "round"))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DataMissing, match=r"^nope\.npz does not exist\. Give the path of a file"):
        ArrayFile("nope.npz").find()
