"""A controller's tasks as the port of a session: tasks out, results in, each for its own task.

Results come on other threads, one at a time, and wait here until the session looks for them.

| what happened | kind |
|---|---|
| a usable result | ANSWERED |
| a return code other than OK, or a result that cannot be used | FAILED |
| a result that cannot be read | GARBLED |
| the client counts as disconnected, or asks for new work without a result | LOST |

NVFlare's FedAvg adds each reply to a running sum. A reply of another shape raises an exception
after half of it was added, one of NaN makes the model NaN, and one with an empty model becomes the
model if it is the only one. So each reply is checked before anything is added.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, cast

import numpy as np
from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_constant import FLMetaKey, ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.base_fedavg import _get_num_steps_weight
from nvflare.app_common.workflows.fedavg import FedAvg

from turnout.core.types import LARGEST_REPORT
from turnout.live.members import MOST_NUMBERS
from turnout.live.nvflare import client as wire
from turnout.live.reports import ArrayForm, Hints, loss_report_hint, squared_distance
from turnout.live.transport import (
    Address,
    AskColumns,
    AskIdentity,
    Identity,
    Kind,
    Question,
    Reply,
    Ticket,
    clock,
)

#: Clients ask for work every two seconds by default. A client that has not fetched a task after
#: this many seconds is not there, whatever the server believes.
FETCH_S = 10.0
#: The property of a task that holds its number.
_NUMBER = "turnout_number"
#: Kinds of numbers that can be averaged.
_NUMBERS = "fiub"
_LONGEST_REASON = 200
_CLIENT = "turnout.live.nvflare.client"


class Aborted(Exception):
    """The job was aborted: the run stops waiting."""


@dataclass(slots=True)
class _Task:
    """A task, as one of its clients sees it."""

    client: str
    task: Task
    question: Question | None  #: None: work
    since: float  #: on ``clock.now()``
    is_fetched: bool = False


class NvflarePort:
    """Sends and fetches over a controller. Addresses are the names of sites.

    The clients of a job are known from the start, but their processes start later. A client is
    there as soon as it has asked for work, until it no longer fetches its work.

    Args:
        controller: Sends the tasks.
        asks: Whether clients are asked for columns when they connect.
    """

    def __init__(self, controller: FedAvg, *, asks: bool) -> None:
        self._controller, self._asks = controller, asks
        self.model = FLModel(params={})  #: goes out with a question for an identity
        self.form: ArrayForm = ()  #: of the model that is out
        self._n_tasks = 0
        self._seen: set[str] = set()  # the sites that ask for work
        self._open: dict[Ticket, _Task] = {}
        self._replies: dict[Ticket, Reply] = {}
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
                request.client
                for request in self._open.values()
                if not request.is_fetched and clock.now() - request.since >= FETCH_S
            }
            seen = set(self._seen)
        return [name for name in self.expected if name in seen and not self._is_gone(name)]

    def ask(
        self, addresses: Sequence[Address], question: Question, ttl: float
    ) -> list[Ticket | None]:
        """Send a question; identities need none, unless columns are wanted with them."""
        names = cast(Sequence[str], addresses)
        if isinstance(question, AskIdentity) and not self._asks:
            known = {f"name:{name}": Reply(content=Identity(name)) for name in names}
            with self._lock:
                self._replies |= known
            return list(known)
        took_part = question.took_part if isinstance(question, AskColumns) else frozenset()
        tickets_of: dict[str, Ticket] = {}
        for is_in in (False, True):  # a task is the same for everyone, so these are two tasks
            group = [name for name in names if (name in took_part) is is_in]
            if group:
                asked = _written(question, self.model, took_part=is_in)
                tickets_of |= self._put(group, asked, question, ttl)
        return [tickets_of[name] for name in names]

    def send(
        self, addresses: Sequence[Address], payloads: Sequence[FLModel], ttl: float
    ) -> list[Ticket | None]:
        """Send the model, which is the same for everyone."""
        names = cast(Sequence[str], addresses)
        self.form = form_of(payloads[0].params)
        tickets = self._put(names, payloads[0], None, ttl)
        return [tickets[name] for name in names]

    def poll(self, tickets: Collection[Ticket]) -> list[tuple[Ticket, Reply]]:
        """Return the replies that have come."""
        self._check_abort()
        found = []
        with self._lock:
            for ticket in list(tickets):
                reply = self._replies.pop(ticket, None)
                request = self._open.get(ticket)
                if reply is None and request is not None and self._is_gone(request.client):
                    reply = Reply(Kind.LOST, reason="disconnected")
                if reply is not None:
                    self._open.pop(ticket, None)
                    found.append((ticket, reply))
        return found

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Forget these requests, and end tasks that no other request needs."""
        with self._lock:
            dropped = [self._open.pop(ticket, None) for ticket in tickets]
            for ticket in tickets:
                self._replies.pop(ticket, None)
            needed = {id(request.task) for request in self._open.values()}
        for request in dropped:
            if request is not None and id(request.task) not in needed:
                self._controller.cancel_task(request.task)

    def end_round(self) -> None:
        """End the tasks of the round: late clients need not send their models any more."""
        with self._lock:
            tasks = [request.task for request in self._open.values() if request.question is None]
        for task in tasks:
            self._controller.cancel_task(task)

    def fetched(self, task: Task, client: str) -> None:
        """Note that a client has fetched a task. From any thread.

        Args:
            task: The task.
            client: The name of its site.
        """
        with self._lock:
            request = self._open.get(f"{task.get_prop(_NUMBER)}:{client}")
            if request is not None:
                request.is_fetched = True

    def take(self, task: Task, client: str, reply: Reply) -> bool:
        """Store the reply to a task; return whether it may count. From any thread.

        Args:
            task: The task.
            client: The name of its site.
            reply: The result.
        """
        ticket = f"{task.get_prop(_NUMBER)}:{client}"
        with self._lock:
            is_waited_for = ticket in self._open and ticket not in self._replies
            if is_waited_for:
                self._replies[ticket] = reply
        return is_waited_for and reply.kind is Kind.ANSWERED

    def question_of(self, task: Task, client: str) -> Question | None:
        """Return the question of a task; None if it was work, or is forgotten."""
        with self._lock:
            request = self._open.get(f"{task.get_prop(_NUMBER)}:{client}")
        return None if request is None else request.question

    def is_idle(self, client: str) -> None:
        """Note that a client asks for new work. From any thread.

        It will never answer tasks that are over by now.

        Args:
            client: The name of its site.
        """
        with self._lock:
            self._seen.add(client)
            for ticket, request in self._open.items():
                if request.client == client and request.task.completion_status is not None:
                    self._replies.setdefault(ticket, Reply(Kind.LOST, reason="too late"))

    def _put(
        self, names: Sequence[str], model: FLModel, question: Question | None, ttl: float
    ) -> dict[str, Ticket]:
        """Send a model to some clients as a task; NVFlare counts in whole seconds."""
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
                self._open[ticket] = _Task(name, task, question, clock.now())
        controller.broadcast(
            task=task, fl_ctx=controller.fl_ctx, targets=list(names), min_responses=0
        )
        return tickets

    def _is_gone(self, name: str) -> bool:
        return self._controller.communicator.get_client_disconnect_time(name) is not None

    def _check_abort(self) -> None:
        if self._controller.abort_signal.triggered:
            raise Aborted("the job was aborted")


