"""What there is to know about a selector, from its docstrings, its signature and its class."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from turnout.docstrings import entries, sections
from turnout.registry import find, make
from turnout.selector import Selector

__all__ = ["HEADINGS", "Description", "Parameter", "describe", "headed_texts"]

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
        allowed: The values that are allowed, in words; empty if the docstring does not say.
        meaning: What it does and what to try first; empty if the docstring does not say.
    """

    name: str
    default: Any
    allowed: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Description:
    """A selector in words; needs are those with all parameters at their defaults.

    Attributes:
        name: Its registered name or its path.
        title: The first line of its docstring.
        parameters: In the order of the constructor.
        needs_columns: Columns that must be in the context.
        uses_columns: Columns that are used when they are there.
        needs_metrics: Metrics that clients should report.
        polls: What a polled client evaluates its loss on; None if nobody is polled.
        texts: The text under each heading of its docstring, numbered points on lines of their own.
        module: Where its code is.
    """

    name: str
    title: str
    parameters: tuple[Parameter, ...]
    needs_columns: tuple[str, ...]
    uses_columns: tuple[str, ...]
    needs_metrics: tuple[str, ...]
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
        shown = [repr(self.name), *(f"{p.name}={p.default!r}" for p in self.parameters)]
        return f"turnout.make({', '.join(shown)})"

    @property
    def command(self) -> str:
        """A command that runs the selector."""
        numbers = [p for p in self.parameters if type(p.default) in (int, float)]
        option = f" --param {numbers[0].name}={numbers[0].default}" if numbers else ""
        return f"turnout simulate {self.name}{option} --rounds 100"


def describe(name: str) -> Description:
    """Return what there is to know about a selector.

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
    explained = entries(cls.__doc__)
    return Description(
        name=name,
        title=title or cls.__name__,
        parameters=tuple(
            Parameter(key, default, *explained.get(key, ("", "")))
            for key, default in selector.parameters.items()
        ),
        needs_columns=tuple(sorted(selector.needs_columns)),
        uses_columns=tuple(sorted(selector.uses_columns)),
        needs_metrics=tuple(sorted(selector.needs_metrics)),
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
