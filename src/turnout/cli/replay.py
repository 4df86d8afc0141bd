"""``turnout replay``: what other selectors would have brought in the recorded rounds."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape

from turnout.cli.app import documented
from turnout.cli.output import AsJson, RunFolders, console, fitted, note, print_json
from turnout.core.errors import TurnoutError
from turnout.experiment.variants import variants_of
from turnout.results.offpolicy import Judgement
from turnout.results.statistics import Estimate
from turnout.twin.fit import fit_log
from turnout.twin.forecast import SEEDS, Forecast, forecast
from turnout.twin.log import read_log
from turnout.twin.replay import METHODS, NAMES, QUANTITIES, Replay, Replayed, in_charge, replay_log

#: What is judged if nothing is named.
USUAL = "random,pace,e3cs"


class OutcomeModel(StrEnum):
    """The models of the doubly robust estimates."""

    clients = "clients"
    world = "world"

    @property
    def method(self) -> str:
        """The estimates with this model."""
        return "doubly_robust_world" if self is OutcomeModel.world else METHODS[0]


@documented
def replay(
    runs: RunFolders,
    *,
    selectors: str = USUAL,
    draws: Annotated[int | None, typer.Option(min=1)] = None,
    model: OutcomeModel = OutcomeModel.clients,
    seeds: Annotated[int, typer.Option(min=2)] = SEEDS,
    no_twin: bool = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what other selectors would have brought in the recorded rounds.

    The estimates come from the log alone, by the recorded chances of choice. They are about one
    place: the share that gives an answer in time, the seconds that a device works, and the seconds
    wasted. The world fitted to the records answers beside them; where the log says too little, it
    answers alone.

    Example: [bold]turnout replay runs/hospitals --selectors random,pace,e3cs --draws 200[/]

    Args:
        runs: Run folders of one federation.
        selectors: Candidates, separated by commas outside of brackets.
        draws: Estimate chances that have no closed form, by so many choices a round.
        model: What the doubly robust estimates in the table expect of clients: what each of them
            did in earlier rounds (clients), or worlds fitted to earlier rounds (world).
        seeds: Seeds of the fitted world.
        no_twin: Leave the fitted world out.
        as_json: For programs.
    """
    log = read_log(runs)
    variants = [each for text in parted(selectors) for each in variants_of(text)]
    found = replay_log(log, variants, draws, method=model.method)
    twin, notes = None, list(found.notes)
    if not no_twin:
        try:
            twin = forecast(fit_log(log), [in_charge(log), *variants], found.n_answers, seeds)
        except TurnoutError as error:
            notes.append(f"there is no fitted world: {error}")
    if as_json:
        print_json(_row(found, twin, notes))
        return
    for text in notes:
        note(text, soft_wrap=True)
    _print(found, twin, model.method)


def parted(text: str) -> list[str]:
    """Return the parts of a text between commas that are not in brackets or after a colon.

    Args:
        text: Selectors as on the command line: ``random,e3cs:quota=0.5,draw=multinomial``.

    >>> parted("random,e3cs:quota=0.5,eta=0.3,mix:members={pace=0.9,random=0.1}")
    ['random', 'e3cs:quota=0.5,eta=0.3', 'mix:members={pace=0.9,random=0.1}']
    """
    parts: list[str] = []
    depth = 0
    for piece in text.split(","):
        continues = depth > 0 or (bool(parts) and "=" in piece and ":" not in piece)
        if continues:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece.strip())
        depth += sum(piece.count(each) for each in "[{") - sum(piece.count(each) for each in "]}")
    return [part for part in parts if part]


def _print(found: Replay, twin: Forecast | None, method: str) -> None:
    n_places = int(sum(record.run.clients.size for record in found.log.records))
    console.print(
        f"In charge: [bold]{escape(found.logger)}[/]; {found.log.n_rounds:,} rounds, "
        f"{n_places:,} places. Everything is per place, with 95 % intervals. Estimates: "
        f"{NAMES[method]}."
    )
    keys = [key for key in QUANTITIES if key in found.now]
    headings = ["from the log", *(_heading(key) for key in keys), "effective"]
    rows = [[f"now: {escape(found.logger)}", *(_written(found.now[key]) for key in keys), "-"]]
    for each in found.candidates:
        if each.problem:
            rows.append([escape(each.label), *("-" for _ in keys), "-"])
        else:
            cells = (_written(each.estimates[key][method]) for key in keys)
            assert each.weighted is not None
            rows.append([escape(each.label), *cells, f"{each.weighted.n_effective:,.0f}"])
    for shown in fitted(headings, rows):
        console.print(shown)
    for each in found.candidates:
        if each.problem and found.n_used:
            console.print(f"[dim]{escape(each.label)}: {escape(each.problem)}.[/]")
    for each in found.candidates:
        if not each.problem:
            console.print(_sentence(each, found.logger))
    if twin is not None:
        _print_twin(found, twin)


