"""Files of the data directory: finding, reading and downloading them; missing and damaged files."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import lzma
import pickle
import tarfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput, TurnoutError
from turnout.core.files import DATA_VARIABLE, UNREADABLE, DataMissing, data_directory
from turnout.core.files import read_npz as read_arrays
from turnout.core.names import import_extra
from turnout.core.types import Array, IntArray
from turnout.data.base import Dataset, Source

#: A file has changed if its size or one of this many blocks, of this many bytes, has changed.
_BLOCKS, _BLOCK = 64, 1 << 20

#: Exceptions that readers raise for damaged files.
_DAMAGE: tuple[type[Exception], ...] = (
    *(kind for kind in UNREADABLE if kind is not OSError),
    *(gzip.BadGzipFile, lzma.LZMAError, pickle.UnpicklingError, tarfile.TarError),
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
        if not file.is_file():
            continue
        size = file.stat().st_size
        digest.update(f"{file.relative_to(path)}:{size}:".encode())
        n_blocks = min(_BLOCKS, -(-size // _BLOCK))
        with file.open("rb") as content:
            for i in range(n_blocks):
                content.seek(i * max(0, size - _BLOCK) // max(1, n_blocks - 1))
                digest.update(content.read(_BLOCK))
    return digest.hexdigest()[:16]


#: First bytes of a zip archive, which an npz file is.
_ZIP_MAGIC = b"PK"


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
        if self.is_own:
            raise DataMissing(f"{Path(folder) / wanted} does not exist. {self.get_it}")
        raise DataMissing(f"{self.name} is not in {folder}: put {wanted} there. {self.get_it}")

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Turn the errors of a damaged file into one that names the file and the fix."""
        try:
            yield
        except (DamagedData, DataMissing, UnfitSetting):
            raise
        except _DAMAGE as error:  # InvalidInput is a ValueError
            reason = _described(error).rstrip(".")
            message = f"{path} cannot be used: {reason}. Correct the file or the setting."
            if not self.is_own:
                again = f"Delete it and put it there again. {self.get_it}"
                message = f"{path} is damaged or not what its name says ({reason}). {again}"
            raise DamagedData(message) from error
        except OSError as error:
            raise DataMissing(f"{path} cannot be read ({error}). {self.get_it}") from error


class FileSource(Source, Generic[T]):
    """A source that reads files. A subclass turns their content into a dataset."""

    directory: str | None

    @property
    @abstractmethod
    def files(self) -> Files[T]:
        """The files that may hold the data."""

    @abstractmethod
    def dataset(self, path: Path, content: T, seed: int) -> Dataset:
        """Return the dataset; any error is one of the file."""

    def find(self) -> Path:
        """Return the file or folder of the data."""
        return self.files.find(self.directory)

    def load(self, seed: int) -> Dataset:
        """Read the files."""
        path, content = self.files.read(self.directory)
        with self.files.reading(path):
            return self.dataset(path, content, seed)


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
    x, y, x_test, y_test, *owners = read_arrays(path, names).values()
    return Raw(x, y, x_test, y_test, *(numbered(owners[0]) if owners else ()))


def numbered(values: Array) -> tuple[IntArray, tuple[str, ...]]:
    """Return the number of each value, and the name behind each number, in alphabetical order.

    Args:
        values: Names, or anything that can be sorted.

    """
    names, number = np.unique(values, return_inverse=True)
    return number, tuple(str(name) for name in names)


# Downloads of published files with pooch. A file is checked before it gets its name, so a file that
# has its name is complete.

_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_CHUNK = 1 << 18
_TIMEOUT_S = 30.0


class Download(NamedTuple):
    """A published file.

    Args:
        url: Where it is published.
        path: Where it goes, inside the data directory.
        checksum: ``md5:...`` as the publisher gives it, or ``sha256:...``.

    """

    url: str
    path: str
    checksum: str


class DownloadFailed(TurnoutError, OSError):
    """A file could not be fetched, or it arrived damaged."""


def _fashion(name: str, md5: str) -> Download:
    return Download(_FASHION + name, f"fashion-mnist/{name}", f"md5:{md5}")


#: What can be downloaded, by the name of the source.
DOWNLOADS: Mapping[str, tuple[Download, ...]] = {
    "fashion-mnist": (
        _fashion("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        _fashion("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        _fashion("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        _fashion("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "cifar10": (
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar-10-binary.tar.gz",
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    "emnist-letters": (
        Download(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "emnist-letters/gzip.zip",
            "md5:58c8d27c78d21e728a6bc7b3cc06412e",
        ),
    ),
}


def download(
    name: str, directory: str | Path | None = None, *, show_progress: bool = False
) -> list[Path]:
    """Fetch the files of a dataset and return their paths.

    Files that are there and complete are kept. A file appears under its name only when its
    checksum is right. Nothing is left behind when it is not.

    Args:
        name: A key of ``DOWNLOADS``, for example ``"fashion-mnist"``.
        directory: The data directory. Default: the environment variable ``TURNOUT_DATA``.
        show_progress: Draw a progress bar on standard error.

    Raises:
        InvalidInput: The name is unknown, or no directory is set.
        DownloadFailed: A file cannot be fetched or arrives damaged.
        MissingExtra: pooch is not installed.

    """
    if name not in DOWNLOADS:
        wanted = f"be one of {', '.join(DOWNLOADS)}: the others cannot be downloaded"
        got = f"{name!r}. 'turnout data list' says how to get them"
        raise require.wrong("name", wanted, got=got)
    folder = data_directory(directory)
    if not folder:
        raise InvalidInput(
            f"directory: where should {name} go? Set {DATA_VARIABLE} or --data-dir to a folder.",
            field="directory",
        )
    return [_fetch(file, Path(folder) / file.path, show_progress) for file in DOWNLOADS[name]]


def _fetch(file: Download, path: Path, show_progress: bool) -> Path:
    pooch = import_extra("pooch", "Downloads need pooch: pip install 'turnout[cli]'.")
    downloader = pooch.HTTPDownloader(show_progress, chunk_size=_CHUNK, timeout=_TIMEOUT_S)
    is_new_folder = not path.parent.exists()
    try:
        pooch.retrieve(file.url, file.checksum, path.name, path.parent, _make_readable, downloader)
    except (OSError, ValueError) as error:  # the errors of requests are OSErrors
        raise DownloadFailed(
            f"{file.url} cannot be fetched ({error}). Try again, or fetch it by other means and "
            f"put it at {path}."
        ) from error
    finally:
        if is_new_folder and not path.exists():  # an empty folder would look like a dataset
            with contextlib.suppress(OSError):
                path.parent.rmdir()
    return path


def _make_readable(path: str, action: str, pooch: object) -> str:
    """Let everybody read a new file: pooch leaves it to its owner alone."""
    if action != "fetch":  # "fetch" means that the file was there already
        Path(path).chmod(0o644)
    return path
