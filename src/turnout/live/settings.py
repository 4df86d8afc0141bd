"""How a live run selects, waits and saves: one declaration for every host.

``LiveSettings`` is the only place where the settings of a live run are declared. Flower's
``SelectingStrategy`` and NVFlare's ``SelectingFedAvg`` accept every field as a keyword argument,
job files and HTTP bodies hold the same fields as plain tables, and ``LiveSettings.of`` reads them.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Self, get_args, get_type_hints

from turnout.core.bounds import Bounds
from turnout.core.domains import (
    CheckedFields,
    Count,
    Index,
    NonNegative,
    Positive,
    PositiveOrInfinite,
    check_fields,
)
from turnout.core.errors import InvalidInput, TurnoutError
from turnout.core.errors import MissingMetric as MissingMetric
from turnout.core.names import nearest
from turnout.core.registry import make, name_of
from turnout.core.selector import Selector
from turnout.experiment.codec import build, decode, encode
from turnout.experiment.variants import variants_of
from turnout.live.alerts import AlertRules
from turnout.live.monitor import Follower
from turnout.live.world import VirtualWorld
from turnout.results import files
from turnout.results.callbacks import Callback
from turnout.worlds import FixedDeadline, RoundPolicy, WorkSchedule

#: Seconds of a round if neither the policy nor the framework sets a limit.
LONGEST_S = 3600.0


class TooFewAnswers(TurnoutError, RuntimeError):
    """Too many consecutive rounds had too few answers, and the run was stopped."""


@dataclass(frozen=True, slots=True)
class Quorum(CheckedFields):
    """How many answers and free clients a round needs.

    Args:
        min_answers: Answers that a round needs. With fewer, the model stays as it is and the round
            is recorded as void.
        min_free: Clients that must be free before the selector chooses. Rounds wait for them as
            they wait for connected clients.
        max_empty_rounds: Consecutive rounds with too few answers that end the run with an error;
            None never ends it.

    >>> Quorum(min_answers=3, max_empty_rounds=5)
    Quorum(min_answers=3, min_free=1, max_empty_rounds=5)
    """

    min_answers: Count = 1
    min_free: Count = 1
    max_empty_rounds: Count | None = None

    def check(self, cohort_size: int) -> None:
        """Refuse a quorum of more answers than a round asks for.

        Args:
            cohort_size: How many answers a round should get.
        """
        if self.min_answers > cohort_size:
            raise InvalidInput(
                f"min_answers must be at most cohort_size = {cohort_size}, got {self.min_answers}.",
                field="min_answers",
            )


@dataclass(frozen=True, slots=True)
class Guard:
    """A floor, a cap and limits around a selector; see ``turnout.selectors.Guarded``.

    Args:
        floor: Share of its fair share that every client gets at least, from 0 to 1.
        cap: Multiple of its fair share that every client gets at most, at least 1; infinity for
            no cap.
        min_gap: A client that is selected in round t is not selected again before t + ``min_gap``.
        max_times: Rounds in which a client is selected at most; None for no limit.

    >>> Guard(floor=0.5, cap=2.0, min_gap=5).around(make("round-robin")).min_gap
    5
    """

    floor: float = 0.5
    cap: float = 2.0
    min_gap: int = 1
    max_times: int | None = None

    def around(self, selector: Selector) -> Selector:
        """Return a new guarded selector with the parameters of this one and without its state.

        Args:
            selector: Its class must be importable by its name.
        """
        return make(
            "guarded",
            inner=name_of(type(selector)),
            floor=self.floor,
            cap=self.cap,
            inner_parameters=selector.parameters,
            min_gap=self.min_gap,
            max_times=self.max_times,
        )


_BOUNDS, _ALERTS = Bounds(), AlertRules()


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """How a live run selects, waits and saves.

    A run checks the quorum against the cohort when it starts, because a host may set another
    ``cohort_size``.

    Args:
        cohort_size: How many answers a round should get.
        policy: When a round ends; None ends it after ``limit_s``.
        schedule: When clients get work, such as ``Buffered(size=10, concurrency=30)``; None waits
            for every round to end. Flower and HTTP follow schedules whose rounds overlap.
        seed: The seed of the selection, from 0.
        checkpoint: A file that is written after each round; a new run resumes from it. None writes
            none.
        records: A folder for ``turnout report``; None writes none.
        receipt_key: PEM file of an Ed25519 key that signs a receipt for each client of a round, in
            ``receipts.jsonl`` of the records; None writes no receipts.
        guard: A floor, a cap and limits on what each client gets; None leaves all places to the
            selector.
        bounds: Which claims of clients are believed; None believes everything.
        quorum: How many answers and free clients a round needs.
        label: The name of this run in the report; None uses the name of the selector.
        durations: Whether the selector sees durations as the server measures them or as clients
            report them.
        metric_keys: Your own key of a metric in the answers, by the metric's name.
        unidentified: Whether anonymous clients are identified by their address or excluded.
        limit_s: Seconds after which a round ends at the latest.
        start_s: Seconds that the first round waits for enough clients.
        wait_for_clients_s: Seconds that later rounds wait for enough clients.
        ask_s: Seconds that clients have to answer a question.
        late_s: Seconds after the deadline for which a late client counts as busy; None uses as many
            as the deadline.
        evaluate_s: Seconds that clients have for an evaluation; None uses those of a round.
        poll_s: Seconds between two looks for answers.
        alerts: When the run warns; None never does.
        shadow: Selectors that choose beside the one in charge without being followed, such as
            ``["pace", "e3cs:quota=0.5"]``. They learn of clients that both chose; records and
            report show what they would have done.
        followers: Trackers such as ``TensorBoard`` or ``Prometheus``, or your own ``Follower``;
            they see every round.

    >>> LiveSettings(cohort_size=20, seed=3).limit_s
    3600.0
    """

    cohort_size: Count = 10
    policy: RoundPolicy | None = None
    schedule: WorkSchedule | None = None
    seed: Index = 0
    checkpoint: str | os.PathLike[str] | None = None
    records: str | os.PathLike[str] | None = None
    receipt_key: str | os.PathLike[str] | None = None
    guard: Guard | None = None
    bounds: Bounds | None = _BOUNDS
    quorum: Quorum = Quorum()
    label: str | None = None
    durations: Literal["server", "client"] = "server"
    metric_keys: Mapping[str, str] = field(default_factory=dict)
    unidentified: Literal["node-id", "exclude"] = "node-id"
    limit_s: PositiveOrInfinite = LONGEST_S
    start_s: NonNegative = 300.0
    wait_for_clients_s: NonNegative = 60.0
    ask_s: Positive = 30.0
    late_s: NonNegative | None = None
    evaluate_s: Positive | None = None
    poll_s: Positive = 0.1
    alerts: AlertRules | None = _ALERTS
    shadow: Sequence[str] = ()
    followers: Sequence[Follower | Callback] = ()

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        check_fields(self)
        _check_shadows(self.shadow)
        object.__setattr__(self, "shadow", tuple(self.shadow))
        if self.shadow and self.overlaps:
            raise InvalidInput(
                "shadow needs synchronous rounds: where rounds overlap, it is not known what a "
                "shadow would have chosen. Leave out shadow or schedule.",
                field="shadow",
            )
        if self.receipt_key is not None and self.records is None:
            raise InvalidInput(
                "receipt_key: receipts are part of the records, so give a folder for records, too.",
                field="receipt_key",
            )
        for follower in self.followers:
            if not isinstance(follower, Follower | Callback):
                raise InvalidInput(
                    "followers must be a list of trackers such as TensorBoard(folder), Prometheus "
                    f"or a Follower of your own, got {follower!r}.",
                    field="followers",
                )

    @classmethod
    def of(cls, given: Mapping[str, Any], base: LiveSettings | None = None) -> LiveSettings:
        """Return settings from values by name; a value may be a plain table.

        Args:
            given: Values as in Python, TOML or JSON: ``{"policy": {"kind": "first-k"}}``. ``True``
                and ``False`` turn bounds and alerts on and off. None keeps a setting that cannot
                be None as it is.
            base: Settings for everything that is not given; None takes the defaults.

        Raises:
            InvalidInput: A name is unknown, or a value is impossible.

        >>> LiveSettings.of({"cohort_size": 5, "quorum": {"min_answers": 2}}).quorum.min_answers
        2
        """
        names = {_FORMER_NAMES.get(name, name): value for name, value in given.items()}
        hints = get_type_hints(cls)
        for name in names:
            if name not in hints:
                raise InvalidInput(f"unknown setting {name!r}.{nearest(name, hints)}", field=name)
        for former, name in _FORMER_NAMES.items():
            if former in given and name in given:
                raise InvalidInput(f"{former} is the former name of {name}: give one.", field=name)
        values = {
            name: _setting(name, value, is_number=float in (hints[name], *get_args(hints[name])))
            for name, value in names.items()
            if value is not None or NoneType in get_args(hints[name])  # None: as it is
        }
        return dataclasses.replace(cls() if base is None else base, **values)

    def table(self, leave_out: Collection[str] = ()) -> dict[str, Any]:
        """Return the settings as plain data that ``of`` reads; followers are objects and left out.

        Args:
            leave_out: Further names to leave out.
        """
        names = [one.name for one in dataclasses.fields(self) if one.name not in leave_out]
        table = {name: _plain(getattr(self, name)) for name in names if name != "followers"}
        for name in _SWITCHES:  # null would be read as the default
            if name in table and table[name] is None:
                table[name] = False
        return table

    @property
    def overlaps(self) -> bool:
        """Whether rounds overlap: a client may work on when a round ends."""
        return self.schedule is not None and self.schedule.overlaps

    @property
    def answers(self) -> int:
        """How many answers a round should get: the cohort size, or that of a buffer."""
        wanted = None if self.schedule is None else self.schedule.answers(self.cohort_size)
        return self.cohort_size if wanted is None else wanted

    def for_selector(
        self, selector: Selector | str, parameters: Mapping[str, Any] | None = None
    ) -> tuple[Self, Selector]:
        """Return the settings with a label, and the selector with the guard around it.

        Args:
            selector: A selector or its name.
            parameters: The parameters of a selector that is given by its name.
        """
        self.quorum.check(self.answers)
        inner = make(selector, **(parameters or {})) if isinstance(selector, str) else selector
        label = self.label or name_of(type(inner)).rpartition(":")[2]
        guarded = inner if self.guard is None else self.guard.around(inner)
        return dataclasses.replace(self, label=label), guarded

    def round_policy(self, world: VirtualWorld | None) -> RoundPolicy:
        """Return the policy; the default is a deadline after ``limit_s``, and none in a world.

        The limit is on the wall clock, the deadlines of a world are in virtual time.

        Args:
            world: The virtual world, if there is one.
        """
        default = FixedDeadline(self.limit_s) if world is None else FixedDeadline()
        return default if self.policy is None else self.policy

    def identity(self, selector: Selector, host: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a checkpoint belongs to, as plain data.

        A run that resumes may differ in ``turnout.live.checkpoint.MAY_CHANGE`` only.

        Args:
            selector: The selector.
            host: What the framework adds.
        """
        return {
            "selector": name_of(type(selector)),
            "parameters": encode(selector.parameters),
            "seed": self.seed,
            **host,
            "cohort_size": self.cohort_size,
            "policy": encode(self.policy),
            "bounds": _plain(self.bounds),
            **self._scheduled(),
        }

    def config(
        self, kind: str, selector: Selector, world: VirtualWorld | None, n_rounds: int
    ) -> dict[str, Any]:
        """Return the run's ``config.json``, without the number of clients."""
        name = kind if self.records is None else Path(self.records).resolve().name
        return {
            "format": files.FORMAT,
            "kind": kind,
            "experiment": name,
            "label": self.label,
            "selector": name_of(type(selector)),
            "parameters": encode(selector.parameters),
            "seed": self.seed,
            "n_clients": 1,
            "cohort_size": self.answers,
            "n_rounds": max(1, n_rounds),
            "world": {} if world is None else world.describe(),
            "world_id": f"{kind}-{name}" if world is None else world.world_id,
            "policy": encode(self.round_policy(world)),
            "classes": (None if world is None else world.class_names) or {},
            "quorum": asdict(self.quorum),
            **({"shadow": list(self.shadow)} if self.shadow else {}),
            **self._scheduled(),
        }

    def _scheduled(self) -> dict[str, Any]:
        return {"schedule": encode(self.schedule)} if self.overlaps else {}


