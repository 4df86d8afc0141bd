"""The client of a server.

``Remote`` acts as a selector, ``Places`` keeps clients at work where rounds overlap, and ``follow``
is for trackers.
"""

from __future__ import annotations

import base64
import math
import os
import time
import weakref
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from operator import attrgetter
from typing import Any, Self

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput, TurnoutError
from turnout.core.names import import_extra
from turnout.core.plain import finite
from turnout.core.registry import make
from turnout.core.selector import Selector
from turnout.core.types import Array, IntArray, Outcome, RoundContext, Selection, Status
from turnout.experiment.codec import encode
from turnout.results.callbacks import Callback

# --------------------------------------------------------------------------------------------------
# Requests. They are repeated until the server responds, because each of them is safe to repeat.
# --------------------------------------------------------------------------------------------------

#: The environment variable that holds the token, if none is given.
TOKEN_VARIABLE = "TURNOUT_TOKEN"

#: Seconds between two attempts while the server does not respond.
_PAUSE_S = 0.2
#: Statuses of a server, or of a proxy in front of it, that may respond a moment later.
_UNAVAILABLE = (502, 503, 504)


class RemoteError(TurnoutError, RuntimeError):
    """The server rejected a request, or does not respond.

    Args:
        message: What is wrong, and the fix, in the server's words.
        status: The HTTP status; 0 if there was no response.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ServerConnection:
    """The connection to a server.

    Args:
        url: The address of the server.
        token: The token to send; None sends that in ``TURNOUT_TOKEN``, if there is one.
        patience_s: Seconds to wait for a server that does not respond.
    """

    def __init__(self, url: str, token: str | None, patience_s: float) -> None:
        advice = "turnout.Remote needs httpx: pip install 'turnout[remote]'"
        self._library = import_extra("httpx", advice)
        self._url, self._patience_s = url, patience_s
        token = token or os.environ.get(TOKEN_VARIABLE)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.client = self._library.Client(base_url=url, headers=headers, timeout=patience_s)
        weakref.finalize(self, self.client.close)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Return the content of the response.

        Args:
            method: The HTTP method.
            path: The path below the server's URL.
            body: The body of the request, as plain data.

        Raises:
            RemoteError: The server rejects the request, or does not respond in time.
        """
        ends = time.monotonic() + self._patience_s
        while True:
            try:
                response = self.client.request(method, path, json=body)
                if response.status_code not in _UNAVAILABLE:
                    break
                problem = f"{response.status_code}: {_message(response)}"
            except self._library.TransportError as error:
                problem = str(error)
            except self._library.InvalidURL as error:
                raise InvalidInput(f"url is no URL: {error}.", field="url") from error
            if time.monotonic() >= ends:
                raise RemoteError(
                    f"{self._url} does not respond ({problem.rstrip('.?')}): is the server running?"
                )
            time.sleep(_PAUSE_S)
        if response.is_success:
            return response.json() if response.content else None
        raise RemoteError(_message(response), response.status_code)


def _message(response: Any) -> str:
    """Return what the server says is wrong; a proxy may have responded instead."""
    try:
        problem = response.json()
        return f"{problem['detail']} {problem['fix']}"
    except (ValueError, LookupError, TypeError):
        return f"{response.url} responded with {response.status_code}: is it a turnout server?"


#: Clients in one request to enrol them.
_MAX_CLIENTS = 200_000


