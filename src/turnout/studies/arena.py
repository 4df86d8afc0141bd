"""The arena: every selector runs the same tasks and is measured against the baseline."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from turnout.core.errors import InvalidInput
from turnout.core.files import DataMissing, write_atomically
from turnout.core.registry import list_selectors
from turnout.experiment import Results, run_experiment
from turnout.experiment.variants import variants_of
from turnout.report.to_matplotlib import FORMATS
from turnout.results.files import slug
from turnout.studies.arena_figures import ACCURACY, TIME, draw_front, draw_profile
from turnout.studies.arena_tables import page_of
from turnout.studies.arena_tasks import ORACLES, Arena, ArenaTask, TaskPlan, tasks_named
from turnout.studies.recommendation import BASELINE, NOT_ASKED
from turnout.studies.standings import Overall, overall_of


@dataclass(frozen=True)
class ArenaRun:
    """The results of selectors in some tasks.

    Attributes:
        arena: The kept results.
        path: The file that holds them.
        tasks: The tasks that were asked for.
        folder: Folder of the run folders, figures and pages.
        entrants: Labels of the selectors that were named.
        ran: The results of what was run now. Look at ``failed`` of the last ones.
    """

    arena: Arena
    path: Path
    tasks: tuple[ArenaTask, ...]
    folder: Path
    entrants: tuple[str, ...]
    ran: list[Results]

    @cached_property
    def overall(self) -> dict[str, Overall]:
        """Every selector over the tasks, the fastest first.

        Raises:
            InvalidInput: Nothing was run yet.
        """
        overall = overall_of(self.arena, self.tasks)
        if not overall:
            raise InvalidInput(f"{self.path} has no results of these tasks: run without --collect.")
        return overall

    def draw(self) -> list[Path]:
        """Draw time and accuracy against fairness, and the profile; return the files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        front, accuracy, profile = (
            [self.folder / f"{name}.{ending}" for ending in FORMATS]
            for name in ("front", "accuracy", "profile")
        )
        return [
            *draw_front(self.overall, TIME, front),
            *draw_front(self.overall, ACCURACY, accuracy),
            *draw_profile(self.arena, self.tasks, tuple(self.overall), profile),
        ]

    def write_pages(self) -> dict[str, Path]:
        """Write a page for each selector that was named, and return the files by label."""
        self.folder.mkdir(parents=True, exist_ok=True)
        labels = [x for x in self.entrants if x in self.overall and x != BASELINE]
        pages = {label: self.folder / f"{slug(label)}.md" for label in labels}
        for label, page in pages.items():
            text = page_of(self.arena, self.tasks, label, figure="front.png")
            write_atomically(page, text.encode())
        return pages


def run_arena(
    selectors: Sequence[str] = (),
    *,
    tasks: Sequence[str] = (),
    seeds: int = 5,
    first_seed: int = 0,
    is_quick: bool = False,
    out: str | os.PathLike[str] = "runs/arena",
    results: str | os.PathLike[str] | None = None,
    only_collect: bool = False,
    notify: Callable[[str], None] | None = None,
    run: Callable[..., Results] = run_experiment,
    **computing: Any,
) -> ArenaRun:
    """Run selectors in the arena's tasks as far as their results are not kept yet.

    Results are kept in ``arena.json``, task by task, even if a task was interrupted or if some of
    its runs failed. After a task with failed runs, no other task is started.

    Args:
        selectors: Selectors such as ``"e3cs:quota=0.8"``; none = all that are built in. The
            baseline always runs too, and ``oracle`` and ``unfair-oracle`` name the oracles.
        tasks: Labels of tasks; none = all whose data are there.
        seeds: Runs per selector and task.
        first_seed: The first seed. Tuning uses seeds from 100 on.
        is_quick: Whether to run only a quarter of the rounds.
        out: Folder of the run folders.
        results: Folder of ``arena.json``; None = as ``out``.
        only_collect: Run nothing, and return the kept results.
        notify: Called with a line for each selector and task that is left out, before it would run.
        run: Runs one experiment in a folder.
        **computing: Options of ``run``, such as ``n_jobs`` and ``progress``.

    Raises:
        DataMissing: A task that was named needs data that are not there, or every task does. The
            message says how to get them. Nothing was run.
        ResultsError: The kept results follow another protocol.

    """
    notify = notify or (lambda text: None)
    chosen = selectors or [
        *(name for name in list_selectors(plugins=False) if name not in NOT_ASKED),
        *ORACLES,
    ]
    texts = dict.fromkeys([BASELINE, *(ORACLES.get(text, text) for text in chosen)])
    variants = [variant for text in texts for variant in variants_of(text)]
    folder = Path(out) / "quick" if is_quick else Path(out)
    path = Path(folder if results is None else results) / "arena.json"
    entrants = tuple(variant.label for variant in variants) if selectors else ()
    found = ArenaRun(Arena.read(path), path, tasks_named(tasks), folder, entrants, [])
    if only_collect:
        return found
    numbers = range(first_seed, first_seed + seeds)
    plans = found.arena.lacking(found.tasks, variants, numbers, folder, is_quick=is_quick)
    missing = _missing_data(plans)
    can_run = any(plan.experiment is not None for plan in plans)
    if missing and (tasks or not can_run):
        raise DataMissing(" ".join(missing))
    for line in missing:
        notify(line)
    for plan in plans:
        for label, reason in plan.left_out.items():
            notify(f"{plan.task.label}: {label} is left out: {reason}")
        if plan.experiment is not None:
            _run_plan(found, plan, run, computing)
            if found.ran[-1].failed:
                break
    return found


def _missing_data(plans: Sequence[TaskPlan]) -> list[str]:
    """Return a line for each kind of data that is missing, with the tasks that need it."""
    by_problem: dict[str, dict[str, None]] = {}
    for plan in plans:
        if plan.missing_data:
            by_problem.setdefault(plan.missing_data, {})[plan.task.label] = None
    return [
        f"data are missing for {', '.join(labels)}: {problem}"
        for problem, labels in by_problem.items()
    ]


def _run_plan(
    found: ArenaRun, plan: TaskPlan, run: Callable[..., Results], computing: dict[str, Any]
) -> None:
    """Run an experiment and keep its results, whether or not it ends."""
    assert plan.experiment is not None
    try:
        found.ran.append(run(plan.experiment, plan.folder, **computing))
    finally:
        found.arena.keep(plan.task, plan.experiment, plan.folder)
        found.arena.file.keep(found.path, trains=True)
