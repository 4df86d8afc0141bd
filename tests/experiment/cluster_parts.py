"""What workers of a cluster import in the tests: small, so that they start fast."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.selector import Selector
from turnout.core.types import Outcome, RoundContext, Selection
from turnout.data import Dataset, Digits, Source
from turnout.experiment import Experiment, run_experiment

#: The variable that is set on the machine with the data.
HERE = "TURNOUT_TEST_HAS_DATA"

#: Rounds of a grid that lives long enough to be killed.
KILLED_ROUNDS = 6000


def small(*selectors: str, **changes: Any) -> Experiment:
    settings: dict[str, Any] = {"world": "e3cs", "n_rounds": 60, "seeds": 2, "n_clients": 30}
    return Experiment(selectors, "grid", cohort_size=5, **(settings | changes))


class Mortal(Selector):
    """Chooses at random; kills its process in a round, unless a file says that it has done so.

    Args:
        marker: The file; empty = in every process.
        round: The round.
    """

    def __init__(self, *, marker: str = "", round: int = 25) -> None:
        self.marker = marker
        self.round = round

    def reset(self, n_clients: int) -> None:
        super().reset(n_clients)
        self.n_seen_ = np.zeros(n_clients)

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        return Selection(ctx.round, np.sort(rng.choice(ctx.pool, ctx.size, replace=False)))

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        self.n_seen_[selection.clients] += 1
        if selection.round == self.round and not (self.marker and Path(self.marker).exists()):
            if self.marker:
                Path(self.marker).touch()
            time.sleep(1.0)  # until the last checkpoint has been sent
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class OnlyHere(Source):
    """Can be read only where a variable is set, as a file is found only on the machine it is on."""

    def load(self, seed: int) -> Dataset:
        if HERE not in os.environ:
            raise InvalidInput("there are no data on this machine.")
        return Digits().load(seed)


if __name__ == "__main__":
    _, folder, address = sys.argv
    grid = run_experiment(
        small("random", "e3cs", seeds=1, n_rounds=KILLED_ROUNDS),
        folder,
        backend="ray",
        address=address,
    )
    sys.exit(len(grid.failed))
