"""Bodies of requests and responses, as ``/openapi.json`` describes them; pydantic checks requests.

Lists of clients and columns are compact arrays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    create_model,
)

from turnout.core.bounds import Bounds
from turnout.core.describe import entries
from turnout.live import Guard, LiveSettings, Quorum
from turnout.worlds import RoundPolicy, WorkSchedule

#: A stable id: a text of up to 256 characters, or an integer.
ClientId: TypeAlias = (
    Annotated[StrictStr, Field(min_length=1, max_length=256)]
    | Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
)


def _or_unknown(value: Any) -> Any:
    """Return null for a number that JSON does not have, as the log of events would."""
    if isinstance(value, list):
        return [_or_unknown(one) for one in value]
    return value if value is None or math.isfinite(value) else None


_Number: TypeAlias = float | None
_Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)] | None
#: One number per client, or one list of numbers per client; null = unknown.
Column: TypeAlias = Annotated[
    list[_Finite] | list[list[_Finite]], Field(union_mode="left_to_right")
]
Seconds: TypeAlias = Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)]
#: What federations and tokens may be called.
NAME = r"^[a-z0-9][a-z0-9_.-]{0,63}$"
Name: TypeAlias = Annotated[str, Field(pattern=NAME)]
#: A vector that a client reports, such as the sketch of its update; null = unknown.
Numbers: TypeAlias = Annotated[list[_Number], Field(max_length=10_000)]
_Metric: TypeAlias = Annotated[float | Numbers | None, AfterValidator(_or_unknown)]
Round: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
#: Shadows that a federation may have.
MOST_SHADOWS = 8
_Shadow: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
Size: TypeAlias = Annotated[int, Field(ge=1, lt=2**31)]

# --------------------------------------------------------------------------------------------------
# Requests.
# --------------------------------------------------------------------------------------------------


class Body(BaseModel):
    """The base of request bodies: unknown keys are errors, and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _SettingsBody(Body):
    """The base of bodies that are stored as JSON, which has no infinity."""

    model_config = ConfigDict(allow_inf_nan=False)


def _body_of(
    cls: type,
    title: str,
    types: Mapping[Any, Any] = MappingProxyType({}),
    defaults: Mapping[str, Any] = MappingProxyType({}),
    names: Collection[str] | None = None,
) -> Any:
    """Return a body with the fields of a dataclass, which declares types, defaults and meanings.

    Args:
        cls: The dataclass.
        title: The name of the body in ``/openapi.json``.
        types: The types in JSON of fields that hold objects in Python, by type or by name.
        defaults: The defaults in JSON, where they differ.
        names: The fields to take; None takes all of them.
    """
    hints, meanings = get_type_hints(cls), entries(cls.__doc__)
    parts: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if names is None or field.name in names:
            kind, default = hints[field.name], defaults.get(field.name, field.default)
            kind = types.get(field.name, types.get(kind, kind))
            meaning = meanings[field.name].meaning.replace("None", "null").replace("``", "")
            parts[field.name] = (kind, Field(default, description=meaning))
    summary = (cls.__doc__ or "").partition("\n")[0].replace("``", "")
    return create_model(title, __base__=_SettingsBody, __doc__=summary, **parts)


if TYPE_CHECKING:

    class _Settings(Body):
        shadow: list[str]
        schedule: dict[str, Any] | str | None
else:
    _GuardBody, _QuorumBody = _body_of(Guard, "GuardBody"), _body_of(Quorum, "QuorumBody")
    _Settings = _body_of(
        LiveSettings,
        "Settings",
        types={
            "cohort_size": Size,
            float: Seconds,
            float | None: Seconds | None,
            RoundPolicy | None: dict[str, Any] | str | None,
            WorkSchedule | None: dict[str, Any] | str | None,
            Bounds | None: bool | dict[str, bool],
            Guard | None: _GuardBody | None,
            Quorum: _QuorumBody,
            "shadow": Annotated[list[_Shadow], Field(max_length=MOST_SHADOWS)],
        },
        defaults={
            "cohort_size": ...,
            "schedule": None,
            "bounds": True,
            "quorum": _QuorumBody(),
            "shadow": [],
        },
        names=[
            *("cohort_size", "policy", "schedule", "seed", "bounds", "guard", "quorum", "limit_s"),
            *("late_s", "shadow"),
        ],
    )


