from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

import turnout
from tests.testing import broken
from tests.testing.broken import LearnsNothing, StickToWinners, Uniform
from turnout import Purpose, Selection, Selector, Status, stream
from turnout.cli import app
from turnout.core import registry
from turnout.testing import (
    CHECKS,
    ToyFederation,
    assert_selector,
    check_selector,
    name_of_check,
    yield_checks,
)
from turnout.testing import check_scale as scale_module
from turnout.testing.check_select import margin

BY_NAME = {name_of_check(check): check for check in CHECKS}

CAUGHT = {
    "parameters": {
        "TakesByPosition": "by position",
        "ConvertsParameter": "changes eta",
        "WorksInConstructor": "also sets step",
        "ForgetsSuperReset": "super\\(\\).reset",
        "KeepsItsPast": "reset keeps won_",
    },
    "selection": {
        "DrawsTwice": "unique and ascending",
        "IgnoresAvailability": "not available",
        "Underfills": "may_underfill",
        "DeclaresChances": "reports_probability is True",
        "Overfills": "at most",
        "CountsItsOwnRounds": "pass ctx.round",
        "ReturnsAnArray": "returned ndarray",
        "PollsTheAbsent": "poll must return available clients",
    },
    "edge_rounds": {
        "NeedsSomebody": "nobody available|n = 1",
        "TrustsColumns": "all columns NaN",
        "TrustsPolls": "all polled NaN",
    },
    "select_keeps_state": {
        "MutatesInSelect": "changed won_",
        "MutatesInPoll": "changed won_",
        "GlobalNumpy": "never from global numpy",
        "HidesState": "same state selects differently",
        "TakesAnyContext": "context of 13 clients was accepted",
    },
    "inputs_untouched": {
        "WritesToColumns": "select with read-only inputs.*read-only",
        "WritesToOutcome": "observe with read-only inputs.*read-only",
        "KeepsAReference": "durations_ changes when an input is reused",
    },
    "probability": {
        "WrongProbability": "not the frequency",
        "TargetsAsProbability": "the likely clients are chosen too rarely",
        "ChangingProbability": "different probabilities",
        "OtherChances": "chances differs from the probabilities of select",
    },
    "observe_survives": {
        "NaNIntoState": "NaN or infinity in won_",
        "DividesByDuration": "zero duration.*NaN or infinity in won_",
        "Overflows": "RuntimeWarning",
        "TakesAnyOutcome": "another length",
    },
    "late_feedback": {
        "RemembersLastPull": "earlier select",
        "SelectionSharesState": "changed after it was made",
    },
    "save_and_load": {
        "AllocatesInObserve": "total_",
        "CountsOutsideState": "differs in",
    },
    "grow": {
        "ForgetsWhenGrowing": "old rows of won_",
        "ShutsOutNewClients": "not chosen in 150 rounds",
        "Shrinks": "fewer clients was accepted",
    },
    "relabelling": {
        "LowIndexFirst": "equal clients must have equal chances",
        "LowIndexFirstLater": "depends on the index",
    },
    "long_run": {
        "KeepsAHistory": "grew from",
        "KeepsAHiddenHistory": "grew from",
        "DriftsToInfinity": "overflow|NaN or infinity",
    },
    "declarations": {
        "PromisesEveryRound": "guaranteed_rate must be in",
        "QuotaInClients": "quota_at\\(0\\) must be in",
        "BoundsTheEndOnly": "one number >= 0 for each of 20 rounds",
        "UndeclaredColumn": "'num_samples' is used but not declared",
        "AsksForUndeclaredColumn": "'num_samples' is used but not declared",
        "GetsUndeclaredColumn": "'num_samples' is used but not declared",
        "HidesUndeclaredColumn": "num_samples.* used but not declared",
        "UndeclaredMetric": "metric that is not declared",
        "NeedsItsOptionalColumn": "without the optional columns",
        "VagueAboutColumn": "select must raise MissingColumn naming it, got ValueError",
    },
    "vectorised": {
        "LoopsOverClients": "lines of Python",
        "LoopsInObserve": "lines of Python",
    },
    "learns": {
        "LearnsNothing": "a learner must reach 1.3 times",
        "PrefersLosers": "a learner must reach 1.3 times",
    },
    "forgets_the_dead": {"RemembersVictories": "times their fair share of 0.167"},
    "docstring": {"SaysNothing": "lack Idea, Setting, Limits, Deviations"},
}
CASES = [
    pytest.param(check, name, message, id=f"{check}-{name}")
    for check, caught in CAUGHT.items()
    for name, message in caught.items()
]


