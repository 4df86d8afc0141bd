from __future__ import annotations

import json
import pydoc
import shlex
from typing import Literal

import pytest
from typer.testing import CliRunner

import turnout
from turnout.cli.app import app
from turnout.cli.output import console
from turnout.core import registry
from turnout.core.describe import HEADINGS, ArgsEntry, describe, entries, sections
from turnout.core.domains import Positive


class Terse(turnout.Selector):
    """Takes the first [clients].

    Args:
        shares: One number
            per line: three of them.
    """

    needs_columns = frozenset({"size"})
    uses_columns = frozenset({"age"})
    needs_metrics = frozenset({"loss"})
    poll_data = "mini-batch"

    def __init__(self, *, shares: tuple[float, ...] = (1.0, 2.0), other: int | None = None):
        self.shares = shares
        self.other = other

    def poll(self, ctx, rng):
        return ctx.pool[:0]

    def select(self, ctx, rng):
        return turnout.Selection(ctx.round, ctx.pool[: ctx.size])


class Annotated(turnout.Selector):
    """The first clients.

    Args:
        eta (any number): A rate.
        names (some words): Texts.
        later (a date): When.
    """

    def __init__(
        self,
        *,
        eta: Positive | Literal["auto"] | None = None,
        names: tuple[str, ...] = (),
        later: ImportedForTypeCheckersOnly = None,  # noqa: F821
    ):
        self.eta = eta
        self.names = names
        self.later = later

    def select(self, ctx, rng):
        return turnout.Selection(ctx.round, ctx.pool[: ctx.size])


#: Parameters whose docstrings state what no type hint can.
STATED = {
    "guarded": ("inner", "inner_parameters"),
    "mix": ("members", "parameters_of"),
    "tifl": ("probabilities",),
}
TERSE = f"{__name__}:Terse"


def run(*arguments: str):
    return CliRunner().invoke(app, ["list", *arguments])


# the reader of docstrings -----------------------------------------------------------------------


def test_sections_stand_at_the_start_of_a_line():
    text = """Title of it.

    Free text.

    Idea:    one
             1. two: three.
    Cost:
        Next line.
    """
    assert sections(text) == ("Title of it.", {"Idea": "one\n1. two: three.", "Cost": "Next line."})
    assert sections(None) == ("", {})
    assert sections("Idea: is the title") == ("Idea: is the title", {})


@pytest.mark.parametrize("indent", ["", "    ", "        "])
def test_entries_of_a_section(indent):
    lines = [
        "Title.",
        "",
        f"{indent}Args:",
        f'{indent}    first (number in [0, 1] or "a: b"): Meaning that',
        f"{indent}        goes on: here (really): yes.",
        f"{indent}    second, third: Both.",
        f"{indent}    **others: The rest.",
        "",
        f"{indent}>>> 'outside of the section'",
        f"{indent}Returns:",
        f"{indent}    fourth: is no parameter.",
    ]
    assert entries("\n".join(lines)) == {
        "first": ArgsEntry(
            'number in [0, 1] or "a: b"', "Meaning that goes on: here (really): yes."
        ),
        "second": ArgsEntry("", "Both."),
        "third": ArgsEntry("", "Both."),
        "others": ArgsEntry("", "The rest."),
    }
    assert entries("\n".join(lines), "Returns") == {"fourth": ArgsEntry("", "is no parameter.")}


@pytest.mark.parametrize("allowed", ["number in (0, 1]", "number in [0, 1)", "in (0, 1) or None"])
def test_half_open_ranges_are_allowed_values(allowed):
    docstring = f"T.\n\nArgs:\n    a ({allowed}): one (so): x.\n    b: two."
    assert entries(docstring) == {
        "a": ArgsEntry(allowed, "one (so): x."),
        "b": ArgsEntry("", "two."),
    }


def test_one_entry_alone_keeps_its_second_line():
    assert entries("T.\n\nArgs:\n    a: one\n        b: two") == {"a": ArgsEntry("", "one b: two")}


def test_without_a_section_there_are_no_entries():
    assert entries("Title.\n\n    a: one") == {}
    assert entries(None) == {}


# descriptions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", turnout.list_selectors())
def test_every_selector_is_fully_described(name):
    description = describe(name)
    assert description.texts.keys() == HEADINGS.keys()
    assert all(description.texts.values())
    assert description.title != description.summary
    for parameter in description.parameters:
        assert parameter.allowed
        assert parameter.meaning.endswith(".")
    cls = registry.find(name)
    page = " ".join(pydoc.plain(pydoc.render_doc(cls)).replace("|", " ").split())
    for parameter in description.parameters:  # the signature shows the domain
        meaning = " ".join(parameter.meaning.replace("|", " ").split())
        stated = f" ({parameter.allowed})" if parameter.name in STATED.get(name, ()) else ""
        assert f"{parameter.name}{stated}: {meaning}" in page


