"""Sketches: products are unbiased, the spread is as stated, and everyone gets the same numbers."""

import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.core.sketch import FOLD, flat_update, mixing, signs, sketch


def slow_sketch(update, size, seed):
    """The same map number by number."""
    total = np.zeros(size)
    for i, value in enumerate(update):
        total += signs(len(update), seed)[i] * value * mixing(size, seed)[i % FOLD]
    return total


def test_equals_the_map_written_out_number_by_number():
    update = np.random.default_rng(0).standard_normal(2 * FOLD + 17)
    np.testing.assert_allclose(sketch(update, 5, 3), slow_sketch(update, 5, 3), rtol=1e-10)


def test_products_are_unbiased_with_the_stated_spread():
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 3000))
    y += 0.5 * x
    size = 32
    found = np.array([sketch(x, size, s) @ sketch(y, size, s) for s in range(400)])
    scale = np.linalg.norm(x) * np.linalg.norm(y)
    assert abs(found.mean() - x @ y) < 4 * found.std() / 20
    assert found.std() < 1.1 * scale * np.sqrt(2 / size)
    assert found.std() > 0.5 * scale * np.sqrt(1 / size)  # it does lose something


def test_a_layer_whose_rows_repeat_is_not_squeezed_into_one_number():
    # energy in every 64th weight only, as in a matrix with one used input
    update = np.zeros((500, 64))
    update[:, 3] = 1.0
    lengths = [np.linalg.norm(sketch(update.ravel(), 64, seed)) for seed in range(50)]
    assert abs(np.mean(np.square(lengths)) / 500 - 1.0) < 0.15


def test_another_seed_is_another_map():
    update = np.ones(100)
    assert not np.allclose(sketch(update, 8, 0), sketch(update, 8, 1))


def test_flat_update_keeps_the_order_of_the_arrays():
    before = [np.zeros((2, 2)), np.ones(3)]
    after = [np.arange(4.0).reshape(2, 2), np.array([1.0, 2.0, 3.0])]
    assert flat_update(before, after).tolist() == [0, 1, 2, 3, 0, 1, 2]


def test_bad_input_names_the_field():
    with pytest.raises(InvalidInput, match=r"update must be one flat vector.*flat_update"):
        sketch(np.zeros((2, 2)), 4)
    with pytest.raises(InvalidInput, match="size must be"):
        sketch(np.zeros(4), 0)
    with pytest.raises(InvalidInput, match=r"after\[1\] has shape \(2,\)"):
        flat_update([np.zeros(1), np.zeros(3)], [np.zeros(1), np.zeros(2)])
