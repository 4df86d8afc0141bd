"""Two generations of a checkpoint, so that a crash while one is written leaves the other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from turnout.runs import files
from turnout.storage import TEMPORARY

#: How the names of the files of the generation before begin.
PREVIOUS = "previous-"
#: The files of a checkpoint, the one that makes it whole last.
_PARTS = (files.SELECTIONS, files.STATE, files.MODEL, files.PROGRESS)


def keep_previous(cell: Path) -> None:
    """Keep the checkpoint of a cell under other names, before the next one is written over it.

    Args:
        cell: The folder of the cell, with a whole checkpoint or none.
    """
    if (cell / files.PROGRESS).exists():
        for name in _PARTS:
            _put(cell / name, cell / f"{PREVIOUS}{name}")


def go_back(cell: Path) -> bool:
    """Put the checkpoint before the last in the place of the last.

    Args:
        cell: The folder of the cell.

    Returns:
        Whether there was one.
    """
    if not (cell / f"{PREVIOUS}{files.PROGRESS}").exists():
        return False
    for name in _PARTS:
        _put(cell / f"{PREVIOUS}{name}", cell / name)
    return True


def drop_previous(cell: Path) -> None:
    """Forget the checkpoint before the last.

    Args:
        cell: The folder of the cell.
    """
    for name in reversed(_PARTS):
        (cell / f"{PREVIOUS}{name}").unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing.

    Args:
        folder: The folder of a cell or of an experiment; nobody else writes it.
    """
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def _put(source: Path, target: Path) -> None:
    """Give a file a second name, at once; a file system without links gets a copy."""
    if not source.exists():
        return
    name = target.with_name(f".{target.name}{TEMPORARY}")
    name.unlink(missing_ok=True)
    try:
        os.link(source, name)
    except OSError:
        shutil.copyfile(source, name)
    os.replace(name, target)
    name.unlink(missing_ok=True)  # of two names of one file POSIX keeps both
