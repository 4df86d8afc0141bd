from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import pytest

import turnout
from turnout.core import errors
from turnout.core.types import LARGEST_REPORT

NAN, INF = math.nan, math.inf
EVERYONE = np.ones(3, dtype=bool)


class Sink(turnout.Selector):
    """Takes everybody and remembers that it was told."""

    needs_columns = frozenset({"num_samples"})

    def reset(self, n_clients):
        super().reset(n_clients)
        self.told_ = 0

    def select(self, ctx, rng):
        return turnout.Selection(ctx.round, ctx.pool[: ctx.size])

    def observe(self, selection, outcome):
        self.told_ += 1


def refuses(*parts, error=turnout.InvalidInput):
    """The error and, in this order, what its text must name."""
    return pytest.raises(error, match=r"(?s)" + ".*".join(parts))


# --- RoundContext ---


def test_context_basics():
    ctx = turnout.RoundContext(2, 5, [True, False, True])
    assert ctx.n_clients == 3
    assert ctx.size == 2
    assert ctx.pool.tolist() == [0, 2]
    assert ctx.available.dtype == np.bool_
    assert ctx.deadline == INF
    assert ctx.of_pool(np.array([5, 6, 7])).tolist() == [5, 7]
    assert turnout.RoundContext(0, 1, EVERYONE).size == 1
    empty = turnout.RoundContext(0, 1, [])
    assert empty.n_clients == empty.size == 0


@pytest.mark.parametrize("value", [0, -1, -(10**9), 1.0, 2.5, "3", None, True, NAN])
def test_cohort_size(value):
    with refuses("cohort_size", "integer >= 1", "got"):
        turnout.RoundContext(0, value, EVERYONE)


def test_message_names_the_value():
    with refuses("cohort_size", "got -4"):
        turnout.RoundContext(0, -4, EVERYONE)
    with refuses("round", "got -1"):
        turnout.RoundContext(-1, 1, EVERYONE)
    with refuses("deadline", "> 0", "got -2"):
        turnout.RoundContext(0, 1, EVERYONE, -2.0)


@pytest.mark.parametrize("value", [-1, 1.5, "0", None, True])
def test_round(value):
    with refuses("round", "got"):
        turnout.RoundContext(value, 1, EVERYONE)


@pytest.mark.parametrize("value", [0.0, -1.0, NAN, -INF, "5", None])
def test_deadline(value):
    with refuses("deadline", "got"):
        turnout.RoundContext(0, 1, EVERYONE, value)


def test_numpy_integers_are_integers():
    ctx = turnout.RoundContext(np.int64(3), np.int32(2), EVERYONE, np.float32(2.0))
    assert ctx.size == 2


@pytest.mark.parametrize(
    "value",
    [
        [1, 0, 1],
        np.ones(3),
        np.ones((3, 1), dtype=bool),
        [[True], [False]],
        [[True], [False, True]],
        ["a", "b"],
        True,
        None,
        [True, None],
    ],
)
def test_available(value):
    with refuses("available"):
        turnout.RoundContext(0, 1, value)


@pytest.mark.parametrize(
    ("column", "parts"),
    [
        (np.ones(4), (r"columns\['x'\]", "3", "4")),
        (np.ones((2, 3)), (r"columns\['x'\]", r"\(2, 3\)")),
        (np.ones((3, 1, 1)), (r"columns\['x'\]",)),
        (np.array(5.0), (r"columns\['x'\]",)),
        ([1.0, 2.0, 3.0], (r"columns\['x'\]", "numpy array", "list")),
        (np.array(["a", "b", "c"]), (r"columns\['x'\]", "numeric")),
        (np.array([1, None, 2], dtype=object), (r"columns\['x'\]", "numeric", "object")),
        (np.ones(3, dtype=complex), (r"columns\['x'\]", "complex")),
        (None, (r"columns\['x'\]", "NoneType")),
    ],
)
def test_columns(column, parts):
    with refuses(*parts):
        turnout.RoundContext(0, 1, EVERYONE, columns={"x": column})


