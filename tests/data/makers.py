"""Small files in the forms of the publishers."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np

from turnout.data import Dataset

LETTERS = ("emnist-letters-train", "emnist-letters-test")
FASHION = ("train", "t10k")


def labelled(counts, seed=0):
    """A dataset of vectors with so many examples of each label; x is the row's number."""
    y = np.repeat(np.arange(len(counts)), counts)
    y = np.random.default_rng(seed).permutation(y)
    x = np.arange(y.size, dtype=np.float32)[:, None]
    return Dataset("labelled", x, y, x[:1], y[:1], len(counts))


def grouped(sizes):
    """A dataset in which group g has sizes[g] examples, not in order."""
    group = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    x = np.arange(group.size, dtype=np.float32)[:, None]
    y = np.zeros(group.size, dtype=np.int64)
    names = tuple(f"g{number}" for number in range(len(sizes)))
    return Dataset("grouped", x, y, x[:1], y[:1], 1, group=group, group_names=names)


def idx_bytes(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return head + array.astype(np.uint8).tobytes()


def images(n, shape=(28, 28), n_classes=10, first=0, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
    return x, (np.arange(n) % n_classes + first).astype(np.uint8)


def write_idx(folder: Path, begins, train, test, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for begin, (x, y) in zip(begins, (train, test), strict=True):
        for kind, array in (("images-idx3", x), ("labels-idx1", y)):
            content = idx_bytes(array)
            name = f"{begin}-{kind}-ubyte"
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)


def python2_batch(x, y):
    """A batch as Python 2 wrote it: its strings are neither text nor bytes of Python 3."""

    def string(text):
        return b"U" + bytes([len(text)]) + text

    n, width = x.shape
    minus_one = b"J\xff\xff\xff\xff"
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + string(b"|") + b"NNN" + 2 * minus_one + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b")
    array += b"\x87R(K\x01K" + bytes([n]) + b"M" + width.to_bytes(2, "little") + b"\x86" + dtype
    array += b"\x89T" + x.size.to_bytes(4, "little") + x.tobytes() + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    items = string(b"data") + array + string(b"labels") + labels
    return b"\x80\x02}(" + items + b"u."


def cifar_content(name, x, y, form):
    flat = x.reshape(len(x), -1)
    if form == "bin":
        return f"{name}.bin", np.concatenate((y[:, None], flat), axis=1).tobytes()
    if form == "python2":
        return name, python2_batch(flat, y)
    batch = {b"data": flat, b"labels": [int(label) for label in y], b"batch_label": b"a batch"}
    return name, pickle.dumps(batch, protocol=2)


def write_cifar(folder: Path, x, y, x_test, y_test, form="bin"):
    folder.mkdir(parents=True, exist_ok=True)
    parts = np.array_split(np.arange(len(x)), 5)
    for number, part in enumerate(parts, start=1):
        name, content = cifar_content(f"data_batch_{number}", x[part], y[part], form)
        (folder / name).write_bytes(content)
    name, content = cifar_content("test_batch", x_test, y_test, form)
    (folder / name).write_bytes(content)


def pack(folder: Path, archive: Path):
    """Put the files of a folder into an archive, and remove them."""
    with tarfile.open(archive, "w:gz") as target:
        for path in sorted(folder.iterdir()):
            info = tarfile.TarInfo(f"{folder.name}/{path.name}")
            content = path.read_bytes()
            info.size = len(content)
            target.addfile(info, io.BytesIO(content))
            path.unlink()
    folder.rmdir()


def write_jsonl(path: Path, clients):
    rows = [{"client": name, "sentences": list(texts)} for name, texts in clients.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
