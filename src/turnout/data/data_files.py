"""Files of the data directory: how they are found, and errors for missing and damaged ones."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import lzma
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from turnout.data_directory import DATA_VARIABLE, DataMissing, data_directory
from turnout.errors import InvalidInput

__all__ = [
    "DamagedFile",
    "Files",
    "UnfitSetting",
    "content_id",
    "part_named",
]

#: Of a file, so many blocks of so many bytes tell whether it has changed.
_BLOCKS, _BLOCK = 64, 1 << 20

#: What readers of damaged files raise.
_DAMAGE = (
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    SyntaxError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    pickle.UnpicklingError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


class DamagedFile(InvalidInput):
    """A data file is cut off, altered or not what its name says."""


def content_id(path: Path) -> str:
    """Return 16 hexadecimal digits of what is in a file, or in all files of a folder.

    Of a file beyond 64 MB, its size and 64 blocks of 1 MB count.
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
    """A file is whole, but a setting asks for what is not in it."""


T = TypeVar("T")


@dataclass(frozen=True)
class Files(Generic[T]):
    """The forms in which a dataset may lie in the data directory, and how each is read."""

    name: str
    forms: Mapping[str, Callable[[Path], T]]  #: by path; the first that exists is taken
    get_it: str  #: what to do when there is none
    is_own: bool = False  #: whether the user made them, and would not want to hear "delete it"

    def find(self, directory: str | Path | None = None) -> Path:
        """Return the file or folder that is there, or raise ``DataMissing``."""
        return self._found(directory)[0]

    def read(self, directory: str | Path | None = None) -> tuple[Path, T]:
        """Return the file or folder that is there, and its content."""
        path, form = self._found(directory)
        with self.reading(path):
            return path, self.forms[form](path)

    def _found(self, directory: str | Path | None) -> tuple[Path, str]:
        given = data_directory(directory)
        wanted = " or ".join(self.forms)
        if not given:
            raise DataMissing(
                f"{self.name} is not embedded and {DATA_VARIABLE} is not set. Point "
                f"{DATA_VARIABLE}, --data-dir or directory= at a folder with {wanted}. "
                f"{self.get_it}"
            )
        for form in self.forms:
            path = Path(given) / form
            if path.exists():
                return path, form
        raise DataMissing(f"{self.name} is not in {given}: put {wanted} there. {self.get_it}")

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Turn what a damaged file raises into an error that names the file and the fix."""
        try:
            yield
        except (DamagedFile, DataMissing, UnfitSetting):
            raise
        except (*_DAMAGE, InvalidInput) as error:
            raise DamagedFile(self._complaint(path, _spelled(error).rstrip("."))) from error
        except OSError as error:
            raise DataMissing(f"{path} cannot be read ({error}). {self.get_it}") from error

    def _complaint(self, path: Path, reason: str) -> str:
        if self.is_own:
            return f"{path} cannot be used: {reason}. Correct the file."
        again = f"Delete it and put it there again. {self.get_it}"
        return f"{path} is damaged or not what its name says ({reason}). {again}"


@contextlib.contextmanager
def part_named(name: str) -> Iterator[str]:
    """Make errors say which part of a folder or an archive is meant."""
    try:
        yield name
    except Exception as error:
        error.add_note(name)
        raise


def _spelled(error: Exception) -> str:
    part = "".join(f"{name}: " for name in getattr(error, "__notes__", ()))
    if isinstance(error, InvalidInput):
        return f"{part}{error}"
    if isinstance(error, KeyError):
        return f"{part}it has no {error}"
    return f"{part}{type(error).__name__}: {error}".rstrip(": ")