@pytest.mark.parametrize(("check", "name", "message"), CASES)
def test_the_right_check_catches(check: str, name: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        BY_NAME[check](getattr(broken, name))


def test_every_check_is_shown_to_fail_and_every_broken_selector_is_used() -> None:
    assert list(CAUGHT) == list(BY_NAME)
    used = {name for caught in CAUGHT.values() for name in caught}
    defined = {
        name
        for name, found in vars(broken).items()
        if inspect.isclass(found) and found.__module__ == broken.__name__
    }
    assert used == defined - {"StickToWinners", "Uniform"}


def test_a_correct_selector_of_an_outsider_passes_all() -> None:
    assert [r.message for r in check_selector(StickToWinners)] == [""] * 17


def test_quadratic_time_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_module, "SLOWEST", 1e-3)
    with pytest.raises(AssertionError, match="times as long as one draw"):
        BY_NAME["vectorised"](StickToWinners)


class WithParameter(StickToWinners):
    __doc__ = StickToWinners.__doc__

    def __init__(self, *, eta: float = 0.5) -> None:
        self.eta = eta


class Explained(WithParameter):
    __doc__ = f"{StickToWinners.__doc__}\n    Args:\n        eta: Learning rate.\n    "


class ExplainsAnother(WithParameter):
    __doc__ = f"{StickToWinners.__doc__}\n    Args:\n        tau (number): Rate.\n    "


def docstring_result(cls) -> tuple[bool, str]:
    (result,) = check_selector(cls, checks=[BY_NAME["docstring"]])
    return result.passed, result.message


def test_a_parameter_without_words_is_a_remark_for_outsiders() -> None:
    passed, message = docstring_result(WithParameter)
    assert passed
    assert "Args: in the docstring of WithParameter lacks eta" in message
    assert docstring_result(Explained) == (True, "")


def test_a_parameter_without_words_fails_once_the_class_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classes = {"with": WithParameter, "explained": Explained, "another": ExplainsAnother}
    monkeypatch.setattr(registry, "_registered", registry._registered | classes)
    assert docstring_result(Explained) == (True, "")
    assert docstring_result(WithParameter)[0] is False
    passed, message = docstring_result(ExplainsAnother)
    assert not passed
    assert "lacks eta and explains what is no parameter: tau" in message


def test_results_are_numbered_and_timed() -> None:
    results = check_selector(OnPurpose, expected_failures={}, effort=0.1)
    assert [result.number for result in results] == list(range(1, 18))
    assert [result.name for result in results] == list(BY_NAME)
    assert [result.name for result in results if not result.passed] == ["learns"]
    assert all(result.seconds > 0.0 for result in results)


def test_checks_can_be_run_one_by_one() -> None:
    (result,) = check_selector(StickToWinners, checks=[BY_NAME["docstring"]])
    assert (result.number, result.name, result.passed) == (17, "docstring", True)


class OnPurpose(LearnsNothing):
    __doc__ = StickToWinners.__doc__
    expected_check_failures: ClassVar = {"learns": "a baseline that forgets"}


class NeedlesslyExcused(StickToWinners):
    __doc__ = StickToWinners.__doc__
    expected_check_failures: ClassVar = {"learns": "thought to be hard"}


def checks_of(make_selector, **options):
    return dict(yield_checks(make_selector, **options))


