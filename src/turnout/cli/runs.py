"""Commands on run folders: ``turnout show``, ``export``, ``report``, ``audit`` and ``merge``."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, NamedTuple, NoReturn

import numpy as np
import typer
from rich.markup import escape

from turnout.cli import output
from turnout.cli.app import documented
from turnout.cli.output import (
    AsJson,
    RunFolders,
    console,
    fitted,
    note,
    print_json,
    table,
    text_table,
)
from turnout.cli.scores import (
    Baseline,
    Explain,
    MetricKeys,
    named_metrics,
    print_across,
    print_scores,
    score_row,
)
from turnout.core.errors import InvalidInput
from turnout.core.files import write_atomically, writing_to
from turnout.core.names import import_extra, shortened
from turnout.core.participation import Participation
from turnout.core.require import choice
from turnout.report import Report, write_report
from turnout.report.charts import draw_results
from turnout.report.figure import WIDTHS
from turnout.report.live import LiveView, live_views
from turnout.report.watch import STALLED_S, WatchServer, run_until_interrupted
from turnout.results import Cell, Results, WorldGroup, open_runs, read_cells
from turnout.results import merge as join
from turnout.results.files import CONFIG
from turnout.results.groups import differences
from turnout.results.metric import Facts, Metric
from turnout.results.metrics import Guarantee, guarantee
from turnout.results.privacy import EligibleOnly, participations
from turnout.results.results import FRAMES
from turnout.results.scores import known_label
from turnout.results.tables import latex_table, usual_metrics

#: Reasons for missing answers that are printed; JSON has all.
_MOST_REASONS = 15
#: Characters of a client's name in the table.
_WIDEST_NAME = 22


@documented
def show(
    runs: RunFolders,
    *,
    metrics: MetricKeys = None,
    baseline: Baseline = None,
    explain: Explain = False,
    as_json: AsJson = False,
) -> None:
    """Show what is in run folders: means over seeds, and a verdict from differences by seed.

    A folder may be unfinished. Runs of different worlds get a table each. For a live run, the
    command also shows which clients were late, failed or silent, and why.

    Example: [bold]turnout show runs/demo --metrics success_ratio,cep --baseline random[/]

    Args:
        runs: Run folders, single cells, or folders above them.
        metrics: What the tables show.
        baseline: The selector that the others are compared with.
        explain: Whether differences and explanations follow the table.
        as_json: For programs.
    """
    wanted = named_metrics(metrics)
    results = opened(runs, baseline)
    if as_json:
        keys = [metric.key for metric in wanted] or list(results.metrics)
        print_json([row for world in results.worlds for row in _rows(world, keys, baseline)])
        return
    for world in results.worlds:
        known = _baseline(world, baseline)
        title = f"{world.settings.experiment}: {world.title}"
        for view in live_views(world):
            _print_live(view)
        print_scores(world.scores, title, usual_metrics(world), wanted, known, explain=explain)
    if len(results.worlds) > 1:
        text = "; ".join(differences(results.worlds))
        console.print(f"The worlds differ: {text}.", markup=False)
        usual = usual_metrics(results.worlds[0])
        print_across(results.across, wanted or usual, baseline, explain=explain)


def opened(runs: list[Path], baseline: str | None = None) -> Results:
    """Return the results in folders, and print what is wrong with them.

    Args:
        runs: The folders.
        baseline: A label that must be among theirs.
    """
    results = open_runs(*runs)
    if baseline is not None:
        known_label(baseline, results.labels)
    for problem in results.problems:
        note(str(problem), soft_wrap=True)
    return results


def _baseline(world: WorldGroup, baseline: str | None) -> str | None:
    """Return the baseline if the world has it; None stands for its first selector."""
    return baseline if baseline in world.scores.labels else None


def _rows(world: WorldGroup, keys: list[str], baseline: str | None) -> list[dict[str, Any]]:
    scores = world.scores
    first = _baseline(world, baseline) or scores.labels[0]
    place = {"experiment": world.settings.experiment, "world": world.settings.world_id}
    rows = {label: {**place, **score_row(scores, label, keys, first)} for label in scores.labels}
    for view in live_views(world):
        rows[view.label].setdefault("live", []).append(view.to_json())
    return list(rows.values())


def _print_live(view: LiveView) -> None:
    """Print a live run: an overview, its clients by name, and why some gave no answer."""
    console.print(f"[bold]{escape(view.name)}[/]")
    for fact in view.facts:
        remark = f" ({fact.remark})" if fact.remark else ""
        console.print(f"  {fact.title}: {fact.text}{remark}", markup=False)
    if view.void:
        console.print(f"  Void, with too few replies: rounds {view.void}")
    for alert in view.alerts:
        text = f"  Alert after round {alert.round}, {alert.kind}: {alert.text}"
        console.print(text, markup=False)
    rows = [[escape(shortened(row.name, _WIDEST_NAME)), *row.cells] for row in view.rows]
    console.print("Clients, most trouble first", style="italic")
    console.print(*fitted(["client", *view.headings], rows))
    if view.complaints:
        lines = [
            [one.client, one.what, f"{one.times:,}", str(one.last), one.reason]
            for one in view.complaints[:_MOST_REASONS]
        ]
        headings = ["client", "what", "times", "last in round", "reason"]
        console.print(text_table("Late, failed and silent", headings, lines))
        n_more = len(view.run.complaints) - _MOST_REASONS
        if n_more > 0:
            console.print(f"and {n_more} more; --json has all", style="dim", highlight=True)
    if view.shadow_rows:
        console.print("Shadows, which were not followed", style="italic")
        rows = [[escape(shortened(row[0], _WIDEST_NAME)), *row[1:]] for row in view.shadow_rows]
        console.print(*fitted([each.lower() for each in view.shadow_headings], rows))
    if view.fairness:
        console.print(view.fairness, style="dim", markup=False)


@documented
def export(
    runs: RunFolders,
    *,
    csv: bool = False,
    parquet: bool = False,
    latex: bool = False,
    pdf: bool = False,
    metrics: MetricKeys = None,
    baseline: Baseline = None,
    width: str = "two",
    out: Annotated[Path, typer.Option("--out", "-o")] = Path("export"),
    as_json: AsJson = False,
) -> None:
    """Write tables and figures of run folders.

    CSV and Parquet files hold the tables cells, rounds and choices. LaTeX tables mark the best
    value of each column and the values that do not differ from it; --baseline adds a table of
    differences. Figures show accuracy by round and by time, and metrics against everything that
    was swept.

    Example: [bold]turnout export runs/demo --latex --metrics success_ratio,cep --out paper[/]

    Args:
        runs: Run folders, single cells, or folders above them.
        csv: Tidy tables as CSV.
        parquet: Tidy tables as Parquet.
        latex: A table for a paper.
        pdf: Figures for a paper.
        metrics: What the tables and figures show.
        baseline: The selector that the others are compared with.
        width: Columns of the page that a figure fills: one or two.
        out: Where the files go.
        as_json: For programs.
    """
    wanted = named_metrics(metrics)
    columns = choice("--width", width, tuple(WIDTHS))
    if not (csv or parquet or latex or pdf):
        raise InvalidInput("nothing to write: give --csv, --parquet, --latex or --pdf.")
    results = opened(runs, baseline)
    with writing_to(out, "choose another --out"):
        out.mkdir(parents=True, exist_ok=True)
    written = _frames(results, out, "csv") if csv else []
    written += _frames(results, out, "parquet") if parquet else []
    written += _tables(results, out, wanted, baseline) if latex else []
    written += draw_results(results, out, columns, metrics=wanted) if pdf else []
    if as_json:
        print_json([str(path) for path in written])
    else:
        console.print(f"Wrote {', '.join(map(str, written))}.", soft_wrap=True)


def _frames(results: Results, out: Path, form: str) -> list[Path]:
    if form == "parquet":
        import_extra("pyarrow", "Parquet needs pyarrow: pip install 'turnout[frames]'.")
    paths = [out / f"{name}.{form}" for name in FRAMES]
    for name, path in zip(FRAMES, paths, strict=True):
        frame = results.to_frame(name)
        is_csv = form == "csv"
        content = frame.to_csv(index=False).encode() if is_csv else frame.to_parquet(index=False)
        write_atomically(path, content)
    return paths


def _tables(
    results: Results, out: Path, wanted: Sequence[Metric[Facts]], baseline: str | None
) -> list[Path]:
    """Write the means of each world, and the differences to the baseline if one is given."""
    paths = []
    for number, world in enumerate(results.worlds, start=1):
        place = "" if len(results.worlds) == 1 else f"-{number}"
        known, metrics = _baseline(world, baseline), wanted or usual_metrics(world)
        tables = {f"table{place}": None} | ({f"differences{place}": known} if known else {})
        for name, compared_with in tables.items():
            text = latex_table(world.scores, metrics, world.title, name, compared_with)
            write_atomically(out / f"{name}.tex", text.encode())
            paths.append(out / f"{name}.tex")
    return paths


@documented
def report(
    runs: RunFolders,
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    allow_mixed: bool = False,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page that shows runs side by side; the page needs no network.

    Example: [bold]turnout report runs/demo --out demo.html[/]

    Args:
        runs: Experiment folders or cell folders.
        out: The file to write; default: report.html in the run folder, or in the working
            directory for a single cell or several folders.
        allow_mixed: Give each world a section if worlds differ. A sweep does not need this.
        as_json: For programs.
    """
    # A page inside a cell would be one of its files, and differ between equal cells.
    is_one = len(runs) == 1 and not (runs[0] / CONFIG).exists()
    folder = runs[0] if is_one else Path()
    written = write_report(runs, out or folder / "report.html", allow_mixed=allow_mixed)
    for problem in written.problems:
        typer.echo(f"warning: {problem}", err=True)
    if as_json:
        print_json(_encoded(written))
        return
    size = written.path.stat().st_size / 1e6
    labels = {row.name for _, row in written.rows}
    worlds = {world_id for world_id, _ in written.rows}
    where = f" in {len(worlds)} worlds" if len(worlds) > 1 else ""
    typer.echo(f"{len(labels)} selectors{where}, {written.n_cells} cells.")
    typer.echo(f"Wrote {written.path} ({size:.1f} MB).")


