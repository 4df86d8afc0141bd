"""Join run folders of the same experiment, such as the shards of a grid."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from turnout.core.errors import InvalidInput
from turnout.core.files import TEMPORARY, writing_to
from turnout.results import files
from turnout.results.files import FolderError, locked
from turnout.results.reader import read_cell
from turnout.results.settings import SAME_VERSION, first_difference

# --------------------------------------------------------------------------------------------------
# Experiments that fit into one folder: the same but for selectors and seeds.
# --------------------------------------------------------------------------------------------------


def misfit(
    saved: Mapping[str, Any],
    wanted: Mapping[str, Any],
    *,
    saved_in: str = "the folder",
    wanted_by: str = "the experiment",
) -> str | None:
    """Return the reason why two experiments cannot share a folder, or None.

    Selectors and seeds that only one of them has are no reason.

    Args:
        saved: One experiment as plain data.
        wanted: The other one.
        saved_in: The place of the first, in words.
        wanted_by: The place of the second, in words.
    """
    there, here = _by_label(saved), _by_label(wanted)
    both = [label for label in here if label in there]
    return first_difference(
        {**saved, "selectors": {label: there[label] for label in both}, "seeds": []},
        {**wanted, "selectors": {label: here[label] for label in both}, "seeds": []},
        saved_in=saved_in,
        wanted_by=wanted_by,
    )


def union(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment with the selectors and seeds of two that fit.

    Args:
        saved: One experiment as plain data.
        wanted: The other one, whose other settings are taken.
    """
    return {
        **wanted,
        "selectors": list({**_by_label(saved), **_by_label(wanted)}.values()),
        "seeds": list(dict.fromkeys([*_listed(saved, "seeds"), *_listed(wanted, "seeds")])),
    }


def _by_label(table: Mapping[str, Any]) -> dict[str, Any]:
    items = _listed(table, "selectors")
    return {str(item["label"]): item for item in items if isinstance(item, dict)}


