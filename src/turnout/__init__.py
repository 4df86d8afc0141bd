"""turnout: which clients take part in a round of federated learning.

>>> import numpy as np, turnout
>>> selector = turnout.make("e3cs", quota=0.5)
>>> selector.reset(n_clients=100)
>>> ctx = turnout.RoundContext(round=0, cohort_size=20, available=np.ones(100, dtype=bool))
>>> selection = selector.select(ctx, turnout.stream(seed=1, purpose=turnout.Purpose.SELECT))
>>> selection.clients.size
20
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from turnout import selectors as selectors  # registers the built-in selectors
from turnout.core.errors import TurnoutError
from turnout.core.names import nearest as _nearest
from turnout.core.persist import load, save
from turnout.core.registry import list_selectors, make, register
from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.types import Outcome, RoundContext, Selection, Status
from turnout.core.version import __version__ as __version__
from turnout.core.version import current_path as _current_path
from turnout.core.version import keep_old_paths as _keep_old_paths

if _TYPE_CHECKING:
    from turnout.experiment import Experiment, compare, simulate, train
    from turnout.results import open_runs
    from turnout.serve.client import Remote
    from turnout.twin import fit
    from turnout.worlds import Environment

__all__ = [
    "Environment",
    "Experiment",
    "Outcome",
    "Purpose",
    "Remote",
    "RoundContext",
    "Selection",
    "Selector",
    "Status",
    "TurnoutError",
    "compare",
    "fit",
    "list_selectors",
    "load",
    "make",
    "open_runs",
    "register",
    "save",
    "simulate",
    "stream",
    "train",
]

#: Packages and names that are imported when they are first asked for, so that ``import turnout``
#: loads no more than the contract and the selectors.
_PACKAGES = (
    *("cli", "core", "data", "experiment", "live", "report", "results", "sampling", "selectors"),
    *("serve", "studies", "testing", "training", "twin", "worlds"),
)
_LATER = {
    "Environment": "worlds",
    "Experiment": "experiment",
    "Remote": "serve.client",
    "compare": "experiment",
    "fit": "twin",
    "open_runs": "results",
    "simulate": "experiment",
    "train": "experiment",
}
#: Names that version 0.1 exported here. They still work, and are documented in their modules.
_EARLIER = {
    **dict.fromkeys(("InvalidInput", "MissingColumn", "MissingExtra"), "core.errors"),
    **dict.fromkeys(("MissingPoll", "NotReset", "StateFileError"), "core.errors"),
    **dict.fromkeys(("UnknownParameter", "UnknownSelector"), "core.errors"),
    **dict.fromkeys(("Constant", "ExponentialDecay", "Lemma1", "Linear"), "core.schedules"),
    **dict.fromkeys(("Schedule", "StepAfter", "StepDecay"), "core.schedules"),
    "Bounds": "core.bounds",
    "Roster": "core.roster",
}


def __getattr__(name: str) -> _Any:
    if name == "names":
        return list_selectors
    home = _LATER.get(name) or _EARLIER.get(name)
    if home is not None:
        return getattr(_import_module(f"turnout.{home}"), name)
    path = f"turnout.{name}"
    if name in _PACKAGES or _current_path(path) != path:
        return _import_module(path)
    raise AttributeError(
        f"module 'turnout' has no attribute {name!r}.{_nearest(name, [*__all__, *_PACKAGES])}"
    )


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES, "__version__"})


_keep_old_paths()
