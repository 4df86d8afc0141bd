"""The contract as sixteen checks, and how to run them.

Run them by ``check_selector(MySelector)``, or by ``assert_selector(MySelector)`` to raise. A class
that breaks a rule on purpose says so, check by check and with a reason::

    expected_check_failures = {"learns": "fair by design: feedback is not used"}

The list is strict: a check that is listed and passes is a failure, and so is an empty reason.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from turnout.errors import InvalidInput
from turnout.testing.check_declarations import check_declarations, check_docstring, check_parameters
from turnout.testing.check_scale import check_learns, check_vectorised
from turnout.testing.check_select import (
    check_edge_rounds,
    check_inputs_untouched,
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
from turnout.testing.frequency import check_probability, check_relabelling
from turnout.testing.harness import Check, MakeSelector, Subject

__all__ = [
    "CHECKS",
    "CheckResult",
    "assert_selector",
    "check_selector",
    "name_of_check",
    "yield_checks",
]

#: The rules in the order of the handbook: number 1 comes first.
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
    check_docstring,
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How one check went."""

    name: str  #: of the check, without ``check_``
    number: int  #: 1 .. 16
    passed: bool  #: also true for a failure that is expected
    message: str  #: what is wrong and how to mend it; empty if nothing is
    seconds: float


def name_of_check(check: Check) -> str:
    """Return the name under which a check is reported and expected to fail."""
    return check.__name__.removeprefix("check_")


def check_selector(
    make_selector: MakeSelector,
    *,
    expected_failures: Mapping[str, str] | None = None,
    effort: float = 1.0,
    checks: Iterable[Check] | None = None,
) -> list[CheckResult]:
    """Run the checks and return one result for each; nothing is raised for a failing check.

    Args:
        make_selector: a zero-argument callable that returns a new selector, a selector class, or a
            selector, which is cloned.
        expected_failures: check name -> reason; the default is the selector's
            ``expected_check_failures``.
        effort: scales how often things are repeated, for selectors that take milliseconds to
            observe. Margins stay at five standard deviations, the long run has at least 300 rounds.
        checks: some of ``CHECKS``, for example one at a time to show progress; the default is all.

    """
    expected = _expected(make_selector, expected_failures)
    return [
        _run(CHECKS.index(check) + 1, check, make_selector, effort, expected)
        for check in (CHECKS if checks is None else checks)
    ]


def yield_checks(
    make_selector: MakeSelector,
    *,
    expected_failures: Mapping[str, str] | None = None,
    effort: float = 1.0,
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield (name, callable) pairs, one per check, for ``pytest.mark.parametrize``.

    A callable raises ``AssertionError`` if its check fails, or passes where it should fail. The
    arguments are those of ``check_selector``.
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
    """Run all checks and raise one ``AssertionError`` that lists every failure."""
    results = check_selector(make_selector, expected_failures=expected_failures, effort=effort)
    failed = [f"{r.number}. {r.name}: {r.message}" for r in results if not r.passed]
    if failed:
        raise AssertionError(f"{len(failed)} of {len(results)} checks failed\n" + "\n".join(failed))


def _expected(make_selector: MakeSelector, given: Mapping[str, str] | None) -> Mapping[str, str]:
    if given is None:
        given = Subject(make_selector).fresh().expected_check_failures
    known = [name_of_check(check) for check in CHECKS]
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise InvalidInput(
            f"expected failures name no check: got {', '.join(unknown)}; known: {', '.join(known)}."
        )
    return given


def _run(
    number: int,
    check: Check,
    make_selector: MakeSelector,
    effort: float,
    expected: Mapping[str, str],
) -> CheckResult:
    name = name_of_check(check)
    start = time.perf_counter()
    try:
        message = _judge(check, make_selector, effort, expected.get(name))
        passed = True
    except AssertionError as error:
        message, passed = str(error), False
    return CheckResult(name, number, passed, message, time.perf_counter() - start)


def _judge(check: Check, make_selector: MakeSelector, effort: float, reason: str | None) -> str:
    """Run a check; return a remark, or raise if it does not go as expected."""
    if reason is None:
        check(make_selector, effort)
        return ""
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
