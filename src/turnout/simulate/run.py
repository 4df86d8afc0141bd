"""Whole runs of a selector in a simulated world."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from turnout.bounds import Bounds
from turnout.environments import Environment
from turnout.policies import RoundPolicy
from turnout.registry import make
from turnout.runs.columns import Collector
from turnout.runs.run import Run
from turnout.selector import Selector
from turnout.simulate.loop import RoundRecord, rounds
from turnout.types import BoolArray

__all__ = ["collect", "simulate"]


def simulate(
    selector: Selector | str,
    environment: Environment,
    *,
    cohort_size: int,
    n_rounds: int,
    seed: int | None = None,
    policy: RoundPolicy | None = None,
    bounds: Bounds | None = None,
    keep_fates: bool = False,
) -> Run:
    """Run a selector from its first round and collect everything.

    Args:
        selector: The selector, or its name.
        environment: Who is available, who fails, how long it takes.
        cohort_size: Answers wanted per round.
        n_rounds: Rounds to run.
        seed: Of the selector's draws; the environment's by default.
        policy: How a round ends; without one the server waits for all answers.
        bounds: What the selector is told of what clients claim; without them everything.
        keep_fates: Also keep what would have happened to everyone, n bytes a round; ``Run.regret``
            needs it.

    >>> from turnout.environments import e3cs_world
    >>> run = simulate("random", e3cs_world(seed=1), cohort_size=20, n_rounds=5)
    >>> run.n_rounds, run.clients.size
    (5, 100)

    """
    chooser = make(selector) if isinstance(selector, str) else selector
    records = rounds(
        chooser,
        environment,
        cohort_size=cohort_size,
        n_rounds=n_rounds,
        seed=seed,
        policy=policy,
        bounds=bounds,
    )
    return collect(records, environment.n_clients, cohort_size, keep_fates=keep_fates)


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
