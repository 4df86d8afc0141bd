"""A grid as the port of a session: messages out, replies in, each for the message it answers.

An error that the SuperLink makes up carries the SuperLink's own node id, so the sender of a reply
is never looked at.

| what came | kind |
|---|---|
| a usable reply | ANSWERED |
| error 0 unknown, 1 app not loaded, 2 raised, 6 mod refused, 7 bad bundle, 8 crashed | FAILED |
| a reply that the inner strategy cannot use | FAILED |
| a reply that cannot be read | GARBLED |
| error 3 message expired, 4 reply lost, 5 node gone | LOST |
| the grid did not take the message | REFUSED |

Flower's averaging strategies end the whole app when one reply has other keys, other shapes or no
weight, and they accept a model of NaN. So each reply is checked when it arrives, and compared with
the others before they are aggregated. Rejected replies are dropped, and their nodes have failed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mode
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Strategy,
)
from google.protobuf.message import Error as ProtobufError  # type: ignore[import-untyped]

from turnout.core.types import LARGEST_REPORT, Array
from turnout.live.flower import client as wire
from turnout.live.flower.inner import layers
from turnout.live.reports import (
    OLD_KEYS,
    ArrayForm,
    Hints,
    loss_report_hint,
    number,
    other_forms,
    squared_distance,
)
from turnout.live.transport import (
    Address,
    AskColumns,
    AskIdentity,
    AskLoss,
    Identity,
    Kind,
    Question,
    Reply,
    Ticket,
    log,
)

#: Error codes that the SuperLink makes up for a node that did not answer.
NO_ANSWER = frozenset({3, 4, 5})
#: What a damaged reply can raise while it is unpacked; broken connections are not among them.
_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, ProtobufError)
#: What reading the bytes of a damaged array can raise.
UNREADABLE = (ValueError, TypeError, OSError, EOFError, MemoryError, AttributeError, SyntaxError)
#: Errors are logged up to this many characters; a simulated client sends its whole traceback.
_LONGEST_REASON = 200
#: The attribute of a message that marks the work of a round; it stays on the server.
_MARK = "_turnout_training"
#: The argument of ``describe`` that fills each column.
_HOW = {
    "num_samples": "num_examples=len(train_set)",
    "features": "features=SimHash().of_text(text)",
    "context": "context=lambda message, context: [1 / speed, 1.0 - took_part, size / bandwidth]",
}

_CLIENT = "turnout.live.flower.client"

#: Strategies that divide by the length of an update, and so cannot take one of length 0.
_CLIPPING = (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

#: Key and length of each metric, 0 for a single number.
MetricForm = frozenset[tuple[str, int]]


def mark_training(messages: Iterable[Message]) -> None:
    """Mark messages as the work of a round."""
    for message in messages:
        message.__dict__[_MARK] = True


def is_training(message: Message) -> bool:
    """Return whether a message is the work of a round."""
    return _MARK in message.__dict__


class ReplyForm(NamedTuple):
    """What must be equal in the replies that an averaging strategy aggregates."""

    arrays: tuple[str, ArrayForm] = ("", ())  #: name of the record, and the form of its arrays
    metrics: tuple[str, MetricForm] = ("", frozenset())  #: the same of the metrics


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """What the inner strategy demands of replies; nothing special if it does not average."""

    weight_key: str | None = None  #: key of the weight in the MetricRecord
    same_shapes: bool = False  #: whether arrays are combined element by element
    must_change: bool = False  #: whether a model that comes back unchanged breaks it
    counts_once: bool = False  #: whether its noise is made for one answer of each node

    @classmethod
    def of(cls, strategy: Strategy) -> ReplyRules:
        """Return the rules of a strategy, or of the one it wraps."""
        within = layers(strategy)
        must_change = any(isinstance(layer, _CLIPPING) for layer in within)
        counts_once = any("num_sampled_clients" in vars(layer) for layer in within)
        for layer in within:
            if isinstance(layer, FedAvg):
                is_tree = isinstance(layer, FedXgbBagging | FedXgbCyclic)
                return cls(layer.weighted_by_key, not is_tree, must_change, counts_once)
        return cls(must_change=must_change, counts_once=counts_once)

    def check(self, message: Message, *, train: bool, model: ArrayRecord | None = None) -> Reply:
        """Return a message as a reply that answers, or that failed because of its content.

        Args:
            message: What came.
            train: Whether it must bring arrays.
            model: The model that was sent out, to measure how far the reply is from it.
        """
        if not message.has_content():
            return Reply(Kind.FAILED, reason="it has no content")
        arrays, measured = message.content.array_records, message.content.metric_records
        for record in measured.values():  # strategies average what all replies have alike
            for old in OLD_KEYS.keys() & record.keys():
                value = record.pop(old)
                record.setdefault(OLD_KEYS[old], value)
        metrics = {k: v for record in reversed(list(measured.values())) for k, v in record.items()}
        fault, forms = _look_at_arrays(arrays) if train else (None, [])
        if fault is None and self.weight_key is not None:
            n_arrays = len(arrays) if train else 1
            fault = _fault_of_metrics(metrics, self.weight_key, n_arrays, len(measured))
        if fault is not None:
            return Reply(Kind.FAILED, reason=fault)
        if self.weight_key is None:
            return Reply(metrics=metrics, content=message, form=ReplyForm())
        lengths = frozenset(
            (key, len(value) if isinstance(value, list) else 0) for key, value in metrics.items()
        )
        form = ReplyForm(forms[0] if forms else ("", ()), (next(iter(measured)), lengths))
        weight = number(metrics, self.weight_key)
        size = math.nan
        if model is not None and self.same_shapes:
            size = _distance(next(iter(arrays.values())), model)
        return Reply(metrics=metrics, content=message, weight=weight, form=form, size=size)

    def rejected(
        self, replies: Sequence[Reply], *, sent: ArrayRecord | None, needed: Sequence[str]
    ) -> dict[int, str]:
        """Return which sound replies cannot be aggregated with the others, by position, and why.

        Args:
            replies: The replies.
            sent: The model that was sent out; None if no arrays come back.
            needed: The metric keys that the selector wants.
        """
        if self.weight_key is None or not replies:
            return {}
        faults = {} if sent is None else self._other_arrays(replies, form_of_arrays(sent))
        faults |= self._other_metrics(replies, needed, self.weight_key)
        if self.must_change and sent is not None:
            same = (i for i, one in enumerate(replies) if i not in faults and _is_model(one, sent))
            faults |= dict.fromkeys(same, "it is the model unchanged, which cannot be clipped")
        if not any(one.weight > 0.0 for i, one in enumerate(replies) if i not in faults):
            reason = f"no reply has a {self.weight_key} above 0"
            return {i: faults.get(i, reason) for i in range(len(replies))}
        return faults

    def weighted(self, message: Message, weight: float) -> Message:
        """Return a checked message with the weight that is believed.

        Args:
            message: The content of a reply.
            weight: The believed weight; NaN if it claims none.
        """
        key = self.weight_key
        if key is not None:
            metrics = next(iter(message.content.metric_records.values()))
            if weight < number(metrics, key):
                metrics[key] = int(weight) if isinstance(metrics[key], int) else weight
        return message

    def _other_arrays(self, replies: Sequence[Reply], sent: ArrayForm) -> dict[int, str]:
        forms = [(name, self._comparable(form)) for name, form in (x.form.arrays for x in replies)]
        return other_forms(forms, self._comparable(sent))

    def _comparable(self, form: ArrayForm) -> ArrayForm:
        return form if self.same_shapes else tuple((key, (), "") for key, _, _ in form)

    def _other_metrics(
        self, replies: Sequence[Reply], needed: Sequence[str], weight_key: str
    ) -> dict[int, str]:
        wanted = {(key, 0) for key in (weight_key, *needed)}
        forms = [reply.form.metrics for reply in replies]
        known = [len(wanted & lengths) for _, lengths in forms]
        complete = zip(forms, known, strict=True)
        usual = mode([form for form, n_known in complete if n_known == max(known)])
        faults = {
            i: f"its metrics are {_names(form[1])} instead of {_names(usual[1])}"
            for i, form in enumerate(forms)
            if form != usual
        }
        lacking = {i for i, (_, lengths) in enumerate(forms) if (weight_key, 0) not in lengths}
        return faults | dict.fromkeys(lacking, f"its metrics lack {weight_key!r}")


class FlowerPort:
    """Sends and fetches over a grid. Payloads are messages, and so are the contents of replies.

    Args:
        grid: Flower's grid.
        rules: What the inner strategy demands of replies.
    """

    def __init__(self, grid: Grid, rules: ReplyRules) -> None:
        self.grid = grid
        self._rules = rules
        #: A question, the model that a client trains from, or False for anything else.
        self._sent: dict[Ticket, Question | ArrayRecord | bool] = {}
        self.model = ArrayRecord()  #: what clients start from that get work now

    def present(self) -> Iterable[int]:
        """Return the connected nodes."""
        return self.grid.get_node_ids()

    def ask(
        self, addresses: Sequence[Address], question: Question, ttl: float
    ) -> list[Ticket | None]:
        """Send a question to nodes."""
        messages = [_written(cast(int, node), question) for node in addresses]
        return self._push(messages, [question] * len(messages), ttl)

    def send(
        self, addresses: Sequence[Address], payloads: Sequence[Message], ttl: float
    ) -> list[Ticket | None]:
        """Send messages, which know their nodes themselves."""
        whats = [self.model if is_training(message) else False for message in payloads]
        return self._push(payloads, whats, ttl)

    def poll(self, tickets: Collection[Ticket]) -> list[tuple[Ticket, Reply]]:
        """Fetch the replies that have come."""
        try:
            messages = _by_message(tickets, self.grid.pull_messages(set(tickets)))
        except _DAMAGED:
            messages = [pair for ticket in list(tickets) for pair in self._pull_one(ticket)]
        return [(ticket, self._reply(self._sent.pop(ticket), one)) for ticket, one in messages]

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Forget messages; Flower cannot recall what was sent."""
        for ticket in tickets:
            self._sent.pop(ticket, None)

    def _push(
        self,
        messages: Sequence[Message],
        whats: Sequence[Question | ArrayRecord | bool],
        ttl: float,
    ) -> list[Ticket | None]:
        for message in messages:
            message.metadata.ttl = ttl
        tickets = self._ids(messages)
        self._sent |= {ticket: what for ticket, what in zip(tickets, whats, strict=True) if ticket}
        return tickets

    def _ids(self, messages: Sequence[Message]) -> list[Ticket | None]:
        """Push; return one id per message, None if it was refused."""
        ids = list(self.grid.push_messages(messages))
        if not ids and len(messages) > 1:  # too much for one request: one at a time
            alone = (self.grid.push_messages([message]) for message in messages)
            return [next(iter(pushed), None) or None for pushed in alone]
        if len(ids) == len(messages):
            return [message_id or None for message_id in ids]
        accepted = set(ids)  # the in-memory grid leaves refused ones out
        own = (message.metadata.message_id for message in messages)
        return [message_id if message_id in accepted else None for message_id in own]

    def _pull_one(self, ticket: Ticket) -> list[tuple[Ticket, Message | None]]:
        try:
            return _by_message([ticket], self.grid.pull_messages({ticket}))
        except _DAMAGED as error:
            log.warning("a reply cannot be read and is dropped: %s", error)
            return [(ticket, None)]

    def _reply(self, what: Question | ArrayRecord | bool, message: Message | None) -> Reply:
        if message is None:
            return Reply(Kind.GARBLED, reason="reply not readable")
        if message.has_error():
            kind = Kind.LOST if message.error.code in NO_ANSWER else Kind.FAILED
            return Reply(kind, reason=_reason_of(message), content=message)
        if isinstance(what, AskIdentity):
            return Reply(metrics=_values(message), content=_identity(message))
        if isinstance(what, AskColumns | AskLoss):
            return Reply(metrics=_values(message), content=message)
        if isinstance(what, bool):
            return Reply(content=message)
        reply = self._rules.check(message, train=True, model=what)
        dropped = None if reply.reason is None else f"reply dropped, {reply.reason}"
        return reply._replace(reason=dropped)


