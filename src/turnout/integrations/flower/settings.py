"""What a ``SelectingStrategy`` was told, checked and as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from turnout.bounds import Bounds
from turnout.experiment.codec import encode
from turnout.integrations.flower import inner as within
from turnout.integrations.flower.base import World
from turnout.integrations.flower.replies import form_of_arrays
from turnout.policies import FixedDeadline, RoundPolicy
from turnout.registry import name_of
from turnout.runs import files
from turnout.selector import Selector

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of a ``SelectingStrategy``; see there."""

    cohort_size: int
    policy: RoundPolicy | None
    bounds: Bounds | None
    seed: int
    checkpoint: Path | None
    records: Path | None
    label: str
    durations: Literal["server", "client"]
    metric_keys: Mapping[str, str]
    unidentified: Literal["node-id", "exclude"]
    start_s: float
    wait_for_nodes_s: float
    ask_s: float
    late_s: float | None
    evaluate_s: float | None
    poll_s: float

    def round_policy(self, limit_s: float, world: World | None) -> RoundPolicy:
        """Return the policy; by default a deadline at ``start``'s timeout, none in a world.

        The timeout is on the wall clock, the deadlines of a world are in virtual time.
        """
        default = FixedDeadline(limit_s) if world is None else FixedDeadline()
        return default if self.policy is None else self.policy

    def identity(
        self, selector: Selector, strategy: Strategy, arrays: ArrayRecord
    ) -> dict[str, Any]:
        """Return what a checkpoint belongs to, as plain data."""
        return {
            "selector": name_of(type(selector)),
            "parameters": encode(selector.parameters),
            "seed": self.seed,
            "strategy": within.name_of(strategy),
            "model": [[key, list(shape), kind] for key, shape, kind in form_of_arrays(arrays)],
            "cohort_size": self.cohort_size,
            "policy": encode(self.policy),
            "bounds": None if self.bounds is None else self.bounds.parameters,
        }

    def config(
        self, selector: Selector, policy: RoundPolicy, world: World | None, n_rounds: int
    ) -> dict[str, Any]:
        """Return the run's ``config.json``, but for the number of clients."""
        name = "flower" if self.records is None else self.records.resolve().name
        return {
            "format": files.FORMAT,
            "kind": "flower",
            "experiment": name,
            "label": self.label,
            "selector": name_of(type(selector)),
            "parameters": encode(selector.parameters),
            "seed": self.seed,
            "n_clients": 1,
            "cohort_size": self.cohort_size,
            "n_rounds": max(1, n_rounds),
            "world": {} if world is None else world.describe(),
            "world_id": f"flower-{name}" if world is None else world.world_id,
            "policy": encode(policy),
            "classes": (None if world is None else world.class_names) or {},
        }
