"""A controller's tasks as the port of a session: tasks out, results in, each for its own task.

Results come on other threads, one at a time, and wait here until the session looks for them.

| what happened | kind |
|---|---|
| a result that can be used | ANSWERED |
| a return code other than OK, or a result that cannot be used | FAILED |
| a result that cannot be read | GARBLED |
| the client is deemed disconnected, or asks for new work without a result | LOST |
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import cast

from nvflare.apis.controller_spec import Task
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.fedavg import FedAvg

from turnout.integrations.nvflare import replies
from turnout.integrations.nvflare.questions import written
from turnout.session import clock
from turnout.session.forms import ArrayForm
from turnout.session.port import (
    Address,
    AskColumns,
    AskIdentity,
    Heard,
    Identity,
    Kind,
    Question,
    Ticket,
)

#: Clients ask for work every two seconds by default. Who has not fetched a task after so many is
#: not there, whatever the server believes.
FETCH_S = 10.0
#: The property of a task that holds its number.
_NUMBER = "turnout_number"


class Aborted(Exception):
    """The job was aborted: nobody waits for anything any more."""


@dataclass(slots=True)
class _Errand:
    """A task, as one of its clients sees it."""

    client: str
    task: Task
    question: Question | None  #: None: work
    since: float  #: on ``clock.now()``
    is_fetched: bool = False

    @property
    def is_over(self) -> bool:
        return self.task.completion_status is not None


class NvflarePort:
    """Sends and fetches over a controller. Addresses are the names of sites.

    Whoever takes part in the job is known from the start, but its process starts later: a client is
    there when it has asked for work, until it leaves work where it is.

    Args:
        controller: Whose tasks they are.
        asks: Whether clients are asked for columns when they come.
    """

    def __init__(self, controller: FedAvg, *, asks: bool) -> None:
        self._controller, self._asks = controller, asks
        self.model = FLModel(params={})  #: what goes out with a question to somebody unknown
        self.form: ArrayForm = ()  #: of the model that is out
        self._n_tasks = 0
        self._seen: set[str] = set()  # who asks for work
        self._open: dict[Ticket, _Errand] = {}
        self._heard: dict[Ticket, Heard] = {}
        self._lock = Lock()

    @property
    def expected(self) -> list[str]:
        """The sites that take part in the job."""
        return [client.name for client in self._controller.engine.get_clients()]

    def present(self) -> list[str]:
        """Return the sites that are there."""
        self._check_abort()
        with self._lock:
            self._seen -= {
                errand.client
                for errand in self._open.values()
                if not errand.is_fetched and clock.now() - errand.since >= FETCH_S
            }
            seen = set(self._seen)
        return [name for name in self.expected if name in seen and not self._is_gone(name)]

    def ask(
        self, addresses: Sequence[Address], question: Question, ttl: float
    ) -> list[Ticket | None]:
        """Send a question; who somebody is needs none, unless columns are wanted with it."""
        names = cast(Sequence[str], addresses)
        if isinstance(question, AskIdentity) and not self._asks:
            tickets = [f"name:{name}" for name in names]
            with self._lock:
                self._heard |= {
                    ticket: Heard(content=Identity(name))
                    for ticket, name in zip(tickets, names, strict=True)
                }
            return [*tickets]
        took_part = question.took_part if isinstance(question, AskColumns) else frozenset()
        tickets_of: dict[str, Ticket] = {}
        for told in (False, True):  # everyone gets the same, so these are two tasks
            group = [name for name in names if (name in took_part) is told]
            if group:
                asked = written(question, self.model, took_part=told)
                tickets_of |= self._put(group, asked, question, ttl)
        return [tickets_of[name] for name in names]

    def send(
        self, addresses: Sequence[Address], payloads: Sequence[FLModel], ttl: float
    ) -> list[Ticket | None]:
        """Send the model, which is the same for everyone."""
        names = cast(Sequence[str], addresses)
        self.form = replies.form_of(payloads[0].params)
        tickets = self._put(names, payloads[0], None, ttl)
        return [tickets[name] for name in names]

    def poll(self, tickets: Collection[Ticket]) -> list[tuple[Ticket, Heard]]:
        """Return what has come."""
        self._check_abort()
        found = []
        with self._lock:
            for ticket in list(tickets):
                heard = self._heard.pop(ticket, None)
                errand = self._open.get(ticket)
                if heard is None and errand is not None and self._is_gone(errand.client):
                    heard = Heard(Kind.LOST, reason="disconnected")
                if heard is not None:
                    self._open.pop(ticket, None)
                    found.append((ticket, heard))
        return found

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Forget these, and end the tasks that nobody else waits for."""
        with self._lock:
            dropped = [self._open.pop(ticket, None) for ticket in tickets]
            for ticket in tickets:
                self._heard.pop(ticket, None)
            needed = {id(errand.task) for errand in self._open.values()}
        for errand in dropped:
            if errand is not None and id(errand.task) not in needed:
                self._controller.cancel_task(errand.task)

    def end_round(self) -> None:
        """End the tasks of the round: who has not answered need not send its model any more."""
        with self._lock:
            tasks = [errand.task for errand in self._open.values() if errand.question is None]
        for task in tasks:
            self._controller.cancel_task(task)

    def fetched(self, task: Task, client: str) -> None:
        """Note that a client has fetched a task. From any thread.

        Args:
            task: The task.
            client: The name of its site.
        """
        with self._lock:
            errand = self._open.get(f"{task.get_prop(_NUMBER)}:{client}")
            if errand is not None:
                errand.is_fetched = True

    def take(self, task: Task, client: str, heard: Heard) -> bool:
        """Keep what came of a task; return whether somebody waits for it. From any thread.

        Args:
            task: The task.
            client: Who sent it.
            heard: What came.
        """
        ticket = f"{task.get_prop(_NUMBER)}:{client}"
        with self._lock:
            is_waited_for = ticket in self._open and ticket not in self._heard
            if is_waited_for:
                self._heard[ticket] = heard
        return is_waited_for and heard.kind is Kind.ANSWERED

    def question_of(self, task: Task, client: str) -> Question | None:
        """Return what a client was asked by a task; None if it was work, or is forgotten."""
        with self._lock:
            errand = self._open.get(f"{task.get_prop(_NUMBER)}:{client}")
        return None if errand is None else errand.question

    def is_idle(self, client: str) -> None:
        """Note that a client asks for new work. From any thread.

        What it has not answered by now, and nobody waits for any more, it never will.

        Args:
            client: The name of its site.
        """
        with self._lock:
            self._seen.add(client)
            for ticket, errand in self._open.items():
                if errand.client == client and errand.is_over:
                    self._heard.setdefault(ticket, Heard(Kind.LOST, reason="too late"))

    def _put(
        self, names: Sequence[str], model: FLModel, question: Question | None, ttl: float
    ) -> dict[str, Ticket]:
        """Make a task of a model for some clients; NVFlare counts in whole seconds."""
        controller = self._controller
        self._n_tasks += 1
        controller.set_fl_context(model)
        task = controller._prepare_task(
            data=model,
            task_name=controller.task_name,
            timeout=math.ceil(ttl),
            callback=controller._accepts,
        )
        task.set_prop(_NUMBER, self._n_tasks)
        tickets = {name: f"{self._n_tasks}:{name}" for name in names}
        with self._lock:
            for name, ticket in tickets.items():
                self._open[ticket] = _Errand(name, task, question, clock.now())
        controller.broadcast(
            task=task, fl_ctx=controller.fl_ctx, targets=list(names), min_responses=0
        )
        return tickets

    def _is_gone(self, name: str) -> bool:
        return self._controller.communicator.get_client_disconnect_time(name) is not None

    def _check_abort(self) -> None:
        if self._controller.abort_signal.triggered:
            raise Aborted("the job was aborted")
