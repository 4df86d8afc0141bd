"""The data directory: where files are looked for, and what is said when one is missing or damaged.

It is an argument of each source or the environment variable ``TURNOUT_DATA``.
"""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from turnout.errors import InvalidInput, TurnoutError

__all__ = [
    "DATA_VARIABLE",
    "DamagedFile",
    "DataMissing",
    "Files",
    "UnfitSetting",
    "data_directory",
]

#: Environment variable that names the data directory.
DATA_VARIABLE = "TURNOUT_DATA"

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


class DataMissing(TurnoutError, FileNotFoundError):
    """A file was asked for and is not in the data directory."""


class DamagedFile(InvalidInput):
    """A data file is cut off, altered or not what its name says."""


def data_directory(directory: str | Path | None = None) -> str | Path | None:
    """Return the directory given, else the one that the environment names, else None."""
    return os.environ.get(DATA_VARIABLE) if directory is None else directory


class UnfitSetting(InvalidInput):
    """A file is whole, but a setting asks for what is not in it."""


T = TypeVar("T")


@dataclass(frozen=True)
class Files(Generic[T]):
    """The forms in which a dataset may lie in the data directory, and how each is read."""

    name: str
    forms: Mapping[str, Callable[[Path], T]]  #: by path; the first that exists is taken
    get_it: str  #: what to do when there is none

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
            reason = str(error) if isinstance(error, InvalidInput) else _spelled(error)
            raise DamagedFile(
                f"{path} is damaged or not what its name says ({reason.rstrip('.')}). Delete it "
                f"and put it there again. {self.get_it}"
            ) from error
        except OSError as error:
            raise DataMissing(f"{path} cannot be read ({error}). {self.get_it}") from error


def _spelled(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
