"""Estimates from logs, against formulas written out, hand-worked examples and frequencies."""

import math

import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.results.offpolicy import BLOCKS, LEAST_EFFECTIVE, Judgement, Weighted
from turnout.results.statistics import student_quantile
from turnout.sampling import systematic_draw


def single_place_log(n_rounds: int = 400, n_clients: int = 5):
    """Return a log with one place a round: contexts decide chances, as in a contextual bandit."""
    rng = np.random.default_rng(11)
    p = rng.dirichlet(np.full(n_clients, 3.0), n_rounds)
    q = rng.dirichlet(np.full(n_clients, 3.0), n_rounds)
    rates = np.linspace(0.1, 0.9, n_clients)
    action = np.array([rng.choice(n_clients, p=row) for row in p])
    reward = (rng.random(n_rounds) < rates[action]).astype(float)
    model = np.tile(rates + 0.1, (n_rounds, 1))
    rows = np.arange(n_rounds)
    weighted = Weighted(
        np.arange(n_rounds + 1), p[rows, action], q[rows, action], np.ones(n_rounds)
    )
    return weighted, p, q, action, reward, model


def test_single_place_follows_the_formulas_of_open_bandit_pipeline():
    """IPW, SNIPW and DR as its documentation states them, one round after the other."""
    weighted, p, q, action, reward, model = single_place_log()
    n = reward.size
    ipw = snipw = total = dr = 0.0
    for t in range(n):
        w = q[t, action[t]] / p[t, action[t]]
        ipw += w * reward[t] / n
        snipw += w * reward[t]
        total += w
        dm = sum(q[t, a] * model[t, a] for a in range(q.shape[1]))
        dr += (dm + w * (reward[t] - model[t, action[t]])) / n
    expected = (q * model).sum(axis=1)
    predicted = model[np.arange(n), action]
    assert weighted.inverse_propensity(reward).mean == pytest.approx(ipw)
    assert weighted.self_normalised(reward).mean == pytest.approx(snipw / total)
    found = weighted.doubly_robust(reward, predicted, expected)
    assert found.mean == pytest.approx(dr)
    assert weighted.support.mean == pytest.approx(total / n)
    # What obp 0.4.1 itself says of this log: IPW, SNIPW and DR.
    by_obp = (0.5235050882594716, 0.5001965939094787, 0.4759400303381588)
    ours = (weighted.inverse_propensity(reward), weighted.self_normalised(reward), found)
    assert [each.mean for each in ours] == pytest.approx(by_obp, rel=1e-14)


def test_two_places_by_hand():
    """Two rounds, two places each; weights 2, 0 and 1, 3."""
    weighted = Weighted([0, 2, 4], [0.5, 0.5, 0.5, 0.25], [1.0, 0.0, 0.5, 0.75], [2.0, 1.0])
    value = [3.0, 9.0, 1.0, 2.0]
    assert weighted.weight.tolist() == [2.0, 0.0, 1.0, 3.0]
    assert weighted.inverse_propensity(value).mean == pytest.approx((6 + 7) / 3)
    assert weighted.self_normalised(value).mean == pytest.approx(13 / 6)
    assert weighted.n_effective == pytest.approx(36 / 14)
    assert weighted.as_logged(value).mean == pytest.approx(15 / 4)
    # The model expects 2 everywhere: 2 * 3 places, corrected by 2 * 1 + 1 * -1 + 3 * 0.
    robust = weighted.doubly_robust(value, np.full(4, 2.0), np.array([4.0, 2.0]))
    assert robust.mean == pytest.approx((6 + 2 - 1) / 3)


def test_residuals_sum_to_zero_and_differences_take_the_same_rounds():
    """Errors of two judgements of one log are compared round by round."""
    weighted, *_, reward, _ = single_place_log()
    ours, now = weighted.self_normalised(reward), weighted.as_logged(reward)
    assert ours.residual.sum() == pytest.approx(0.0, abs=1e-12)
    step = ours.minus(now)
    assert step.mean == pytest.approx(ours.mean - now.mean)
    assert step.half_width < ours.half_width + now.half_width
    same = ours.minus(ours)
    assert (same.mean, same.half_width) == (0.0, 0.0)


def test_interval_is_students_over_blocks():
    """With as many rounds as blocks, it is the usual interval of a mean."""
    values = np.random.default_rng(3).normal(size=BLOCKS)
    mean = values.mean()
    found = Judgement(mean, (values - mean) / BLOCKS, 100.0)
    half = student_quantile(BLOCKS - 1) * values.std(ddof=1) / math.sqrt(BLOCKS)
    assert found.half_width == pytest.approx(half)
    assert math.isnan(Judgement(1.0, np.zeros(1), 1.0).half_width)


