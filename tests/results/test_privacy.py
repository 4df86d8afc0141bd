"""The certificate of participation: every number by hand, and against a slow count."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from typer.testing import CliRunner

import turnout
from turnout.cli import app
from turnout.core.participation import Participation
from turnout.results.privacy import EligibleOnly, participations
from turnout.results.run import Collector, RoundRow, Run
from turnout.worlds import e3cs_world

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "privacy.md"


def recorded(cohorts, answers=None, chances=None, n=5):
    """Return a run with these cohorts; ``answers`` has who of them completed."""
    rounds = Collector()
    for t, cohort in enumerate(cohorts):
        clients = np.array(cohort, dtype=np.int64)
        done = cohort if answers is None else answers[t]
        status = np.where(np.isin(clients, done), 0, 3).astype(np.int8)
        ones = np.ones(clients.size)
        chance = None if chances is None else np.array(chances[t])
        rounds.add(RoundRow(clients, status, ones, ones, chance, 1.0, np.ones(n, dtype=np.bool_)))
    return Run.from_columns(n, 2, rounds.columns())


def test_counts_and_gaps_by_hand():
    run = recorded([[0, 1], [1, 2], [0, 3], [], [0, 1]])
    found = participations(run, min_gap=2, max_times=3)
    assert found.times.tolist() == [3, 3, 1, 1, 0]
    assert found.gap.tolist() == [2, 1, -1, -1, -1]
    assert found.gap_at.tolist() == [2, 1, -1, -1, -1]
    assert found.update_gap.tolist() == [1, 1, -1, -1, -1]  # round 3 is no step
    assert (found.min_gap, found.max_times, found.n_updates) == (1, 3, 4)
    assert found.is_close.tolist() == [False, True, False, False, False]
    assert not found.is_frequent.any()
    assert not found.holds
    assert participations(run, min_gap=1, max_times=3).holds
    assert participations(run, max_times=2).is_frequent.tolist() == [True, True, *3 * [False]]


def test_who_was_chosen_took_part_but_a_round_needs_answers_to_be_an_update():
    run = recorded([[0, 1], [2, 3], [0, 1]], answers=[[0, 1], [2], [1]])
    found = participations(run)
    assert found.times.tolist() == [2, 2, 1, 1, 0]
    assert found.answered.tolist() == [1, 2, 1, 0, 0]
    assert found.update_gap.tolist() == [2, 2, -1, -1, -1]
    voided = participations(run, min_answers=2)  # only round 0 had two
    assert voided.n_updates == 1
    assert voided.min_update_gap == 1  # as nobody came twice
    assert voided.min_gap == 2


def test_two_ids_that_were_merged_later_took_part_twice_in_one_round():
    found = participations(recorded([[0, 0], [1]]), max_times=1)
    assert found.times[0] == 2
    assert found.gap[0] == 0
    assert not found.holds


def test_nobody_came_twice():
    numbers = participations(recorded([[0], [1]])).numbers()
    assert (numbers["min_gap"], numbers["max_times"]) == (2, 1)
    assert participations(recorded([])).numbers()["max_times"] == 0


def test_chances_are_reported_and_bounded():
    run = recorded([[0, 1], [2]], chances=[[0.25, 0.5], [0.125]])
    numbers = participations(run).numbers()
    assert numbers["chance"] == 0.5
    assert numbers["chance_bound"] is None  # chances of the others were not recorded
    assert numbers["chance_bounds"] == [None, None]


def test_a_run_with_limits_records_the_largest_chance_of_anyone():
    selector = turnout.make("guarded", inner="random", floor=0.0, cap=math.inf, min_gap=3)
    run = turnout.simulate(selector, e3cs_world(seed=1), cohort_size=20, n_rounds=9)
    bound = participations(run, 3).bound
    np.testing.assert_allclose(bound, [0.2, 0.25, *7 * [1 / 3]])
    reserved = turnout.make("guarded", inner="random", floor=1.0, min_gap=3)
    run = turnout.simulate(reserved, e3cs_world(seed=1), cohort_size=20, n_rounds=9)
    assert participations(run, 3).bound.max() == 1.0
    usual = turnout.simulate("random", e3cs_world(seed=1), cohort_size=20, n_rounds=3)
    assert not usual.measured


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    cohorts=st.lists(st.sets(st.integers(0, 4), max_size=3), max_size=12),
    b=st.integers(1, 4),
    k=st.sampled_from([None, 1, 2, 3]),
)
def test_the_certificate_is_that_of_all_pairs(cohorts, b, k):
    found = participations(recorded([sorted(cohort) for cohort in cohorts]), b, k)
    steps = np.cumsum([bool(cohort) for cohort in cohorts])
    for client in range(5):
        mine = [t for t, cohort in enumerate(cohorts) if client in cohort]
        pairs = [(i, j) for i in mine for j in mine if i < j]
        assert found.times[client] == len(mine)
        assert found.gap[client] == min((j - i for i, j in pairs), default=-1)
        steps_apart = [int(steps[j] - steps[i]) for i, j in pairs]
        assert found.update_gap[client] == min(steps_apart, default=-1)
        assert found.is_close[client] == any(j - i < b for i, j in pairs)
        assert found.is_frequent[client] == (k is not None and len(mine) > k)


def test_eligible_clients_can_be_read_in_any_order():
    run = recorded([[0], [1], [2], [0], [1]])
    own = EligibleOnly(run, Participation(3, 2))
    forward = [own.available_in(t).tolist() for t in range(5)]
    assert [own.available_in(t).tolist() for t in (4, 0, 2)] == [forward[t] for t in (4, 0, 2)]
    assert forward[3] == [True, False, False, True, True]
    assert forward[4][0] is False  # twice is enough


def audit(*arguments):
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "private"
    made = ["--param", "min_gap=4", "--param", "max_times=15", "--param", "floor=0"]
    done = CliRunner().invoke(
        app, ["simulate", "guarded", *made, "--rounds", "48", "--out", str(path)]
    )
    assert done.exit_code == 0, done.output
    return path


def test_the_command_certifies_a_run_by_its_own_limits(folder):
    done = audit(folder, "--privacy", "--json")
    (row,) = json.loads(done.output)
    assert done.exit_code == 0
    assert row["promised"] == {"min_gap": 4, "max_times": 15}
    assert row["holds"]
    assert row["min_gap"] >= 4
    assert row["max_times"] <= 15
    assert row["chance_bound"] <= 1.0
    assert "the limits hold" in audit(folder, "--privacy").output


def test_the_command_names_who_broke_other_limits(folder):
    done = audit(folder, "--privacy", "--min-gap", 9, "--max-times", 4)
    assert done.exit_code == 1
    assert "apart" in done.output
    done = audit(folder, "--privacy", "--max-times", 4, "--json")
    (row,) = json.loads(done.output)
    assert done.exit_code == 1
    assert len(row["too_often"]) > 50
    assert row["too_early"] == []
    done = audit(folder, "--min-gap", 3)
    assert done.exit_code == 2
    assert "need --privacy" in done.output


def test_the_epsilon_on_the_page_is_that_of_the_gaussian_mechanism():
    """dp-accounting is not installed here: the exact delta of one Gaussian says the same."""
    text = PAGE.read_text(encoding="utf-8")
    sigma = 8.0 / math.sqrt(12)
    assert "noise_multiplier, k = 8.0, 12" in text

    def delta(epsilon):
        a, b = 0.5 / sigma, epsilon * sigma
        return norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b)

    assert delta(1.925 + 0.001) < 1e-6 < delta(1.925 - 0.001)
