"""What all checks share: the selector under test, comparisons, and failure messages."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from turnout.core import require
from turnout.core.rng import Purpose, stream
from turnout.core.selector import ColumnMaker, Selector
from turnout.core.types import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    Outcome,
    RoundContext,
    Selection,
    Status,
)

#: A zero-argument callable, a selector class, or a selector that is cloned.
MakeSelector = Callable[[], Selector] | type[Selector] | Selector


#: What is said of a state that is not finite; reports of many checks say it once.
FINITE_RULE = (
    ". Rule 5 of the contract: reports may hold NaN, a state never does. Leave out what is NaN in "
    "observe (np.isnan), and keep 'never reported' as a finite number."
)


class Check(Protocol):
    """One rule of the contract; raises ``AssertionError`` when it is broken."""

    __name__: str

    def __call__(self, make_selector: MakeSelector, effort: float = 1.0) -> str | None:
        """Run the check and return a remark; ``effort`` scales repetitions, not margins."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The selector under test, built anew whenever a check asks for it.

    Args:
        make: A function without arguments, a selector class, or a selector that is cloned.
        effort: Factor on the number of repetitions of a check.

    """

    make: MakeSelector
    effort: float = 1.0

    def fresh(self) -> Selector:
        """Return a new selector without state."""
        selector = self.make.clone() if isinstance(self.make, Selector) else self.make()
        expect(
            isinstance(selector, Selector),
            f"make_selector returned {type(selector).__name__}: return an instance of a subclass "
            "of turnout.Selector.",
        )
        return selector

    def ready(self, n_clients: int, seed: int = 0) -> Selector:
        """Return a new selector with state for ``n_clients``."""
        selector = self.fresh()
        with doing(f"prepare({n_clients})"):
            selector.prepare(n_clients, seed)
        return selector

    def times(self, count: int, *, least: int = 1) -> int:
        """Return ``count`` scaled by the effort, at least ``least``."""
        return max(least, round(count * self.effort))


def contract(check: Callable[[Subject], str | None]) -> Check:
    """Turn a function of a subject into a check of whatever makes selectors.

    numpy's warnings about overflow and NaN count as errors. ``UserWarning`` is ignored: a selector
    may say that a setting is unwise, and the checks use small odd settings.
    """

    @functools.wraps(check)
    def run(make_selector: MakeSelector, effort: float = 1.0) -> str | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("error", RuntimeWarning)
            try:
                return check(Subject(make_selector, effort))
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(f"raised {type(error).__name__}: {error}") from error

    return run


def expect(condition: object, message: str) -> None:
    """Raise ``AssertionError`` unless the condition holds.

    Args:
        condition: What must be true.
        message: What is wrong otherwise, and how to fix it.

    """
    if not condition:
        raise AssertionError(message)


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Put what was being done in front of every failure inside the block.

    Args:
        what: The action, for example ``"round 3"``.

    """
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def refused(kind: type[Exception], selector: Selector, what: str, advice: str) -> Iterator[None]:
    """Expect that the block raises, and that the state of the selector stays as it is.

    Args:
        kind: The error.
        selector: The selector that refuses.
        what: What it is asked for, for the messages.
        advice: What is wrong if it accepts.

    """
    before = selector.state()
    try:
        yield
    except kind:
        message = f"a refused {what} changed {{odd}}: check before anything is changed."
        expect_same(before, selector.state(), message)
        return
    raise AssertionError(advice)


def twin(selector: Selector) -> Selector:
    """Return a new selector with the same parameters and a copy of the state, nothing else.

    Args:
        selector: The original.

    """
    expect_finite(selector)
    other = selector.clone()
    other.reset(selector.n_clients)
    other.load_state(selector.state())
    return other


def expect_same(before: Mapping[str, Array], after: Mapping[str, Array], message: str) -> None:
    """Check that arrays are bit-identical.

    Args:
        before: Arrays by name.
        after: Arrays by name.
        message: What is wrong otherwise; ``{odd}`` stands for the names of the arrays that differ.

    """
    contents = [
        {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}
        for arrays in (before, after)
    ]
    odd = {name for name, _ in contents[0].items() ^ contents[1].items()}
    expect(not odd, message.replace("{odd}", ", ".join(sorted(odd))))


