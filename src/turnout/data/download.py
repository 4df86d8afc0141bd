"""Downloads of published files with pooch.

A file is checked before it appears under its name, so every file under its name is complete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from turnout.data_directory import DATA_VARIABLE, data_directory
from turnout.errors import InvalidInput, TurnoutError
from turnout.names import import_extra

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
        raise InvalidInput(
            f"name must be one of {', '.join(DOWNLOADS)}: the others cannot be downloaded, "
            f"got {name!r}. 'turnout data list' says how to get them.",
            field="name",
        )
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