def _encoded(written: Report) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for world, row in written.rows:
        rows.append({"world": world, "selector": row.name, "n_seeds": row.n_seeds})
        for key, estimate in row.estimates.items():
            is_best = {"best": key in row.best}
            rows[-1][key] = {"mean": estimate.mean, "half_width": estimate.half_width, **is_best}
    problems = [problem._asdict() for problem in written.problems]
    head = {"report": str(written.path), "n_cells": written.n_cells}
    return {**head, "rows": rows, "problems": problems}


@documented
def merge(out: Path, folders: list[Path], *, as_json: AsJson = False) -> None:
    """Join run folders of the same experiment, such as the shards of a grid.

    The command writes nothing if a folder belongs to another experiment, if runs come from
    different versions, if a run is damaged, or if two copies of a run differ. It leaves out
    incomplete runs. You can repeat it.

    Example: [bold]turnout merge runs/all runs/shard-0 runs/shard-1[/]

    Args:
        out: The folder to fill; it may hold some runs already.
        folders: Run folders of the same experiment, or folders that contain them.
        as_json: For programs.
    """
    merged = join.merge(out, folders)
    if as_json:
        fields = merged._asdict().items()
        print_json({name: [str(path) for path in paths] for name, paths in fields})
        return
    for path in merged.incomplete:
        note(f"{path} is not complete and was left out; run its shard again to resume it.")
    n_added, n_present = len(merged.added), len(merged.present)
    console.print(f"{out}: {n_added} runs added, {n_present} already present.")


