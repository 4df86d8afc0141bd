"""What a docstring says, by heading: ``Heading: text``, and the entries of a section ``Args:``."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

__all__ = ["ArgsEntry", "entries", "sections"]

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
    r"""Split a docstring at its headings, which stand at the start of a line; texts are indented.

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
    r"""Return the entries of a section in the style of Google; ``a, b: text`` explains two names.

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
