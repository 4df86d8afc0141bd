"""What answers hold, for ``/openapi.json``: clients in typed languages are generated from it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from turnout.serve.problems import MEDIA_TYPE
from turnout.serve.schemas import ClientId


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ProblemDocument(_Document):
    """Why a request was not carried out (RFC 9457); nothing has changed."""

    type: str = Field(description="urn:turnout: and a word for programs.")
    title: str
    status: int
    detail: str
    field: str | None = Field(description="Which part of the request is wrong.")
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
    """A round: who was chosen, and how it ended."""

    round: int
    state: Literal["open", "closed"]
    opened_at: float = Field(description="Seconds since 1970.")
    closes_at: float | None = Field(description="At the latest; none = when everyone was reported.")
    closed_at: float | None
    clients: list[ClientId]
    probability: list[float] | None = Field(description="The chance that each had of being chosen.")
    times: list[int] = Field(description="How often each was drawn.")
    deadline_s: float | None
    n_free: int = Field(description="How many could have been chosen.")
    result: RoundResult | None = None
    reported: list[ClientId] | None = None


class ReportDocument(_Document):
    """What became of a report."""

    round: int
    new: int
    repeated: int
    counted: int
    missing: int = Field(description="Chosen clients that were not reported yet.")
    state: Literal["open", "closed"]


class CountsDocument(_Document):
    """How many clients and rounds there are."""

    model_config = ConfigDict(extra="allow")

    n_clients: int
    n_present: int
    n_free: int
    n_rounds: int
    open_round: int | None
    version: int = Field(description="How many events there were; it changes with everything.")


_PROBLEM = {
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    "description": ProblemDocument.__doc__,
}
#: The errors of every request.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": ProblemDocument},  # puts the schema among the components
    **dict.fromkeys((401, 403, 404, 409, 413, 422, 503), _PROBLEM),
}


def answered(*statuses: int, by: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return what a route says about its answers.

    Args:
        statuses: Of the answers.
        by: What they hold.
    """
    return {status: {"model": by} for status in statuses}
