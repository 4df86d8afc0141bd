"""Image datasets from a data directory, and EMNIST Letters as features."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from turnout.data.base import Dataset, Source
from turnout.data.data_files import DamagedData, Files
from turnout.data.formats import Raw, read_cifar, read_idx_folder, read_idx_zip, read_leaf, read_npz
from turnout.domains import CheckedFields, Flag, choice
from turnout.types import Array

#: Pixels that are counted at a time.
_CHUNK = 1 << 22

_fashion = partial(read_idx_folder, train="train", test="t10k")
_letters = {"train": "emnist-letters-train", "test": "emnist-letters-test"}


def _emnist(raw: Raw) -> Raw:
    """Transpose the images, which are stored by column, and number the letters from 0."""
    upright = raw._replace(x=raw.x.swapaxes(1, 2), x_test=raw.x_test.swapaxes(1, 2))
    if min(raw.y.min(), raw.y_test.min()) < 1:
        raise ValueError("the labels of EMNIST Letters start at 1, and there is a 0")
    return upright._replace(y=raw.y - 1, y_test=raw.y_test - 1)


def _emnist_folder(path: Path) -> Raw:
    return _emnist(read_idx_folder(path, **_letters))


def _emnist_zip(path: Path) -> Raw:
    return _emnist(read_idx_zip(path, **_letters))


@dataclass(frozen=True, slots=True)
class _ImageSource(CheckedFields, Source):
    """Images in the data directory. Subclasses explain the settings."""

    files: ClassVar[Files[Raw]]
    n_classes: ClassVar[int]
    shape: ClassVar[tuple[int, int, int]] = (1, 28, 28)
    sha256: ClassVar[str] = ""  #: of all pixels and labels as published; empty if unknown

    directory: str | None = None
    standardise: Flag = True
    verify: Flag = True

    def find(self) -> Path:
        """Return the file or folder of the images."""
        return self.files.find(self.directory)

    def load(self, seed: int) -> Dataset:
        """Read the images."""
        path, raw = self.files.read(self.directory)
        with self.files.reading(path):
            x, x_test = (_planes(part, self.shape) for part in (raw.x, raw.x_test))
            if self.verify and self.sha256:
                self._check_content(path, (x, raw.y, x_test, raw.y_test))
            scale, shift = _standard(x) if self.standardise else (1.0 / 255.0, 0.0)
            return Dataset(
                name=self.files.name,
                x=x,
                y=raw.y,
                x_test=x_test,
                y_test=raw.y_test,
                n_classes=self.n_classes,
                scale=scale,
                shift=shift,
                group=raw.owner,
                group_names=raw.owner_names,
            )

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
            "emnist-letters/gzip.zip": _emnist_zip,
            "emnist-letters": _emnist_folder,
            "EMNIST/raw": _emnist_folder,
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
        dataset = _ImageSource.load(self, seed)
        if self.classes == "all":
            return dataset
        is_digits = self.classes == "digits"
        kept, kept_test = ((y < 10) == is_digits for y in (dataset.y, dataset.y_test))
        assert dataset.group is not None
        return replace(
            dataset,
            name=f"femnist-{self.classes}",
            x=dataset.x[kept],
            y=_merged(dataset.y[kept]),
            x_test=dataset.x_test[kept_test],
            y_test=_merged(dataset.y_test[kept_test]),
            n_classes=10 if is_digits else 26,
            group=dataset.group[kept],
        )


@dataclass(frozen=True, slots=True)
class EmnistLettersFeatures(Source):
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

    def find(self) -> Path:
        """Return the file of the features."""
        return self.files.find(self.directory)

    def load(self, seed: int) -> Dataset:
        """Read and standardise the features."""
        path, raw = self.files.read(self.directory)
        with self.files.reading(path):
            if raw.x.ndim != 2 or raw.x_test.ndim != 2:
                raise ValueError(f"features of shape {raw.x.shape}, not (N, features)")
            mean = raw.x.mean(axis=0, dtype=np.float64)
            deviation = raw.x.std(axis=0, dtype=np.float64)
            deviation = np.where(deviation > 0.0, deviation, 1.0)
            x, x_test = (
                ((part - mean) / deviation).astype(np.float32) for part in (raw.x, raw.x_test)
            )
            return Dataset(self.files.name, x, raw.y, x_test, raw.y_test, n_classes=26)


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


def _merged(y: Array) -> Array:
    """Return digits from 0, and letters from 0 with capitals and small letters merged."""
    return np.where(y < 10, y, (y - 10) % 26)