class Remote(Selector):
    """A federation of a server, used like a selector; its state stays on the server.

    The server draws from its own random streams, which are those of ``turnout.simulate`` with the
    same seed. Requests without a response are repeated, which is safe.

    Args:
        url: The address of the server, such as ``http://127.0.0.1:8717``.
        federation: The name of the federation on the server.
        selector: The selector of a federation that is to be created. Without it, the federation
            must exist, with the policy ``reported`` and without clients.
        selector_parameters: The parameters of that selector.
        token: A token with the scope admin to create a federation, or select to use one; None uses
            the environment variable ``TURNOUT_TOKEN``.
        seed: The seed of the server's draws; ``turnout.simulate`` gives its own.
        replace: Whether an existing federation of that name is deleted first.
        patience_s: Seconds to wait for a server that does not respond.

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
        """Return the address and the federation, without the token."""
        return f"Remote(url={self.url!r}, federation={self.federation!r})"

    def reset(self, n_clients: int) -> None:
        """Start the federation on the server, with clients 0 to n - 1.

        Args:
            n_clients: The number of clients, available or not.

        Raises:
            RemoteError: The federation has clients already, or the server rejects the request.
        """
        self.prepare(n_clients, self.seed)

    def prepare(self, n_clients: int, seed: int = 0) -> None:
        """Start the federation on the server, with clients 0 to n - 1.

        Args:
            n_clients: The number of clients, available or not.
            seed: The seed of the server's draws, if the federation is created.
        """
        super().reset(n_clients)
        self._sent: dict[str, Array] = {}
        if self.selector is not None:
            self._create(seed)
        there = self._call("GET", "")
        if there["policy"] != "reported" or there["n_clients"]:
            raise RemoteError(
                f"the federation {self.federation!r} must have the policy 'reported' and no "
                f"clients, got {there['policy']!r} and {there['n_clients']}: give another name, or "
                "give a selector and replace=True."
            )
        self._put(np.arange(n_clients))

    def grow(self, n_clients: int) -> None:
        """Enrol more clients.

        Args:
            n_clients: The new number of clients, not below the present one.
        """
        before = self.n_clients
        super().grow(n_clients)
        self._put(np.arange(before, n_clients))

    def poll(self, ctx: RoundContext, rng: np.random.Generator) -> IntArray | None:
        """Return the clients whose losses the server's selector needs.

        Args:
            ctx: The context of the round.
            rng: Unused; the server draws.
        """
        if not self.polls:
            return None
        self._send_columns(ctx)
        polled = self._call("POST", "/poll", self._terms(ctx))["clients"]
        return np.array(polled, dtype=np.int64) if polled else None

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Open the round on the server; a repeated call returns the same selection.

        Args:
            ctx: The context of the round.
            rng: Unused; the server draws.
        """
        self._send_columns(ctx)
        terms = self._terms(ctx)
        if ctx.polled is not None and ctx.polled_loss is not None:
            losses = finite(ctx.polled_loss)
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
            selection: The selection of the round.
            outcome: The outcomes of ``selection.clients``, in their order.
        """
        path = f"/rounds/{selection.round}"
        if not selection.clients.size:
            self._call("POST", f"{path}/close")
            return
        names = sorted(self.needs_metrics)
        statuses = [Status(status).name.lower() for status in outcome.status.tolist()]
        metrics = [finite(outcome.metric(name)) for name in names]
        reports = (selection.clients.tolist(), statuses, finite(outcome.duration), *metrics)
        outcomes = [
            {
                "client": c,
                "status": status,
                "seconds": s,
                "metrics": dict(zip(names, x, strict=True)),
            }
            for c, status, s, *x in zip(*reports, strict=True)
        ]
        self._call("POST", f"{path}/outcomes", {"outcomes": outcomes})

    @cached_property
    def _local(self) -> Selector:
        """A local selector like the server's, which is asked for its declarations only."""
        if self.selector is not None:
            return make(self.selector, **dict(self.selector_parameters or {}))
        there = self._call("GET", "")
        return make(there["selector"], **there["parameters"])

    @cached_property
    def _server(self) -> ServerConnection:
        return ServerConnection(self.url, self.token, self.patience_s)

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
            "cohort_size": 1,  # every round sends its own
            "policy": "reported",
            "seed": seed,
            "bounds": False,
        }
        self._server.send("POST", "/federations", definition)

    def _put(self, clients: IntArray, columns: Mapping[str, Array] | None = None) -> None:
        """Enrol clients, or send entries of columns, in several requests if there are many."""
        for first in range(0, clients.size, _MAX_CLIENTS):
            part = clients[first : first + _MAX_CLIENTS]
            values = {name: finite(column[part]) for name, column in (columns or {}).items()}
            self._call("PUT", "/clients", {"clients": part.tolist(), "columns": values})

    def _send_columns(self, ctx: RoundContext) -> None:
        """Send changed columns, of the clients for which they have changed."""
        for name in sorted((self.needs_columns | self.uses_columns) & ctx.columns.keys()):
            values = np.asarray(ctx.columns[name], dtype=np.float64)
            before = self._sent.get(name)
            changed = np.arange(values.shape[0])
            if before is not None and before.shape == values.shape:
                is_same = (values == before) | (np.isnan(values) & np.isnan(before))
                changed = np.flatnonzero(~is_same.reshape(values.shape[0], -1).all(axis=1))
            self._put(changed, {name: values})
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
        return self._server.send(method, f"/federations/{self.federation}{path}", body)

    def _fresh(self, n_clients: int) -> Self:
        fresh = self.clone()
        fresh.n_clients_ = n_clients  # the state is on the server
        return fresh


for _name in (
    *("polls", "poll_data", "needs_columns", "uses_columns", "needs_metrics"),
    *("optional_metrics", "metric_sizes", "reports_probability", "may_underfill"),
):  # what a selector declares is here what the server's selector declares
    setattr(Remote, _name, property(attrgetter(f"_local.{_name}")))


