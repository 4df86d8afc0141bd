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
from turnout.live.alerts import KINDS, Alert
from turnout.live.monitor import AGE_SHARES, Follower, Numbers, People

if TYPE_CHECKING:
    from turnout.live.round import ClosedRound

#: Upper ends of the buckets of seconds.
_BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600)
#: Most metrics of a model that are shown: clients must not be able to add more and more of them.
_MOST_MEASURED = 50
#: Name, kind and help of each metric, and its label beside ``run``.
_METRICS = (
    ("rounds", "Counter", "Rounds that have ended."),
    ("void_rounds", "Counter", "Rounds with too few answers."),
    ("short_rounds", "Counter", "Rounds with fewer clients than wanted: too few were free."),
    ("chosen", "Counter", "Chosen clients, by how it ended.", "status"),
    ("alerts", "Counter", "Alerts, by kind.", "kind"),
    ("round", "Gauge", "The round that was opened last, counted from 1."),
    ("cohort", "Gauge", "Clients of the latest round: wanted, chosen.", "size"),
    ("clients", "Gauge", "Clients: known, connected, free, busy.", "state"),
    ("train_seconds", "Histogram", "From sending work to the end of a round."),
    ("wait_seconds", "Histogram", "Waiting, asking and choosing before that."),
    (
        "last_choice_age_rounds",
        "Gauge",
        "Rounds since their last choice in which connected clients were free.",
        "share",
    ),
    ("success_ratio", "Gauge", "Share of all choices answered in time."),
    ("fairness", "Gauge", "Jain's index of choices while free."),
    ("model", "Gauge", "What the model was last measured at.", "metric"),
)


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
        self.host, self.file = host, None if file is None else os.fspath(file)
        if self.file is not None and not self.file.endswith(".prom"):
            raise require.wrong(
                "file", "end in .prom, the collector reads no other", Path(self.file).name
            )
        self.registry = self._library.CollectorRegistry()
        self._lock = RLock()  # one registry may follow several runs
        self._server: Any = None
        self._n_served = 0
        self._measured: dict[str, set[str]] = {}
        self._metrics: dict[str, Any] = {}
        for name, kind, text, *labels in _METRICS:
            buckets = {"buckets": _BUCKETS} if kind == "Histogram" else {}
            self._metrics[name] = getattr(self._library, kind)(
                f"turnout_{name}", text, ("run", *labels), registry=self.registry, **buckets
            )

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
            for metric in self._metrics.values():
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
            self._metrics["round"].labels(run).set(round + 1)
            self._show(run, people)

    def ended(self, run: str, ended: ClosedRound, numbers: Numbers) -> None:
        """Count a round."""
        with self._lock:
            self._touch(run)
            metrics = self._metrics
            metrics["rounds"].labels(run).inc()
            metrics["void_rounds"].labels(run).inc(int(ended.is_void))
            metrics["short_rounds"].labels(run).inc(int(numbers.is_short))
            metrics["cohort"].labels(run, "wanted").set(numbers.n_wanted)
            metrics["cohort"].labels(run, "chosen").set(sum(numbers.statuses.values()))
            for status, n in numbers.statuses.items():
                metrics["chosen"].labels(run, status).inc(n)
            for alert in ended.alerts:
                metrics["alerts"].labels(run, alert.kind).inc()
            for name in ("train", "wait"):
                metrics[f"{name}_seconds"].labels(run).observe(getattr(numbers, f"{name}_s"))
            for share, age in zip(AGE_SHARES, numbers.ages, strict=True):
                metrics["last_choice_age_rounds"].labels(run, f"{share:g}").set(age)
            for name in ("success_ratio", "fairness"):
                metrics[name].labels(run).set(getattr(numbers, name))
            self._show(run, numbers.people)
            self._write()

    def measured(self, run: str, round: int, values: Mapping[str, float]) -> None:
        """Show the metrics of the model."""
        with self._lock:
            names = self._measured.setdefault(run, set())
            for name, value in values.items():
                if name in names or len(names) < _MOST_MEASURED:
                    names.add(name)
                    self._metrics["model"].labels(run, name).set(value)
            self._write()

    def alerted(self, run: str, alert: Alert) -> None:
        """Count an alert between two rounds."""
        with self._lock:
            self._metrics["alerts"].labels(run, alert.kind).inc()
            self._write()

    def end(self, run: str) -> None:
        """Close the port after the last run that uses it."""
        with self._lock:
            self._n_served = max(0, self._n_served - 1)
            if self._server is not None and not self._n_served:
                self._server.shutdown()
                self._server.server_close()
                self._server = None

    def _touch(self, run: str) -> None:
        """Create the counters of a run, so that they start at 0 and not with the first event."""
        for name in ("rounds", "void_rounds", "short_rounds", "train_seconds", "wait_seconds"):
            self._metrics[name].labels(run)
        for status in Status:
            self._metrics["chosen"].labels(run, status.name.lower())
        for kind in KINDS:
            self._metrics["alerts"].labels(run, kind)

    def _show(self, run: str, people: People) -> None:
        for state, n in people._asdict().items():
            self._metrics["clients"].labels(run, state).set(n)

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
