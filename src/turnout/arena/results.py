"""What is kept of the arena, ``results/arena.json``, and the runs that it still lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from turnout.arena.tasks import ArenaTask
from turnout.errors import TurnoutError
from turnout.experiment import Experiment, Grid, Variant, read_cell
from turnout.experiment.grid import checker
from turnout.papers.results import SchemeResults, Trials
from turnout.papers.results_file import ResultsFile
from turnout.runs.files import SUMMARY, cell_folder, slug


class Measures(NamedTuple):
    """Names of the measures that are kept of a task's runs, see ``turnout.papers.measures``."""

    time: str
    rounds: str
    accuracy: str = "final-accuracy"
    worst_tenth: str = "worst-accuracy"
    least_share: str = "least-share"
    wasted: str = "wasted-share"
    length: str = "total-time"

    @classmethod
    def of(cls, task: ArenaTask) -> Measures:
        """Return those of a task.

        Args:
            task: The task, for its target.
        """
        return cls(f"time-to-{task.target:g}", f"rounds-to-{task.target:g}")


class Plan(NamedTuple):
    """Runs of a task that are still to be made.

    Attributes:
        task: The task.
        experiment: Selectors that lack the same seeds; None if none of them can run there.
        folder: Where the runs go.
        left_out: Why each of the others cannot run there, by label.
    """

    task: ArenaTask
    experiment: Experiment | None
    folder: Path
    left_out: Mapping[str, str]


class Arena:
    """The kept results of all tasks.

    Args:
        file: What is kept.
    """

    def __init__(self, file: ResultsFile | None = None) -> None:
        self.file = ResultsFile("arena") if file is None else file

    @classmethod
    def read(cls, path: Path) -> Arena:
        """Return the kept results; none if there is no file yet.

        Args:
            path: The file.
        """
        return cls(ResultsFile.read(path, "arena") if path.exists() else None)

    def lacking(
        self,
        tasks: Sequence[ArenaTask],
        variants: Sequence[Variant],
        seeds: Sequence[int],
        out: Path,
        *,
        is_quick: bool = False,
    ) -> list[Plan]:
        """Return the runs that the results lack, task by task and selectors with the same seeds.

        Args:
            tasks: The tasks.
            variants: The selectors.
            seeds: The seeds.
            out: Folder of the run folders.
            is_quick: Whether runs are shortened.

        Raises:
            ResultsError: The kept results are of another protocol, or of a selector with the same
                label and other parameters.
        """
        plans = []
        for task in tasks:
            experiment = task.experiment(variants, seeds, is_quick=is_quick)
            self.file.check(task.label, 1, experiment.table())
            labels = [variant.label for variant in variants]
            lacking = self.file.missing(task.label, 1, labels, seeds)
            for missing in sorted({tuple(own) for own in lacking.values()}):
                own = [item for item in variants if lacking.get(item.label) == list(missing)]
                part = task.experiment(own, missing, is_quick=is_quick)
                left_out = _unfit(part)
                fitting = [item for item in own if item.label not in left_out]
                plans.append(
                    Plan(
                        task,
                        task.experiment(fitting, missing, is_quick=is_quick) if fitting else None,
                        out / slug(task.label),
                        left_out,
                    )
                )
        return plans

    def add(self, plan: Plan, grid: Grid) -> None:
        """Keep what is complete of the runs of a plan.

        Args:
            plan: What was to be run.
            grid: What was run.
        """
        if plan.experiment is None:
            return
        kept = self.file.parts.get((plan.task.label, 1))
        before = [] if kept is None else list(kept.experiment["selectors"])
        table = plan.experiment.table()
        known = {selector["label"] for selector in before}
        order = before + [new for new in table["selectors"] if new["label"] not in known]
        schemes = {}
        for label in plan.experiment.labels:
            paths = [cell_folder(grid.folder, label, seed) for seed in plan.experiment.seeds]
            cells = [read_cell(path) for path in paths if (path / SUMMARY).exists()]
            if cells:
                measures = Measures.of(plan.task)
                schemes[label] = SchemeResults.from_cells(cells, measures, (), ())
        self.file.update(plan.task.label, 1, Trials(table | {"selectors": order}, schemes, {}))

    def trials(self, task: ArenaTask) -> Trials | None:
        """Return the kept results of a task, None if there are none.

        Args:
            task: The task.
        """
        return self.file.parts.get((task.label, 1))

    def labels(self, tasks: Sequence[ArenaTask]) -> tuple[str, ...]:
        """Return the selectors that have results in any of some tasks, in order.

        Args:
            tasks: The tasks.
        """
        schemes = [kept.schemes for task in tasks if (kept := self.trials(task)) is not None]
        return tuple(dict.fromkeys(label for group in schemes for label in group))


def _unfit(experiment: Experiment) -> dict[str, str]:
    """Return why selectors cannot run in an experiment, by label."""
    check = checker(experiment)
    reasons = {}
    for variant in experiment.selectors:
        try:
            check(variant)
        except TurnoutError as error:
            reasons[variant.label] = str(error)
    return reasons
