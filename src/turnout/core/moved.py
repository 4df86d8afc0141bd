"""Documented import paths of earlier versions: ``turnout.environments`` is ``turnout.worlds``.

An old path names the same module object as the new one, so classes and state are shared. State
files name the classes of their parameters by path and are read through the same table.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Old path to new path, without the leading ``turnout.``; a longer path is matched first.
_MOVED = {
    "arena": "studies.arena",
    "arrays": "core.arrays",
    "bounds": "core.bounds",
    "domains": "core.domains",
    "environments": "worlds",
    "errors": "core.errors",
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
    "persist": "core.persist",
    "policies": "worlds.policies",
    "registry": "core.registry",
    "remote": "serve.client",
    "remote.selector": "serve.client",
    "require": "core.require",
    "rng": "core.rng",
    "roster": "core.roster",
    "runs": "results",
    "schedules": "core.schedules",
    "selector": "core.selector",
    "session": "live",
    "simulation": "experiment",
    "statistics": "results.statistics",
    "stateful": "core.stateful",
    "training.callbacks": "results.callbacks",
    "types": "core.types",
    "watch": "report.watch",
}


def current_path(module: str) -> str:
    """Return where a module of turnout is now; any other path is returned as it is.

    >>> current_path("turnout.schedules")
    'turnout.core.schedules'
    """
    package, _, rest = module.partition(".")
    if package != "turnout" or not rest:
        return module
    parts = rest.split(".")
    for length in range(len(parts), 0, -1):
        new = _MOVED.get(".".join(parts[:length]))
        if new is not None:
            return ".".join(("turnout", new, *parts[length:]))
    return module


class _Alias(Loader):
    """Hands out a module that is imported under its new path."""

    def __init__(self, new: str) -> None:
        self._new = new
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib replaced it by the spec of the old path


class _OldPaths(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = current_path(fullname)
        return None if new == fullname else ModuleSpec(fullname, _Alias(new))


def keep_old_paths() -> None:
    """Make the old paths importable; ``import turnout`` calls this once."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldPaths())  # before the finder of files, which knows the new path
