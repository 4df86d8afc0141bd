"""What requests hold, checked by pydantic; lists of clients and columns are compact arrays."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

#: A stable id: a text of up to 256 characters, or an integer.
ClientId: TypeAlias = (
    Annotated[StrictStr, Field(min_length=1, max_length=256)]
    | Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
)
_Number: TypeAlias = float | None
#: One number for each client, or one list of numbers for each; null = unknown.
Column: TypeAlias = Annotated[
    list[_Number] | list[list[_Number]], Field(union_mode="left_to_right")
]
Seconds: TypeAlias = Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)]
Name: TypeAlias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
Round: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
Size: TypeAlias = Annotated[int, Field(ge=1, lt=2**31)]


class Body(BaseModel):
    """What all bodies share: unknown keys are errors, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class GuardBody(Body):
    """A floor and a cap around the selector."""

    floor: float = 0.5
    cap: float = 2.0


class QuorumBody(Body):
    """How many it takes."""

    min_answers: int = 1
    min_free: int = 1
    max_empty_rounds: int | None = None


class Definition(Body):
    """A federation: who chooses, how many, and when a round ends."""

    name: Name
    selector: str = Field(description="A name of `turnout list`.")
    parameters: dict[str, Any] = Field(default={}, description="Of the selector.")
    cohort_size: int = Field(description="Answers that are wanted per round.")
    policy: dict[str, Any] | str | None = Field(
        default=None,
        description='When a round ends, such as {"kind": "fixed-deadline", "seconds": 60}; '
        '"reported" leaves it to the caller who was in time.',
    )
    seed: int = 0
    bounds: bool | dict[str, bool] = Field(
        default=True, description="Whether claims of clients are bounded by those of the others."
    )
    guard: GuardBody | None = None
    quorum: QuorumBody = QuorumBody()
    limit_s: Seconds = Field(
        default=3600.0, description="Seconds after which a round ends at the latest."
    )
    late_s: Seconds | None = Field(
        default=None,
        description="Seconds after the deadline that a late client stays busy; as many as it.",
    )


class Enrolment(Body):
    """Clients that join or come back, with what is known about them."""

    clients: list[ClientId] = Field(min_length=1)
    columns: dict[Annotated[str, Field(min_length=1, max_length=64)], Column] = Field(
        default={}, description="By name, one entry for each client; null = unknown."
    )


class Withdrawal(Body):
    """Clients that leave."""

    clients: list[ClientId] = Field(min_length=1)


class Bits(Body):
    """A set of clients as base64 of bits, in the order in which clients were enrolled."""

    bits: str = Field(description="As numpy.packbits packs them: the first client is the top bit.")


class PollAnswers(Body):
    """Answers to a poll."""

    clients: list[ClientId]
    losses: list[_Number]


class Terms(Body):
    """What is special about the next round."""

    available: list[ClientId] | Bits | None = Field(
        default=None,
        description="Who can be chosen; without it everyone who is enrolled and not late.",
    )
    cohort_size: Size | None = Field(default=None, description='With the policy "reported" only.')
    deadline_s: Annotated[float, Field(gt=0.0, le=1e9)] | None = Field(
        default=None, description='With the policy "reported" only; none = no deadline.'
    )
    losses: PollAnswers | None = Field(
        default=None, description="What those answered whom .../poll named."
    )


class NewRound(Terms):
    """A request for the next round."""

    round: Round | None = Field(
        default=None, description="The number that the caller means, from 0."
    )
    go_on: bool = Field(
        default=False, description="Go on after max_empty_rounds rounds without answers."
    )


class ClientOutcome(Body):
    """What became of a chosen client."""

    client: ClientId
    status: Literal["completed", "failed", "silent", "late"] = "completed"
    seconds: Seconds | None = Field(
        default=None,
        description="How long it took; without it, the time since the round was opened.",
    )
    metrics: dict[Annotated[str, Field(max_length=64)], float | None] = Field(
        default={}, max_length=64
    )
    reason: Annotated[str, Field(max_length=500)] | None = None


class Outcomes(Body):
    """What became of chosen clients; several reports for a round are fine."""

    outcomes: list[ClientOutcome] = Field(min_length=1)
    length_s: Seconds | None = Field(
        default=None, description='How long the round took, with the policy "reported".'
    )


class NewToken(Body):
    """A token to make."""

    name: Name
    scope: Literal["read", "select", "admin"]
