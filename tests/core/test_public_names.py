"""The public face: what ``turnout`` exports, and what earlier versions exported."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import turnout
from turnout.core.names import import_object
from turnout.core.version import _MOVED, current_path

EXPORTS = [
    "Environment",
    "Experiment",
    "Outcome",
    "Purpose",
    "Remote",
    "RoundContext",
    "Selection",
    "Selector",
    "Status",
    "TurnoutError",
    "compare",
    "fit",
    "list_selectors",
    "load",
    "make",
    "open_runs",
    "register",
    "save",
    "simulate",
    "stream",
    "train",
]
PACKAGES = [
    *("cli", "core", "data", "experiment", "live", "report", "results", "sampling", "selectors"),
    *("serve", "studies", "testing", "training", "twin", "worlds"),
]
#: Exported by 0.1 and still found, but no longer listed.
EARLIER = [
    *("Bounds", "Constant", "ExponentialDecay", "InvalidInput", "Lemma1", "Linear"),
    *("MissingColumn", "MissingExtra", "MissingPoll", "NotReset", "Roster", "Schedule"),
    *("StateFileError", "StepAfter", "StepDecay", "UnknownParameter", "UnknownSelector", "names"),
]


def test_the_exports_are_these():
    assert turnout.__all__ == EXPORTS


def test_dir_lists_exports_and_packages_only():
    assert dir(turnout) == sorted([*EXPORTS, *PACKAGES, "__version__"])


@pytest.mark.parametrize("name", [*EXPORTS, *PACKAGES, *EARLIER])
def test_every_name_is_found(name: str):
    assert getattr(turnout, name) is not None


def test_names_is_the_earlier_name_of_list_selectors():
    assert turnout.names is turnout.list_selectors


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match="Did you mean 'simulate'"):
        turnout.simulat  # noqa: B018


@pytest.mark.parametrize("old", sorted(_MOVED.keys() - {"remote.selector"}))
def test_an_old_path_is_the_same_module_as_the_new_one(old: str):
    new = current_path(f"turnout.{old}")
    module = importlib.import_module(f"turnout.{old}")
    assert module is importlib.import_module(new)
    assert module.__spec__ is not None
    assert module.__spec__.name == module.__name__ == new


def test_what_is_below_an_old_path_is_the_same_module_too():
    old = importlib.import_module("turnout.environments.timing")
    assert old is importlib.import_module("turnout.worlds.timing")


def test_a_class_that_is_named_by_an_old_path_is_found():
    assert import_object("turnout.remote.selector:Remote") is turnout.Remote
    assert import_object("turnout.policies:FirstK") is turnout.worlds.FirstK


def test_a_plug_in_made_from_the_template_of_0_1_imports():
    program = "from turnout import require\nfrom turnout.selector import Selector\n"
    program += "from turnout.registry import register\nfrom turnout.sampling import uniform_draw\n"
    program += "from turnout.types import RoundContext, Selection\nprint(require.fraction)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "function fraction" in done.stdout, done.stderr
