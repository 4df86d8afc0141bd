"""Live rounds as OpenTelemetry traces: a span for each round, with its parts as children.

Nothing is to be switched on: with ``pip install 'turnout[otel]'`` and a tracer provider of the
application the spans are exported, with neither they cost nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from turnout.errors import MissingExtra
from turnout.names import import_extra
from turnout.types import Status
from turnout.version import __version__

if TYPE_CHECKING:
    from turnout.session.round import Ended

_NOTHING: AbstractContextManager[Any] = nullcontext()


class Spans:
    """The span of the round that is under way. A round lasts until what it gave is saved.

    Args:
        run: The name of the run.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._round: Any = None
        self._is_closed = False
        self.is_quiet = False  #: whether rounds are played again, and begin no span
        try:
            self._trace = import_extra("opentelemetry.trace", "")
        except MissingExtra:
            self._trace = None

    def begin(self, round: int) -> None:
        """Begin a round, unless it has begun already; the one before ends at the latest now.

        Args:
            round: The round, counted from 0.
        """
        is_open = self._round is not None and not self._is_closed
        if self._trace is None or self.is_quiet or is_open:
            return
        self.finish()
        about = {"turnout.run": self._run, "turnout.round": round}
        self._round = self._tracer.start_span("turnout.round", attributes=about)

    def part(self, name: str) -> AbstractContextManager[Any]:
        """Return the span of a part of the round, as a context; it is current meanwhile.

        Args:
            name: What is done: wait, ask, choose, train, learn, aggregate, save.
        """
        if self._round is None:
            return _NOTHING
        context = self._trace.set_span_in_context(self._round)
        part: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            f"turnout.{name}", context=context
        )
        return part

    def close(self, ended: Ended) -> None:
        """Take in how the round ended.

        Args:
            ended: The round.
        """
        self._is_closed = True
        if self._round is not None:
            status = ended.closed.status
            numbers = {"chosen": len(status), "completed": int((status == Status.COMPLETED).sum())}
            about = {f"turnout.{name}": n for name, n in numbers.items()}
            self._round.set_attributes(about | {"turnout.void": ended.is_void})

    def finish(self) -> None:
        """End the span of the round, if there is one."""
        span, self._round, self._is_closed = self._round, None, False
        if span is not None:
            span.end()

    @property
    def _tracer(self) -> Any:
        return self._trace.get_tracer("turnout", __version__)
