"""FedCor: measured rounds, the Gaussian process, its training, and the greedy cohort."""

import math

import numpy as np
import pytest

import turnout
from tests.references import fedcor_slow
from turnout.core.errors import InvalidInput
from turnout.selectors.fedcor import LARGEST_CHANGE, MOST_CLIENTS, fitted, log_likelihood

NAN = math.nan


def context(sizes, m, round, available=None):
    n = len(sizes)
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    columns = {"num_samples": np.array(sizes, dtype=float)}
    return turnout.RoundContext(round, m, available, columns=columns)


def made(n, **parameters):
    selector = turnout.make("fedcor", **parameters)
    selector.prepare(n, seed=3)
    return selector


def trained(embedding, **parameters):
    """Return a selector whose clients have these points."""
    embedding = np.array(embedding, dtype=float)
    selector = made(len(embedding), dimension=embedding.shape[1], **parameters)
    selector.embedding_, selector.is_trained_ = embedding, True
    return selector


def play(selector, round, losses, m=2, status=None, seed=0):
    """Play a round; return whom it polled, and the selection."""
    n = selector.n_clients
    ctx = context([1] * n, m, round)
    polled = selector.poll(ctx, np.random.default_rng(seed))
    if polled is not None:
        ctx = ctx.with_answers(polled, np.array(losses, dtype=float)[polled])
    selection = selector.select(ctx, np.random.default_rng(seed + round))
    s = selection.clients.size
    status = [0] * s if status is None else status
    selector.observe(selection, turnout.Outcome(status, [1.0] * s))
    return polled, selection


def samples(n=7, s=5, d=3, seed=0, missing=0.3):
    rng = np.random.default_rng(seed)
    is_measured = rng.random((n, s)) >= missing
    change = np.where(is_measured, rng.standard_normal((n, s)), 0.0)
    return rng.standard_normal((n, d)), change, is_measured, rng.random(s)


def test_a_cohort_by_hand():
    # Points 3, 2 and -1 on a line, equal shares, hardly any noise. Then sum_i Sigma_ik / sigma_k is
    # 4 for clients 0 and 1 and -4 for client 2. Annealing by 0.9 leaves 3.6 for client 0, so client
    # 1 is first. It explains the others, and the rest is noise.
    selector = trained([[3.0], [2.0], [-1.0]], noise=1e-4)
    selector.annealing_ = np.array([0.9, 1.0, 1.0])
    chosen = selector.select(context([1, 1, 1], 1, 1), np.random.default_rng(0)).clients
    assert chosen.tolist() == [1]
    # Two groups that have nothing to do with each other, the first one with more data.
    selector = trained([[1, 0], [1, 0], [0, 1], [0, 1]])
    chosen = selector.select(context([5, 5, 3, 3], 2, 1), np.random.default_rng(0)).clients
    assert [i // 2 for i in chosen] == [0, 1]


@pytest.mark.parametrize("seed", range(12))
def test_cohorts_are_those_of_whole_matrices(seed):
    rng = np.random.default_rng(seed)
    n, d, m = int(rng.integers(3, 12)), int(rng.integers(1, 5)), 3
    noise = float(rng.choice([0.01, 0.3]))
    selector = trained(rng.standard_normal((n, d)), noise=noise)
    selector.annealing_ = rng.uniform(0.5, 1.0, n)
    sizes, available = rng.integers(1, 50, n), rng.random(n) < 0.7
    available[:3] = True
    ours = selector.select(context(sizes, m, 1, available), np.random.default_rng(0)).clients
    slow = fedcor_slow.cohort(
        fedcor_slow.covariance(selector.embedding_, noise),
        (sizes / sizes.sum()).tolist(),
        selector.annealing_.tolist(),
        m,
        np.flatnonzero(available).tolist(),
    )
    assert ours.tolist() == sorted(slow)


@pytest.mark.parametrize("seed", range(4))
def test_the_likelihood_is_that_of_whole_matrices(seed):
    given = samples(seed=seed)
    ours, _ = log_likelihood(*given, 0.2)
    assert ours == pytest.approx(fedcor_slow.log_likelihood(*given, 0.2), rel=1e-9)


def test_the_gradient_is_the_numerical_one():
    embedding, *rest = samples()
    _, gradient = log_likelihood(embedding, *rest, 0.3)
    step = 1e-6
    for i, j in np.ndindex(embedding.shape):
        moved = np.zeros_like(embedding)
        moved[i, j] = step
        up = fedcor_slow.log_likelihood(embedding + moved, *rest, 0.3)
        down = fedcor_slow.log_likelihood(embedding - moved, *rest, 0.3)
        assert gradient[i, j] == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-5)


