"""What is believed of claims: honest ones pass unchanged, lies gain nothing."""

import dataclasses

import numpy as np
import pytest

import turnout
from turnout import Bounds, InvalidInput, Outcome, RoundContext, Selection
from turnout.experiment import Progress, rounds
from turnout.worlds import Bernoulli, Environment, LinearContextual, Population

LEVELS = np.array([0.8, 1.0, 1.1, 0.9, 1.2, 1.0])
NO_RULE = dict.fromkeys(Bounds().parameters, False)


def fresh(n_clients=6, **switches):
    bounds = Bounds(**switches)
    bounds.reset(n_clients)
    return bounds


def context(**columns):
    n = len(next(iter(columns.values())))
    arrays = {name: np.array(values) for name, values in columns.items()}
    return RoundContext(0, 2, np.ones(n, dtype=bool), columns=arrays)


def told(bounds, reports, name="loss", seconds=1.0):
    n = len(reports)
    outcome = Outcome(np.zeros(n, dtype=int), np.full(n, seconds), {name: np.array(reports)})
    return bounds.outcome(Selection(0, np.arange(n)), outcome).metric(name)


def with_first(value, values=LEVELS):
    return np.concatenate(([value], values[1:]))


@pytest.mark.parametrize("name", ["context", "features"])
def test_features_of_unusual_size_are_unknown(name):
    claimed = np.stack([with_first(-1e30), 10.0 * LEVELS, with_first(0.0)], axis=1)
    believed = fresh().columns(context(**{name: claimed})).column(name)
    expected = claimed.copy()
    expected[0, 0] = np.nan  # each feature by itself; a 0 may be true
    np.testing.assert_array_equal(believed, expected)
    trusting = fresh(features=False).columns(context(**{name: claimed})).column(name)
    np.testing.assert_array_equal(trusting, claimed)


def test_features_of_usual_size_pass_unchanged():
    rng = np.random.default_rng(3)
    bits = (rng.random((500, 16)) < 0.1).astype(np.int64)
    ctx = context(features=bits, context=np.abs(rng.normal(5.0, 1.0, (500, 3))))
    assert fresh(500).columns(ctx) is ctx


def test_honest_claims_pass_unchanged():
    rng = np.random.default_rng(3)
    ctx = context(
        num_samples=rng.integers(80, 150, 40), expected_duration=rng.uniform(1.0, 2.0, 40)
    )
    bounds = fresh(40)
    assert bounds.columns(ctx) is ctx
    levels = rng.lognormal(0.0, 0.5, 40).clip(0.4, 2.5)
    for _ in range(20):
        losses = levels * rng.uniform(0.8, 1.2, 40)
        np.testing.assert_array_equal(told(bounds, losses), losses)


@pytest.mark.parametrize("name", ["loss", "loss_std", "loss_rms"])
def test_a_huge_report_counts_as_the_median(name):
    believed = told(fresh(), with_first(1e30), name)
    assert believed[0] == 1.1
    np.testing.assert_array_equal(believed[1:], LEVELS[1:])
    assert told(fresh(losses=False), with_first(1e30), name)[0] == 1e30


def test_another_metric_is_not_touched():
    assert told(fresh(), with_first(1e30), "gradient_norm")[0] == 1e30


def test_a_huge_answer_to_a_poll_counts_as_the_median():
    ctx = RoundContext(0, 2, np.ones(6, dtype=bool))
    asked = ctx.with_answers(np.arange(6), with_first(1e30))
    assert fresh().answers(asked).polled_loss.tolist() == with_first(1.1).tolist()
    assert fresh(losses=False).answers(asked).polled_loss[0] == 1e30
    assert fresh().answers(ctx) is ctx


def test_a_jump_over_the_own_history_counts_as_the_median():
    wide = np.array([0.1, 0.4, 1.0, 2.5, 6.0, 0.2])
    believed = {}
    for history in (True, False):
        bounds = fresh(history=history)
        np.testing.assert_array_equal(told(bounds, wide), wide)
        believed[history] = told(bounds, with_first(3.0, wide))[0]
    assert believed == {True: 1.0, False: 3.0}


def test_what_is_usual_is_always_believed():
    bounds = fresh()
    told(bounds, with_first(1e-6))
    assert told(bounds, with_first(0.9))[0] == 0.9


def test_bounds_follow_when_all_losses_rise():
    bounds = fresh()
    told(bounds, LEVELS)
    for _ in range(10):
        believed = told(bounds, 20.0 * LEVELS)
    np.testing.assert_array_equal(believed, 20.0 * LEVELS)


def test_a_third_of_liars_moves_no_honest_report():
    levels = np.random.default_rng(1).lognormal(0.0, 0.3, 70).clip(0.5, 2.0)
    believed = told(fresh(100), np.concatenate((levels, np.full(30, 1e30))))
    np.testing.assert_array_equal(believed[:70], levels)
    assert believed[70:].max() < levels.max()