class FlowerHints(Hints):
    """The lines to add to a ``ClientApp``."""

    def columns(self, names: Sequence[str]) -> str:
        """Return the arguments of ``describe``."""
        how = [_HOW.get(name, f"columns={{{name!r}: ...}}") for name in names]
        return f"add describe(app, stable_id=..., {', '.join(how)}) on the client, from {_CLIENT}"

    def metrics(self, keys: Mapping[str, str]) -> str:
        """Return how to use a ``LossReport``."""
        reply = 'reply with MetricRecord({"num-examples": ..., **report.metrics()})'
        return loss_report_hint(keys, reply, _CLIENT, "SelectingStrategy")

    def weight(self, key: str) -> str:
        """Return how to reply with a weight."""
        return f'reply with MetricRecord({{"{key}": len(train_set), ...}}) on the client'

    def loss(self) -> str:
        """Return how to answer a poll."""
        return (
            "add describe(app, stable_id=..., loss=evaluate) on the client, with "
            "evaluate(message, context) -> float"
        )


def _written(node: int, question: Question) -> Message:
    """Return a question as a message."""
    if isinstance(question, AskIdentity):
        return Message(RecordDict(), node, wire.query_type(wire.DESCRIBE))
    config: dict[str, Any] = {wire.SERVER_ROUND: question.round + 1}
    if isinstance(question, AskColumns):
        config[wire.TOOK_PART] = node in question.took_part
        content = RecordDict({wire.CONFIG: ConfigRecord(config)})
        return Message(content, node, wire.query_type(wire.COLUMNS))
    config[wire.POLL_DATA] = question.data
    content = RecordDict({wire.ARRAYS: question.model, wire.CONFIG: ConfigRecord(config)})
    return Message(content, node, wire.query_type(wire.LOSS))


