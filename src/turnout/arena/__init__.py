"""The arena: the same nine tasks for every selector, and what each of them shows there."""

from turnout.arena.results import Arena
from turnout.arena.tasks import ArenaTask, tasks_named

__all__ = ["Arena", "ArenaTask", "tasks_named"]