def test_training_reaches_the_closed_form_of_probabilistic_pca():
    # With everything measured, the best X is known: the first eigenvectors of the weighted
    # covariance of the samples, times the root of eigenvalue minus noise (Tipping and Bishop).
    rng = np.random.default_rng(1)
    n, s, d, noise = 6, 40, 2, 0.5
    change = rng.standard_normal((n, 2)) @ rng.standard_normal((2, s))
    change += noise * rng.standard_normal((n, s))
    weight, everything = rng.random(s), np.ones((n, s), dtype=bool)
    values, vectors = np.linalg.eigh((change * weight) @ change.T / weight.sum())
    best = vectors[:, -d:] * np.sqrt(values[-d:] - noise**2)
    found = fitted(rng.standard_normal((n, d)), change, everything, weight, noise, 3000, 0.01)
    np.testing.assert_allclose(found @ found.T, best @ best.T, atol=1e-3)
    highest, gradient = log_likelihood(best, change, everything, weight, noise)
    assert np.abs(gradient).max() < 1e-6
    assert log_likelihood(found, change, everything, weight, noise)[0] <= highest + 1e-9


def test_clients_that_were_never_measured_keep_their_point():
    embedding, change, is_measured, weight = samples()
    is_measured[2], change[2] = False, 0.0
    after = fitted(embedding, change, is_measured, weight, 0.3, 20, 0.01)
    assert (after[2] == embedding[2]).all()
    assert (after[[0, 1, 3]] != embedding[[0, 1, 3]]).all()


def test_rounds_that_are_measured_and_polled():
    selector = made(6, warmup=3, interval=5, iterations=1)
    polls, random = [], []
    for t in range(13):
        polled, selection = play(selector, t, np.full(6, 3.0 - 0.1 * t))
        polls.append(polled is not None)
        random.append(bool(selection.memo["is_random"]))
    # rounds 0 to 3 are the warm-up; 5 and 10 are measured; a poll follows each measured round
    assert [t for t in range(13) if polls[t]] == [0, 1, 2, 3, 4, 5, 6, 10, 11]
    assert [t for t in range(13) if random[t]] == [0, 1, 2, 3, 5, 10]
    assert sorted(selector.sample_round_[selector.sample_round_ >= 0]) == [0, 1, 2, 3, 5, 10]


def test_a_sample_is_the_change_of_those_who_answered_twice():
    selector = made(4, warmup=9, samples=2)
    play(selector, 0, [1.0, 2.0, NAN, 3.0])
    play(selector, 1, [0.5, 2.5, 1.0, NAN])
    assert selector.change_[:, 0].tolist() == [-0.5, 0.5, 0.0, 0.0]
    assert selector.is_measured_[:, 0].tolist() == [True, True, False, False]
    play(selector, 2, [0.5, 1.5, 2.0, 4.0])
    assert selector.change_[:, 1].tolist() == [0.0, -1.0, 1.0, 0.0]
    play(selector, 3, [1e30, 1.5, 0.0, 4.0])  # in place of the oldest
    assert selector.change_[:, 0].tolist() == [LARGEST_CHANGE, 0.0, -2.0, 0.0]
    assert sorted(selector.sample_round_.tolist()) == [1, 2]


def test_a_round_that_nobody_completed_is_no_sample():
    selector = made(4, warmup=9)
    play(selector, 0, [1.0] * 4, status=[3, 3])
    play(selector, 1, [0.5] * 4)
    assert (selector.sample_round_ < 0).all()
    play(selector, 2, [0.4] * 4)
    assert selector.sample_round_.max() == 1


def test_late_feedback_is_no_sample_of_another_round():
    selector = made(4, warmup=9)
    ctx = [context([1] * 4, 2, t).with_answers(np.arange(4), [3.0 - t] * 4) for t in range(3)]
    late = [selector.select(each, np.random.default_rng(0)) for each in ctx]
    for t in (2, 0, 1):
        selector.observe(late[t], turnout.Outcome([0, 0], [1.0, 1.0]))
    assert selector.sample_round_.max() == 0
    np.testing.assert_allclose(selector.change_.sum(axis=1), -1.0)


