from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import numpy as np
import pytest

import turnout
from turnout.core import registry


class Plugin(turnout.Selector):
    """A selector that is registered nowhere."""

    class Inner(turnout.Selector):
        def select(self, ctx, rng):
            return turnout.Selection(ctx.round, ctx.pool[:0])

    def __init__(self, *, level: float = 0.5):
        self.level = level

    def select(self, ctx, rng):
        return turnout.Selection(ctx.round, ctx.pool[: ctx.size])


class Entry:
    def __init__(self, name, value):
        self.name = name
        self.value = value
        self.loads = 0

    def load(self):
        self.loads += 1
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.fixture
def entries(monkeypatch):
    found: list[Entry] = []

    def entry_points(*, group):
        return found if group == "turnout.selectors" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return found


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def test_built_in_names():
    expected = {
        "random",
        "data-weighted",
        "round-robin",
        "fedcs",
        "e3cs",
        "rbcs-f",
        "ucb-cs",
        "pow-d",
        "cpow-d",
        "rpow-d",
        "oort",
        "k-linucb",
        "nccb",
        "dirichlet",
        "divfl",
        "fedcor",
    }
    assert expected <= set(turnout.list_selectors())
    assert list(turnout.list_selectors()) == sorted(turnout.list_selectors())


def test_every_file_of_selectors_is_listed():
    folder = Path(turnout.selectors.__file__).parent
    listing = (folder / "__init__.py").read_text()
    for file in sorted(folder.glob("*.py")):
        if not file.name.startswith("_"):
            assert f"from turnout.selectors.{file.stem} import" in listing, file.name


def test_every_selector_of_the_folder_is_registered_and_exported():
    for name in turnout.list_selectors():
        cls = registry.find(name)
        if cls.__module__.startswith("turnout.selectors."):
            assert cls.__name__ in turnout.selectors.__all__
            assert getattr(turnout.selectors, cls.__name__) is cls
            assert registry.name_of(cls) == name


def test_make_with_parameters():
    selector = turnout.make("ucb-cs", discount=0.25)
    assert selector.parameters == {"discount": 0.25, "stored_index": False, "patience": 5}
    assert repr(selector) == "UCBCS(discount=0.25, stored_index=False, patience=5)"
    assert turnout.make("oort", window=3).window == 3


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("e3sc", "e3cs"),
        ("ucb_cs", "ucb-cs"),
        ("UCB-CS", "ucb-cs"),
        ("Oort", "oort"),
        ("RBCS_F", "rbcs-f"),
        ("powd", "pow-d"),
        ("randm", "random"),
        ("round_robin", "round-robin"),
        ("linucb", "k-linucb"),
    ],
)
def test_unknown_name_suggests_the_nearest(wrong, meant):
    with pytest.raises(turnout.UnknownSelector, match=f"'{wrong}'.*Did you mean '{meant}'"):
        turnout.make(wrong)


def test_unknown_name_lists_what_is_known():
    with pytest.raises(turnout.UnknownSelector, match=r"'zzz'.*Known:.*e3cs.*ucb-cs"):
        turnout.make("zzz")
    with pytest.raises(LookupError):
        turnout.make("")


@pytest.mark.parametrize(
    ("name", "wrong", "meant"),
    [
        ("ucb-cs", "discont", "discount"),
        ("ucb-cs", "Discount", "discount"),
        ("oort", "max_participations", "max_participation"),
        ("oort", "explore_dcay", "explore_decay"),
        ("pow-d", "candidate", "candidates"),
        ("k-linucb", "ridg", "ridge"),
    ],
)
def test_unknown_parameter_suggests_the_nearest(name, wrong, meant):
    with pytest.raises(
        turnout.UnknownParameter, match=f"'{name}'.*'{wrong}'.*Did you mean '{meant}'"
    ):
        turnout.make(name, **{wrong: 1})


def test_unknown_parameter_of_a_selector_without_any():
    with pytest.raises(turnout.UnknownParameter, match=r"'random'.*'seed'.*Known: none"):
        turnout.make("random", seed=1)
    with pytest.raises(TypeError):
        turnout.make("random", seed=1)


