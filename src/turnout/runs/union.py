"""Experiments that fit into one folder: the same but for selectors and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.runs.settings import first_difference


def misfit(
    saved: Mapping[str, Any],
    wanted: Mapping[str, Any],
    *,
    saved_in: str = "the folder",
    wanted_by: str = "the experiment",
) -> str | None:
    """Return why two experiments cannot share a folder, in words, or None.

    Selectors and seeds that only one of them has are no reason.

    Args:
        saved: One experiment as plain data.
        wanted: The other one.
        saved_in: What holds the first, in words.
        wanted_by: What has the second, in words.
    """
    there, here = _by_label(saved), _by_label(wanted)
    both = [label for label in here if label in there]
    return first_difference(
        {**saved, "selectors": {label: there[label] for label in both}, "seeds": []},
        {**wanted, "selectors": {label: here[label] for label in both}, "seeds": []},
        saved_in=saved_in,
        wanted_by=wanted_by,
    )


def union(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the experiment with the selectors and seeds of two that fit.

    Args:
        saved: One experiment as plain data.
        wanted: The other one, whose other settings are taken.
    """
    return {
        **wanted,
        "selectors": list({**_by_label(saved), **_by_label(wanted)}.values()),
        "seeds": list(dict.fromkeys([*_listed(saved, "seeds"), *_listed(wanted, "seeds")])),
    }


def _by_label(table: Mapping[str, Any]) -> dict[str, Any]:
    items = _listed(table, "selectors")
    return {str(item["label"]): item for item in items if isinstance(item, dict)}


def _listed(table: Mapping[str, Any], key: str) -> list[Any]:
    """Return a list of a file; empty if it is damaged there."""
    value = table.get(key)
    return value if isinstance(value, list) else []
