"""The selector itself: what it is told goes to the server, what the server chooses comes back."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np

from turnout.experiment.codec import encode
from turnout.registry import make
from turnout.remote.wire import RemoteError, Wire
from turnout.selector import Selector
from turnout.types import Array, IntArray, Outcome, RoundContext, Selection, Status

#: Clients that one request enrols.
_MOST_CLIENTS = 200_000


class Remote(Selector):
    """A federation of a server, used like a selector; its state stays on the server.

    The server draws from its own streams, which are those of ``turnout.simulate`` with the same
    seed. Requests that get no answer are repeated, which is safe.

    Args:
        url: Where the server is, such as ``http://127.0.0.1:8717``.
        federation: Its name there.
        selector: Who chooses, if the federation is to be created; without it, it exists, has the
            policy ``reported`` and no clients.
        selector_parameters: Of that selector.
        token: With the scope admin to create a federation, select to use one; without it, what the
            variable ``TURNOUT_TOKEN`` holds.
        seed: Of the server's draws; ``turnout.simulate`` gives its own.
        replace: Whether a federation of that name is deleted first.
        patience_s: Seconds that a server which does not answer is waited for.

    >>> Remote(url="http://127.0.0.1:8717", federation="demo", selector="e3cs").selector
    'e3cs'
    """

    def __init__(
        self,
        *,
        url: str,
        federation: str,
        selector: str | None = None,
        selector_parameters: Mapping[str, Any] | None = None,
        token: str | None = None,
        seed: int = 0,
        replace: bool = False,
        patience_s: float = 60.0,
    ) -> None:
        self.url = url
        self.federation = federation
        self.selector = selector
        self.selector_parameters = selector_parameters
        self.token = token
        self.seed = seed
        self.replace = replace
        self.patience_s = patience_s

    def __repr__(self) -> str:
        """Return what it is, without the token."""
        return f"Remote(url={self.url!r}, federation={self.federation!r})"

    def reset(self, n_clients: int) -> None:
        """Start the federation on the server, with clients 0 to n - 1.

        Args:
            n_clients: The number of clients, available or not.

        Raises:
            RemoteError: It has clients already, or the server refuses.
        """
        self.prepare(n_clients, self.seed)

    def prepare(self, n_clients: int, seed: int = 0) -> None:
        """Start the federation on the server, with clients 0 to n - 1.

        Args:
            n_clients: The number of clients, available or not.
            seed: Of the server's draws, if the federation is created.
        """
        super().reset(n_clients)
        self._sent: dict[str, Array] = {}
        if self.selector is not None:
            self._create(seed)
        there = self._call("GET", "")
        if there["policy"] != "reported" or there["n_clients"]:
            raise RemoteError(
                f"the federation {self.federation!r} must have the policy 'reported' and no "
                f"clients, got {there['policy']!r} and {there['n_clients']}: name another one, or "
                "give a selector and replace=True."
            )
        self._enrol(0, n_clients)

    def grow(self, n_clients: int) -> None:
        """Enrol more clients.

        Args:
            n_clients: The new number of clients, not below the present one.
        """
        before = self.n_clients
        super().grow(n_clients)
        self._enrol(before, n_clients)

    def poll(self, ctx: RoundContext, rng: np.random.Generator) -> IntArray | None:
        """Return whose losses the server's selector wants to see.

        Args:
            ctx: What is known before the round.
            rng: Not used; the server draws.
        """
        if not self.polls:
            return None
        self._tell(ctx)
        polled = self._call("POST", "/poll", self._terms(ctx))["clients"]
        return np.array(polled, dtype=np.int64) if polled else None

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Open the round on the server; asking again returns the same choice.

        Args:
            ctx: What is known before the round.
            rng: Not used; the server draws.
        """
        self._tell(ctx)
        terms = self._terms(ctx)
        if ctx.polled is not None and ctx.polled_loss is not None:
            losses = _plain(ctx.polled_loss)
            terms["losses"] = {"clients": ctx.polled.tolist(), "losses": losses}
        chosen = self._call("POST", "/rounds", terms)
        chance, times = chosen["probability"], np.array(chosen["times"], dtype=np.int64)
        memo = {"multiplicity": times} if np.any(times != 1) else {}
        clients = np.array(chosen["clients"], dtype=np.int64)
        probability = None if chance is None else np.array(chance, dtype=np.float64)
        return Selection(ctx.round, clients, probability, memo)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Report the outcomes, which closes the round on the server.

        Args:
            selection: What ``select`` returned.
            outcome: What happened, aligned with ``selection.clients``.
        """
        path = f"/rounds/{selection.round}"
        if not selection.clients.size:
            self._call("POST", f"{path}/close")
            return
        seconds = _plain(outcome.duration)
        metrics = {name: _plain(outcome.metric(name)) for name in self.needs_metrics}
        outcomes = [
            {
                "client": client,
                "status": Status(status).name.lower(),
                "seconds": seconds[i],
                "metrics": {name: values[i] for name, values in metrics.items()},
            }
            for i, (client, status) in enumerate(
                zip(selection.clients.tolist(), outcome.status.tolist(), strict=True)
            )
        ]
        self._call("POST", f"{path}/outcomes", {"outcomes": outcomes})

    @property
    def polls(self) -> bool:
        """Whether the server's selector does."""
        return self._twin.polls

    @property
    def needs_columns(self) -> frozenset[str]:  # type: ignore[override]  # the server's selector's
        """What the server's selector needs."""
        return self._twin.needs_columns

    @property
    def uses_columns(self) -> frozenset[str]:  # type: ignore[override]  # the server's selector's
        """What the server's selector uses."""
        return self._twin.uses_columns

    @property
    def needs_metrics(self) -> frozenset[str]:  # type: ignore[override]  # the server's selector's
        """What the server's selector learns from."""
        return self._twin.needs_metrics

    @property
    def reports_probability(self) -> bool:  # type: ignore[override]  # the server's selector's
        """As the server's selector."""
        return self._twin.reports_probability

    @property
    def poll_data(self) -> Literal["all", "mini-batch"]:  # type: ignore[override]  # the same
        """What the server's selector polls."""
        return self._twin.poll_data

    @property
    def may_underfill(self) -> bool:  # type: ignore[override]  # the server's selector's
        """As the server's selector."""
        return self._twin.may_underfill

    @property
    def _twin(self) -> Selector:
        """A selector like the server's, which says what it needs and is never asked to choose."""
        if "_local" not in vars(self):
            name, parameters = self.selector, dict(self.selector_parameters or {})
            if name is None:
                there = self._call("GET", "")
                name, parameters = there["selector"], there["parameters"]
            self._local = make(name, **parameters)
        return self._local

    def _create(self, seed: int) -> None:
        if self.replace:
            try:
                self._call("DELETE", "")
            except RemoteError as error:
                if error.status != 404:
                    raise
        definition = {
            "name": self.federation,
            "selector": self.selector,
            "parameters": encode(dict(self.selector_parameters or {})),
            "cohort_size": 1,  # every round says its own
            "policy": "reported",
            "seed": seed,
            "bounds": False,
        }
        self._send("POST", "/federations", definition)

    def _enrol(self, start: int, stop: int) -> None:
        for first in range(start, stop, _MOST_CLIENTS):
            clients = list(range(first, min(first + _MOST_CLIENTS, stop)))
            self._call("PUT", "/clients", {"clients": clients})

    def _tell(self, ctx: RoundContext) -> None:
        """Send columns that have changed, of the clients for whom they have."""
        for name in sorted((self.needs_columns | self.uses_columns) & ctx.columns.keys()):
            values = np.asarray(ctx.columns[name], dtype=np.float64)
            before = self._sent.get(name)
            changed = np.arange(values.shape[0])
            if before is not None and before.shape == values.shape:
                is_same = (values == before) | (np.isnan(values) & np.isnan(before))
                changed = np.flatnonzero(~is_same.reshape(values.shape[0], -1).all(axis=1))
            for first in range(0, changed.size, _MOST_CLIENTS):
                clients = changed[first : first + _MOST_CLIENTS]
                body = {"clients": clients.tolist(), "columns": {name: _plain(values[clients])}}
                self._call("PUT", "/clients", body)
            self._sent[name] = values.copy()

    def _terms(self, ctx: RoundContext) -> dict[str, Any]:
        terms: dict[str, Any] = {"round": ctx.round, "cohort_size": ctx.cohort_size}
        if math.isfinite(ctx.deadline):
            terms["deadline_s"] = ctx.deadline
        if not ctx.available.all():
            bits = base64.b64encode(np.packbits(ctx.available).tobytes()).decode()
            terms["available"] = {"bits": bits}
        return terms

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        return self._send(method, f"/federations/{self.federation}{path}", body)

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        if "_wire" not in vars(self):
            self._wire = Wire(self.url, self.token, self.patience_s)
        return self._wire.send(method, path, body)

    def _fresh(self, n_clients: int) -> Self:
        fresh = self.clone()
        fresh.n_clients_ = n_clients  # the state itself is on the server
        return fresh


def _plain(values: Array) -> list[Any]:
    """Return numbers as lists, with None for those that JSON does not have."""
    if np.isfinite(values).all():
        listed: list[Any] = values.tolist()
        return listed
    if values.ndim > 1:
        return [_plain(row) for row in values]
    return [value if math.isfinite(value) else None for value in values.tolist()]