class NvflareHints(Hints):
    """The lines to add to a client's script."""

    def columns(self, names: Sequence[str]) -> str:
        """Return the arguments of ``Describe``."""
        how = {"num_samples": "num_examples=len(train_set)", "features": "features=code"}
        how["context"] = "context=lambda model: [...]"
        arguments = ", ".join(how.get(name, f"columns={{{name!r}: ...}}") for name in names)
        return (
            f"on the client, make me = Describe({arguments}) and call me.receive() in place of "
            f"flare.receive(); it is in {_CLIENT}"
        )

    def metrics(self, keys: Mapping[str, str]) -> str:
        """Return how to use a ``LossReport``."""
        reply = "send FLModel(params=..., metrics=report.metrics())"
        return loss_report_hint(keys, reply, _CLIENT, "SelectingFedAvg")

    def loss(self) -> str:
        """Return how to answer a poll."""
        return (
            "on the client, make me = Describe(loss=evaluate) with evaluate(model) -> float, and "
            "call me.receive() in place of flare.receive()"
        )


def _written(question: Question, model: FLModel, *, took_part: bool) -> FLModel:
    """Return a question as a model.

    A client that is asked for the first time may not know our questions. It gets the real model and
    trains, and its answer has no identity.

    Args:
        question: The question.
        model: The model of the federation.
        took_part: Whether the client was chosen in the round before.
    """
    asked: dict[str, Any]
    params: Any = {}
    if isinstance(question, AskIdentity):
        asked, params = {wire.ASK: wire.IDENTITY}, model.params
    elif isinstance(question, AskColumns):
        asked = {wire.ASK: wire.COLUMNS, wire.TOOK_PART: took_part}
    else:
        asked = {wire.ASK: wire.LOSS, wire.POLL_DATA: question.data}
        params = question.model.params
    return FLModel(
        params=params,
        start_round=model.start_round,
        current_round=model.current_round,
        total_rounds=model.total_rounds,
        meta={wire.MARK: asked},
    )


