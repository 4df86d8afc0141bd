"""Docstrings as Markdown: doctests become code blocks, ``::`` before code becomes a colon."""

from __future__ import annotations

import re

import griffe

#: Lines that start with >>>, with the output below them, up to an empty line.
_DOCTEST = re.compile(r"(?m)^( *)>>> .*(?:\n *\S.*)*")
_LITERAL = re.compile(r"::(?=\n\n? +)")


def as_markdown(text: str) -> str:
    """Return a docstring with its code in a form that Markdown knows.

    Args:
        text: The docstring, without its indentation.
    """
    text = _DOCTEST.sub(lambda m: f"{m[1]}```pycon\n{m[0]}\n{m[1]}```", text)
    return _LITERAL.sub(":", text)


class Docstrings(griffe.Extension):
    """Rewrites every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