def test_expected_failures_are_read_from_the_class() -> None:
    assert checks_of(OnPurpose)["learns"]() == "fails as expected: a baseline that forgets"


def test_an_unexpected_pass_fails() -> None:
    with pytest.raises(AssertionError, match="take it off the list"):
        checks_of(NeedlesslyExcused)["learns"]()


def test_an_expected_failure_needs_a_reason() -> None:
    with pytest.raises(AssertionError, match="has no reason"):
        checks_of(LearnsNothing, expected_failures={"learns": " "})["learns"]()


def test_given_expected_failures_replace_those_of_the_class() -> None:
    with pytest.raises(AssertionError, match="a learner must reach"):
        checks_of(OnPurpose, expected_failures={})["learns"]()


def test_an_expected_failure_of_no_check_is_refused() -> None:
    with pytest.raises(turnout.InvalidInput, match="lerns"):
        check_selector(StickToWinners, expected_failures={"lerns": "typo"})


def test_assert_selector_lists_all_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    short = (BY_NAME["parameters"], BY_NAME["learns"], BY_NAME["docstring"])
    monkeypatch.setattr("turnout.testing.checks.CHECKS", short)
    assert_selector(StickToWinners)
    with pytest.raises(AssertionError, match=r"2 of 3 checks failed\n2. learns: .*\n3. docstring"):
        assert_selector(broken.PrefersLosers)


def test_a_class_an_instance_and_a_callable_are_accepted() -> None:
    for make_selector in (StickToWinners, StickToWinners(), lambda: StickToWinners()):
        BY_NAME["selection"](make_selector)


def test_what_is_no_selector_is_told() -> None:
    with pytest.raises(AssertionError, match=r"subclass of turnout\.Selector"):
        BY_NAME["selection"](dict)


def test_advice_by_warning_is_no_failure() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BY_NAME["selection"](lambda: turnout.make("rbcs-f", rate=0.9))


def test_the_margin_is_five_sigma_and_more_for_rare_events() -> None:
    assert margin(np.array(1e8)) == pytest.approx(5e4, rel=1e-3)
    # a Poisson count of mean 0.2 exceeds 0.2 + margin less often than a normal one 5 sigma
    poisson = np.random.default_rng(0).poisson(0.2, 2_000_000)
    assert poisson.max() <= 0.2 + margin(np.array(0.2))


