"""The contract as seventeen checks, and how to run them.

Run them by ``check_selector(MySelector)``, or by ``assert_selector(MySelector)`` to raise. A class
that breaks a rule on purpose says so, check by check and with a reason::

    expected_check_failures = {"learns": "fair by design: feedback is not used"}

The list is strict: a check that is listed and passes is a failure, and so is an empty reason.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from turnout.core.errors import InvalidInput
from turnout.core.selector import Selector
from turnout.testing.check_declarations import check_declarations, check_docstring, check_parameters
from turnout.testing.check_scale import check_forgets_the_dead, check_learns, check_vectorised
from turnout.testing.check_select import (
    check_edge_rounds,
    check_inputs_untouched,
    check_probability,
    check_relabelling,
    check_select_keeps_state,
    check_selection,
)
from turnout.testing.check_state import (
    check_grow,
    check_late_feedback,
    check_long_run,
    check_observe_survives,
    check_save_and_load,
)
from turnout.testing.harness import FINITE_RULE, KNOWN_COLUMNS, Check, MakeSelector, Subject

#: All checks in the order of their numbers, from 1.
CHECKS: tuple[Check, ...] = (
    check_parameters,
    check_selection,
    check_edge_rounds,
    check_select_keeps_state,
    check_inputs_untouched,
    check_probability,
    check_observe_survives,
    check_late_feedback,
    check_save_and_load,
    check_grow,
    check_relabelling,
    check_long_run,
    check_declarations,
    check_vectorised,
    check_learns,
    check_forgets_the_dead,
    check_docstring,
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Args:
        name: The name of the check, without ``check_``.
        number: Its number, from 1.
        passed: Whether it passed. An expected failure counts as passed.
        message: What is wrong and how to fix it, or a remark; empty if there is nothing to say.
        seconds: How long it took.

    """

    name: str
    number: int
    passed: bool
    message: str
    seconds: float


def name_of_check(check: Check) -> str:
    """Return the name of a check in reports and in ``expected_check_failures``.

    Args:
        check: One of ``CHECKS``.

    """
    return check.__name__.removeprefix("check_")


def check_selector(
    make_selector: MakeSelector,
    *,
    expected_failures: Mapping[str, str] | None = None,
    effort: float = 1.0,
    checks: Iterable[Check] | None = None,
) -> list[CheckResult]:
    """Run the checks and return one result for each. A failing check raises nothing.

    Args:
        make_selector: A function without arguments that returns a new selector, a selector class,
            or a selector, which is cloned.
        expected_failures: The reason of each expected failure, by the name of its check. Default:
            the selector's ``expected_check_failures``.
        effort: Factor on the number of repetitions. Lower it for a slow selector, for example to
            0.1. Margins stay at five standard deviations; the long run has at least 300 rounds.
        checks: Some of ``CHECKS``, for example one at a time to show progress. Default: all.

    """
    expected = _expected(make_selector, expected_failures)
    results = []
    for check in CHECKS if checks is None else checks:
        name, start, passed = name_of_check(check), time.perf_counter(), True
        try:
            message = _judge(check, make_selector, effort, expected.get(name))
        except AssertionError as error:
            message, passed = str(error), False
        seconds = time.perf_counter() - start
        results.append(CheckResult(name, CHECKS.index(check) + 1, passed, message, seconds))
    return said_once(results)


def said_once(results: Iterable[CheckResult]) -> list[CheckResult]:
    """Return the results, with the rule of finite states only where it is broken first.

    Args:
        results: In the order of the checks.

    """
    told, first = [], 0
    for result in results:
        if FINITE_RULE in result.message and first:
            message = result.message.replace(FINITE_RULE, f": see check {first}.")
            result = dataclasses.replace(result, message=message)
        elif FINITE_RULE in result.message:
            first = result.number
        told.append(result)
    return told


def flat_columns(selector: Selector) -> list[str]:
    """Return the declared columns that the checks do not know and fill with a number per client.

    Args:
        selector: The selector that declares them.

    """
    declared = selector.needs_columns | selector.uses_columns
    return sorted(declared - KNOWN_COLUMNS - selector.check_columns.keys())


def yield_checks(
    make_selector: MakeSelector,
    *,
    expected_failures: Mapping[str, str] | None = None,
    effort: float = 1.0,
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield (name, callable) pairs, one per check, for ``pytest.mark.parametrize``.

    A callable raises ``AssertionError`` if its check fails, or passes where it should fail.

    Args:
        make_selector: As for ``check_selector``.
        expected_failures: As for ``check_selector``.
        effort: As for ``check_selector``.

    """
    expected = _expected(make_selector, expected_failures)
    for check in CHECKS:
        name = name_of_check(check)
        yield name, functools.partial(_judge, check, make_selector, effort, expected.get(name))


def assert_selector(
    make_selector: MakeSelector,
    *,
    expected_failures: Mapping[str, str] | None = None,
    effort: float = 1.0,
) -> None:
    """Run all checks and raise one ``AssertionError`` that lists every failure.

    Args:
        make_selector: As for ``check_selector``.
        expected_failures: As for ``check_selector``.
        effort: As for ``check_selector``.

    """
    results = check_selector(make_selector, expected_failures=expected_failures, effort=effort)
    failed = [f"{r.number}. {r.name}: {r.message}" for r in results if not r.passed]
    if failed:
        raise AssertionError(f"{len(failed)} of {len(results)} checks failed\n" + "\n".join(failed))


def _expected(make_selector: MakeSelector, reasons: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the expected failures, or refuse declarations that the checks cannot use."""
    selector = Subject(make_selector).fresh()
    for column, made in selector.check_columns.items():
        is_count = isinstance(made, int) and not isinstance(made, bool) and made >= 1
        if not is_count and not callable(made):
            raise InvalidInput(
                f"check_columns[{column!r}] must be d, a whole number >= 1, for an array (n, d), "
                f"or a function of n and a generator that returns the array, got {made!r}.",
                field="check_columns",
            )
    if reasons is None:
        reasons = selector.expected_check_failures
    names = [name_of_check(check) for check in CHECKS]
    unknown = sorted(reasons.keys() - set(names))
    if unknown:
        raise InvalidInput(
            f"expected_failures has names of no check: {', '.join(unknown)}. Checks are "
            f"{', '.join(names)}."
        )
    return reasons


def _judge(check: Check, make_selector: MakeSelector, effort: float, reason: str | None) -> str:
    """Run a check; return a remark, or raise if it does not go as expected."""
    if reason is None:
        return check(make_selector, effort) or ""
    name = name_of_check(check)
    if not reason.strip():
        raise AssertionError(f"the expected failure of {name!r} has no reason: give one.")
    try:
        check(make_selector, effort)
    except AssertionError:
        return f"fails as expected: {reason}"
    raise AssertionError(
        f"{name!r} passes although it is expected to fail ({reason}): take it off the list."
    )
