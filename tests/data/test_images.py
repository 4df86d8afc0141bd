import gzip
import hashlib
import json
import os
import pickle
import zipfile

import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.data import (
    ArrayFile,
    Cifar10,
    DamagedData,
    DataMissing,
    EmnistLetters,
    EmnistLettersFeatures,
    FashionMnist,
    Femnist,
    Natural,
    federate,
)

from .makers import FASHION, LETTERS, images, pack, write_cifar, write_idx


@pytest.fixture(autouse=True)
def _no_data_directory(monkeypatch):
    monkeypatch.delenv("TURNOUT_DATA", raising=False)


TRAIN, TEST = images(20), images(10, seed=1)
COLOUR, COLOUR_TEST = images(10, (3, 32, 32)), images(4, (3, 32, 32), seed=1)


def plain(path, train=TRAIN, test=TEST, **more):
    np.savez(path, x_train=train[0], y_train=train[1], x_test=test[0], y_test=test[1], **more)


def loaded(cls, directory, **settings):
    return cls(directory=str(directory), verify=False, **settings).load(seed=0)


# forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["npz", "idx", "idx.gz", "torchvision"])
def test_fashion_mnist_in_every_form(tmp_path, form):
    if form == "npz":
        plain(tmp_path / "fashion-mnist.npz")
    else:
        folder = "FashionMNIST/raw" if form == "torchvision" else "fashion-mnist"
        write_idx(tmp_path / folder, FASHION, TRAIN, TEST, packed=form != "idx")
    dataset = loaded(FashionMnist, tmp_path)
    assert np.array_equal(dataset.x[:, 0], TRAIN[0])
    assert np.array_equal(dataset.y, TRAIN[1])
    assert np.array_equal(dataset.x_test[:, 0], TEST[0])
    assert np.array_equal(dataset.y_test, TEST[1])
    assert dataset.x.shape == (20, 1, 28, 28)
    assert dataset.x.dtype == np.uint8
    assert dataset.y.dtype == np.int64


@pytest.mark.parametrize("form", ["bin", "py", "python2"])
@pytest.mark.parametrize("packed", [False, True])
def test_cifar_in_every_form_of_its_publisher(tmp_path, form, packed):
    is_binary = form == "bin"
    folder = tmp_path / ("cifar-10-batches-bin" if is_binary else "cifar-10-batches-py")
    write_cifar(folder, *COLOUR, *COLOUR_TEST, form=form)
    if packed:
        name = "cifar-10-binary" if is_binary else "cifar-10-python"
        pack(folder, tmp_path / f"{name}.tar.gz")
    dataset = loaded(Cifar10, tmp_path)
    assert np.array_equal(dataset.x, COLOUR[0])
    assert np.array_equal(dataset.y, COLOUR[1])
    assert np.array_equal(dataset.x_test, COLOUR_TEST[0])
    assert np.array_equal(dataset.y_test, COLOUR_TEST[1])


def test_cifar_in_the_plain_form_has_its_colours_last(tmp_path):
    train, test = ((x.transpose(0, 2, 3, 1), y) for x, y in (COLOUR, COLOUR_TEST))
    plain(tmp_path / "cifar10.npz", train, test)
    dataset = loaded(Cifar10, tmp_path)
    assert np.array_equal(dataset.x, COLOUR[0])
    assert dataset.x.flags.c_contiguous


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_emnist_letters_are_upright_and_counted_from_zero(tmp_path, form):
    train, test = images(52, n_classes=26, first=1), images(26, n_classes=26, first=1, seed=1)
    folder = tmp_path / "emnist-letters"
    write_idx(folder, LETTERS, train, test)
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, f"gzip/{path.name}")
                path.unlink()
        (tmp_path / "all.zip").rename(folder / "gzip.zip")
    dataset = loaded(EmnistLetters, tmp_path)
    assert np.array_equal(dataset.x[3, 0], train[0][3].T)
    assert dataset.y.tolist() == [*range(26), *range(26)]
    assert dataset.n_classes == 26


def test_emnist_labels_that_start_at_zero_are_not_letters(tmp_path):
    write_idx(tmp_path / "emnist-letters", LETTERS, images(26, n_classes=26), images(26))
    with pytest.raises(DamagedData, match="start at 1"):
        loaded(EmnistLetters, tmp_path)


