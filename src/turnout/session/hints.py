"""How a client provides what a selector needs; a framework says it in its own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Hints:
    """The ends of error messages. Each is what to do, without a full stop."""

    def columns(self, names: Sequence[str]) -> str:
        """Return how clients fill columns."""
        return f"let clients send {', '.join(names)} with their identity"

    def metrics(self, keys: Mapping[str, str]) -> str:
        """Return how clients report metrics; ``keys`` has the key of each."""
        return f"let clients report {', '.join(map(repr, keys.values()))} with their answers"

    def weight(self, key: str) -> str:
        """Return how clients report the weight of their answers."""
        return f"let clients report {key!r} with their answers"

    def loss(self) -> str:
        """Return how clients answer a poll."""
        return "let clients answer the question for their loss"
