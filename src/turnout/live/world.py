"""Virtual worlds for simulations with a framework: fates and durations without any sleeping.

The simulation of a framework keeps every node online and has no clock but the machine's. With a
world, the environment decides who is available, who crashes and how long everyone takes. The server
knows before it sends anything how the round will end, so only clients that complete get work; the
others cost nothing. Reports of clients are real, and so are errors that they raise.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from turnout.core import require
from turnout.core.arrays import check_column
from turnout.core.errors import InvalidInput
from turnout.core.roster import Roster
from turnout.core.types import Array, FloatArray, IntArray, RoundContext
from turnout.experiment.config import class_names, world_table
from turnout.worlds import Environment, Fate, History


class VirtualWorld:
    """Plays an environment to a session, round by round, as ``turnout.simulate`` would.

    Clients are matched by stable id. Only chosen clients that answer in virtual time get work, so
    no client sleeps or trains needlessly.

    Args:
        environment: Decides who is available, how long clients take and whether they fail.
        ids: The stable ids of the clients, in the order of the environment; None takes 0 to n - 1,
            the partition ids of Flower's simulation.
        columns: Facts about the clients that replace what the environment would make up, such as
            the real ``num_samples``.
        synthetic_losses: Whether the selector sees the environment's losses in place of the
            reported ones.

    >>> from turnout.worlds import e3cs_world
    >>> world = VirtualWorld(e3cs_world(n_clients=3, seed=1))
    >>> world.ids, world.fate(0).survived.shape
    ((0, 1, 2), (3,))
    """

    def __init__(
        self,
        environment: Environment,
        ids: Iterable[str | int] | None = None,
        *,
        columns: Mapping[str, Array] | None = None,
        synthetic_losses: bool = False,
    ) -> None:
        if not isinstance(environment, Environment):
            raise InvalidInput(
                "environment must be a turnout.worlds.Environment, got "
                f"{type(environment).__name__}; e3cs_world(n_clients) makes one.",
                field="environment",
            )
        n = environment.n_clients
        #: The stable ids, in the order of the environment's clients; they become the roster.
        self.ids = _checked_ids(range(n) if ids is None else ids, n)
        self.environment = environment
        self.columns = {name: np.asarray(column) for name, column in (columns or {}).items()}
        for name, column in self.columns.items():
            check_column(name, column, n)
        self.synthetic_losses = require.boolean("synthetic_losses", synthetic_losses)
        self.history = History.fresh(n)

    @property
    def world_id(self) -> str:
        """12 hexadecimal digits; worlds with the same ones compare, whatever their seeds."""
        world = [self.environment.n_clients, self.synthetic_losses, self.describe()]
        return hashlib.sha256(json.dumps(world, sort_keys=True).encode()).hexdigest()[:12]

    def context(
        self, round: int, cohort_size: int, columns: Collection[str], deadline: float
    ) -> RoundContext:
        """Return what the server knows before it chooses; only the columns asked for."""
        asked = frozenset(columns)
        unknown = asked - self.columns.keys()
        ctx = self.environment.context(
            round, cohort_size, self.history, columns=unknown, deadline=deadline
        )
        known = {name: column for name, column in self.columns.items() if name in asked}
        return dataclasses.replace(ctx, columns={**ctx.columns, **known})

    def fate(self, round: int) -> Fate:
        """Return what would happen to every client."""
        return self.environment.fate(round, self.history)

    def polled_loss(self, round: int, poll_data: Literal["all", "mini-batch"]) -> FloatArray | None:
        """Return the environment's answers to a poll, or None: clients answer."""
        return self.environment.polled_loss(round, poll_data) if self.synthetic_losses else None

    def record(
        self, chosen: IntArray, round: int = 0, spent: FloatArray | None = None
    ) -> FloatArray | None:
        """Remember who was chosen; once per round, after it.

        Return (s,) the joules that they spent, None in a world without batteries.
        """
        worked = np.zeros(chosen.size) if spent is None else spent
        return self.environment.record(round, self.history, chosen, worked)

    def state(self) -> dict[str, Array]:
        """Return what the world remembers, for a checkpoint."""
        return self.history.state()

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Continue from a checkpoint."""
        self.history.load_state(state)

    def describe(self) -> dict[str, Any]:
        """Return the world as the run folder keeps it."""
        return world_table(self.environment)

    @property
    def classes(self) -> IntArray:
        """(n,) the class of each client, for the report."""
        return self.environment.classes

    @property
    def class_names(self) -> dict[str, Any] | None:
        """The names of the classes in the report, or None if there is only one."""
        return class_names(self.environment)


#: The former base class of every world.
World = VirtualWorld


def _checked_ids(ids: Iterable[str | int], n_clients: int) -> tuple[str | int, ...]:
    names = tuple(ids)
    if len(names) != n_clients:
        raise InvalidInput(
            f"ids must name the {n_clients} clients of the environment, got {len(names)}; "
            f"make the environment with n_clients={len(names)} or name all of them.",
            field="ids",
        )
    for name in names:
        if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
            raise InvalidInput(f"ids must be texts or integers, got {name!r}.", field="ids")
    Roster(names)  # refuses one that is there twice
    return names