#: Clients that the table names; JSON names all.
_SHOWN = 20


@documented
def audit(
    runs: RunFolders,
    *,
    floor: float = 0.5,
    cap: float = 2.0,
    slack: float = 2.0,
    privacy: bool = False,
    min_gap: int | None = None,
    max_times: int | None = None,
    as_json: AsJson = False,
) -> None:
    """Certify runs: name every client that fell short of its floor or exceeded its cap.

    All windows of rounds are checked. With --privacy, the command checks how often clients took
    part instead, and prints what an accountant of differential privacy needs. The exit code is 1 if
    a client is named.

    Example: [bold]turnout audit runs/demo --floor 0.5 --cap 2[/]

    Args:
        runs: Experiment folders or cell folders.
        floor: Share of its fair share that each client should get at least.
        cap: Multiple of its fair share that each should get at most; or inf.
        slack: Places that a client may be short or ahead in any window.
        privacy: Check limits on participation.
        min_gap: Rounds from one participation of a client to its next one, at least; those of the
            run's selector if not given.
        max_times: Rounds in which a client takes part at most; those of the run's selector if not
            given.
        as_json: For programs.
    """
    if not privacy and (min_gap, max_times) != (None, None):
        raise InvalidInput("--min-gap and --max-times need --privacy.", field="privacy")
    cells, problems = read_cells(runs)
    for problem in problems:
        note(str(problem), "warning")
    if not cells:
        raise InvalidInput(f"{', '.join(map(str, runs))}: there is no run to audit.")
    if privacy:
        _audit_privacy(cells, min_gap, max_times, as_json)
    rows: list[dict[str, Any]] = []
    for cell in cells:
        where = {"selector": cell.settings.label, "seed": cell.settings.seed}
        run = EligibleOnly(cell.run, _limits(cell))
        rows += [where | row for row in _offences(guarantee(run, floor, cap, slack))]
    columns = [name.replace("_", " ") for name in _Offence._fields]
    title = f"{len(cells)} runs, floor {floor:g}, cap {cap:g}, slack {slack:g}: "
    title += f"{len(rows)} offences" if rows else "the guarantee holds"
    offences = table(title, "selector", "seed", *columns, numbers=tuple(columns[1:]))
    for row in rows[:_SHOWN]:
        cells_of = (f"{x:.2f}" if isinstance(x, float) else str(x) for x in row.values())
        offences.add_row(*map(escape, cells_of))
    if len(rows) > _SHOWN:
        offences.caption = f"and {len(rows) - _SHOWN} more; --json names all"
    output.show(offences, rows, as_json)
    raise typer.Exit(1 if rows else 0)


