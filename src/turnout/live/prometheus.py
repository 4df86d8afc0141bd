"""Live runs as Prometheus metrics: on a port, in a file, or as text for a server of your own.

Every series has the label ``run``. There are no series by client: a federation may have millions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.names import import_extra
from turnout.core.types import Status
from turnout.live.alerts import KINDS
from turnout.live.monitor import AGE_SHARES, Follower, Numbers, People

if TYPE_CHECKING:
    from turnout.live.round import ClosedRound

#: Upper ends of the buckets of seconds.
_BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)
#: Most metrics of a model that are shown: clients must not be able to add more and more of them.
_MOST_MEASURED = 50


class Prometheus(Follower):
    """Keeps the metrics of one or more live runs; needs ``pip install 'turnout[metrics]'``.

    Args:
        port: Where ``/metrics`` is served from the start to the end of a run; None serves nothing,
            0 takes a free one.
        host: The address that it is served on; ``"0.0.0.0"`` lets other machines read it.
        file: A file for node_exporter's textfile collector, whose name ends in ``.prom``; it is
            written after each round. None writes none.

    >>> metrics = Prometheus()
    >>> metrics.text().decode().splitlines()[0]
    '# HELP turnout_rounds_total Rounds that have ended.'
    """

    def __init__(
        self,
        port: int | None = None,
        *,
        host: str = "127.0.0.1",
        file: str | os.PathLike[str] | None = None,
    ) -> None:
        self._library = import_extra(
            "prometheus_client",
            "Prometheus needs another package: pip install 'turnout[metrics]'.",
        )
        self.port = (
            None if port is None else require.integer("port", port, minimum=0, maximum=65535)
        )
        self.host, self.file = host, None if file is None else _checked(os.fspath(file))
        self.registry = self._library.CollectorRegistry()
        self._lock = RLock()  # one registry may follow several runs
        self._server: Any = None
        self._n_served = 0
        self._measured: dict[str, set[str]] = {}
        self._make(self._library)

    @property
    def content_type(self) -> str:
        """The ``Content-Type`` of ``text``."""
        return str(self._library.CONTENT_TYPE_LATEST)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format, for ``/metrics`` of a server."""
        return bytes(self._library.generate_latest(self.registry))

    def forget(self, run: str) -> None:
        """Drop the series of a run that was deleted.

        Args:
            run: Its name.
        """
        with self._lock:
            for metric in self._all:
                metric.remove_by_labels({"run": run})
            self._measured.pop(run, None)

    def start(self, run: str, about: Mapping[str, Any]) -> None:
        """Open the port, if there is one, and show a run that has no rounds yet."""
        if self.file is not None and not Path(self.file).parent.is_dir():  # on this machine
            folder = Path(self.file).parent
            raise InvalidInput(f"file: the folder {folder} does not exist.", field="file")
        with self._lock:
            if self.port is not None and self._server is None:
                self._server = self._serve(self.port)
                self.port = self._server.server_port
            self._n_served += self._server is not None
            self._touch(run)
            self._write()

    def opened(self, run: str, round: int, people: People) -> None:
        """Show how many clients there are, and which round is open."""
        with self._lock:
            self._round.labels(run).set(round + 1)
            self._show(run, people)

    def ended(self, run: str, ended: ClosedRound, numbers: Numbers) -> None:
        """Count a round."""
        with self._lock:
            self._touch(run)
            self._rounds.labels(run).inc()
            self._void.labels(run).inc(int(ended.is_void))
            for status, n in numbers.statuses.items():
                self._chosen.labels(run, status).inc(n)
            for alert in ended.alerts:
                self._alerts.labels(run, alert.kind).inc()
            self._train_s.labels(run).observe(numbers.train_s)
            self._wait_s.labels(run).observe(numbers.wait_s)
            for share, age in zip(AGE_SHARES, numbers.ages, strict=True):
                self._age.labels(run, f"{share:g}").set(age)
            self._success.labels(run).set(numbers.success_ratio)
            self._fairness.labels(run).set(numbers.fairness)
            self._show(run, numbers.people)
            self._write()

    def measured(self, run: str, round: int, values: Mapping[str, float]) -> None:
        """Show the metrics of the model."""
        with self._lock:
            names = self._measured.setdefault(run, set())
            for name, value in values.items():
                if name in names or len(names) < _MOST_MEASURED:
                    names.add(name)
                    self._model.labels(run, name).set(value)
            self._write()

    def end(self, run: str) -> None:
        """Close the port after the last run that uses it."""
        with self._lock:
            self._n_served = max(0, self._n_served - 1)
            if self._server is not None and not self._n_served:
                self._server.shutdown()
                self._server.server_close()
                self._server = None

    def _make(self, library: Any) -> None:
        def made(kind: Any, name: str, text: str, *labels: str, **more: Any) -> Any:
            metric = kind(f"turnout_{name}", text, ("run", *labels), registry=self.registry, **more)
            self._all.append(metric)
            return metric

        count, gauge, times = library.Counter, library.Gauge, library.Histogram
        self._all: list[Any] = []
        self._rounds = made(count, "rounds", "Rounds that have ended.")
        self._void = made(count, "void_rounds", "Rounds with too few answers.")
        self._chosen = made(count, "chosen", "Chosen clients, by how it ended.", "status")
        self._alerts = made(count, "alerts", "Alerts, by kind.", "kind")
        self._round = made(gauge, "round", "The round that was opened last, counted from 1.")
        self._people = made(gauge, "clients", "Clients: known, connected, free, busy.", "state")
        self._train_s = made(
            times, "train_seconds", "From sending work to the end of a round.", buckets=_BUCKETS
        )
        self._wait_s = made(
            times,
            "wait_seconds",
            "Waiting, asking and choosing before that.",
            buckets=_BUCKETS,
        )
        self._age = made(
            gauge,
            "last_choice_age_rounds",
            "Rounds since their last choice in which connected clients were free.",
            "share",
        )
        self._success = made(gauge, "success_ratio", "Share of all choices answered in time.")
        self._fairness = made(gauge, "fairness", "Jain's index of choices while free.")
        self._model = made(gauge, "model", "What the model was last measured at.", "metric")

    def _touch(self, run: str) -> None:
        """Create the counters of a run, so that they start at 0 and not with the first event."""
        for metric in (self._rounds, self._void, self._train_s, self._wait_s):
            metric.labels(run)
        for status in Status:
            self._chosen.labels(run, status.name.lower())
        for kind in KINDS:
            self._alerts.labels(run, kind)

    def _show(self, run: str, people: People) -> None:
        for state, n in people._asdict().items():
            self._people.labels(run, state).set(n)

    def _serve(self, port: int) -> Any:
        try:
            return self._library.start_http_server(port, self.host, self.registry)[0]
        except OSError as error:
            raise InvalidInput(
                f"port {port} of {self.host} cannot be opened for metrics ({error.strerror}): give "
                "another one, or end the process that has it.",
                field="port",
            ) from error

    def _write(self) -> None:
        if self.file is not None:
            self._library.write_to_textfile(self.file, self.registry)


def _checked(path: str) -> str:
    if not path.endswith(".prom"):
        raise InvalidInput(
            f"file must end in .prom, the collector reads no other, got {Path(path).name!r}.",
            field="file",
        )
    return path