@pytest.mark.parametrize("name", ["num_samples", "expected_duration", "success_rate"])
@pytest.mark.parametrize("bad", [-1.0, INF, -INF])
def test_amounts_cannot_be_negative_or_infinite(name, bad):
    with refuses(name, "NaN = unknown", "got", str(bad)):
        turnout.RoundContext(0, 1, EVERYONE, columns={name: np.array([1.0, bad, NAN])})
    turnout.RoundContext(0, 1, EVERYONE, columns={name: np.array([1.0, NAN, 0.0])})
    turnout.RoundContext(0, 1, EVERYONE, columns={name: np.full(3, NAN)})


@pytest.mark.parametrize("name", ["upload_duration", "download_duration"])
@pytest.mark.parametrize("bad", [-1.0, INF])
def test_transfer_times_cannot_be_negative_or_infinite(name, bad):
    with refuses(name, "got"):
        turnout.RoundContext(0, 1, EVERYONE, columns={name: np.array([1.0, bad, NAN])})


def test_success_rate_is_a_share():
    with refuses("success_rate", "1", "got", "1.5"):
        turnout.RoundContext(0, 1, EVERYONE, columns={"success_rate": np.array([0.5, 1.5, 0.0])})


def test_missing_column_says_what_is_there_and_what_to_add():
    ctx = turnout.RoundContext(0, 1, EVERYONE, columns={"context": np.ones((3, 2))})
    with refuses("num_samples", "context", r"columns=", error=turnout.MissingColumn):
        ctx.column("num_samples")
    with pytest.raises(KeyError):
        ctx.column("num_samples")
    with refuses("num_samples", "none", error=turnout.MissingColumn):
        turnout.RoundContext(0, 1, EVERYONE).column("num_samples")
    assert not str(turnout.MissingColumn("plain")).startswith("'")


@pytest.mark.parametrize(
    ("polled", "loss", "parts"),
    [
        ([0, 1], None, ("polled", "polled_loss")),
        (None, [0.1], ("polled", "polled_loss")),
        ([0, 3], [0.1, 0.2], ("polled", "< 3", "3")),
        ([-1], [0.1], ("polled", ">= 0", "-1")),
        ([0.5], [0.1], ("polled", "indices")),
        ([0, 1], [0.1], ("polled_loss", "2", "1")),
        ([0], [-0.1], ("polled_loss", "-0.1")),
        ([0], [INF], ("polled_loss", "inf")),
        ([0], ["x"], ("polled_loss",)),
        ([1, 1], [0.1, 0.2], ("polled", "unique|twice|duplicate")),
    ],
)
def test_polled(polled, loss, parts):
    with refuses(*parts):
        turnout.RoundContext(0, 1, EVERYONE, polled=polled, polled_loss=loss)


def test_polled_nan_is_no_answer():
    ctx = turnout.RoundContext(0, 1, EVERYONE, polled=[2, 0], polled_loss=[NAN, 0.5])
    clients, loss = ctx.answers()
    assert clients.tolist() == [2, 0]
    assert math.isnan(loss[0])


def test_values_are_frozen():
    ctx = turnout.RoundContext(0, 1, EVERYONE)
    for value, name in [
        (ctx, "round"),
        (turnout.Selection(0, [1]), "clients"),
        (turnout.Outcome([0], [1.0]), "status"),
    ]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 1)


# --- Selection ---


@pytest.mark.parametrize(
    ("clients", "parts"),
    [
        ([2, 1], ("clients", "ascending")),
        ([1, 1], ("clients", "unique")),
        ([-1, 2], ("clients", ">= 0", "-1")),
        ([0.5], ("clients", "indices")),
        ([[0, 1]], ("clients", r"\(1, 2\)")),
        (3, ("clients",)),
        (["a"], ("clients",)),
        ([True, False], ("clients",)),
        (None, ("clients",)),
        ([[0], [1, 2]], ("clients",)),
    ],
)
def test_selection_clients(clients, parts):
    with refuses(*parts):
        turnout.Selection(0, clients)


