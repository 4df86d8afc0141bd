"""From run folders to results: reads what is complete and computes what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turnout.experiment import Cell, Experiment, read_cell
from turnout.papers.plots import DRAWINGS
from turnout.papers.presets import Preset
from turnout.papers.results import SchemeResults, Trials
from turnout.runs.files import SUMMARY, cell_folder, slug


def run_folder(preset: Preset, experiment: Experiment, setting: str) -> str:
    """Return the name of the folder that the runs of a setting go to, whatever their seeds.

    Args:
        preset: What is reproduced.
        experiment: In one of its settings and lengths.
        setting: Label of the setting.
    """
    name = f"{preset.name}-{experiment.n_rounds}"
    name += f"-{experiment.world_id[:6]}" if preset.changes else ""
    return f"{name}/{slug(setting)}" if setting else name


def collect(preset: Preset, experiment: Experiment, folder: Path, labels: Sequence[str]) -> Trials:
    """Return what is kept of the runs in a folder that are complete.

    Args:
        preset: Says which measures and curves are kept.
        experiment: What was run.
        folder: Where.
        labels: The schemes; one without a complete run is left out.
    """
    drawings = [(DRAWINGS[figure.draws], figure.schemes) for figure in preset.figures]
    schemes: dict[str, SchemeResults] = {}
    classes: dict[str, object] = {}
    for label in labels:
        cells = _complete(experiment, folder, label)
        if not cells:
            continue
        drawn = [drawing for drawing, members in drawings if label in members]
        curves = dict.fromkeys(name for drawing in drawn for name in drawing.curves)
        clients = dict.fromkeys(name for drawing in drawn for name in drawing.clients)
        schemes[label] = SchemeResults.from_cells(cells, preset.measures(), curves, clients)
        if cells[0].class_of is not None:
            classes = {**cells[0].settings.classes, "of": cells[0].class_of.tolist()}
    return Trials(experiment.table(), schemes, classes)


def _complete(experiment: Experiment, folder: Path, label: str) -> list[Cell]:
    paths = [cell_folder(folder, label, seed) for seed in experiment.seeds]
    return [read_cell(path) for path in paths if (path / SUMMARY).exists()]
