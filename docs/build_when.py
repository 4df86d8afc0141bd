"""Write ``docs/when.md`` and its figure from ``results/controls.json`` and ``properties.json``.

``--run`` runs the controls first. ``--check`` writes nothing and fails if the page differs. The
figure is not compared: pixels differ between machines. ``benchmarks/properties.py`` measures the
properties.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from turnout.core.types import FloatArray
from turnout.report.figure import Axis, Chart, Line, Mark, Panel
from turnout.report.to_matplotlib import write_figure
from turnout.results.statistics import estimate
from turnout.studies.controls import (
    SEEDS,
    Bar,
    BarFinding,
    Control,
    ControlVerdict,
    controls_named,
    judged,
    run_controls,
    verdicts,
)
from turnout.studies.results_file import ResultsFile
from turnout.studies.trials import Trials

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "controls.json"
PROPERTIES = ROOT / "results" / "properties.json"
NCCB, RBCS_F = (ROOT / "results" / name for name in ("nccb.json", "rbcs-f-training.json"))
PAGE = ROOT / "docs" / "when.md"
FIGURE = ROOT / "docs" / "assets" / "controls.png"

#: Colour of the method, and of its rivals.
OURS, THEIRS = 0, "#888888"

#: Characters in a line of prose.
WIDTH = 120

#: Columns of the table.
COLUMNS = ("method", "it assumes", "world", "bar", "effect", "n", "verdict")

#: Ticks of the axes of time.
SECONDS = (300.0, 500.0, 1000.0, 3000.0)

TITLE = """\
# When does it help?

<!-- Made by docs/build_when.py from results/controls.json and results/properties.json. -->
"""

INTRODUCTION = """\
A selector that gains nothing on some data may be wrong, or what it assumes may not hold there. Each
world below is small, and the assumption of one method holds in it by design. {summary} Where a
method gains nothing in [our runs of the papers](papers/index.md), look at the data first. The last
section says what to look for, and how much of it public data have."""

HEAD = """\
## In worlds made for them

We wrote each bar into `studies/controls.toml` and committed it before the {n} seeds that decide
were run: *replies: Random + 0.01* asks for 0.01 more replies than with random selection. Worlds and
margins were found with other seeds. *Effect* is method minus rival with its 95 % interval, paired
by seed; for times to an accuracy it is the ratio. *Replies* are per place of a cohort, *accuracy*
and *global loss* are final, and *utility* is that of the chosen clients: 0 is the mean of all
clients, 1 is the best cohort.

**wins**: better by more than the margin. *short*: better, but perhaps by less than the margin.
**loses**: the rival is better. *undecided*: the difference may be chance. Verdicts are corrected
for the {n_bars} bars (Holm), intervals are not. So an effect may be undecided although its interval
excludes 0, or 1 x.
"""

CAPTION = """\
![Every scheme in every control, seed by seed](assets/controls.png)

*Each panel is a control: dots are seeds, bars are 95 % intervals of the mean, and the method is
blue. A run that never reached its accuracy stands at the longest time of its panel.*
"""

TAIL = """\
Run a control: `python docs/build_when.py --run`, or in Python
`turnout.studies.controls.run_control(control)`. All controls take about ten minutes on one core.
Measure your own federation with the functions of `turnout.studies.properties`;
`benchmarks/properties.py` made the numbers above.

