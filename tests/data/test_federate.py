import hashlib
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass, replace

import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.data import (
    Arrays,
    Dataset,
    Digits,
    Dirichlet,
    Iid,
    Natural,
    Partition,
    PowerLaw,
    PrimaryLabel,
    Shards,
    Synthetic,
    divide,
    federate,
)
from turnout.data.base import PADDING

from .makers import grouped, labelled


@dataclass(frozen=True)
class Fixed(Partition):
    """Rows and offsets as given."""

    rows: tuple[int, ...]
    offsets: tuple[int, ...]

    def assign(self, dataset, n_clients, rng):
        return np.array(self.rows, dtype=np.int64), np.array(self.offsets)


def test_rows_go_where_the_partition_says():
    dataset = labelled([3, 3])
    data = divide(dataset, Fixed((4, 0, 5, 1), (0, 1, 4)), 2, seed=0)
    assert data.x[:, 0].tolist() == [4, 0, 5, 1]
    assert data.y.tolist() == dataset.y[[4, 0, 5, 1]].tolist()
    assert data.num_samples.tolist() == [1, 3]
    assert data.share.tolist() == [0.25, 0.75]
    assert data.n_clients == 2
    assert data.example_shape == (1,)
    assert not data.is_text


def test_label_counts_by_hand():
    dataset = replace(labelled([3, 3]), y=np.array([0, 0, 1, 1, 1, 0]))
    data = divide(dataset, Fixed((0, 1, 2, 3, 5), (0, 3, 5)), 2, seed=0)
    assert data.label_counts.tolist() == [[2, 1], [1, 1]]


def test_label_counts_of_texts_leave_padding_out():
    x = np.array([[1, 2, 0], [2, 1, 1]])
    y = np.array([[2, PADDING, PADDING], [1, 1, 2]])
    data = federate(Arrays(x, y, x, y), Iid(), 2, seed=1)
    assert sorted(data.label_counts.tolist()) == [[0, 0, 1], [0, 2, 1]]
    assert data.is_text
    assert data.y.dtype == np.int32


# hold-out --------------------------------------------------------------------------------------


def test_hold_out_by_hand():
    data = divide(grouped([1, 2, 10]), Natural(), 3, seed=0, hold_out=0.5)
    assert data.num_samples.tolist() == [1, 1, 5]
    assert np.diff(data.holdout_offsets).tolist() == [0, 1, 5]
    together = np.concatenate((data.x[:, 0], data.x_holdout[:, 0]))
    assert sorted(together) == list(range(13))


def test_hold_out_leaves_something_to_train_on():
    data = divide(grouped([1, 2, 10]), Natural(), 3, seed=0, hold_out=0.96)
    assert data.num_samples.tolist() == [1, 1, 1]
    assert np.diff(data.holdout_offsets).tolist() == [0, 1, 9]


def test_hold_out_belongs_to_its_client():
    dataset = grouped([8, 8, 8])
    data = divide(dataset, Natural(), 3, seed=0, hold_out=0.25)
    for client in range(3):
        part = slice(data.holdout_offsets[client], data.holdout_offsets[client + 1])
        rows = data.x_holdout[part, 0].astype(int)
        assert dataset.group[rows].tolist() == [client] * 2


def test_a_hold_out_that_others_train_on_is_told():
    with pytest.warns(UserWarning, match=r"^hold_out: .* fewer samples, or look at") as told:
        data = divide(grouped([40]), Iid(samples=20), 6, seed=0, hold_out=0.25)
    seen = np.isin(data.x_holdout[:, 0], data.x[:, 0]).mean()
    assert seen > 0.5
    assert f"{seen:.0%} of what clients hold out" in str(told[0].message)


@pytest.mark.parametrize(("n_rows", "samples", "n_clients"), [(40, 10, 4), (200, 51, 4)])
def test_a_hold_out_that_is_nearly_unseen_is_not_told(n_rows, samples, n_clients):
    data = divide(grouped([n_rows]), Iid(samples=samples), n_clients, seed=0, hold_out=0.25)
    seen = np.isin(data.x_holdout[:, 0], data.x[:, 0]).mean()
    assert (seen > 0.0) == (samples * n_clients > n_rows)