def test_combinatorial_estimates_are_unbiased_and_their_intervals_cover():
    """Logged by unequal systematic sampling, judged by other unequal chances; the truth is exact.

    300 logs. The bounds allow 3.5 standard errors: of the mean for bias, of a share of 300 for
    coverage of 95 %.
    """

    rng = np.random.default_rng(17)
    n, m, n_rounds, n_logs = 30, 6, 120, 300
    p = np.clip(np.linspace(0.08, 0.32, n), 0.0, 1.0)
    p *= m / p.sum()
    q = p[::-1].copy()
    rates = np.linspace(0.9, 0.1, n)
    truth = float(q @ rates) / m
    errors, inside = {}, {}
    for _ in range(n_logs):
        chosen = np.stack([np.sort(systematic_draw(p, rng)) for _ in range(n_rounds)])
        clients = chosen.ravel()
        value = (rng.random(clients.size) < rates[clients]).astype(float)
        log = Weighted(
            np.arange(0, clients.size + 1, m), p[clients], q[clients], np.full(n_rounds, float(m))
        )
        model = np.full(n, 0.5)
        for name, found in {
            "ips": log.inverse_propensity(value),
            "sn": log.self_normalised(value),
            "dr": log.doubly_robust(value, model[clients], np.full(n_rounds, q @ model)),
        }.items():
            errors.setdefault(name, []).append(found.mean - truth)
            inside.setdefault(name, []).append(found.low <= truth <= found.high)
    for name, error in errors.items():
        standard_error = np.std(error, ddof=1) / math.sqrt(n_logs)
        assert abs(np.mean(error)) < 3.5 * standard_error, name
        margin = 3.5 * math.sqrt(0.05 * 0.95 / n_logs)
        assert abs(np.mean(inside[name]) - 0.95) < margin, name


def test_all_failures_do_not_give_a_certain_zero():
    """No success in 60 places: the rate may be 7 %, by Wilson with Student's quantile."""
    wide = student_quantile(BLOCKS - 1) ** 2
    log = Weighted(np.arange(0, 61, 2), np.full(60, 0.5), np.full(60, 0.5), np.full(30, 2.0))
    for found in (
        log.inverse_propensity(np.zeros(60)),
        log.self_normalised(np.zeros(60)),
        log.doubly_robust(np.zeros(60), np.zeros(60), np.zeros(30)),
    ):
        assert found.mean == 0.0
        assert found.low == 0.0
        assert found.high == pytest.approx(wide / (60 + wide))


def few_of_a_kind(rate: float, rng: np.random.Generator, n_rounds: int = 40):
    """Return a log of 100 identical clients by random, the model's expectations and the values."""
    n, m = 100, 10
    q = np.repeat([0.3, 0.05], [20, 80])
    clients = np.stack([rng.choice(n, m, replace=False) for _ in range(n_rounds)])
    value = (rng.random(clients.shape) < rate).astype(float)
    total, count = np.zeros(n), np.zeros(n)
    predicted, expected = np.zeros(clients.shape), np.zeros(n_rounds)
    for t, chosen in enumerate(clients):
        everyone = total.sum() / count.sum() if t else 0.0
        model = (total + 5.0 * everyone) / (count + 5.0)
        predicted[t], expected[t] = model[chosen], q @ model
        total[chosen] += value[t]
        count[chosen] += 1.0
    log = Weighted(
        np.arange(0, clients.size + 1, m),
        np.full(clients.size, m / n),
        q[clients.ravel()],
        np.full(n_rounds, float(m)),
    )
    return log, value.ravel(), predicted.ravel(), expected


@pytest.mark.parametrize("rate", [0.98, 0.02])
def test_a_few_failures_or_successes_do_not_give_a_narrow_interval(rate):
    """300 logs of 40 rounds with about eight values of the rarer kind, and no true difference."""
    rng = np.random.default_rng(5)
    inside, is_clear = [], []
    for _ in range(300):
        log, value, predicted, expected = few_of_a_kind(rate, rng)
        found = log.doubly_robust(value, predicted, expected)
        step = found.minus(log.as_logged(value))
        inside.append(found.low <= rate <= found.high)
        is_clear.append(step.low > 0.0 or step.high < 0.0)
    assert np.mean(inside) >= 0.92
    assert np.mean(is_clear) <= 0.05


@pytest.mark.parametrize("n_failures", [0, 1, 9])
def test_few_failures_get_wilsons_interval(n_failures):
    """600 even places, failures far apart. The share p fits if it is no more than t standard errors
    from what was seen, with the standard error that p has itself."""
    log = Weighted(np.arange(0, 601, 2), np.full(600, 0.5), np.full(600, 0.5), np.full(300, 2.0))
    value = np.ones(600)
    value[: 66 * n_failures : 66] = 0.0
    found = log.self_normalised(value)
    error, quantile = found._spread
    n = min(600.0, found.mean * (1.0 - found.mean) / error**2) if n_failures else 600.0
    for end in (found.low, found.high):
        if end != found.mean:
            reach = quantile * math.sqrt(end * (1.0 - end) / n)
            assert abs(end - found.mean) == pytest.approx(reach)
    assert found.mean - found.low > found.high - found.mean  # there is more room below
    assert found.high <= 1.0