class Definition(_Settings):
    """A federation: its selector, the size of its cohorts, and when a round ends.

    A policy is a table such as `{"kind": "fixed-deadline", "seconds": 60}`. With the policy
    `"reported"`, the caller decides which clients were in time. Bounds are on (`true`), off
    (`false`), or a table with a switch for each of them.
    """

    name: Name
    selector: str = Field(description="A name that `turnout list` shows.")
    parameters: dict[str, Any] = Field(default={}, description="Parameters of the selector.")


class Enrolment(Body):
    """Clients that join or return, with their columns."""

    clients: list[ClientId] = Field(min_length=1)
    columns: dict[Annotated[str, Field(min_length=1, max_length=64)], Column] = Field(
        default={}, description="By name, one entry per client; null = unknown."
    )


class Withdrawal(Body):
    """Clients that leave."""

    clients: list[ClientId] = Field(min_length=1)


class Bits(Body):
    """A set of clients as base64 of bits, in the order of enrolment."""

    bits: str = Field(description="As numpy.packbits packs them: the first client is the top bit.")


class PollAnswers(Body):
    """Answers to a poll."""

    clients: list[ClientId]
    losses: Annotated[list[_Number], AfterValidator(_or_unknown)]


class Terms(Body):
    """What is special about the next round."""

    available: list[ClientId] | Bits | None = Field(
        default=None,
        description="The clients that can be selected; by default all that are enrolled and free.",
    )
    cohort_size: Size | None = Field(default=None, description='With the policy "reported" only.')
    deadline_s: Annotated[float, Field(gt=0.0, le=1e9)] | None = Field(
        default=None, description='With the policy "reported" only; null = no deadline.'
    )
    losses: PollAnswers | None = Field(
        default=None, description="The losses of the clients that .../poll returned."
    )


class NewRound(Terms):
    """A request for the next round."""

    round: Round | None = Field(
        default=None, description="The number of the round that the caller expects, from 0."
    )
    go_on: bool = Field(
        default=False, description="Continue after max_empty_rounds rounds without answers."
    )


class NewPlaces(Terms):
    """A request for work in the free places, where rounds overlap."""

    choice: Round | None = Field(
        default=None, description="The number of the choice that the caller expects, from 0."
    )
    go_on: bool = Field(
        default=False, description="Continue after max_empty_rounds rounds without answers."
    )


class ClientOutcome(Body):
    """The outcome of a selected client."""

    client: ClientId
    status: Literal["completed", "failed", "silent", "late"] = "completed"
    seconds: Seconds | None = Field(
        default=None,
        description="How long the client took; by default the time since the round was opened.",
    )
    metrics: dict[Annotated[str, Field(max_length=64)], _Metric] = Field(default={}, max_length=64)
    reason: Annotated[str, Field(max_length=500)] | None = None


class Outcomes(Body):
    """Outcomes of selected clients; a round can have several reports."""

    outcomes: list[ClientOutcome] = Field(min_length=1)
    length_s: Seconds | None = Field(
        default=None, description='How long the round took, with the policy "reported".'
    )


class NewToken(Body):
    """A token to make."""

    name: Name
    scope: Literal["read", "select", "admin"]


# --------------------------------------------------------------------------------------------------
# Responses. They are only described here: clients in typed languages are generated from it.
# --------------------------------------------------------------------------------------------------


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ProblemDocument(_Document):
    """Why a request was not carried out (RFC 9457); nothing has changed."""

    type: str = Field(description="urn:turnout: and a word for programs.")
    title: str
    status: int
    detail: str
    field: str | None = Field(description="The part of the request that is wrong.")
    fix: str = Field(description="What to do about it.")