Does a selector find useful clients in your training?
`participants = "turnout.studies.watched:Watched"` in the table `training` records how much utility
the chosen clients have, round by round: 0 is the mean of all clients, 1 the best cohort.
"""


class Numbers:
    """The numbers that paragraphs mention.

    Args:
        sets: What ``benchmarks/properties.py`` measured, by the name of the data.
    """

    def __init__(self, sets: Mapping[str, Any]) -> None:
        self._sets = sets

    def __call__(self, name: str, key: str, form: str = ".2f") -> str:
        """Return the mean over seeds of a property.

        Args:
            name: The data.
            key: The property.
            form: How it is written; ``points`` writes hundredths, ``share`` percents.
        """
        return _written(float(np.mean(self._sets[name]["values"][key])), form)


def _written(value: float, form: str) -> str:
    """Return a number; a share that is explained is at least 0, whatever a bad fit gives."""
    if form == "points":
        return f"{100 * value:+.1f}"
    return f"{100 * max(value, 0.0):.0f} %" if form == "share" else f"{value:{form}}"


def kept_gap(path: Path, above: tuple[str, str], below: tuple[str, str]) -> str:
    """Return the gap in final accuracy between two schemes of kept results, in points.

    Args:
        path: The results.
        above: Setting and scheme.
        below: Setting and scheme that are subtracted.
    """
    file = ResultsFile.read(path, path.stem)
    means = [
        float(file.parts[(setting, 1)].values(scheme, "final-accuracy").mean())
        for setting, scheme in (above, below)
    ]
    return _written(means[0] - means[1], "points")


def table(found: Mapping[str, list[BarFinding]]) -> list[str]:
    """Return the table of all bars.

    Args:
        found: What was measured, by control.
    """
    marks = iter(verdicts([one for several in found.values() for one in several]))
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for control in controls_named():
        for place, one in enumerate(found[control.label]):
            first = [f"[`{control.method}`](selectors/{control.method}.md)", control.assumes]
            cells = [*first, control.title] if place == 0 else ["", "", ""]
            cells += [_limit(one.bar), _effect(one).replace(" ", "&nbsp;"), str(one.n_seeds)]
            lines.append(f"| {' | '.join([*cells, _shown(next(marks))])} |")
    return lines


#: Short names of measures.
_NAMES = {
    "success-ratio": "replies",
    "final-accuracy": "accuracy",
    "global-loss": "global loss",
    "round-time-s": "seconds per round",
    "chosen-utility": "utility",
}


def _named(bar: Bar) -> str:
    if bar.is_ratio:
        return f"seconds to {100 * float(bar.measure.removeprefix('time-to-')):.0f} %"
    return _NAMES[bar.measure]


def _limit(bar: Bar) -> str:
    """Return what the method must be better than."""
    if bar.is_ratio:
        return f"{_named(bar)}: {bar.margin:g} x {bar.rival}"
    sign = "-" if bar.less_is_better else "+"
    margin = f" {sign} {bar.margin:g}" if bar.margin else ""
    return f"{_named(bar)}: {bar.rival}{margin}"


def _effect(found: BarFinding) -> str:
    ends = (found.effect, found.low, found.high)
    if found.bar.is_ratio:
        text = "{:.2f} x ({:.2f} to {:.2f})".format(*ends)
        return f"<= {text}" if found.is_bound else text
    return "{:.3f} ({:.3f} to {:.3f})".format(*ends)


def _shown(verdict: ControlVerdict) -> str:
    is_clear = verdict in (ControlVerdict.WINS, ControlVerdict.LOSES)
    return f"**{verdict}**" if is_clear else str(verdict)


def worlds() -> list[str]:
    """Return what each world is, as a list."""
    return [f"- **{control.title}.** {control.world}" for control in controls_named()]


def figure(results: ResultsFile) -> Chart:
    """Return the figure: a panel per control, a row per scheme.

    Args:
        results: The results of the controls.
    """
    panels = [_panel(control, results.parts[(control.label, 1)]) for control in controls_named()]
    return Chart("controls", "", "", panels, n_columns=2, width=7.2, legend="none")


def _panel(control: Control, trials: Trials) -> Panel:
    bar, labels = control.bars[0], list(reversed(trials.labels))
    marks: list[Mark] = []
    for place, label in enumerate(labels):
        values = _values(bar, trials, label)
        colour = OURS if label == control.scheme else THEIRS
        mean, half = estimate(values).mean, estimate(values).half_width
        ends = np.array([[mean - half], [mean + half]])
        rows = np.full(values.size, float(place))
        marks.append(Line("", colour, values, rows, role="points", size=3.0, opacity=0.45))
        middle, row = np.array([mean]), np.array([float(place)])
        marks.append(Line("", colour, middle, row, role="points", size=6.5, x_range=ends))
    side = "left" if bar.less_is_better else "right"
    ticks = {float(place): label for place, label in enumerate(labels)}
    return Panel(
        marks,
        Axis(
            f"{_named(bar)} ({side} is better)",
            is_log=bar.is_ratio,
            ticks={second: f"{second:,.0f}" for second in SECONDS} if bar.is_ratio else {},
        ),
        Axis(low=-0.6, high=len(labels) - 0.4, ticks=ticks),
        f"{control.method}: {control.title.lower()}",
        height=1.45,
    )


def _values(bar: Bar, trials: Trials, label: str) -> FloatArray:
    """Return the measure of each seed; a time that was never reached is the longest run's."""
    values = trials.values(label, bar.measure)
    if not bar.is_ratio:
        return values
    longest = max(float(trials.values(other, "total-time").max()) for other in trials.labels)
    return np.minimum(values, longest)


