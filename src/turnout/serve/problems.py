"""Errors as the API answers them: RFC 9457 problem documents that name the field and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MEDIA_TYPE = "application/problem+json"


class Refusal(Exception):
    """A request that is not carried out; nothing has changed.

    Args:
        status: The HTTP status.
        kind: What went wrong, as a word for programs.
        detail: What went wrong, in a sentence.
        fix: What to do about it.
        field: Which part of the request is wrong.
        headers: Further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        fix: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.fix, self.field, self.headers = fix, field, headers

    def document(self) -> dict[str, Any]:
        """Return the body of the answer."""
        return {
            "type": f"urn:turnout:{self.kind}",
            "title": self.kind.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": self.detail,
            "field": self.field,
            "fix": self.fix,
        }


def unknown_federation(name: str) -> Refusal:
    """Return that there is no federation of that name."""
    return Refusal(
        404,
        "unknown-federation",
        f"there is no federation {name!r}.",
        field="name",
        fix="Create it with POST /federations, or list those there are with GET /federations.",
    )


def unknown_clients(clients: list[Any], field: str) -> Refusal:
    """Return that clients are not enrolled."""
    some = ", ".join(map(repr, clients[:5])) + (", ..." if len(clients) > 5 else "")
    return Refusal(
        404,
        "unknown-client",
        f"{len(clients)} ids are not enrolled: {some}.",
        field=field,
        fix="Enrol them first with PUT .../clients, or leave them out.",
    )


def unknown_round(number: int, next_round: int) -> Refusal:
    """Return that a round was never opened."""
    return Refusal(
        404,
        "unknown-round",
        f"round {number} was never opened; the next one is {next_round}.",
        field="round",
        fix="Open it first with POST .../rounds.",
    )