def test_scores_are_annealed_until_the_next_training():
    selector = made(6, warmup=1, interval=4, anneal=0.5, iterations=1)
    play(selector, 0, [3.0] * 6)
    play(selector, 1, [2.0] * 6)
    assert selector.is_trained_
    _, second = play(selector, 2, [NAN] * 6)
    assert (selector.annealing_[second.clients] == 0.5).all()
    assert selector.annealing_.sum() == 5.0
    play(selector, 3, [NAN] * 6)
    before = selector.annealing_.copy()
    play(selector, 4, [2.0] * 6)  # measured: a random cohort is not annealed
    assert (selector.annealing_ == before).all()
    play(selector, 5, [1.5] * 6)
    assert (selector.annealing_ == 1.0).all()


@pytest.mark.parametrize("centered", [True, False])
def test_it_finds_groups_of_clients_and_takes_one_of_each(centered):
    n, group, rng = 12, np.arange(12) % 2, np.random.default_rng(0)
    selector = made(n, warmup=20, interval=50, centered=centered)
    losses = np.full(n, 40.0)
    for t in range(22):
        _, selection = play(selector, t, losses, m=3)
        trained_of = np.bincount(group[selection.clients], minlength=2)
        losses = losses - 0.3 * (trained_of[group] - 1) + 0.02 * rng.standard_normal(n)
    unit = selector.embedding_ / np.linalg.norm(selector.embedding_, axis=1, keepdims=True)
    product = unit @ unit.T
    same = group[:, None] == group
    assert product[same].min() > 0.8
    assert product[~same].max() < product[same].min()
    chosen = play(selector, 22, losses, m=2)[1].clients
    assert set(group[chosen]) == {0, 1}


@pytest.mark.parametrize(
    ("centered", "expected"),
    [
        (False, [[1.0, 4.0], [0.0, 2.0]]),
        # weights 0.5 and 1: the mean of client 0 is (0.5 + 4) / 1.5 = 3, that of client 1 is 2
        (True, [[-2.0, 1.0], [0.0, 0.0]]),
    ],
)
def test_by_hand_what_the_process_is_trained_on(monkeypatch, centered, expected):
    selector, given = made(2, samples=3, fading=0.5, centered=centered, iterations=7), []
    selector.change_[:] = [[1.0, 4.0, 0.0], [0.0, 2.0, 0.0]]
    selector.is_measured_[:] = [[True, True, False], [False, True, False]]
    selector.sample_round_[:2] = 4, 5

    def record(embedding, change, is_measured, weight, noise, n_steps, learning_rate):
        given.append((change.tolist(), is_measured.tolist(), weight.tolist(), n_steps))
        return embedding

    monkeypatch.setattr("turnout.selectors.fedcor.fitted", record)
    selector._train()
    selector._train()
    measured = [[True, True], [False, True]]
    assert given == [(expected, measured, [0.5, 1.0], n) for n in (70, 7)]


def test_silence_lowers_a_client_below_all_others_after_patience():
    selector = trained([[3.0, 0.0], [2.0, 1.0], [1.0, 1.0], [0.5, 1.0]], patience=1, anneal=1.0)
    ctx = context([1] * 4, 1, 1)
    first = int(selector.select(ctx, np.random.default_rng(0)).clients[0])
    selector.unanswered_[first] = 1
    assert int(selector.select(ctx, np.random.default_rng(0)).clients[0]) == first
    selector.unanswered_[first] = 40
    full = selector.select(context([1] * 4, 3, 1), np.random.default_rng(0)).clients
    assert first not in full
    selection = selector.select(ctx, np.random.default_rng(0))
    selector.observe(selection, turnout.Outcome([3], [NAN]))
    assert selector.unanswered_[selection.clients].tolist() == [1]


def test_hostile_losses_neither_overflow_nor_enter_the_state():
    selector = made(6, warmup=2, interval=3, noise=1e-4)
    rng = np.random.default_rng(0)
    with np.errstate(all="raise", under="ignore"):
        for t in range(12):
            play(selector, t, rng.choice([0.0, 1e30, 1.0, NAN], 6))
    for name, values in selector.state().items():
        assert np.isfinite(values).all(), name


def test_too_many_clients_are_refused():
    with pytest.raises(InvalidInput, match=r"n_clients must be at most 10000 for FedCor"):
        turnout.make("fedcor").reset(MOST_CLIENTS + 1)