def test_femnist_by_writer(tmp_path):
    y = np.array([0, 9, 10, 35, 36, 61] * 4, dtype=np.uint8)
    x = images(24)[0]
    writer = np.repeat([7, 3, 7, 12], 6).astype(np.uint16)
    plain(tmp_path / "femnist.npz", (x, y), (x[:6], y[:6]), writer_train=writer)
    dataset = loaded(Femnist, tmp_path)
    assert dataset.n_classes == 62
    assert dataset.group_names == ("3", "7", "12")
    assert np.bincount(dataset.group).tolist() == [6, 12, 6]
    letters = loaded(Femnist, tmp_path, classes="letters")
    assert letters.y[:4].tolist() == [0, 25, 0, 25]
    assert letters.y_test.tolist() == [0, 25, 0, 25]
    assert letters.n_classes == 26
    assert np.array_equal(letters.x, dataset.x[dataset.y >= 10])
    assert np.bincount(letters.group).tolist() == [4, 8, 4]
    digits = loaded(Femnist, tmp_path, classes="digits")
    assert digits.y.tolist() == [0, 9] * 4
    source = Femnist(directory=str(tmp_path))
    assert federate(source, Natural(choose="largest"), 2, 0).client_names == ("3", "7")


def test_femnist_as_leaf_writes_it(tmp_path):
    white = np.ones((2, 784))
    white[0, 5] = 0.2
    for part, users in (("train", {"f1": [4, 61], "f2": [10, 11]}), ("test", {"f1": [9, 9]})):
        folder = tmp_path / "femnist" / part
        folder.mkdir(parents=True)
        data = {name: {"x": white.tolist(), "y": y} for name, y in users.items()}
        content = {"users": list(users), "num_samples": [2] * len(users), "user_data": data}
        (folder / f"all_data_0_{part}.json").write_text(json.dumps(content))
    dataset = loaded(Femnist, tmp_path)
    assert dataset.x[0].ravel()[4:7].tolist() == [0, 204, 0]
    assert dataset.y.tolist() == [4, 61, 10, 11]
    assert dataset.group.tolist() == [0, 0, 1, 1]
    assert dataset.group_names == ("f1", "f2")
    assert dataset.y_test.tolist() == [9, 9]


