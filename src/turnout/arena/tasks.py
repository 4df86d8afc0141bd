"""The tasks of the arena: each a world, a policy, data, a partition, a model and a target."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from turnout.errors import InvalidInput
from turnout.experiment import Experiment
from turnout.names import nearest

#: A quick look has this share of the rounds.
_QUICK = 4


@dataclass(frozen=True)
class ArenaTask:
    """One of the nine.

    Args:
        label: By which it is asked for.
        title: For people.
        what: What is special about it, in a sentence or two.
        table: The experiment as plain data, without selectors and seeds.
    """

    label: str
    title: str
    what: str
    table: Mapping[str, Any]

    @property
    def target(self) -> float:
        """The accuracy that runs are timed to."""
        return float(self.table["training"]["target_accuracy"])

    def experiment(
        self, selectors: Sequence[Any], seeds: Sequence[int], *, is_quick: bool = False
    ) -> Experiment:
        """Return the experiment of some selectors.

        Args:
            selectors: As ``Experiment`` takes them.
            seeds: The seeds.
            is_quick: Whether a quarter of the rounds is enough.
        """
        table = dict(self.table)
        if is_quick:
            table["n_rounds"] //= _QUICK
        return Experiment(selectors, name=f"arena: {self.label}", seeds=list(seeds), **table)


@lru_cache(maxsize=1)
def _all_tasks() -> tuple[ArenaTask, ...]:
    text = resources.files("turnout.arena").joinpath("tasks.toml").read_text(encoding="utf-8")
    content = tomllib.loads(text)
    base = content["base"]
    tasks = []
    for entry in content["tasks"]:
        own = entry.pop("experiment")
        training = base["training"] | own.get("training", {})
        tasks.append(ArenaTask(table={**base, **own, "training": training}, **entry))
    return tuple(tasks)


def task_labels() -> tuple[str, ...]:
    """Return the labels of all tasks, in order."""
    return tuple(task.label for task in _all_tasks())


def tasks_named(labels: Iterable[str] = ()) -> tuple[ArenaTask, ...]:
    """Return tasks by their labels, in the order of the arena; all if none is named.

    Args:
        labels: Some of ``task_labels()``.

    Raises:
        InvalidInput: There is no such task; the message has the nearest label.
    """
    wanted = tuple(labels)
    for label in wanted:
        if label not in task_labels():
            raise InvalidInput(
                f"unknown task {label!r}.{nearest(label, task_labels())}", field="task"
            )
    return tuple(task for task in _all_tasks() if not wanted or task.label in wanted)
