"""A world that is known, the log of one selector, and what the twin says: the proof in short form.

``benchmarks/twin.py`` has the long one, with the bars that were set before it was measured.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import turnout
from turnout.core.files import write_npz
from turnout.results.answers import LiveAnswers
from turnout.results.files import read_arrays
from turnout.twin import FittedWorld, check
from turnout.twin.durations import DurationNoise, Durations, durations_of
from turnout.twin.effects import binomial, shrunk
from turnout.twin.fit import fit_log
from turnout.twin.log import Log, read_log
from turnout.worlds import (
    Availability,
    DeviceTimes,
    Diurnal,
    Environment,
    FittedArrays,
    FittedDevices,
    FixedDeadline,
    HeavyTail,
    LogNormal,
    Markov,
    Moment,
)
from turnout.worlds.base import History

N, ROUNDS, COHORT, DEADLINE = 80, 250, 15, 100.0
WORLD = Environment(
    N,
    1,
    Diurnal(0.6, 0.3, period_s=50.0, round_s=1.0),
    Markov((0.4, 0.7, 0.95), stickiness=0.5),
    HeavyTail(DeviceTimes(FittedDevices(), work_s=20.0), LogNormal(0.5)),
)


def logged(
    folder: Path, world: Environment, selector: str, deadline: float | None = DEADLINE
) -> Path:
    sizes = {"n_clients": world.n_clients, "cohort_size": COHORT, "n_rounds": ROUNDS}
    options = {"seeds": [world.seed], "n_jobs": 1, "out": folder, "deadline": deadline}
    turnout.compare([selector], world, **sizes, **options)
    return folder


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> FittedWorld:
    return turnout.fit(logged(tmp_path_factory.mktemp("log"), WORLD, "random"))


def test_rhythm_stays_and_rates_are_recovered(fitted: FittedWorld):
    assert float(fitted.arrays.period) == pytest.approx(50.0, rel=0.02)
    swing = np.hypot(*fitted.arrays.rhythm.T)
    assert 0.2 < np.median(swing) < 0.4  # 0.3 is true
    assert np.abs(fitted.availability - 0.6).mean() < 0.03
    rate = WORLD.volatility.success_rate(Moment(0, N, 1, History.fresh(N)))
    # 47 choices each, in spells of two rounds: a standard error of 0.07, less by shrinkage
    assert np.abs(fitted.success - rate).mean() < 0.07
    assert 0.35 < float(fitted.arrays.success_stay) < 0.65  # 0.5 is true


def clocked(log: Log, hours: np.ndarray) -> Log:
    """Return a log of a live run whose rounds began at these hours."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    began = tuple((start + timedelta(hours=float(at))).isoformat() for at in hours)
    n, none = len(began), np.zeros(0, dtype=np.int64)
    idle, busy = np.zeros(n), (none,) * n
    answers = LiveAnswers(
        log.names, began, idle, idle, idle > 0.0, busy, none, none, none, np.zeros(0), {}
    )
    return replace(log, records=(log.records[0]._replace(answers=answers),))


def test_a_server_that_paused_leaves_no_rhythm_of_the_rounds(fitted: FittedWorld):
    log = read_log(fitted.sources)
    hours = np.arange(log.n_rounds) * 24.0 / 50.0
    even = fit_log(clocked(log, hours))
    assert float(even.arrays.period) == pytest.approx(50.0)
    assert np.median(np.hypot(*even.arrays.rhythm.T)) > 0.2
    # Rounds differ a little in length: a wave of the day is still one of the rounds.
    shaken = hours + np.random.default_rng(0).uniform(0.0, 0.4, hours.size)
    assert float(fit_log(clocked(log, shaken)).arrays.period) == pytest.approx(50.0, rel=0.01)
    for pause in (13.0, 24.0):
        paused = fit_log(clocked(log, hours + pause * (np.arange(hours.size) > 180)))
        assert not paused.arrays.rhythm.any()
        assert np.isinf(paused.arrays.period)
        (rhythm,) = (each for each in paused.quantities if each.name == "daily rhythm")
        assert rhythm.value == "none found"
        assert "as if the server had paused" in rhythm.remark
    slower = fit_log(clocked(log, np.cumsum(np.where(np.arange(hours.size) < 150, 0.4, 0.7))))
    assert not slower.arrays.rhythm.any()


def test_durations_that_were_cut_off_are_not_taken_for_short(fitted: FittedWorld, tmp_path: Path):
    seconds = WORLD.timing.column("expected_duration", Moment(0, N, 1, History.fresh(N)))
    error = np.log(fitted.seconds / seconds)
    slow = seconds > np.quantile(seconds, 0.7)
    # The naive mean of what came in time is below 100 s for everyone; here slow clients are slow.
    assert np.abs(np.median(error)) < 0.1
    assert np.abs(error[~slow]).mean() < 0.2
    assert np.corrcoef(np.log(fitted.seconds), np.log(seconds))[0, 1] > 0.9