def test_seconds_that_are_all_equal_are_not_certain():
    """They are no share: the rule of three says how many others there may be."""
    log = Weighted(np.arange(0, 601, 2), np.full(600, 0.5), np.full(600, 0.5), np.full(300, 2.0))
    found = log.self_normalised(np.full(600, 7.0))
    assert found.half_width == pytest.approx(7.0 * 3.0 / 600)
    assert log.self_normalised(np.where(np.arange(600) == 0, 2.0, 1.0)).below == 0.0


def test_a_candidate_that_moves_to_other_clients_is_no_noise():
    """Half of the log it wants clients that never fail, then others: what it brings is certain."""
    q = np.r_[np.tile([1.0, 0.0], 100), np.tile([0.0, 1.0], 100)]
    log = Weighted(np.arange(0, 401, 2), np.ones(400), q, np.ones(200))
    value = np.tile([1.0, 0.25], 200)
    moving = np.repeat([1.0, 0.25], 100)
    for method in (log.inverse_propensity, log.self_normalised):
        assert method(value).half_width > 0.1
        assert method(value, moving).half_width == pytest.approx(0.0, abs=1e-12)
        assert method(value, moving).mean == method(value).mean


def test_differences_of_several_candidates_hold_all_at_once():
    """Five candidates that are as good as the log: in 300 logs, one of 20 may look different."""
    rng = np.random.default_rng(29)
    wrong = {1: 0, 5: 0}
    for _ in range(300):
        clients = np.stack([rng.choice(20, 4, replace=False) for _ in range(60)]).ravel()
        value = rng.normal(size=clients.size)
        for n_compared in wrong:
            steps = []
            for _ in range(5):
                q = rng.dirichlet(np.full(20, 2.0))
                q = 4.0 * np.minimum(q, 0.2) / np.minimum(q, 0.2).sum()
                log = Weighted(
                    np.arange(0, 241, 4), np.full(240, 0.2), np.minimum(q, 1.0)[clients],
                    np.full(60, np.minimum(q, 1.0).sum()),
                )  # fmt: skip
                now = log.as_logged(value)
                steps.append(log.self_normalised(value).minus(now, n_compared))
            wrong[n_compared] += any(step.low > 0.0 or step.high < 0.0 for step in steps)
    assert wrong[5] <= 0.05 * 300 + 2.0 * math.sqrt(0.05 * 0.95 * 300)
    assert wrong[1] > 0.10 * 300


def test_thin_and_missing_support_are_named():
    """A candidate whose clients were never chosen, and one whose clients seldom were."""
    nothing = Weighted(np.arange(0, 201, 2), np.full(200, 0.5), np.zeros(200), np.full(100, 2.0))
    assert nothing.n_effective == 0.0
    assert f"of at least {LEAST_EFFECTIVE:.0f}" in nothing.problem
    assert math.isnan(nothing.self_normalised(np.ones(200)).mean)
    # Half of its choices are of clients that have no chance in the log.
    half = Weighted(np.arange(0, 201, 2), np.full(200, 0.5), np.full(200, 0.25), np.full(100, 2.0))
    assert "the log seems to cover only 50 % of its choices" in half.problem
    whole = Weighted(np.arange(0, 201, 2), np.full(200, 0.5), np.full(200, 0.5), np.full(100, 2.0))
    assert whole.problem == ""


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("logged", {"logged": [0.0, 0.5]}),
        ("logged", {"logged": [math.nan, 0.5]}),
        ("wanted", {"wanted": [1.5, 0.5]}),
        ("wanted", {"wanted": [math.nan, 0.5]}),
        ("places", {"places": [0.0]}),
        ("places", {"places": [1.0, 1.0]}),
        ("offsets", {"offsets": [0, 3]}),
    ],
)
def test_impossible_chances_are_refused(field, change):
    """A wrong number would give a confident wrong estimate."""
    good = {"offsets": [0, 2], "logged": [0.5, 0.5], "wanted": [0.5, 0.5], "places": [1.0]}
    with pytest.raises(InvalidInput) as caught:
        Weighted(**good | change)
    assert caught.value.field == field


def test_unknown_values_are_refused():
    """NaN is left out by the caller, who knows what it means."""
    log = Weighted([0, 2], [0.5, 0.5], [0.5, 0.5], [1.0])
    with pytest.raises(InvalidInput, match="finite"):
        log.self_normalised([1.0, math.nan])
