"""``turnout reproduce``: a paper's experiments, with ours beside its claims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from turnout.cli.option_groups import with_groups
from turnout.cli.options import (
    GridOptions,
    end_badly_on_problems,
    numbers,
    print_json,
    print_shard,
    run_shown,
)
from turnout.cli.output import AsJson, console, table, text_table
from turnout.errors import InvalidInput
from turnout.experiment import Experiment, Grid, estimate
from turnout.experiment.spec import parse_parameters
from turnout.papers import Preset, ResultsFile, Verdict, load_preset, preset_names
from turnout.papers.collect import collect, run_folder
from turnout.papers.measures import comparable, measure_named
from turnout.papers.plots import draw
from turnout.papers.presets import Setting
from turnout.papers.tables import (
    Judged,
    TextTable,
    all_tables,
    claims_table,
    count_sentence,
    judged_claims,
)
from turnout.results.drawing import require_matplotlib
from turnout.runs.versions import tools
from turnout.types import FloatArray

_COLOURS = {Verdict.HOLDS: "green", Verdict.UNDECIDED: "yellow", Verdict.FAILS: "bold red"}

Paper = Annotated[str, typer.Argument(help=f"One of {', '.join(preset_names())}.")]
More = Annotated[list[int] | None, typer.Argument(hidden=True)]
FigureNumbers = Annotated[
    list[int] | None,
    typer.Option("--figure", help="Figures of the paper, e.g. --figure 2 3; default: all."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--setting", help="Label of a setting; may be given several times."),
]
Seeds = Annotated[
    int, typer.Option("--seeds", min=0, help="Runs per scheme; 0 = as the preset says.")
]
Rounds = Annotated[
    int, typer.Option("--rounds", min=0, help="Shorter runs for a quick look; 0 = as the paper.")
]
Out = Annotated[Path, typer.Option("--out", help="Where the run folders go.")]
KeepIn = Annotated[
    Path | None,
    typer.Option(
        "--results",
        help="Folder of the results file, for one process at a time; default: as --out.",
    ),
]
Only = Annotated[
    bool, typer.Option("--collect", help="Run nothing: judge and draw what is complete.")
]
Extras = Annotated[
    bool,
    typer.Option("--extras/--no-extras", help="Published forms, their cost, regret and bound."),
]
Retrained = Annotated[
    str,
    typer.Option(
        "--training", help="Change what is trained, e.g. aggregation=mean-returned,device=cuda."
    ),
]


@with_groups
def reproduce(
    *,
    paper: Paper,
    more: More = None,
    figure: FigureNumbers = None,
    setting: Settings = None,
    seeds: Seeds = 0,
    rounds: Rounds = 0,
    training: Retrained = "",
    out: Out = Path("runs"),
    results: KeepIn = None,
    only: Only = False,
    extras: Extras = True,
    computing: GridOptions,
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiments, judge its claims and draw its figures.

    Results are kept in a small JSON file, figures as PDF, SVG and PNG beside the runs. Exit code 1
    if a claim fails.

    Example: [bold]turnout reproduce rbcs-f --figure 2 3 4[/]
    """
    require_matplotlib()
    preset = load_preset(paper, seeds=seeds, rounds=rounds, training=parse_parameters(training))
    chosen = tuple(dict.fromkeys([*(figure or []), *(more or [])]))
    wanted = chosen or tuple(drawing.number for drawing in preset.figures)
    drawings = [preset.figure(number) for number in wanted]
    settings = [preset.setting(label) for label in setting or []] or list(preset.settings)
    file = _opened(preset, results)
    parts = _parts(preset, settings, wanted, file, out, extras, only)
    if parts and not only:
        file.check_version()
    running = computing.for_run()
    if only and running["shard"] is not None:
        raise InvalidInput("--collect and --shard exclude each other: collect after turnout merge.")
    folder = out / run_folder(preset, preset.experiment_of(settings[0]), "")
    kept = _Kept(preset, file, (results or out) / f"{paper}.json")
    folder.mkdir(parents=True, exist_ok=True)
    if running["shard"] is None:
        kept.path.parent.mkdir(parents=True, exist_ok=True)
    grids = [] if only else _run(parts, kept, as_json, running)
    end_badly_on_problems(*grids)
    if running["shard"] is not None:
        print_shard(running["shard"], out, grids, as_json)
        return
    if only:
        kept.take(*parts)
    judged = judged_claims(preset, file, wanted, extras=extras)
    drawn = {
        setting.label: file.parts[(setting.label, 1)]
        for setting in settings
        if (setting.label, 1) in file.parts
    }
    order = preset.experiment.labels
    written = [path for drawing in drawings for path in draw(drawing, drawn, folder, order=order)]
    if as_json:
        print_json(_content(preset, file, judged, folder, written))
    else:
        _print(preset, file, judged, written, extras)
    if any(one.verdict == Verdict.FAILS and not one.differs for one in judged):
        raise typer.Exit(1)


def _opened(preset: Preset, results: Path | None) -> ResultsFile:
    """Return the kept results, or a new file."""
    path = None if results is None else results / f"{preset.name}.json"
    if path is None or not path.exists():
        return ResultsFile(preset.name)
    return ResultsFile.read(path, preset.name)


class _Part(NamedTuple):
    """One experiment of a paper: a setting at a length."""

    setting: str
    times: int
    experiment: Experiment
    labels: list[str]
    folder: Path


