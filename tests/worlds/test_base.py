import itertools
import math

import numpy as np
import pytest

from tests.worlds.helpers import moment
from turnout.worlds import WorldStream
from turnout.worlds.base import equal_classes, fixed_rng


@pytest.mark.parametrize("shape", [(3,), (2, 50), (5000,), (9000,)])
def test_uniforms_are_a_function_of_seed_and_round(shape):
    rounds = [0, 1, 2, 163, 164, 2730, 2731, 10_000]
    forward = {t: moment(t).uniforms(WorldStream.TIMING, shape=shape) for t in rounds}
    for t in reversed(rounds):
        again = moment(t).uniforms(WorldStream.TIMING, shape=shape)
        assert again.shape == shape
        np.testing.assert_array_equal(again, forward[t])
    for a, b in itertools.combinations(rounds, 2):
        assert (forward[a] != forward[b]).all()
    assert (forward[1] != moment(1, seed=2).uniforms(WorldStream.TIMING, shape=shape)).all()


def test_uniforms_are_uniform_over_rounds_and_clients():
    drawn = np.array([moment(t).uniforms(WorldStream.LOSS, shape=(100,)) for t in range(300)])
    counts = np.histogram(drawn, bins=10, range=(0.0, 1.0))[0]
    assert (np.abs(counts - 3000) <= 5.0 * math.sqrt(30_000 * 0.1 * 0.9)).all()
    neighbours = np.corrcoef(drawn[1:].ravel(), drawn[:-1].ravel())[0, 1]
    assert abs(neighbours) <= 5.0 / math.sqrt(drawn.size)


def test_every_stream_of_a_model_is_its_own():
    first = [
        number
        for part in WorldStream
        for level in range(3)
        for number in (
            moment(0).rng(part, level).random(),
            moment(0).uniforms(part, level, shape=(4,))[0],
            fixed_rng(1, part, level).random(),
        )
    ]
    assert len(set(first)) == len(first) == 3 * 3 * len(WorldStream)


def test_draws_cannot_be_overwritten():
    with pytest.raises(ValueError, match="read-only"):
        moment(0).uniforms(WorldStream.TIMING, shape=(4,))[0] = 0.0


def test_equal_classes():
    np.testing.assert_array_equal(np.bincount(equal_classes(102, 4)), [26, 25, 26, 25])
    np.testing.assert_array_equal(equal_classes(3, 5), [0, 1, 3])
