import importlib.util

import numpy as np
import pytest

from turnout.cli.data import draw_division
from turnout.core.errors import InvalidInput, MissingExtra
from turnout.data import Arrays, Digits, Dirichlet, Iid, Natural, PowerLaw, Shards, divide, federate
from turnout.data.federate import division

from .makers import labelled
from .test_federate import Fixed


def test_skew_is_the_total_variation_distance_by_hand():
    dataset = labelled([4, 4])
    zeros, ones = (np.flatnonzero(dataset.y == label) for label in (0, 1))
    rows = (*zeros, *ones[:2], *ones[2:])
    found = division(divide(dataset, Fixed(rows, (0, 4, 6, 8)), 3, seed=0))
    assert found.sizes.tolist() == [4, 2, 2]
    assert found.label_counts.tolist() == [[4, 0], [0, 2], [0, 2]]
    assert found.skew.tolist() == [0.5, 0.5, 0.5]
    mixed = division(divide(dataset, Fixed((zeros[0], ones[0]), (0, 2)), 1, seed=0))
    assert mixed.skew.tolist() == [0.0]


def test_many_clients_are_sampled_evenly_by_main_label():
    data = federate(Digits(), Shards(per_client=1), 100, seed=0)
    found = division(data)
    assert found.sample(100).tolist() == list(range(100))
    some = found.sample(20)
    assert np.unique(some).size == 20
    main = found.label_counts[some].argmax(axis=1)
    assert np.bincount(main, minlength=10).tolist() == [2] * 10
    assert main.tolist() == sorted(main.tolist())
    assert found.ordered_by == "main label"


def test_texts_are_ordered_by_size():
    x = np.ones((9, 2), dtype=np.int64)
    data = federate(Arrays(x, x, x, x, group=[0, 1, 1, 2, 2, 2, 3, 3, 3]), Natural(), 4, seed=0)
    found = division(data)
    assert found.sizes[found.order].tolist() == [3, 3, 2, 1]
    assert found.ordered_by == "size"


def colours(path):
    from matplotlib.image import imread

    pixels = imread(path)[..., :3]
    assert pixels.shape[0] > 400
    levels = np.rint(255 * pixels.reshape(-1, 3)).astype(int)
    return {tuple(colour) for colour in np.unique(levels, axis=0).tolist()}


def test_few_clients_are_stacked_bars_with_a_colour_for_each_label(tmp_path):
    import matplotlib

    data = federate(Digits(), Dirichlet(0.5), 12, seed=0)
    path = draw_division(data, tmp_path / "few.png", "digits")
    palette = np.rint(255 * np.array(matplotlib.colormaps["tab10"].colors)).astype(int)
    wanted = {tuple(colour) for colour in palette.tolist()}
    assert wanted <= colours(path)


def test_many_clients_or_labels_are_a_matrix(tmp_path):
    data = federate(Digits(), Dirichlet(0.5), 100, seed=0)
    found = colours(draw_division(data, tmp_path / "many.png"))
    blues = {colour for colour in found if colour[2] > colour[0] + 25}
    assert len(blues) > 10


def test_texts_and_sizes_are_drawn(tmp_path):
    x = np.random.default_rng(0).integers(0, 50, (60, 3))
    data = federate(Arrays(x, x, x, x), PowerLaw(1.0), 12, seed=0)
    assert draw_division(data, tmp_path / "text.png").stat().st_size > 5000


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_a_figure_is_the_same_every_time(tmp_path, suffix):
    data = federate(Digits(), PowerLaw(), 12, seed=0)
    first, second = (
        draw_division(data, tmp_path / f"{name}.{suffix}", "title").read_bytes() for name in "ab"
    )
    assert first == second
    begin = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[suffix]
    assert first.startswith(begin)


def test_the_folder_of_a_figure_is_made_if_it_can_be(tmp_path):
    data = federate(Digits(), Iid(), 3, seed=0)
    assert draw_division(data, tmp_path / "new" / "figure.png").stat().st_size > 0
    with pytest.raises(InvalidInput, match=r"^path .* cannot be written"):
        draw_division(data, tmp_path / "new" / "figure.png" / "figure.png")


def test_other_formats_and_a_missing_library_are_refused(tmp_path, monkeypatch):
    data = federate(Digits(), Iid(), 3, seed=0)
    with pytest.raises(InvalidInput, match=r"^path must end in"):
        draw_division(data, tmp_path / "figure.gif")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install"):
        draw_division(data, tmp_path / "figure.png")
