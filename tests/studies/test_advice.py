"""Advice from records: the right switch in a known world, and never a bold one from too little."""

import importlib
import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

import turnout
from turnout import InvalidInput
from turnout.cli import app
from turnout.cli.output import console
from turnout.experiment import Experiment, run_experiment
from turnout.studies import advise
from turnout.twin.forecast import Forecast
from turnout.worlds import ByClass, Environment

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


def test_identical_clients_do_not_give_a_bold_switch(tmp_path):
    """Nobody is better than anybody else here, and nobody can be sooner by more than chance.

    With the error of the mean over seeds as the interval, seven of eight such logs advised a
    switch, and the more so, the more seeds there were.
    """
    for seed in range(2):
        world = Environment(100, seed, volatility=ByClass(rates=(0.7,)))
        sizes = {"n_clients": 100, "cohort_size": 10, "n_rounds": 60}
        turnout.compare(
            ["random"], world, **sizes, seeds=[seed], n_jobs=1, out=tmp_path / str(seed)
        )
        found = advise(tmp_path / str(seed) / "random", ["pace", "e3cs"], n_seeds=20)
        assert found.take == "random"
        time_s = next(line for line in found.lines if line.key == "time_s")
        assert not any(cell.is_less or cell.is_more for cell in time_s.change.values())


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
    monkeypatch.setattr("turnout.cli.recommend.SEEDS", 5)  # of the fitted world: 20 by default
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


def forecast_of(n_seeds: int, n_candidates: int = 1) -> Forecast:
    """Return numbers that differ from those of ``now`` by 1 on average, with deviation 1."""
    now = np.zeros(n_seeds)
    step = np.random.default_rng(2).normal(size=n_seeds)
    step = 1.0 + (step - step.mean()) / step.std(ddof=1)
    runs = {"now": {"time_s": now.tolist()}}
    runs |= {f"c{i}": {"time_s": step.tolist()} for i in range(n_candidates)}
    return Forecast(10, 100, runs, {})


def test_the_interval_of_the_twin_does_not_shrink_with_more_seeds():
    """More seeds say better how far the drawn worlds are apart; the records say no more."""
    few, many = (forecast_of(n).difference("c0", "now", "time_s") for n in (20, 2_000))
    assert few.half_width > many.half_width > 1.9
    assert many.half_width == pytest.approx(1.96, rel=0.1)
    assert forecast_of(2).estimate("c0", "time_s").half_width > 10.0


def test_the_interval_of_the_twin_is_wider_with_more_candidates():
    """The best of many looks good by chance. The values themselves are not compared."""
    alone, several = forecast_of(20), forecast_of(20, 5)
    for_one, for_five = (each.difference("c0", "now", "time_s") for each in (alone, several))
    assert for_five.half_width > 1.3 * for_one.half_width
    assert several.estimate("c0", "time_s") == alone.estimate("c0", "time_s")


def test_a_world_without_an_answer_leaves_everything_open():
    """The time to answers that never come is infinite, and not left out."""
    runs = {"now": {"time_s": [9.0] * 4}, "c": {"time_s": [1.0, 1.0, 1.0, math.inf]}}
    found = Forecast(10, 100, runs, {}).difference("c", "now", "time_s")
    assert found.mean == -8.0
    assert found.high == math.inf
    only = Forecast(10, 100, {key: {"time_s": [x]} for key, x in (("now", 9.0), ("c", 1.0))}, {})
    assert only.difference("c", "now", "time_s").high == math.inf
