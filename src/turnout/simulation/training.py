"""Train a model in a simulated federation: the round loop with real clients' work."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnout.environments import Environment
from turnout.policies import RoundPolicy
from turnout.registry import make
from turnout.runs.run import Run
from turnout.selector import Selector
from turnout.simulation.loop import RoundRecord, rounds
from turnout.simulation.run import collect, environment_of
from turnout.types import Status

if TYPE_CHECKING:
    from turnout.training import Training
    from turnout.training.callbacks import Callback


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
) -> Run:
    """Train a model with a selector and collect everything.

    To look at the model on the way, or to stop by a rule of your own, iterate over
    ``rounds(..., participants=Federation(training, n_clients, seed))`` instead.

    Args:
        selector: Who chooses: a selector, or its name.
        training: The data, the model, the local work and the aggregation.
        environment: Who is available, how long clients take and whether they fail; or the name of a
            world, as on the command line.
        cohort_size: How many clients to choose, at most the number of clients.
        n_rounds: The number of rounds.
        seed: Fixes selection, data and first model; None takes that of the environment.
        policy: When a round ends; None waits for everyone.
        callbacks: They get the numbers of every round.
        keep_fates: Whether to keep who would have answered in time, for the regret.

    >>> from turnout.environments import e3cs_world
    >>> from turnout.training import Training
    >>> run = train("e3cs", Training(), e3cs_world(), cohort_size=20, n_rounds=3)
    >>> run.accuracy.shape
    (3,)
    """
    from turnout.training import Federation  # heavier than a run without training should be

    chooser = make(selector) if isinstance(selector, str) else selector
    world = environment_of(environment, seed)
    number = world.seed if seed is None else seed
    records = rounds(
        chooser,
        world,
        cohort_size=cohort_size,
        n_rounds=n_rounds,
        seed=number,
        policy=policy,
        participants=Federation(training, world.n_clients, number),
    )
    settings = {"selector": repr(chooser), "training": repr(training), "seed": number}
    with contextlib.closing(told(records, callbacks, settings)) as all_records:
        return collect(all_records, world.n_clients, cohort_size, keep_fates=keep_fates)


def told(
    records: Iterator[RoundRecord],
    callbacks: Sequence[Callback],
    settings: Mapping[str, Any],
    clock_s: float = 0.0,
) -> Generator[RoundRecord, None, None]:
    """Tell callbacks of every record on its way; each that was started is also ended.

    ``clock_s`` is the virtual time before the first of these records.
    """
    if not callbacks:
        yield from records
        return
    with contextlib.ExitStack() as ended:
        for callback in callbacks:
            callback.start(settings)
            ended.callback(callback.end)
        for record in records:
            clock_s += record.length_s
            values = {**_reported(record), "clock_s": clock_s}
            for callback in callbacks:
                callback.round(record.round, values)
            yield record


def _reported(record: RoundRecord) -> dict[str, float]:
    return {
        **record.measured,
        "available": float(record.context.pool.size),
        "chosen": float(record.selection.clients.size),
        "completed": float((record.outcome.status == Status.COMPLETED).sum()),
        "length_s": record.length_s,
    }
