"""How a client provides what a selector needs; a framework says it in its own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def report_losses(keys: Mapping[str, str], reply: str, module: str, owner: str) -> str:
    """Return how a client uses a ``LossReport``, or names keys of its own.

    Args:
        keys: The key of each metric, by its name.
        reply: What the client sends, with ``report.metrics()`` in it.
        module: Where ``LossReport`` is imported from.
        owner: The class that takes ``metric_keys``.
    """
    own = ", ".join(f"{name!r}: ..." for name in keys)
    return (
        "on the client, make report = LossReport() before the training, call report.add(loss, "
        f"n=len(batch)) for each mini-batch, and {reply}; it is in {module}. Or name keys of your "
        f"own: {owner}(..., metric_keys={{{own}}})"
    )


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