def _identity(reply: Message) -> Identity:
    records = reply.content.config_records if reply.has_content() else {}
    record: Mapping[str, Any] = records.get(wire.IDENTITY, {})
    named = record.get(wire.EVERY_ROUND, [])
    return Identity(record.get(wire.STABLE_ID), frozenset(named if isinstance(named, list) else []))


def _values(reply: Message) -> Mapping[str, Any]:
    records = reply.content.metric_records if reply.has_content() else {}
    return records.get(wire.VALUES, {})


def _reason_of(reply: Message) -> str:
    """Return the code and the end of an error's text, where the exception is, in one line."""
    text = " ".join((reply.error.reason or "no reason given").split())
    if len(text) > _LONGEST_REASON:
        text = f"... {text[-_LONGEST_REASON:]}"
    return f"error {reply.error.code}, {text}"


def _by_message(
    tickets: Collection[Ticket], replies: Iterable[Message]
) -> list[tuple[Ticket, Message | None]]:
    first: dict[Ticket, Message | None] = {}
    for reply in replies:
        ticket = reply.metadata.reply_to_message_id
        if ticket in tickets:
            first.setdefault(ticket, reply)
    return list(first.items())


def form_of_arrays(arrays: ArrayRecord) -> ArrayForm:
    """Return keys, shapes and kinds of the arrays of a record, in order."""
    found = ((key, read_array(array)) for key, array in arrays.items())
    return tuple((key, values.shape, values.dtype.kind) for key, values in found)


