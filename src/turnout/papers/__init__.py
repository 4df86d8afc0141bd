"""The papers' numerical experiments: presets, claims and figures."""

from turnout.papers.claims import Claim, Finding, Results, Verdict, judge
from turnout.papers.presets import Preset, load_preset, preset_names

__all__ = [
    "Claim",
    "Finding",
    "Preset",
    "Results",
    "Verdict",
    "judge",
    "load_preset",
    "preset_names",
]
