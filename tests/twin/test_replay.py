"""Replays of logs: against known worlds, with bad logs, and what candidates may learn."""

import dataclasses
import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import turnout
from turnout import Outcome, RoundContext
from turnout.cli import app
from turnout.cli.output import console
from turnout.cli.replay import parted
from turnout.core.errors import InvalidInput
from turnout.core.registry import make
from turnout.experiment import Experiment, run_experiment
from turnout.experiment.loop import rounds
from turnout.experiment.shadow import Shadow
from turnout.experiment.simulation import collect
from turnout.experiment.variants import variants_of
from turnout.results.reader import Cell
from turnout.results.settings import CellSettings
from turnout.twin import replay
from turnout.twin.fit import fit_log
from turnout.twin.log import log_of
from turnout.twin.replay import METHODS, replay_log
from turnout.worlds import ByClass, Environment, LinearContextual


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Return run folders: 120 rounds of a volatile world, by random, oort and a mix."""
    folder = tmp_path_factory.mktemp("runs")
    mix = "mix:members={oort=0.8,random=0.2}"
    run_experiment(
        Experiment(["random", "oort", mix], world="e3cs", n_rounds=120, seeds=1), folder, n_jobs=1
    )
    return folder


def test_estimates_are_near_what_the_candidate_does_when_in_charge(logged):
    """In the world e3cs a success does not depend on the round: 0.475 by random on average.

    The margin is 1.5 times the interval.
    """
    found = replay(logged / "random", ["e3cs:quota=1", "round-robin"])
    for each in found.candidates:
        for by_method in each.estimates["success"].values():
            assert abs(by_method.mean - 0.475) < 1.5 * by_method.half_width
        assert each.origin == "exact"
        assert each.weighted.support.mean == pytest.approx(1.0, abs=0.2)
    assert found.now["success"].mean == pytest.approx(
        turnout.open_runs(logged / "random").estimate("success_ratio")["random"].mean
    )


def test_a_mix_makes_the_log_of_oort_usable(logged):
    """Oort alone reports no chances; a fifth of random gives every client one."""
    alone = replay(logged / "oort", ["random"])
    assert alone.n_used == 0
    assert "no chances of choice" in alone.candidates[0].problem
    assert "mix:members={oort=0.9,random=0.1}" in alone.notes[-1]
    assert alone.now["success"].mean > 0.5
    (folder,) = (path for path in logged.iterdir() if path.name.startswith("mix"))
    (mixed,) = replay(folder, ["random"]).candidates
    assert not mixed.problem
    assert mixed.estimates["success"]["doubly_robust"].low < 0.475
    assert mixed.estimates["success"]["doubly_robust"].high > 0.475
    assert mixed.estimates["utility"]["doubly_robust"].mean > 0.0  # oort asks for losses
    assert "utility" not in alone.candidates[0].estimates


def test_chances_are_estimated_on_request_only(logged):
    """pace has no closed form."""
    (refused,) = replay(logged / "random", ["pace"]).candidates
    assert "no closed form" in refused.problem
    (drawn,) = replay(logged / "random", ["pace"], draws=10).candidates
    assert drawn.origin == "10 draws a round"
    assert 0.3 < drawn.estimates["success"]["doubly_robust"].mean < 0.7


def test_estimated_chances_are_those_of_the_closed_form():
    """20,000 draws of e3cs; the margin is five standard errors of a share."""
    selector = make("e3cs", quota=0.3)
    selector.prepare(12, 0)
    selector.log_weight_ = np.linspace(0.0, 2.0, 12)
    ctx = RoundContext(0, 4, np.arange(12) != 3)
    exact = selector.chances(ctx)
    drawn = Shadow(selector, 0)._estimated(ctx, 20_000)
    assert np.abs(drawn - exact).max() < 5 * math.sqrt(0.25 / 20_000)
    np.testing.assert_array_equal(selector.log_weight_, np.linspace(0.0, 2.0, 12))


def test_a_shadow_learns_of_the_overlap_only():
    """Clients that only one of the two chose leave no trace."""
    shadow = Shadow(make("e3cs", quota=0.5), seed=3)
    shadow.selector.prepare(20, 3)
    ctx = RoundContext(0, 8, np.ones(20, dtype=bool))
    wish = shadow.choose(ctx)
    mine = set(wish.selection.clients.tolist())
    followed = np.sort(np.array([*sorted(mine)[:3], *sorted(set(range(20)) - mine)[:5]]))
    before = shadow.selector.log_weight_.copy()
    outcome = Outcome(np.full(8, 2), np.ones(8))
    shadow.learn(wish, followed, np.full(8, 0.4), outcome)
    changed = np.flatnonzero(shadow.selector.log_weight_ != before)
    assert set(changed.tolist()) == mine & set(followed.tolist())


def test_what_cannot_be_replayed_says_why(logged):
    """Polls are not in a log, and chances of a thin candidate say nothing."""
    polls, thin = replay(logged / "random", ["pow-d", "fedcs"], draws=2).candidates
    assert "asks clients for their loss" in polls.problem
    assert thin.problem == "" or "log" in thin.problem


def test_the_selector_in_charge_is_no_candidate_and_several_are_refused(logged):
    """It would be compared with itself; and "now" must mean one selector."""
    assert replay(logged / "random", ["random", "e3cs"]).labels == ("e3cs",)
    with pytest.raises(InvalidInput, match="one selector in charge"):
        replay([logged / "random", logged / "oort"], ["e3cs"])


def short_log(n_rounds: int, volatility=None, **settings):
    """Return the log of a short run by random."""

    environment = Environment(40, 1, volatility=volatility or ByClass())
    run = collect(
        rounds(make("random"), environment, cohort_size=8, n_rounds=n_rounds, seed=1), 40, 8
    )
    values = {
        "experiment": "x", "kind": "simulation", "label": "random", "selector": "random",
        "parameters": {}, "seed": 1, "n_clients": 40, "cohort_size": 8, "n_rounds": n_rounds,
        "world": {}, "world_id": "w", "policy": {}, "classes": {}, "training": {},
    }  # fmt: skip
    cell = Cell(
        Path("log"),
        CellSettings(**values | settings),
        {},
        {},
        {},
        run,
        {},
        None,
        {},
        n_rounds,
        True,
    )
    return log_of([cell])


def test_ten_rounds_give_a_wide_interval_or_a_refusal():
    """Never a confident number."""
    log = short_log(10)
    (e3cs,) = replay_log(log, variants_of("e3cs:quota=0.5")).candidates
    assert e3cs.problem or e3cs.estimates["success"]["doubly_robust"].half_width > 0.05
    (robin,) = replay_log(log, variants_of("round-robin")).candidates
    assert robin.problem or robin.estimates["success"]["doubly_robust"].half_width > 0.05


def test_all_failures_are_not_a_certain_zero():
    """The rule of three bounds the success that 480 failures leave open."""
    log = short_log(60, ByClass(rates=(0.0,)))
    (found,) = replay_log(log, variants_of("e3cs")).candidates
    success = found.estimates["success"]["self_normalised"]
    assert success.mean == 0.0
    assert 0.005 < success.high < 0.1


def test_damaged_chances_count_as_missing():
    """A chance of 7 or of -1 cannot be one; its round is left out, and a note says so."""
    log = short_log(60)
    record = log.records[0]
    p = record.run.probability.copy()
    p[:4] = [7.0, -1.0, math.nan, 0.0]
    run = dataclasses.replace(record.run, probability=p)
    damaged = dataclasses.replace(log, records=(record._replace(run=run),))
    found = replay_log(damaged, variants_of("e3cs"))
    assert found.n_used == 59
    assert "59 of 60 rounds" in found.notes[-1]


def test_a_model_of_outcomes_may_be_given_and_cannot_bias():
    """With a wrong model, the estimate stays near; a perfect one is an answer by itself."""
    log = short_log(200)
    rates = np.repeat([0.1, 0.3, 0.6, 0.9], 10)
    results = {}
    for name, model in {"true": rates, "wrong": np.full(40, 3.0)}.items():
        (found,) = replay_log(
            log, variants_of("e3cs:quota=1"), outcomes={"success": model}
        ).candidates
        results[name] = found
        assert abs(found.estimates["success"]["doubly_robust"].mean - 0.475) < 0.1
    assert results["true"].modelled["success"] == pytest.approx(0.475, abs=1e-6)
    with pytest.raises(InvalidInput, match="outcomes"):
        replay_log(log, variants_of("e3cs"), outcomes={"success": np.ones(3)})


def test_a_fitted_world_may_be_the_model(logged):
    """Worlds fitted to earlier rounds expect more of some clients than others, and bias nothing."""
    (e3cs,) = replay(logged / "random", ["e3cs:quota=1"]).candidates
    success = e3cs.estimates["success"]
    world, clients = success["doubly_robust_world"], success["doubly_robust"]
    assert world.mean != clients.mean
    assert abs(world.mean - 0.475) < 1.5 * world.half_width
    fitted = turnout.fit(logged / "random")
    other = replay(logged / "random", ["e3cs:quota=1"], outcomes=fitted).candidates[0]
    assert other.estimates["success"]["doubly_robust"].mean == clients.mean
    assert other.estimates["success"]["doubly_robust_world"].mean != world.mean
    with pytest.raises(InvalidInput, match="outcomes must be a world of the 100 clients"):
        replay(logged / "random", ["e3cs"], outcomes=dataclasses.replace(fitted, names=("a", "b")))


def test_what_a_fitted_world_expects_is_what_it_plays():
    """Success, seconds of work and seconds wasted before a deadline, against 400 rounds of it."""
    log = short_log(80)
    world = fit_log(log)
    limit = 1.0 + 1e-9  # every device takes a second
    expected = world.expected(0, np.array([limit]))
    assert expected["seconds"] == pytest.approx(np.ones(40), abs=1e-6)
    environment = world.environment_of(draw=False)
    survived = np.mean([environment.fate(t).survived for t in range(400)], axis=0)
    assert np.abs(expected["success"] - survived).mean() < 0.03
    assert expected["wasted"] == pytest.approx(expected["seconds"] - expected["success"], abs=1e-6)
    assert world.expected(0, np.array([0.5]))["success"] == pytest.approx(np.zeros(40))
    assert world.expected(0, np.array([0.5, 2.0]))["seconds"] == pytest.approx(np.full(40, 0.75))


def cold_log(cold_start_s: float, seed: int = 7):
    """Return the log of random in a world where a client that took part before is faster."""
    timing = LinearContextual(cold_start_s=cold_start_s)
    environment = Environment(40, seed, volatility=ByClass(), timing=timing)
    records = rounds(make("random"), environment, cohort_size=8, n_rounds=200, seed=seed)
    log = short_log(200, seed=seed)
    record = log.records[0]._replace(run=collect(records, 40, 8))
    return dataclasses.replace(log, records=(record,))


def test_cold_starts_are_seen_and_carried_over():
    """Three seconds each. Random has one client in five twice in a row."""
    found = replay_log(cold_log(3.0), variants_of("round-robin"))
    (robin,) = found.candidates
    (note,) = (text for text in found.notes if "(seconds)" in text)
    change = float(note.split("differ: ")[1].split(" s")[0])
    assert change == pytest.approx(-3.0, abs=0.8)
    # Cold starts make its own places longer, and those of the log.
    without = replay_log(cold_log(0.0), variants_of("round-robin"))
    assert not [text for text in without.notes if "took part in the round before" in text]
    longer = robin.estimates["seconds"]["doubly_robust"].mean - (
        without.candidates[0].estimates["seconds"]["doubly_robust"].mean
    )
    assert robin.again > 0.5  # it learns of the overlap only, so it stays with its clients
    assert longer == pytest.approx(3.0 * (1.0 - robin.again), abs=0.5)
    assert found.now["seconds"].mean - without.now["seconds"].mean == pytest.approx(2.4, abs=0.3)


def test_differences_of_several_candidates_are_wider():
    """With a chance of 95 %, the intervals of all hold at once."""
    log = short_log(100)
    (alone,) = replay_log(log, variants_of("e3cs")).candidates
    both = replay_log(log, [*variants_of("e3cs"), *variants_of("round-robin")])
    among = both.candidates[0]
    assert among.differences["success"].mean == alone.differences["success"].mean
    assert among.differences["success"].half_width > 1.1 * alone.differences["success"].half_width


def test_short_proof():
    """40 logs, as ``docs/build_replay.py`` measures 200: bias within 3 of its standard errors,
    coverage above 85 %, doubly robust no worse than inverse propensity by more than 15 %."""
    errors = {"doubly_robust": [], "inverse_propensity": []}
    inside = []
    for seed in range(40):
        log = short_log(80, seed=seed)
        rates = np.repeat([0.1, 0.3, 0.6, 0.9], 10)
        environment = Environment(40, seed + 100, volatility=ByClass())

        records = rounds(make("random"), environment, cohort_size=8, n_rounds=80, seed=seed)
        record = log.records[0]._replace(run=collect(records, 40, 8))
        log = dataclasses.replace(log, records=(record,))
        variants = variants_of("e3cs:quota=0.3")
        (found,) = replay_log(log, variants).candidates
        (known,) = replay_log(log, variants, outcomes={"success": rates}).candidates
        true = known.modelled["success"]
        for method, values in errors.items():
            values.append(found.estimates["success"][method].mean - true)
        one = found.estimates["success"]["doubly_robust"]
        inside.append(one.low <= true <= one.high)
    for values in errors.values():
        assert abs(np.mean(values)) < 3 * np.std(values, ddof=1) / math.sqrt(40)
    assert np.mean(inside) > 0.85
    squares = {method: np.mean(np.square(values)) for method, values in errors.items()}
    assert squares["doubly_robust"] < 1.15 * squares["inverse_propensity"]


def test_command_fits_the_terminal_and_json_has_everything(logged, monkeypatch):
    """No line of the tables is cut at 80 columns."""
    monkeypatch.setattr(console, "_width", 80)
    given = ("replay", str(logged / "random"), "--selectors", "e3cs:quota=0.5,eta=0.3,pace")
    found = CliRunner().invoke(app, [*given, "--seeds", "2"])
    assert found.exit_code == 0, found.output
    assert "e3cs quota=0.5, eta=0.3 instead of random" in " ".join(found.output.split())
    assert "in the fitted world" in found.output
    assert max(map(len, found.stdout.splitlines())) <= 80
    told = CliRunner().invoke(app, [*given, "--no-twin", "--json", "--model", "world"])
    content = json.loads(told.stdout)
    assert content["method"] == "doubly_robust_world"
    assert content["rounds_used"] == 120
    first, pace = content["candidates"]
    assert set(first["estimates"]["success"]) == set(METHODS)
    assert "no closed form" in pace["problem"]
    assert content["fitted_world"] is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("random, pace", ["random", "pace"]),
        ("e3cs:quota=0.5,eta=1,oort", ["e3cs:quota=0.5,eta=1", "oort"]),
        (
            "mix:members={pace=0.9,random=0.1},random",
            ["mix:members={pace=0.9,random=0.1}", "random"],
        ),
        ("mine=e3cs:quota=0.5,yours=e3cs:quota=1", ["mine=e3cs:quota=0.5", "yours=e3cs:quota=1"]),
    ],
)
def test_selectors_are_parted_at_their_commas(text, parts):
    """A comma inside of parameters belongs to its selector."""
    assert parted(text) == parts


def test_the_page_of_the_proof_counts_logs_that_replay_refuses():
    path = Path(__file__).parents[2] / "docs" / "build_replay.py"
    spec = importlib.util.spec_from_file_location("build_replay", path)
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    errors = np.random.default_rng(0).normal(0.0, 0.01, build.N_LOGS).tolist()
    cell = {"error": [None, *errors[1:]], "covers": [None, *[1] * (build.N_LOGS - 1)]}
    saved = {"volatile | random": {f"pace | seconds | {method}": cell for method in build.METHODS}}
    (row, *_) = build.rows_of(saved)
    assert row.n == build.N_LOGS - 1
    assert row.coverage == 1.0
    assert row.bias == pytest.approx(np.mean(errors[1:]))
    text = build.page_part(saved)
    assert "For `pace` with `random` in charge in `volatile`, 1 of 200 logs were refused" in text
    saved["volatile | random"]["pace | seconds | doubly_robust"] = {
        "error": [0.1, 0.2],
        "covers": [1, 1],
    }
    assert "not complete: 2 of 200 logs" in build.page_part(saved)
