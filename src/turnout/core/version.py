"""The version of this package, and what it keeps of earlier ones: their numbers, their paths.

Documented import paths of earlier versions still work: ``turnout.environments`` is
``turnout.worlds``. An old path names the same module object as the new one, so classes and state
are shared. State files name the classes of their parameters by path and are read through the same
table.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["__version__", "repeats"]


__version__ = "0.2.0"

#: Versions whose runs and results may be extended. Every development version before 0.2.0 was
#: called 0.1.0. The last of them computes the same numbers, bit for bit. In run folders, the digest
#: of a built-in selector decides: its files moved, so such a cell is run again.
_SAME_NUMBERS = frozenset({"0.1.0"})


def repeats(version: str) -> bool:
    """Return whether this version computes the numbers of another one, bit for bit.

    Runs and results of such a version can be resumed and extended.

    Args:
        version: The other version, such as ``"0.1.0"``.

    >>> repeats("0.0.1")
    False
    """
    return version == __version__ or version in _SAME_NUMBERS


#: Modules that had the same name one level higher.
_INTO_CORE = (
    *("arrays", "bounds", "domains", "errors", "persist", "registry", "require", "rng", "roster"),
    *("schedules", "selector", "stateful", "types"),
)
#: Old path to new path, without the leading ``turnout.``; a longer path is matched first.
_MOVED = {name: f"core.{name}" for name in _INTO_CORE} | {
    "arena": "studies.arena",
    "environments": "worlds",
    "estimators": "sampling",
    "estimators.clusters": "sampling.linear",
    "estimators.fading": "sampling.running",
    "estimators.silence": "sampling.running",
    "experiment.worlds": "experiment.config",
    "features": "data.features",
    "guarantee": "results.guarantee",
    "integrations": "live",
    "metrics": "results.metrics",
    "papers": "studies",
    "policies": "worlds.policies",
    "remote": "serve.client",
    "remote.selector": "serve.client",
    "runs": "results",
    "session": "live",
    "simulation": "experiment",
    "statistics": "results.statistics",
    "training.callbacks": "results.callbacks",
    "watch": "report.watch",
}


def current_path(module: str) -> str:
    """Return where a module of turnout is now; any other path is returned as it is.

    >>> current_path("turnout.schedules")
    'turnout.core.schedules'
    """
    package, *parts = module.split(".")
    for length in range(len(parts), 0, -1) if package == "turnout" else ():
        new = _MOVED.get(".".join(parts[:length]))
        if new is not None:
            return ".".join((package, new, *parts[length:]))
    return module


class _OldPaths(MetaPathFinder, Loader):
    """Finds old paths, and hands out the modules that are imported under their new ones."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if current_path(fullname) == fullname else ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(current_path(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        old = module.__spec__  # importlib replaced that of the new path
        module.__spec__ = old and old.loader_state


def keep_old_paths() -> None:
    """Make the old paths importable; ``import turnout`` calls this once."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldPaths())  # before the finder of files, which knows the new path
