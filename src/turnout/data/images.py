"""Image datasets: readers of the published formats, and folders of the user's own images."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from turnout.core.domains import CheckedFields, Count, Flag, choice
from turnout.core.names import import_extra
from turnout.core.types import Array
from turnout.data.base import Dataset, Draw
from turnout.data.embedded import TestShare, held_back, parts
from turnout.data.files import DamagedData, Files, FileSource, Raw, numbered, part_named, read_npz
from turnout.data.user_data import Arrays, OwnPath, pixels

_CIFAR_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR_TEST = ("test_batch",)
_CIFAR_PIXELS = 3 * 32 * 32

#: Bytes that are read at a time.
_READ_BYTES = 1 << 20


def _latin_1(text: str, encoding: str) -> bytes:
    """Stand in for ``_codecs.encode``, with which Python 3 writes bytes for Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the file asks for the encoding {encoding!r}")
    return text.encode("latin-1")


_RECONSTRUCT = np.empty(0).__reduce__()[0]
#: The only names that a pickled CIFAR batch needs; every other is refused.
_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin_1,
}


def read_idx_folder(folder: Path, train: str, test: str) -> Raw:
    """Read four idx files, compressed with gzip or not.

    Args:
        folder: The folder with the files.
        train: Beginning of the names of the training files.
        test: Beginning of the names of the test files.

    """

    def content(name: str) -> bytes:
        plain, packed = folder / name, folder / f"{name}.gz"
        if plain.exists():
            return plain.read_bytes()
        if packed.exists():
            return gzip.decompress(packed.read_bytes())
        raise ValueError(f"neither {plain.name} nor {packed.name} exists")

    return _idx_set(content, train, test)


def read_idx_zip(path: Path, train: str, test: str) -> Raw:
    """Read four idx files, compressed with gzip, from a zip archive: EMNIST as published.

    Args:
        path: The archive.
        train: Beginning of the names of the training files.
        test: Beginning of the names of the test files.

    """
    with zipfile.ZipFile(path) as archive:
        members = {name.rpartition("/")[2]: name for name in archive.namelist()}
        return _idx_set(
            lambda name: gzip.decompress(archive.read(members[f"{name}.gz"])), train, test
        )


def _idx_set(content: Callable[[str], bytes], train: str, test: str) -> Raw:
    arrays = []
    for begin in (train, test):
        for kind in ("images-idx3", "labels-idx1"):
            with part_named(f"{begin}-{kind}-ubyte") as name:
                arrays.append(read_idx(content(name)))
    x, y, x_test, y_test = arrays
    return Raw(x, y, x_test, y_test)


