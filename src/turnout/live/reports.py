"""What clients report in a round: how the selector sees it, what is missing, what fits together."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mode
from typing import Any, ClassVar, TypeAlias

import numpy as np

from turnout.core.arrays import UPDATE_METRICS
from turnout.core.bounds import JUMP
from turnout.core.errors import MissingColumn, StateFileError
from turnout.core.selector import Selector
from turnout.core.sketch import SKETCH_SEED
from turnout.core.types import LARGEST_REPORT, Array, FloatArray, IntArray, Outcome, Status
from turnout.live.client import DURATION, NUM_EXAMPLES, SEED
from turnout.live.members import Columns
from turnout.live.settings import LiveSettings, MissingMetric
from turnout.live.transport import Reply, log
from turnout.live.world import VirtualWorld
from turnout.results.run import LOSSES

#: Names among what was seen: the weight for averaging, a polled loss, any answer at all.
_WEIGHT, _POLLED, _ANSWER = "weight", "polled-loss", "answer"
#: The column that answers also fill.
_SIZE = "num_samples"

#: Other names under which applications report the loss of the training.
_LOSSES = ("train_loss", "train-loss")

#: How ``LossReport`` of earlier versions wrote its metrics.
OLD_KEYS = {"loss-std": "loss_std", "loss-rms": "loss_rms"}

#: Key, shape and kind of each array, in order.
ArrayForm: TypeAlias = tuple[tuple[str, tuple[int, ...], str], ...]
#: Whatever else must be equal, such as the name of a record, and the arrays.
Form: TypeAlias = tuple[Hashable, ArrayForm]


#: An update this many times as large as usual is refused.
REFUSED = 1000.0
#: So is an update above this size, whatever the others sent: its square overflows 32-bit floats.
LARGEST = 1e19
#: Fewer sizes say nothing: among four, one wrong size is not the lower one in the middle.
_FEWEST = 4


class Hints:
    """The ends of error messages: what to change, without a full stop. Frameworks override them."""

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


@dataclass
class Reports:
    """Reads durations and metrics from replies, or from the world that simulates them.

    Args:
        settings: The keys of metrics, and whose durations count.
        selector: Says which columns and metrics are needed.
        world: The virtual world, if there is one.
        weight_key: The key of the weight that the aggregation needs; None if it needs none.
        hints: How clients provide what is missing.
    """

    settings: LiveSettings
    selector: Selector
    world: VirtualWorld | None
    weight_key: str | None
    hints: Hints
    seen: set[str] = field(default_factory=set)  #: what clients have reported at least once

    def __post_init__(self) -> None:
        """Look up what clients must report."""
        #: Whether the world generates the reports of clients.
        self.is_virtual = self.world is not None and self.world.synthetic_losses
        names = () if self.is_virtual else sorted(self.selector.needs_metrics)
        #: The metrics that the selector learns from, and their keys.
        self.needed = {name: self._key(name) for name in names}
        self._logged: set[str] = set()  # optional metrics whose lack was logged

    @property
    def required(self) -> tuple[str, ...]:
        """The keys of the metrics that the selector cannot do without."""
        can_miss = self.selector.optional_metrics
        return tuple(key for name, key in self.needed.items() if name not in can_miss)

    def check_columns(self, columns: Columns) -> None:
        """Raise if a needed column is empty; the message names everything that clients must send.

        The number of examples may come with the first answers, if the selector wants answers.
        """
        missing = columns.missing(self.selector.needs_columns)
        if self._may_wait():
            missing = [name for name in missing if name != _SIZE]
        if not missing:
            return
        names = " and ".join(f"the column {name!r}" for name in missing)
        more = [self.hints.columns(missing)]
        if self.selector.polls:
            more.append(self.hints.loss())
        if self.needed:
            more.append(self.hints.metrics(self.needed))
        raise MissingColumn(
            f"the selector needs {names}, and no client has sent it: {'. Also: '.join(more)}."
        )

    def columns(self, columns: Columns, wanted: Collection[str]) -> dict[str, FloatArray]:
        """Return the columns for a context; the number of examples may be unknown at first."""
        filled = columns.take(wanted)
        if _SIZE in self.selector.needs_columns and self._may_wait():
            filled.setdefault(_SIZE, np.full(columns.n_clients, np.nan))
        return filled

    def check_poll(self, losses: FloatArray, n_failed: int) -> None:
        """Raise if all polled clients have failed and no client ever answered a poll."""
        if not np.isnan(losses).all():
            self.seen.add(_POLLED)
        elif losses.size and n_failed == losses.size and _POLLED not in self.seen:
            raise MissingMetric(
                f"{type(self.selector).__name__} polls clients for their loss, and no client "
                f"answers: {self.hints.loss()}."
            )

    def check(self, answers: Collection[Reply]) -> None:
        """Raise if no answer so far has a metric that is needed; the message names all of them.

        If the selector can do without it, the log says once what it then does.
        """
        if not answers:
            return
        self.note(answers)
        missing = {name: key for name, key in self._wanted.items() if name not in self.seen}
        for name in missing.keys() & self.selector.optional_metrics.keys():
            self._log_lack(name, missing.pop(name))
        weight, parts = missing.pop(_WEIGHT, None), []
        if missing:
            who = f"{type(self.selector).__name__} needs"
            names = " and ".join(self.wanted(name, key) for name, key in missing.items())
            sent = "".join(self._sent(key, answers) for key in missing.values())
            how = self.hints.metrics(missing)
            parts.append(f"{who} {names}, and no reply has it{sent}: {how}.")
        if weight is not None:
            who, how = f"the inner strategy needs {weight!r}", self.hints.weight(weight)
            parts.append(f"{who}, and no reply has it: {how}.")
        if parts:
            raise MissingMetric(" ".join(parts))

    def note(self, answers: Collection[Reply]) -> None:
        """Remember which needed metrics answers have.

        Args:
            answers: The answers.
        """
        if answers:
            self.seen.add(_ANSWER)
        self.seen |= {
            name
            for name, key in self._wanted.items()
            if any(self.has(reply.metrics, name, key) for reply in answers)
        }

    @property
    def _wanted(self) -> dict[str, str]:
        """The needed metrics and the weight, with their keys."""
        return self.needed | ({} if self.weight_key is None else {_WEIGHT: self.weight_key})

    def _log_lack(self, name: str, key: str) -> None:
        if name not in self._logged:
            self._logged.add(name)
            log.warning(
                "no client reports %r, and %s can do without: %s. To use it, %s.",
                *(key, type(self.selector).__name__, self.selector.optional_metrics[name]),
                self.hints.metrics({name: key}),
            )

    def outcome(
        self,
        t: int,
        clients: IntArray,
        status: Array,
        seconds: FloatArray,
        answers: Mapping[int, Reply],
        names: Collection[str] | None = None,
    ) -> Outcome:
        """Return what became of clients; only those in time report metrics.

        Args:
            t: The round.
            clients: (s,) who was chosen.
            status: (s,) how the round ended for them.
            seconds: (s,) how long they took, as the server measured it.
            answers: The usable replies, by position.
            names: The metrics; None: those that the selector needs.
        """
        in_time = status == Status.COMPLETED
        sound = {i: reply.metrics for i, reply in answers.items() if in_time[i]}
        keys = self.needed if names is None else {name: self._key(name) for name in names}
        duration = seconds.copy()
        if self.settings.durations == "client" and self.world is None:
            for i, metrics in sound.items():
                own = number(metrics, DURATION)
                duration[i] = own if own >= 0.0 else duration[i]
        reported: dict[str, Any]
        sizes = self.selector.metric_sizes
        if self.is_virtual and self.world is not None:
            of_world = self.selector.needs_metrics if names is None else names
            wanted = {name: sizes.get(name) for name in of_world}
            made = self.world.environment.reports(t, clients, wanted)
            reported = {name: np.where(in_time, x.T, math.nan).T for name, x in made.items()}
        else:
            reported = {
                name: [self._report(sound.get(i, {}), name, key) for i in range(clients.size)]
                for name, key in keys.items()
            }
        return Outcome.from_reports(status, duration, reported, sizes)

    def recorded(
        self,
        clients: IntArray,
        outcome: Outcome,
        answers: Mapping[int, Reply],
        columns: Columns,
    ) -> dict[str, FloatArray]:
        """Return losses and numbers of examples of the chosen, as far as they are known.

        Args:
            clients: (s,) who was chosen.
            outcome: What the selector learned from.
            answers: The replies that came in time, by position.
            columns: What clients reported about themselves.
        """
        key = self._key("loss")
        loss = outcome.metrics.get("loss")
        if loss is None:
            loss = np.full(clients.size, np.nan)
            for i, reply in answers.items():
                loss[i] = next(
                    (x for x in (number(reply.metrics, k) for k in (key, *_LOSSES)) if x >= 0.0),
                    math.nan,
                )
        sizes = np.array([columns.number(_SIZE, client) for client in clients.tolist()])
        found = {**outcome.metrics, "loss": loss, _SIZE: sizes}
        found = {name: found[name] for name in (*LOSSES, _SIZE) if name in found}
        return {name: values for name, values in found.items() if not np.isnan(values).all()}

    def _key(self, name: str) -> str:
        """Return the key under which clients report a metric."""
        return self.settings.metric_keys.get(name, name)

    def _report(self, metrics: Mapping[str, Any], name: str, key: str) -> Any:
        """Return what a client reported; NaN for a number or a vector that does not fit."""
        if name not in self.selector.metric_sizes:
            return number(metrics, key)
        written = spelling(metrics, key)
        return metrics[written] if written and self.has(metrics, name, key) else math.nan

    def has(self, metrics: Mapping[str, Any], name: str, key: str) -> bool:
        """Return whether a client reported a metric, with the length and seed that are needed.

        None says that the client does not know it.
        """
        size, written = self.selector.metric_sizes.get(name), spelling(metrics, key)
        if size is None or written is None or metrics[written] is None:
            return written is not None
        seed = metrics.get(written + SEED, SKETCH_SEED)
        return bool(np.shape(metrics[written]) == (size,) and seed == SKETCH_SEED)

    def wanted(self, name: str, key: str) -> str:
        """Return what clients must report, for an error."""
        size = self.selector.metric_sizes.get(name)
        if size is None:
            return repr(key)
        seed = f" of seed {SKETCH_SEED}" if name == "update_sketch" else ""
        return f"{key!r}{seed} with {size} numbers"

    @staticmethod
    def _sent(key: str, answers: Collection[Reply]) -> str:
        """Return what a client sent in the place of the metric; empty if no client sent any."""
        for metrics in (reply.metrics for reply in answers):
            if key in metrics:
                return f" (one has {described(metrics, key)})"
        return ""

    def fill_sizes(self, columns: Columns, answers: Iterable[tuple[int, Reply]]) -> None:
        """Fill the number of examples from answers, for clients that have not reported it before.

        Args:
            columns: What clients reported about themselves.
            answers: Client indices and their replies.
        """
        for client, reply in answers:
            size = number(reply.metrics, NUM_EXAMPLES)
            if not math.isnan(size) and math.isnan(columns.number(_SIZE, client)):
                columns.put(client, {_SIZE: size})

    def _may_wait(self) -> bool:
        """Return whether the number of examples may still come with the first answers."""
        wants_answers = bool(self.selector.needs_metrics) or self.selector.polls
        return wants_answers and self.world is None and _ANSWER not in self.seen


class ByClient:
    """A number for each client that checkpoints keep; NaN means that there is none yet."""

    #: Its name in a checkpoint, and what it is in words.
    key: ClassVar[str]
    what: ClassVar[str]

    def __init__(self) -> None:
        self._of = np.zeros(0)

    def grow(self, n_clients: int) -> None:
        """Make room for more clients."""
        more = max(0, n_clients - self._of.size)
        self._of = np.pad(self._of, (0, more), constant_values=np.nan)

    def state(self) -> dict[str, Array]:
        """Return the numbers."""
        return {self.key: self._of}

    def load_state(self, state: Mapping[str, Array], n_clients: int) -> None:
        """Continue from saved numbers; earlier versions saved none."""
        saved = state.get(self.key, np.zeros(0))
        if saved.dtype != np.float64 or saved.ndim != 1 or saved.size > n_clients:
            raise StateFileError(f"{self.what} must be numbers of {n_clients} clients.")
        self._of = np.array(saved)
        self.grow(n_clients)


class FirstClaims(ByClient):
    """The weights that clients first claimed for their answers: numbers of examples, or of steps.

    The model is averaged by these weights. A client that claims 140 and later 10^9 would take it
    over. A weight of up to three times the first claim is believed, because data may grow.
    """

    key, what = "examples", "claims"

    def __init__(self) -> None:
        super().__init__()
        self._warned: set[int] = set()

    def believed(
        self, client: int, claim: float, known: float = math.nan, name: Hashable = None
    ) -> float:
        """Return the weight of an answer.

        Args:
            client: The client's index.
            claim: The weight that it claims.
            known: The weight that follows from what it reported before; NaN if there is none.
            name: Its stable id, for the log.
        """
        self.grow(client + 1)
        if math.isnan(self._of[client]):
            self._of[client] = known if known > 0.0 else claim
        most = JUMP * float(self._of[client])
        if not claim > most or most <= 0.0:
            return claim
        if client not in self._warned:
            self._warned.add(client)
            log.warning(
                "client %r claims the weight %g and claimed %g before: its weight is %g",
                *(client if name is None else name, claim, self._of[client], most),
            )
        return most


class UpdateSizes(ByClient):
    """The sizes of updates that are usual in a federation.

    One reply of 1e30 ruins an average, and also a median of two. The server measures how far each
    reply is from the model that it sent. What is usual is a median with one vote for each client,
    so it holds while fewer than half of them lie. A client votes with its last update, but with no
    more than the largest one that is accepted: if all updates grow, the usual size follows within
    rounds.
    """

    key, what = "update", "sizes"

    def compare(self, clients: IntArray, sizes: FloatArray) -> FloatArray:
        """Return (s,) sizes as multiples of the usual one, and let the clients vote.

        With four sizes in a round, these decide. With fewer, the last sizes of all clients do. A
        multiple is NaN if nothing is known, and infinite if the size is impossible.

        Args:
            clients: (s,) who has sent an update.
            sizes: (s,) the Euclidean norms of their updates, NaN = not known.
        """
        self.grow(int(clients.max(initial=-1)) + 1)
        known = np.where(sizes > 0.0, np.minimum(sizes, LARGEST), np.nan)
        usual = _lower_median(known)
        if math.isnan(usual):
            votes = self._of.copy()
            np.copyto(known, votes[clients], where=np.isnan(known))
            votes[clients] = known
            usual = _lower_median(votes)
        voting = sizes > 0.0
        most = LARGEST if math.isnan(usual) else REFUSED * usual
        self._of[clients[voting]] = np.minimum(sizes[voting], most)
        return np.where(sizes > LARGEST, np.inf, sizes / usual)

    def judge(
        self, clients: IntArray, replies: Collection[Reply], *, refuses: bool
    ) -> list[tuple[float, str | None]]:
        """Return the multiple of each update, and why it is refused; None if it is not.

        What clients claim about their updates is compared, and never refused.

        Args:
            clients: (s,) who has sent an update.
            replies: (s,) what they answered.
            refuses: Whether updates that would ruin the model are refused.
        """
        measured = [reply.size for reply in replies]
        claimed = [number(reply.metrics, "update_norm") for reply in replies]
        multiples = self.compare(clients, np.where(np.isnan(measured), claimed, measured))
        return [
            (
                multiple,
                f"its update has the size {size:.3g}, far more than usual"
                if refuses and multiple > REFUSED and not math.isnan(size)
                else None,
            )
            for multiple, size in zip(multiples.tolist(), measured, strict=True)
        ]


def squared_distance(new: Array, old: Array) -> float:
    """Return the squared Euclidean distance of two arrays of the same shape."""
    with np.errstate(over="ignore"):
        step = np.subtract(new, old, dtype=np.float64).ravel()
        return float(step @ step)


def _lower_median(sizes: FloatArray) -> float:
    known = sizes[~np.isnan(sizes)]
    if known.size < _FEWEST:
        return math.nan
    middle = (known.size - 1) // 2
    return float(np.partition(known, middle)[middle])


def spelling(metrics: Mapping[str, Any], key: str) -> str | None:
    """Return how a client wrote a key; None if it did not report it.

    Clients of earlier versions wrote hyphens for underscores: ``loss-rms``.

    Args:
        metrics: What the client reported.
        key: The key.

    >>> spelling({"loss-rms": 0.5}, "loss_rms")
    'loss-rms'
    """
    spellings = (key, key.replace("_", "-"), OLD_KEYS.get(key, key))
    return next((one for one in spellings if one in metrics), None)


def described(metrics: Mapping[str, Any], key: str) -> str:
    """Return which vector a client sent under a key, for an error.

    Args:
        metrics: What the client reported.
        key: The key, as it wrote it.
    """
    seed = metrics.get(key + SEED, "")
    of_seed = f" of seed {seed:g}" if isinstance(seed, int | float) else ""
    return f"{key!r}{of_seed} with {np.size(metrics[key])} numbers"


def number(metrics: Mapping[str, Any], key: str) -> float:
    """Return one number that a client sent; NaN if it is missing or impossible."""
    value = metrics.get(spelling(metrics, key) or key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        amount = float(value)
    except OverflowError:
        return math.nan
    return amount if abs(amount) <= LARGEST_REPORT else math.nan


def other_forms(forms: Sequence[Form], model: ArrayForm) -> dict[int, str]:
    """Return which answers have another form than the others, by position, and why.

    The form of the model that was sent out is the right one if any answer has it; otherwise the
    most common form is.

    Args:
        forms: The form of each answer.
        model: The form of the arrays that were sent out.
    """
    if not forms:
        return {}
    usual = mode([form for form in forms if form[1] == model] or forms)
    reason = "its arrays have other keys, shapes or types than those of the others"
    return {i: reason for i, form in enumerate(forms) if form != usual}


def loss_report_hint(keys: Mapping[str, str], reply: str, module: str, owner: str) -> str:
    """Return how a client uses a ``LossReport``, or how you name keys of your own.

    Args:
        keys: The key of each metric, by its name.
        reply: What the client sends, with ``report.metrics()`` in it.
        module: Where ``LossReport`` is imported from.
        owner: The class that takes ``metric_keys``.
    """
    own = ", ".join(f"{name!r}: ..." for name in keys)
    steps = []
    if keys.keys() - UPDATE_METRICS:
        steps.append(
            "make report = LossReport() before the training, call report.add(loss, n=len(batch)) "
            f"for each mini-batch, and {reply}"
        )
    if keys.keys() & UPDATE_METRICS:
        bias = ", bias=True" if "bias_update" in keys else ""
        steps.append(
            f"add update_report(before, after, size=...{bias}) of the arrays before and after the "
            "training to the metrics of the reply"
        )
    return (
        f"on the client, {', and '.join(steps)}; it is in {module}. Or name keys of your own: "
        f"{owner}(..., metric_keys={{{own}}})"
    )