def test_facts_come_from_the_class():
    e3cs, oort, polled = describe("e3cs"), describe("oort"), describe("cpow-d")
    assert e3cs.summary == "Exp3 with multiple plays and a guaranteed chance for everyone"
    names = ["eta", "quota", "draw", "estimate", "horizon", "share"]
    assert [p.name for p in e3cs.parameters] == names
    assert (e3cs.n_deviations, polled.n_deviations) == (7, 1)
    assert describe("round-robin").n_deviations == 0
    assert (oort.needs_columns, oort.uses_columns) == (("num_samples",), ("expected_duration",))
    assert oort.needs_metrics == ("loss_rms",)
    assert (oort.polls, describe("pow-d").polls, polled.polls) == (None, "all", "mini-batch")


def test_a_plug_in_is_described_by_its_class():
    description = describe(TERSE)
    assert description.title == "Takes the first [clients]."
    assert description.summary == "Takes the first [clients]"
    assert [(p.name, p.allowed, p.meaning) for p in description.parameters] == [
        ("shares", "", "One number per line: three of them."),
        ("other", "", ""),
    ]
    assert description.texts == {}


def test_a_hint_says_what_is_allowed_and_else_the_docstring():
    path = f"{__name__}:Annotated"
    assert [p.allowed for p in describe(path).parameters] == [
        'number > 0, "auto" or None',
        "some words",
        "a date",
    ]


@pytest.mark.parametrize("eta", [0.0, "manual", True, float("nan")])
def test_a_hint_is_enough_to_refuse_a_value(eta):
    selector = Annotated(eta=eta)  # the constructor does no work
    for refuse in (selector.check_parameters, lambda: selector.reset(3)):
        with pytest.raises(turnout.InvalidInput, match=r"eta must be a finite number > 0.0") as bad:
            refuse()
        assert bad.value.field == "eta"


@pytest.mark.parametrize("eta", [1, 0.5, "auto", None])
def test_a_hint_allows_what_it_names(eta):
    made = Annotated(eta=eta)
    made.reset(3)
    assert made.eta == eta


@pytest.mark.slow
@pytest.mark.parametrize("name", turnout.list_selectors())
def test_the_examples_of_a_description_run(name):
    description = describe(name)
    assert repr(eval(description.call, {"turnout": turnout})) == repr(turnout.make(name))
    program, *arguments = shlex.split(description.command)
    assert program == "turnout"
    few = [*arguments[:-1], "2", "--json"]  # two rounds instead of a hundred
    result = CliRunner().invoke(app, few)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[0]["n_rounds"] == 2


# turnout list -----------------------------------------------------------------------------------


def test_the_overview_names_all_and_says_how_to_see_one():
    text = run().stdout
    assert all(name in text for name in turnout.list_selectors())
    assert "turnout list NAME" in text
    rows = json.loads(run("--json").stdout)
    assert [row["name"] for row in rows] == list(turnout.list_selectors())


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("name", ["e3cs", "oort", "round-robin", TERSE])
def test_the_detail_view_shows_everything_and_fits(name, columns, monkeypatch):
    monkeypatch.setattr(console, "_width", columns)
    text = run(name).stdout
    assert max(map(len, text.splitlines())) <= columns
    whole = "".join(text.split())
    description = describe(name)
    for parameter in description.parameters:
        for part in (f"{parameter.name} = {parameter.default!r}", parameter.allowed):
            assert "".join(part.split()) in whole
        assert "".join(parameter.meaning.replace("``", "").split()) in whole
    for part in (description.title, description.call, description.command):
        assert "".join(part.split()) in whole


def test_needs_are_listed():
    text = run(TERSE).stdout
    assert "columns: size" in text
    assert "columns, where there are any: age" in text
    assert "reports of clients: loss" in text
    assert "polls clients for their loss on: mini-batch" in text


def test_detail_as_json():
    row = json.loads(run("e3cs", "--json").stdout)
    assert row["parameters"][1]["name"] == "quota"
    assert row["parameters"][1]["default"] == 0.5
    assert row["parameters"][1]["allowed"] == "number in [0, 1] or schedule"
    assert json.loads(run(TERSE, "--json").stdout)["parameters"][0]["default"] == [1.0, 2.0]


def test_the_nearest_name_is_suggested():
    result = run("e3sc")
    assert result.exit_code == 2
    assert "Did you mean 'e3cs'?" in result.stderr


def test_a_broken_plug_in_does_not_hide_the_others(monkeypatch):
    class Broken(Terse):
        def __init__(self, *, needed: int):
            self.needed = needed

    monkeypatch.setattr(registry, "_registered", registry._registered | {"broken": Broken})
    rows = {row["name"]: row for row in json.loads(run("--json").stdout)}
    assert "needed" in rows["broken"]["error"]
    assert rows["e3cs"]["summary"]
    assert "cannot be made" in run().stdout
