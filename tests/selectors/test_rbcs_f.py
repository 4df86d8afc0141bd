from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

import turnout.selectors.rbcs_f as module
from tests.references.rbcs_f_slow import SlowRBCSF, algorithm_1, brute_force, objective
from turnout import load, make, save, simulate
from turnout.core.errors import InvalidInput, MissingColumn
from turnout.core.schedules import Lemma1
from turnout.core.types import Outcome, RoundContext, Selection
from turnout.experiment import rounds
from turnout.sampling.linear import rank_one_update, ridge_start, ridge_width
from turnout.selectors.rbcs_f import RBCSF
from turnout.worlds import rbcs_f_world

SIGMAS = 5.0


def context(
    t: int, m: int, features: np.ndarray | list[list[float]], available: list[bool] | None = None
) -> RoundContext:
    columns = {"context": np.array(features, dtype=float)}
    present = np.ones(len(features), bool) if available is None else np.array(available)
    return RoundContext(round=t, cohort_size=m, available=present, columns=columns)


def finished(durations: list[float]) -> Outcome:
    status = [3 if math.isnan(d) else 0 for d in durations]
    return Outcome(status=status, duration=durations)


def fresh(n: int, **parameters: object) -> RBCSF:
    selector = make("rbcs-f", **parameters)
    assert isinstance(selector, RBCSF)
    selector.reset(n)
    return selector


def with_times(times: list[float], queues: list[float], penalty: float, **more: object) -> RBCSF:
    """A selector whose optimistic times are the given ones for contexts of 1."""
    selector = fresh(len(times), dimension=1, explore=0.0, rate=0.0, penalty=penalty, **more)
    selector.theta_[:] = np.array([times])
    selector.queue_[:] = queues
    return selector


def choose(selector: RBCSF, m: int, seed: int = 0) -> list[int]:
    ones = np.ones((selector.n_clients, selector.dimension))
    return selector.select(context(0, m, ones), np.random.default_rng(seed)).clients.tolist()


