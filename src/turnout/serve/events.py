"""What can happen to a federation. Events are all that changes one, now and when it is replayed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from turnout.serve.schemas import Enrolment, Outcomes, Terms, Withdrawal


class _Recorded(BaseModel):
    model_config = ConfigDict(frozen=True)


class RoundOpened(_Recorded):
    """A round was opened."""

    round: int
    terms: Terms


class RoundReported(_Recorded):
    """Outcomes were reported; only those that were new."""

    round: int
    report: Outcomes


class RoundClosed(_Recorded):
    """A round was closed."""

    round: int


class StateImported(_Recorded):
    """The state was replaced by the snapshot of the same number."""


Content = Enrolment | Withdrawal | RoundOpened | RoundReported | RoundClosed | StateImported

KINDS: Mapping[str, type[Content]] = MappingProxyType(
    {
        "enrolled": Enrolment,
        "withdrawn": Withdrawal,
        "opened": RoundOpened,
        "reported": RoundReported,
        "closed": RoundClosed,
        "imported": StateImported,
    }
)
_KIND_OF = {content: kind for kind, content in KINDS.items()}


class Event(NamedTuple):
    """One of them.

    Attributes:
        seq: Its number, from 1.
        at: When, in seconds since 1970.
        content: What.
    """

    seq: int
    at: float
    content: Content

    @property
    def kind(self) -> str:
        """What it is called in the database."""
        return _KIND_OF[type(self.content)]

    @property
    def round(self) -> int | None:
        """The round that it is about."""
        return getattr(self.content, "round", None)


def packed(content: Content) -> bytes:
    """Return an event as the database keeps it."""
    return zlib.compress(content.model_dump_json(exclude_defaults=True).encode(), 1)


def unpacked(seq: int, at: float, kind: str, body: bytes) -> Event:
    """Return an event from the database."""
    return Event(seq, at, KINDS[kind].model_validate_json(zlib.decompress(body)))