def test_hold_out_is_uniform_and_leaves_the_division_alone():
    dataset = grouped([5, 5])
    held = np.zeros(10)
    for seed in range(1000):
        data = divide(dataset, Natural(), 2, seed, hold_out=0.4)
        held[data.x_holdout[:, 0].astype(int)] += 1
    assert np.all(np.abs(held - 400) < 5 * np.sqrt(1000 * 0.4 * 0.6))
    whole = divide(dataset, Natural(), 2, 3)
    assert whole.x_holdout.shape == (0, 1)
    part = divide(dataset, Natural(), 2, 3, hold_out=0.4)
    assert set(part.x[:, 0]) < set(whole.x[:, 0])


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, float("nan"), True])
def test_hold_out_is_checked(share):
    with pytest.raises(InvalidInput, match=r"^hold_out"):
        federate(Digits(), Iid(), 3, seed=0, hold_out=share)


# names, seeds, mistakes ------------------------------------------------------------------------


def test_clients_of_one_group_have_its_name():
    dataset = grouped([2, 3, 4])
    assert divide(dataset, Natural(choose="largest"), 2, seed=0).client_names == ("g1", "g2")
    assert divide(dataset, Iid(), 2, seed=0).client_names == ()


def test_the_seed_fixes_everything():
    first, again, other = (
        federate(Digits(), Dirichlet(0.3), 10, seed, hold_out=0.2) for seed in (1, 1, 2)
    )
    for name in ("x", "y", "offsets", "x_holdout", "x_test", "features"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.x, other.x)


def test_another_process_makes_the_same_data():
    code = (
        "from turnout.data import *; import hashlib;"
        "d = federate(Synthetic(), PrimaryLabel(0.8, 50), 9, seed=3, hold_out=0.1);"
        "print(hashlib.sha256(d.x.tobytes() + d.features.tobytes()).hexdigest())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = federate(Synthetic(), PrimaryLabel(0.8, 50), 9, seed=3, hold_out=0.1)
    digest = hashlib.sha256(here.x.tobytes() + here.features.tobytes()).hexdigest()
    assert done.stdout.strip() == digest


def test_a_partition_that_leaves_someone_without_data():
    with pytest.raises(InvalidInput, match=r"^n_clients: Fixed leaves 1 of 2 .* no data .client 1"):
        divide(labelled([3]), Fixed((0, 1), (0, 2, 2)), 2, seed=0)
    with pytest.raises(InvalidInput, match=r"no data .*Lower n_clients"):
        federate(Digits(), Iid(), 1500, seed=0)


@pytest.mark.parametrize(
    ("rows", "offsets", "message"),
    [
        ((0, 1), (0, 1), "offsets"),
        ((0, 1), (0, 1, 3), "offsets"),
        ((0, 3), (0, 1, 2), "rows inside 0 .. 2"),
    ],
)
def test_a_partition_of_the_users_is_checked(rows, offsets, message):
    with pytest.raises(InvalidInput, match=message):
        divide(labelled([3]), Fixed(rows, offsets), 2, seed=0)


@pytest.mark.parametrize("n_clients", [0, -1, 2.5, True])
def test_the_number_of_clients_is_checked(n_clients):
    with pytest.raises(InvalidInput, match=r"^n_clients"):
        federate(Digits(), Iid(), n_clients, seed=0)


@pytest.mark.parametrize("partition", [PrimaryLabel(), Dirichlet(), Shards(), PowerLaw(alpha=1.0)])
def test_texts_have_no_labels_to_divide_by(partition):
    x = np.ones((8, 3), dtype=np.int64)
    with pytest.raises(InvalidInput, match="text with a label at each word"):
        federate(Arrays(x, x, x, x), partition, 2, seed=0)


def test_texts_are_divided_iid_or_by_size():
    x = np.ones((8, 3), dtype=np.int64)
    for partition in (Iid(), PowerLaw()):
        assert federate(Arrays(x, x, x, x), partition, 2, seed=0).num_samples.sum() == 8


def test_memory_is_the_data_once_more_and_little_else():
    n = 40_000
    y = np.arange(n) % 10
    dataset = Dataset(
        "big", np.zeros((n, 1, 28, 28), np.uint8), y, np.zeros((1, 1, 28, 28)), y[:1], 10
    )
    tracemalloc.start()
    try:
        data = divide(dataset, Dirichlet(0.3), 1000, seed=0, hold_out=0.1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data.n_clients == 1000
    assert peak < 2.5 * dataset.x.nbytes


# datasets and arrays ---------------------------------------------------------------------------


def good():
    x = np.zeros((4, 3), dtype=np.float32)
    return {
        "name": "d",
        "x": x,
        "y": np.array([0, 1, 2, 0]),
        "x_test": x[:1],
        "y_test": [1],
        "n_classes": 3,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros(4)}, "^x must be numbers of shape"),
        ({"x": np.full((4, 3), "a")}, "^x must be numbers"),
        ({"x": np.full((4, 3), np.nan)}, "^x must be finite"),
        ({"x_test": np.full((1, 3), np.inf)}, "^x_test must be finite"),
        ({"y": np.array([0, 1, 2])}, "^y must hold an integer label for each of the 4"),
        ({"y": np.zeros(4)}, "^y_test must hold targets or labels as y"),
        ({"y": np.zeros(4), "y_test": np.zeros(1)}, "^n_classes must be 1, the number of outputs"),
        ({"y": np.full(4, np.nan), "y_test": np.zeros(1), "n_classes": 1}, "^y must be finite"),
        ({"y": np.array([0, 1, 3, 0])}, "^y must be inside 0 .. 2"),
        ({"y": np.array([0, 1, -1, 0])}, "^y must be inside 0 .. 2"),
        ({"y_test": [3]}, "^y_test must be inside"),
        ({"x_test": np.zeros((1, 4))}, "^x_test must hold examples of the shape of x"),
        ({"y": np.zeros((4, 2), int)}, "^y must have the shape of x"),
        ({"y": np.zeros((4, 3), int)}, "^x must hold word numbers inside 0 .. 2"),
        ({"group": [0, 1]}, "^group must hold"),
        ({"group": [0, 1, 2, -1]}, "^group must hold"),
        ({"group": [0, 1, 2, 2], "group_names": ("a",)}, "^group_names"),
        ({"words": ("a", "b")}, "^words must name all 3"),
        ({"n_classes": 0}, "^n_classes"),
    ],
)
def test_datasets_are_checked_by_name(change, message):
    Dataset(**good())
    with pytest.raises(InvalidInput, match=message):
        Dataset(**good() | change)