def arrays_of(selection: Selection) -> dict[str, Array]:
    """Return copies of all arrays of a selection by name.

    Args:
        selection: The selection.

    """
    arrays: dict[str, Any] = {"round": selection.round, "clients": selection.clients}
    if selection.probability is not None:
        arrays["probability"] = selection.probability
    arrays |= {f"memo[{name!r}]": values for name, values in selection.memo.items()}
    return {name: np.array(values) for name, values in arrays.items()}


def expect_finite(selector: Selector) -> None:
    """Check that no NaN and no infinity is in the state.

    Args:
        selector: The selector whose state is checked.

    """
    floats = {name: x for name, x in selector.state().items() if x.dtype.kind == "f"}
    odd = sorted(name for name, values in floats.items() if not np.isfinite(values).all())
    expect(not odd, f"the state holds NaN or infinity in {', '.join(odd)}{FINITE_RULE}")


def expect_valid(selector: Selector, ctx: RoundContext, selection: object) -> None:
    """Check that the context allows the selection.

    Args:
        selector: The selector that made it.
        ctx: The context of the round.
        selection: What ``select`` returned.

    """
    if not isinstance(selection, Selection):
        raise AssertionError(
            f"select returned {type(selection).__name__}: return Selection(ctx.round, clients)."
        )
    clients, size = selection.clients, ctx.size
    expect(
        selection.round == ctx.round,
        f"the selection carries round {selection.round} in round {ctx.round}: pass ctx.round.",
    )
    expect(
        bool(np.all(clients[1:] > clients[:-1])),
        "clients must be unique and ascending: draw without replacement and sort.",
    )
    outside = clients[~np.isin(clients, ctx.pool)].tolist()
    expect(not outside, f"clients {outside} are not available: choose from ctx.pool.")
    expect(
        clients.size <= size,
        f"{clients.size} clients were chosen where at most {size} can be: use ctx.size.",
    )
    expect(
        clients.size == size or selector.may_underfill,
        f"{clients.size} clients were chosen where {size} could be: fill the cohort, or declare "
        "may_underfill = True.",
    )
    p = selection.probability
    expect(
        p is not None or clients.size == 0 or not selector.reports_probability,
        "reports_probability is True, but the selection has none: report the chance of being "
        "chosen in every round, or leave the declaration out.",
    )
    expect(p is None or bool(np.all((p > 0.0) & (p <= 1.0))), "probability is outside (0, 1].")


# --------------------------------------------------------------------------------------------------
# A toy federation for any selector; a third of its clients are good.
#
# Good clients answer more often, are faster and have a higher loss. So every learner should prefer
# them, whatever it learns from. What would happen to each client in a round is drawn for all
# clients from ``stream(seed, Purpose.ENV, round)``. It does not depend on the selection.
# --------------------------------------------------------------------------------------------------

#: Seconds that a client has in a round.
DEADLINE = 4.3

#: The federation repeats itself after this many rounds, which makes long runs cheap.
PERIOD = 200

#: Share of clients available in a round, and share of polled clients that do not answer.
AVAILABILITY, NO_ANSWER = 0.8, 0.1

#: Seconds per unit of the three context features: work, cold start, transfer.
SECONDS = np.array([1.5, 0.3, 0.8])

#: Metrics that are reported by default, and the factor between each and the loss.
METRICS = ("loss", "loss_std", "loss_rms")
SHARE_OF_LOSS = {"loss": 1.0, "loss_std": 0.1, "loss_rms": math.hypot(1.0, 0.1)}

#: Columns that the toy federation knows by name.
KNOWN_COLUMNS = frozenset(
    {"num_samples", "features", "context", "success_rate", "label_counts"}
    | {f"{part}_duration" for part in ("expected", "upload", "download")}
)

_N_BITS = 64

_NO_SIZES: Mapping[str, int] = MappingProxyType({})


class ToyFate(NamedTuple):
    """What happens to each client that is chosen in a round.

    Args:
        available: (n,) which clients can be chosen.
        status: (n,) how the round ends for each.
        duration: (n,) seconds, NaN for silent clients.
        loss: (n,) NaN for clients that report nothing.
        polled_loss: (n,) NaN for clients that do not answer a poll.
        context: (n, 3) work, cold start and transfer of the round.

    """

    available: BoolArray
    status: Array
    duration: FloatArray
    loss: FloatArray
    polled_loss: FloatArray
    context: FloatArray