@pytest.mark.parametrize(
    ("probability", "parts"),
    [
        ([0.5], ("probability", "2", "1")),
        ([0.5, 0.0], ("probability", r"\(0, 1\]", "0.0")),
        ([0.5, 1.0000001], ("probability", r"\(0, 1\]", "1.0000001")),
        ([0.5, -0.2], ("probability", "-0.2")),
        ([0.5, NAN], ("probability", "nan")),
        ([0.5, INF], ("probability", "inf")),
        (["a", "b"], ("probability",)),
        (0.5, ("probability",)),
    ],
)
def test_selection_probability(probability, parts):
    with refuses(*parts):
        turnout.Selection(0, [0, 1], probability)


def test_selection_accepts_lists_and_the_empty_choice():
    assert turnout.Selection(0, []).clients.dtype == np.int64
    assert turnout.Selection(0, [], []).probability.size == 0
    assert turnout.Selection(4, np.array([1, 3], dtype=np.uint8)).clients.tolist() == [1, 3]
    assert turnout.Selection(0, [1], [1.0]).probability.tolist() == [1.0]
    assert turnout.Selection(0, [1]).memo == {}


@pytest.mark.parametrize("round", [-1, 0.5, None])
def test_selection_round(round):
    with refuses("round", "got"):
        turnout.Selection(round, [0])


# --- Outcome ---


def test_outcome_statuses():
    outcome = turnout.Outcome([0, 1, 2, 3], [1.0, 2.0, NAN, NAN])
    assert outcome.completed.tolist() == [True, False, False, False]
    assert outcome.status.dtype == np.int8
    assert [turnout.Status(int(s)).name for s in outcome.status] == [
        "COMPLETED",
        "LATE",
        "FAILED",
        "SILENT",
    ]
    assert np.isnan(outcome.metric("loss")).all()
    assert turnout.Outcome([turnout.Status.LATE], [1.0]).status.tolist() == [1]


@pytest.mark.parametrize(
    ("status", "parts"),
    [
        ([4], ("status", "0 completed", "3 silent", "4")),
        ([-1], ("status", "-1")),
        ([300], ("status", "300")),
        ([0.0], ("status",)),
        ([True], ("status",)),
        (["ok"], ("status",)),
        (0, ("status",)),
        ([[0]], ("status",)),
        (None, ("status",)),
        ([[0], [1, 2]], ("status",)),
    ],
)
def test_outcome_bad_status(status, parts):
    with refuses(*parts):
        turnout.Outcome(status, [1.0])
    with refuses(*parts):
        turnout.Outcome.from_reports(status, [1.0])


@pytest.mark.parametrize("bad", [INF, -INF, -1.0, -1e-9, 2 * LARGEST_REPORT])
@pytest.mark.parametrize("field", ["duration", "loss", "loss_std", "loss_rms"])
def test_outcome_refuses_impossible_numbers(field, bad):
    duration = [bad, 1.0] if field == "duration" else [1.0, 1.0]
    metrics = {} if field == "duration" else {field: [bad, 1.0]}
    with refuses(field, "NaN = not reported", "from_reports"):
        turnout.Outcome([0, 0], duration, metrics)
    with refuses(field, "got", str(bad).replace("+", r"\+")):
        turnout.Outcome([0, 0], duration, metrics)


@pytest.mark.parametrize("bad", [["x", 1.0], [None, 1.0], [[1.0], [2.0]], [1.0], [1.0] * 3, 5.0])
@pytest.mark.parametrize("field", ["duration", "loss"])
def test_outcome_refuses_wrong_types_and_lengths(field, bad):
    with refuses(field):
        if field == "duration":
            turnout.Outcome([0, 0], bad)
        else:
            turnout.Outcome([0, 0], [1.0, 1.0], {field: bad})


def test_outcome_nan_is_missing_and_other_metrics_may_be_negative():
    outcome = turnout.Outcome([0, 2], [NAN, 0.0], {"loss": [NAN, 0.0], "gain": [-3.0, NAN]})
    assert outcome.metric("gain")[0] == -3.0
    with refuses("gain", "finite"):
        turnout.Outcome([0], [1.0], {"gain": [-INF]})


HOSTILE = [
    "1.0",
    b"2",
    None,
    INF,
    -INF,
    -1.0,
    1e31,
    10**400,
    [1.0, 2.0],
    [[1.0], [2.0, 3.0]],
    {},
    object(),
    1j,
    NAN,
    np.array([1.0, 2.0]),
    np.array("x"),
    (),
]


