"""What the first column of a comparison says: a number for each selector, and one sentence.

A sentence calls a difference by its name only if it is more than chance: a paired t-test at 5 %
with Holm's correction for the selectors compared, as everywhere in tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from turnout.core.names import shortened
from turnout.results.metric import Facts, Metric
from turnout.results.scores import Difference, Scores

#: Part of its fair share below which a sentence names what the least served client got.
_FAIR = 0.5
#: Clients that a selector must leave out on average to be named for it.
_ONE = 1.0
#: Selectors that a part of a sentence names.
_MOST_NAMES = 4
_LONGEST_HEADING = 16


class Versus(NamedTuple):
    """Selectors beside a baseline, by one metric.

    Attributes:
        scores: The numbers.
        metric: What they are compared by.
        baseline: The selector that the others are compared with.
    """

    scores: Scores
    metric: Metric[Facts]
    baseline: str

    @property
    def heading(self) -> str:
        """What a column is called that has the numbers of ``written``."""
        return shortened(f"vs {self.baseline}", _LONGEST_HEADING)

    @property
    def steps(self) -> Mapping[str, Difference]:
        """The differences to the baseline, paired by seed."""
        return self.scores.difference(self.metric, self.baseline)

    def written(self, label: str) -> str:
        """Return a selector's number beside the baseline's: a ratio of times, else a difference.

        A star marks what is more than chance. Where some seeds did not reach a target, the ratio
        is a limit; where neither selector reached it in all seeds, there is no ratio.

        Args:
            label: The label of the selector.
        """
        if label == self.baseline:
            return ""
        step = self.steps[label]
        if not step.estimate.n:
            return "-"
        star = "*" if step.is_clear else ""
        if not self.metric.is_time_to:
            scale = self.metric.scale(
                mean.mean for mean in self.scores.estimate(self.metric).values()
            )
            return f"{step.estimate.mean / scale.size:+,{scale.form}}{star}"
        ratio = self._ratio(label)
        return f"{ratio}{star}" if ratio else "-"

    def _ratio(self, label: str) -> str:
        """Return the ratio of two mean times over the seeds that both have; empty if unknown."""
        ours, theirs = (self.scores.values(name, self.metric) for name in (label, self.baseline))
        shared = ours.keys() & theirs.keys()
        total = sum(theirs[seed] for seed in shared)
        cut, base_cut = self._is_cut(label), self._is_cut(self.baseline)
        if not total or (cut and base_cut):
            return ""
        limit = "≥ " if cut else "≤ " if base_cut else ""
        return f"{limit}{sum(ours[seed] for seed in shared) / total:.2f}"

    def _is_cut(self, label: str) -> bool:
        return self.scores.n_reached(label, self.metric) < self.scores.n_seeds(label)

    @property
    def sentence(self) -> str:
        """What the numbers say; empty if there is nothing to compare or to rank."""
        metric, scores, steps = self.metric, self.scores, self.steps
        if metric.better == "neither" or all(step.estimate.n < 2 for step in steps.values()):
            return ""
        if not any(scores.n_reached(label, metric) for label in scores.labels):
            return f"No run reached {metric.goal}." if metric.is_time_to else ""
        sign = 1.0 if metric.better == "higher" else -1.0
        gains = {label: sign * step.estimate.mean for label, step in steps.items()}
        clear = sorted((n for n in steps if steps[n].is_clear), key=lambda n: -gains[n])
        ahead = [label for label in clear if gains[label] > 0.0]
        behind = [label for label in clear if gains[label] < 0.0]
        level = [label for label in steps if label not in clear]
        clauses = [self._ahead(ahead)] if ahead else [self._nobody(behind)]
        if level and ahead:
            clauses.append(f"{_listed(level)} did not differ clearly from {self.baseline}")
        return "; ".join([*clauses, *self._behind(behind), *self._unserved()]) + "."

    def _ahead(self, labels: Sequence[str]) -> str:
        """Return a clause about those that are better than the baseline, the best first."""
        if not self.metric.is_time_to:
            ours, theirs = self._with_means(labels), self._with_means([self.baseline])
            were = "was" if len(labels) == 1 else "were"
            return f"By {self._measure}, {ours} {were} better than {theirs}"
        unit = "rounds" if self.metric.unit == "rounds" else "time"
        known = {n: ratio.replace("≤", "at most") for n in labels if (ratio := self._ratio(n))}
        unknown = [label for label in labels if label not in known]
        if not known:
            return f"{_listed(unknown)} reached {self.metric.goal} sooner than {self.baseline}"
        (best, ratio), *others = known.items()
        first = f"{best} reached {self.metric.goal} in {ratio} of {self.baseline}'s {unit}"
        clause = _listed([first, *(f"{label} in {ratio}" for label, ratio in others)])
        return clause + (f", and {_listed(unknown)} sooner than {self.baseline}" if unknown else "")

    @property
    def _measure(self) -> str:
        """The name of the metric inside a sentence; abbreviations stay as they are."""
        name = self.metric.short
        return name if name[:2].isupper() else name[0].lower() + name[1:]

    def _nobody(self, behind: Sequence[str]) -> str:
        if self.metric.is_time_to:
            sooner = "sooner" if behind else "sooner or later"
            return f"No selector reached {self.metric.goal} clearly {sooner} than {self.baseline}"
        better = "better" if behind else "better or worse"
        return f"By {self._measure}, no selector was clearly {better} than {self.baseline}"

    def _behind(self, labels: Sequence[str]) -> Iterator[str]:
        """Yield clauses about those that are worse than the baseline."""
        never = [n for n in labels if self.scores.n_reached(n, self.metric) == 0]
        worse = [label for label in labels if label not in never]
        if worse and self.metric.is_time_to:
            known = {n: ratio.replace("≥", "at least") for n in worse if (ratio := self._ratio(n))}
            if known:
                (label, ratio), *others = known.items()
                first = f"{label} took {ratio} times as long"
                yield _listed([first, *(f"{name} {longer}" for name, longer in others)])
            if len(known) < len(worse):
                yield f"{_listed([n for n in worse if n not in known])} took longer"
        elif worse:
            yield f"{self._with_means(worse)} {'was' if len(worse) == 1 else 'were'} worse"
        if never:
            yield f"{_listed(never)} never reached it"

    def _unserved(self) -> Iterator[str]:
        """Yield clauses about the clients that selectors hardly served, or did not serve at all."""
        out = {n: self.scores.estimate("left_out")[n].mean for n in self.scores.labels}
        left = {label: round(mean) for label, mean in out.items() if mean >= _ONE}
        if left:
            (label, number), *others = left.items()
            first = f"{label} left {number} client{'s' if number > 1 else ''} out"
            yield _listed([first, *(f"{name} {more}" for name, more in others)])
        least = {n: self.scores.estimate("least_share")[n].mean for n in self.scores.labels}
        low = {n: mean for n, mean in least.items() if mean < _FAIR and n not in left}
        if low:
            (worst, share), *further = low.items()
            first = f"{share:.2f} of a fair share with {worst}"
            clause = _listed([first, *(f"{mean:.2f} with {name}" for name, mean in further)])
            rest = {n: mean for n, mean in least.items() if n not in low and n not in left}
            if rest:
                limit, whom = ("", *rest) if len(rest) == 1 else ("at least ", "the rest")
                clause += f", and {limit}{min(rest.values()):.2f} with {whom}"
            yield f"the least served client got {clause}"

    def _with_means(self, labels: Sequence[str]) -> str:
        """Return selectors with their means, as a list in a sentence."""
        means = {
            label: estimate.mean for label, estimate in self.scores.estimate(self.metric).items()
        }
        scale = self.metric.scale(means.values())
        written = {
            n: f"{mean / scale.size:,{scale.form}} {scale.unit}" for n, mean in means.items()
        }
        return _listed([f"{label} ({written[label].rstrip()})" for label in labels])


def _listed(names: Sequence[str]) -> str:
    """Return names or numbers as a list in a sentence."""
    if len(names) > _MOST_NAMES:
        return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} others"
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