def test_path_to_a_class():
    path = f"{__name__}:Plugin"
    selector = turnout.make(path, level=0.1)
    assert type(selector) is Plugin
    assert selector.level == 0.1
    assert registry.name_of(Plugin) == path
    assert registry.find(f"{__name__}:Plugin.Inner") is Plugin.Inner
    assert registry.find(registry.name_of(Plugin.Inner)) is Plugin.Inner
    assert registry.find("turnout.selectors.random:Random") is registry.find("random")


@pytest.mark.parametrize(
    "path",
    [
        "no_such_module_anywhere:Thing",
        "turnout.selectors.random:Nothing",
        "turnout.selectors.random:",
        ":Random",
        ":",
        ".relative:Thing",
        "turnout.selectors.random:Random.nothing",
    ],
)
def test_bad_paths(path):
    with pytest.raises(turnout.UnknownSelector, match="selector"):
        turnout.make(path)


@pytest.mark.parametrize("path", ["math:pi", "pathlib:Path", "turnout.core.registry:make"])
def test_path_to_something_else(path):
    with pytest.raises(turnout.UnknownSelector, match=f"'{path}'.*turnout.Selector"):
        turnout.make(path)


def test_a_module_that_fails_on_import(tmp_path, monkeypatch):
    (tmp_path / "turnout_broken_plugin.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises((turnout.UnknownSelector, ZeroDivisionError)):
        turnout.make("turnout_broken_plugin:Thing")
    assert "turnout_broken_plugin" not in sys.modules


@pytest.mark.usefixtures("own_registry")
def test_register_and_collision():
    turnout.register("mine")(Plugin)
    assert "mine" in turnout.list_selectors()
    assert registry.name_of(Plugin) == "mine"
    assert turnout.register("mine")(Plugin) is Plugin  # importing twice is no collision

    class Other(Plugin):
        pass

    with pytest.raises(turnout.InvalidInput, match=r"'mine'.*Plugin.*another"):
        turnout.register("mine")(Other)
    assert registry.find("mine") is Plugin
    with pytest.raises(turnout.InvalidInput, match=r"'random'.*Random"):
        turnout.register("random")(Plugin)


def test_entry_points(entries):
    entries.append(Entry("plug", Plugin))
    assert "plug" in turnout.list_selectors()
    assert entries[0].loads == 0  # listing imports nothing
    selector = turnout.make("plug", level=0.2)
    assert type(selector) is Plugin
    with pytest.raises(turnout.UnknownParameter, match=r"'plug'.*'levle'.*'level'"):
        turnout.make("plug", levle=0.2)
    with pytest.raises(turnout.UnknownSelector, match="Did you mean 'plug'"):
        turnout.make("plugg")


def test_entry_point_cannot_replace_a_built_in(entries):
    entries.append(Entry("random", Plugin))
    assert turnout.list_selectors().count("random") == 1
    assert type(turnout.make("random")).__name__ == "Random"
    assert entries[0].loads == 0


def test_entry_point_to_something_else(entries):
    entries.append(Entry("plug", dict))
    with pytest.raises(turnout.UnknownSelector, match=r"'plug'.*turnout.Selector"):
        turnout.make("plug")


def test_entry_point_that_cannot_be_imported(entries):
    entries.append(Entry("plug", ImportError("no module named gone")))
    assert "plug" in turnout.list_selectors()
    with pytest.raises(turnout.UnknownSelector, match=r"plug.*gone"):
        turnout.make("plug")
    assert turnout.make("random") is not None


def test_parameters_are_checked_by_make():
    with pytest.raises(turnout.InvalidInput, match=r"discount.*got 2"):
        turnout.make("ucb-cs", discount=2)


def test_a_made_selector_works():
    selector = turnout.make(f"{__name__}:Plugin")
    selector.reset(3)
    ctx = turnout.RoundContext(0, 2, np.ones(3, dtype=bool))
    assert selector.select(ctx, np.random.default_rng(0)).clients.tolist() == [0, 1]