class Places:
    """The work in a federation of a server whose rounds overlap; every request is safe to repeat.

    Documents are as ``/openapi.json`` describes them.

    Args:
        url: The address of the server, such as ``http://127.0.0.1:8717``.
        federation: The name of the federation, which has a schedule.
        token: A token with the scope select; None uses the variable ``TURNOUT_TOKEN``.
        patience_s: Seconds to wait for a server that does not respond.
    """

    def __init__(
        self, url: str, federation: str, *, token: str | None = None, patience_s: float = 60.0
    ) -> None:
        self._server = ServerConnection(url, token, patience_s)
        self._path = f"/federations/{federation}"
        self._choice: int | None = None  # the next one, as the last response said

    def at_work(self) -> dict[str, Any]:
        """Return who is at work and on which model: what a caller that restarts gives out again."""
        return self._next("GET", "/places")

    def fill(self, available: Sequence[Hashable] | None = None) -> dict[str, Any]:
        """Let the server choose for the free places; nobody is chosen if none is free.

        Args:
            available: Who can be chosen; None: everyone who is enrolled and not at work.

        Raises:
            RemoteError: The request is rejected, such as when another program has chosen meanwhile.
        """
        if self._choice is None:
            self.at_work()
        terms = {} if available is None else {"available": list(available)}
        return self._next("POST", "/places", {"choice": self._choice, **terms})

    def report(self, choice: int, outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Report outcomes of clients of a choice; ``closed`` are the rounds that this has closed.

        Args:
            choice: The number of the choice that gave them work.
            outcomes: For each client: ``client``, ``status``, ``seconds``, ``metrics``, ``reason``.
        """
        return self._next("POST", f"/places/{choice}/outcomes", {"outcomes": list(outcomes)})

    def round(self, number: int) -> dict[str, Any]:
        """Return a round: whose work has ended in it, and the weight of each answer that counts.

        Args:
            number: The round, from 0.
        """
        found: dict[str, Any] = self._server.send("GET", f"{self._path}/rounds/{number}")
        return found

    def _next(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        said: dict[str, Any] = self._server.send(method, f"{self._path}{path}", body)
        self._choice = int(said["next_choice"])
        return said


# --------------------------------------------------------------------------------------------------
# Trackers of a server's rounds: TensorBoard, MLflow, W&B or your own.
#
# They follow from outside, so that a slow tracker delays no request. It does not matter how many
# servers share the database.
# --------------------------------------------------------------------------------------------------

#: The settings of a federation that trackers get.
_ABOUT = ("name", "selector", "parameters", "seed", "cohort_size", "policy")


def follow(
    url: str,
    federation: str,
    callbacks: Sequence[Callback],
    *,
    start: int = 0,
    n_rounds: int | None = None,
    token: str | None = None,
    poll_s: float = 1.0,
    patience_s: float = 60.0,
) -> int:
    """Pass every closed round of a federation to callbacks; return the number of the next round.

    Args:
        url: The address of the server.
        federation: The name of the federation on the server.
        callbacks: The trackers; they end when this does, also after an error or Ctrl-C.
        start: The first round that is passed on, from 0.
        n_rounds: The number of rounds to pass on; None: without end.
        token: A token with the scope read; None uses the environment variable ``TURNOUT_TOKEN``.
        poll_s: Seconds between two requests for the next round.
        patience_s: Seconds to wait for a server that does not respond.

    Raises:
        RemoteError: The server rejects a request or does not respond, or the federation is gone.
    """
    first = require.integer("start", start, minimum=0)
    last = None if n_rounds is None else first + require.integer("n_rounds", n_rounds, minimum=0)
    require.number("poll_s", poll_s, above=0.0)
    server, path, t = ServerConnection(url, token, patience_s), f"/federations/{federation}", first
    there = server.send("GET", path)
    with ExitStack() as started:
        for callback in callbacks:
            callback.start({name: there[name] for name in _ABOUT})
            started.callback(callback.end)
        while last is None or t < last:
            closed = _closed(server, path, t)
            if closed is None:
                time.sleep(poll_s)
                continue
            for callback in callbacks:
                callback.round(t, _values(closed))
            t += 1
    return t


def _closed(server: ServerConnection, path: str, t: int) -> Mapping[str, Any] | None:
    """Return a round; None if it is open or not yet opened."""
    try:
        found: Mapping[str, Any] = server.send("GET", f"{path}/rounds/{t}")
    except RemoteError as error:
        if error.status != 404:
            raise
        server.send("GET", path)  # raises if the federation was deleted
        return None
    return found if found["state"] == "closed" else None


def _values(closed: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a round, under the names that live runs use."""
    result = closed["result"]
    return {
        **{name: float(n) for name, n in result["counts"].items()},
        "chosen": float(len(closed["clients"])),
        "free": float(closed["n_free"]),
        "train_s": float(result["length_s"]),
        "void": float(result["void"]),
        "alerts": float(len(result["alerts"])),
    }


__all__ = [
    "TOKEN_VARIABLE",
    "Places",
    "Remote",
    "RemoteError",
    "follow",
]