def page(results: ResultsFile, sets: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        results: The results of the controls.
        sets: What was measured in data and traces.
    """
    found = {
        control.label: judged(control, results.parts[(control.label, 1)])
        for control in controls_named()
    }
    n_bars = sum(len(several) for several in found.values())
    head = HEAD.format(n=len(SEEDS), n_bars=n_bars)
    start = _wrapped(INTRODUCTION.format(summary=summary(found)))
    lines = [TITLE, start, "", head, *table(found), "", CAPTION, "The worlds:", "", *worlds(), ""]
    lines += ["## What to look for in your federation", ""]
    lines += [*paragraphs(Numbers(sets), found), TAIL]
    return "\n".join(lines)


def summary(found: Mapping[str, list[BarFinding]]) -> str:
    """Return which methods beat random selection, in a sentence.

    Args:
        found: What was measured, by control.
    """
    all_verdicts = verdicts([one for several in found.values() for one in several])
    named = [(control, one) for control in controls_named() for one in found[control.label]]
    beaten: dict[str, list[bool]] = {}
    for (control, one), verdict in zip(named, all_verdicts, strict=True):
        if one.bar.rival == "Random":
            beaten.setdefault(control.method, []).append(verdict == ControlVerdict.WINS)
    winners = [f"`{method}`" for method, won in beaten.items() if all(won)]
    others = [f"`{method}`" for method, won in beaten.items() if not all(won)]
    text = f"There {_listed(winners)} beat random selection by more than we asked for"
    return f"{text}; {_listed(others)} did not." if others else f"{text}."


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def paragraphs(number: Numbers, found: Mapping[str, list[BarFinding]]) -> list[str]:
    """Return what to check for each method, with the numbers of public data.

    Args:
        number: Properties of data and traces.
        found: What was measured in the controls.
    """

    def effect(label: str, rival: str, form: str = "+.3f") -> str:
        one = next(one for one in found[label] if one.bar.rival == rival)
        return _written(one.effect, form)

    authors = kept_gap(NCCB, ("iid", "Random"), ("authors", "Random"))
    roles = kept_gap(NCCB, ("roles, iid", "Random"), ("roles", "Random"))
    slow = kept_gap(RESULTS, ("rbcs-f", "Random"), ("rbcs-f", "FedCS(3)"))
    fair = [
        kept_gap(RBCS_F, (setting, "random"), (setting, "FedCS(3)"))
        for setting in ("gamma_1 = 1", "gamma_1 = 0.1")
    ]
    texts = [
        f"""\
**[`e3cs`](selectors/e3cs.md)**: do some clients reply more often than others, and does it last?
The standard deviation of reply rates between clients is {number("E3CS's world", "spread")} in the
paper's world, and the rates in the first fifth of the rounds correlate with the later ones by
{number("E3CS's world", "lasts")}: every bandit works there. Recorded phones differ less
({number("phones", "spread")}), and their rates change ({number("phones", "lasts")}). Change alone
is no reason to prefer E3CS. In the world that switches, UCB1, which assumes fixed rates, is better
by {effect("e3cs-switch", "UCB1", ".3f").lstrip("-")}. One reason: it keeps trying clients with a
short record, and a short record changes fast. E3CS pays off where clients fail *because* they are
chosen often, as with batteries and data plans. Such a world is rare: we tried about thirty on other
seeds, and in most of them UCB1 was at least as good.""",
        f"""\
**[`rbcs-f`](selectors/rbcs-f.md)**: does a context tell more about times than the client's own
mean, and does it cost accuracy to leave slow clients out? The mean of each client explains
{number("RBCS-F's world", "client", "share")} of the variance of times in the paper's world, and the
context {number("RBCS-F's world", "context", "share")}. For recorded devices and networks the
client's mean alone explains {number("recorded devices", "client", "share")}. Random selection
minus FedCS(3), which leaves the slow out, is {slow} points of accuracy in the control, where the
slow hold labels of their own. On Fashion-MNIST as in the paper it is {fair[0]} (gamma_1 = 1) and
{fair[1]} (0.1): there, labels have nothing to do with speed. The
lead over random in time is not certain: rounds are shorter, but more of them are needed.""",
        f"""\
**[`ucb-cs`](selectors/ucb-cs.md)**: how much do losses differ between clients, and does a loss
still hold when the client is seen again, n / m rounds later? The standard deviation over the mean
is {number("control of UCB-CS", "loss spread")} in the control of few clients with most labels,
{number("Synthetic(1,1)", "loss spread")} on Synthetic(1,1), and on Fashion-MNIST
{number("Fashion-MNIST, alpha 0.3", "loss spread")} (alpha 0.3) and
{number("Fashion-MNIST, alpha 2", "loss spread")} (alpha 2). The correlation with the next look is
{number("control of UCB-CS", "loss persistence")},
{number("Synthetic(1,1)", "loss persistence")},
{number("Fashion-MNIST, alpha 0.3", "loss persistence")} and
{number("Fashion-MNIST, alpha 2", "loss persistence")}. In that control all losses fall, but the
order of the clients stays. That is enough to mislead the same index without a discount. In the
other control the order does not last: the spread is
{number("control of UCB-CS, order", "loss spread")} and the correlation
{number("control of UCB-CS, order", "loss persistence")}. UCB-CS gains there too.""",
        f"""\
**[`oort`](selectors/oort.md)**: do utilities differ, and are useful clients as fast as others? The
standard deviation of utility over its mean is {number("control of Oort", "utility spread")} in the
control and {number("Fashion-MNIST, alpha 0.3", "utility spread")} on Fashion-MNIST with alpha 0.3.
If the useful clients are the slow ones, Oort must choose between the two. Speed adds less than
loss: the same rule without speed takes longer, but ten seeds do not make that certain.""",
        f"""\
**[`k-linucb`](selectors/k-linucb.md)**: do utilities differ, and which share of their variance does
a linear fit on the features explain, for clients that it has not seen? The standard deviation of
utility over its mean is {number("control of k-LinUCB", "utility spread")} in the control,
{number("blog authors", "utility spread")} for blog authors and
{number("roles of Shakespeare", "utility spread")} for the roles of Shakespeare. Features explain
{number("control of k-LinUCB", "explained by features", "share")},
{number("blog authors", "explained by features", "share")} and
{number("roles of Shakespeare", "explained by features", "share")} of the variance (codes of 64 bits
for the texts). Near 0 in either, features cannot help.""",
        f"""\
**[`nccb`](selectors/nccb.md)**: check the same two numbers, and what unlike clients cost. Random
selection on iid data minus the same by author is
{number("control of NCCB, iid", "cost of unlike clients", "points")} points of accuracy in the
control, but {authors} for blog authors and {roles} for the roles of Shakespeare: unlike clients
cost nothing there. In the control of dialects the codes explain
{number("control of NCCB", "explained by features", "share")} of the utility, so a linear fit is
enough, and `k-linucb` did no worse. Where utility is no sum of features, NCCB leads it by
{effect("nccb-pairs", "k-LinUCB", ".2f")}. The lead is no larger since `k-linucb` needs only one
good code: every code of bits is a corner of a cube, and a linear function can single out any
corner.""",
    ]
    return [line for text in texts for line in (_wrapped(text), "")]


def _wrapped(text: str) -> str:
    return fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Write the page and the figure, or compare the page."""
    if "--run" in sys.argv:
        run_controls(RESULTS)
    results = ResultsFile.read(RESULTS, "controls")
    sets = json.loads(PROPERTIES.read_text(encoding="utf-8"))["sets"]
    whole = page(results, sets)
    if "--check" not in sys.argv:
        write_figure(figure(results), [FIGURE])
        PAGE.write_text(whole, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != whole:
        sys.exit("docs/when.md differs from its results: run python docs/build_when.py.")


if __name__ == "__main__":
    main()
