"""Readers of the files that publishers distribute: npz, idx, CIFAR batches, LEAF."""

from __future__ import annotations

import gzip
import io
import json
import math
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout import storage
from turnout.data.data_files import part_named
from turnout.types import Array

_CIFAR_TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR_TEST = ("test_batch",)
_CIFAR_PIXELS = 3 * 32 * 32

#: First bytes of a zip archive, which an npz file is.
_ZIP_MAGIC = b"PK"

#: Bytes that are read at a time.
_CHUNK = 1 << 20


def _latin_1(text: str, encoding: str) -> bytes:
    """Stand in for ``_codecs.encode``, with which Python 3 writes bytes for Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the file asks for the encoding {encoding!r}")
    return text.encode("latin-1")


#: The only names that a pickled CIFAR batch needs; every other is refused.
_ALLOWED: Mapping[tuple[str, str], Any] = {
    **{
        (f"numpy.{core}.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0]
        for core in ("core", "_core")
    },
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin_1,
}


class Raw(NamedTuple):
    """Arrays as a file holds them.

    Args:
        x: Training examples.
        y: Their labels.
        x_test: Test examples.
        y_test: Their labels.
        owner: (N,) the number of the writer, author or role of each training example.
        owner_names: The name of each owner.

    """

    x: Array
    y: Array
    x_test: Array
    y_test: Array
    owner: Array | None = None
    owner_names: tuple[str, ...] = ()


def read_npz(path: Path, owner: str | None = None) -> Raw:
    """Read an npz file with the arrays x_train, y_train, x_test and y_test.

    Args:
        path: The file.
        owner: If given, the array ``<owner>_train`` is read too: it says whose example each is.

    """
    with path.open("rb") as raw:
        if raw.read(2) != _ZIP_MAGIC:
            raise ValueError(
                "not an npz file: write it with np.savez(path, x_train=x, ...), or read a table "
                "with csv-file"
            )
    names = ["x_train", "y_train", "x_test", "y_test", *([f"{owner}_train"] if owner else [])]
    arrays = storage.read_npz(path, names)
    x, y, x_test, y_test = (arrays[name] for name in names[:4])
    if owner is None:
        return Raw(x, y, x_test, y_test)
    keys, number = np.unique(arrays[f"{owner}_train"], return_inverse=True)
    return Raw(x, y, x_test, y_test, number, tuple(str(key) for key in keys))


def read_idx_folder(folder: Path, train: str, test: str) -> Raw:
    """Read four idx files, compressed with gzip or not.

    Args:
        folder: The folder with the files.
        train: Beginning of the names of the training files.
        test: Beginning of the names of the test files.

    """

    def content(name: str) -> bytes:
        path = folder / name
        return (
            path.read_bytes() if path.exists() else gzip.decompress(_compressed(path).read_bytes())
        )

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


def _compressed(path: Path) -> Path:
    compressed = path.with_name(f"{path.name}.gz")
    if not compressed.exists():
        raise ValueError(f"neither {path.name} nor {compressed.name} exists")
    return compressed


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
    n_dims = content[3]
    head = 4 + 4 * n_dims
    shape = tuple(int(size) for size in np.frombuffer(content[4:head], dtype=">u4"))
    if len(shape) != n_dims or len(content) - head != math.prod(shape):
        raise ValueError(
            f"{len(content) - head} bytes of content, but its head gives the shape {shape}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def read_cifar(path: Path) -> Raw:
    """Read CIFAR-10 in its binary or Python form.

    Args:
        path: The folder with the batches, or the archive as published.

    """
    if path.is_dir():
        batches = dict(_folder_batches(path))
    else:
        with gzip.open(path) as stream:
            with tarfile.open(fileobj=stream) as archive:
                batches = dict(_archive_batches(archive))
            while stream.read(_CHUNK):  # the checksum is at the end
                pass
    train, test = ([batches[name] for name in names] for names in (_CIFAR_TRAIN, _CIFAR_TEST))
    return Raw(*_joined(train), *_joined(test))


def _joined(batches: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return x.reshape(-1, 3, 32, 32), y


def _folder_batches(folder: Path) -> Iterator[tuple[str, tuple[Array, Array]]]:
    for name in (*_CIFAR_TRAIN, *_CIFAR_TEST):
        binary = folder / f"{name}.bin"
        is_binary = binary.exists()
        with part_named(binary.name if is_binary else name) as file:
            content = (folder / file).read_bytes()
            batch = _binary_batch(content) if is_binary else _pickled_batch(content)
        yield name, batch


def _archive_batches(archive: tarfile.TarFile) -> Iterator[tuple[str, tuple[Array, Array]]]:
    for member in archive:
        name = member.name.rpartition("/")[2]
        stem = name.removesuffix(".bin")
        file = archive.extractfile(member) if stem in _CIFAR_TRAIN + _CIFAR_TEST else None
        if file is not None:
            with part_named(name):
                read = _binary_batch if name.endswith(".bin") else _pickled_batch
                batch = read(file.read())
            yield stem, batch


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
