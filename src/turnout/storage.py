"""Files that are whole or not there: atomic writes, and ``.npz`` archives read with suspicion."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from turnout.errors import StateFileError
from turnout.types import Array

__all__ = ["TEMPORARY", "UNREADABLE", "read_npz", "write_atomically", "write_npz"]

#: How the names of files end that are not whole yet.
TEMPORARY = ".tmp"

#: Everything that NumPy and the standard library raise on damaged files.
UNREADABLE: tuple[type[Exception], ...] = (
    *(OSError, EOFError, MemoryError, RuntimeError, SystemError),
    *(zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, tokenize.TokenError),
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError),
)


def read_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return all arrays of an ``.npz`` without unpickling anything.

    Args:
        path: The file.

    Raises:
        Exception: One of ``UNREADABLE``; the caller says what to do about its file.

    """
    with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name, values in arrays.items():
        if not isinstance(values, np.ndarray):  # NumPy returns what it does not know as bytes
            raise ValueError(f"{name} is not an array")
    return arrays


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> str:
    """Write an ``.npz`` atomically and return the digest of its bytes.

    Args:
        path: The file; its folder must exist.
        arrays: The arrays by name.

    """
    buffer = io.BytesIO()
    by_name: dict[str, Any] = dict(arrays)
    np.savez(buffer, **by_name)
    content = buffer.getvalue()
    write_atomically(Path(path), content)
    return hashlib.sha256(content).hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Args:
        path: The file; a link keeps pointing to its target.
        content: All of its bytes.

    Raises:
        StateFileError: If the folder does not exist.

    """
    path = Path(os.path.realpath(path))
    if not path.parent.is_dir():
        raise StateFileError(f"the folder {path.parent} does not exist: create it first.")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