def answer_to(question: Question, client: str, received: FLModel | Reply) -> Reply:
    """Return the reply of a client to a question.

    Args:
        question: The question.
        client: The name of its site.
        received: What came back.
    """
    answer: Mapping[str, Any] = {}
    if isinstance(received, FLModel):
        marked = (received.meta or {}).get(wire.MARK)
        answer = marked if isinstance(marked, Mapping) else {}
    if isinstance(question, AskIdentity):  # the name is known, whatever the client says
        changing = answer.get(wire.EVERY_ROUND)
        named = changing if isinstance(changing, list | tuple) else ()
        return Reply(metrics=_columns(answer), content=Identity(client, frozenset(map(str, named))))
    if isinstance(received, Reply):
        return received
    if isinstance(question, AskColumns):
        return Reply(metrics=_columns(answer))
    if wire.LOSS not in answer:
        return Reply(Kind.FAILED, reason="it does not answer the question for its loss")
    return Reply(metrics={"loss": answer[wire.LOSS]})


def _columns(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    columns = answer.get(wire.COLUMNS)
    if not isinstance(columns, Mapping):
        return {}
    return {name: value for name, value in columns.items() if isinstance(name, str)}


def read(result: Shareable) -> FLModel | Reply:
    """Return the model that a client sent, or a reply that says why there is none."""
    try:
        code = result.get_return_code(ReturnCode.OK)
        if code != ReturnCode.OK:
            return Reply(Kind.FAILED, reason=f"return code {code}"[:_LONGEST_REASON])
        return FLModelUtils.from_shareable(result)
    except Exception as error:  # whatever a client sent must not end the task of the others
        return Reply(Kind.GARBLED, reason=f"reply not readable ({type(error).__name__})")


def check(
    received: FLModel, model: ArrayForm, params: Mapping[str, Any], *, averages: bool
) -> Reply:
    """Return the reply of a client that has sent a model.

    Args:
        received: The model.
        model: The form of the model that was sent out.
        params: Its parameters.
        averages: Whether replies are averaged, and not combined by the user's own aggregator.
    """
    size = math.nan
    try:
        fault, form = _look(received, model, averages=averages)
        if fault is None and averages:
            size = _size(received, params)
    except Exception as error:  # the same
        fault, form = f"it cannot be read ({type(error).__name__})", ()
    if fault is not None:
        return Reply(Kind.FAILED, reason=f"reply dropped, {fault}"[:_LONGEST_REASON])
    metrics = plain_metrics(received.metrics)
    if averages and received.metrics is not None:
        received.metrics = {k: x for k, x in metrics.items() if isinstance(x, float)}
    claimed = (received.meta or {}).get(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
    weight = math.nan if claimed is None else _get_num_steps_weight(received)
    whole_form = (str(received.params_type), form)
    return Reply(metrics=metrics, content=received, weight=weight, form=whole_form, size=size)


def weighted(model: FLModel, weight: float) -> FLModel:
    """Return the model of a reply with the number of steps that is believed.

    Args:
        model: The content of a reply.
        weight: The believed weight; NaN if it claims none.
    """
    if weight < _get_num_steps_weight(model):
        model.meta[FLMetaKey.NUM_STEPS_CURRENT_ROUND] = weight
    return model


def form_of(params: Mapping[str, Any]) -> ArrayForm:
    """Return keys, shapes and kinds of parameters, sorted by key."""
    return tuple((str(key), *_shape_and_kind(params[key])) for key in sorted(params, key=str))


def is_finite(params: Mapping[str, Any]) -> bool:
    """Return whether all numbers are finite."""
    return all(_is_finite(value) for value in params.values())


def plain_metrics(metrics: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metrics of a client that are finite numbers or lists; the rest is left out."""
    plain: dict[str, Any] = {}
    for name, value in (metrics or {}).items():
        if not isinstance(name, str) or isinstance(value, str | bytes | Mapping):
            continue
        try:
            numbers = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            continue
        is_one = numbers.size == 1 and not isinstance(value, list | tuple)
        fits = is_one or (numbers.ndim == 1 and 0 < numbers.size <= MOST_NUMBERS)
        if fits and (np.abs(numbers) <= LARGEST_REPORT).all():
            plain[name] = numbers.item() if is_one else numbers.tolist()
    return plain


def _look(received: FLModel, model: ArrayForm, *, averages: bool) -> tuple[str | None, ArrayForm]:
    """Return what is wrong with a reply, and the form of its arrays."""
    params = received.params
    if not isinstance(params, Mapping) or not params:
        return "it has no parameters", ()
    if not averages:
        return None, ()
    form = form_of(params)
    known = {key: (shape, kind) for key, shape, kind in model}
    for key, shape, kind in form:
        if kind not in _NUMBERS:
            return f"its array {key!r} has no numbers", ()
        if known and key not in known:
            return f"the model has no array {key!r}", ()
        if known and known[key][0] != shape:
            return f"its array {key!r} has shape {shape} instead of {known[key][0]}", ()
    for key, value in params.items():
        if not _is_finite(value):
            return f"its array {key!r} is not finite", ()
    if _get_num_steps_weight(received) > LARGEST_REPORT:
        return "its number of steps is too large", ()
    return None, form


def _size(received: FLModel, params: Mapping[str, Any]) -> float:
    """Return the Euclidean norm of an update; NaN if it has no number that NumPy can hold."""
    is_update = received.params_type == ParamsType.DIFF
    pairs = [
        (value, 0.0 if is_update else params[key])
        for key, value in received.params.items()
        if (is_update or key in params) and _shape_and_kind(value)[1] == "f"
    ]
    try:
        squares = [squared_distance(np.asarray(new), np.asarray(old)) for new, old in pairs]
    except TypeError:  # a type such as bfloat16
        return math.nan
    return math.sqrt(sum(squares)) if squares else math.nan


def _shape_and_kind(value: Any) -> tuple[tuple[int, ...], str]:
    if hasattr(value, "detach"):  # a tensor; NumPy has no bfloat16
        is_float = value.is_floating_point()
        return tuple(value.shape), "f" if is_float else "c" if value.is_complex() else "i"
    array = np.asarray(value)
    return array.shape, array.dtype.kind


def _is_finite(value: Any) -> bool:
    if hasattr(value, "detach"):
        return bool(value.isfinite().all())
    return bool(np.isfinite(np.asarray(value)).all())