class ToyFederation:
    """Clients with fixed qualities, and with outcomes that are drawn anew in every round.

    It has the columns ``num_samples``, ``features`` (64 bits), ``context`` (3 numbers),
    ``expected_duration``, ``upload_duration``, ``download_duration``, ``success_rate`` and
    ``label_counts`` (10 numbers). Any other column that a selector declares is made as its
    ``check_columns`` says, or holds a fixed number from [0, 1) per client. Any other metric equals
    the loss. Metrics that are vectors are long and unlike for good clients, short and alike for all
    others.

    Args:
        n_clients: Number of clients.
        cohort_size: How many clients a round chooses.
        seed: The same seed draws the same federation.
        good: (n,) which clients are good. Default: a third, drawn at random.
        labels: Renames the clients: client i behaves like client ``labels[i]`` of the federation
            without labels.

    """

    def __init__(
        self,
        n_clients: int,
        cohort_size: int,
        *,
        seed: int = 0,
        good: BoolArray | None = None,
        labels: IntArray | None = None,
    ) -> None:
        self.n_clients = require.integer("n_clients", n_clients, minimum=1)
        self.cohort_size = require.integer("cohort_size", cohort_size, minimum=1)
        self.seed = seed
        self.labels = np.arange(n_clients) if labels is None else labels
        rng = stream(seed, Purpose.PARTITION)
        drawn = rng.permutation(n_clients) < max(1, n_clients // 3)
        self._good = drawn if good is None else np.asarray(good, dtype=np.bool_)
        self._jitter = rng.uniform(0.8, 1.2, (4, n_clients))
        self._columns: dict[str, Array] = {}
        self._fates: dict[int, ToyFate] = {}

    @property
    def good(self) -> BoolArray:
        """(n,) which clients are reliable, fast and have a high loss."""
        return self._good[self.labels]

    def fate(self, round: int) -> ToyFate:
        """Return what happens in a round, drawn for all clients at once."""
        key = round % PERIOD
        if key not in self._fates:
            drawn = self._draw(stream(self.seed, Purpose.ENV, key))
            self._fates[key] = ToyFate(*(_read_only(values[self.labels]) for values in drawn))
        return self._fates[key]

    def column(self, name: str, round: int, made: int | ColumnMaker | None = None) -> Array:
        """Return a column as it is before a round; only ``context`` changes from round to round.

        ``made`` is the entry of the selector's ``check_columns``.
        """
        if name == "context":
            return self.fate(round).context
        if name not in self._columns:
            self._columns[name] = _read_only(self._fixed_column(name, made)[self.labels])
        return self._columns[name]

    def context(self, selector: Selector, round: int, **changes: Any) -> RoundContext:
        """Return the context of a round with the declared columns only.

        ``changes`` replace fields of the context, for example ``available=`` or ``columns=``.
        """
        declared = sorted(selector.needs_columns | selector.uses_columns)
        settings: dict[str, Any] = {
            "cohort_size": self.cohort_size,
            "available": self.fate(round).available,
            "deadline": DEADLINE,
            "columns": {
                name: self.column(name, round, selector.check_columns.get(name))
                for name in declared
            },
        }
        return RoundContext(round=round, **(settings | changes))

    def ask(self, selector: Selector, ctx: RoundContext, rng: np.random.Generator) -> RoundContext:
        """Poll as a runner does and return the context with the answers."""
        polled = selector.poll(ctx, rng)
        if polled is None:
            return ctx
        answers = self.fate(ctx.round).polled_loss[polled]
        return dataclasses.replace(ctx, polled=polled, polled_loss=answers)

    def choose(
        self, selector: Selector, round: int, *, seed: int = 0, **changes: Any
    ) -> tuple[RoundContext, Selection]:
        """Poll and select; return the context with the answers, and the selection."""
        ctx = self.context(selector, round, **changes)
        ctx = self.ask(selector, ctx, stream(seed, Purpose.POLL, round))
        return ctx, selector.select(ctx, stream(seed, Purpose.SELECT, round))

    def outcome(
        self,
        selection: Selection,
        metrics: Iterable[str] = METRICS,
        sizes: Mapping[str, int] = _NO_SIZES,
    ) -> Outcome:
        """Return what happened to the chosen clients, with the named metrics.

        ``sizes`` are the selector's ``metric_sizes``.
        """
        fate, chosen = self.fate(selection.round), selection.clients
        loss = fate.loss[chosen]
        reports = {
            name: SHARE_OF_LOSS.get(name, 1.0) * loss
            if name not in sizes
            else loss[:, None] * self._directions(sizes[name])[self.labels[chosen]]
            for name in metrics
        }
        return Outcome(fate.status[chosen], fate.duration[chosen], reports)

    def feedback(self, selector: Selector, selection: Selection) -> Outcome:
        """Return what happened to the chosen clients, with the metrics that a selector needs."""
        return self.outcome(selection, selector.needs_metrics, selector.metric_sizes)

    def play(
        self, selector: Selector, rounds: Iterable[int], *, seed: int = 0, **changes: Any
    ) -> list[Selection]:
        """Run whole rounds and return the selections; ``changes`` as in ``context``."""
        selections = []
        for t in rounds:
            _, selection = self.choose(selector, t, seed=seed, **changes)
            selector.observe(selection, self.feedback(selector, selection))
            selections.append(selection)
        return selections

    def _draw(self, rng: np.random.Generator) -> ToyFate:
        n = self.n_clients
        available = rng.random(n) < AVAILABILITY
        failure = rng.integers(Status.LATE, max(Status) + 1, n)
        status = np.where(rng.random(n) < self._success_rate(), Status.COMPLETED, failure)
        context = self._mean_context()
        context[:, 1] = rng.random(n) < 0.5
        duration = context @ SECONDS * rng.uniform(0.7, 1.3, n)
        duration[status == Status.LATE] += DEADLINE
        duration[status == Status.SILENT] = np.nan
        loss = np.where(self._good, 3.0, 1.0) * self._jitter[0] * rng.uniform(0.9, 1.1, n)
        reports = (status == Status.COMPLETED) | (status == Status.LATE)
        polled_loss = np.where(rng.random(n) < NO_ANSWER, np.nan, loss)
        reported = np.where(reports, loss, np.nan)
        return ToyFate(available, status.astype(np.int8), duration, reported, polled_loss, context)

    def _fixed_column(self, name: str, made: int | ColumnMaker | None) -> Array:
        if name == "features":  # all good clients have similar codes, and so have all others
            rng = stream(self.seed, Purpose.INIT)
            code = rng.integers(0, 2, (2, _N_BITS), dtype=np.uint8)
            is_flipped = rng.random((self.n_clients, _N_BITS)) < 0.05
            return np.asarray(code[self._good.astype(np.int64)] ^ is_flipped.astype(np.uint8))
        if name == "success_rate":
            return self._success_rate()
        if name == "label_counts":
            return np.rint(50.0 * np.maximum(self._directions(10), 0.0))
        if name == "num_samples":
            return np.asarray(np.rint(100.0 * self._jitter[1]), dtype=np.int64)
        if name.endswith("_duration"):
            share = 1.0 if name == "expected_duration" else 0.1
            return np.asarray(share * (self._mean_context() @ SECONDS))
        rng = stream(self.seed, Purpose.INIT, zlib.crc32(name.encode()))
        if callable(made):
            values = np.array(made(self.n_clients, rng))
            expect(
                values.shape[:1] == (self.n_clients,),
                f"check_columns[{name!r}]({self.n_clients}, rng) must return an array with one row "
                f"per client, got shape {values.shape}: make its first axis n.",
            )
            return values
        return rng.random(self.n_clients if made is None else (self.n_clients, made))

    def _directions(self, size: int) -> FloatArray:
        """Return (n, size) vectors: those of good clients differ, those of all others hardly do."""
        rng = stream(self.seed, Purpose.INIT, size)
        common, own = rng.standard_normal(size), rng.standard_normal((self.n_clients, size))
        return np.where(self._good[:, None], own, common + 0.05 * own)

    def _success_rate(self) -> FloatArray:
        return np.asarray(np.where(self._good, 0.8, 0.4) * self._jitter[2])

    def _mean_context(self) -> FloatArray:
        work, transfer = np.where(self._good, [[0.5], [0.3]], [[2.0], [1.5]]) * self._jitter[3]
        return np.column_stack((work, np.full(self.n_clients, 0.5), transfer))


def _read_only(values: Array) -> Array:
    values.setflags(write=False)
    return values
