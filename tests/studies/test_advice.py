"""Advice from records: the right switch in a known world, and never a bold one from too little."""

import importlib
import json

import pytest
from typer.testing import CliRunner

from turnout import InvalidInput
from turnout.cli import app
from turnout.cli.output import console
from turnout.experiment import Experiment, run_experiment
from turnout.studies import advise

module = importlib.import_module("turnout.twin.forecast")


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Return run folders of a world with four classes of success, by random and by oort."""
    folder = tmp_path_factory.mktemp("runs")
    for name, n_rounds in {"long": 150, "short": 12}.items():
        experiment = Experiment(["random", "oort"], world="e3cs", n_rounds=n_rounds, seeds=1)
        run_experiment(experiment, folder / name, n_jobs=1)
    return folder


def test_a_better_selector_is_advised_with_the_line_to_change(logged):
    """e3cs without a quota is faster than random here; round-robin is the same."""
    found = advise(logged / "long" / "random", ["e3cs:quota=0", "round-robin"], n_seeds=5)
    assert found.take == "e3cs quota=0"
    time_s = next(line for line in found.lines if line.key == "time_s")
    assert time_s.change["e3cs quota=0"].is_less
    assert not time_s.change["round-robin"].is_less or found.take != "round-robin"
    changes = found.changes()
    assert "turnout.make('e3cs', quota=" in changes["Flower"]
    assert "parameters={'quota':" in changes["NVFlare"]
    body = changes["serve"].partition("federations ")[2].replace(", ...", "")
    assert json.loads(body)["selector"] == "e3cs"
    assert {line.source for line in found.lines} == {"log", "twin"}


def test_a_worse_candidate_is_not_advised(logged):
    """Random is slower than oort, and oort's log has no chances."""
    found = advise(logged / "long" / "oort", ["random"], n_seeds=5)
    assert found.take == "oort"
    assert found.changes() == {}
    assert {line.source for line in found.lines} == {"twin"}
    assert any("no chances of choice" in text for text in found.missing)


def test_few_rounds_never_advise_a_switch(logged):
    """Twelve rounds, whatever the numbers say."""
    found = advise(logged / "short" / "random", ["e3cs:quota=0"], n_seeds=3)
    assert found.take == "random"
    assert "12 rounds are too few" in found.why


def test_no_candidate_besides_the_one_in_charge(logged):
    """The world was fitted, so it is not to blame."""
    found = advise(logged / "long" / "random", ["random"], n_seeds=2)
    assert found.take == "random"
    assert found.why == "Keep random: no candidate is left besides the selector in charge."
    assert found.forecast is not None


@pytest.mark.parametrize(
    ("failing", "who"), [("random", "random"), ("e3cs", "every candidate"), ("none", "")]
)
def test_a_failure_in_the_twin_is_named(logged, monkeypatch, failing, who):
    """A selector that fails in the fitted world is no missing world."""

    def run(world, variant, *args):
        if variant.name == failing:
            raise InvalidInput("too many places")
        return simulated(world, variant, *args)

    simulated = module._run
    monkeypatch.setattr(module, "_run", run)
    found = advise(logged / "long" / "random", ["e3cs:quota=0"], n_seeds=2)
    assert ("failed in the fitted world" in found.why) == bool(who)
    assert "without a fitted world" not in found.why
    if who:
        assert found.take == "random"
        assert found.why.startswith(f"Keep random for now: {who} failed in the fitted world")
        label = "random" if failing == "random" else "e3cs quota=0"
        assert f"{label} failed in the fitted world: too many places" in found.missing


def test_mixed_records_and_nothing_are_refused(logged, tmp_path):
    """Several selectors in charge, and an empty folder."""
    with pytest.raises(InvalidInput, match="one selector in charge"):
        advise(logged / "long", ["e3cs"])
    with pytest.raises(InvalidInput, match="recorded rounds"):
        advise(tmp_path, ["e3cs"])


def test_command_writes_a_page_and_fits_the_terminal(logged, tmp_path, monkeypatch):
    """Everything is escaped, and no line of the table is cut at 80 columns."""
    monkeypatch.setattr(console, "_width", 80)
    page = tmp_path / "advice.html"
    given = ["recommend", "<b>=e3cs:quota=0", "pace"]
    given += ["--from", str(logged / "long" / "random"), "--html", str(page)]
    found = CliRunner().invoke(app, given)
    assert found.exit_code == 0, found.output
    assert "The line to change" in found.output
    table = [line for line in found.stdout.splitlines() if line.startswith(("│", "┃", "┏"))]
    assert table
    assert max(map(len, table)) <= 80
    text = page.read_text()
    assert "&lt;b&gt;" in text
    assert "<b>=" not in text
    assert "default-src &#39;none&#39;" in text
    told = CliRunner().invoke(app, [*given, "--json"])
    content = json.loads(told.stdout)
    assert content["take"] in ("<b>", "pace", "random")
    assert {line["key"] for line in content["lines"]} == {
        "time_s", "success", "least_share", "wasted",
    }  # fmt: skip


def test_a_page_needs_records():
    """There is none of a simulated recommendation."""
    found = CliRunner().invoke(app, ["recommend", "random", "--html", "page.html"])
    assert found.exit_code == 2
    assert "--from" in found.output