def _listed(table: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list of a file; empty if it is damaged there."""
    value = table.get(key)
    return value if isinstance(value, list) else []


#: Files that tell how a cell was run, not what came out: they differ between equal cells.
_CIRCUMSTANCES = frozenset({files.VERSIONS, files.PROGRESS})
#: What a summary says about them.
_SECONDS = "seconds"

#: The folder of an experiment, and where it goes.
_Moved = tuple[Path, Path]
#: By name of a version: the first cell that has one, and its value.
_MadeBy = dict[str, tuple[Path, Any]]


class Merged(NamedTuple):
    """What ``merge`` did.

    Attributes:
        added: Cells that are new in the folder.
        present: Cells that the folder already held.
        incomplete: Cells that are complete nowhere, where they come from. They were left out.
    """

    added: tuple[Path, ...]
    present: tuple[Path, ...]
    incomplete: tuple[Path, ...]


def merge(out: str | os.PathLike[str], folders: Iterable[str | os.PathLike[str]]) -> Merged:
    """Copy the complete cells of several folders into one.

    Everything is checked before anything is written. Each cell appears at once, or not at all, so
    an interrupted merge can be repeated.

    Args:
        out: The folder to fill. It may hold cells of the same experiment already.
        folders: Folders of experiments, or folders of such folders, which keep their names.

    Raises:
        InvalidInput: If a folder holds no experiment, or one of the folders is inside of another.
        FolderError: If folders belong to different experiments, a cell is damaged, or two copies of
            a cell differ, or two cells of an experiment were made by different versions, or another
            process writes to the folder.
        OutputError: If the folder cannot be written.
    """
    target, given = Path(out), [Path(folder) for folder in folders]
    _check_apart(target, given)
    sources = [
        (root, target / root.relative_to(folder))
        for folder in given
        for root in _experiments(folder)
    ]
    places = list(dict.fromkeys(place for _, place in sources))
    with contextlib.ExitStack() as locks:
        for place in places:
            locks.enter_context(locked(place))
            for left in place.glob(f"*/.*{TEMPORARY}"):  # by a merge that was killed
                shutil.rmtree(left)
        there = [(place, place) for place in places if (place / files.EXPERIMENT).exists()]
        settings = _checked_settings([*there, *sources])
        cells, incomplete = _checked_cells([*there, *sources])
        added = {place: cell for place, cell in cells.items() if place != cell}
        with writing_to(target):
            for place, table in settings.items():
                file = place / files.EXPERIMENT
                if not file.exists() or files.read_json(file) != table:
                    files.write_json(file, table)
            for place, cell in added.items():
                _copy(cell, place)
    return Merged(
        tuple(added),
        tuple(place for place in cells if place not in added),
        tuple(cell for place, cell in incomplete.items() if place not in cells),
    )


def _check_apart(target: Path, folders: Sequence[Path]) -> None:
    """Raise if one of the folders is inside of another."""
    for inner, outer in itertools.permutations((target, *folders), 2):
        if outer.resolve() in inner.resolve().parents:
            raise InvalidInput(
                f"{inner} is inside of {outer}, so each run would be there twice. Name the shards, "
                "and a folder beside them: turnout merge runs/all runs/shard-0 runs/shard-1."
            )


def _experiments(folder: Path) -> list[Path]:
    """Return the folders of experiments in a folder, which may be one itself."""
    roots = sorted(file.parent for file in folder.rglob(files.EXPERIMENT))
    if not roots:
        raise InvalidInput(
            f"{folder} holds no {files.EXPERIMENT}: give a folder that turnout compare or "
            "turnout reproduce has written."
        )
    return roots


def _checked_settings(experiments: Iterable[_Moved]) -> dict[Path, dict[str, Any]]:
    """Return the experiment of each place; raise if one that goes there has other settings."""
    first: dict[Path, Path] = {}
    tables: dict[Path, dict[str, Any]] = {}
    for root, place in experiments:
        before, table = first.setdefault(place, root), files.read_json(root / files.EXPERIMENT)
        known = tables.setdefault(place, table)
        difference = misfit(known, table, saved_in=str(before), wanted_by=str(root))
        if difference is not None:
            raise FolderError(f"these are different experiments: {difference}.")
        tables[place] = union(known, table)
    return tables


def _checked_cells(
    experiments: Iterable[_Moved],
) -> tuple[dict[Path, Path], dict[Path, Path]]:
    """Return the complete cells and the others by place; raise if one is damaged or not equal."""
    complete: dict[Path, Path] = {}
    incomplete: dict[Path, Path] = {}
    made_by: dict[Path, _MadeBy] = {}
    for root, place in experiments:
        for cell in sorted(root.glob("*/seed-*")):
            goes_to = place / cell.relative_to(root)
            if not (cell / files.SUMMARY).exists():
                incomplete.setdefault(goes_to, cell)
                continue
            _check_versions(cell, read_cell(cell).versions, made_by.setdefault(place, {}))
            before = complete.setdefault(goes_to, cell)
            if before != cell:
                _check_equal(before, cell)
    return complete, incomplete


def _check_versions(cell: Path, versions: Mapping[str, Any], made_by: _MadeBy) -> None:
    """Raise if a cell was made by another version than those before it; older cells say less."""
    for name, value in _named(versions):
        before, there = made_by.setdefault(name, (cell, value))
        difference = first_difference(there, value, name, saved_in=str(before), wanted_by=str(cell))
        if difference is not None:
            raise FolderError(
                f"these were made by different versions, whose numbers may differ: {difference}. "
                "Use the same version on every node, and run one of the two again (--fresh)."
            )


def _named(versions: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what must be the same in all cells: selectors have other files, each with a digest."""
    for name in SAME_VERSION:
        value = versions.get(name)
        if isinstance(value, Mapping):
            yield from ((f"{name}.{file}", digest) for file, digest in value.items())
        elif value is not None:
            yield name, value


def _check_equal(first: Path, second: Path) -> None:
    """Raise if two copies of a cell came out differently."""
    names = {path.name for cell in (first, second) for path in cell.iterdir()} - _CIRCUMSTANCES
    for name in sorted(names):
        difference = None
        if name.endswith(".json"):
            tables = (files.read_json(cell / name) for cell in (first, second))
            there, here = ({**table, _SECONDS: None} for table in tables)
            difference = first_difference(there, here, saved_in=str(first), wanted_by=str(second))
        elif files.digest_of(first / name) != files.digest_of(second / name):
            difference = f"{name} of {first} is not that of {second}"
        if difference is not None:
            raise FolderError(f"two copies of a run differ: {difference}. Delete the wrong one.")


def _copy(cell: Path, place: Path) -> None:
    """Copy a cell so that it appears at once; one that is not complete makes room."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".", suffix=TEMPORARY) as room:
        shutil.copytree(cell, Path(room) / "new")
        if place.exists():
            os.replace(place, Path(room) / "old")
        os.replace(Path(room) / "new", place)
