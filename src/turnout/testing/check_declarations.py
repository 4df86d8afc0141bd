"""Checks of what a class declares: its parameters, its columns and metrics, its docstring."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from turnout.core.describe import HEADINGS, entries, headed_texts
from turnout.core.errors import MissingColumn, NotReset
from turnout.core.registry import name_of
from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.types import Array, Outcome, RoundContext
from turnout.testing.harness import (
    METRICS,
    Subject,
    ToyFederation,
    contract,
    doing,
    expect,
    expect_same,
    expect_valid,
    twin,
)


@contract
def check_parameters(subject: Subject) -> None:
    """Parameters are stored unchanged, ``clone`` and ``repr`` round-trip, ``reset`` starts anew."""
    selector = subject.fresh()
    name, parameters = type(selector).__name__, selector.parameters
    signature = inspect.signature(type(selector).__init__).parameters.values()
    loose = [p.name for p in list(signature)[1:] if p.kind is not p.KEYWORD_ONLY]
    if type(selector).__init__ is not object.__init__:
        expect(not loose, f"{name}.__init__ takes {loose} by position: put them behind '*'.")
    extra = sorted(vars(selector).keys() - parameters.keys())
    expect(
        not extra,
        f"{name}.__init__ also sets {', '.join(extra)}: store each parameter under its own name "
        "and nothing else; allocate state in reset.",
    )
    copy = selector.clone()
    for key, value in parameters.items():
        expect(
            getattr(copy, key) is value,
            f"{name}.__init__ changes {key} from {value!r} to {getattr(copy, key)!r}: store it as "
            "given and convert it where it is used.",
        )
    classes: dict[str, Any] = {type(v).__name__: type(v) for v in parameters.values()}
    classes |= {name: type(selector), "inf": math.inf, "nan": math.nan}
    with doing(f"eval({selector!r})"):
        again = repr(eval(repr(selector), classes))  # nosec B307: code that is being tested
    expect(again == repr(selector), f"repr does not round-trip: {selector!r} became {again}.")
    _expect_reset(subject, copy)


def _expect_reset(subject: Subject, selector: Selector) -> None:
    toy = ToyFederation(7, 2)
    name = type(selector).__name__
    try:
        selector.select(toy.context(selector, 0), stream(0, Purpose.SELECT))
    except NotReset:
        pass
    else:
        raise AssertionError(f"{name}.select works before reset: allocate the state in reset.")
    selector.prepare(7)
    expect(
        vars(selector).get("n_clients_") == 7,
        f"{name}.reset(7) did not set n_clients_: call super().reset(n_clients) first.",
    )
    for n_before in (1, 2, 5):
        toy.play(selector, range(n_before))
        selector.prepare(7)
        message = "reset keeps {odd} of the last run: allocate all that is learned in reset."
        expect_same(subject.ready(7).state(), selector.state(), message)


class _PolicedColumns(Mapping[str, Array]):
    """Columns that tell whoever looks at one that was not declared."""

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self._columns = columns
        self.looked_at: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        self._police(name)
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        self._police(name)
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def _police(self, name: object) -> None:
        if name not in self._columns:
            self.looked_at.add(str(name))
            raise AssertionError(
                f"column {name!r} is used but not declared: add it to needs_columns, or to "
                "uses_columns if the selector works without it."
            )


@contract
def check_declarations(subject: Subject) -> None:
    """Only declared columns and metrics matter, a missing column is named, promises can be kept."""
    toy, selector = ToyFederation(12, 4), subject.ready(12)
    for t in range(12):
        columns = _PolicedColumns(toy.context(selector, t).columns)
        _, selection = toy.choose(selector, t, columns=columns)
        expect(
            not columns.looked_at,
            f"columns {sorted(columns.looked_at)} are used but not declared: add them to "
            "needs_columns or uses_columns.",
        )
        selector.observe(selection, toy.feedback(selector, selection))
    _expect_missing_is_named(subject, toy)
    _expect_only_declared_metrics(subject, toy)
    _expect_promises(subject)


def _expect_missing_is_named(subject: Subject, toy: ToyFederation) -> None:
    selector = subject.ready(12)
    columns = toy.context(selector, 0).columns
    for missing in sorted(selector.needs_columns):
        rest = {name: values for name, values in columns.items() if name != missing}
        ctx = toy.context(selector, 0, columns=rest)
        for method in (selector.poll, selector.select) if selector.polls else (selector.select,):
            told = _error_of(method, ctx)
            expect(
                told.startswith("MissingColumn") and missing in told,
                f"without the column {missing!r} {method.__name__} must raise MissingColumn naming "
                f"it, got {told}: read it by ctx.column(name), or move it to uses_columns.",
            )
    needed = {name: columns[name] for name in selector.needs_columns}
    with doing(f"a round without the optional columns {sorted(selector.uses_columns)}"):
        expect_valid(selector, *toy.choose(selector, 0, columns=needed))


def _error_of(method: Callable[..., object], ctx: RoundContext) -> str:
    try:
        method(ctx, stream(0, Purpose.SELECT))
    except Exception as error:
        kind = MissingColumn if isinstance(error, MissingColumn) else type(error)
        return f"{kind.__name__}: {error}"
    return "no error"


def _expect_only_declared_metrics(subject: Subject, toy: ToyFederation) -> None:
    selector = subject.ready(12)
    for t in range(6):
        _, selection = toy.choose(selector, t)
        sizes = selector.metric_sizes
        full = toy.outcome(selection, selector.needs_metrics | {*METRICS}, sizes)
        declared = {name: full.metric(name, sizes.get(name)) for name in selector.needs_metrics}
        other = twin(selector)
        selector.observe(selection, full)
        other.observe(selection, Outcome(full.status, full.duration, declared))
        message = (
            "{odd} depends on a metric that is not declared; needs_metrics is "
            f"{sorted(selector.needs_metrics)}: add the metric to it."
        )
        expect_same(selector.state(), other.state(), message)


def _expect_promises(subject: Subject) -> None:
    selector, n_rounds = subject.ready(12), 20
    for t in (0, 1, 5_000):
        quota = selector.quota_at(t)
        expect(0.0 <= quota <= 1.0, f"quota_at({t}) must be in [0, 1], got {quota!r}.")
    rate = selector.guaranteed_rate()
    expect(rate is None or 0.0 <= rate <= 1.0, f"guaranteed_rate must be in [0, 1], got {rate!r}.")
    bound = selector.regret_bound(n_rounds, 4, 12)
    expect(
        bound is None or (bound.shape == (n_rounds,) and bool((bound >= 0.0).all())),
        f"regret_bound must return one number >= 0 for each of {n_rounds} rounds, got {bound!r}.",
    )


@contract
def check_docstring(subject: Subject) -> str | None:
    """Find the template's headings, and ``Args:`` for the parameters if the class is registered."""
    cls = type(subject.fresh())
    _, texts = headed_texts(cls)
    missing = [heading for heading in HEADINGS if not texts.get(heading)]
    expect(
        not missing,
        f"the docstrings of module {cls.__module__} and of {cls.__name__} lack "
        f"{', '.join(missing)}: write one line 'Heading: text' for each of {', '.join(HEADINGS)}, "
        "all in one of the two.",
    )
    parameters, explained = cls.parameter_names(), entries(cls.__doc__)
    problems = {
        "lacks": [name for name in parameters if name not in explained],
        "explains what is no parameter:": [name for name in explained if name not in parameters],
    }
    parts = [f"{what} {', '.join(those)}" for what, those in problems.items() if those]
    if not parts:
        return None
    problem = " and ".join(parts)
    advice = f"Args: in the docstring of {cls.__name__} {problem}: explain every parameter there."
    expect(":" in name_of(cls), advice)
    return advice
