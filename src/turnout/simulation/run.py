"""Whole runs of a selector in a simulated world."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from turnout.bounds import Bounds
from turnout.environments import Environment, named_world
from turnout.errors import InvalidInput
from turnout.policies import RoundPolicy
from turnout.registry import make
from turnout.runs.columns import Collector
from turnout.runs.run import Run
from turnout.selector import Selector
from turnout.simulation.loop import RoundRecord, rounds
from turnout.types import BoolArray


def simulate(
    selector: Selector | str,
    environment: Environment | str,
    *,
    cohort_size: int | None = None,
    n_rounds: int | None = None,
    seed: int | None = None,
    policy: RoundPolicy | None = None,
    bounds: Bounds | None = None,
    keep_fates: bool = False,
) -> Run:
    """Run a selector from its first round and collect everything.

    Args:
        selector: The selector, or its name.
        environment: Who is available, who fails, how long it takes; or the name of a world, as on
            the command line.
        cohort_size: Answers wanted per round; a world with a name has its usual ones.
        n_rounds: Rounds to run; a world with a name has its usual ones.
        seed: Of the selector's draws, and of a world with a name; the environment's by default.
        policy: How a round ends; without one the server waits for all answers.
        bounds: What the selector is told of what clients claim; without them everything.
        keep_fates: Also keep what would have happened to everyone, n bytes a round; ``Run.regret``
            needs it.

    Raises:
        InvalidInput: A name is unknown, or a size is missing.

    >>> from turnout.environments import e3cs_world
    >>> run = simulate("random", e3cs_world(seed=1), cohort_size=20, n_rounds=5)
    >>> run.n_rounds, run.clients.size
    (5, 100)
    >>> simulate("e3cs", "e3cs", n_rounds=5).n_clients
    100

    """
    chooser = make(selector) if isinstance(selector, str) else selector
    if isinstance(environment, str):
        named = named_world(environment)
        cohort_size = named.cohort_size if cohort_size is None else cohort_size
        n_rounds = named.n_rounds if n_rounds is None else n_rounds
    world = environment_of(environment, seed)
    if cohort_size is None or n_rounds is None:
        missing = "cohort_size" if cohort_size is None else "n_rounds"
        raise InvalidInput(
            f"{missing} is missing: only a world with a name has a usual one.", field=missing
        )
    records = rounds(
        chooser,
        world,
        cohort_size=cohort_size,
        n_rounds=n_rounds,
        seed=seed,
        policy=policy,
        bounds=bounds,
    )
    return collect(records, world.n_clients, cohort_size, keep_fates=keep_fates)


def environment_of(environment: Environment | str, seed: int | None) -> Environment:
    """Return an environment that may be given by its name.

    Args:
        environment: The environment, or the name of a world.
        seed: Of a world with a name; None = 0.

    Raises:
        InvalidInput: There is no world of that name.
    """
    if isinstance(environment, str):
        return dataclasses.replace(named_world(environment).example, seed=seed or 0)
    return environment


def collect(
    records: Iterable[RoundRecord], n_clients: int, cohort_size: int, *, keep_fates: bool = False
) -> Run:
    """Collect records of rounds into a run.

    Args:
        records: The rounds, one after the other.
        n_clients: Size of the federation.
        cohort_size: Answers wanted per round.
        keep_fates: Also keep what would have happened to everyone, n bytes a round.

    """
    collector = Collector()
    fates: list[BoolArray] = []
    for record in records:
        collector.add(record.row)
        if keep_fates:
            fates.append(record.in_time)
    in_time = np.array(fates, dtype=np.bool_).reshape(-1, n_clients) if keep_fates else None
    return Run.from_columns(n_clients, cohort_size, collector.columns(), in_time)
