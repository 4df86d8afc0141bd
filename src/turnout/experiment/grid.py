"""Run an experiment: all cells of the grid, in parallel processes, resumable."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput, OutputError
from turnout.core.version import __version__, repeats
from turnout.experiment.cell import (
    CHECKPOINT_EVERY,
    CellTask,
    cell_config,
    config_difference,
    terminable,
)
from turnout.experiment.code import sources_of
from turnout.experiment.config import Experiment
from turnout.experiment.loop import played
from turnout.experiment.pool import Callbacks, Show, run_local
from turnout.experiment.variants import Variant
from turnout.results import files
from turnout.results.files import (
    DamagedFile,
    FolderError,
    cell_folder,
    drop_previous,
    locked,
    remove_leftovers,
)
from turnout.results.merge import misfit, union
from turnout.results.results import CellResult, Results
from turnout.results.settings import versions
from turnout.worlds import Observed

# --------------------------------------------------------------------------------------------------
# A part of a grid, for a machine that runs only that part.
# --------------------------------------------------------------------------------------------------

Item = TypeVar("Item")


@dataclass(frozen=True)
class Shard:
    """The cells whose number is ``index`` modulo ``count``.

    Args:
        index: Which part, from 0.
        count: The number of parts.

    Raises:
        InvalidInput: If there is no such part.

    >>> Shard(1, 3).of(range(8))
    [1, 4, 7]
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        is_whole = isinstance(self.index, int) and isinstance(self.count, int)
        if not (is_whole and 0 <= self.index < self.count):
            raise _no_shard(str(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the shard of a text.

        Args:
            text: ``i/n``, such as ``0/4`` for the first of four parts.

        Raises:
            InvalidInput: If it is anything else.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
        if match is None:
            raise _no_shard(text)
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        """Return it as ``parse`` reads it."""
        return f"{self.index}/{self.count}"

    def of(self, cells: Sequence[Item]) -> list[Item]:
        """Return the part of a list.

        Args:
            cells: All cells, in their order.
        """
        return list(cells[self.index :: self.count])

    def after(self, n_cells: int) -> Shard:
        """Return the same part of the next grid, whose cells are numbered after those before.

        Args:
            n_cells: Cells of the grids before.
        """
        return Shard((self.index - n_cells) % self.count, self.count)


def _no_shard(text: str) -> InvalidInput:
    wanted = "i/n with 0 <= i < n, such as 0/4 for the first of four parts"
    return InvalidInput(f"shard must be {wanted}; got {text!r}.", field="shard")


#: Where cells can be run.
BACKENDS = ("local", "ray")


def run_experiment(
    experiment: Experiment,
    folder: str | os.PathLike[str] | None = None,
    *,
    n_jobs: int | None = None,
    backend: str = "local",
    address: str | None = None,
    shard: Shard | None = None,
    progress: Show | None = None,
    labels: Collection[str] | None = None,
    fresh: bool = False,
    checkpoint_every: int = CHECKPOINT_EVERY,
    callbacks: Callbacks | None = None,
) -> Results:
    """Run every cell that is not complete yet, and return the results of all cells.

    Complete cells are reused, unless your own code that made them has changed since. Interrupted
    cells resume from their last checkpoint and end as if they had not been interrupted. The folder
    may hold other selectors and seeds, and runs with fewer rounds, which are continued.

    Args:
        experiment: The experiment.
        folder: Where the results go; created if it does not exist. None keeps them in memory only.
        n_jobs: Cells at the same time, by default one per processor. With the backend ``local``, 1
            runs everything in this process.
        backend: ``local`` runs on this machine, ``ray`` on a Ray cluster.
        address: The cluster: ``auto`` or ``HOST:PORT``; None starts Ray on this machine.
        shard: Run only a part of the cells.
        progress: Called with the progress of the experiment.
        labels: Run only the selectors with these labels.
        fresh: Run all of these cells again, also complete ones.
        checkpoint_every: Rounds between two checkpoints.
        callbacks: Returns, for a label and a seed, what is called after every round of training.
            Needs ``n_jobs=1``.

    Returns:
        The results of the cells that were asked for; ``runs`` says how each ended.

    Raises:
        InvalidInput: A selector, the data or the model does not fit, or the cluster does not
            answer; nothing was run.
        MissingExtra: Ray is not installed.
        FolderError: The folder belongs to another experiment or another version of turnout, or is
            in use by another process.
        OutputError: The folder cannot be written.

    """
    require.instance("experiment", experiment, Experiment)
    variants = _chosen(experiment, labels)
    run = _runner(backend, address, n_jobs, callbacks)
    check_that_it_runs(experiment, variants)
    every = require.integer("checkpoint_every", checkpoint_every, minimum=1)
    with kept_in(folder) as root:
        own = (shard or Shard(0, 1)).of(_tasks(experiment, variants, root, every))
        with locked(root, "" if shard is None else str(shard)) as notes:
            if not fresh:
                check_version(own)
            if shard is None:
                remove_leftovers(root)
            _open_folder(experiment, root)
            again, n_unmarked = _prepare(own, fresh=fresh)
            with terminable():
                ended = run(own, progress or (lambda advance: None))
        order = [variant.label for variant in variants]
        runs = sorted(ended, key=lambda cell: order.index(cell.label))  # which keeps the seeds
        remarks = (*notes, *_reuse_notes(runs, again, n_unmarked))
        results = Results(runs=runs, notes=remarks, folder=root)
        return results.in_memory() if folder is None else results


@contextlib.contextmanager
def kept_in(folder: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Yield a folder for runs: the given one, or a temporary one if there is none.

    Args:
        folder: Where the runs are kept; None = nowhere.
    """
    if folder is not None:
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory(prefix="turnout-") as name:
        yield Path(name)


def _tasks(
    experiment: Experiment, variants: Sequence[Variant], root: Path, checkpoint_every: int
) -> list[CellTask]:
    """Return all cells; those of one seed stand together, because they share their data."""
    here = versions(*([] if experiment.training is None else ["torch"]))
    made_by = [here | sources_of(experiment, variant) for variant in variants]
    return [
        CellTask(experiment, item, seed, cell_folder(root, item.label, seed), by, checkpoint_every)
        for seed in experiment.seeds
        for item, by in zip(variants, made_by, strict=True)
    ]


def _runner(
    backend: str, address: str | None, n_jobs: int | None, callbacks: Callbacks | None
) -> Callable[[Sequence[CellTask], Show], list[CellResult]]:
    """Return the function that runs cells; raise if it cannot run."""
    n_processors = os.cpu_count() or 1
    jobs = require.integer("n_jobs", n_jobs or n_processors, minimum=1)
    if require.choice("backend", backend, BACKENDS) == "ray":
        if callbacks is not None:
            raise InvalidInput("callbacks need backend='local': they cannot follow a cluster.")
        from turnout.experiment.ray_pool import check_cluster, run_on_ray

        check_cluster(address)
        return functools.partial(run_on_ray, address=address, n_jobs=n_jobs)
    if address is not None:
        raise InvalidInput(f"address {address!r} names a Ray cluster, which needs backend='ray'.")
    if callbacks is not None and jobs > 1:
        raise InvalidInput("callbacks need n_jobs=1: they cannot follow several processes.")
    return functools.partial(run_local, n_jobs=jobs, callbacks=callbacks)


def _chosen(experiment: Experiment, labels: Collection[str] | None) -> list[Variant]:
    for label in labels or ():
        if label not in experiment.labels:
            allowed = ", ".join(experiment.labels)
            raise InvalidInput(f"labels must be among {allowed}; got {label!r}.", field="labels")
    return [item for item in experiment.selectors if labels is None or item.label in labels]


def check_that_it_runs(experiment: Experiment, variants: Sequence[Variant]) -> None:
    """Report a missing column, missing data or a model that does not fit before anything runs.

    Args:
        experiment: The experiment.
        variants: The selectors to check.

    Raises:
        InvalidInput: Something does not fit.
    """
    check = checker(experiment)
    for variant in variants:
        check(variant)
    asked = set().union(*(variant.make().needs_metrics for variant in experiment.selectors))
    for name in experiment.keep or ():
        if name not in asked:
            raise InvalidInput(
                f"keep names {name!r}, which no selector of the experiment asks for. They ask for "
                f"{', '.join(sorted(asked)) or 'no reports'}.",
                field="keep",
            )


def checker(experiment: Experiment) -> Callable[[Variant], None]:
    """Return a function that raises ``InvalidInput`` for a selector that does not fit.

    Args:
        experiment: The experiment that the selectors must fit.

    Raises:
        InvalidInput: Data is missing, or the model does not fit.
    """
    first = experiment.seeds[0]
    world = experiment.environment(first)
    world.context(0, experiment.cohort_size, columns=world.columns)
    world.fate(0)
    world.carbon(0, np.zeros(0, dtype=np.int64), np.zeros(0))
    federation = experiment.federation(first)

    aggregation = None if experiment.training is None else experiment.training.aggregation

    def check(variant: Variant) -> None:
        selector, size = variant.make(), variant.cohort_size or experiment.cohort_size
        played(
            selector,
            world,
            schedule=experiment.schedule,
            policy=experiment.policy,
            cohort_size=size,
            participants=federation,
            n_rounds=0,
        )
        size = max(size, experiment.policy.select_size(size, Observed.fresh()))
        selector.check_fits(world.n_clients, size, experiment.n_rounds)
        if aggregation is not None:
            aggregation.check(variant.label, selector.reports_probability)

    return check


# --------------------------------------------------------------------------------------------------
# What a run folder holds already: what is kept, what is run again, and what does not fit.
# --------------------------------------------------------------------------------------------------

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


def _open_folder(experiment: Experiment, root: Path) -> None:
    """Write what the experiment is; a folder may grow by selectors, seeds and rounds."""
    whole = {**experiment.table(), **experiment.data_content()}
    file = root / files.EXPERIMENT
    saved = files.read_json(file) if file.exists() else {}
    if saved:
        n_rounds = max(whole["n_rounds"], _n_rounds(saved))
        difference = misfit({**saved, "n_rounds": n_rounds}, whole)
        if difference is not None:
            raise FolderError(
                f"{root} belongs to another experiment: {difference}; use another folder (--out)."
            )
        whole = union(saved, whole)
    if whole != saved:
        try:
            files.write_json(file, whole)
        except OSError as error:
            raise OutputError(f"{root} cannot be written: {error}.") from error


def check_version(tasks: Iterable[CellTask]) -> None:
    """Refuse cells of a version of turnout with other numbers.

    Args:
        tasks: The cells that are wanted.

    Raises:
        FolderError: Such a version made one of them.
    """
    for task in tasks:
        version = _read(task, files.VERSIONS).get("turnout", __version__)
        if not repeats(version):
            raise FolderError(
                f"{task.path} was made by turnout {version}, and this is turnout {__version__}, "
                "whose numbers may differ: use another folder (--out), run all again (--fresh), or "
                f"install turnout {version}."
            )


def _prepare(tasks: Sequence[CellTask], *, fresh: bool) -> tuple[list[str], int]:
    """Make room for cells that must be run again, and for more rounds.

    Returns:
        Why each cell that is run again is run again; and the number of cells that name plug-ins
        whose code is not known.

    Raises:
        FolderError: A cell's folder holds a pipe or a device.
    """
    for task in tasks:
        files.check_folder(task.path)
    again: list[str] = []
    n_unmarked = 0
    for task in (task for task in tasks if (task.path / files.CONFIG).exists()):
        saved, n_before = _read(task, files.VERSIONS), _n_rounds(_read(task, files.CONFIG))
        reason = "as asked" if fresh else _outdated(task, saved, n_before)
        is_short = 0 < n_before < task.experiment.n_rounds
        n_unmarked += bool(not reason and task.versions["code"] and "code" not in saved)
        if not fresh and not ((reason or is_short) and _is_same(task)):
            continue  # nothing to do, or the cell itself says what differs
        (task.path / files.SUMMARY).unlink(missing_ok=True)
        if reason:  # forget the cell, its checkpoint first, so that no half of it is used
            for name in _RESULTS:
                (task.path / name).unlink(missing_ok=True)
            drop_previous(task.path)
            again.append(reason)
        else:
            files.write_json(task.path / files.CONFIG, cell_config(task))
    return again, n_unmarked


def _reuse_notes(
    runs: Iterable[CellResult], again: Sequence[str], n_unmarked: int
) -> Iterator[str]:
    """Yield notes about cells that the folder already held."""
    ends = Counter(run.status for run in runs)
    reasons = ", ".join(dict.fromkeys(again))
    counts = {"reused": ends["skipped"], "resumed": ends["resumed"]}
    counts |= {f"run again ({reasons})": len(again)}
    said = [(what, count) for what, count in counts.items() if count]
    words = [f"{count if i else _cells(count)} {what}" for i, (what, count) in enumerate(said)]
    if words:
        yield f"{', '.join(words)}."
    if n_unmarked:
        were = "was" if n_unmarked == 1 else "were"
        yield f"{_cells(n_unmarked)} {were} {_OLD_CODE}"


def _n_rounds(table: Mapping[str, Any]) -> int:
    n_rounds = table.get("n_rounds")
    return n_rounds if isinstance(n_rounds, int) else 0


def _outdated(task: CellTask, saved: Mapping[str, Any], n_before: int) -> str:
    """Return the reason to run a cell again; empty if there is none."""
    for kind in ("code", "files"):  # older cells lack one or both
        digests, wanted = saved.get(kind), task.versions[kind]
        if not isinstance(digests, dict):
            continue
        names = sorted(digests.keys() | wanted.keys())
        changed = [name for name in names if not digests.get(name) == wanted.get(name) != ""]
        if changed:
            return f"{', '.join(changed)} changed"
    recipe = task.experiment.training
    if recipe is None or n_before >= task.experiment.n_rounds or recipe.may_go_on_after(n_before):
        return ""
    return f"round {n_before} was measured as the last one"


def _is_same(task: CellTask) -> bool:
    """Return whether a folder holds a cell that differs at most in its number of rounds."""
    wanted = cell_config(task)
    saved = files.read_json(task.path / files.CONFIG)
    longer = {**saved, "n_rounds": wanted["n_rounds"], "world_id": wanted["world_id"]}
    return config_difference(longer, task) is None


def _read(task: CellTask, name: str) -> dict[str, Any]:
    """Return a file of a cell; empty if it cannot be read."""
    with contextlib.suppress(DamagedFile):
        return files.read_json(task.path / name)
    return {}


def _cells(count: int) -> str:
    return "1 cell" if count == 1 else f"{count} cells"
