"""The arena's tasks, the results that are kept of them, and the runs that are still missing."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.files import DataMissing
from turnout.core.names import nearest
from turnout.experiment import Experiment, Variant
from turnout.experiment.codec import decode
from turnout.experiment.sweep import read_world, usual_settings
from turnout.results.files import slug
from turnout.studies.recommendation import unfit
from turnout.studies.results_file import ResultsFile, by_seeds
from turnout.studies.trials import Trials, gathered
from turnout.worlds import FixedDeadline, RoundPolicy

#: A quick look has this share of the rounds.
_QUICK = 4

#: The groups of tasks, in order.
GROUPS = ("first", "harder", "overlap", "fedbuff", "energy", "tuning")


@dataclass(frozen=True)
class ArenaTask:
    """A world, a policy, data, a partition, a model and a target.

    Args:
        label: The name of the task.
        title: A title for people.
        what: What is special about the task, in a sentence or two.
        table: The experiment as plain data, without selectors and seeds.
        group: "first" for the nine tasks that the arena began with, "harder" for later ones,
            "overlap" for the first nine with buffers, "fedbuff" for the schedules that FedBuff's
            paper compares, "energy" for batteries, and "tuning" for those that never report.
        is_tuned: Whether parameters were chosen on the task, with seeds from 100 on.
        plain: The label of the same task without buffers; empty for all other groups.
    """

    label: str
    title: str
    what: str
    table: Mapping[str, Any]
    group: str = "first"
    is_tuned: bool = False
    plain: str = ""

    @property
    def reports(self) -> bool:
        """Whether nothing was tuned on the task."""
        return not self.is_tuned and self.group != "tuning"

    @property
    def has_energy(self) -> bool:
        """Whether its world counts energy."""
        world = self.table["world"]
        return isinstance(world, Mapping) and "energy" in world

    @property
    def target(self) -> float:
        """The accuracy to which runs are timed."""
        return float(self.table["training"]["target_accuracy"])

    def experiment(
        self, selectors: Sequence[Any], seeds: Sequence[int], *, is_quick: bool = False
    ) -> Experiment:
        """Return the experiment of some selectors.

        Args:
            selectors: As ``Experiment`` takes them.
            seeds: The seeds.
            is_quick: Whether to run only a quarter of the rounds.
        """
        table = dict(self.table)
        if is_quick:
            table["n_rounds"] //= _QUICK
        return Experiment(selectors, name=f"arena: {self.label}", seeds=list(seeds), **table)


@lru_cache(maxsize=1)
def _all_tasks() -> tuple[ArenaTask, ...]:
    file = resources.files("turnout.studies").joinpath("arena_tasks.toml")
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    base = content["base"]
    tasks = []
    for entry in content["tasks"]:
        own = entry.pop("experiment")
        training = base["training"] | own.get("training", {})
        tasks.append(ArenaTask(table={**base, **own, "training": training}, **entry))
    overlap = content["overlap"]
    tasks += [
        _buffered(task, overlap["at_work"][task.label], overlap["size"])
        for task in tasks
        if task.label in overlap["at_work"]
    ]
    return tuple(tasks)


def _buffered(task: ArenaTask, concurrency: int, share: float) -> ArenaTask:
    """Return a task with rounds that overlap, and as many answers and evaluations as before."""
    table, training = task.table, task.table["training"]
    policy = decode(table.get("policy", FixedDeadline()), RoundPolicy, ("policy",))
    size = max(1, int(share * concurrency))
    factor = table["cohort_size"] / size
    every = {
        name: max(1, round(factor * training[name]))
        for name in ("evaluate_every", "evaluate_clients_every")
    }
    own = {
        "world": _by_place(table["world"], policy.select_size(table["cohort_size"])),
        "n_rounds": round(table["n_rounds"] * factor),
        "schedule": {"kind": "buffered", "size": size, "concurrency": concurrency},
        "policy": FixedDeadline(policy.deadline()),
        "training": {**training, **every},
    }
    what = f"{concurrency} clients are at work, and {size} replies make a new model."
    label, title = f"{task.label}, buffered", f"{task.title}, in rounds that overlap"
    return ArenaTask(label, title, what, {**table, **own}, "overlap", task.is_tuned, task.label)


def _by_place(world: Any, n_places: int) -> Any:
    """Return a world that changes after as many places as before, if a choice has one and not n.

    A world counts choices. ``at`` is a choice, and ``round_s`` the seconds from one to the next.
    """
    if not isinstance(world, Mapping):
        return world
    own = {name: _by_place(value, n_places) for name, value in world.items()}
    if "round_s" in own:
        own["round_s"] /= n_places
    if "at" in own:
        own["at"] = (n_places * np.asarray(own["at"])).tolist()
    return own


def task_labels() -> tuple[str, ...]:
    """Return the labels of all tasks, in order."""
    return tuple(task.label for task in _all_tasks())


def tasks_in(*groups: str) -> tuple[ArenaTask, ...]:
    """Return the tasks of some groups, in the order of the arena.

    Args:
        groups: Some of ``GROUPS``.
    """
    return tuple(task for task in _all_tasks() if task.group in groups)


def tasks_named(labels: Iterable[str] = ()) -> tuple[ArenaTask, ...]:
    """Return tasks by their labels, in the order of the arena; by default the first and the harder.

    Args:
        labels: Some of ``task_labels()``, of ``GROUPS``, or TOML files of worlds, which come last.

    Raises:
        InvalidInput: There is no such task; the message suggests the nearest label.
    """
    wanted = tuple(labels)
    files = [label for label in wanted if label.endswith(".toml")]
    names = (*task_labels(), *GROUPS)
    for label in (label for label in wanted if label not in files):
        if label not in names:
            raise InvalidInput(f"unknown task {label!r}.{nearest(label, names)}", field="task")
    if not wanted:
        return tasks_in("first", "harder")
    known = [task for task in _all_tasks() if {task.label, task.group} & set(wanted)]
    return (*known, *(_own_world(Path(file)) for file in dict.fromkeys(files)))


def _own_world(file: Path) -> ArenaTask:
    """Return the first task in another world, with the sizes and the policy that its file has."""
    table = {**_all_tasks()[0].table, "world": read_world(file)}
    table |= {name: value for name, value in usual_settings(file).items() if name != "n_rounds"}
    what = f"The world of {file.name}. Data, model and target are those of the first task."
    return ArenaTask(file.stem, f"Your world {file.stem}", what, table)


#: The oracle whose lead over the baseline is what can be won, and all oracles, as the command
#: takes them. They are shown beside the selectors and not ranked.
ORACLE = "oracle"
ORACLES: Mapping[str, str] = {
    ORACLE: f"{ORACLE}=turnout.studies.oracle:Oracle",
    "unfair-oracle": "unfair-oracle=turnout.studies.oracle:Oracle:floor=0.0,share=0.0",
}

#: The curves that are kept of each run: accuracies are compared at equal times too.
CURVES = ("time", "accuracy")


class Measures(NamedTuple):
    """Names of the measures that are kept of a task's runs, see ``turnout.studies.measures``.

    Results of older versions lack ``least_answered`` and the curves.
    """

    time: str
    rounds: str
    accuracy: str = "final-accuracy"
    worst_tenth: str = "worst-accuracy"
    least_share: str = "least-share"
    least_answered: str = "least-answered"
    wasted: str = "wasted-share"
    length: str = "total-time"

    @classmethod
    def of(cls, task: ArenaTask) -> Measures:
        """Return the measures of a task.

        Args:
            task: The task. Times are measured to its target.
        """
        return cls(f"time-to-{task.target:g}", f"rounds-to-{task.target:g}")

    @classmethod
    def by_energy(cls, task: ArenaTask) -> Measures:
        """Return the measures of a task with joules for seconds.

        Args:
            task: The task. Its world counts energy.
        """
        return cls.of(task)._replace(time=f"energy-to-{task.target:g}", length="energy-j")


#: What is kept besides of tasks whose world counts energy.
ENERGY = ("energy-per-reply-j", "most-energy-j")


class TaskPlan(NamedTuple):
    """Runs of a task that are still missing.

    Attributes:
        task: The task.
        experiment: Selectors that lack the same seeds; None if none of them can run.
        folder: The run folder.
        left_out: The reason why each of the other selectors cannot run, by label.
        missing_data: Which data the task needs, and how to get them; empty if they are there.
    """

    task: ArenaTask
    experiment: Experiment | None
    folder: Path
    left_out: Mapping[str, str]
    missing_data: str = ""


class Arena:
    """The kept results of all tasks.

    Args:
        file: The results; None = no results yet.
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
    ) -> list[TaskPlan]:
        """Return the runs that the results lack, task by task.

        Selectors that lack the same seeds share a plan.

        Args:
            tasks: The tasks.
            variants: The selectors.
            seeds: The seeds.
            out: Folder of the run folders.
            is_quick: Whether runs are shortened.

        Raises:
            ResultsError: The kept results follow another protocol, or belong to a selector with the
                same label and other parameters.
        """
        by_label = {variant.label: variant for variant in variants}
        plans = []
        for task in tasks:
            self.file.check(
                task.label, 1, task.experiment(variants, seeds, is_quick=is_quick).table()
            )
            groups = by_seeds(self.file.missing(task.label, 1, by_label, seeds))
            for lacking, labels in sorted(groups.items()):
                own = [by_label[label] for label in labels]
                whole = task.experiment(own, lacking, is_quick=is_quick)
                left_out: dict[str, str] = {}
                missing_data = ""
                try:
                    left_out = unfit(whole)
                except DataMissing as error:
                    missing_data = str(error)
                fitting = [variant for variant in own if variant.label not in left_out]
                experiment = None
                if fitting and not missing_data:
                    experiment = task.experiment(fitting, lacking, is_quick=is_quick)
                folder = out / slug(task.label)
                plans.append(TaskPlan(task, experiment, folder, left_out, missing_data))
        return plans

    def keep(
        self,
        task: ArenaTask,
        experiment: Experiment,
        folder: Path,
        *,
        curves: Sequence[str] = CURVES,
    ) -> None:
        """Add the complete runs of a task to the kept results.

        Args:
            task: The task.
            experiment: The experiment that was run.
            folder: Its run folder.
            curves: The curves that are kept.
        """
        kept = self.trials(task)
        before = [] if kept is None else list(kept.experiment["selectors"])
        energy = (*Measures.by_energy(task), *ENERGY) if task.has_energy else ()
        names = [tuple(dict.fromkeys((*Measures.of(task), *energy))), curves]
        found = gathered(experiment, folder, experiment.labels, lambda _: names, skip_bad=True)
        schemes = {
            label: new.like(kept.schemes[label]) if kept and label in kept.schemes else new
            for label, new in found.schemes.items()
        }
        known = {selector["label"] for selector in before}
        new = [one for one in found.experiment["selectors"] if one["label"] not in known]
        table = {**found.experiment, "selectors": before + new}
        self.file.update(task.label, 1, Trials(table, schemes, {}))

    def trials(self, task: ArenaTask) -> Trials | None:
        """Return the kept results of a task; None if there are none.

        Args:
            task: The task.
        """
        return self.file.parts.get((task.label, 1))

    def labels(self, tasks: Sequence[ArenaTask]) -> tuple[str, ...]:
        """Return the selectors that have results in at least one of some tasks, in order.

        Args:
            tasks: The tasks.
        """
        schemes = [kept.schemes for task in tasks if (kept := self.trials(task)) is not None]
        return tuple(dict.fromkeys(label for group in schemes for label in group))
