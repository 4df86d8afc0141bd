"""Measure how long a round takes, select + observe, and a floor in the same run.

The floor is one ``rng.random(n)`` plus one ``np.argpartition`` of n floats: what any ranking of all
clients costs at least. Selectors are measured in their slowest state: every client has been seen
(a few hundred for learners on features).
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.types import Array, BoolArray, Outcome, RoundContext

N_FEATURES = 64

#: What times are read from; ``time.process_time`` counts little of what else the machine does.
clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True, slots=True)
class Speed:
    """A measurement.

    Args:
        n_clients: Number of clients.
        round_s: Median seconds of select + observe.
        floor_s: Seconds of the floor, measured before and after.
        bytes_per_client: Bytes of learned state for each client.

    """

    n_clients: int
    round_s: float
    floor_s: float
    bytes_per_client: float

    @property
    def ratio(self) -> float:
        """Time of a round divided by the floor."""
        return self.round_s / self.floor_s


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of an action. A first call does not count.

    Args:
        action: What is timed.
        repeats: How many calls count.

    """
    action()
    times = []
    for _ in range(repeats):
        start = clock()
        action()
        times.append(clock() - start)
    return statistics.median(times)


def floor(n_clients: int, cohort_size: int, repeats: int) -> float:
    """Return the median seconds of one random vector and one partition of it.

    Args:
        n_clients: Length of the vector.
        cohort_size: Where it is partitioned.
        repeats: How many calls count.

    """
    rng = np.random.default_rng(0)
    kth = n_clients - min(cohort_size, n_clients)
    return seconds(lambda: np.argpartition(rng.random(n_clients), kth), repeats)


def measure(selector: Selector, n_clients: int, cohort_size: int = 100, repeats: int = 15) -> Speed:
    """Time rounds of a selector with all clients available.

    Args:
        selector: The selector. Its state is replaced.
        n_clients: Number of clients.
        cohort_size: How many clients a round chooses.
        repeats: How many rounds count.

    """
    gc.collect()
    before = floor(n_clients, cohort_size, repeats)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the default rate of rbcs-f is too high here
        selector.prepare(n_clients, seed=0)
        columns = warm_columns(selector, n_clients)
        everyone, tenth = np.ones(n_clients, dtype=np.bool_), np.arange(n_clients) % 10
        # All clients take part in ten large cohorts; learners on features see ten small ones.
        is_small = "features" in selector.needs_columns
        size = cohort_size if is_small else max(1, n_clients // 10)
        for t in range(10):
            play_round(selector, t, size, everyone if is_small else tenth == t, columns)
        rounds = range(20, 21 + repeats)
        times = [play_round(selector, t, cohort_size, everyone, columns) for t in rounds]
    around = (before + floor(n_clients, cohort_size, repeats)) / 2
    state = selector.state().values()
    per_client = sum(array.nbytes for array in state if n_clients in array.shape) / n_clients
    return Speed(n_clients, statistics.median(times[1:]), around, per_client)


def warm_columns(selector: Selector, n_clients: int) -> dict[str, Array]:
    """Return random values of the columns that the selector declares.

    Args:
        selector: The selector.
        n_clients: Number of clients.

    """
    rng = np.random.default_rng(1)
    makers: dict[str, Callable[[], Array]] = {
        "num_samples": lambda: rng.integers(10, 1_000, n_clients).astype(np.float64),
        "features": lambda: rng.integers(0, 2, (n_clients, N_FEATURES)).astype(np.float64),
        "context": lambda: rng.uniform(0.5, 10.0, (n_clients, 3)),
        "expected_duration": lambda: rng.uniform(0.5, 30.0, n_clients),
        "success_rate": lambda: rng.random(n_clients),
        "availability_forecast": lambda: rng.random(n_clients),
        "label_counts": lambda: rng.integers(0, 50, (n_clients, 10)).astype(np.float64),
    }
    wanted = selector.needs_columns | selector.uses_columns
    return {name: make() for name, make in makers.items() if name in wanted}


def play_round(
    selector: Selector, t: int, size: int, available: BoolArray, columns: dict[str, Array]
) -> float:
    """Play a round with random outcomes; return the seconds of poll, select and observe alone.

    Args:
        selector: The selector.
        t: Number of the round.
        size: How many clients to choose.
        available: (n,) which clients can be chosen.
        columns: What is known of the clients before the round.

    """
    rng = np.random.default_rng(t)
    ctx = RoundContext(t, size, available, columns=columns)
    start = clock()
    asked = selector.poll(ctx, stream(0, Purpose.POLL, t))
    taken = clock() - start
    if asked is not None:
        ctx = ctx.with_answers(asked, rng.random(asked.size))
    start = clock()
    selection = selector.select(ctx, stream(0, Purpose.SELECT, t))
    taken += clock() - start
    s = selection.clients.size
    sizes = selector.metric_sizes
    metrics = {
        name: rng.random((s, sizes[name]) if name in sizes else s)
        for name in sorted(selector.needs_metrics)
    }
    status = (rng.random(s) < 0.3).astype(np.int8)
    outcome = Outcome(status, rng.uniform(1.0, 30.0, s), metrics)
    start = clock()
    selector.observe(selection, outcome)
    return taken + clock() - start
