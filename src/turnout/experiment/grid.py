"""Run an experiment: all cells of the grid, in parallel processes, resumable."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnout import require
from turnout.errors import InvalidInput
from turnout.experiment.code import code_of, files_of
from turnout.experiment.config import Experiment
from turnout.experiment.folder import check_version, open_folder, prepare, reuse_notes
from turnout.experiment.pool import Advance, Callbacks, Show, run_local
from turnout.experiment.ray_pool import check_cluster, run_on_ray
from turnout.experiment.shard import Shard
from turnout.experiment.task import CHECKPOINT_EVERY, CellResult, CellTask
from turnout.experiment.variants import Variant
from turnout.notebook import lines_with_curves
from turnout.results.scores import Numbers, Scores
from turnout.results.tables import mean_table
from turnout.runs.catalogue import shown_in
from turnout.runs.facts import Facts
from turnout.runs.files import FolderError, cell_folder
from turnout.runs.generations import remove_leftovers
from turnout.runs.lock import locked
from turnout.runs.metric import Metric
from turnout.runs.reader import read_cell
from turnout.runs.versions import versions
from turnout.selector import Selector
from turnout.simulation import rounds
from turnout.statistics import Estimate, estimate, paired_difference
from turnout.training import Aggregation

#: Where cells can be run.
BACKENDS = ("local", "ray")


@dataclass(frozen=True, repr=False)
class Grid:
    """All cells of an experiment, in the order of selectors and seeds.

    Attributes:
        experiment: What was asked for.
        folder: Where its results are.
        cells: One per selector and seed.
        notes: What there is to say about the folder.
    """

    experiment: Experiment
    folder: Path
    cells: tuple[CellResult, ...]
    notes: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[CellResult, ...]:
        """Cells without a result."""
        return tuple(cell for cell in self.cells if cell.summary is None)

    @property
    def remarks(self) -> tuple[CellResult, ...]:
        """Cells with a result about which there is something to say."""
        return tuple(cell for cell in self.cells if cell.summary is not None and cell.message)

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the selectors that were run, in order."""
        return tuple(dict.fromkeys(cell.label for cell in self.cells))

    @property
    def scores(self) -> Scores:
        """The numbers of its selectors, and what they say about each other."""
        summaries: dict[str, dict[int, Numbers]] = {label: {} for label in self.labels}
        for cell in self.cells:
            if cell.summary is not None:
                summaries[cell.label][cell.seed] = functools.partial(_metric_of, cell.summary)
        return Scores(summaries)

    def values(self, label: str, metric: str) -> list[float]:
        """Return a metric of one selector for each seed; NaN where there is none."""
        summaries = {cell.seed: cell.summary for cell in self.cells if cell.label == label}
        return [_number(summaries.get(seed), metric) for seed in self.experiment.seeds]

    def estimate(self, label: str, metric: str) -> Estimate:
        """Return the mean over seeds, with its 95 % interval."""
        return estimate(self.values(label, metric))

    def difference(self, label: str, baseline: str, metric: str) -> Estimate:
        """Return the paired difference between two selectors over the same seeds."""
        return paired_difference(self.values(label, metric), self.values(baseline, metric))

    def __repr__(self) -> str:
        """Return what was run, and the first number of each selector."""
        n_complete = len(self.cells) - len(self.problems)
        lines = [f"Grid {self.experiment.name}: {n_complete} of {len(self.cells)} runs complete"]
        trained = self.experiment.training is not None
        metric = shown_in("compare --train" if trained else "compare")[0]
        for label, (entry,) in mean_table(self.scores, [metric]).rows:
            lines.append(f"  {label}: {metric.short} {entry.text}")
        return "\n".join([*lines, f"  in {self.folder}"])

    def _repr_html_(self) -> str:
        """Return it with a curve of each selector's first seed, if its folder is still there."""
        curves = {}
        seed = self.experiment.seeds[0]
        for label in self.labels:
            with contextlib.suppress(FolderError):
                run = read_cell(cell_folder(self.folder, label, seed)).run
                curves[f"{label}, {run.curve[0]}"] = run.curve[1]
        return lines_with_curves(repr(self), curves)


