"""turnout: who takes part in a round of federated learning.

>>> import numpy as np, turnout
>>> selector = turnout.make("e3cs", quota=0.5)
>>> selector.reset(n_clients=100)
>>> ctx = turnout.RoundContext(round=0, cohort_size=20, available=np.ones(100, dtype=bool))
>>> selection = selector.select(ctx, turnout.stream(seed=1, purpose=turnout.Purpose.SELECT))
>>> selection.clients.size
20
"""

import importlib
from typing import TYPE_CHECKING, Any

from turnout import selectors as selectors  # registers the built-in selectors
from turnout.bounds import Bounds
from turnout.errors import (
    InvalidInput,
    MissingColumn,
    MissingExtra,
    MissingPoll,
    NotReset,
    StateFileError,
    TurnoutError,
    UnknownParameter,
    UnknownSelector,
)
from turnout.names import nearest
from turnout.persist import load, save
from turnout.registry import make, names, register
from turnout.results import open_runs
from turnout.rng import Purpose, stream
from turnout.roster import Roster
from turnout.schedules import (
    Constant,
    ExponentialDecay,
    Lemma1,
    Linear,
    Schedule,
    StepAfter,
    StepDecay,
)
from turnout.selector import Selector
from turnout.simulation import simulate, train
from turnout.types import Outcome, RoundContext, Selection, Status
from turnout.version import __version__ as __version__

if TYPE_CHECKING:
    from turnout.remote import Remote

__all__ = [
    "Bounds",
    "Constant",
    "ExponentialDecay",
    "InvalidInput",
    "Lemma1",
    "Linear",
    "MissingColumn",
    "MissingExtra",
    "MissingPoll",
    "NotReset",
    "Outcome",
    "Purpose",
    "Remote",
    "Roster",
    "RoundContext",
    "Schedule",
    "Selection",
    "Selector",
    "StateFileError",
    "Status",
    "StepAfter",
    "StepDecay",
    "TurnoutError",
    "UnknownParameter",
    "UnknownSelector",
    "load",
    "make",
    "names",
    "open_runs",
    "register",
    "save",
    "simulate",
    "stream",
    "train",
]

#: Imported when they are first asked for: ``turnout.experiment`` needs no import of its own.
_PACKAGES = (
    "data",
    "environments",
    "experiment",
    "features",
    "guarantee",
    "integrations",
    "metrics",
    "policies",
    "report",
    "results",
    "runs",
    "sampling",
    "session",
    "simulation",
    "statistics",
    "testing",
    "training",
)


def __getattr__(name: str) -> Any:
    if name == "Remote":
        return importlib.import_module("turnout.remote").Remote
    if name not in _PACKAGES:
        hint = nearest(name, [*__all__, *_PACKAGES])
        raise AttributeError(f"module 'turnout' has no attribute {name!r}.{hint}")
    return importlib.import_module(f"turnout.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES})