class RoundResult(_Document):
    """How a round ended; lists are in the order of the clients."""

    status: list[Literal["completed", "late", "failed", "silent"]]
    seconds: list[float | None]
    reasons: dict[str, str]
    length_s: float
    void: bool = Field(description="Whether there were fewer answers than quorum.min_answers.")
    counts: dict[str, int]
    alerts: list[str]


class RoundDocument(_Document):
    """A round: the cohort, and how the round ended."""

    round: int
    state: Literal["open", "closed"]
    opened_at: float = Field(description="Seconds since 1970.")
    closes_at: float | None = Field(
        description="At the latest; null = when all clients are reported."
    )
    closed_at: float | None
    clients: list[ClientId]
    probability: list[float] | None = Field(
        description="The probability with which each client was selected."
    )
    times: list[int] = Field(description="How often each client was drawn.")
    deadline_s: float | None
    n_free: int = Field(description="The number of clients that could have been selected.")
    busy: list[ClientId] = Field(
        default=[], description="Clients that could not, because they still had work."
    )
    result: RoundResult | None = None
    reported: list[ClientId] | None = None
    choice: list[int] | None = Field(
        default=None,
        description="Where rounds overlap: the choice that gave each client its work. The clients "
        "are those whose work has ended in the round.",
    )
    model: list[int] | None = Field(
        default=None, description="Where rounds overlap: the version of the model that each got."
    )
    weight: list[float | None] | None = Field(
        default=None,
        description="Where rounds overlap: the factor for the staleness of each answer that makes "
        "the next model; null = it is not used.",
    )


class ModelsDocument(_Document):
    """The models of a federation whose rounds overlap."""

    version: int = Field(description="The model that clients get now: rounds closed so far.")
    versions: list[int] = Field(description="The models that are in use; drop all others.")
    next_choice: int = Field(description="The number of the next choice.")


class ChoiceDocument(ModelsDocument):
    """The clients that got work, all from the same model."""

    choice: int
    at: float | None = Field(description="Seconds since 1970; null = nobody got work.")
    model: int | None = Field(description="The version of the model that they work on.")
    clients: list[ClientId]
    probability: list[float] | None
    times: list[int]
    deadline_s: float | None = Field(description="Seconds until a client is given up.")
    n_free: int


class WorkInFlight(_Document):
    """A client at work."""

    client: ClientId
    choice: int
    model: int = Field(description="The version of the model that it got.")
    began_at: float = Field(description="Seconds since 1970.")


class PlacesDocument(ModelsDocument):
    """Who is at work."""

    work: list[WorkInFlight]
    places: int = Field(description="Clients that may get work now.")
    closes_at: float | None = Field(
        description="When the round ends, or a client is given up, if nobody reports until then."
    )
    refused: dict[str, int] = Field(description="Answers that did not count, by the reason.")


class WorkDocument(ModelsDocument):
    """The effect of a report on clients at work."""

    choice: int
    new: int
    repeated: int
    refused: dict[str, str] = Field(
        description="Clients whose report does not count, and why. It is recorded."
    )
    closed: list[int] = Field(description="The rounds that the report has closed.")


class ReportDocument(_Document):
    """The effect of a report."""

    round: int
    new: int
    repeated: int
    counted: int
    missing: int = Field(description="The number of selected clients without a report.")
    ignored: dict[str, str] = Field(
        default={}, description="Metrics that count as unknown or are not used, by client."
    )
    state: Literal["open", "closed"]


class CountsDocument(_Document):
    """The numbers of clients and rounds."""

    model_config = ConfigDict(extra="allow")

    n_clients: int
    n_present: int
    n_free: int
    n_rounds: int
    open_round: int | None
    version: int = Field(description="The number of events so far; every change increases it.")