def test_the_first_word_about_data_stands():
    bounds = fresh()
    sizes = [90, 100, 110, 100, 95, 105]
    bounds.columns(context(num_samples=sizes))
    later = context(num_samples=[180, *sizes[1:]])
    assert bounds.columns(later).column("num_samples")[0] == 90
    assert fresh(fixed_samples=False).columns(later) is later


def test_huge_data_count_as_the_median_and_unknown_stay_unknown():
    ctx = context(num_samples=[1e30, 100.0, 110.0, 100.0, 95.0, 90.0, np.nan])
    sizes = fresh(7).columns(ctx).column("num_samples")
    assert sizes[0] == 100.0
    assert np.isnan(sizes[6])
    np.testing.assert_array_equal(sizes[1:6], ctx.column("num_samples")[1:6])
    assert fresh(7, samples=False).columns(ctx) is ctx


@pytest.mark.parametrize("claim", [0.0, 50.0])
def test_a_time_is_what_was_measured_if_the_claim_is_far_off(claim):
    bounds = fresh()
    told(bounds, LEVELS, seconds=9.0)
    ctx = context(expected_duration=[claim, 9.0, 9.0, 8.0, 10.0, 11.0])
    seconds = bounds.columns(ctx).column("expected_duration")
    assert seconds.tolist() == [9.0, 9.0, 9.0, 8.0, 10.0, 11.0]
    assert fresh(times=False).columns(ctx) is ctx


@pytest.mark.parametrize("name", ["expected_duration", "upload_duration", "download_duration"])
def test_a_time_that_nobody_else_reaches_counts_as_the_median(name):
    ctx = context(**{name: [0.0, 9.0, 9.0, 8.0, 10.0, 11.0]})
    assert fresh().columns(ctx).column(name)[0] == 9.0


def test_few_clients_bound_nothing():
    ctx = context(num_samples=[1, 10, 1000, 100_000])
    bounds = fresh(4)
    assert bounds.columns(ctx) is ctx
    assert told(bounds, [1.0, 1e3, 1e6, 1e9]).tolist() == [1.0, 1e3, 1e6, 1e9]


def test_zeros_and_silence_have_no_vote():
    bounds = fresh(9)
    reports = [0.0, 0.0, np.nan, *LEVELS]
    np.testing.assert_array_equal(told(bounds, reports), reports)


def test_switches_are_checked():
    with pytest.raises(InvalidInput, match="losses must be True or False"):
        fresh(losses=3)


def test_new_clients_are_bounded_too():
    bounds = fresh()
    told(bounds, LEVELS)
    bounds.grow(7)
    assert told(bounds, [*LEVELS, 1e30])[6] == 1.0


@dataclasses.dataclass(frozen=True)
class Boasting(Environment):
    """Every tenth client reports a huge loss and huge data."""

    def context(self, *arguments, **named):
        ctx = super().context(*arguments, **named)
        columns = {name: values.astype(float) for name, values in ctx.columns.items()}
        if "num_samples" in columns:
            columns["num_samples"][::10] = 1e30
        return dataclasses.replace(ctx, columns=columns)

    def metrics(self, round):
        metrics = super().metrics(round)
        for values in metrics.values():
            values[::10] = 1e30
        return metrics

    def polled_loss(self, *arguments):
        loss = super().polled_loss(*arguments).copy()
        loss[::10] = 1e30
        return loss


WORLD = Boasting(50, 2, Bernoulli(0.9), timing=LinearContextual(), population=Population(tail=4.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data-weighted", "pow-d", "cpow-d", "rpow-d", "ucb-cs", "oort"])
def test_liars_do_not_double_their_share(name):
    def share(bounds):
        run = turnout.simulate(name, WORLD, cohort_size=10, n_rounds=150, bounds=bounds)
        return run.counts[::10].sum() / run.counts.sum() / 0.1

    assert share(None) > 1.5
    assert share(Bounds()) < min(2.0, share(None))


def test_a_run_without_a_rule_is_the_same_bit_for_bit():
    for name in ("ucb-cs", "pow-d", "oort"):
        bare = turnout.simulate(name, WORLD, cohort_size=10, n_rounds=30)
        open_to_all = Bounds(**NO_RULE)
        bounded = turnout.simulate(name, WORLD, cohort_size=10, n_rounds=30, bounds=open_to_all)
        np.testing.assert_array_equal(bare.clients, bounded.clients)


@pytest.mark.parametrize("name", ["oort", "pow-d"])
def test_a_resumed_run_is_the_same_bit_for_bit(name):
    def play(selector, bounds, n_rounds, **given):
        steps = rounds(selector, WORLD, cohort_size=10, n_rounds=n_rounds, bounds=bounds, **given)
        return [record.selection.clients.tolist() for record in steps]

    whole = play(turnout.make(name), Bounds(), 20)
    selector, bounds, progress = turnout.make(name), Bounds(), Progress(50)
    first = play(selector, bounds, 12, progress=progress)
    saved = bounds.state()
    resumed = fresh(50)
    resumed.load_state(saved)
    assert first + play(selector, resumed, 20, start=12, progress=progress) == whole