def _check_shadows(shadow: Any) -> None:
    """Refuse what is no list of selectors, or asks clients for more work."""
    if not isinstance(shadow, list | tuple) or not all(isinstance(x, str) for x in shadow):
        raise InvalidInput(
            f'shadow must be a list of selectors, such as ["pace", "e3cs:quota=0.5"], got '
            f"{shadow!r}.",
            field="shadow",
        )
    labels: set[str] = set()
    for text in shadow:
        try:
            variants = variants_of(text)
        except InvalidInput as error:
            raise InvalidInput(f"shadow: {error}", field="shadow") from error
        for variant in variants:
            if variant.make().polls:
                raise InvalidInput(
                    f"shadow: {variant.label} asks clients for their loss before it chooses, which "
                    "a shadow cannot do.",
                    field="shadow",
                )
            if variant.label in labels or "/" in variant.label:
                raise InvalidInput(
                    f"shadow: the label {variant.label!r} occurs twice or contains a slash: give "
                    "another, as in mine=pace:share=0.5.",
                    field="shadow",
                )
            labels.add(variant.label)


#: Names of settings in earlier versions, and what they are called now.
_FORMER_NAMES = {"wait_for_nodes_s": "wait_for_clients_s"}
#: Settings that are described by a table, and the class that the table describes.
_OBJECTS: Mapping[str, type[Any]] = {
    "policy": RoundPolicy,
    "schedule": WorkSchedule,
    "guard": Guard,
    "bounds": Bounds,
    "quorum": Quorum,
    "alerts": AlertRules,
}
#: Settings that ``True`` and ``False`` turn on and off.
_SWITCHES = ("bounds", "alerts")


def _plain(value: Any) -> Any:
    """Return the value of a setting as plain data."""
    if isinstance(value, Bounds):
        return dict(value.parameters)
    return encode(asdict(value) if isinstance(value, Guard | Quorum | AlertRules) else value)


def _setting(name: str, value: Any, *, is_number: bool) -> Any:
    """Return the value of a setting; a table becomes the object that it describes."""
    kind = _OBJECTS.get(name)
    if kind is None or value is None or isinstance(value, kind):
        return math.inf if is_number and value == "inf" else value  # JSON has no infinity
    if name in _SWITCHES and isinstance(value, bool):
        return kind() if value else None
    if kind in (RoundPolicy, WorkSchedule):
        return decode(value, kind, (name,))
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} must be {kind.__name__} or a table, got {value!r}.", field=name)
    if kind is not Bounds:
        return build(kind, value, (name,))
    for switch in value:
        if switch not in Bounds.parameter_names():
            hint = nearest(switch, Bounds.parameter_names())
            raise InvalidInput(f"bounds has no switch {switch!r}.{hint}", field=name)
    bounds = Bounds(**value)
    bounds.check_parameters()
    return bounds
