"""One sentence under a comparison, and the column beside its first metric."""

from __future__ import annotations

import math

import numpy as np
import pytest

from turnout.results.catalogue import metric_named, to_target
from turnout.results.guarantee import least_share
from turnout.results.scores import Scores, Versus

TIME = to_target(0.9)[1]
NEVER = math.nan
LENGTH = 100.0


def scores(table):
    """Return scores of labels: values by seed, clients left out, share of the least served."""

    def run(values, seed, left_out, least):
        own = {"left_out": left_out, "least_share": least, "total_time_s": LENGTH}
        return lambda metric: own.get(metric.key, values[seed])

    return Scores(
        {
            label: {seed: run(values, seed, *served) for seed in range(len(values))}
            for label, (values, *served) in table.items()
        }
    )


def around(mean, step=1.0, shift=0):
    """Return five values with a mean; shifted ones do not follow those of another selector."""
    steps = [-1.0, 0.0, 1.0, 0.5, -0.5]
    return [mean + step * one for one in (*steps[shift:], *steps[:shift])]


WORLD = {
    "Random": (around(50.0), 0, 0.7),
    "pace": (around(35.0, shift=1), 0, 0.67),
    "Oort": (around(25.0, shift=2), 12, 0.0),
    "E3CS": (around(50.1, shift=3), 0, 0.43),
}


def test_who_is_faster_who_is_not_and_whom_they_leave_out():
    found = Versus(scores(WORLD), TIME, "Random")
    assert found.sentence == (
        "Oort reached 90 % in 0.50 of Random's time and pace in 0.70; E3CS did not differ clearly "
        "from Random; Oort left 12 clients out; the least served client got 0.43 of a fair share "
        "with E3CS, and at least 0.67 with the rest."
    )
    assert [found.written(n) for n in WORLD] == ["", "0.70*", "0.50*", "1.00"]
    assert found.heading == "vs Random"


def test_another_baseline_tells_it_from_the_other_side():
    found = Versus(scores(WORLD), TIME, "Oort")
    assert found.sentence.startswith(
        "No selector reached 90 % clearly sooner than Oort; pace took 1.40 times as long, Random "
        "2.00 and E3CS 2.00; "
    )


def test_runs_that_never_got_there_give_limits():
    table = {
        "Random": (around(50.0), 0, 1.0),
        "some": ([NEVER, 90.0, NEVER, 91.0, 92.0], 0, 1.0),
        "none": ([NEVER] * 5, 0, 1.0),
    }
    found = Versus(scores(table), TIME, "Random")
    mean = (100 + 90 + 100 + 91 + 92) / 5
    assert found.written("some") == f"≥ {mean / 50:.2f}*"
    assert found.sentence == (
        f"No selector reached 90 % clearly sooner than Random; some took at least {mean / 50:.2f} "
        "times as long; none never reached it."
    )
    turned = Versus(scores(table), TIME, "some")
    assert turned.written("Random") == f"≤ {50 / mean:.2f}*"
    assert turned.written("none") == "-"  # neither time is known
    assert "Random reached 90 % in at most 0.53 of some's time" in turned.sentence


def test_nobody_reached_it():
    table = {name: ([NEVER] * 3, 0, 1.0) for name in ("a", "b")}
    assert Versus(scores(table), TIME, "a").sentence == "No run reached 90 %."


def test_a_metric_that_is_no_time():
    success = metric_named("success_ratio")
    table = {
        "random": (around(0.47, 0.01), 0, 0.7),
        "fedcs": (around(0.9, 0.01, 1), 67, 0.0),
        "slow": (around(0.3, 0.01, 2), 0, 0.7),
        "rr": (around(0.47, 0.01, 3), 0, 1.0),
    }
    found = Versus(scores(table), success, "random")
    assert found.sentence == (
        "By success, fedcs (0.9000) was better than random (0.4700); rr did not differ clearly "
        "from random; slow (0.3000) was worse; fedcs left 67 clients out."
    )
    assert found.written("fedcs") == "+0.4300*"
    alike = Versus(scores({n: table[n] for n in ("random", "rr")}), success, "random")
    assert alike.sentence == "By success, no selector was clearly better or worse than random."


def test_two_that_did_not_get_there_in_all_seeds_are_compared_without_a_number():
    def late(mean):
        return [NEVER, *around(mean)]

    table = {
        "Random": (late(80.0), 0, 1.0),
        "Oort": (late(20.0), 0, 1.0),
        "pace": ([25.0, *around(24.0, shift=1)], 0, 1.0),
    }
    found = Versus(scores(table), TIME, "Random")
    assert found.sentence == (
        f"pace reached 90 % in at most {(25 + 120) / (100 + 400):.2f} of Random's time, and Oort "
        "sooner than Random."
    )
    del table["pace"]
    assert Versus(scores(table), TIME, "Random").sentence == "Oort reached 90 % sooner than Random."
    turned = Versus(scores(table), TIME, "Oort").sentence
    assert turned == "No selector reached 90 % clearly sooner than Oort; Random took longer."


def test_who_serves_badly_is_named_with_its_own_number():
    table = {
        "Random": (around(50.0), 1.2, 0.7),
        "Oort": (around(50.1, shift=1), 3.4, 0.0),
        "RBCS-F": (around(50.1, shift=2), 0.2, 0.02),
        "E3CS": (around(50.1, shift=3), 0, 0.44),
        "pace": (around(50.1, shift=4), 0, 0.67),
    }
    assert Versus(scores(table), TIME, "Random").sentence == (
        "No selector reached 90 % clearly sooner or later than Random; Random left 1 client out "
        "and Oort 3; the least served client got 0.02 of a fair share with RBCS-F and 0.44 with "
        "E3CS, and 0.67 with pace."
    )


@pytest.mark.parametrize("values", [[5.0], []])
def test_one_seed_gives_no_verdict(values):
    table = {"a": (values, 0, 1.0), "b": ([2 * v for v in values], 0, 1.0)}
    assert Versus(scores(table), TIME, "a").sentence == ""


def test_what_is_not_ranked_gives_no_verdict():
    table = {"a": (around(5.0), 0, 1.0), "b": (around(9.0), 0, 1.0)}
    assert Versus(scores(table), metric_named("regret"), "a").sentence == ""


def test_many_selectors_are_counted():
    others = {f"s{i}": (around(20.0, shift=1), 0, 1.0) for i in range(7)}
    table = {"base": (around(50.0), 0, 1.0), **others}
    sentence = Versus(scores(table), TIME, "base").sentence
    assert sentence.endswith("and 4 others.")


def test_the_least_share_counts_clients_that_were_there_often_enough():
    fair = np.array([10.0, 10.0, 6.0, 4.0, 0.0])
    chosen = np.array([12, 8, 3, 0, 0])  # the fourth was available less than half as often
    assert least_share(fair, chosen) == 0.5
    assert math.isnan(least_share(np.zeros(2), np.zeros(2, dtype=np.int64)))
