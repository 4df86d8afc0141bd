"""The papers' experiments: presets, results, claims and figures."""

from turnout.papers.claims import Claim, Finding, Verdict, judge
from turnout.papers.presets import Preset, Setting, load_preset, preset_names
from turnout.papers.results import Trials
from turnout.papers.results_file import ResultsFile

__all__ = [
    "Claim",
    "Finding",
    "Preset",
    "ResultsFile",
    "Setting",
    "Trials",
    "Verdict",
    "judge",
    "load_preset",
    "preset_names",
]