def test_a_dataset_needs_training_examples():
    x = np.zeros((0, 3))
    with pytest.raises(InvalidInput, match="at least one training example"):
        Dataset("d", x, np.zeros(0, int), x, np.zeros(0, int), 2)


def test_vectors_are_single_precision_and_texts_may_name_their_words():
    x = np.zeros((3, 2))
    assert Arrays(x, [0, 1, 1], x, [0, 0, 1]).load(seed=0).x.dtype == np.float32
    words = np.array([[1, 5], [2, 0]])
    labels = np.array([[2, PADDING], [1, PADDING]])
    assert Arrays(words, labels, words, labels).load(seed=0).n_classes == 6
    with pytest.raises(InvalidInput, match=r"^x must hold word numbers inside 0 .. 3"):
        Arrays(words, labels, words, labels, n_classes=4)


def test_arrays_keep_the_shape_they_are_given():
    x = np.zeros((5, 4, 4), dtype=np.uint8)
    source = Arrays(x, [0, 1, 2, 3, 3], x[:2], [0, 4], scale=1 / 255, group=[0, 0, 1, 1, 1])
    data = federate(source, Natural(), 2, seed=0)
    assert data.example_shape == (4, 4)
    assert data.n_classes == 5
    assert data.scale == 1 / 255


def test_arrays_are_checked_when_they_are_given():
    x = np.zeros((5, 4), dtype=np.float32)
    with pytest.raises(InvalidInput, match=r"^y must hold"):
        Arrays(x, [0, 1], x, [0] * 5)
    with pytest.raises(
        InvalidInput, match=r"^y_test must hold integer labels.*names in both y and"
    ):
        Arrays(x, [0, 1, 2, 3, 4], x, ["cat"] * 5)
    with pytest.raises(InvalidInput, match=r"^y must be inside"):
        Arrays(x, [0, 1, 2, 3, 4], x, [0] * 5, n_classes=3)
    with pytest.raises(InvalidInput, match=r"^scale"):
        Arrays(x, [0] * 5, x, [0] * 5, scale=float("nan"))


def test_names_of_labels_and_owners_are_numbered_alphabetically():
    x = np.zeros((3, 2))
    owners = np.array(["ward 2", "ward 1", "ward 2"], dtype=object)
    dataset = Arrays(x, ["cat", "ape", "cat"], x, ["dog", "cat", "ape"], group=owners).load(seed=0)
    assert dataset.y.tolist() == [1, 0, 1]
    assert dataset.y_test.tolist() == [2, 1, 0]
    assert dataset.n_classes == 3
    assert dataset.group.tolist() == [1, 0, 1]
    assert dataset.group_names == ("ward 1", "ward 2")
    with pytest.raises(InvalidInput, match=r"^y must hold integer labels.*astype\(int\)"):
        Arrays(x, [0.5, 1.0, 2.0], x, [0, 0, 0])


@pytest.mark.slow
def test_importing_needs_numpy_only():
    code = (
        "import sys, turnout.data;"
        "print([m for m in ('torch', 'sklearn', 'matplotlib', 'rich', 'typer', 'scipy')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
