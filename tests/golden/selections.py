"""The first 50 selections of every selector on a toy run, as text that can be reviewed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import turnout
from turnout.testing import ToyFederation

GOLDEN_FILE = Path(__file__).parent / "selections.txt"
N_CLIENTS, COHORT_SIZE, N_ROUNDS = 30, 5, 50

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "divfl sampled=None": ("divfl", {"sampled": None}),
    "e3cs draw=dependent-rounding": ("e3cs", {"draw": "dependent-rounding"}),
    "e3cs draw=multinomial estimate=gain": ("e3cs", {"draw": "multinomial", "estimate": "gain"}),
    "e3cs quota=0": ("e3cs", {"quota": 0.0}),
    "data-weighted replacement": ("data-weighted", {"replacement": True}),
    "fedcor centered=False": ("fedcor", {"centered": False}),
    "fedcs by=expected-duration": ("fedcs", {"by": "expected-duration"}),
    "fedcs by=packing": ("fedcs", {"by": "packing"}),
    "nccb bonus=diagonal": ("nccb", {"bonus": "diagonal"}),
    "oort normalize=False": ("oort", {"normalize": False}),
    "oort rules=fedscale": ("oort", {"rules": "fedscale"}),
}


def selections(name: str, parameters: dict[str, Any]) -> list[str]:
    selector = turnout.make(name, **parameters)
    selector.prepare(N_CLIENTS, seed=1)
    federation = ToyFederation(N_CLIENTS, COHORT_SIZE, seed=1)
    played = federation.play(selector, range(N_ROUNDS), seed=1)
    return [" ".join(map(str, selection.clients.tolist())) for selection in played]


def everything() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return what is recorded: a selector's name and parameters by title."""
    plain: dict[str, tuple[str, dict[str, Any]]]
    plain = {name: (name, {}) for name in turnout.list_selectors(plugins=False)}
    return dict(sorted((plain | VARIANTS).items()))


def golden() -> dict[str, list[str]]:
    """Return the recorded rounds by title."""
    blocks = GOLDEN_FILE.read_text(encoding="utf-8").strip().split("\n\n")
    titled = (block.splitlines() for block in blocks)
    return {title.strip("[]"): rounds for title, *rounds in titled}


def recorded() -> str:
    lines = []
    for title, (name, parameters) in everything().items():
        lines += [f"[{title}]", *selections(name, parameters), ""]
    return "\n".join(lines)
