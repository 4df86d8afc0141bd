from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnout.selectors.e3cs as module
from tests.references.e3cs_slow import SlowE3CS, successive_sampling
from turnout import load, make, save
from turnout.core.errors import InvalidInput
from turnout.core.schedules import Constant, Linear, StepAfter
from turnout.core.types import Outcome, RoundContext, Selection
from turnout.results.metrics import theorem1_bound
from turnout.sampling import capped_allocation
from turnout.selectors.e3cs import E3CS

SIGMAS = 5.0


@dataclass(frozen=True)
class Sawtooth:
    """A quota of one's own: low, middle, high, and again."""

    low: float
    high: float

    def __call__(self, round: int) -> float:
        return self.low + (round % 3) * (self.high - self.low) / 2.0


@dataclass(frozen=True)
class BreaksInRound3:
    def __call__(self, round: int) -> float:
        return 2.0 if round == 3 else 0.5


class Director:
    """Stands in for the draw: records every client's p and draws whom it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.positions: list[int] | None = None
        self.probability = np.zeros(0)
        self.real = dict(module.DRAWS)
        monkeypatch.setattr(module, "DRAWS", {name: self._draw(name) for name in self.real})

    def _draw(self, name: str) -> Callable[..., np.ndarray]:
        def draw(p: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
            self.probability = np.array(p)
            if self.positions is None:
                return self.real[name](p, size, rng)
            return np.array(self.positions, dtype=np.int64)

        return draw


@pytest.fixture
def director(monkeypatch: pytest.MonkeyPatch) -> Director:
    return Director(monkeypatch)


def outcome_of(success: list[int]) -> Outcome:
    return Outcome(status=[0 if x else 3 for x in success], duration=[math.nan] * len(success))


def context(t: int, m: int, available: list[bool] | np.ndarray) -> RoundContext:
    return RoundContext(round=t, cohort_size=m, available=np.asarray(available, dtype=bool))


def play(
    selector: E3CS, director: Director, t: int, chosen: list[int], success: list[int], m: int
) -> Selection:
    """One round among all clients in which ``chosen`` are drawn."""
    director.positions = chosen
    ctx = context(t, m, [True] * selector.n_clients)
    selection = selector.select(ctx, np.random.default_rng(t))
    assert selection.clients.tolist() == chosen
    selector.observe(selection, outcome_of(success))
    return selection


def weights(selector: E3CS, relative_to: int) -> np.ndarray:
    return np.exp(selector.log_weight_ - selector.log_weight_[relative_to])


# --- (a) rounds worked out by hand ---------------------------------------------------------------


def test_three_rounds_by_hand_loss_estimate(director: Director) -> None:
    # arXiv Eqs. (10)-(12). K = 4, k = 2, sigma = 0, eta = 0.5; k eta / K = 0.25.
    selector = E3CS(eta=0.5, quota=0.0, estimate="loss")
    selector.reset(4)
    # t = 1: w = 1, p = 2/4. A = {0, 1}; 0 succeeds, 1 fails.
    #   xhat = 1, 1 - 1/0.5 = -1, 1, 1  ->  w = e^.25, e^-.25, e^.25, e^.25
    selection = play(selector, director, 0, [0, 1], [1, 0], m=2)
    np.testing.assert_allclose(director.probability, [0.5, 0.5, 0.5, 0.5], rtol=1e-12)
    np.testing.assert_allclose(selection.probability, [0.5, 0.5], rtol=1e-12)
    # relative to client 2: 1, e^-.5 = 0.6065307, 1, 1
    np.testing.assert_allclose(weights(selector, 2), [1.0, 0.6065307, 1.0, 1.0], rtol=1e-7)
    # t = 2: sum = 3.6065307, p = 2 w / sum = 0.5545496, 0.3363513, 0.5545496, 0.5545496.
    #   A = {1, 2}; 1 succeeds, 2 fails.
    #   xhat = 1, 1, 1 - 1/0.5545496 = -0.8032653, 1
    play(selector, director, 1, [1, 2], [1, 0], m=2)
    np.testing.assert_allclose(
        director.probability, [0.5545496, 0.3363513, 0.5545496, 0.5545496], rtol=1e-6
    )
    #   w_2 falls behind by e^(0.25 * -1.8032653) = e^-0.4508163 = 0.6371078
    np.testing.assert_allclose(weights(selector, 3), [1.0, 0.6065307, 0.6371078, 1.0], rtol=1e-6)
    # t = 3: sum = 3.2436385, p = 0.6165915, 0.3739817, 0.3928352, 0.6165915.
    #   A = {0, 3}; both fail: xhat_0 = 1 - 1/0.6165915 = -0.6218192;
    #   w_0 and w_3 fall behind by e^(-0.25 * 1.6218192) = e^-0.4054548 = 0.6666735
    play(selector, director, 2, [0, 3], [0, 0], m=2)
    np.testing.assert_allclose(
        director.probability, [0.6165915, 0.3739817, 0.3928352, 0.6165915], rtol=1e-6
    )
    np.testing.assert_allclose(
        weights(selector, 0), [1.0, 0.6065307 / 0.6666735, 0.6371078 / 0.6666735, 1.0], rtol=1e-6
    )


def test_a_share_of_each_weight_by_hand(director: Director) -> None:
    # The first round above leaves w = 1, 0.6065307, 1, 1 with mean 0.9016327. Half of each is
    # divided: w = 0.9508163, 0.7540817, 0.9508163, 0.9508163. Nothing changes in the sum.
    selector = E3CS(eta=0.5, quota=0.0, estimate="loss", share=0.5)
    selector.reset(4)
    play(selector, director, 0, [0, 1], [1, 0], m=2)
    np.testing.assert_allclose(weights(selector, 2), [1.0, 0.7930887, 1.0, 1.0], rtol=1e-6)
    assert np.exp(selector.log_weight_).sum() == pytest.approx(3.6065307)
    assert selector.regret_bound(10, 2, 4) is None


def test_a_share_of_all_is_uniform(director: Director) -> None:
    selector = E3CS(share=1.0)
    selector.reset(3)
    play(selector, director, 0, [0], [0], m=1)
    np.testing.assert_allclose(weights(selector, 0), 1.0)


def test_nobody_falls_below_the_share(director: Director) -> None:
    selector = E3CS(quota=0.0, share=0.01)
    selector.reset(5)
    for t in range(300):
        play(selector, director, t, [0, 1], [0, 1], m=2)
    weight = np.exp(selector.log_weight_)
    assert weight[0] == pytest.approx(0.01 / 5 * weight.sum())


def rounds_to_recover(age: int, **parameters: Any) -> int:
    """Return the rounds until 80 % of a cohort are good again after good and bad change places."""
    selector, rng = E3CS(**parameters), np.random.default_rng(age)
    selector.reset(20)
    good, latest = np.arange(20) < 10, []
    for t in range(age + 2000):
        if t == age:
            good, latest = ~good, []
        selection = selector.select(context(t, 5, np.ones(20, dtype=bool)), rng)
        success = rng.random(5) < np.where(good[selection.clients], 0.9, 0.1)
        selector.observe(selection, outcome_of(success.tolist()))
        latest.append(good[selection.clients].mean())
        if t >= age + 20 and np.mean(latest[-20:]) >= 0.8:
            return t - age
    raise AssertionError("no recovery")


def test_with_a_share_recovery_does_not_depend_on_age() -> None:
    young, old = (rounds_to_recover(age, quota=0.2, share=0.001) for age in (200, 800))
    assert old < 1.5 * young
    assert rounds_to_recover(800, quota=0.2) > 3 * old


def test_two_rounds_by_hand_gain_estimate(director: Director) -> None:
    # Journal Eqs. (15)-(17). K = 4, k = 2, sigma = 0, eta = 0.5; k eta / K = 0.25.
    selector = E3CS(eta=0.5, quota=0.0, estimate="gain")
    selector.reset(4)
    # t = 1: p = 0.5. A = {0, 1}; 0 succeeds: xhat = 2, 0, 0, 0  ->  w = e^.5, 1, 1, 1
    play(selector, director, 0, [0, 1], [1, 0], m=2)
    np.testing.assert_allclose(weights(selector, 1), [1.6487213, 1.0, 1.0, 1.0], rtol=1e-7)
    # t = 2: sum = 4.6487213, p = 0.7093225, 0.4302258 (three times).
    #   A = {0, 2}; both succeed: xhat = 1.4097960, 0, 2.3243606, 0
    #   w_0 = e^(.5 + .3524490) = 2.3453839, w_2 = e^.5810902 = 1.7879865
    play(selector, director, 1, [0, 2], [1, 1], m=2)
    np.testing.assert_allclose(
        director.probability, [0.7093225, 0.4302258, 0.4302258, 0.4302258], rtol=1e-6
    )
    np.testing.assert_allclose(weights(selector, 1), [2.3453839, 1.0, 1.7879865, 1.0], rtol=1e-6)


# K = 4, k = 2, quota 0.5: sigma = 0.5 * 2/4 = 0.25, k - K sigma = 1, eta = 0.5, rate = 0.125.
# w = 1, 1, 1, 12: 0.25 + 12/15 = 1.05 > 1, so somebody overflows. Case v = 3 of Eq. (18):
#   alpha = 3 / (1 - 1 * 0.75) = 12;  Psi_3 = 1/0.75 = 1.33 <= 12 < 12/0.75 = 16: it holds.
#   cap (1 - sigma) alpha = 9; w' = 1, 1, 1, 9; p = 0.25 + 1/12 = 1/3 each and 0.25 + 9/12 = 1.
# S = {3}.
OVERFLOWING = np.log([1.0, 1.0, 1.0, 12.0])
OVERFLOWING_P = [1 / 3, 1 / 3, 1 / 3, 1.0]


def test_overflow_by_hand_loss_estimate(director: Director) -> None:
    selector = E3CS(eta=0.5, quota=0.5, estimate="loss")
    selector.reset(4)
    selector.log_weight_[:] = OVERFLOWING
    # A = {0, 3}, both fail. xhat_0 = 1 - 3 = -2, xhat_1 = xhat_2 = 1; 3 is frozen.
    #   w = e^-.25, e^.125, e^.125, 12; relative to 1: e^-.375, 1, 1, 12 e^-.125
    play(selector, director, 0, [0, 3], [0, 0], m=2)
    np.testing.assert_allclose(director.probability, OVERFLOWING_P, rtol=1e-12)
    expected = [math.exp(-0.375), 1.0, 1.0, 12.0 * math.exp(-0.125)]
    np.testing.assert_allclose(weights(selector, 1), expected, rtol=1e-12)
    # Next round: relative weights 0.6872893, 1, 1, 10.5899628; the sum is 13.2772521.
    #   0.25 + 10.5899628/13.2772521 = 1.0476 > 1: overflow again. Case 3:
    #   alpha = 2.6872893/0.25 = 10.7491571 (Psi_3 = 1.33, Psi_4 = 14.12), cap 8.0618678,
    #   sum of w' = 10.7491571, p = 0.25 + 0.0639389 = 0.3139389, 0.25 + 0.0930306 = 0.3430306, 1
    play(selector, director, 1, [1, 3], [1, 1], m=2)
    np.testing.assert_allclose(
        director.probability, [0.3139389, 0.3430306, 0.3430306, 1.0], rtol=1e-6
    )
    # 1 succeeds: xhat = 1 for all but the frozen 3, which falls behind by another e^-.125.
    expected = [math.exp(-0.375), 1.0, 1.0, 12.0 * math.exp(-0.25)]
    np.testing.assert_allclose(weights(selector, 1), expected, rtol=1e-12)


def test_overflow_by_hand_gain_estimate(director: Director) -> None:
    selector = E3CS(eta=0.5, quota=0.5, estimate="gain")
    selector.reset(4)
    selector.log_weight_[:] = OVERFLOWING
    # A = {0, 3}, both succeed. xhat_0 = 3: w_0 = e^.375; 3 is frozen although it succeeded.
    play(selector, director, 0, [0, 3], [1, 1], m=2)
    np.testing.assert_allclose(director.probability, OVERFLOWING_P, rtol=1e-12)
    expected = [math.exp(0.375), 1.0, 1.0, 12.0]
    np.testing.assert_allclose(weights(selector, 1), expected, rtol=1e-12)


@pytest.mark.parametrize("estimate", ["loss", "gain"])
def test_overflowing_client_left_out_by_the_multinomial_draw_is_frozen_too(
    director: Director, estimate: str
) -> None:
    selector = make("e3cs", eta=0.5, quota=0.5, estimate=estimate, draw="multinomial")
    assert isinstance(selector, E3CS)
    selector.reset(4)
    selector.log_weight_[:] = OVERFLOWING
    # A = {0, 1}, both succeed, 3 is left out. Loss: xhat = 1, 1, 1, frozen: 3 loses e^-.125.
    # Gain: xhat = 3, 3, 0, frozen.
    play(selector, director, 0, [0, 1], [1, 1], m=2)
    loss = [1.0, 1.0, 1.0, 12.0 * math.exp(-0.125)]
    gain = [math.exp(0.375), math.exp(0.375), 1.0, 12.0]
    expected = {"loss": loss, "gain": gain}[estimate]
    np.testing.assert_allclose(weights(selector, 2), expected, rtol=1e-12)


def test_all_of_a_small_pool_by_hand(director: Director) -> None:
    # K = k = 3, sigma = 0, w = 1, 1, 2: 3 * 2/4 > 1, so Alg. 2 looks for alpha. Case v = 2:
    #   alpha = (1 + 1) / (3 - 1) = 1; Psi_2 = 1 <= 1 < 2: it holds, S = {2}, p = 1.
    # All fail: xhat = 0, 0, frozen: the weights stay, rate = 3 * 0.5 / 3 = 0.5.
    selector = E3CS(eta=0.5, quota=0.0, estimate="loss")
    selector.reset(3)
    selector.log_weight_[:] = np.log([1.0, 1.0, 2.0])
    play(selector, director, 0, [0, 1, 2], [0, 0, 0], m=3)
    np.testing.assert_allclose(weights(selector, 0), [1.0, 1.0, 2.0], rtol=1e-12)
    # All succeed: xhat = 1, 1, frozen: the third falls to 2 e^-.5.
    play(selector, director, 1, [0, 1, 2], [1, 1, 1], m=3)
    np.testing.assert_allclose(weights(selector, 0), [1.0, 1.0, 2.0 * math.exp(-0.5)], rtol=1e-12)


# --- (b) against the slow reference --------------------------------------------------------------


def assert_same_run(
    selector: E3CS,
    director: Director,
    seed: int,
    *,
    rounds: int,
    quotas: Callable[[int], float],
    forced: bool,
    presence: float,
) -> int:
    """Play one run on both sides; return in how many rounds somebody overflowed."""
    rng = np.random.default_rng(seed)
    n = selector.n_clients
    m = int(rng.integers(1, n))
    eta = Fraction(float(selector.eta))
    slow = SlowE3CS(n, eta, selector.estimate, selector.share)
    skill = rng.random(n)
    overflows = 0
    for t in range(rounds):
        available = rng.random(n) < presence
        available[rng.choice(n, size=min(n, m + 1), replace=False)] = True
        pool = np.flatnonzero(available).tolist()
        sigma = Fraction(quotas(t)) * m / len(pool)
        p, overflow = slow.allocate(pool, m, sigma)
        overflows += bool(overflow)
        director.positions = None
        if forced:
            director.positions = sorted(rng.choice(len(pool), size=m, replace=False).tolist())
        selection = selector.select(context(t, m, available), np.random.default_rng([seed, t]))
        chosen = selection.clients.tolist()
        np.testing.assert_allclose(
            director.probability, [float(p[i]) for i in pool], rtol=1e-9, atol=0.0
        )
        if selector.draw == "multinomial":
            assert selection.probability is None  # the targets are not inclusion probabilities
        else:
            np.testing.assert_allclose(
                selection.probability, [float(p[i]) for i in chosen], rtol=1e-9, atol=0.0
            )
        success = (rng.random(len(chosen)) < skill[chosen]).astype(int).tolist()
        selector.observe(selection, outcome_of(success))
        slow.update(pool, m, sigma, dict(zip(chosen, success, strict=True)))
        got = selector.log_weight_ - selector.log_weight_[0]
        np.testing.assert_allclose(got, slow.log_ratios(), rtol=0.0, atol=1e-9)
        if quotas(t) == 0.0:
            # Without a floor, an error of d in ln w becomes d * rate / p in the next step of any
            # implementation; so each round starts from the same weights.
            slow.adopt(selector.log_weight_)
    return overflows


@pytest.mark.slow
@pytest.mark.parametrize("estimate", ["loss", "gain"])
@pytest.mark.parametrize("draw", ["exact", "dependent-rounding", "multinomial"])
def test_runs_equal_the_slow_reference(director: Director, estimate: str, draw: str) -> None:
    overflows = 0
    for seed, quota in enumerate([0.0, 0.2, 0.5, 0.8]):
        selector = make("e3cs", eta=0.5, quota=quota, draw=draw, estimate=estimate)
        assert isinstance(selector, E3CS)
        selector.reset(6 + 2 * seed)
        overflows += assert_same_run(
            selector,
            director,
            seed,
            rounds=60,
            quotas=Constant(quota),
            forced=False,
            presence=1.0,
        )
    assert overflows > 50  # S_t was not empty in many rounds


@pytest.mark.slow
@pytest.mark.parametrize("estimate", ["loss", "gain"])
def test_forced_runs_equal_the_slow_reference(director: Director, estimate: str) -> None:
    # Any set is drawn, whatever its probability: members of S_t are left out in many rounds.
    overflows = 0
    for seed, quota in enumerate([0.3, 0.5, StepAfter(30, 0.3, 1.0), Sawtooth(0.2, 0.6)]):
        selector = make("e3cs", eta=0.7, quota=quota, estimate=estimate, draw="multinomial")
        assert isinstance(selector, E3CS)
        selector.reset(9)
        overflows += assert_same_run(
            selector,
            director,
            100 + seed,
            rounds=70,
            quotas=quota if callable(quota) else Constant(quota),
            forced=True,
            presence=1.0,
        )
    assert overflows > 20


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.02])
@pytest.mark.parametrize("estimate", ["loss", "gain"])
def test_runs_with_absent_clients_equal_the_slow_reference(
    director: Director, estimate: str, share: float
) -> None:
    for seed, quota in enumerate([0.2, 0.5, 0.8]):
        selector = make("e3cs", eta=0.5, quota=quota, estimate=estimate, share=share)
        assert isinstance(selector, E3CS)
        selector.reset(12)
        assert_same_run(
            selector,
            director,
            200 + seed,
            rounds=60,
            quotas=Constant(quota),
            forced=False,
            presence=0.6,
        )


# --- (c) marginals and unbiasedness --------------------------------------------------------------

# Eight present clients and an absent one. Absent means not drawn, so its estimate is 1 in the loss
# form and 0 in the gain form: it fixes the level that ratios of weights leave open.
PRESENT = np.array([True] * 8 + [False])
MID_RUN = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.5, 6.0, 0.3])
FATES = np.array([1, 0, 1, 0, 1, 1, 0, 1])
K, M, QUOTA, ETA = 8, 3, 0.3, 0.5
RATE = (M - QUOTA * M) * ETA / K


def mid_run(draw: str, estimate: str) -> E3CS:
    selector = make("e3cs", eta=ETA, quota=QUOTA, draw=draw, estimate=estimate)
    assert isinstance(selector, E3CS)
    selector.reset(9)
    selector.log_weight_[:] = MID_RUN
    return selector


def targets() -> tuple[np.ndarray, np.ndarray]:
    p, overflow = capped_allocation(MID_RUN[:8], M, QUOTA * M / K)
    free = np.setdiff1d(np.arange(8), overflow)
    assert overflow.size == 1
    return p, free


def estimates(draw: str, estimate: str, rounds: int) -> np.ndarray:
    """xhat of every present client in many rounds from the same state, read off the weights."""
    selector = mid_run(draw, estimate)
    ctx = context(0, M, PRESENT)
    rng = np.random.default_rng(31)
    base = {"loss": 1.0, "gain": 0.0}[estimate]
    seen = np.empty((rounds, 8))
    for r in range(rounds):
        selector.log_weight_[:] = MID_RUN
        selection = selector.select(ctx, rng)
        selector.observe(selection, outcome_of(FATES[selection.clients].tolist()))
        change = selector.log_weight_ - MID_RUN
        seen[r] = base + (change[:8] - change[8]) / RATE
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("estimate", ["loss", "gain"])
@pytest.mark.parametrize("draw", ["exact", "dependent-rounding"])
def test_estimates_are_unbiased_under_exact_draws(draw: str, estimate: str) -> None:
    rounds = 2000
    _, free = targets()
    seen = estimates(draw, estimate, rounds)[:, free]
    error = seen.mean(axis=0) - FATES[free]
    assert np.all(np.abs(error) <= SIGMAS * seen.std(axis=0) / math.sqrt(rounds) + 1e-9), error


@pytest.mark.slow
@pytest.mark.parametrize("estimate", ["loss", "gain"])
def test_estimates_are_biased_under_the_multinomial_draw(estimate: str) -> None:
    rounds = 2000
    p, free = targets()
    seen = estimates("multinomial", estimate, rounds)[:, free]
    error = seen.mean(axis=0) - FATES[free]
    standard_error = seen.std(axis=0) / math.sqrt(rounds)
    assert np.max(np.abs(error) - SIGMAS * standard_error) > 0.0
    # ... and by as much as the law of the draw says: chance of being drawn / p instead of 1.
    law = successive_sampling(p.tolist(), M)
    drawn = np.array([sum(c for s, c in law.items() if i in s) for i in free]) / p[free]
    fates = FATES[free]
    expected = {"loss": 1.0 - drawn * (1 - fates), "gain": drawn * fates}[estimate]
    bias = seen.mean(axis=0) - expected
    assert np.all(np.abs(bias) <= SIGMAS * standard_error + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["exact", "dependent-rounding"])
def test_selection_frequencies_equal_the_allocation(draw: str) -> None:
    rounds = 3000
    selector = mid_run(draw, "loss")
    p, _ = targets()
    rng = np.random.default_rng(41)
    ctx = context(0, M, PRESENT)
    counts = np.zeros(9)
    for _ in range(rounds):
        selection = selector.select(ctx, rng)
        counts[selection.clients] += 1
        assert np.array_equal(selection.probability, p[selection.clients])
    assert counts[8] == 0
    error = np.abs(counts[:8] / rounds - p)
    assert np.all(error <= SIGMAS * np.sqrt(p * (1 - p) / rounds) + 1e-12)


def test_multinomial_selection_loses_certain_clients() -> None:
    rounds = 1000
    selector = mid_run("multinomial", "loss")
    p, free = targets()
    certain = np.setdiff1d(np.arange(8), free)
    rng = np.random.default_rng(43)
    ctx = context(0, M, PRESENT)
    seen = np.array([np.isin(certain, selector.select(ctx, rng).clients) for _ in range(rounds)])
    assert p[certain] == 1.0
    assert seen.mean() < 0.9


# --- (d) quota schedules -------------------------------------------------------------------------


def probabilities(selector: E3CS, director: Director, t: int, m: int) -> np.ndarray:
    director.positions = None
    selector.select(context(t, m, [True] * selector.n_clients), np.random.default_rng(t))
    return director.probability


@pytest.mark.parametrize("quota", [0.0, 0.5, 0.8, 1.0])
def test_a_number_and_a_constant_schedule_are_the_same(director: Director, quota: float) -> None:
    tilt = np.linspace(0.0, 3.0, 10)
    for given in (quota, Constant(quota)):
        selector = E3CS(quota=given)
        selector.reset(10)
        selector.log_weight_[:] = tilt
        for t in (0, 7, 1000):
            p = probabilities(selector, director, t, 3)
            expected = capped_allocation(tilt, 3, quota * 3 / 10).probability
            np.testing.assert_allclose(p, expected, rtol=1e-12)


def test_inc_turns_exactly_after_a_quarter(director: Director) -> None:
    # Journal: sigma_t = 0 for 1 <= t <= T/4 and k/K for t > T/4; round = t - 1. T = 20: t <= 5.
    horizon = 20
    selector = E3CS(quota=StepAfter(horizon // 4, 0.0, 1.0))
    selector.reset(6)
    selector.log_weight_[:] = [0.0, 0.0, 1.0, 0.0, 0.5, 0.0]
    greedy = capped_allocation(selector.log_weight_, 2).probability
    for t in range(1, horizon + 1):
        p = probabilities(selector, director, t - 1, 2)
        np.testing.assert_allclose(p, greedy if t <= horizon / 4 else np.full(6, 2 / 6), rtol=1e-9)


def test_linear_and_own_schedules(director: Director) -> None:
    tilt = np.linspace(0.0, 2.0, 8)
    for schedule, values in (
        (Linear(0.2, 0.8, 4), {0: 0.2, 1: 0.35, 2: 0.5, 4: 0.8, 9: 0.8}),
        (Sawtooth(0.1, 0.9), {0: 0.1, 1: 0.5, 2: 0.9, 3: 0.1}),
    ):
        selector = E3CS(quota=schedule)
        selector.reset(8)
        selector.log_weight_[:] = tilt
        for t, quota in values.items():
            expected = capped_allocation(tilt, 3, quota * 3 / 8).probability
            np.testing.assert_allclose(probabilities(selector, director, t, 3), expected, rtol=1e-9)


def test_quota_one_is_uniform_and_learns_nothing(director: Director) -> None:
    # k - K sigma = 0: the exponent of Eq. (11) is 0.
    selector = E3CS(quota=1.0)
    selector.reset(7)
    selector.log_weight_[:] = np.arange(7.0)
    play(selector, director, 0, [0, 3, 5], [1, 0, 1], m=3)
    np.testing.assert_allclose(director.probability, 3 / 7, rtol=1e-12)
    np.testing.assert_allclose(np.diff(selector.log_weight_), 1.0, rtol=1e-9)


def test_the_quota_of_the_moment_of_choice_counts(director: Director) -> None:
    # Feedback of round 1 arrives after round 2 was chosen under another quota.
    quota = StepAfter(2, 0.0, 0.5)
    late, prompt = (E3CS(quota=quota) for _ in range(2))
    for selector in (late, prompt):
        selector.reset(5)
    director.positions = [0, 2]
    first = late.select(context(1, 2, [True] * 5), np.random.default_rng(0))
    director.positions = [1, 2]
    second = late.select(context(2, 2, [True] * 5), np.random.default_rng(0))
    late.observe(second, outcome_of([1, 0]))
    late.observe(first, outcome_of([0, 1]))
    prompt.observe(first, outcome_of([0, 1]))
    prompt.observe(second, outcome_of([1, 0]))
    np.testing.assert_allclose(late.log_weight_, prompt.log_weight_, rtol=1e-12, atol=1e-15)


# --- (e) learning rate of Theorem 1 --------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "eta"),
    [
        # K = 10, k = 3, T = 100, K ln K = 23.0258509.
        (0.0, 0.2770430),  # sum of k - K sigma = 300: sqrt(23.0258509 / 300)
        (0.5, 0.3917980),  # 150
        (StepAfter(25, 0.0, 1.0), 0.5540861),  # 25 * 3 = 75
        (Linear(0.0, 1.0, 100), 0.3898537),  # 3 * (100 - 49.5) = 151.5
    ],
)
def test_theorem_1_rate(director: Director, quota: float, eta: float) -> None:
    selector = E3CS(eta="theorem-1", quota=quota, horizon=100)
    selector.reset(10)
    fixed = E3CS(eta=eta, quota=quota)
    fixed.reset(10)
    for one in (selector, fixed):
        play(one, director, 0, [1, 4, 6], [0, 1, 0], m=3)
    got = selector.log_weight_ - selector.log_weight_[0]
    want = fixed.log_weight_ - fixed.log_weight_[0]
    assert got[1] < 0.0
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-15)


def test_theorem_1_rate_with_nothing_to_learn(director: Director) -> None:
    # sigma_t = k/K throughout: the sum is 0 and the rate has no value, but nothing is learned.
    selector = E3CS(eta="theorem-1", quota=1.0, horizon=10)
    selector.reset(4)
    play(selector, director, 0, [0, 1], [0, 1], m=2)
    np.testing.assert_array_equal(selector.log_weight_, selector.log_weight_[0])


def test_theorem_1_rate_of_a_single_client(director: Director) -> None:
    selector = E3CS(eta="theorem-1", quota=0.0, horizon=10)  # ln 1 = 0
    selector.reset(1)
    play(selector, director, 0, [0], [0], m=1)
    assert np.isfinite(selector.log_weight_).all()


# --- (f) availability ----------------------------------------------------------------------------


@pytest.mark.parametrize("draw", ["exact", "dependent-rounding", "multinomial"])
def test_only_the_available_share_the_cohort(director: Director, draw: str) -> None:
    selector = make("e3cs", quota=0.4, draw=draw)
    assert isinstance(selector, E3CS)
    selector.reset(20)
    rng = np.random.default_rng(3)
    selector.log_weight_[:] = rng.normal(0.0, 2.0, 20)
    for t in range(200):
        available = rng.random(20) < rng.random()
        available[int(rng.integers(20))] = True
        pool = np.flatnonzero(available)
        k = min(6, pool.size)
        selection = selector.select(context(t, 6, available), rng)
        assert selection.clients.size == k
        assert available[selection.clients].all()
        assert director.probability.size == pool.size
        assert director.probability.sum() == pytest.approx(k, rel=1e-9)
        assert director.probability.min() >= 0.4 * k / pool.size * (1.0 - 1e-12)


@pytest.mark.parametrize("draw", ["exact", "dependent-rounding", "multinomial"])
def test_a_round_with_nobody_available(draw: str) -> None:
    selector = make("e3cs", draw=draw, eta="theorem-1", horizon=9)
    assert isinstance(selector, E3CS)
    selector.reset(4)
    selection = selector.select(context(0, 2, [False] * 4), np.random.default_rng(0))
    assert selection.clients.size == 0
    selector.observe(selection, outcome_of([]))
    np.testing.assert_array_equal(selector.log_weight_, 0.0)


# --- (g) bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"quota": -0.1}, "quota"),
        ({"quota": 1.5}, "quota"),
        ({"quota": math.nan}, "quota"),
        ({"quota": "half"}, "quota"),
        ({"quota": Constant(1.5)}, "quota"),
        ({"eta": 0.0}, "eta"),
        ({"eta": -0.5}, "eta"),
        ({"eta": math.nan}, "eta"),
        ({"eta": math.inf}, "eta"),
        ({"eta": "fast"}, "eta"),
        ({"share": 1.5}, "share"),
        ({"share": math.nan}, "share"),
        ({"draw": "x"}, "draw"),
        ({"estimate": "x"}, "estimate"),
        ({"eta": "theorem-1"}, "horizon"),
        ({"eta": "theorem-1", "horizon": 0}, "horizon"),
        ({"eta": "theorem-1", "horizon": -3}, "horizon"),
        ({"eta": "theorem-1", "horizon": 2.5}, "horizon"),
    ],
)
def test_bad_parameters_are_named(parameters: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        make("e3cs", **parameters)
    with pytest.raises(InvalidInput, match=field):
        E3CS(**parameters).reset(5)  # type: ignore[arg-type]


def test_a_schedule_that_breaks_later_leaves_the_state_alone(director: Director) -> None:
    selector = E3CS(quota=BreaksInRound3())
    selector.reset(5)
    for t in range(3):
        play(selector, director, t, [0, t + 1], [1, 0], m=2)
    before = selector.state()
    director.positions = None
    with pytest.raises(InvalidInput, match=r"quota.*round 3"):
        selector.select(context(3, 2, [True] * 5), np.random.default_rng(0))
    after = selector.state()
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])
    selector.select(context(4, 2, [True] * 5), np.random.default_rng(0))


def test_an_outcome_of_the_wrong_size_leaves_the_state_alone() -> None:
    selector = E3CS()
    selector.reset(5)
    selection = selector.select(context(0, 2, [True] * 5), np.random.default_rng(0))
    with pytest.raises(InvalidInput, match="status"):
        selector.observe(selection, outcome_of([1, 0, 1]))
    np.testing.assert_array_equal(selector.log_weight_, 0.0)


# --- (h) numbers stay finite ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("estimate", ["loss", "gain"])
@pytest.mark.parametrize("draw", ["exact", "multinomial"])
def test_quota_zero_stays_finite_for_thousands_of_rounds(estimate: str, draw: str) -> None:
    selector = make("e3cs", eta=0.5, quota=0.0, estimate=estimate, draw=draw)
    assert isinstance(selector, E3CS)
    selector.reset(20)
    rng = np.random.default_rng(13)
    skill = np.repeat([0.1, 0.3, 0.6, 0.9], 5)
    ctx_all = [True] * 20
    for t in range(2000):
        selection = selector.select(context(t, 4, ctx_all), rng)
        assert selection.clients.size == 4
        fate = (rng.random(4) < skill[selection.clients]).astype(int).tolist()
        selector.observe(selection, outcome_of(fate))
        assert np.isfinite(selector.log_weight_).all()


@pytest.mark.parametrize("estimate", ["loss", "gain"])
@pytest.mark.parametrize("success", [0, 1])
def test_a_client_drawn_against_all_odds(director: Director, estimate: str, success: int) -> None:
    # p below 1e-290 and drawn: a jump, but to a number, and the run goes on.
    selector = make("e3cs", eta=0.5, quota=0.0, estimate=estimate)
    assert isinstance(selector, E3CS)
    selector.reset(6)
    for log_weight in (-690.0, -720.0, -5000.0):
        selector.log_weight_[:] = [0.0, 0.0, 0.0, 0.0, log_weight, -1.0]
        director.positions = [0, 4]
        selection = selector.select(context(0, 2, [True] * 6), np.random.default_rng(0))
        assert director.probability[4] < 1e-290
        selector.observe(selection, outcome_of([1, success]))
        # Deviation 5: the estimate divides by 1e-12 at least. Rate = 2 * 0.5 / 6 = 1/6.
        jumps = {("gain", 1): 1e12 / 6, ("loss", 0): -1e12 / 6}
        expected = log_weight + jumps.get((estimate, success), 0.0)
        moved = selector.log_weight_[4] - selector.log_weight_[2]  # 2 was not drawn
        assert moved == pytest.approx(expected, rel=1e-9)
        director.positions = None
        rng = np.random.default_rng(1)
        for t in range(1, 100):
            selection = selector.select(context(t, 2, [True] * 6), rng)
            assert selection.clients.size == 2
            selector.observe(selection, outcome_of([t % 2, 1]))
            assert np.isfinite(selector.log_weight_).all()


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["exact", "dependent-rounding", "multinomial"])
@pytest.mark.parametrize("spread", [1e5, 1e12])
def test_a_run_goes_on_from_a_wide_spread_under_any_quota(draw: str, spread: float) -> None:
    # What a greedy start (quota 0, gain estimate) leaves behind when the quota is raised later.
    for quota in (0.0, 0.3, 0.675, 0.9, 1.0):
        selector = make("e3cs", quota=quota, draw=draw, estimate="gain")
        assert isinstance(selector, E3CS)
        selector.reset(10)
        rng = np.random.default_rng(2)
        selector.log_weight_[:] = np.where(np.arange(10) < 6, spread, rng.uniform(0, 5, 10))
        for t in range(30):
            m = 3 + t % 7
            selection = selector.select(context(t, m, [True] * 10), rng)
            assert selection.clients.size == m
            selector.observe(selection, outcome_of([1] * m))


# --- (i) save and load ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "quota",
    [0.4, StepAfter(5, 0.0, 1.0), Linear(0.0, 0.9, 20), Sawtooth(0.1, 0.7)],
)
def test_save_load_and_continue(tmp_path: Path, quota: float) -> None:
    assert "tests.selectors.test_e3cs" in sys.modules

    def advance(selector: E3CS, rounds: range) -> list[list[int]]:
        drawn = []
        for t in rounds:
            rng = np.random.default_rng([7, t])
            selection = selector.select(context(t, 3, [True] * 12), rng)
            drawn.append(selection.clients.tolist())
            selector.observe(selection, outcome_of([(i + t) % 2 for i in range(3)]))
        return drawn

    straight = E3CS(quota=quota, estimate="gain", draw="multinomial", eta=0.3)
    straight.reset(12)
    advance(straight, range(10))
    save(straight, tmp_path / "e3cs.npz")
    resumed = load(tmp_path / "e3cs.npz")
    assert isinstance(resumed, E3CS)
    assert resumed.parameters == straight.parameters
    assert advance(resumed, range(10, 30)) == advance(straight, range(10, 30))
    np.testing.assert_array_equal(resumed.log_weight_, straight.log_weight_)


def test_theorem_1_rate_of_two_clients(director: Director) -> None:
    # K = 2, k = 1, T = 10: sqrt(2 ln 2 / 10) = 0.3723297
    selector, fixed = E3CS(eta="theorem-1", quota=0.0, horizon=10), E3CS(eta=0.3723297, quota=0.0)
    for one in (selector, fixed):
        one.reset(2)
        play(one, director, 0, [0], [0], m=1)
    assert selector.log_weight_[0] < selector.log_weight_[1]
    np.testing.assert_allclose(selector.log_weight_, fixed.log_weight_, rtol=1e-6)


def test_the_regret_bound_is_that_of_the_learning_rate() -> None:
    quota = np.full(10, 0.5)
    expected = theorem1_bound(quota, 10, 2, 6, 0.7)
    np.testing.assert_array_equal(E3CS(eta=0.7).regret_bound(10, 2, 6), expected)
    best = E3CS(eta="theorem-1", horizon=10).regret_bound(10, 2, 6)
    np.testing.assert_array_equal(best, theorem1_bound(quota, 10, 2, 6, None))
    assert best[-1] < expected[-1]