@pytest.mark.parametrize("selector", ["e3cs", "oort", "pace"])
def test_selectors_that_did_not_make_the_log_are_predicted(fitted: FittedWorld, selector: str):
    rules = {"cohort_size": COHORT, "n_rounds": ROUNDS, "policy": FixedDeadline(DEADLINE)}
    truth = turnout.simulate(selector, WORLD, **rules)
    twins = [turnout.simulate(selector, fitted.environment_of(s), **rules) for s in range(3)]
    success = np.mean([run.success_ratio for run in twins])
    length = np.mean([run.length_s.mean() for run in twins])
    assert success == pytest.approx(truth.success_ratio, rel=0.1)
    assert length == pytest.approx(truth.length_s.mean(), rel=0.15)


def test_later_rounds_lie_in_the_intervals(tmp_path: Path):
    checked = check(logged(tmp_path, WORLD, "e3cs"), n_draws=50)
    assert (checked.n_fitted, checked.n_predicted) == (175, 75)
    for each in checked.coverages:
        # 0.9 within three standard errors of 75 cases or more
        assert 0.79 < each.share <= 1.0, each
    assert checked.coverages[0].verdict == "calibrated"


def test_a_federation_that_changed_is_found_out(tmp_path: Path):
    class Gone(Availability):
        def available(self, moment: Moment) -> np.ndarray:
            drawn = np.random.default_rng([7, moment.round]).random(moment.n_clients)
            return drawn < (0.9 if moment.round < 180 else 0.4)

    world = replace(WORLD, availability=Gone())
    run = turnout.simulate("random", world, cohort_size=10, n_rounds=ROUNDS)
    log = logged(tmp_path, WORLD, "random")
    path = log / "random" / "seed-1" / "selections.npz"
    bits = {"available_bits": run.available_bits, "available_at": run.available_at}
    write_npz(path, read_arrays(path) | bits | {"n_available": run.n_available})
    found = {each.name: each.verdict for each in check(log, n_draws=30).coverages}
    assert found["clients there"] == "too sure"


