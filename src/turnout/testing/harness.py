"""What all checks share: the selector under test, comparisons, and failure messages."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from turnout.selector import Selector
from turnout.types import Array, RoundContext, Selection

#: A zero-argument callable, a selector class, or a selector that is cloned.
MakeSelector = Callable[[], Selector] | type[Selector] | Selector


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
        odd = difference(before, selector.state())
        expect(not odd, f"a refused {what} changed {odd}: check before anything is changed.")
        return
    raise AssertionError(advice)


def twin(selector: Selector) -> Selector:
    """Return a new selector with the same parameters and a copy of the state, nothing else.

    Args:
        selector: The original.

    """
    other = selector.clone()
    other.reset(selector.n_clients)
    other.load_state(selector.state())
    return other


def difference(before: Mapping[str, Array], after: Mapping[str, Array]) -> str:
    """Return the names whose arrays are not bit-identical, or an empty string.

    Args:
        before: Arrays by name.
        after: Arrays by name.

    """
    odd = {
        name
        for name in before.keys() & after.keys()
        if before[name].dtype != after[name].dtype
        or before[name].shape != after[name].shape
        or before[name].tobytes() != after[name].tobytes()
    }
    return ", ".join(sorted(odd | (before.keys() ^ after.keys())))


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
    state = selector.state()
    odd = sorted(
        name
        for name, values in state.items()
        if values.dtype.kind == "f" and not np.isfinite(values).all()
    )
    expect(
        not odd,
        f"the state holds NaN or infinity in {', '.join(odd)}: leave out what is NaN in "
        "observe (np.isnan), and keep 'never' as a finite number.",
    )


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
