"""What a run folder holds already: what is kept, what is run again, and what does not fit."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from turnout.errors import OutputError
from turnout.experiment.config import Experiment
from turnout.experiment.task import CellResult, CellTask, cell_config, config_difference
from turnout.runs import files
from turnout.runs.files import DamagedFile, FolderError
from turnout.runs.generations import drop_previous
from turnout.runs.union import misfit, union
from turnout.version import __version__

#: What a run leaves behind.
_RESULTS = (
    files.PROGRESS,
    files.ROUNDS,
    files.SELECTIONS,
    files.STATE,
    files.MODEL,
    files.CLIENT_SCORES,
    files.CONFIG,
)
_OLD_CODE = "made before turnout kept digests of plug-ins: reused as they are."


def open_folder(experiment: Experiment, root: Path) -> None:
    """Write what the experiment is; a folder may grow by selectors, seeds and rounds.

    Args:
        experiment: What is to be run.
        root: The folder, which is there.

    Raises:
        FolderError: The folder holds another experiment; the message names what differs.
        OutputError: The folder cannot be written.
    """
    table = {**experiment.table(), **experiment.data_content()}
    file = root / files.EXPERIMENT
    saved = files.read_json(file) if file.exists() else {}
    whole = _joined(saved, table, root) if saved else table
    if whole != saved:
        try:
            files.write_json(file, whole)
        except OSError as error:
            raise OutputError(f"{root} cannot be written: {error}.") from error


def check_version(tasks: Iterable[CellTask]) -> None:
    """Refuse cells of another version of turnout.

    Args:
        tasks: The cells that are wanted.

    Raises:
        FolderError: Another version made one of them.
    """
    for task in tasks:
        version = _versions(task).get("turnout", __version__)
        if version != __version__:
            raise FolderError(
                f"{task.path} was made by turnout {version}, and this is turnout {__version__}, "
                "whose numbers may differ: use another folder (--out), run all again (--fresh), or "
                f"install turnout {version}."
            )


class Prepared(NamedTuple):
    """What was done to the cells that a folder holds.

    Attributes:
        again: Why each cell that is run again is so.
        n_unmarked: Cells of plug-ins whose code nobody knows.
    """

    again: list[str]
    n_unmarked: int


def prepare(tasks: Sequence[CellTask], *, fresh: bool) -> Prepared:
    """Make room for cells that must be run again, and for more rounds.

    Args:
        tasks: The cells that are wanted.
        fresh: Run all of them again.

    Raises:
        FolderError: A cell's folder holds a pipe or a device.
    """
    for task in tasks:
        files.check_folder(task.path)
    there = [task for task in tasks if (task.path / files.CONFIG).exists()]
    again: list[str] = []
    n_unmarked = 0
    for task in there:
        reason = "as asked" if fresh else _outdated(task)
        is_short = 0 < _n_rounds(task) < task.experiment.n_rounds
        n_unmarked += not reason and _is_unmarked(task)
        if not fresh and not ((reason or is_short) and _is_same(task)):
            continue  # nothing to do, or the cell itself says what differs
        (task.path / files.SUMMARY).unlink(missing_ok=True)
        if reason:
            _clear(task.path)
            again.append(reason)
        else:
            files.write_json(task.path / files.CONFIG, cell_config(task))
    return Prepared(again, n_unmarked)


def reuse_notes(results: Iterable[CellResult], prepared: Prepared) -> tuple[str, ...]:
    """Return what there is to say about cells that were there before.

    Args:
        results: How all cells ended.
        prepared: What was done to those that were there.
    """
    ends = Counter(result.status for result in results)
    again, n_unmarked = prepared
    reasons = ", ".join(dict.fromkeys(again))
    counts = {
        "reused": ends["skipped"],
        "gone on with": ends["resumed"],
        f"run again ({reasons})": len(again),
    }
    said = [(what, count) for what, count in counts.items() if count]
    words = [f"{count if i else _cells(count)} {what}" for i, (what, count) in enumerate(said)]
    notes = [f"{', '.join(words)}."] if words else []
    if n_unmarked:
        were = "was" if n_unmarked == 1 else "were"
        notes.append(f"{_cells(n_unmarked)} {were} {_OLD_CODE}")
    return tuple(notes)


def _joined(saved: Mapping[str, Any], table: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Return the experiment that holds a folder's and a wanted one; raise if they do not fit."""
    n_rounds = max(table["n_rounds"], _number(saved, "n_rounds"))
    difference = misfit({**saved, "n_rounds": n_rounds}, table)
    if difference is not None:
        raise FolderError(
            f"{root} belongs to another experiment: {difference}; use another folder (--out)."
        )
    return union(saved, table)


def _number(table: Mapping[str, Any], key: str) -> int:
    value = table.get(key)
    return value if isinstance(value, int) else 0


def _outdated(task: CellTask) -> str:
    """Return why a cell must be run again, empty if it need not."""
    saved = _versions(task)
    for kind in ("code", "files"):  # older cells lack one or both
        digests, wanted = saved.get(kind), task.versions[kind]
        if not isinstance(digests, dict):
            continue
        names = sorted(digests.keys() | wanted.keys())
        changed = [name for name in names if not digests.get(name) == wanted.get(name) != ""]
        if changed:
            return f"{', '.join(changed)} changed"
    recipe, n_before = task.experiment.training, _n_rounds(task)
    if recipe is None or n_before >= task.experiment.n_rounds or recipe.may_go_on_after(n_before):
        return ""
    return f"round {n_before} was measured as the last one"


def _is_unmarked(task: CellTask) -> bool:
    """Return whether nobody knows which plug-ins made a cell that names some."""
    return bool(task.versions["code"]) and "code" not in _versions(task)


def _is_same(task: CellTask) -> bool:
    """Return whether a folder holds a cell that differs at most in its number of rounds."""
    wanted = cell_config(task)
    saved = files.read_json(task.path / files.CONFIG)
    longer = {**saved, "n_rounds": wanted["n_rounds"], "world_id": wanted["world_id"]}
    return config_difference(longer, task) is None


def _clear(cell: Path) -> None:
    """Forget a cell, its checkpoint first, so that no half of it is used."""
    for name in _RESULTS:
        (cell / name).unlink(missing_ok=True)
    drop_previous(cell)


def _versions(task: CellTask) -> dict[str, Any]:
    with contextlib.suppress(DamagedFile):
        return files.read_json(task.path / files.VERSIONS)
    return {}


def _n_rounds(task: CellTask) -> int:
    with contextlib.suppress(DamagedFile):
        return _number(files.read_json(task.path / files.CONFIG), "n_rounds")
    return 0


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"
