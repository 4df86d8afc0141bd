"""What a session was told, checked and as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from turnout.bounds import Bounds
from turnout.domains import CheckedFields, Count, Index, NonNegative, Positive, check_fields
from turnout.errors import InvalidInput
from turnout.experiment.codec import encode
from turnout.policies import FixedDeadline, RoundPolicy
from turnout.registry import name_of
from turnout.runs import files
from turnout.selector import Selector
from turnout.session.alerts import AlertRules
from turnout.session.errors import TooFewAnswers
from turnout.session.follower import Follower
from turnout.session.world import World
from turnout.training.callbacks import Callback


@dataclass(frozen=True, slots=True)
class Quorum(CheckedFields):
    """How many it takes.

    Args:
        min_answers: Answers that a round needs; with fewer the model stays as it is, and the round
            is recorded as void.
        min_free: Clients that must be free before somebody is chosen; rounds wait for them as they
            wait for enough connected ones.
        max_empty_rounds: So many rounds in a row with too few answers end the run with an error;
            None never does.

    >>> Quorum(min_answers=3, max_empty_rounds=5)
    Quorum(min_answers=3, min_free=1, max_empty_rounds=5)
    """

    min_answers: Count = 1
    min_free: Count = 1
    max_empty_rounds: Count | None = None

    def check_rounds(self, n_empty: int) -> None:
        """Raise ``TooFewAnswers`` if so many rounds in a row with too few answers are too many."""
        if self.max_empty_rounds is not None and n_empty >= self.max_empty_rounds:
            raise TooFewAnswers(
                f"{n_empty} rounds in a row had fewer than {self.min_answers} answers "
                f"(max_empty_rounds = {self.max_empty_rounds}): the log has the reasons; mend the "
                "clients and start again, which goes on from the checkpoint."
            )

    def check(self, cohort_size: int) -> None:
        """Refuse more answers than are asked for."""
        if self.min_answers > cohort_size:
            raise InvalidInput(
                f"min_answers must be at most cohort_size = {cohort_size}, got {self.min_answers}.",
                field="min_answers",
            )


_ALERTS = AlertRules()


@dataclass(frozen=True, slots=True)
class Settings:
    """How a live run chooses, waits and saves.

    Args:
        cohort_size: How many answers are wanted per round.
        policy: When a round ends; None ends it at the limit of the framework.
        bounds: What is believed of what clients claim; None believes everything.
        seed: The seed of the selection, from 0.
        checkpoint: A file that is written after each round; None writes none.
        records: A folder for ``turnout report``; None writes none.
        label: The name of this run in the report.
        durations: Whose seconds the selector sees: as measured here, or as clients report them.
        metric_keys: The key of a metric in the answers, by the metric's name, if it is your own.
        unidentified: Who does not say who it is goes by its address, or is excluded.
        start_s: Seconds that the first round waits for enough clients.
        wait_for_nodes_s: Seconds that later rounds wait for them.
        ask_s: Seconds that a question to clients takes at most.
        late_s: Seconds after the deadline that a late client may stay busy; None: as many as it.
        evaluate_s: Seconds that evaluation by clients takes at most; None takes those of training.
        poll_s: Seconds between two looks for answers.
        quorum: How many it takes.
        alerts: When it warns; None never does.
        followers: Who is told of every round: trackers such as ``TensorBoard``, ``Prometheus``, or
            a ``Follower`` of your own.
    """

    cohort_size: Count
    policy: RoundPolicy | None = None
    bounds: Bounds | None = None
    seed: Index = 0
    checkpoint: Path | None = None
    records: Path | None = None
    label: str = "session"
    durations: Literal["server", "client"] = "server"
    metric_keys: Mapping[str, str] = field(default_factory=dict)
    unidentified: Literal["node-id", "exclude"] = "node-id"
    start_s: NonNegative = 300.0
    wait_for_nodes_s: NonNegative = 60.0
    ask_s: Positive = 30.0
    late_s: NonNegative | None = None
    evaluate_s: Positive | None = None
    poll_s: Positive = 0.1
    quorum: Quorum = Quorum()
    alerts: AlertRules | None = _ALERTS
    followers: Sequence[Follower | Callback] = ()

    def __post_init__(self) -> None:
        """Refuse impossible numbers."""
        check_fields(self)
        self.quorum.check(self.cohort_size)
        for follower in self.followers:
            if not isinstance(follower, Follower | Callback):
                raise InvalidInput(
                    "followers must be a list of trackers such as TensorBoard(folder), Prometheus "
                    f"or a Follower of your own, got {follower!r}.",
                    field="followers",
                )

    def round_policy(self, limit_s: float, world: World | None) -> RoundPolicy:
        """Return the policy; by default a deadline at the limit, none in a world.

        The limit is on the wall clock, the deadlines of a world are in virtual time.
        """
        default = FixedDeadline(limit_s) if world is None else FixedDeadline()
        return default if self.policy is None else self.policy

    def busy_s(self, seconds: float) -> float:
        """Return for how long who was given so many seconds may stay busy."""
        return seconds + (seconds if self.late_s is None else self.late_s)

    def identity(self, selector: Selector, host: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a checkpoint belongs to, as plain data; ``host`` is what the framework adds.

        What stands in ``turnout.session.checkpoint.MAY_CHANGE`` may differ, the rest may not.
        """
        return {
            "selector": name_of(type(selector)),
            "parameters": encode(selector.parameters),
            "seed": self.seed,
            **host,
            "cohort_size": self.cohort_size,
            "policy": encode(self.policy),
            "bounds": None if self.bounds is None else self.bounds.parameters,
        }

    def config(
        self, kind: str, selector: Selector, policy: RoundPolicy, world: World | None, n_rounds: int
    ) -> dict[str, Any]:
        """Return the run's ``config.json``, but for the number of clients."""
        name = kind if self.records is None else self.records.resolve().name
        return {
            "format": files.FORMAT,
            "kind": kind,
            "experiment": name,
            "label": self.label,
            "selector": name_of(type(selector)),
            "parameters": encode(selector.parameters),
            "seed": self.seed,
            "n_clients": 1,
            "cohort_size": self.cohort_size,
            "n_rounds": max(1, n_rounds),
            "world": {} if world is None else world.describe(),
            "world_id": f"{kind}-{name}" if world is None else world.world_id,
            "policy": encode(policy),
            "classes": (None if world is None else world.class_names) or {},
            "quorum": asdict(self.quorum),
        }