def test_clients_that_were_never_chosen_get_the_populations_values():
    rng = np.random.default_rng(0)
    n, true = 400, rng.normal(0.5, 0.8, 400)
    trials = np.where(np.arange(n) < 300, 60.0, 0.0)
    successes = rng.binomial(trials.astype(int), 1 / (1 + np.exp(-true))).astype(float)

    def likelihood(effects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope, curvature = binomial(successes, trials, effects[:, 0])
        return slope[:, None], curvature[:, None]

    seen = (trials > 0)[:, None]
    found = shrunk(likelihood, np.zeros((n, 1)), np.ones(1), seen)
    unseen = found.mean[300:, 0]
    assert np.allclose(unseen, found.population[0])
    # 300 clients of spread 0.8: the mean has a standard error of 0.05, the spread one of 0.04
    assert found.population[0] == pytest.approx(0.5, abs=0.2)
    assert np.sqrt(found.spread[0, 0]) == pytest.approx(0.8, abs=0.15)
    width = np.sqrt(found.covariance[:, 0, 0])
    covered = np.abs(found.mean[:, 0] - true) < 1.645 * width
    assert 0.84 < covered.mean() < 0.96
    assert width[300:].mean() > 2 * width[:300].mean()


def shrunk_seconds(durations: Durations, start: np.ndarray) -> np.ndarray:
    def likelihood(effects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope, curvature = durations.likelihood(effects[:, 0], float(effects.mean()))
        return slope[:, None], curvature[:, None]

    seen = np.ones((start.size, 1), dtype=np.bool_)
    return shrunk(likelihood, start[:, None], np.array([0.5]), seen, 20).mean[:, 0]


def test_what_is_common_to_durations_is_found_although_many_are_cut_off():
    rng = np.random.default_rng(1)
    n, k = 50, 8000
    own = rng.normal(1.0, 0.6, n)
    clients, rounds = rng.integers(n, size=k), np.sort(rng.integers(400, size=k))
    warm = rng.random(k) < 0.3
    noise = rng.normal(0.0, 0.5, k) + rng.normal(0.0, 0.2, 400)[rounds]
    value = np.exp(own[clients] + 0.001 * (rounds - 200) - 0.3 * warm + noise)
    limit = np.full(k, np.quantile(value, 0.6))
    seconds = np.where(value <= limit, value, np.nan)
    durations = durations_of(clients, rounds, warm, seconds, limit, n, 400)
    assert durations.cut_off.mean() == pytest.approx(0.4, abs=0.01)
    start = durations.start(0.0)
    for _ in range(12):
        start = shrunk_seconds(durations, start)
        durations = durations.updated(start, float(start.mean()))
    # the client mean includes the warm share, which the model takes out
    assert np.abs(start - own).mean() < 0.12
    assert durations.drift[0] == pytest.approx(0.001, abs=0.0003)
    assert durations.gain[0] == pytest.approx(-0.3, abs=0.06)
    assert durations.round_scale == pytest.approx(0.2, abs=0.06)
    assert np.median(durations.scale) == pytest.approx(0.5, abs=0.08)


def test_the_tail_of_the_noise_is_what_is_left_beyond_a_point():
    mean, square, slope = DurationNoise().tail(np.array([-8.0, 0.0, 1.0]))
    # of a standard normal: phi(x) / (1 - Phi(x)) and 1 + x times it
    assert mean == pytest.approx([0.0, 0.7979, 1.5251], abs=0.02)
    assert square == pytest.approx([1.0, 1.0, 2.5251], abs=0.05)
    assert 0.0 <= slope[0] < 0.05 < slope[1] < slope[2] < 1.0


def test_clients_that_are_slow_by_turns_are_told_apart_by_the_score():
    """Seconds are uniform from 0, as in RBCS-F. Their logarithm has a standard deviation of 1, they
    themselves one of 0.58 means. So 40 answers each leave an error of 0.16 or of 0.09."""
    rng = np.random.default_rng(2)
    n, k = 60, 2400
    own, clients = rng.normal(1.0, 0.4, n), np.repeat(np.arange(n), 40)
    rounds, nobody = np.tile(np.arange(40), n), np.zeros(k, dtype=np.bool_)
    seconds = np.exp(own)[clients] * rng.uniform(0.0, 2.0, k)
    durations = durations_of(clients, rounds, nobody, seconds, np.full(k, np.nan), n, 40)
    assert durations.noise.variance == pytest.approx(
        1.0, abs=0.01
    )  # normal noise: all say the same
    start = durations.start(0.0)
    for _ in range(8):
        start = shrunk_seconds(durations, start)
        durations = durations.updated(start, float(start.mean()))
    assert durations.noise.variance < 0.5
    error = start - start.mean() - (own - own.mean())
    assert np.sqrt(np.mean(np.square(error))) < 0.11


def test_swings_that_all_clients_share_are_found_and_played_again(tmp_path: Path):
    """Everyone's log-odds swing by 0.8, for ten rounds or so."""
    steps = np.random.default_rng(5).normal(0.0, 1.0, ROUNDS)
    swing = np.array([sum(0.9**k * steps[t - k] for k in range(t + 1)) for t in range(ROUNDS)])
    swing = 0.8 * (swing - swing.mean()) / swing.std()

    class Together(Availability):
        def available(self, moment: Moment) -> np.ndarray:
            drawn = np.random.default_rng([9, moment.round]).random(moment.n_clients)
            return drawn < 1.0 / (1.0 + np.exp(-swing[moment.round]))

    alone = fit_log(read_log([logged(tmp_path / "alone", WORLD, "random")]))
    assert not alone.arrays.together.any()
    run = turnout.simulate(
        "random", replace(WORLD, availability=Together()), cohort_size=10, n_rounds=ROUNDS
    )
    log = logged(tmp_path / "together", WORLD, "random")
    path = log / "random" / "seed-1" / "selections.npz"
    bits = {"available_bits": run.available_bits, "available_at": run.available_at}
    write_npz(path, read_arrays(path) | bits | {"n_available": run.n_available})
    fitted = turnout.fit(log)
    size, lasts = fitted.arrays.together
    assert size == pytest.approx(0.8, rel=0.3)
    assert 4.0 < lasts < 25.0
    assert fitted.availability.mean() == pytest.approx(0.5, abs=0.05)
    counts = np.array(
        [
            [fitted.environment_of(s).context(t, 1).available.sum() for t in range(100)]
            for s in range(20)
        ]
    )
    assert counts.mean() == pytest.approx(0.5 * N, rel=0.1)
    # Alone, the number of 60 clients would vary by 3.9 from round to round.
    assert counts.std(axis=1).mean() == pytest.approx(run.n_available.std(), rel=0.35)
    assert run.n_available.std() > 2.0 * np.sqrt(0.25 * N)
    saved = fitted.save(tmp_path / "world.toml")
    assert turnout.twin.FittedWorld.load(tmp_path / "world.toml").arrays.together[0] == size
    arrays = dict(saved.arrays.arrays())
    del arrays["together"]  # as earlier versions wrote it
    assert not FittedArrays.from_arrays(arrays).together.any()