def test_the_toy_is_the_same_whoever_selects() -> None:
    one, other = ToyFederation(9, 3, seed=4), ToyFederation(9, 3, seed=4)
    for name, toy in (("random", one), ("ucb-cs", other)):
        selector = turnout.make(name)
        selector.prepare(9)
        toy.play(selector, range(7))
    for t in (0, 3, 6, 50):
        for a, b in zip(one.fate(t), other.fate(t), strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_toy_gives_all_statuses_and_only_declared_columns() -> None:
    toy = ToyFederation(60, 5)
    seen = np.unique(np.concatenate([toy.fate(t).status for t in range(5)]))
    assert seen.tolist() == list(Status)
    ctx = toy.context(turnout.make("oort"), 0)
    assert ctx.columns.keys() == {"num_samples", "expected_duration"}
    assert not any(column.flags.writeable for column in ctx.columns.values())
    assert toy.column("features", 0).shape == (60, 64)
    assert toy.column("context", 0).shape == (60, 3)


def test_the_toy_feeds_columns_and_metrics_of_others() -> None:
    class Battery(Uniform):
        needs_columns = frozenset({"battery"})
        needs_metrics = frozenset({"drain"})

    toy = ToyFederation(6, 2)
    battery = toy.context(Battery(), 0).columns["battery"]
    assert battery.shape == (6,)
    assert np.all((battery >= 0.0) & (battery < 1.0))
    everyone = Selection(0, np.arange(6))
    outcome = toy.outcome(everyone, {"drain"})
    np.testing.assert_array_equal(outcome.metric("drain"), toy.fate(0).loss)


def test_labels_rename_the_clients_of_the_toy() -> None:
    labels = np.array([2, 0, 3, 1])
    plain, renamed = ToyFederation(4, 2), ToyFederation(4, 2, labels=labels)
    np.testing.assert_array_equal(renamed.good, plain.good[labels])
    for name in ("num_samples", "features", "context", "success_rate"):
        np.testing.assert_array_equal(renamed.column(name, 3), plain.column(name, 3)[labels])
    np.testing.assert_array_equal(renamed.fate(3).status, plain.fate(3).status[labels])


def test_good_clients_are_better_in_every_way() -> None:
    toy = ToyFederation(300, 5)
    good, fates = toy.good, [toy.fate(t) for t in range(20)]
    completed = np.mean([fate.status == Status.COMPLETED for fate in fates], axis=0)
    loss = np.nanmean([fate.polled_loss for fate in fates], axis=0)
    assert good.sum() == 100
    assert completed[good].mean() > 1.5 * completed[~good].mean()
    assert loss[good].min() > loss[~good].max()
    time = toy.column("expected_duration", 0)
    assert time[good].max() < time[~good].min()


def test_play_repeats_exactly() -> None:
    toy = ToyFederation(10, 3)
    runs = []
    for _ in range(2):
        selector: Selector = turnout.make("e3cs")
        selector.prepare(10)
        runs.append([s.clients.tolist() for s in toy.play(selector, range(10), seed=3)])
    assert runs[0] == runs[1]
    assert toy.fate(0).available.tolist() == (stream(0, Purpose.ENV, 0).random(10) < 0.8).tolist()


class KeepsAnything(Uniform):
    """Stores vectors as they come, with NaN in them."""

    needs_metrics = frozenset({"update_sketch"})
    metric_sizes: ClassVar = {"update_sketch": 4}

    def reset(self, n_clients: int) -> None:
        super().reset(n_clients)
        self.last_ = np.zeros((n_clients, 4))

    def observe(self, selection: Selection, outcome: turnout.Outcome) -> None:
        self.last_[selection.clients] = outcome.metric("update_sketch", 4)


def test_the_rule_of_finite_states_is_said_once() -> None:
    failed = [r.message for r in check_selector(KeepsAnything, effort=0.1) if not r.passed]
    of_state = [message for message in failed if "holds NaN or infinity in last_" in message]
    assert len(of_state) >= 4
    assert sum("Rule 5" in message for message in failed) == 1
    assert "Rule 5" in of_state[0]
    assert all("see check" in message for message in of_state[1:])
    assert not any("StateFileError" in message for message in failed)


@pytest.mark.parametrize("made", [(100, 8), "8", 0, True])
def test_columns_of_the_checks_are_refused_once_and_by_name(made: object) -> None:
    class Odd(Uniform):
        needs_columns = frozenset({"sketch"})
        check_columns: ClassVar = {"sketch": made}

    with pytest.raises(turnout.InvalidInput, match="check_columns\\['sketch'\\] must be d"):
        check_selector(Odd)


def test_a_function_for_a_column_gives_a_row_for_each_client() -> None:
    class Fixed(Uniform):
        needs_columns = frozenset({"sketch"})
        check_columns: ClassVar = {"sketch": lambda n, rng: rng.random((1000, 8))}

    with pytest.raises(AssertionError, match="one row per client, got shape \\(1000, 8\\)"):
        BY_NAME["selection"](Fixed)


def test_a_column_without_a_shape_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from tests.testing.broken import Uniform\n"
        "class Flat(Uniform):\n"
        "    needs_columns = frozenset({'sketch'})\n"
        "    def select(self, ctx, rng):\n"
        "        ctx.column('sketch')[:, 0]\n"
        "        return super().select(ctx, rng)\n"
    )
    (tmp_path / "flat_column.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    result = CliRunner().invoke(app, ["check", "flat_column:Flat"])
    assert result.exit_code == 1
    assert 'declare check_columns = {"sketch": d}' in " ".join(result.output.split())
