"""Files of the data directory: how they are found, and errors for missing and damaged files."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import lzma
import pickle
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from turnout.data_directory import DATA_VARIABLE, DataMissing, data_directory
from turnout.errors import InvalidInput
from turnout.storage import UNREADABLE

#: A file has changed if its size or one of this many blocks, of this many bytes, has changed.
_BLOCKS, _BLOCK = 64, 1 << 20

#: Exceptions that readers raise for damaged files.
_DAMAGE: tuple[type[Exception], ...] = (
    *(kind for kind in UNREADABLE if kind is not OSError),
    gzip.BadGzipFile,
    lzma.LZMAError,
    pickle.UnpicklingError,
    tarfile.TarError,
)


class DamagedData(InvalidInput):
    """A data file is cut off, altered or not what its name says.

    Args:
        message: Names the file and the fix.
        field: The parameter that is wrong; None if there is no single one.

    """


def content_id(path: Path) -> str:
    """Return 16 hexadecimal digits that change when a file, or a file of a folder, changes.

    Files of up to 64 MB are read whole. Of larger ones the size and 64 blocks of 1 MB count.

    Args:
        path: A file or a folder.

    """
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(f"{file.relative_to(path)}:{file.stat().st_size}:".encode())
            _add_content(digest, file)
    return digest.hexdigest()[:16]


def _add_content(digest: hashlib._Hash, file: Path) -> None:
    size = file.stat().st_size
    n_blocks = min(_BLOCKS, -(-size // _BLOCK))
    with file.open("rb") as content:
        for i in range(n_blocks):
            content.seek(i * max(0, size - _BLOCK) // max(1, n_blocks - 1))
            digest.update(content.read(_BLOCK))


class UnfitSetting(InvalidInput):
    """A file is complete, but a setting asks for something that it does not hold."""


T = TypeVar("T")


@dataclass(frozen=True)
class Files(Generic[T]):
    """The forms in which a dataset may be stored, and how each is read.

    Args:
        name: The name of the dataset.
        forms: A reader for each path inside the data directory. The first path that exists is
            used.
        get_it: A sentence that says how to get the files.
        is_own: Whether the user made the files. Then errors say "correct it", not "delete it".

    """

    name: str
    forms: Mapping[str, Callable[[Path], T]]
    get_it: str
    is_own: bool = False

    def find(self, directory: str | Path | None = None) -> Path:
        """Return the path of the first form that exists, or raise ``DataMissing``."""
        return self._located(directory)[0]

    def read(self, directory: str | Path | None = None) -> tuple[Path, T]:
        """Return the path of the first form that exists, and its content."""
        path, form = self._located(directory)
        with self.reading(path):
            return path, self.forms[form](path)

    def _located(self, directory: str | Path | None) -> tuple[Path, str]:
        folder = data_directory(directory)
        wanted = " or ".join(self.forms)
        if not folder:
            raise DataMissing(
                f"{self.name} is not embedded and {DATA_VARIABLE} is not set. Point "
                f"{DATA_VARIABLE}, --data-dir or directory= at a folder with {wanted}. "
                f"{self.get_it}"
            )
        for form in self.forms:
            path = Path(folder) / form
            if path.exists():
                return path, form
        raise DataMissing(f"{self.name} is not in {folder}: put {wanted} there. {self.get_it}")

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Turn the errors of a damaged file into one that names the file and the fix."""
        try:
            yield
        except (DamagedData, DataMissing, UnfitSetting):
            raise
        except _DAMAGE as error:  # InvalidInput is a ValueError
            raise DamagedData(self._message(path, _described(error).rstrip("."))) from error
        except OSError as error:
            raise DataMissing(f"{path} cannot be read ({error}). {self.get_it}") from error

    def _message(self, path: Path, reason: str) -> str:
        if self.is_own:
            return f"{path} cannot be used: {reason}. Correct the file or the setting."
        again = f"Delete it and put it there again. {self.get_it}"
        return f"{path} is damaged or not what its name says ({reason}). {again}"


@contextlib.contextmanager
def part_named(name: str) -> Iterator[str]:
    """Add the name of a part of a folder or an archive to the errors that it raises."""
    try:
        yield name
    except Exception as error:
        error.add_note(name)
        raise


def _described(error: Exception) -> str:
    part = "".join(f"{name}: " for name in getattr(error, "__notes__", ()))
    if isinstance(error, InvalidInput):
        return f"{part}{error}"
    if isinstance(error, KeyError):
        return f"{part}it has no {error}"
    return f"{part}{type(error).__name__}: {error}".rstrip(": ")