@pytest.fixture
def seen_times(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The optimistic times that reach the solver of P4, round by round."""
    seen: list[np.ndarray] = []
    real: Callable[..., float] = module.bottleneck_limit

    def recording(cost: np.ndarray, *rest: object, **named: object) -> float:
        seen.append(np.array(cost))
        return real(cost, *rest, **named)

    monkeypatch.setattr(module, "bottleneck_limit", recording)
    return seen


# --- (a) by hand ---------------------------------------------------------------------------------


def test_three_rounds_by_hand(seen_times: list[np.ndarray]) -> None:
    # N = 2, m = 1, d = 1, beta = 0.25, V = 2, lambda = 1, alpha = 0.5.
    selector = fresh(2, dimension=1, rate=0.25, penalty=2.0, ridge=1.0, explore=0.5)
    rng = np.random.default_rng(0)
    # t = 1: only client 0 is there, context 1. It takes 3 s.
    selection = selector.select(context(0, 1, [[1.0], [2.0]], [True, False]), rng)
    assert selection.clients.tolist() == [0]
    selector.observe(selection, finished([3.0]))
    #   Z = [0 + .25 - 1]+ = 0, 0 + .25 = .25.  H_0 = 1 + 1 = 2, b_0 = 3, theta_0 = 1.5.
    np.testing.assert_allclose(selector.queue_, [0.0, 0.25])
    np.testing.assert_allclose(selector.theta_, [[1.5, 0.0]])
    np.testing.assert_allclose(selector.inverse_, [[[0.5, 1.0]]])
    # t = 2: contexts 2 and 1.
    #   tau_0 = 2 * 1.5 - .5 sqrt(4/2) = 3 - .7071068 = 2.2928932; tau_1 = max(0 - .5, 0) = 0.
    #   {0}: 2 * 2.2928932 - 0 = 4.59; {1}: 0 - .25 = -.25. Client 1. It takes 5 s.
    selection = selector.select(context(1, 1, [[2.0], [1.0]]), rng)
    np.testing.assert_allclose(seen_times[-1], [2.2928932, 0.0], rtol=1e-7)
    assert selection.clients.tolist() == [1]
    selector.observe(selection, finished([5.0]))
    #   Z = 0 + .25, [.25 + .25 - 1]+ = 0.  H_1 = 2, b_1 = 5, theta_1 = 2.5.
    np.testing.assert_allclose(selector.queue_, [0.25, 0.0])
    np.testing.assert_allclose(selector.theta_, [[1.5, 2.5]])
    # t = 3: contexts 1 and 1: tau_0 = 1.5 - .5 sqrt(1/2) = 1.1464466, tau_1 = 2.1464466.
    #   {0}: 2.2928932 - .25; {1}: 4.2928932. Client 0, 2 s: H_0 = 3, b_0 = 5, theta_0 = 1.6666667.
    selection = selector.select(context(2, 1, [[1.0], [1.0]]), rng)
    np.testing.assert_allclose(seen_times[-1], [1.1464466, 2.1464466], rtol=1e-7)
    assert selection.clients.tolist() == [0]
    selector.observe(selection, finished([2.0]))
    np.testing.assert_allclose(selector.queue_, [0.0, 0.25])
    np.testing.assert_allclose(selector.theta_, [[5.0 / 3.0, 2.5]])


def test_ridge_by_hand_in_three_dimensions(seen_times: list[np.ndarray]) -> None:
    # Eq. (17): D = [1 0 2; 1 1 0], y = (4, 3), lambda = 1.
    #   D'D + I = [3 1 2; 1 2 0; 2 0 5], det = 17,
    #   inverse = [10 -5 -4; -5 11 2; -4 2 5] / 17, D'y = (7, 3, 8)
    #   theta = (70 - 15 - 32, -35 + 33 + 16, -28 + 6 + 40) / 17 = (23, 14, 18) / 17
    selector = fresh(2, rate=0.1, explore=0.2, ridge=1.0)
    rng = np.random.default_rng(0)
    for t, (c, duration) in enumerate([([1.0, 0.0, 2.0], 4.0), ([1.0, 1.0, 0.0], 3.0)]):
        ctx = context(t, 1, [c, [9.0, 9.0, 9.0]], [True, False])
        selector.observe(selector.select(ctx, rng), finished([duration]))
    np.testing.assert_allclose(selector.theta_[:, 0], np.array([23, 14, 18]) / 17, rtol=1e-12)
    inverse = np.array([[10, -5, -4], [-5, 11, 2], [-4, 2, 5]]) / 17
    np.testing.assert_allclose(selector.inverse_[:, :, 0], inverse, rtol=1e-12)
    # Eq. (19) at c = (1, 1, 1): c'theta = 55/17, c'H^-1 c = 12/17,
    #   tau = 3.2352941 - 0.2 * 0.8401681 = 3.0672605. The other client: 0 - 0.2 sqrt(3) -> 0.
    selector.select(context(2, 1, [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]), rng)
    np.testing.assert_allclose(seen_times[-1], [3.0672605, 0.0], rtol=1e-7)


def test_p4_by_hand() -> None:
    # tau = 1, 2, 3, 10; Z = 0, 1, 4, 5; m = 2. V = 1:
    #   {0,1}: 2-1 = 1  {0,2}: 3-4 = -1  {1,2}: 3-5 = -2  {0,3}: 10-5 = 5  {1,3}: 4  {2,3}: 1
    times, queues = [1.0, 2.0, 3.0, 10.0], [0.0, 1.0, 4.0, 5.0]
    assert choose(with_times(times, queues, 1.0), 2) == [1, 2]
    # V = 0: the longest queues. V = 10: {0,1}: 19, {1,2}: 25, {2,3}: 91: the fastest.
    assert choose(with_times(times, queues, 0.0), 2) == [2, 3]
    assert choose(with_times(times, queues, 10.0), 2) == [0, 1]
    # V = 0.1: {1,2}: -4.7, {2,3}: -8: the queues.
    assert choose(with_times(times, queues, 0.1), 2) == [2, 3]
    assert choose(with_times(times, queues, 1.0), 9) == [0, 1, 2, 3]


def test_queues_grow_for_the_absent_too() -> None:
    selector = fresh(3, rate=0.4)
    rng = np.random.default_rng(0)
    for t in range(5):
        ctx = context(t, 2, np.ones((3, 3)), [True, True, False])
        selector.observe(selector.select(ctx, rng), finished([1.0, 1.0]))
    # [0.4 - 1]+ = 0 for the two that are always chosen, 5 * 0.4 = 2 for the absent one.
    np.testing.assert_allclose(selector.queue_, [0.0, 0.0, 2.0])


# --- the regression ------------------------------------------------------------------------------


@pytest.mark.slow
def test_rank_one_updates_equal_a_direct_solve() -> None:
    rng = np.random.default_rng(4)
    d, n, ridge = 4, 7, 0.3
    inverse, theta = ridge_start(d, ridge, n)
    assert inverse.shape == (d, d, n)
    assert theta.shape == (d, n)
    H, b = np.stack([ridge * np.eye(d)] * n), np.zeros((n, d))
    for _ in range(200):
        c, y = rng.normal(0.0, 2.0, (d, n)), rng.normal(0.0, 5.0, n)
        width = ridge_width(inverse, c)
        expected = [math.sqrt(c[:, i] @ np.linalg.inv(H[i]) @ c[:, i]) for i in range(n)]
        np.testing.assert_allclose(width, expected, rtol=1e-8)
        inverse, theta = rank_one_update(inverse, theta, c, y)
        for i in range(n):
            H[i] += np.outer(c[:, i], c[:, i])
            b[i] += y[i] * c[:, i]
            np.testing.assert_allclose(inverse[:, :, i], np.linalg.inv(H[i]), rtol=1e-8, atol=1e-12)
            np.testing.assert_allclose(
                theta[:, i], np.linalg.inv(H[i]) @ b[i], rtol=1e-7, atol=1e-10
            )


def test_the_inverse_stays_positive_over_many_equal_observations() -> None:
    inverse, theta = ridge_start(3, 1.0, 1)
    c = np.array([[1.0], [1.0], [10.0]])
    for _ in range(5000):
        inverse, theta = rank_one_update(inverse, theta, c, np.array([25.0]))
    # H = I + t c c': c'H^-1 c = |c|^2 / (1 + t |c|^2)
    assert ridge_width(inverse, c)[0] == pytest.approx(math.sqrt(102 / (1 + 5000 * 102)), rel=1e-6)
    assert float(c[:, 0] @ theta[:, 0]) == pytest.approx(25.0, rel=1e-4)
    assert np.linalg.eigvalsh(inverse[:, :, 0]).min() > 0.0


# --- (b) against the slow reference --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_runs_equal_the_slow_reference(seen_times: list[np.ndarray], seed: int, clip: bool) -> None:
    rng = np.random.default_rng(seed)
    n, m, d = int(rng.integers(4, 15)), int(rng.integers(1, 4)), int(rng.integers(1, 5))
    penalty = [0.05, 0.3, 1.0, 5.0, 20.0, 0.0][seed]
    alpha = Lemma1(noise=0.3, context_bound=4.0, coefficient_bound=0.5)
    rate = 0.5 * m / n
    selector = fresh(
        n, dimension=d, rate=rate, penalty=penalty, ridge=0.7, explore=alpha, clip=clip
    )
    slow = SlowRBCSF(n, d, rate, penalty, ridge=0.7)
    truth = rng.uniform(0.2, 3.0, (n, d))
    for t in range(80):
        features = rng.uniform(0.1, 2.0, (n, d))
        available = rng.random(n) < 0.8
        available[rng.choice(n, size=m, replace=False)] = True
        times = slow.times(features, alpha(t), clip)
        ctx = context(t, m, features, available.tolist())
        selection = selector.select(ctx, np.random.default_rng([seed, t]))
        chosen = selection.clients.tolist()
        pool = np.flatnonzero(available)
        assert available[chosen].all()
        assert len(chosen) == min(m, pool.size)
        if len(seen_times) > t:  # one call of the solver a round
            np.testing.assert_allclose(seen_times[t], np.array(times)[pool], rtol=1e-8, atol=1e-8)
        _, best = algorithm_1(times, m, available.tolist(), slow.Z, penalty)
        assert objective(chosen, times, slow.Z, penalty) == pytest.approx(best, rel=1e-8, abs=1e-8)
        durations = np.abs(np.sum(features * truth, axis=1) + rng.normal(0.0, 0.3, n))[chosen]
        durations[rng.random(len(chosen)) < 0.25] = np.nan
        selector.observe(selection, finished(durations.tolist()))
        slow.update(chosen, features, durations.tolist())
        np.testing.assert_allclose(selector.queue_, slow.Z, rtol=1e-8, atol=1e-9)
        theta = np.array([slow.theta(i) for i in range(n)]).T
        np.testing.assert_allclose(selector.theta_, theta, rtol=1e-8, atol=1e-8)
    assert len(seen_times) == 80


def test_a_late_report_teaches_the_context_of_its_round() -> None:
    late, prompt = fresh(4, rate=0.2), fresh(4, rate=0.2)
    rng = np.random.default_rng(3)
    everyone = [context(t, 4, rng.uniform(0.5, 2.0, (4, 3))) for t in range(3)]
    selections = [late.select(ctx, rng) for ctx in everyone]
    outcomes = [finished(rng.uniform(1.0, 5.0, 4).tolist()) for _ in range(3)]
    for i in (2, 0, 1):
        late.observe(selections[i], outcomes[i])
    for i in (0, 1, 2):
        prompt.observe(selections[i], outcomes[i])
    np.testing.assert_allclose(late.theta_, prompt.theta_, rtol=1e-10)
    np.testing.assert_allclose(late.inverse_, prompt.inverse_, rtol=1e-10, atol=1e-14)


# --- (c) P4 inside the selector ------------------------------------------------------------------


def test_p4_equals_brute_force() -> None:
    rng = np.random.default_rng(6)
    for trial in range(300):
        n = int(rng.integers(1, 9))
        k = int(rng.integers(1, n + 1))
        if trial % 2:  # many ties in time and in queue
            times, queues = rng.integers(0, 4, n).astype(float), rng.integers(0, 3, n) * 0.5
        else:
            times, queues = rng.uniform(0.0, 9.0, n), rng.exponential(2.0, n)
        penalty = float(rng.choice([0.0, 0.2, 1.0, 20.0]))
        selector = with_times(times.tolist(), queues.tolist(), penalty)
        chosen = choose(selector, k, seed=trial)
        assert len(chosen) == k
        best = brute_force(times.tolist(), k, queues.tolist(), penalty)
        got = objective(chosen, times.tolist(), queues.tolist(), penalty)
        assert got == pytest.approx(best, rel=1e-9, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "queues", "tied"),
    [
        ([0.0] * 6, [0.0] * 6, range(6)),  # the first round
        ([3.0] * 6, [1.0] * 6, range(6)),
        ([1.0, 1.0, 1.0, 2.0, 9.0, 9.0], [1.0] * 6, range(3)),  # the fastest, tied
        ([1.0, 5.0, 5.0, 5.0, 5.0, 1.0], [0.0, 7.0, 7.0, 7.0, 7.0, 0.0], range(1, 5)),
    ],
)
def test_ties_do_not_favour_an_index(times: list[float], queues: list[float], tied: range) -> None:
    draws = 1500
    selector = with_times(times, queues, 1.0)
    ctx = context(0, 2, np.ones((6, 1)))
    rng = np.random.default_rng(8)
    counts = np.zeros(6)
    p = np.zeros(6)
    p[list(tied)] = 2 / len(tied)
    for _ in range(draws):
        selection = selector.select(ctx, rng)
        counts[selection.clients] += 1
        assert selection.probability is not None
        assert np.array_equal(selection.probability, p[selection.clients])
    assert np.all(np.abs(counts / draws - p) <= SIGMAS * np.sqrt(p * (1 - p) / draws) + 1e-12)


# --- (d) the guarantee ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [1.0, 10.0])
def test_every_client_gets_its_rate(penalty: float) -> None:
    # N = 10, m = 3, beta = 0.2: 2 of 3 places are promised. Slow clients would never be chosen
    # for their speed. Eq. (6) gives sum(x) >= beta T - Z_T, so everyone has the rate as soon as
    # the queues are long enough to pay for the slow ones.
    n, m, rate, rounds = 10, 3, 0.2, 1600
    selector = fresh(n, rate=rate, penalty=penalty)
    rng = np.random.default_rng(9)
    truth = np.linspace(0.5, 4.0, n)[:, None] * np.ones(3)
    counts, halfway = np.zeros(n), np.zeros(n)
    for t in range(rounds):
        if t == rounds // 2:
            halfway = counts.copy()
        features = rng.uniform(0.5, 2.0, (n, 3))
        available = rng.random(n) < 0.8
        available[int(rng.integers(n))] = True
        selection = selector.select(context(t, m, features, available.tolist()), rng)
        mean = np.sum(features * truth, axis=1)[selection.clients]
        selector.observe(selection, finished((mean * rng.uniform(0.0, 2.0, mean.size)).tolist()))
        counts[selection.clients] += 1
    np.testing.assert_array_less(rate * rounds - selector.queue_ - 1e-6, counts)
    assert (counts - halfway).min() / (rounds / 2) >= 0.95 * rate
    assert counts[0] > 1.2 * counts[-1]  # and speed still counts


# --- (e) infeasible rate -------------------------------------------------------------------------


def test_an_infeasible_rate_is_warned_about() -> None:
    selector = fresh(10, rate=0.5)  # 5 places a round are promised, 3 exist
    said = r"cohort_size is 3: queues will grow.* Lower rate or raise cohort_size\.$"
    with pytest.warns(Warning, match=said):
        selector.select(context(0, 3, np.ones((10, 3))), np.random.default_rng(0))


def played_with_availability(share: float, rounds: int = 60) -> None:
    """N = 40, m = 8, beta = 0.15: six places a round are promised."""
    selector, rng = fresh(40, rate=0.15), np.random.default_rng(0)
    for t in range(rounds):
        available = rng.random(40) < share
        ctx = context(t, 8, np.ones((40, 3)), available.tolist())
        selection = selector.select(ctx, rng)
        s = selection.clients.size
        selector.observe(selection, Outcome([0] * s, [1.0] * s))


def test_a_rate_that_availability_makes_infeasible_is_warned_about() -> None:
    said = r"needs 6 places a round.*available.*a cohort has [34].* without bound\. Lower rate\.$"
    with pytest.warns(Warning, match=said):
        played_with_availability(0.1)  # the mean cohort is about 4


def test_a_rate_that_availability_leaves_feasible_is_not_warned_about() -> None:
    played_with_availability(0.3)  # the mean cohort is about 7.8, single rounds are below 6


def test_a_feasible_rate_is_not_warned_about() -> None:
    # The border itself is feasible, also where rate * n is above it by rounding: 0.07 * 100 > 7.
    for rate, m, n in ((0.3, 3, 10), (0.0, 1, 10), (0.29, 3, 10), (0.15, 6, 40), (0.07, 7, 100)):
        selector = fresh(n, rate=rate)
        selector.select(context(0, m, np.ones((n, 3))), np.random.default_rng(0))


# --- (f) exploration and clipping ----------------------------------------------------------------


def test_lemma_1_by_hand(seen_times: list[np.ndarray]) -> None:
    # R = 1, L = 2, S = 3, lambda = 4, delta = 0.1.
    #   t = 1: (1 + 1 * 4/4) / 0.1 = 20, ln 20 = 2.9957323, sqrt(8.9871968) = 2.9978653,
    #          + 2 * 3 = 8.9978653
    #   t = 9: (1 + 9) / 0.1 = 100, ln 100 = 4.6051702, sqrt(13.8155106) = 3.7169222, + 6
    alpha = Lemma1(noise=1.0, context_bound=2.0, coefficient_bound=3.0, ridge=4.0, delta=0.1)
    assert alpha(0) == pytest.approx(8.9978653, rel=1e-7)
    assert alpha(8) == pytest.approx(9.7169222, rel=1e-7)
    # In the selector: theta = 0, H = 4 I, c = 1 in one dimension: tau = -alpha_t / 2.
    selector = fresh(2, dimension=1, rate=0.0, ridge=4.0, explore=alpha, clip=False)
    for t, value in ((0, -4.4989327), (8, -4.8584611)):
        selector.select(context(t, 1, [[1.0], [1.0]]), np.random.default_rng(0))
        np.testing.assert_allclose(seen_times[-1], [value, value], rtol=1e-7)


def test_clipping_changes_the_choice() -> None:
    # theta = 0, alpha = 1, contexts 5 and 1: tau = -5 and -1, Z = 0 and 2, V = 1, m = 1.
    #   Alg. 2 line 9: {0}: -5, {1}: -1 - 2 = -3: client 0. Eq. (19): {0}: 0, {1}: -2: client 1.
    for clip, expected in ((True, [1]), (False, [0])):
        selector = fresh(2, dimension=1, rate=0.0, penalty=1.0, explore=1.0, clip=clip)
        selector.queue_[:] = [0.0, 2.0]
        for seed in range(10):
            ctx = context(0, 1, [[5.0], [1.0]])
            assert selector.select(ctx, np.random.default_rng(seed)).clients.tolist() == expected


# --- (g) bad input -------------------------------------------------------------------------------


def assert_unchanged(selector: RBCSF, before: dict[str, np.ndarray]) -> None:
    after = selector.state()
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])


@pytest.mark.parametrize("shape", [(5, 2), (5, 4), (5,)])
def test_contexts_of_another_dimension_are_refused(shape: tuple[int, ...]) -> None:
    selector = fresh(5, rate=0.1)
    before = selector.state()
    columns = {"context": np.ones(shape)}
    ctx = RoundContext(round=0, cohort_size=2, available=[True] * 5, columns=columns)
    with pytest.raises(InvalidInput, match="dimension"):
        selector.select(ctx, np.random.default_rng(0))
    assert_unchanged(selector, before)


def test_contexts_are_needed() -> None:
    selector = fresh(5, rate=0.1)
    ctx = RoundContext(round=0, cohort_size=2, available=[True] * 5)
    with pytest.raises(MissingColumn, match="context"):
        selector.select(ctx, np.random.default_rng(0))


def test_a_client_without_a_context_is_not_taken_to_be_fast() -> None:
    rng = np.random.default_rng(1)
    features = rng.uniform(0.5, 2.0, (40, 3))
    seconds = features @ [3.0, 1.0, 2.0]
    features[:4] = math.nan
    seconds[:4] = np.sort(seconds)[-4:]
    selector, places = fresh(40, rate=0.05), np.zeros(40)
    for t in range(400):
        selection = selector.select(context(t, 4, features), rng)
        selector.observe(selection, finished(seconds[selection.clients].tolist()))
        places[selection.clients] += 1
    assert places[:4].mean() < places[4:].mean()  # as zeros they had 10 times their fair share


def play_with_seconds(
    penalty: float, seconds: float, n_rounds: int, rate: float = 0.1
) -> np.ndarray:
    """Return the largest queue after each round; times lie between 0.2 and 1 of ``seconds``."""
    rng = np.random.default_rng(3)
    share = np.linspace(0.2, 1.0, 40)
    selector, largest = fresh(40, rate=rate, penalty=penalty), np.zeros(n_rounds)
    for t in range(n_rounds):
        selection = selector.select(context(t, 8, np.outer(share, [1.0, 0.0, 0.0])), rng)
        selector.observe(selection, finished((seconds * share[selection.clients]).tolist()))
        largest[t] = selector.queue_.max()
    return largest


@pytest.mark.slow
def test_a_queue_grows_to_the_penalty_times_the_spread_per_place() -> None:
    for penalty in (10.0, 20.0):
        largest = play_with_seconds(penalty, 5.0, 600)
        assert largest.max() == pytest.approx(penalty * 4.0 / 8, rel=0.25)  # spread 4 s, m = 8


def test_a_rate_that_comes_late_is_told_once() -> None:
    said = r"about \d\d places.* 10% of rate = 0.1 after about \d,000 rounds.*Lower penalty"
    with pytest.warns(UserWarning, match=said) as told:
        play_with_seconds(20.0, 20.0, 40)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play_with_seconds(20.0, 5.0, 40)  # 900 rounds
        play_with_seconds(0.0, 1000.0, 40)
        play_with_seconds(20.0, 20.0, 40, rate=0.0)  # nothing is promised
        play_with_seconds(0.4, 20.0, 40, rate=0.005)  # 0.7 places, which no schedule could avoid


@pytest.mark.filterwarnings("ignore:penalty")  # the rate comes late
def test_the_predicted_wait_is_what_a_run_takes() -> None:
    selector = fresh(40, rate=0.15, penalty=5.0)
    n_chosen, n_rounds, last_short = np.zeros(40), 1000, 0
    for record in rounds(selector, rbcs_f_world(seed=1), cohort_size=8, n_rounds=n_rounds):
        n_chosen[record.selection.clients] += 1.0
        if record.round == 29:
            predicted = selector.rounds_to_rate(record.context)
        if n_chosen.min() < 0.9 * 0.15 * (record.round + 1):
            last_short = record.round + 1
    assert 300 < last_short < n_rounds
    assert predicted == pytest.approx(last_short, rel=0.5)
    nobody = RoundContext(0, 8, np.zeros(40, dtype=bool), columns={"context": np.ones((40, 3))})
    assert selector.rounds_to_rate(nobody) == math.inf
    assert fresh(40, rate=0.0).rounds_to_rate(record.context) == 0.0


def test_guarded_makes_the_same_promise_without_the_wait() -> None:
    # floor = rate x n / cohort: at most two places short, a tenth after 2 / 0.015 rounds.
    parameters = {"rate": 0.15, "penalty": 50.0}
    guarded = make("guarded", inner="rbcs-f", floor=0.75, inner_parameters=parameters)
    least = []
    for selector in (guarded, make("rbcs-f", **parameters)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the rate comes late
            run = simulate(selector, rbcs_f_world(seed=1), cohort_size=8, n_rounds=140)
        least.append(run.counts.min() / (140 * 0.15))
    assert least[0] >= 0.9
    assert least[1] < 0.5


def test_impossible_contexts_leave_the_state_finite() -> None:
    selector = fresh(6, rate=0.1)
    rng = np.random.default_rng(5)
    for t in range(40):
        features = rng.uniform(0.5, 2.0, (6, 3))
        features[t % 6, t % 3] = [math.nan, math.inf, -math.inf, 1e300][t % 4]
        features[(t + 1) % 6] = math.nan
        selection = selector.select(context(t, 3, features), rng)
        assert selection.clients.size == 3
        selector.observe(selection, finished(rng.uniform(1.0, 9.0, 3).tolist()))
        for value in selector.state().values():
            assert np.isfinite(value).all()
    # Where nobody's context is known it is zero, and teaches nothing.
    one = fresh(1, rate=0.1)
    selection = one.select(context(0, 1, [[math.nan] * 3]), rng)
    one.observe(selection, finished([7.0]))
    np.testing.assert_array_equal(one.theta_, 0.0)
    np.testing.assert_allclose(one.inverse_[:, :, 0], np.eye(3))


@pytest.mark.parametrize("size", [1e-30, 1e15, 1e29])
def test_extreme_contexts_and_durations_stay_finite(size: float) -> None:
    selector = fresh(3, rate=0.1)
    rng = np.random.default_rng(5)
    for t in range(10):
        ctx = context(t, 2, size * rng.uniform(0.5, 2.0, (3, 3)))
        selection = selector.select(ctx, rng)
        selector.observe(selection, finished([1e30, 0.0]))
        for value in selector.state().values():
            assert np.isfinite(value).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *product(["rate"], [-0.1, 1.5, math.nan, "x"]),
        *product(["penalty"], [-1.0, math.inf, math.nan]),
        *product(["ridge"], [0.0, -1.0, math.nan]),
        *product(["explore"], [-0.1, math.nan, "x"]),
        *product(["dimension"], [0, -1, 2.5]),
    ],
)
def test_bad_parameters_are_named(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        make("rbcs-f", **{name: value})
    with pytest.raises(InvalidInput, match=name):
        RBCSF(**{name: value}).reset(4)  # type: ignore[arg-type]


def test_nobody_known_teaches_nothing_but_serves_the_queues() -> None:
    selector = fresh(4, rate=0.3)
    selector.queue_[:] = 2.0
    ctx = context(0, 2, np.ones((4, 3)))
    selection = selector.select(ctx, np.random.default_rng(1))
    selector.observe(selection, finished([math.nan, math.nan]))
    expected = np.full(4, 2.3)
    expected[selection.clients] -= 1.0
    np.testing.assert_allclose(selector.queue_, expected)
    np.testing.assert_array_equal(selector.theta_, 0.0)


def test_a_silent_client_counts_as_taking_until_the_deadline() -> None:
    # d = 1, c = 1: H = 2, b = 8 for the silent one (deadline 8), theta = 4; b = 2, theta = 1.
    selector = fresh(2, dimension=1, rate=0.1)
    columns = {"context": np.ones((2, 1))}
    ctx = RoundContext(0, 2, np.ones(2, bool), deadline=8.0, columns=columns)
    selection = selector.select(ctx, np.random.default_rng(0))
    selector.observe(selection, finished([math.nan, 2.0]))
    np.testing.assert_allclose(selector.theta_, [[4.0, 1.0]])
    # Without a deadline it counts as the median of its cohort: b = 2 for both.
    selector = fresh(2, dimension=1, rate=0.1)
    selection = selector.select(context(0, 2, [[1.0], [1.0]]), np.random.default_rng(0))
    selector.observe(selection, finished([math.nan, 2.0]))
    np.testing.assert_allclose(selector.theta_, [[1.0, 1.0]])


def test_a_silent_client_does_not_hold_a_place() -> None:
    # Times 1 for the honest; without the stand-in client 0 would look like 0 s in every round.
    selector = fresh(10, dimension=1, rate=0.0, explore=0.1)
    counts = np.zeros(10)
    for t in range(200):
        ctx = context(t, 2, np.ones((10, 1)))
        selection = selector.select(ctx, np.random.default_rng(t))
        counts[selection.clients] += 1
        times = [math.nan if i == 0 else 1.0 for i in selection.clients]
        selector.observe(selection, finished(times))
    assert counts[0] < 100


def test_a_late_answer_of_known_duration_teaches() -> None:
    # d = 1, H = 1 + 1 = 2, b = 6: theta = 3, whether or not the deadline was met.
    selector = fresh(2, dimension=1, rate=0.1)
    selection = selector.select(context(0, 2, [[1.0], [1.0]]), np.random.default_rng(0))
    selector.observe(selection, Outcome(status=[0, 1], duration=[6.0, 6.0]))
    np.testing.assert_allclose(selector.theta_, [[3.0, 3.0]])


def test_a_round_with_nobody_available_lets_the_queues_grow() -> None:
    selector = fresh(4, rate=0.3)
    ctx = context(0, 2, np.ones((4, 3)), [False] * 4)
    selection = selector.select(ctx, np.random.default_rng(0))
    assert selection.clients.size == 0
    selector.observe(selection, finished([]))
    np.testing.assert_allclose(selector.queue_, 0.3)


def test_select_changes_nothing() -> None:
    selector = fresh(6, rate=0.2)
    rng = np.random.default_rng(2)
    selector.observe(
        selector.select(context(0, 3, rng.uniform(1, 2, (6, 3))), rng), finished([1.0, 2.0, 3.0])
    )
    before = selector.state()
    ctx = context(1, 3, rng.uniform(1, 2, (6, 3)))
    first = selector.select(ctx, np.random.default_rng(7))
    again = selector.select(ctx, np.random.default_rng(7))
    assert isinstance(first, Selection)
    assert first.clients.tolist() == again.clients.tolist()
    assert_unchanged(selector, before)


def test_save_load_and_continue(tmp_path: object) -> None:
    path = f"{tmp_path}/rbcs_f.npz"
    alpha = Lemma1(noise=0.2, context_bound=3.0, coefficient_bound=1.0)

    def advance(selector: RBCSF, rounds: range) -> list[list[int]]:
        drawn = []
        for t in rounds:
            rng = np.random.default_rng([11, t])
            ctx = context(t, 3, rng.uniform(0.5, 2.0, (8, 3)))
            selection = selector.select(ctx, rng)
            drawn.append(selection.clients.tolist())
            selector.observe(selection, finished(rng.uniform(1.0, 5.0, 3).tolist()))
        return drawn

    straight = fresh(8, rate=0.2, explore=alpha)
    advance(straight, range(15))
    save(straight, path)
    resumed = load(path)
    assert isinstance(resumed, RBCSF)
    assert resumed.parameters == straight.parameters
    assert advance(resumed, range(15, 40)) == advance(straight, range(15, 40))
    for name, value in straight.state().items():
        np.testing.assert_array_equal(value, resumed.state()[name])


def test_a_rate_that_comes_late_is_told_after_30_rounds() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play_with_seconds(20.0, 20.0, 30)
    with pytest.warns(UserWarning, match="Lower penalty"):
        play_with_seconds(20.0, 20.0, 31)


@dataclass(frozen=True)
class BelowZeroAtFirst:
    def __call__(self, round: int) -> float:
        return -1.0 if round == 0 else 0.1


def test_a_schedule_is_checked_in_the_first_round() -> None:
    with pytest.raises(InvalidInput, match="explore"):
        make("rbcs-f", explore=BelowZeroAtFirst())
