"""Write docs/selectors/<name>.md and docs/metrics.md from the code: they cannot drift apart.

``python docs/build_pages.py`` writes; ``--check`` only compares and fails when a page is stale.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np

import turnout
from turnout.core.describe import HEADINGS, Description, describe
from turnout.results.catalogue import GROUPS, all_metrics
from turnout.testing import ToyFederation

FOLDER = Path(__file__).parent
#: The target that stands for all in the glossary.
TARGET = 0.9
INTRODUCTION = """\
This page lists every metric of a run. The key is its name in `summary.json` and with `--json`.
Tables show times in the most readable unit. Files have them in seconds."""
REMARKS = f"""\
Keys with {TARGET:g} stand for one metric per target accuracy (`--target`). They are null if the run
never reached the target. Metrics of the hold-out exist only if clients hold out examples.

Source: `turnout/results/catalogue.py`. This page is generated from it."""

RATES = FOLDER.parent / "results" / "guaranteed-rate.json"
REACHED = """\
The table uses the world of the paper: {n_clients} clients, 80 % of them available,
m = {cohort_size}, beta = {rate:g}; means of {n_seeds} seeds. *Reached* is the round from which on
no client is short of the rate by more than 10 %. *Predicted* is the value of `rounds_to_rate` in
round 30. *Below* is the share of clients below the rate, and *least* is the rate of the least
served client as a multiple of beta; both after 500 / 4,000 rounds. *Guarded* is the same in
`guarded` with floor {floor:g}, which is beta n / m, over 500 rounds. It does not wait for queues to
grow, but nearly every round has a slow client, so rounds are longer. Made by
`python benchmarks/guaranteed_rate.py`."""

#: Selections from one state after which a client that never came counts as excluded.
N_DRAWS = 300
CHOOSE = "[Which selector should I use?](../choose.md)"
WHEN = "[When does it help?](../when.md)"
NEEDS = """\
The table assumes default parameters.

