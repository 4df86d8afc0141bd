"""Downloads of published files: checked before they appear, so a file that is there is whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

from turnout.data_directory import DATA_VARIABLE, data_directory
from turnout.errors import InvalidInput, TurnoutError

__all__ = ["DOWNLOADS", "Download", "DownloadFailed", "download"]

_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_CHUNK = 1 << 18
_TIMEOUT_S = 30.0

#: Told of each step: the file, bytes so far, bytes in all (0 if unknown).
Progress = Callable[[str, int, int], None]


class Download(NamedTuple):
    """A published file."""

    url: str
    path: str  #: inside the data directory
    checksum: str  #: "md5:..." as the publisher gives it, or "sha256:..."
    n_bytes: int  #: about


class DownloadFailed(TurnoutError, OSError):
    """A file could not be fetched, or came damaged."""


def _fashion(name: str, md5: str, n_bytes: int) -> Download:
    return Download(_FASHION + name, f"fashion-mnist/{name}", f"md5:{md5}", n_bytes)


#: What can be downloaded, by the name of the source.
DOWNLOADS: Mapping[str, tuple[Download, ...]] = MappingProxyType(
    {
        "fashion-mnist": (
            _fashion("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            _fashion("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
            _fashion("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            _fashion("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
        "cifar10": (
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "cifar-10-binary.tar.gz",
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170_052_171,
            ),
        ),
        "emnist-letters": (
            Download(
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                "emnist-letters/gzip.zip",
                "md5:58c8d27c78d21e728a6bc7b3cc06412e",
                561_753_746,
            ),
        ),
    }
)


def download(
    name: str, directory: str | Path | None = None, progress: Progress | None = None
) -> list[Path]:
    """Fetch the files of a dataset into the data directory and return where they are.

    Files that are there and whole are kept. A file appears under its name only when its checksum
    is right; nothing is left behind when it is not.
    """
    if name not in DOWNLOADS:
        raise InvalidInput(
            f"name must be one of {', '.join(DOWNLOADS)}: the others cannot be downloaded, "
            f"got {name!r}. 'turnout data list' says how to get them."
        )
    given = data_directory(directory)
    if not given:
        raise InvalidInput(
            f"directory: where should {name} go? Set {DATA_VARIABLE} or --data-dir to a folder."
        )
    tell = progress or (lambda file, done, total: None)
    return [_fetch(file, Path(given) / file.path, tell) for file in DOWNLOADS[name]]


def _fetch(file: Download, path: Path, tell: Progress) -> Path:
    if path.is_file() and _is_whole(path, file.checksum):
        tell(path.name, file.n_bytes, file.n_bytes)
        return path
    by_hand = f"Fetch {file.url} by other means and put it at {path}."
    try:
        with _folder_of(path), _appearing(path) as target:
            found = _copy(file, target, path.name, tell)
            if found != file.checksum.partition(":")[2]:
                raise DownloadFailed(
                    f"{file.url} came damaged: its checksum is {found}, not {file.checksum}. Try "
                    f"again. {by_hand}"
                )
    except DownloadFailed:
        raise
    except (OSError, HTTPException) as error:  # URLError and timeouts are OSErrors
        reason = getattr(error, "reason", None) or error
        raise DownloadFailed(f"{file.url} cannot be fetched ({reason}). {by_hand}") from error
    return path


def _copy(file: Download, target: IO[bytes], name: str, tell: Progress) -> str:
    """Copy from the network, and return the checksum of what came."""
    digest = hashlib.new(file.checksum.partition(":")[0], usedforsecurity=False)
    done = 0
    with urllib.request.urlopen(file.url, timeout=_TIMEOUT_S) as answer:
        total = int(answer.headers.get("Content-Length") or file.n_bytes)
        while piece := answer.read(_CHUNK):
            target.write(piece)
            digest.update(piece)
            done += len(piece)
            tell(name, done, total)
    return digest.hexdigest()


@contextlib.contextmanager
def _folder_of(path: Path) -> Iterator[None]:
    """Make the folder of a file; if the file does not come, it goes as well."""
    was_there = path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if not was_there and not path.exists():
            with contextlib.suppress(OSError):  # somebody else put something there
                path.parent.rmdir()


@contextlib.contextmanager
def _appearing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name at the end, or never exists."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _is_whole(path: Path, checksum: str) -> bool:
    algorithm, _, wanted = checksum.partition(":")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return digest.hexdigest() == wanted