def test_emnist_features_are_standardised_and_say_what_they_are(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(-50, 90, (40, 20)).astype(np.int16)
    x[:, 4] = 3  # a feature that says nothing
    y = (np.arange(40) % 26).astype(np.uint8)
    plain(tmp_path / "emnist-letters-features.npz", (x, y), (x[:5], y[:5]))
    dataset = EmnistLettersFeatures(directory=str(tmp_path)).load(seed=0)
    assert dataset.x.dtype == np.float32
    assert np.allclose(dataset.x.mean(axis=0), 0, atol=1e-6)
    assert np.allclose(np.delete(dataset.x.std(axis=0), 4), 1, atol=1e-5)
    assert np.allclose(dataset.x[:, 4], 0)
    assert np.allclose(dataset.x_test, dataset.x[:5])
    assert "NOT the images" in dataset.name


# what a model sees -----------------------------------------------------------------------------


def test_pixels_are_standardised_or_between_0_and_1(tmp_path):
    plain(tmp_path / "fashion-mnist.npz")
    dataset = loaded(FashionMnist, tmp_path)
    seen = dataset.x * dataset.scale + dataset.shift
    assert abs(seen.mean()) < 1e-9
    assert abs(seen.std() - 1) < 1e-9
    dataset = loaded(FashionMnist, tmp_path, standardise=False)
    seen = dataset.x * dataset.scale + dataset.shift
    assert (seen.min(), seen.max()) == (0.0, 1.0)


def test_images_of_one_colour_do_not_divide_by_zero(tmp_path):
    plain(tmp_path / "fashion-mnist.npz", (np.full((4, 28, 28), 9, np.uint8), TRAIN[1][:4]))
    dataset = loaded(FashionMnist, tmp_path)
    assert np.isfinite(dataset.scale)
    assert np.allclose(dataset.x * dataset.scale + dataset.shift, 0)


# checksums -------------------------------------------------------------------------------------


def test_content_is_compared_with_what_was_published(tmp_path, monkeypatch):
    plain(tmp_path / "fashion-mnist.npz")
    digest = hashlib.sha256()
    for part in (*TRAIN, *TEST):
        digest.update(part.tobytes())
    monkeypatch.setattr(FashionMnist, "sha256", digest.hexdigest())
    source = FashionMnist(directory=str(tmp_path))
    assert source.load(seed=0).x.shape == (20, 1, 28, 28)
    altered = TRAIN[0].copy()
    altered[3, 4, 5] ^= 1
    plain(tmp_path / "fashion-mnist.npz", (altered, TRAIN[1]))
    with pytest.raises(DamagedData, match=r"fashion-mnist.npz is not .*SHA-256.*verify=False"):
        source.load(seed=0)
    assert loaded(FashionMnist, tmp_path).x.shape == (20, 1, 28, 28)


@pytest.mark.parametrize("cls", [FashionMnist, Cifar10])
def test_published_checksums_are_on_by_default(cls, tmp_path):
    train, test = (TRAIN, TEST) if cls is FashionMnist else (COLOUR, COLOUR_TEST)
    plain(tmp_path / f"{cls.files.name}.npz", train, test)
    with pytest.raises(DamagedData, match="SHA-256"):
        cls(directory=str(tmp_path)).load(seed=0)


# damage ----------------------------------------------------------------------------------------


def damaged_npz(path):
    plain(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def cut_npz(path):
    plain(path)
    path.write_bytes(path.read_bytes()[:-100])


def empty(path):
    path.write_bytes(b"")


def text(path):
    path.write_text("<html>404</html>")


def other_arrays(path):
    np.savez(path, images=TRAIN[0])


def too_large_labels(path):
    plain(path, (TRAIN[0], TRAIN[1] + 5))


def wrong_shape(path):
    plain(path, (TRAIN[0][:, :20], TRAIN[1]))


def wrong_type(path):
    plain(path, (TRAIN[0].astype(np.float32), TRAIN[1]))


def too_few_labels(path):
    plain(path, (TRAIN[0], TRAIN[1][:-1]))


def pickled(path):
    np.savez(path, x_train=np.array([{}], dtype=object))


@pytest.mark.parametrize(
    "harm",
    [
        damaged_npz,
        cut_npz,
        empty,
        text,
        other_arrays,
        too_large_labels,
        wrong_shape,
        wrong_type,
        too_few_labels,
        pickled,
    ],
)
def test_a_damaged_npz_is_named_with_the_fix(tmp_path, harm):
    path = tmp_path / "fashion-mnist.npz"
    harm(path)
    with pytest.raises(DamagedData, match=r"fashion-mnist\.npz is damaged.*turnout data get"):
        loaded(FashionMnist, tmp_path)


def bit_flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-30])


def head(path):
    path.write_bytes(gzip.compress(b"\x00\x00\x0d\x03" + bytes(30)))


def too_short(path):
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-5]))


def gone(path):
    path.unlink()


@pytest.mark.parametrize("harm", [bit_flip, cut, head, too_short, empty, gone])
@pytest.mark.parametrize("kind", ["images-idx3", "labels-idx1"])
def test_damaged_idx_files_are_noticed(tmp_path, harm, kind):
    write_idx(tmp_path / "fashion-mnist", FASHION, TRAIN, TEST)
    harm(tmp_path / "fashion-mnist" / f"train-{kind}-ubyte.gz")
    which = rf"fashion-mnist is damaged.*\(train-{kind}-ubyte: .*turnout data get"
    with pytest.raises(DamagedData, match=which):
        loaded(FashionMnist, tmp_path)


@pytest.mark.parametrize("harm", [cut, empty])
@pytest.mark.parametrize("form", ["bin", "py"])
def test_damaged_cifar_batches_are_noticed(tmp_path, harm, form):
    folder = tmp_path / f"cifar-10-batches-{form}"
    write_cifar(folder, *COLOUR, *COLOUR_TEST, form=form)
    harm(folder / ("data_batch_3.bin" if form == "bin" else "data_batch_3"))
    with pytest.raises(DamagedData, match=rf"cifar-10-batches-{form} is damaged.*data_batch_3"):
        loaded(Cifar10, tmp_path)


