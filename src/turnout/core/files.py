"""Atomic writes, ``.npz`` archives that are read without trust, and the data directory."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import math
import os
import secrets
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from turnout.core.errors import OutputError, StateFileError, TurnoutError
from turnout.core.types import Array

#: How the names of files end that are not whole yet.
TEMPORARY = ".tmp"

#: The variable that sets how many MB the arrays of a file may take.
LIMIT_VARIABLE = "TURNOUT_MAX_ARRAY_MB"
#: Without it: bytes that any file may hold, and how many times its own size a larger one may.
_SMALL, _EXPANSION = 64_000_000, 20

#: How the header of an array is read, by the version of its format.
_HEADER_READERS: Mapping[tuple[int, int], Callable[[IO[bytes]], tuple[Any, bool, Any]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

#: Exceptions that NumPy and the standard library raise for damaged files.
UNREADABLE: tuple[type[Exception], ...] = (
    *(OSError, EOFError, MemoryError, RuntimeError, SystemError),
    *(zipfile.BadZipFile, zlib.error, struct.error, SyntaxError, tokenize.TokenError),
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError),
)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file. A pipe or a device, which could block forever, is refused.

    Args:
        path: The file.

    Raises:
        OSError: There is no such file, or it cannot be read.

    """
    check_regular(path)
    return path.read_bytes()


def check_regular(path: Path) -> None:
    """Refuse a pipe, a device or a folder. A missing file is left to the caller.

    Args:
        path: What should be a file.

    Raises:
        OSError: It is something else.

    """
    if path.exists() and not path.is_file():
        raise OSError("not a regular file")


def read_npz(source: str | os.PathLike[str] | bytes, names: Iterable[str] = ()) -> dict[str, Array]:
    """Return arrays of an ``.npz`` without unpickling anything.

    The sizes that the file states are checked before anything is allocated. Its arrays may take
    64 MB, or 20 times the size of the file. ``TURNOUT_MAX_ARRAY_MB`` sets another limit.

    Args:
        source: The file, or its content.
        names: The arrays that are wanted; empty = all.

    Raises:
        Exception: One of ``UNREADABLE``; the caller says what to do about its file.

    """
    file: Path | io.BytesIO
    if isinstance(source, bytes):
        file, n_packed = io.BytesIO(source), len(source)
    else:
        file = Path(source)
        check_regular(file)
        n_packed = file.stat().st_size
    with zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for name in names:
            if name not in members:
                raise ValueError(f"it has no array {name}")
        wanted = {name: members[name] for name in names or members}
        _check_size(sum(info.file_size for info in wanted.values()), n_packed)
        return {name: _array(archive, name, info) for name, info in wanted.items()}


def _check_size(n_unpacked: int, n_packed: int) -> None:
    setting = os.environ.get(LIMIT_VARIABLE)
    limit = max(_SMALL, _EXPANSION * n_packed) if setting is None else float(setting) * 1e6
    if n_unpacked > limit:
        raise ValueError(
            f"its arrays take {n_unpacked / 1e6:.4g} MB, but only {limit / 1e6:.4g} MB are "
            f"allowed; set {LIMIT_VARIABLE} if you trust it"
        )


def _array(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        shape, _, dtype = _HEADER_READERS[np.lib.format.read_magic(file)](file)
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which are never unpickled")
        if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise ValueError(f"{name} does not have the size that its shape {shape} needs")
        file.seek(0)
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> str:
    """Write an ``.npz`` atomically and return the digest of its bytes.

    Args:
        path: The file; its folder must exist.
        arrays: The arrays by name.

    """
    content = npz_bytes(arrays)
    write_atomically(Path(path), content)
    return hashlib.sha256(content).hexdigest()


def npz_bytes(arrays: Mapping[str, Array]) -> bytes:
    """Return the content of an ``.npz``.

    Args:
        arrays: The arrays by name.

    """
    buffer = io.BytesIO()
    np.savez(buffer, **dict[str, Any](arrays))
    return buffer.getvalue()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Temporary files that a killed process left are removed.

    Args:
        path: The file; a link keeps pointing to its target.
        content: All of its bytes.

    Raises:
        StateFileError: If the folder does not exist.
        OSError: If it cannot be written, or is a pipe, a device or a folder; it names the file.

    """
    path = Path(os.path.realpath(path))
    check_regular(path)
    if not path.parent.is_dir():
        raise StateFileError(f"the folder {path.parent} does not exist: create it first.")
    try:
        _remove_leftovers(path)
        _write(path, content)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # a full disk names no file
        raise


@contextlib.contextmanager
def writing_to(place: str | os.PathLike[str], advice: str = "") -> Iterator[None]:
    """Turn errors of the system into one that names the place and the fix.

    Args:
        place: The file or folder that is written.
        advice: What to do instead, as the end of a sentence.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, TurnoutError):
            raise
        fix = f": {advice}" if advice else ""
        reason = error.strerror or error
        raise OutputError(f"{os.fspath(place)} cannot be written ({reason}){fix}.") from error


def _write(path: Path, content: bytes) -> None:
    file, name = _temporary(path)
    try:
        with file:  # which keeps it locked until it has its name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if sys.platform == "win32":  # an open file could not be renamed
                file.close()
            os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _temporary(path: Path) -> tuple[IO[bytes], Path]:
    """Return a new file beside another, open and locked, and its name."""
    while True:
        name = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
        file = name.open("xb")
        if sys.platform == "win32" or not try_lock(file.fileno()) or name.exists():
            return file, name
        file.close()  # another process took it for a leftover before it was locked


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes. A process that is still writing holds a lock."""
    if sys.platform == "win32":
        return
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{TEMPORARY}"):
        with contextlib.suppress(OSError), left.open("rb+") as file:
            if try_lock(file.fileno()):
                left.unlink()


if sys.platform == "win32":
    import msvcrt

    def try_lock(handle: int) -> bool | None:
        """Return whether no other process holds the lock; the locked byte is behind any text.

        Args:
            handle: The open file, which is locked until it is closed.
        """
        os.lseek(handle, 2**30, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(handle, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def try_lock(handle: int) -> bool | None:
        """Return whether no other process holds the lock; None if the file system cannot lock.

        Args:
            handle: The open file, which is locked until it is closed.
        """
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True


# The data directory: the folder in which datasets and device traces are looked for.
#
# It is an argument of each reader, or the environment variable ``TURNOUT_DATA``.

#: Environment variable that names the data directory.
DATA_VARIABLE = "TURNOUT_DATA"


class DataMissing(TurnoutError, FileNotFoundError):
    """A file was asked for and is not in the data directory."""


def data_directory(directory: str | Path | None = None) -> str | Path | None:
    """Return the directory to look in, or None if none is set.

    Args:
        directory: Folder to use. None takes the one that ``TURNOUT_DATA`` names.

    """
    if directory is None:
        return os.environ.get(DATA_VARIABLE)
    if not isinstance(directory, str | Path):
        raise TypeError(f"directory must be a path, got {type(directory).__name__}.")
    return directory