def _is_model(reply: Reply, sent: ArrayRecord) -> bool:
    """Return whether a reply brings back the numbers that were sent."""
    arrays = reply.content.content.array_records[reply.form.arrays[0]]
    return list(arrays) == list(sent) and all(
        np.array_equal(read_array(arrays[key]), read_array(sent[key])) for key in sent
    )


def _distance(arrays: ArrayRecord, model: ArrayRecord) -> float:
    """Return the Euclidean distance from the model; NaN if the arrays have another form."""
    if list(arrays) != list(model):
        return math.nan
    pairs = [(read_array(arrays[key]), read_array(model[key])) for key in model]
    if any(new.shape != old.shape for new, old in pairs):
        return math.nan
    return math.sqrt(sum(squared_distance(new, old) for new, old in pairs if new.dtype.kind == "f"))


def _look_at_arrays(
    records: Mapping[str, ArrayRecord],
) -> tuple[str | None, list[tuple[str, ArrayForm]]]:
    """Return what is wrong with the arrays of a reply, and the form of each record."""
    forms: list[tuple[str, ArrayForm]] = []
    for name, record in records.items():
        form: list[tuple[str, tuple[int, ...], str]] = []
        for key, array in record.items():
            try:
                values = read_array(array)
            except UNREADABLE as error:
                return f"its array {key!r} cannot be read ({type(error).__name__})", []
            if values.dtype.kind in "fc" and not np.isfinite(values).all():
                return f"its array {key!r} is not finite", []
            form.append((key, values.shape, values.dtype.kind))
        forms.append((name, tuple(form)))
    return None, forms


def _fault_of_metrics(
    metrics: Mapping[str, Any], weight_key: str, n_arrays: int, n_metrics: int
) -> str | None:
    if n_arrays != 1 or n_metrics != 1:
        return f"it has {n_arrays} ArrayRecords and {n_metrics} MetricRecords, not one of each"
    for key, value in metrics.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, bool) or not isinstance(item, int | float):
                return f"its metric {key!r} is no number"
            if isinstance(item, int) and abs(item) > LARGEST_REPORT:
                return f"its metric {key!r} is too large"
    weight = metrics.get(weight_key, 0.0)
    if isinstance(weight, list) or not 0.0 <= weight <= LARGEST_REPORT:
        return f"its weight {weight_key!r} is {weight!r}"
    return None


def _names(form: MetricForm) -> str:
    return ", ".join(sorted(f"{key}[{n}]" if n else key for key, n in form)) or "none"


def read_array(array: FlowerArray) -> Array:
    """Return the numbers, read-only where possible; raise one of ``UNREADABLE`` if there are none.

    The usual bytes are a header that follows from type and shape, and the numbers behind it.
    """
    data = array.data
    usual = _usual(array.dtype, tuple(array.shape)) if array.stype == "numpy.ndarray" else None
    if usual is None:
        return array.numpy()
    header, dtype, size = usual
    if len(data) != len(header) + size * dtype.itemsize or not data.startswith(header):
        return array.numpy()
    return np.frombuffer(data, dtype, offset=len(header)).reshape(array.shape)


@lru_cache(maxsize=4096)
def _usual(name: str, shape: tuple[int, ...]) -> tuple[bytes, np.dtype[Any], int] | None:
    """Return the header of an array that was written in C order, its type and its size."""
    try:
        dtype = np.dtype(name)
        described = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": shape,
        }
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(buffer, described)
    except UNREADABLE:
        return None
    if dtype.hasobject:
        return None
    return buffer.getvalue(), dtype, math.prod(shape)
