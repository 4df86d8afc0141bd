"""Reproduce a paper: run its experiments, judge its claims and draw its figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from turnout.experiment import Experiment, Results, Shard, run_experiment
from turnout.results.files import slug
from turnout.studies.claims import Verdict
from turnout.studies.paper_figures import DRAWINGS, draw
from turnout.studies.paper_tables import Judged, TextTable, all_tables, claims_table, judged_claims
from turnout.studies.presets import Preset, Setting, load_preset
from turnout.studies.results_file import ResultsFile, by_seeds
from turnout.studies.trials import Trials, gathered


class _Part(NamedTuple):
    """One experiment of a paper: some schemes in a setting, at a length."""

    setting: str
    times: int
    experiment: Experiment
    labels: Sequence[str]
    folder: Path


@dataclass(frozen=True)
class Reproduction:
    """What a paper claims, beside what was measured.

    Attributes:
        preset: The paper's experiments and claims.
        file: The kept results.
        path: The file that holds them.
        out: The folder of all run folders.
        figures: Numbers of the figures that were asked for.
        settings: The settings that were asked for.
        extras: Whether published forms, their cost, regret and bound are included.
        ran: The results of what was run now. Look at ``failed`` of each: a run may have failed.
    """

    preset: Preset
    file: ResultsFile
    path: Path
    out: Path
    figures: tuple[int, ...]
    settings: tuple[Setting, ...]
    extras: bool
    ran: list[Results]

    @cached_property
    def claims(self) -> list[Judged]:
        """The verdict on every claim that the kept results can decide about."""
        return judged_claims(self.preset, self.file, self.figures, extras=self.extras)

    @property
    def has_failed(self) -> bool:
        """Whether a claim, alone, fails in one of the paper's own settings."""
        return any(one.ours.verdict == Verdict.FAILS and not one.differs for one in self.claims)

    @property
    def tables(self) -> list[TextTable]:
        """Every table of the paper with our numbers; the last one shows the claims."""
        tables = all_tables(self.preset, self.file, extras=self.extras)
        return [*tables, claims_table(self.claims)]

    @property
    def folder(self) -> Path:
        """The folder of the figures: the run folder of the first setting."""
        return self.out / run_folder(self.preset, self.preset.experiment_of(self.settings[0]), "")

    def draw(self) -> list[Path]:
        """Draw the figures of what was run, and return the files that were written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        keys = [(setting.label, 1) for setting in self.settings]
        drawn = {key[0]: self.file.parts[key] for key in keys if key in self.file.parts}
        order = self.preset.experiment.labels
        return [
            path
            for number in self.figures
            for path in draw(self.preset.figure(number), drawn, self.folder, order=order)
        ]

    def _parts(self, *, is_whole: bool) -> list[_Part]:
        """Return the experiments that the kept results lack; with ``is_whole``, all of them.

        Raises if the kept results follow another protocol.
        """
        parts = []
        plans = self.preset.plans(self.settings, self.figures, extras=self.extras)
        for setting, times, labels in plans:
            experiment = self.preset.experiment_of(setting, times)
            self.file.check(setting.label, times, experiment.table())
            groups = {tuple(experiment.seeds): labels}
            if not is_whole:
                groups = by_seeds(self.file.missing(setting.label, times, labels, experiment.seeds))
            folder = self.out / run_folder(self.preset, experiment, setting.label)
            for seeds, alike in groups.items():
                part = self.preset.experiment_of(setting, times, seeds)
                parts.append(_Part(setting.label, times, part, alike, folder))
        return parts

    def _keep(self, *parts: _Part, skip_bad: bool = False) -> None:
        """Add complete runs to the kept results, and write the file if there are any."""
        is_new = False
        for part in parts:
            found = collect(
                self.preset, part.experiment, part.folder, part.labels, skip_bad=skip_bad
            )
            if found.schemes:
                self.file.check_version()
                self.file.update(part.setting, part.times, found)
                is_new = True
        if is_new:
            self.file.keep(self.path, trains="training" in self.preset.base)


def reproduce(
    paper: str,
    *,
    figures: Sequence[int] = (),
    setting: str | Sequence[str] = (),
    seeds: int = 0,
    rounds: int = 0,
    training: Mapping[str, Any] | None = None,
    extras: bool = True,
    out: str | os.PathLike[str] = "runs",
    results: str | os.PathLike[str] | None = None,
    only_collect: bool = False,
    shard: Shard | None = None,
    run: Callable[..., Results] = run_experiment,
    **computing: Any,
) -> Reproduction:
    """Run a paper's experiments as far as their results are not kept yet, and keep the results.

    The results of each experiment are written as soon as it ends, even if it was interrupted or if
    some of its runs failed.

    Args:
        paper: One of ``preset_names()``.
        figures: Numbers of the paper's figures; none = all.
        setting: Labels of the settings; none = all.
        seeds: Runs per scheme; 0 = as the preset says.
        rounds: Length of a run; 0 = as the preset says.
        training: Entries that replace those of the preset's training table.
        extras: Whether to include published forms, their cost, regret and bound.
        out: Folder of the run folders.
        results: Folder of the results file; None = as ``out``, and a file that is there already is
            replaced.
        only_collect: Run nothing, and keep the results of all complete runs.
        shard: Run only a part of the cells. Their results are not kept: collect them after all
            shards have been merged.
        run: Runs one experiment in a folder.
        **computing: Options of ``run``, such as ``n_jobs`` and ``progress``.

    Raises:
        ResultsError: The kept results follow another protocol, or another version of turnout made
            them.
        FolderError: A complete run is damaged, has other settings, or was made by another version.

    """
    preset = load_preset(paper, seeds=seeds, rounds=rounds, training=training)
    chosen = tuple(preset.figure(number).number for number in dict.fromkeys(figures))
    labels = [setting] if isinstance(setting, str) else setting
    path = Path(out if results is None else results) / f"{paper}.json"
    has_kept = results is not None and path.exists()
    study = Reproduction(
        preset,
        ResultsFile.read(path, paper) if has_kept else ResultsFile(paper),
        path,
        Path(out),
        chosen or tuple(figure.number for figure in preset.figures),
        tuple(preset.setting(label) for label in labels) or preset.settings,
        extras,
        [],
    )
    parts = study._parts(is_whole=only_collect)
    if shard is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    if only_collect:
        study._keep(*parts)
        return study
    if parts:
        study.file.check_version()
    n_before = (
        0  # the cells of all parts are numbered in sequence, so that shards share all of them
    )
    for part in parts:
        options = {"labels": part.labels, "shard": shard and shard.after(n_before), **computing}
        try:
            study.ran.append(run(part.experiment, part.folder, **options))
        finally:
            if shard is None:
                study._keep(part, skip_bad=True)  # bad ones are in study.ran
        n_before += len(part.labels) * len(part.experiment.seeds)
    return study


def run_folder(preset: Preset, experiment: Experiment, setting: str) -> str:
    """Return the name of the run folder of a setting. It does not depend on the seeds.

    Args:
        preset: The preset.
        experiment: Its experiment in that setting, at some length.
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
    """Return the results of the complete runs in a folder.

    Args:
        preset: Defines which measures and curves are kept.
        experiment: The experiment that was run.
        folder: Its run folder.
        labels: The schemes; a scheme without a complete run is left out.
        skip_bad: Whether to leave out runs that cannot be used, instead of raising.

    Raises:
        FolderError: A run is damaged, has other settings, or was made by another version of
            turnout.
    """
    drawings = [(DRAWINGS[figure.draws], figure.schemes) for figure in preset.figures]

    def kept(label: str) -> list[Iterable[str]]:
        drawn = [drawing for drawing, members in drawings if label in members]
        curves = dict.fromkeys(name for drawing in drawn for name in drawing.curves)
        clients = dict.fromkeys(name for drawing in drawn for name in drawing.clients)
        return [preset.measures(), curves, clients]

    return gathered(experiment, folder, labels, kept, skip_bad=skip_bad)