@pytest.mark.parametrize("index", range(len(HOSTILE)))
def test_reports_are_contained_one_by_one(index):
    bad = HOSTILE[index]
    outcome = turnout.Outcome.from_reports(
        [0, 0, 0], [bad, 2.0, 3.0], {"loss": [0.5, bad, 0.7], "gain": [1.0, bad, -2.0]}
    )
    assert np.isnan(outcome.duration[0])
    assert outcome.duration[1:].tolist() == [2.0, 3.0]
    loss, gain = outcome.metric("loss"), outcome.metric("gain")
    assert np.isnan(loss[1])
    assert loss[[0, 2]].tolist() == [0.5, 0.7]
    assert gain[[0, 2]].tolist() == [1.0, -2.0]
    assert np.isnan(gain[1]) or bad == -1.0


def test_reports_all_hostile_at_once():
    n = len(HOSTILE)
    outcome = turnout.Outcome.from_reports([0] * n, HOSTILE, {"loss_rms": HOSTILE})
    assert np.isnan(outcome.duration).all()
    assert np.isnan(outcome.metric("loss_rms")).all()


def test_a_report_wrapped_in_an_array_does_not_warn():
    outcome = turnout.Outcome.from_reports([0, 0], [np.array([1.0]), np.array(2.0)])
    assert np.isnan(outcome.duration[0]) or outcome.duration[0] == 1.0
    assert outcome.duration[1] == 2.0


def test_good_reports_pass_unchanged():
    outcome = turnout.Outcome.from_reports(
        np.array([0, 1]), np.array([1, 2]), {"loss": (np.float32(0.5), 3)}
    )
    assert outcome.duration.tolist() == [1.0, 2.0]
    assert outcome.metric("loss").tolist() == [0.5, 3.0]
    assert turnout.Outcome.from_reports([], []).status.size == 0


@pytest.mark.parametrize("reports", [[1.0], [1.0] * 3, []])
def test_reports_of_the_wrong_number(reports):
    with refuses("duration", "2", str(len(reports))):
        turnout.Outcome.from_reports([0, 0], reports)
    with refuses("loss", "2", str(len(reports))):
        turnout.Outcome.from_reports([0, 0], [1.0, 1.0], {"loss": reports})


@pytest.mark.parametrize("reports", [None, 5.0, 7])
def test_reports_that_are_not_a_sequence(reports):
    with refuses("duration"):
        turnout.Outcome.from_reports([0, 0], reports)


# --- the guards of every selector ---


def test_not_reset():
    rng = np.random.default_rng(0)
    ctx = turnout.RoundContext(0, 1, EVERYONE, columns={"num_samples": np.ones(3)})
    for name in turnout.list_selectors():
        selector = turnout.make(name)
        with refuses(type(selector).__name__, r"reset\(n_clients\)", error=turnout.NotReset):
            selector.select(ctx, rng)
        with refuses(type(selector).__name__, r"reset\(n_clients\)", error=turnout.NotReset):
            selector.grow(5)


def test_observe_before_reset():
    with refuses("Sink", r"reset\(n_clients\)", error=turnout.NotReset):
        Sink().observe(turnout.Selection(0, [0]), turnout.Outcome([0], [1.0]))


@pytest.mark.parametrize("n_clients", [0, -1, 2.5, "3", None, True])
def test_reset_size(n_clients):
    with refuses("n_clients", "integer >= 1", "got"):
        Sink().reset(n_clients)


def test_context_of_another_size():
    selector, rng = Sink(), np.random.default_rng(0)
    selector.reset(4)
    ctx = turnout.RoundContext(0, 1, EVERYONE, columns={"num_samples": np.ones(3)})
    with refuses("available", "3", "Sink", "4", r"grow\(n_clients\)"):
        selector.select(ctx, rng)


def test_missing_column_names_the_selector():
    selector = Sink()
    selector.reset(3)
    with refuses("Sink", "num_samples", error=turnout.MissingColumn):
        selector.select(turnout.RoundContext(0, 1, EVERYONE), np.random.default_rng(0))


