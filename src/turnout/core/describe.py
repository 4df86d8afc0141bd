"""Describes selectors by their docstrings, signatures and classes."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from turnout.core.domains import parameter_domains
from turnout.core.registry import find, make
from turnout.core.selector import Selector

# Docstrings by heading: ``Heading: text``, and the entries of a section ``Args:``.

_SECTION = re.compile(r"^([A-Z][a-z]+):(?=\s)(.*(?:\n(?:[ \t].*|$))*)", re.MULTILINE)
_ENTRY = re.compile(r"^\*{0,2}(\w+(?:, \w+)*)(?: \(((?:[^)]|\)(?!:))*)\))?:(?=\s)", re.MULTILINE)


class ArgsEntry(NamedTuple):
    """One entry of a section: ``name (allowed): meaning``.

    Attributes:
        allowed: The values that are allowed; empty if the entry does not say.
        meaning: The text, on one line.
    """

    allowed: str
    meaning: str


def sections(docstring: str | None) -> tuple[str, dict[str, str]]:
    r"""Split a docstring at its headings, which are at the start of a line; texts are indented.

    Args:
        docstring: A docstring as written, or None.

    Returns:
        The first line, and the text under each heading without its common indent.

    >>> sections("Title.\n\nIdea:  first,\n       then.\nCost:  none.")
    ('Title.', {'Idea': 'first,\nthen.', 'Cost': 'none.'})
    """
    title, _, body = inspect.cleandoc(docstring or "").partition("\n")
    texts = dict(_SECTION.findall(body))
    return title, {heading: inspect.cleandoc(text) for heading, text in texts.items()}


def entries(docstring: str | None, heading: str = "Args") -> dict[str, ArgsEntry]:
    r"""Return the entries of a section in Google style; ``a, b: text`` explains two names.

    Args:
        docstring: A docstring as written, or None.
        heading: The section.

    Returns:
        The entry of each name, in their order; empty without the section.

    >>> entries("Title.\n\nArgs:\n    eta (number > 0): Learning\n        rate.")
    {'eta': ArgsEntry(allowed='number > 0', meaning='Learning rate.')}
    """
    _, *parts = _ENTRY.split(sections(docstring)[1].get(heading, ""))
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {
        name: ArgsEntry(" ".join((allowed or "").split()), " ".join(meaning.split()))
        for names, allowed, meaning in triples
        for name in names.split(", ")
    }


#: The headings of a selector's docstring in the order of its page, and how the page words them.
HEADINGS: Mapping[str, str] = MappingProxyType(
    {
        "Idea": "What it picks",
        "Setting": "What it needs to see",
        "Limits": "When it fails",
        "Deviations": "Deviations from the paper",
        "Equations": "Where the equations are",
        "Symbols": "Symbols",
        "Cost": "Cost",
        "Checked": "How it was checked",
        "Paper": "Paper",
    }
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a selector.

    Attributes:
        name: As ``make`` takes it.
        default: Its value unless it is given.
        allowed: The allowed values in words, from the type hint or else from the docstring; empty
            if neither states them.
        meaning: What it does and what to try first; empty if the docstring does not say.
    """

    name: str
    default: Any
    allowed: str
    meaning: str

    @property
    def literal(self) -> str:
        """The default as Python code."""
        return 'float("inf")' if self.default == math.inf else repr(self.default)


@dataclass(frozen=True, slots=True)
class Description:
    """A selector in words. Its needs are those with all parameters at their defaults.

    Attributes:
        name: Its registered name or its path.
        title: The first line of its docstring.
        parameters: In the order of the constructor.
        needs_columns: Columns that must be in the context.
        uses_columns: Columns that are used when they are there.
        needs_metrics: Metrics that clients should report.
        optional_metrics: Those of them that it can do without.
        polls: What a polled client evaluates its loss on; None if no client is polled.
        texts: The text under each heading of its docstring, numbered points on lines of their own.
        module: Where its code is.
    """

    name: str
    title: str
    parameters: tuple[Parameter, ...]
    needs_columns: tuple[str, ...]
    uses_columns: tuple[str, ...]
    needs_metrics: tuple[str, ...]
    optional_metrics: tuple[str, ...]
    polls: str | None
    texts: Mapping[str, str]
    module: str

    @property
    def summary(self) -> str:
        """The title without the selector's name."""
        return (self.title.partition(": ")[2] or self.title).rstrip(".")

    @property
    def n_deviations(self) -> int:
        """How many deviations from the paper are declared."""
        text = self.texts.get("Deviations", "none.")
        return len(re.findall(r"(?m)^\d+\. ", text)) or int(text != "none.")

    @property
    def call(self) -> str:
        """The call that makes the selector, with all parameters at their defaults."""
        shown = [repr(self.name), *(f"{p.name}={p.literal}" for p in self.parameters)]
        return f"turnout.make({', '.join(shown)})"

    @property
    def command(self) -> str:
        """A command that runs the selector."""
        numbers = [p for p in self.parameters if type(p.default) in (int, float)]
        option = f" --param {numbers[0].name}={numbers[0].default}" if numbers else ""
        return f"turnout simulate {self.name}{option} --rounds 100"


def describe(name: str) -> Description:
    """Return the description of a selector.

    Args:
        name: A registered name, or a path ``package.module:Class``.

    Returns:
        Its description.

    Raises:
        UnknownSelector: There is no such selector; the message names the nearest.
    """
    cls = find(name)
    selector = make(name)
    title, texts = headed_texts(cls)
    explained, domains = entries(cls.__doc__), parameter_domains(cls.__init__)
    parameters = []
    for key, default in selector.parameters.items():
        entry = explained.get(key, ArgsEntry("", ""))
        allowed = domains[key].words if key in domains else ""  # else as the docstring says
        parameters.append(Parameter(key, default, allowed or entry.allowed, entry.meaning))
    return Description(
        name=name,
        title=title or cls.__name__,
        parameters=tuple(parameters),
        needs_columns=tuple(sorted(selector.needs_columns)),
        uses_columns=tuple(sorted(selector.uses_columns)),
        needs_metrics=tuple(sorted(selector.needs_metrics)),
        optional_metrics=tuple(sorted(selector.needs_metrics & selector.optional_metrics.keys())),
        polls=selector.poll_data if selector.polls else None,
        texts={heading: _joined(text) for heading, text in texts.items() if heading in HEADINGS},
        module=cls.__module__,
    )


def headed_texts(cls: type[Selector]) -> tuple[str, dict[str, str]]:
    """Return the title and the texts by heading of the docstring that describes a selector.

    Args:
        cls: The class of the selector.

    Returns:
        Those of its module, or of the class itself where the module describes something else.
    """
    of_module = sections(sys.modules[cls.__module__].__doc__)
    return of_module if "Idea" in of_module[1] else sections(cls.__doc__)


def _joined(text: str) -> str:
    """Return text with its lines joined; a line that starts with a number starts a point."""
    return re.sub(r"\s*\n\s*(?!\s|\d+\. )", " ", text).strip()