def read_idx(content: bytes) -> Array:
    """Return the array of uint8 that an idx file holds.

    Args:
        content: The bytes of the file. Its head gives the shape.

    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise ValueError("not an idx file of unsigned bytes")
    head = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:head], dtype=">u4"))
    n_bytes = len(content) - head
    if len(shape) != content[3] or n_bytes != math.prod(shape):
        raise ValueError(f"{n_bytes} bytes of content, but its head gives the shape {shape}")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def read_cifar(path: Path) -> Raw:
    """Read CIFAR-10 in its binary or Python form.

    Args:
        path: The folder with the batches, or the archive as published.

    """
    batches = dict(_folder_batches(path) if path.is_dir() else _archive_batches(path))
    train, test = ([batches[name] for name in names] for names in (_CIFAR_TRAIN, _CIFAR_TEST))
    return Raw(*_joined(train), *_joined(test))


def _joined(batches: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return x.reshape(-1, 3, 32, 32), y


def _folder_batches(folder: Path) -> Iterator[tuple[str, tuple[Array, Array]]]:
    for stem in _CIFAR_TRAIN + _CIFAR_TEST:
        binary = f"{stem}.bin"
        with part_named(binary if (folder / binary).exists() else stem) as name:
            batch = _batch(name, (folder / name).read_bytes())
        yield stem, batch


def _archive_batches(path: Path) -> Iterator[tuple[str, tuple[Array, Array]]]:
    with gzip.open(path) as stream:
        with tarfile.open(fileobj=stream) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                stem = name.removesuffix(".bin")
                file = archive.extractfile(member) if stem in _CIFAR_TRAIN + _CIFAR_TEST else None
                if file is not None:
                    with part_named(name):
                        batch = _batch(name, file.read())
                    yield stem, batch
        while stream.read(_READ_BYTES):  # the checksum is at the end
            pass


def _batch(name: str, content: bytes) -> tuple[Array, Array]:
    return _binary_batch(content) if name.endswith(".bin") else _pickled_batch(content)


def _binary_batch(content: bytes) -> tuple[Array, Array]:
    if not content or len(content) % (1 + _CIFAR_PIXELS):
        raise ValueError(f"{len(content)} bytes are not a whole number of CIFAR-10 images")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + _CIFAR_PIXELS)
    return records[:, 1:], records[:, 0]


def _pickled_batch(content: bytes) -> tuple[Array, Array]:
    """Read a pickled batch; it can build arrays, lists and numbers and nothing else."""
    batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    x, y = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    if x.dtype != np.uint8 or x.ndim != 2 or x.shape != (y.size, _CIFAR_PIXELS):
        raise ValueError(f"images of shape {x.shape} and {x.dtype} for {y.size} labels")
    return x, y


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}") from None


def read_leaf(folder: Path) -> Raw:
    """Read FEMNIST as LEAF writes it: JSON files with the images of each writer.

    Args:
        folder: Holds the folders ``train`` and ``test``.

    """
    writers: dict[str, int] = {}
    x, y, owner = _leaf_part(folder / "train", writers)
    names = tuple(writers)
    x_test, y_test, _ = _leaf_part(folder / "test", writers)
    return Raw(x, y, x_test, y_test, owner, names)


def _leaf_part(folder: Path, writers: dict[str, int]) -> tuple[Array, Array, Array]:
    x, y, owner = [], [], []
    for path in sorted(folder.glob("*.json")):
        with part_named(f"{folder.name}/{path.name}"):
            users = json.loads(path.read_bytes())["user_data"]
        for writer, data in users.items():
            ink = 255 - np.rint(255.0 * np.asarray(data["x"], dtype=np.float64))  # LEAF: 1 is white
            x.append(ink.astype(np.uint8).reshape(-1, 28, 28))
            y.append(np.asarray(data["y"], dtype=np.int64))
            owner.append(np.full(len(data["y"]), writers.setdefault(writer, len(writers))))
    if not x:
        raise ValueError(f"no JSON files in {folder.name}")
    return np.concatenate(x), np.concatenate(y), np.concatenate(owner)


#: Pixels that are counted at a time.
_CHUNK = 1 << 22

_fashion = partial(read_idx_folder, train="train", test="t10k")
_letters = {"train": "emnist-letters-train", "test": "emnist-letters-test"}


def _emnist(path: Path) -> Raw:
    """Transpose the images, which are stored by column, and number the letters from 0."""
    raw = read_idx_folder(path, **_letters) if path.is_dir() else read_idx_zip(path, **_letters)
    upright = raw._replace(x=raw.x.swapaxes(1, 2), x_test=raw.x_test.swapaxes(1, 2))
    if min(raw.y.min(), raw.y_test.min()) < 1:
        raise ValueError("the labels of EMNIST Letters start at 1, and there is a 0")
    return upright._replace(y=raw.y - 1, y_test=raw.y_test - 1)


@dataclass(frozen=True, slots=True)
class _ImageSource(CheckedFields, FileSource[Raw]):
    """Images in the data directory. Subclasses explain the settings."""

    n_classes: ClassVar[int]
    shape: ClassVar[tuple[int, int, int]] = (1, 28, 28)
    sha256: ClassVar[str] = ""  #: of all pixels and labels as published; empty if unknown

    directory: str | None = None
    standardise: Flag = True
    verify: Flag = True

    def dataset(self, path: Path, content: Raw, seed: int) -> Dataset:
        """Return the images."""
        x, x_test = (_planes(part, self.shape) for part in (content.x, content.x_test))
        examples = (x, content.y, x_test, content.y_test)
        if self.verify and self.sha256:
            self._check_content(path, examples)
        scaling = _standard(x) if self.standardise else (1.0 / 255.0, 0.0)
        owners = (content.owner, content.owner_names)
        return Dataset(self.files.name, *examples, self.n_classes, *scaling, *owners)

    def _check_content(self, path: Path, parts: tuple[Array, ...]) -> None:
        digest = hashlib.sha256()
        for part in parts:
            digest.update(np.ascontiguousarray(part, dtype=np.uint8).data)
        if digest.hexdigest() != self.sha256:
            raise DamagedData(
                f"{path} is not {self.files.name} as published: the SHA-256 checksum of its pixels "
                f"and labels is {digest.hexdigest()[:12]}... and not {self.sha256[:12]}... . "
                "Delete it and put it there again, or set verify=False for a variant of your own. "
                f"{self.files.get_it}"
            )


@dataclass(frozen=True, slots=True)
class FashionMnist(_ImageSource):
    """Fashion-MNIST: 60,000 + 10,000 grey 28x28 images of clothing, 10 classes.

    Args:
        directory: The data directory. Default: the environment variable ``TURNOUT_DATA``.
        standardise: Give all training pixels together mean 0 and deviation 1. False: pixels are
            from 0 to 1.
        verify: Compare the content with the published checksum. False: read a variant of it.

    """

    files: ClassVar[Files[Raw]] = Files(
        "fashion-mnist",
        {"fashion-mnist.npz": read_npz, "fashion-mnist": _fashion, "FashionMNIST/raw": _fashion},
        "Get it with 'turnout data get fashion-mnist', or put the publisher's four files, "
        "train-images-idx3-ubyte.gz and so on, into the folder fashion-mnist.",
    )
    n_classes: ClassVar[int] = 10
    sha256: ClassVar[str] = "ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f"


@dataclass(frozen=True, slots=True)
class Cifar10(_ImageSource):
    """CIFAR-10: 50,000 + 10,000 colour 32x32 images, 10 classes.

    Args:
        directory: The data directory. Default: the environment variable ``TURNOUT_DATA``.
        standardise: Give all training pixels together mean 0 and deviation 1. False: pixels are
            from 0 to 1.
        verify: Compare the content with the published checksum. False: read a variant of it.

    """

    files: ClassVar[Files[Raw]] = Files(
        "cifar10",
        {
            "cifar10.npz": read_npz,
            "cifar-10-batches-bin": read_cifar,
            "cifar-10-batches-py": read_cifar,
            "cifar-10-binary.tar.gz": read_cifar,
            "cifar-10-python.tar.gz": read_cifar,
        },
        "Get it with 'turnout data get cifar10', or put the publisher's cifar-10-binary.tar.gz "
        "there as it is.",
    )
    n_classes: ClassVar[int] = 10
    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    sha256: ClassVar[str] = "32e5966899bde482c0ef7d076bf69809b4b1488c806f657a814cfca4646ec493"


@dataclass(frozen=True, slots=True)
class EmnistLetters(_ImageSource):
    """EMNIST Letters: 124,800 + 20,800 grey 28x28 handwritten letters, 26 classes.

    Args:
        directory: The data directory. Default: the environment variable ``TURNOUT_DATA``.
        standardise: Give all training pixels together mean 0 and deviation 1. False: pixels are
            from 0 to 1.
        verify: Without effect here: no checksum of the content is published.

    """

    files: ClassVar[Files[Raw]] = Files(
        "emnist-letters",
        {
            "emnist-letters.npz": read_npz,
            "emnist-letters/gzip.zip": _emnist,
            "emnist-letters": _emnist,
            "EMNIST/raw": _emnist,
        },
        "Get it with 'turnout data get emnist-letters', or put the publisher's gzip.zip as it is, "
        "or its four files emnist-letters-*-ubyte.gz, into the folder emnist-letters.",
    )
    n_classes: ClassVar[int] = 26


@dataclass(frozen=True, slots=True)
class Femnist(_ImageSource):
    """FEMNIST: grey 28x28 handwritten digits and letters by writer.

    Many writers have few images: divide the data with ``Natural(min_samples=50)``.

    Args:
        directory: The data directory. Default: the environment variable ``TURNOUT_DATA``.
        standardise: Give all training pixels together mean 0 and deviation 1. False: pixels are
            from 0 to 1.
        verify: Without effect here: no checksum of the content is published.
        classes: ``"all"`` (62: digits, capitals, small letters), ``"digits"`` (10) or
            ``"letters"`` (26, capitals and small letters merged).

    """

    files: ClassVar[Files[Raw]] = Files(
        "femnist",
        {"femnist.npz": partial(read_npz, owner="writer"), "femnist": read_leaf},
        "femnist.npz holds x_train, y_train, writer_train, x_test and y_test; the folder femnist "
        "holds the folders train and test that LEAF writes (github.com/TalwalkarLab/leaf).",
    )
    n_classes: ClassVar[int] = 62

    classes: Annotated[str, choice("all", "digits", "letters")] = "all"

    def load(self, seed: int) -> Dataset:
        """Read the images of the chosen classes."""
        images = _ImageSource.load(self, seed)
        if self.classes == "all":
            return images
        is_digits = self.classes == "digits"
        first, n_classes = (0, 10) if is_digits else (10, 26)
        kept, kept_test = ((y < 10) == is_digits for y in (images.y, images.y_test))
        assert images.group is not None
        return replace(
            images,
            name=f"femnist-{self.classes}",
            x=images.x[kept],
            y=(images.y[kept] - first) % n_classes,  # capitals and small letters merged
            x_test=images.x_test[kept_test],
            y_test=(images.y_test[kept_test] - first) % n_classes,
            n_classes=n_classes,
            group=images.group[kept],
        )


@dataclass(frozen=True, slots=True)
class EmnistLettersFeatures(FileSource[Raw]):
    """EMNIST Letters as 20 shape features per image: NOT the images, and so named in results.

    124,800 + 20,800 examples, 26 classes. Features are standardised with the mean and the
    deviation of the training examples.

    Args:
        directory: The data directory. Default: the environment variable ``TURNOUT_DATA``.

    """

    files: ClassVar[Files[Raw]] = Files(
        "emnist-letters-features (NOT the images)",
        {"emnist-letters-features.npz": read_npz},
        "The file holds x_train (N, 20), y_train, x_test and y_test.",
    )

    directory: str | None = None

    def dataset(self, path: Path, content: Raw, seed: int) -> Dataset:
        """Return the standardised features."""
        x, y, x_test, y_test, *_ = content
        if x.ndim != 2 or x_test.ndim != 2:
            raise ValueError(f"features of shape {x.shape}, not (N, features)")
        mean, deviation = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
        deviation = np.where(deviation > 0.0, deviation, 1.0)
        x, x_test = (((part - mean) / deviation).astype(np.float32) for part in (x, x_test))
        return Dataset(self.files.name, x, y, x_test, y_test, n_classes=26)


def _planes(x: Array, shape: tuple[int, int, int]) -> Array:
    """Return (N, channels, height, width). The input may have its colours last, or none."""
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim == 4 and x.shape[1:] != shape and x.shape[1:] == (*shape[1:], shape[0]):
        x = x.transpose(0, 3, 1, 2)
    if x.dtype != np.uint8 or x.shape[1:] != shape:
        raise ValueError(f"images of shape {x.shape[1:]} and {x.dtype}, not {shape} of uint8")
    return np.ascontiguousarray(x)


def _standard(x: Array) -> tuple[float, float]:
    """Return the scale and shift that give all pixels together mean 0 and deviation 1."""
    flat = x.reshape(-1)
    counts = np.zeros(256)
    for start in range(0, flat.size, _CHUNK):
        counts += np.bincount(flat[start : start + _CHUNK], minlength=256)
    level = np.arange(256.0)
    mean = counts @ level / flat.size
    deviation = float(np.sqrt(counts @ (level - mean) ** 2 / flat.size)) or 1.0
    return 1.0 / deviation, -float(mean) / deviation


# The user's own images, in one folder per label.

_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")


#: Images, and the folder of each: its label.
_Images = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class ImageFolder(CheckedFields, FileSource[list[_Images]]):
    """Your own images: path=folder with a folder for each label.

    The files are ``path/label/name.png``. Or there are two parts, ``path/train/label/name.png`` and
    ``path/test/label/name.png``. Labels are numbered in alphabetical order. Needs Pillow.

    Args:
        path: The folder. It must be set.
        size: Height and width that all images get, such as 32. Default: as they are, which must be
            the same for all.
        grey: Whether colours are turned into grey: one channel instead of three.
        test_share: Share of each label's images that is kept for the test, inside (0, 1), if there
            is no folder ``test``.
        directory: The folder that a relative path starts from. Default: the current folder.

    """

    path: OwnPath = ""
    size: Count | None = None
    grey: Flag = False
    test_share: TestShare = 0.2
    directory: str | None = "."

    @property
    def files(self) -> Files[list[_Images]]:
        """The user's folder."""
        fix = "Give the path of a folder that exists."
        return Files(Path(self.path).name, {self.path: self._read}, fix, is_own=True)

    def dataset(self, path: Path, content: list[_Images], seed: int) -> Dataset:
        """Return all images."""
        (x, y), *test = content
        if test:
            examples = (x, y, *test[0])
        else:
            is_test = held_back(numbered(y)[0], self.test_share, Draw.CONTENT.rng(seed))
            examples = parts(x, y, is_test)
        return Arrays(*examples, scale=1 / 255, name=path.name).load(seed)

    def _read(self, path: Path) -> list[_Images]:
        if not path.is_dir():
            raise ValueError("path is a file, but must be a folder with a folder for each label")
        has_parts = (path / "train").is_dir() and (path / "test").is_dir()
        folders = [path / "train", path / "test"] if has_parts else [path]
        return [self._images(folder) for folder in folders]

    def _images(self, folder: Path) -> _Images:
        advice = "image-folder needs Pillow: pip install 'turnout[images]'"
        library = import_extra("PIL.Image", advice)
        found = sorted(folder.glob("*/*"))  # in the order of labels, then of names
        files = [file for file in found if file.suffix.lower() in _ENDINGS]
        if not files:
            raise ValueError(f"no images in {folder.name}/<label>/: put a folder for each label in")
        images = [self._image(library, file) for file in files]
        for file, image in zip(files, images, strict=True):
            if image.shape != images[0].shape:
                raise ValueError(
                    f"{file.relative_to(folder)} has shape {image.shape}, but "
                    f"{files[0].relative_to(folder)} has {images[0].shape}: set size=32 or another"
                )
        return np.stack(images), np.array([file.parent.name for file in files])

    def _image(self, library: Any, file: Path) -> Array:
        with part_named(f"{file.parent.name}/{file.name}"):
            try:
                with library.open(file) as opened:
                    image = opened.convert("L" if self.grey else "RGB")
            except OSError as error:  # of Pillow, for a file that is no image
                raise ValueError(str(error)) from error
            return pixels(image if self.size is None else image.resize((self.size, self.size)))