def test_outcome_that_does_not_fit():
    selector = Sink()
    selector.reset(3)
    with refuses("status", "2", "1"):
        selector.observe(turnout.Selection(0, [0, 1]), turnout.Outcome([0], [1.0]))
    with refuses("clients", "< 3", "3"):
        selector.observe(turnout.Selection(0, [0, 3]), turnout.Outcome([0, 0], [1.0, 1.0]))
    assert selector.told_ == 0
    selector.observe(turnout.Selection(0, [0, 2]), turnout.Outcome([0, 0], [1.0, 1.0]))
    assert selector.told_ == 1


def test_grow_only_grows():
    selector = Sink()
    selector.reset(5)
    for bad in (4, 0, 2.5):
        with refuses("n_clients", "got"):
            selector.grow(bad)
    assert selector.n_clients == 5
    selector.grow(5)
    selector.grow(9)
    assert selector.n_clients == 9


def test_every_error_is_a_turnout_error():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    raised = [kind for kind in kinds if issubclass(kind, Exception)]
    assert len(raised) == 11
    assert all(issubclass(kind, turnout.TurnoutError) for kind in raised)
    assert issubclass(turnout.InvalidInput, ValueError)
    assert issubclass(turnout.MissingColumn, KeyError)
    assert issubclass(turnout.UnknownSelector, LookupError)
    assert issubclass(turnout.UnknownParameter, TypeError)
    assert issubclass(turnout.StateFileError, ValueError)
    assert issubclass(turnout.NotReset, RuntimeError)
    assert issubclass(turnout.MissingPoll, RuntimeError)


def test_public_names_exist():
    assert sorted(set(turnout.__all__)) == sorted(turnout.__all__)
    assert all(hasattr(turnout, name) for name in turnout.__all__)


@pytest.mark.slow
def test_import_needs_numpy_only():
    program = (
        "import sys, turnout\n"
        "heavy = ['torch', 'sklearn', 'typer', 'rich', 'scipy', 'joblib', 'plotly', 'matplotlib']\n"
        "assert 'numpy' in sys.modules\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "print(turnout.list_selectors() and [name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


@pytest.mark.parametrize(
    "value",
    [
        turnout.RoundContext(3, 2, [True, False, True]),
        turnout.RoundContext(
            0, 1, [True, True], 9.0, {"num_samples": np.ones(2)}, np.array([1]), np.array([0.5])
        ),
        turnout.Selection(1, [0, 2], [0.5, 1.0], {"seen": np.arange(2)}),
        turnout.Selection(1, [0, 2]),
        turnout.Outcome([0, 2], [1.5, math.nan], {"loss": [0.5, math.nan]}),
    ],
)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_values_of_the_contract_are_copied_whole(value, copied):
    again = copied(value)
    assert type(again) is type(value)
    for name in value.__dataclass_fields__:
        ours, theirs = getattr(again, name), getattr(value, name)
        is_mapping = isinstance(theirs, Mapping)
        np.testing.assert_equal(*(dict(ours), dict(theirs)) if is_mapping else (ours, theirs))


def test_what_is_no_context_selection_or_outcome_is_refused():
    selector = turnout.make("random")
    selector.reset(3)
    rng = np.random.default_rng(0)
    with pytest.raises(turnout.InvalidInput, match="ctx must be of class RoundContext, got None"):
        selector.select(None, rng)
    selection = selector.select(turnout.RoundContext(0, 1, [True] * 3), rng)
    with pytest.raises(turnout.InvalidInput, match="selection must be of class Selection"):
        selector.observe((), turnout.Outcome([0], [1.0]))
    with pytest.raises(turnout.InvalidInput, match="outcome must be of class Outcome, got 5"):
        selector.observe(selection, 5)
    with pytest.raises(turnout.InvalidInput, match="memo must map names to arrays, got 5"):
        turnout.Selection(0, [1], memo=5)


@pytest.mark.parametrize("huge", [10**400, 10**5000, -(10**400)], ids=["large", "huge", "low"])
def test_huge_integers_are_refused_by_name(huge):
    with pytest.raises(turnout.InvalidInput, match="eta must be a finite number") as caught:
        turnout.make("e3cs", eta=huge)
    assert len(str(caught.value)) < 300