def _limits(cell: Cell, min_gap: int | None = None, max_times: int | None = None) -> Participation:
    """Return the given limits, or those of the selector that made a run."""
    own = cell.settings.parameters if cell.settings.selector == "guarded" else {}
    return Participation(
        own.get("min_gap", 1) if min_gap is None else min_gap,
        own.get("max_times") if max_times is None else max_times,
    )


def _audit_privacy(
    cells: Sequence[Cell], min_gap: int | None, max_times: int | None, as_json: bool
) -> NoReturn:
    """Print how often the clients of each run took part, and who did so too often or too early."""
    rows: list[dict[str, Any]] = []
    headings = ("rounds", "cohort", "gap", "times", "chance")
    title = "Smallest gap, most times and largest chance of any client"
    certificates = table(title, "selector", "seed", *headings, numbers=headings)
    named: list[str] = []
    for cell in cells:
        limits = _limits(cell, min_gap, max_times)
        n_needed = cell.settings.quorum.get("min_answers", 1)
        found = participations(cell.run, limits.min_gap, limits.max_times, min_answers=n_needed)
        numbers = found.numbers()
        close, often = (np.flatnonzero(x).tolist() for x in (found.is_close, found.is_frequent))
        where = {"selector": cell.settings.label, "seed": cell.settings.seed}
        rows.append({**where, **numbers, "too_early": close, "too_often": often})
        bound = numbers["chance_bound"]
        gap = str(found.min_gap)
        if found.min_update_gap != found.min_gap:
            gap += f" ({found.min_update_gap} in updates)"
        chance = "unknown" if bound is None else f"{bound:.4g}"
        drawn = (str(found.n_rounds), str(found.largest_cohort), gap, str(found.max_times), chance)
        certificates.add_row(escape(cell.settings.label), str(cell.settings.seed), *drawn)
        who = f"{where['selector']}, seed {where['seed']}"
        for client in close[:_SHOWN]:
            apart, t = int(found.gap[client]), int(found.gap_at[client])
            named.append(f"{who}: client {client} in rounds {t - apart} and {t}, {apart} apart")
        for client in often[:_SHOWN]:
            named.append(f"{who}: client {client} in {found.times[client]} rounds")
    is_limited = any(row["promised"] != {"min_gap": 1, "max_times": None} for row in rows)
    verdict = "the limits hold" if is_limited else "no limits were set"
    certificates.caption = f"{len(named)} offences" if named else verdict
    output.show(certificates, rows, as_json)
    if not as_json:
        for line in named:
            console.print(line, markup=False)
    raise typer.Exit(1 if named else 0)


class _Offence(NamedTuple):
    """A client that fell short or was ahead, and the rounds in which it was so the most."""

    what: str
    client: int
    places: float
    from_round: int
    to_round: int
    chosen: int
    fair_share: float


def _offences(certificate: Guarantee) -> Iterator[dict[str, Any]]:
    """Yield the clients that fell short or were ahead, the worst first."""
    kinds = (
        ("short", certificate.is_short, certificate.shortfall, certificate.short_in),
        ("ahead", certificate.is_ahead, certificate.excess, certificate.ahead_in),
    )
    for what, is_named, places, windows in kinds:
        clients = np.flatnonzero(is_named)
        for client in clients[np.argsort(-places[clients], kind="stable")].tolist():
            first, last = windows[client].tolist()
            chosen, share = int(certificate.chosen[client]), float(certificate.share[client])
            own = _Offence(what, client, float(places[client]), first, last, chosen, share)
            yield own._asdict()


# Follow a run -------------------------------------------------------------------------------------


@documented
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    *,
    port: int = 0,
    no_browser: bool = False,
    stalled_after: float = STALLED_S,
) -> None:
    """Follow a run in the browser while it is written; Ctrl-C stops watching.

    The command only reads the folder. The page is visible on this machine only.

    Example: [bold]turnout watch runs/site --port 8100 --no-browser[/]

    Args:
        run: A run folder, which need not exist yet.
        port: Port on this machine; 0 takes a free one.
        no_browser: Print the address, and do not open a browser.
        stalled_after: Seconds without a change after which the page shows a stall.
    """
    with WatchServer(run, port, stalled_after) as server:
        typer.echo(f"Watching {run} at {server.address} (Ctrl-C stops).")
        if not no_browser:
            Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
        run_until_interrupted(server)
    typer.echo("Stopped watching; the run continues.")
