"""Clustered sampling: the urns of both algorithms, unbiased draws, less variance, groups."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

import turnout
from tests.references import clustered_slow
from turnout.sampling.linkage import light_groups
from turnout.selectors.clustered import MOST_GROUPED, angles, fill_urns, sign_code


def context(sizes, m, available=None):
    n = len(sizes)
    available = np.ones(n, dtype=bool) if available is None else np.array(available)
    columns = {"num_samples": np.array(sizes, dtype=float)}
    return turnout.RoundContext(0, m, available, columns=columns)


def made(n, **parameters):
    selector = turnout.make("clustered", **parameters)
    selector.reset(n)
    return selector


def urns_of(amount, m, group=None, code=None):
    urns = [{} for _ in range(m)]
    for client, urn, share in zip(*fill_urns(np.array(amount), m, group, code), strict=True):
        urns[urn][int(client)] = urns[urn].get(int(client), 0.0) + share
    return urns


def assert_same(ours, slow):
    for mine, theirs in zip(ours, slow, strict=True):
        assert mine.keys() == theirs.keys()
        for client in mine:
            assert mine[client] == pytest.approx(float(theirs[client]), abs=1e-9)


def test_by_hand():
    # shares 0.5, 0.3, 0.2 and two urns: the first client fills one, the others share the second
    assert_same(urns_of([1.0, 0.6, 0.4], 2), [{0: 1.0}, {1: 0.6, 2: 0.4}])
    # 0.9 | 0.7 | 0.4: the second client is cut
    assert_same(urns_of([0.9, 0.7, 0.4], 2), [{0: 0.9, 1: 0.1}, {1: 0.6, 2: 0.4}])
    # 1.6 | 1.3 | 0.1: clients with more than an urn are laid end to end, too
    assert_same(urns_of([1.6, 1.3, 0.1], 3), [{0: 1.0}, {0: 0.6, 1: 0.4}, {1: 0.9, 2: 0.1}])


@given(st.lists(st.integers(1, 60), min_size=2, max_size=12), st.data())
def test_urns_of_algorithm_1_are_those_of_the_slow_one(sizes, data):
    m = data.draw(st.integers(1, len(sizes)))
    amount = m * np.array(sizes) / sum(sizes)
    assume(len(set(sizes)) == len(sizes))  # which of two equals comes first is left to rounding
    assert_same(urns_of(amount, m), clustered_slow.by_size(sizes, m))


def test_urns_of_algorithm_2_are_those_of_the_slow_one():
    sizes, m = [10, 12, 8, 9, 11, 10, 7, 13], 3
    group = np.array([0, 1, 0, 2, 1, 3, 2, 3])
    amount = m * np.array(sizes) / sum(sizes)
    groups = [np.flatnonzero(group == g).tolist() for g in range(4)]
    ours = urns_of(amount, m, group)
    assert_same(ours, clustered_slow.by_groups(sizes, m, groups))


@given(st.lists(st.floats(0.01, 50.0), min_size=2, max_size=15), st.data(), st.integers(0, 100))
def test_urns_are_full_and_every_client_keeps_its_share(sizes, data, seed):
    m = data.draw(st.integers(1, len(sizes)))
    amount = m * np.array(sizes) / np.sum(sizes)
    rng = np.random.default_rng(seed)
    distance = angles(rng.standard_normal((len(sizes), 4)))
    group = light_groups(distance, amount, 1.0 + 1e-12)
    client, urn, share = fill_urns(amount, m, group)
    np.testing.assert_allclose(np.bincount(urn, share, minlength=m), 1.0, atol=1e-8)
    np.testing.assert_allclose(np.bincount(client, share, minlength=len(sizes)), amount, atol=1e-8)


def plain_mean(selection, update):
    times = selection.times
    return times @ update[selection.clients] / times.sum()


@pytest.mark.parametrize("by", ["size", "similarity"])
def test_the_plain_mean_is_unbiased_and_probabilities_are_frequencies(by):
    sizes, m = np.array([50, 5, 20, 10, 15, 30, 8]), 3
    selector = made(7, by=by, sketch_size=4)
    rng = np.random.default_rng(0)
    if by == "similarity":
        selector.sketch_[:] = rng.standard_normal((7, 4))
    update = rng.standard_normal((7, 3))
    ctx, means, counts, reported = context(sizes, m), [], np.zeros(7), np.zeros(7)
    repeats = 6000
    for _ in range(repeats):
        drawn = selector.select(ctx, rng)
        assert drawn.times.sum() == m
        means.append(plain_mean(drawn, update))
        counts[drawn.clients] += 1
        reported[drawn.clients] = drawn.probability
    error = np.std(means, axis=0) / np.sqrt(repeats)
    full = np.average(update, axis=0, weights=sizes)
    assert (np.abs(np.mean(means, axis=0) - full) < 5 * error).all()
    assert np.abs(counts / repeats - reported).max() < 5 * np.sqrt(0.25 / repeats)


def test_similar_clients_seldom_come_together_and_the_mean_varies_less():
    kind = np.repeat(np.arange(4), 5)
    update = np.eye(4)[kind]
    ctx, rng = context(np.ones(20), 4), np.random.default_rng(0)
    groups, sizes = made(20, sketch_size=4), made(20, by="size")
    groups.sketch_[:] = update + 0.01 * rng.standard_normal(update.shape)
    weighted = turnout.make("data-weighted", replacement=True)
    weighted.reset(20)
    spread = {}
    for name, selector in (("groups", groups), ("sizes", sizes), ("multinomial", weighted)):
        means = [plain_mean(selector.select(ctx, rng), update) for _ in range(500)]
        spread[name] = np.var(means, axis=0).sum()
    assert spread["groups"] < 1e-12  # one of each kind in every round
    assert spread["sizes"] <= 1.1 * spread["multinomial"]


def test_groups_are_cut_as_in_the_authors_code():
    rng = np.random.default_rng(3)
    weight, m = rng.dirichlet(np.ones(12)), 4
    distance = angles(rng.standard_normal((12, 5)))
    tree = linkage(squareform(distance, checks=False), "ward")
    total = list(weight)
    for row in tree:
        total.append(total[int(row[0])] + total[int(row[1])])
        row[2] = total[-1]
    theirs = fcluster(tree, 1.0 / m, criterion="distance")
    ours = light_groups(distance, m * weight, 1.0)
    parts = [{frozenset(np.flatnonzero(x == k)) for k in set(x.tolist())} for x in (ours, theirs)]
    assert parts[0] == parts[1]


@pytest.mark.filterwarnings("ignore:The symmetric non-negative hollow observation matrix")
def test_rows_as_points_is_what_the_authors_code_does():
    rng = np.random.default_rng(4)
    sketch, amount = rng.standard_normal((9, 4)), np.full(9, 3 / 9)
    angle = angles(sketch)
    tree = linkage(angle, "ward")  # scipy takes the rows of a square matrix for points
    total = list(amount)
    for row in tree:
        total.append(total[int(row[0])] + total[int(row[1])])
        row[2] = total[-1]
    theirs = fcluster(tree, 1.0 + 1e-9, criterion="distance")
    ours = made(9, of_rows=True, sketch_size=4)._groups(sketch, amount)
    parts = [{frozenset(np.flatnonzero(x == k)) for k in set(x.tolist())} for x in (ours, theirs)]
    assert parts[0] == parts[1]


def test_a_vector_of_zeros_is_at_no_angle():
    found = angles(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]))
    np.testing.assert_allclose(found, [[0, 0, 0], [0, 0, np.pi / 2], [0, np.pi / 2, 0]])


def test_codes_by_hand():
    # signs +-, --, -+, ++: as a Gray code, neighbours differ in one sign
    vectors = np.array([[1.0, -1.0], [-1.0, -2.0], [-3.0, 0.5], [0.0, 0.0]])
    order = np.argsort(sign_code(vectors))
    assert order.tolist() == [3, 0, 1, 2]
    assert sign_code(np.ones((2, 16))).tolist() == [0, 0]
    # urns filled in the order of the codes: what 2 has left, 0, 1
    assert_same(
        urns_of([0.5, 0.3, 1.2], 2, code=np.array([4, 5, 0])), [{2: 1.0}, {2: 0.2, 0: 0.5, 1: 0.3}]
    )


@given(st.lists(st.floats(0.01, 50.0), min_size=2, max_size=30), st.data(), st.integers(0, 100))
def test_urns_by_codes_are_full_and_every_client_keeps_its_share(sizes, data, seed):
    m = data.draw(st.integers(1, len(sizes)))
    amount = m * np.array(sizes) / np.sum(sizes)
    code = sign_code(np.random.default_rng(seed).standard_normal((len(sizes), 3)))
    client, urn, share = fill_urns(amount, m, code=code)
    assert (np.diff(urn) >= 0).all()
    np.testing.assert_allclose(np.bincount(urn, share, minlength=m), 1.0, atol=1e-8)
    np.testing.assert_allclose(np.bincount(client, share, minlength=len(sizes)), amount, atol=1e-8)


def test_among_many_clients_the_mean_varies_less_and_chances_are_kept():
    n, m = MOST_GROUPED + 100, 20
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 100, n)
    update = rng.standard_normal((10, 32))[rng.integers(0, 10, n)]  # ten kinds of clients
    groups, by_size = made(n, sketch_size=32), made(n, by="size")
    groups.sketch_[:] = update + 0.05 * rng.standard_normal(update.shape)
    ctx, spread = context(sizes, m), {}
    for name, selector in (("groups", groups), ("sizes", by_size)):
        drawn = [selector.select(ctx, rng) for _ in range(300)]
        assert all(x.times.sum() == m for x in drawn)
        means = np.array([plain_mean(x, update) for x in drawn])
        error = np.sqrt(np.var(means, axis=0).sum() / len(means))
        assert (
            np.linalg.norm(means.mean(axis=0) - np.average(update, axis=0, weights=sizes))
            < 3 * error
        )
        spread[name] = np.var(means, axis=0).sum()
    assert spread["groups"] < 0.5 * spread["sizes"]


def test_unknown_and_empty_clients():
    # the unknown size counts as the mean, 10 / 3: its client has 0.5 of an urn, client 2 has 1.5
    ctx, counts = context([0, np.nan, 10, 0], 2), np.zeros(4)
    for seed in range(400):
        chosen = made(4, by="size").select(ctx, np.random.default_rng(seed))
        counts[chosen.clients] += 1
    assert counts[[0, 2, 3]].tolist() == [0, 400, 0]
    assert counts[1] / 400 == pytest.approx(0.5, abs=5 * 0.5 / 20)
    chosen = made(3, by="size").select(context([0, 0, 0], 2), np.random.default_rng(0))
    assert chosen.times.sum() == 2


def test_groups_follow_the_last_updates_that_clients_sent():
    # Two kinds of clients, and two urns: with known updates, each urn holds one kind.
    selector, ctx = made(4, sketch_size=2), context([1, 1, 1, 1], 2)

    def tell(clients, sketches):
        n = len(clients)
        metrics = {"update_sketch": np.array(sketches, dtype=float)}
        selector.observe(
            turnout.Selection(0, np.array(clients)), turnout.Outcome([0] * n, [1.0] * n, metrics)
        )

    def cohorts():
        return {tuple(selector.select(ctx, np.random.default_rng(s)).clients) for s in range(60)}

    tell([0, 1, 2, 3], [[1, 0], [0, 1], [1, 0.1], [0.1, 1]])
    assert cohorts() == {(0, 1), (0, 3), (1, 2), (2, 3)}
    tell([1, 2], [[1, 0], [np.nan, np.nan]])  # client 1 changes its kind, client 2 says nothing
    assert selector.sketch_.tolist() == [[1, 0], [1, 0], [1, 0.1], [0.1, 1]]
    tell([2], [[0, 1]])
    assert cohorts() == {(0, 2), (0, 3), (1, 2), (1, 3)}


@pytest.mark.parametrize("n_absent", [3, MOST_GROUPED])
def test_absent_clients_lend_their_groups_to_nobody(n_absent):
    # The first clients are absent, and all of one kind. The others are of two kinds.
    n = n_absent + 2 * MOST_GROUPED if n_absent > 3 else n_absent + 8
    kind = np.where(np.arange(n) < n_absent, 0, 1 + np.arange(n) % 2)
    selector = made(n, sketch_size=3)
    selector.sketch_[:] = np.array([[1.0, 1, 1], [1, -1, 1], [-1, 1, -1]])[kind]
    ctx = context(np.ones(n), 2, np.arange(n) >= n_absent)
    for seed in range(20):
        chosen = selector.select(ctx, np.random.default_rng(seed)).clients
        assert (chosen >= n_absent).all()
        assert sorted(kind[chosen]) == [1, 2]


def test_by_size_nothing_is_reported_and_by_similarity_sketches_are():
    assert made(3, by="size").needs_metrics == frozenset()
    assert made(3, by="size").metric_sizes == {}
    assert made(3, sketch_size=9).metric_sizes == {"update_sketch": 9}
