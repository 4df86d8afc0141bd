"""Groups of similar clients are those of scipy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from turnout.core.errors import InvalidInput
from turnout.sampling.linkage import RULES, similar_groups


def partition(labels):
    return {frozenset(np.flatnonzero(labels == label)) for label in np.unique(labels)}


@settings(max_examples=60)
@given(st.integers(2, 30), st.integers(1, 8), st.sampled_from(sorted(RULES)), st.integers(0, 999))
def test_groups_are_those_of_scipy(n, n_groups, rule, seed):
    points = np.random.default_rng(seed).standard_normal((n, 3))
    distance = np.linalg.norm(points[:, None] - points, axis=2)
    distance = 0.5 * (distance + distance.T)
    theirs = fcluster(linkage(squareform(distance), rule), n_groups, criterion="maxclust")
    ours = similar_groups(distance, n_groups, rule)
    assert partition(ours) == partition(theirs)
    assert len(partition(ours)) == min(n, n_groups)


def test_groups_are_numbered_by_their_first_members():
    x = np.array([9.0, 0.0, 9.1, 0.2, 5.0])
    assert similar_groups(np.abs(x[:, None] - x), 3).tolist() == [0, 1, 0, 1, 2]


def test_few_positions_are_groups_of_their_own():
    assert similar_groups(np.zeros((1, 1)), 4).tolist() == [0]
    assert similar_groups(np.zeros((0, 0)), 4).tolist() == []
    assert similar_groups(np.ones((3, 3)) - np.eye(3), 9).tolist() == [0, 1, 2]


def test_equal_distances_still_give_the_number_of_groups():
    assert len(set(similar_groups(np.zeros((6, 6)), 2).tolist())) == 2


def test_bad_input_names_the_field():
    with pytest.raises(InvalidInput, match="distance must be"):
        similar_groups(np.zeros((2, 3)), 1)
    with pytest.raises(InvalidInput, match="rule must be"):
        similar_groups(np.zeros((2, 2)), 1, "single link")