- *Columns*: what the server must know about its clients before the round. *Metrics*: what clients
  must report in their replies. Those in brackets are optional.
  [Reference](../reference.md#columns-and-metrics) explains both.
- *Polls*: some clients evaluate the current model before the selection, on all their examples or on
  a mini-batch.
- *Chances*: whether a selection states the chance of its clients to be chosen, which aggregation by
  [inverse probability](../howto/models.md#aggregation) needs; *everyone* if the selector can also
  state it of clients that it did not choose, which replay needs.
- *Unbiased*: whether the sum of the updates, each divided by its chance, is that of all available
  clients on average. It is if every available client can be chosen in every round. Selectors that
  rank state a chance of 1 for the chosen, and the others have none.
- *Promises*: what every client can rely on. For `e3cs` it is a probability in each round, for
  `guarded`, `pace` and `rbcs-f` a count over many rounds.
- *ms*: milliseconds for select and observe at a million clients, where [measured](../speed.md)."""


def page(description: Description) -> str:
    """Return the page of one selector."""
    lines = [f"# {description.title.rstrip('.')}", "", "```python", description.call, "```", ""]
    if description.parameters:
        lines += [
            "## Parameters",
            "",
            "| name | default | allowed | meaning |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{p.name}` | `{p.default!r}` | {p.allowed} | {p.meaning} |"
            for p in description.parameters
        ]
        lines.append("")
    for heading, caption in HEADINGS.items():
        lines += [f"## {caption}", "", shaped(heading, description.texts[heading]), ""]
        if more := MORE.get((description.name, heading)):
            lines += more()
    source = description.module.replace(".", "/")
    lines += [f"{WHEN} Try it: `{description.command}`", ""]
    lines += [f"Source: `{source}.py`. This page is generated from it.", ""]
    return "\n".join(lines)


def shaped(heading: str, text: str) -> str:
    """Return the text under a heading; equations get a line for each method or number."""
    if text == "none.":
        return "There are none."
    if heading != "Equations":
        return text
    starts = r"(?:^|(?<=[.:])(?<!Eqs\.)(?<!Eq\.) )(?=(?:poll|select|observe): |\(\d+\) )"
    first, *points = re.split(starts, text)
    if not points:
        return text
    methods = [re.sub(r"^(poll|select|observe): ", r"`\1`: ", point) for point in points]
    return "\n".join([*([first, ""] if first else []), *(f"- {point}" for point in methods)])


def reached() -> list[str]:
    """Return when RBCS-F reaches its rate, as it was measured."""
    saved = json.loads(RATES.read_text(encoding="utf-8"))
    n_seeds = len(next(iter(saved["bare"].values())))
    lines = [REACHED.format(**saved["sizes"], n_seeds=n_seeds), ""]
    lines += ["| V | predicted | reached | largest queue | below | least | round, s |"]
    lines[-1] += " guarded: reached | least after 500 | round, s |"
    lines += [f"|{'---|' * 10}"]
    for penalty, runs in saved["bare"].items():
        guarded = saved["guarded"][penalty]
        cells = [f"{_mean(runs, key):,.{digits}f}" for key, digits in _COLUMNS]
        below, least = ([fmean(run[key][i] for run in runs) for i in (0, 1)] for key in _AFTER)
        cells += [" / ".join(f"{100 * share:.0f}" for share in below) + " %"]
        cells += [" / ".join(f"{rate:.2f}" for rate in least), f"{_mean(runs, 'seconds'):.1f}"]
        cells += [f"{_mean(guarded, 'reached'):.0f}"]
        cells += [f"{fmean(run['least'][0] for run in guarded):.2f}"]
        cells += [f"{_mean(guarded, 'seconds'):.1f}"]
        lines.append(f"| {penalty} | {' | '.join(cells)} |")
    return [*lines, ""]


#: Columns of the table of rates, with the digits after the point; and what is given twice.
_COLUMNS, _AFTER = (("predicted", 0), ("reached", 0), ("queue", 1)), ("below", "least")


def _mean(runs: list[dict[str, float]], key: str) -> float:
    return fmean(run[key] for run in runs)


#: What was measured, by the page and the heading that it stands under.
MORE: dict[tuple[str, str], Callable[[], list[str]]] = {("rbcs-f", "Limits"): reached}


def index(descriptions: list[Description]) -> str:
    """Return the tables of all selectors: what they are, and what they need and promise."""
    lines = ["# Selectors", "", CHOOSE, "", "| name | description |", "|---|---|"]
    lines += [f"| [`{d.name}`]({d.name}.md) | {d.summary}. |" for d in descriptions]
    lines += ["", "## Capabilities: what each one needs and promises", "", NEEDS, ""]
    lines += ["| name | columns | metrics | polls | chances | unbiased | promises | ms |"]
    lines += ["|---|---|---|---|---|---|---|---|", *map(needs, descriptions)]
    return "\n".join([*lines, ""])


def needs(description: Description) -> str:
    """Return the row of a selector: what it declares, and what a round costs."""
    told = [f"`{name}`" for name in description.needs_columns]
    told += [f"(`{name}`)" for name in description.uses_columns]
    optional = description.optional_metrics
    reported = [f"(`{x}`)" if x in optional else f"`{x}`" for x in description.needs_metrics]
    cells = [", ".join(told), ", ".join(reported), description.polls or ""]
    selector = turnout.make(description.name)
    cells += [chances(selector), "yes" if is_unbiased(selector) else "", promise(selector)]
    cells += [milliseconds(description.name)]
    row = [f"[`{description.name}`]({description.name}.md)", *(cell or "-" for cell in cells)]
    return f"| {' | '.join(row)} |"


def chances(selector: turnout.Selector) -> str:
    """Return whose chances a selector with its defaults can state."""
    if not selector.reports_probability:
        return ""
    return "chosen" if type(selector).chances is turnout.Selector.chances else "everyone"


def is_unbiased(selector: turnout.Selector) -> bool:
    """Return whether chances are stated and every client can be chosen, early and late."""
    if not selector.reports_probability:
        return False
    toy, everyone = ToyFederation(12, 4), np.ones(12, dtype=np.bool_)
    selector.prepare(12)
    played = 0
    for t in (1, 2, 30):
        toy.play(selector, range(played, t), available=everyone)
        played, seen = t, np.zeros(12, dtype=np.bool_)
        for seed in range(N_DRAWS):
            _, selection = toy.choose(selector, t, seed=seed, available=everyone)
            seen[selection.clients] = True
        if not seen.all():
            return False
    return True


def promise(selector: turnout.Selector) -> str:
    """Return what a selector with its defaults promises to every client."""
    if rate := selector.guaranteed_rate():
        return f"{rate:.0%} of the rounds in the long run"
    share = selector.promised_share(0)
    return f"{share:.0%} of an equal share" if share else ""


def milliseconds(name: str) -> str:
    """Return what a round takes at a million clients, from the table on the page of speeds."""
    speeds = (FOLDER / "speed.md").read_text(encoding="utf-8")
    row = re.search(rf"│ {name} +│(?:[^│]*│){{3}} +([\d.]+|-)", speeds)
    return row[1] if row else ""


def glossary() -> str:
    """Return the page of all metrics."""
    lines = ["# Metrics", "", INTRODUCTION, ""]
    for group, sentence in GROUPS.items():
        metrics = [metric for metric in all_metrics([TARGET]) if metric.group == group]
        lines += [f"## {group.capitalize()}", "", sentence, ""]
        lines += ["| key | name | meaning | unit | better |", "|---|---|---|---|---|"]
        for metric in metrics:
            meaning = f"{metric.meaning} {metric.detail}".rstrip()
            unit = metric.unit or "-"
            lines.append(
                f"| `{metric.key}` | {metric.title} | {meaning} | {unit} | {metric.better} |"
            )
        lines.append("")
    lines += [REMARKS, ""]
    return "\n".join(lines)


def main() -> None:
    """Write or compare all pages."""
    descriptions = [describe(name) for name in turnout.list_selectors(plugins=False)]
    pages = {f"selectors/{description.name}.md": page(description) for description in descriptions}
    pages["selectors/index.md"] = index(descriptions)
    pages["metrics.md"] = glossary()
    stale = [
        name
        for name, text in pages.items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        sys.exit(f"stale pages, run python docs/build_pages.py: {stale}" if stale else 0)
    for name in stale:
        (FOLDER / name).write_text(pages[name], encoding="utf-8")


if __name__ == "__main__":
    main()