@pytest.mark.parametrize("harm", [cut, bit_flip, empty])
def test_a_damaged_archive_is_noticed(tmp_path, harm):
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder, *COLOUR, *COLOUR_TEST)
    pack(folder, tmp_path / "cifar-10-binary.tar.gz")
    harm(tmp_path / "cifar-10-binary.tar.gz")
    with pytest.raises(DamagedData, match=r"cifar-10-binary\.tar\.gz is damaged"):
        loaded(Cifar10, tmp_path)


def test_a_missing_batch_is_missing_data(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder, *COLOUR, *COLOUR_TEST)
    (folder / "data_batch_2.bin").unlink()
    with pytest.raises(DataMissing, match="data_batch_2"):
        loaded(Cifar10, tmp_path)


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_harmful_batch_is_refused_and_not_run(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder, *COLOUR, *COLOUR_TEST, form="py")
    trap = tmp_path / "trap"
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Harmful(trap)}, protocol=2))
    with pytest.raises(DamagedData, match="asks for"):
        loaded(Cifar10, tmp_path)
    assert not trap.exists()


def test_bytes_in_another_encoding_are_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder, *COLOUR, *COLOUR_TEST, form="py")
    content = (folder / "data_batch_1").read_bytes()
    assert b"latin1" in content
    (folder / "data_batch_1").write_bytes(content.replace(b"latin1", b"rot_13"))
    with pytest.raises(DamagedData, match="encoding 'rot_13'"):
        loaded(Cifar10, tmp_path)


def test_a_batch_with_the_wrong_content_is_noticed(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder, *COLOUR, *COLOUR_TEST, form="py")
    batch = {b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]}
    (folder / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(DamagedData, match=r"images of shape \(2, 5\)"):
        loaded(Cifar10, tmp_path)


# missing ---------------------------------------------------------------------------------------

SOURCES = [FashionMnist, Cifar10, EmnistLetters, EmnistLettersFeatures, Femnist]


@pytest.mark.parametrize("cls", SOURCES)
def test_missing_data_says_what_to_put_where(cls, tmp_path, monkeypatch):
    wanted = next(iter(cls.files.forms))
    with pytest.raises(DataMissing, match=rf"TURNOUT_DATA is not set.*{wanted}"):
        cls().load(seed=0)
    with pytest.raises(DataMissing, match=rf"is not in {tmp_path}: put {wanted}"):
        cls(directory=str(tmp_path)).find()
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path))
    with pytest.raises(DataMissing, match=rf"is not in {tmp_path}"):
        cls().load(seed=0)


def test_the_environment_names_the_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path))
    plain(tmp_path / "fashion-mnist.npz")
    assert FashionMnist().find() == tmp_path / "fashion-mnist.npz"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FashionMnist(standardise=1), r"^standardise"),
        (lambda: Cifar10(verify="yes"), r"^verify"),
        (lambda: Femnist(classes="capitals"), r"^classes"),
        (ArrayFile, r"^path"),
        (lambda: ArrayFile(path="a.npz", scale="x"), r"^scale"),
    ],
)
def test_settings_are_checked_by_name(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


# the user's own --------------------------------------------------------------------------------


def test_arrays_in_a_file_of_the_users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain("mine.npz", writer_train=np.repeat(["b", "a"], 10))
    dataset = ArrayFile(path="mine.npz", scale=1 / 255, group="writer").load(seed=0)
    assert dataset.name == "mine"
    assert dataset.x.shape == (20, 28, 28)
    assert dataset.n_classes == 10
    assert dataset.group_names == ("a", "b")
    assert dataset.group.tolist() == [1] * 10 + [0] * 10
    assert ArrayFile(path="mine.npz").load(seed=0).group is None
    with pytest.raises(DamagedData, match=r"mine\.npz.*owner_train"):
        ArrayFile(path="mine.npz", group="owner").load(seed=0)
    with pytest.raises(DataMissing, match=r"yours\.npz"):
        ArrayFile(path="yours.npz").load(seed=0)
    (tmp_path / "table.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(
        DamagedData, match=r"table\.csv cannot be used: .*not an npz.*np\.savez.*csv-file"
    ):
        ArrayFile(path="table.csv").load(seed=0)
    with pytest.raises(DamagedData, match=r"path is a folder, but must be a file"):
        ArrayFile(path=str(tmp_path)).load(seed=0)
    with pytest.raises(DamagedData, match=r"mine\.npz.*y must be inside 0 .. 2"):
        ArrayFile(path="mine.npz", n_classes=3).load(seed=0)
