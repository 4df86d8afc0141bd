"""Whole runs of a selector in a simulated world."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.core.bounds import Bounds
from turnout.core.errors import InvalidInput
from turnout.core.registry import make
from turnout.core.selector import Selector
from turnout.core.types import BoolArray
from turnout.experiment.loop import Played, played, with_callbacks
from turnout.results.run import Collector, Run
from turnout.worlds import Environment, RoundPolicy, WorkSchedule, named_world

if TYPE_CHECKING:
    from turnout.results.callbacks import Callback
    from turnout.training import Training


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
    schedule: WorkSchedule | None = None,
) -> Run:
    """Run a selector from its first round and collect everything.

    Args:
        selector: The selector, or its name.
        environment: Which clients are available, which fail and how long they take; or the name of
            a world, as on the command line.
        cohort_size: Answers wanted per round. A named world has a default.
        n_rounds: Rounds to run. A named world has a default.
        seed: The seed of the draws, and of a named world. Default: that of the environment.
        policy: How a round ends; without one the server waits for all answers.
        bounds: Limits on the claims of clients; without them the selector gets every claim as it
            is.
        keep_fates: Also keep what would have happened to all clients, n bytes a round;
            ``Run.regret`` needs it.
        schedule: When clients get work and when a round ends; without one, rounds do not overlap.

    Raises:
        InvalidInput: A name is unknown, or a size is missing.

    >>> from turnout.worlds import e3cs_world
    >>> run = simulate("random", e3cs_world(seed=1), cohort_size=20, n_rounds=5)
    >>> run.n_rounds, run.clients.size
    (5, 100)
    >>> simulate("e3cs", "e3cs", n_rounds=5).n_clients
    100

    """
    chooser = make(selector) if isinstance(selector, str) else selector
    if schedule is not None:
        cohort_size = schedule.answers(cohort_size)
    if isinstance(environment, str):
        named = named_world(environment)
        cohort_size = named.cohort_size if cohort_size is None else cohort_size
        n_rounds = named.n_rounds if n_rounds is None else n_rounds
    sizes: dict[str, Any] = {"cohort_size": cohort_size, "n_rounds": n_rounds}
    for name, size in sizes.items():
        if size is None:
            raise InvalidInput(f"{name} is missing: only a named world has a default.", field=name)
    world = environment_of(environment, seed)
    records = played(
        chooser, world, schedule=schedule, **sizes, seed=seed, policy=policy, bounds=bounds
    )
    return collect(records, world.n_clients, sizes["cohort_size"], keep_fates=keep_fates)


def environment_of(environment: Environment | str, seed: int | None) -> Environment:
    """Return an environment that may be given by its name.

    Args:
        environment: The environment, or the name of a world.
        seed: The seed of a named world; None = 0.

    Raises:
        InvalidInput: There is no world of that name.
    """
    if isinstance(environment, str):
        return dataclasses.replace(named_world(environment).example, seed=seed or 0)
    return environment


def collect(
    records: Iterable[Played], n_clients: int, cohort_size: int, *, keep_fates: bool = False
) -> Run:
    """Collect records of rounds into a run.

    Args:
        records: The rounds, one after the other.
        n_clients: Size of the federation.
        cohort_size: Answers wanted per round.
        keep_fates: Also keep what would have happened to all clients, n bytes a round.

    """
    collector = Collector()
    fates: list[BoolArray] = []
    for record in records:
        collector.add(record.row)
        if keep_fates:
            if record.in_time is None:
                raise InvalidInput(
                    "keep_fates must be False where rounds overlap: every choice of a round meets "
                    "fates of its own.",
                    field="keep_fates",
                )
            fates.append(record.in_time)
    in_time = np.array(fates, dtype=np.bool_).reshape(-1, n_clients) if keep_fates else None
    return Run.from_columns(n_clients, cohort_size, collector.columns(), in_time)


# --------------------------------------------------------------------------------------------------
# Train a model in a simulated federation: the round loop with real clients' work.
# --------------------------------------------------------------------------------------------------


def train(
    selector: Selector | str,
    training: Training,
    environment: Environment | str,
    *,
    cohort_size: int,
    n_rounds: int,
    seed: int | None = None,
    policy: RoundPolicy | None = None,
    callbacks: Sequence[Callback] = (),
    keep_fates: bool = False,
    schedule: WorkSchedule | None = None,
) -> Run:
    """Train a model with a selector and collect everything.

    To look at the model on the way, or to stop by a rule of your own, iterate over
    ``rounds(..., participants=Federation(training, n_clients, seed))`` instead.

    Args:
        selector: The selector, or its name.
        training: The data, the model, the local work and the aggregation.
        environment: Which clients are available, which fail and how long they take; or the name of
            a world, as on the command line.
        cohort_size: How many clients to choose, at most the number of clients.
        n_rounds: The number of rounds.
        seed: Fixes selection, data and first model; None takes that of the environment.
        policy: When a round ends; None waits for all answers.
        callbacks: They get the numbers of every round.
        keep_fates: Whether to keep which clients would have answered in time, for the regret.
        schedule: When clients get work and when a round ends; without one, rounds do not overlap.

    >>> from turnout.worlds import e3cs_world
    >>> from turnout.training import Training
    >>> run = train("e3cs", Training(), e3cs_world(), cohort_size=20, n_rounds=3)
    >>> run.accuracy.shape
    (3,)
    """
    from turnout.training.federation import federation_of  # heavier than a run without training

    chooser = make(selector) if isinstance(selector, str) else selector
    world = environment_of(environment, seed)
    number = world.seed if seed is None else seed
    records = played(
        chooser,
        world,
        schedule=schedule,
        cohort_size=cohort_size,
        n_rounds=n_rounds,
        seed=number,
        policy=policy,
        participants=federation_of(training, world.n_clients, number),
    )
    settings = {"selector": repr(chooser), "training": repr(training), "seed": number}
    with contextlib.closing(with_callbacks(records, callbacks, settings)) as all_records:
        return collect(all_records, world.n_clients, cohort_size, keep_fates=keep_fates)