def _parts(
    preset: Preset,
    settings: list[Setting],
    wanted: tuple[int, ...],
    file: ResultsFile,
    out: Path,
    extras: bool,
    only: bool,
) -> list[_Part]:
    """Return what the kept results lack, setting by setting; with ``only``, everything.

    Raises if the kept results are of another protocol.
    """
    parts = []
    for setting in settings:
        lengths = {1} | {claim.times for claim in preset.claims_in(setting, wanted)}
        for times in sorted(lengths):
            experiment = preset.experiment_of(setting, times)
            file.check(setting.label, times, experiment.table())
            labels = preset.schemes_for(setting, wanted, times=times, extras=extras)
            folder = out / run_folder(preset, experiment, setting.label)
            if only:
                parts.append(_Part(setting.label, times, experiment, labels, folder))
                continue
            lacking = file.missing(setting.label, times, labels, experiment.seeds)
            for seeds, alike in _by_seeds(lacking).items():
                rest = preset.experiment_of(setting, times, seeds)
                parts.append(_Part(setting.label, times, rest, alike, folder))
    return parts


def _by_seeds(lacking: Mapping[str, list[int]]) -> dict[tuple[int, ...], list[str]]:
    """Return the schemes that lack the same seeds, so that no run is made twice."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for label, seeds in lacking.items():
        groups.setdefault(tuple(seeds), []).append(label)
    return groups


class _Kept(NamedTuple):
    """The results of a paper and the file that they are kept in."""

    preset: Preset
    file: ResultsFile
    path: Path

    def take(self, *parts: _Part, skip_bad: bool = False) -> None:
        """Take what is complete into the results, and write them if there is something new."""
        taken = False
        for part in parts:
            found = collect(
                self.preset, part.experiment, part.folder, part.labels, skip_bad=skip_bad
            )
            if found.schemes:
                self.file.check_version()
                self.file.update(part.setting, part.times, found)
                taken = True
        if taken:
            self.file.made_with = tools(trains="training" in self.preset.base)
            self.file.write(self.path)


def _run(parts: list[_Part], kept: _Kept, quiet: bool, running: Mapping[str, Any]) -> list[Grid]:
    """Run what is not complete, and keep the results of each part as soon as it ends, however.

    The cells of a shard are numbered through all parts; its results are kept after the merge.
    """
    grids: list[Grid] = []
    shard, n_before = running["shard"], 0
    for part in parts:
        own = None if shard is None else shard.after(n_before)
        options = {**running, "shard": own, "labels": part.labels}
        try:
            grids.append(run_shown(part.experiment, part.folder, quiet=quiet, **options))
        finally:
            if shard is None:
                kept.take(part, skip_bad=True)  # the grid names them
        n_before += len(part.labels) * len(part.experiment.seeds)
    return grids


def _print(
    preset: Preset, file: ResultsFile, judged: list[Judged], written: list[Path], extras: bool
) -> None:
    console.print(f"[bold]{preset.title}[/]: {preset.paper}", highlight=False)
    for note in preset.notes:
        console.print(f"  {note}", highlight=False)
    for text in all_tables(preset, file, extras=extras):
        console.print(_rich(text))
    console.print(_rich(claims_table(judged)))
    console.print(count_sentence(judged), highlight=False)
    if written:
        console.print("Figures: " + ", ".join(str(path) for path in written), highlight=False)


def _rich(text: TextTable) -> Table:
    if "verdict" not in text.headings:
        return text_table(text.title, text.headings, text.rows)
    shown = table(text.title, *text.headings)
    for row in text.rows:
        shown.add_row(*(_coloured(cell) for cell in row))
    return shown


def _coloured(cell: str) -> str:
    colour = next((_COLOURS[verdict] for verdict in Verdict if cell.startswith(verdict)), "")
    return f"[{colour}]{escape(cell)}[/]" if colour else escape(cell)


def _measured(values: FloatArray, name: str) -> dict[str, Any]:
    """Return a measure over seeds for JSON; no run that diverged or never got there is dropped."""
    measure = measure_named(name)
    values = comparable(values, measure)
    lost = {"diverged": int(np.isnan(values).sum()), "seeds": values.size}
    if not measure.is_time_to:
        return numbers(estimate(values)) | lost
    known = values[~np.isnan(values)]
    median = float(np.median(known)) if known.size else math.inf
    never = int(np.isinf(known).sum())
    return {"median": median if math.isfinite(median) else None, "never": never} | lost


def _content(
    preset: Preset, file: ResultsFile, judged: list[Judged], folder: Path, written: list[Path]
) -> dict[str, Any]:
    return {
        "paper": preset.paper,
        "folder": str(folder),
        "figures": [str(path) for path in written],
        "settings": [
            {
                "setting": setting,
                "times": times,
                "n_rounds": results.n_rounds,
                "schemes": {
                    label: {
                        "seeds": list(scheme.seeds),
                        **{
                            name: _measured(results.values(label, name), name)
                            for name in (*scheme.measures, *preset.relative_measures(setting))
                        },
                    }
                    for label, scheme in results.schemes.items()
                },
            }
            for (setting, times), results in file.parts.items()
        ],
        "claims": [
            {
                "figure": entry.claim.figure,
                "place": entry.place,
                "setting": entry.setting,
                "says": entry.claim.says,
                "reading": entry.claim.reading,
                "by_construction": entry.claim.by_construction,
                "differs": entry.differs,
                "ours": entry.ours.ours,
                "verdict": entry.verdict.value,
                "verdict_alone": entry.ours.verdict.value,
                "seeds": entry.ours.n_seeds,
                "seeds_needed_alone": entry.ours.seeds_needed,
                "as_published": None
                if entry.published is None
                else {
                    "found": entry.published[0].ours,
                    "verdict": entry.published[1].value,
                    "verdict_alone": entry.published[0].verdict.value,
                },
            }
            for entry in judged
        ],
        "count": count_sentence(judged),
    }
