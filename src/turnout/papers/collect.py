"""From run folders to results: reads what is complete and computes what is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from turnout.experiment import Cell, Experiment, FolderError, read_cell
from turnout.experiment.folder import check_version
from turnout.experiment.task import CellTask, check_config
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


def collect(
    preset: Preset,
    experiment: Experiment,
    folder: Path,
    labels: Sequence[str],
    *,
    skip_bad: bool = False,
) -> Trials:
    """Return what is kept of the runs in a folder that are complete.

    Args:
        preset: Says which measures and curves are kept.
        experiment: What was run.
        folder: Where.
        labels: The schemes; one without a complete run is left out.
        skip_bad: Whether runs that cannot be used are left out too, because somebody else names
            them.

    Raises:
        FolderError: A run is damaged, has other settings, or was made by another version of
            turnout.
    """
    drawings = [(DRAWINGS[figure.draws], figure.schemes) for figure in preset.figures]
    schemes: dict[str, SchemeResults] = {}
    classes: dict[str, object] = {}
    for label in labels:
        cells = list(_complete(experiment, folder, label, skip_bad))
        if not cells:
            continue
        drawn = [drawing for drawing, members in drawings if label in members]
        curves = dict.fromkeys(name for drawing in drawn for name in drawing.curves)
        clients = dict.fromkeys(name for drawing in drawn for name in drawing.clients)
        schemes[label] = SchemeResults.from_cells(cells, preset.measures(), curves, clients)
        if cells[0].class_of is not None:
            classes = {**cells[0].settings.classes, "of": cells[0].class_of.tolist()}
    return Trials(experiment.table(), schemes, classes)


def _complete(experiment: Experiment, folder: Path, label: str, skip_bad: bool) -> Iterator[Cell]:
    variant = next(variant for variant in experiment.selectors if variant.label == label)
    for seed in experiment.seeds:
        path = cell_folder(folder, label, seed)
        if not (path / SUMMARY).exists():
            continue
        task = CellTask(experiment, variant, seed, path, versions={})
        try:
            check_version([task])
            check_config(task)
            yield read_cell(path)
        except FolderError:
            if not skip_bad:
                raise
