"""What people write on the command line: ``name:key=value,...``."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from turnout.experiment.codec import ConfigError

_SPEC = re.compile(r"^(?P<name>.+?)(?::(?P<parameters>[A-Za-z_]\w*\s*=.*))?$")
#: A quoted text, a bracket, a comma, or a run of other signs.
_TOKEN = re.compile(r""""(?:\\.|[^"\\])*"|'[^']*'|[\[\]{},]|[^"'\[\]{},]+|.""", re.DOTALL)
#: A word, or a path such as data/mine.npz, ../mine.npz or module:name.
_WORD = re.compile(r"(?!(?:true|false|inf|nan)$)(?:[A-Za-z_~]|\.{0,2}/)[\w~./:+-]*")
#: Numbers that TOML refuses: .25 and 5.
_OPEN_DECIMAL = re.compile(r"[+-]?(?:\.\d+|\d+\.)(?:[eE][+-]?\d+)?")


def parse_spec(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and parameters of ``name`` or ``name:key=value,...``.

    >>> parse_spec("dirichlet:alpha=0.3")
    ('dirichlet', {'alpha': 0.3})
    """
    spec = _SPEC.match(text)
    if spec is None:
        raise ConfigError((), f"{text!r} has no name: write name or name:key=value,...")
    return spec["name"], parse_parameters(spec["parameters"] or "")


def parse_parameters(text: str) -> dict[str, Any]:
    """Return ``key=value,...`` as a table; values are as in TOML, and words need no quotes.

    Args:
        text: Values may be lists and tables: ``at=[3,6]``, ``quota={schedule=linear,start=.1}``.

    Raises:
        ConfigError: A part is not ``key=value``, stands there twice, or has a value that is none.

    >>> parse_parameters("quota=.25,draw=multinomial")
    {'quota': 0.25, 'draw': 'multinomial'}

    """
    table: dict[str, Any] = {}
    for part in _split(text):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name.isidentifier():
            raise ConfigError((), f"{part.strip()!r} in {text!r} is not key=value.")
        if name in table:
            raise ConfigError((name,), f"stands twice in {text!r}.")
        table[name] = _value(name, value)
    return table


def _split(text: str) -> list[str]:
    """Return what stands between the commas that are outside of quotes and brackets."""
    if not text.strip():
        return []
    parts, depth = [""], 0
    for token in _TOKEN.findall(text):
        depth += (token in "[{") - (token in "]}")
        if token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _value(name: str, text: str) -> Any:
    if text.startswith("{") and text.endswith("}"):
        return parse_parameters(text[1:-1])
    if text.startswith("[") and text.endswith("]"):
        return [_value(name, item.strip()) for item in _split(text[1:-1])]
    if _WORD.fullmatch(text):
        return text
    if _OPEN_DECIMAL.fullmatch(text):
        return float(text)
    try:
        (value,) = tomllib.loads(f"value = [{text}]")["value"]
    except ValueError as error:
        raise ConfigError(
            (),
            f"{name}={text} is not key=value: a value is a number, true, false, a word, a path, a "
            '[list], a {table} or a text in quotes, key="a b".',
        ) from error
    return value