def run_experiment(
    experiment: Experiment,
    folder: str | os.PathLike[str],
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
) -> Grid:
    """Run every cell that is not complete yet, and return all of them.

    Complete cells are reused, unless code of your own that made them was edited since. Interrupted
    ones go on from their last checkpoint and end as if they had not been interrupted. The folder
    may hold other selectors and seeds, and runs with fewer rounds, which go on.

    Args:
        experiment: What to run.
        folder: Where the results go; created if it is not there.
        n_jobs: Cells at the same time, by default one per processor. With the backend ``local``, 1
            runs everything in this process.
        backend: ``local`` runs on this machine, ``ray`` on a Ray cluster.
        address: Of the cluster: ``auto`` or ``HOST:PORT``; None starts Ray on this machine.
        shard: Run only a part of the cells.
        progress: Called with how far the experiment is.
        labels: Run only the selectors with these labels.
        fresh: Run all of these cells again, also complete ones.
        checkpoint_every: Rounds between two checkpoints.
        callbacks: Returns, for a label and a seed, what is called after every round of training.
            Needs ``n_jobs=1``.

    Returns:
        All cells that were asked for.

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
    root = Path(folder)
    here = versions(*([] if experiment.training is None else ["torch"]))
    ran_by = [
        here | {"code": code_of(experiment, variant), "files": files_of(experiment, variant)}
        for variant in variants
    ]
    tasks = [
        CellTask(experiment, item, seed, cell_folder(root, item.label, seed), made_by, every)
        for seed in experiment.seeds  # cells of one seed share their data
        for item, made_by in zip(variants, ran_by, strict=True)
    ]
    own = tasks if shard is None else shard.of(tasks)
    with locked(root, "" if shard is None else str(shard)) as notes:
        if not fresh:
            check_version(own)
        if shard is None:
            remove_leftovers(root)
        open_folder(experiment, root)
        prepared = prepare(own, fresh=fresh)
        results = run(own, progress or _unseen)
    done = {(cell.label, cell.seed): cell for cell in results}
    in_order = [(variant.label, seed) for variant in variants for seed in experiment.seeds]
    cells = tuple(done[key] for key in in_order if key in done)
    return Grid(experiment, root, cells, (*notes, *reuse_notes(cells, prepared)))


def _runner(
    backend: str, address: str | None, n_jobs: int | None, callbacks: Callbacks | None
) -> Callable[[Sequence[CellTask], Show], list[CellResult]]:
    """Return what runs cells; raise if it cannot."""
    n_processors = os.cpu_count() or 1
    jobs = require.integer("n_jobs", n_jobs or n_processors, minimum=1)
    if require.choice("backend", backend, BACKENDS) == "ray":
        if callbacks is not None:
            raise InvalidInput("callbacks need backend='local': they cannot follow a cluster.")
        check_cluster(address)
        return functools.partial(run_on_ray, address=address, n_jobs=n_jobs)
    if address is not None:
        raise InvalidInput(f"address is that of a Ray cluster; got {address!r} without 'ray'.")
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
        experiment: Where they run.
        variants: Those of its selectors that are run.

    Raises:
        InvalidInput: Something does not fit.
    """
    check = checker(experiment)
    for variant in variants:
        check(variant)


def checker(experiment: Experiment) -> Callable[[Variant], None]:
    """Return what raises ``InvalidInput`` for a selector that does not fit an experiment.

    Args:
        experiment: Where selectors would run.

    Raises:
        InvalidInput: Data is missing, or the model does not fit.
    """
    first = experiment.seeds[0]
    world = experiment.environment(first)
    world.context(0, experiment.cohort_size, columns=world.columns)
    world.fate(0)
    federation = experiment.federation(first)

    def check(variant: Variant) -> None:
        selector, size = variant.make(), variant.cohort_size or experiment.cohort_size
        rounds(selector, world, cohort_size=size, participants=federation, n_rounds=0)
        if experiment.training is not None:
            _check_weights(variant.label, selector, experiment.training.aggregation)

    return check


def _check_weights(label: str, selector: Selector, aggregation: Aggregation) -> None:
    """Raise if the aggregation wants probabilities that the selector does not report."""
    if aggregation.needs_probability and not selector.reports_probability:
        raise InvalidInput(
            f"aggregation {type(aggregation).__name__} needs inclusion probabilities, but {label} "
            "declares none. Use MeanReturned() or a selector with exact probabilities (random, "
            "e3cs); a selector of your own declares them by reports_probability = True.",
            field="aggregation",
        )


def _unseen(advance: Advance) -> None:
    """Show nothing."""


def _metric_of(summary: dict[str, Any], metric: Metric[Facts]) -> float:
    return _number(summary, metric.key)


def _number(summary: dict[str, Any] | None, metric: str) -> float:
    value = None if summary is None else summary.get(metric)
    return float("nan") if value is None else float(value)