def _print_twin(found: Replay, twin: Forecast) -> None:
    """Print what the fitted world says."""
    labels = dict.fromkeys((found.charge.label, *found.labels))
    keys = ["success", "seconds", "wasted", "least_share"]
    rows = []
    for label in labels:
        if label in twin.runs:
            cells = (_of_twin(twin.estimate(label, key)) for key in keys)
            rows.append([escape(label), *cells])
    headings = ["in the fitted world", *(_heading(key) for key in keys)]
    if rows:
        console.print()
        for shown in fitted(headings, rows):
            console.print(shown)
    for label, problem in twin.problems.items():
        console.print(f"[dim]{escape(label)} in the fitted world: {escape(problem)}[/]")


def _sentence(each: Replayed, logger: str) -> str:
    """Return what changes with a candidate."""
    step = each.differences["success"]
    change = f"{100 * step.mean:+.1f} ({100 * step.low:+.1f} to {100 * step.high:+.1f})"
    is_clear = step.low > 0.0 or step.high < 0.0
    end = "" if is_clear else ", which may be chance"
    return (
        f"[bold]{escape(each.label)}[/] instead of {escape(logger)}: {change} percentage points of "
        f"success{end}. Chances: {each.origin}."
    )


def _heading(key: str) -> str:
    if key == "least_share":
        return "least served"
    return QUANTITIES[key].title + (f" [{QUANTITIES[key].unit}]" if QUANTITIES[key].unit else "")


def _written(found: Judgement) -> str:
    half, form = found.half_width, _form(found.mean)
    mean = format(found.mean, form)
    return mean if math.isnan(half) else f"{mean} ± {format(half, form)}"


def _form(value: float) -> str:
    """Return the format of a number of this size."""
    return ".3f" if abs(value) < 10.0 else ".1f"


def _of_twin(found: Estimate) -> str:
    return found.written(_form(found.mean))


def _row(found: Replay, twin: Forecast | None, notes: list[str]) -> dict[str, Any]:
    """Return everything for JSON."""
    return {
        "in_charge": found.logger,
        "method": found.method,
        "rounds": found.log.n_rounds,
        "rounds_used": found.n_used,
        "now": {key: _ends(each) for key, each in found.now.items()},
        "candidates": [_candidate(each) for each in found.candidates],
        "fitted_world": None if twin is None else _twin_rows(twin, found.charge.label),
        "notes": notes,
    }


def _candidate(each: Replayed) -> dict[str, Any]:
    weighted = each.weighted
    return {
        "selector": each.label,
        "problem": each.problem or None,
        "chances": each.origin or None,
        "effective_places": None if weighted is None else weighted.n_effective,
        "support": None if weighted is None else _ends(weighted.support),
        "estimates": {
            key: {method: _ends(one) for method, one in by_method.items()}
            for key, by_method in each.estimates.items()
        },
        "differences": {key: _ends(one) for key, one in each.differences.items()},
        "least_share": each.least_share,
    }


def _ends(found: Judgement | Estimate) -> dict[str, float]:
    """Return a number with the ends of its interval."""
    return {"mean": found.mean, "low": found.low, "high": found.high}


def _twin_rows(twin: Forecast, baseline: str) -> dict[str, Any]:
    """Return what the fitted world says, for JSON; ``baseline`` is the selector in charge."""
    rows: dict[str, Any] = {}
    for label, numbers in twin.runs.items():
        rows[label] = {key: _ends(twin.estimate(label, key)) for key in numbers}
        for key in numbers if baseline in twin.runs else ():
            step = _ends(twin.difference(label, baseline, key))
            rows[label][key]["difference"] = step.pop("mean")
            rows[label][key] |= {f"difference_{name}": end for name, end in step.items()}
    return rows | {label: {"problem": problem} for label, problem in twin.problems.items()}
