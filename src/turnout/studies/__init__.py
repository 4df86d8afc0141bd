"""Studies made of many runs: the papers' experiments, the arena and positive controls."""

from turnout.studies.advice import Advice, advise
from turnout.studies.arena import ArenaRun, run_arena
from turnout.studies.arena_tasks import Arena, ArenaTask, tasks_named
from turnout.studies.claims import Claim, Finding, Verdict, judge
from turnout.studies.controls import Control, controls_named, run_control
from turnout.studies.plan import Headlines, Plan, load_plan, run_plan
from turnout.studies.presets import Preset, Setting, load_preset, preset_names
from turnout.studies.recommendation import Recommendation, recommend
from turnout.studies.reproduction import Reproduction, reproduce
from turnout.studies.results_file import ResultsFile
from turnout.studies.trials import Trials

__all__ = [
    "Advice",
    "Arena",
    "ArenaRun",
    "ArenaTask",
    "Claim",
    "Control",
    "Finding",
    "Headlines",
    "Plan",
    "Preset",
    "Recommendation",
    "Reproduction",
    "ResultsFile",
    "Setting",
    "Trials",
    "Verdict",
    "advise",
    "controls_named",
    "judge",
    "load_plan",
    "load_preset",
    "preset_names",
    "recommend",
    "reproduce",
    "run_arena",
    "run_control",
    "run_plan",
    "tasks_named",
]
