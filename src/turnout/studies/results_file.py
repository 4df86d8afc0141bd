"""``results/<name>.json``: the kept results of a paper or the arena, small enough for a repository.

Run folders are large and stay where they were made. Pages, verdicts and figures are made from
these files alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from turnout.core.files import write_atomically
from turnout.core.version import __version__, repeats
from turnout.results.settings import first_difference, tools
from turnout.studies.trials import ResultsError, Trials

#: Version of the format of results files.
FORMAT = 1


class ResultsFile:
    """``results/<preset>.json``: the results of each setting and length of a preset.

    Args:
        preset: Name of the preset.
        parts: Results by setting and by length, a multiple of the paper's.
        made_with: The versions of turnout and other packages that made them.
        plan: What decided about the runs before they ran, as plain data; empty without a plan.
    """

    def __init__(
        self,
        preset: str,
        parts: Mapping[tuple[str, int], Trials] | None = None,
        made_with: Mapping[str, Any] | None = None,
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        self.preset = preset
        self.parts = dict(parts or {})
        self.made_with = dict(made_with or {})
        self.plan = dict(plan or {})

    @classmethod
    def read(cls, path: Path, preset: str) -> Self:
        """Read a file.

        Args:
            path: The file.
            preset: Name of the preset that it must belong to.
        """
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            if table["format"] > FORMAT:
                raise ResultsError(f"{path} was written by a newer turnout: upgrade.")
            if table["preset"] != preset:
                raise ResultsError(f"{path} is about {table['preset']}, not about {preset}.")
            parts = {
                (part["setting"], part["times"]): Trials.from_table(part) for part in table["parts"]
            }
            made_with, plan = dict(table["made_with"]), dict(table.get("plan", {}))
        except ResultsError:
            raise
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ResultsError(
                f"{path} cannot be read ({reason}): restore it, or move it away and run turnout "
                f"reproduce {preset} again. Run folders are not touched."
            ) from error
        return cls(preset, parts, made_with, plan)

    def keep(self, path: Path, *, trains: bool) -> None:
        """Write results that were made just now, with the versions that made them.

        Args:
            path: The file.
            trains: Whether the runs trained a model.
        """
        self.made_with = tools(trains=trains)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write(path)

    def write(self, path: Path) -> None:
        """Write the file.

        Args:
            path: The file; its folder must exist.
        """
        parts = [
            {"setting": setting, "times": times, **results.table()}
            for (setting, times), results in self.parts.items()
        ]
        table = {
            "format": FORMAT,
            "preset": self.preset,
            "made_with": self.made_with,
            **({"plan": self.plan} if self.plan else {}),
            "parts": parts,
        }
        write_atomically(path, (json.dumps(table, allow_nan=False) + "\n").encode())

    def update(self, setting: str, times: int, results: Trials) -> None:
        """Add results; other schemes and seeds stay.

        Args:
            setting: Label of the setting.
            times: Length.
            results: The new results; may be empty.
        """
        if not results.schemes:
            return
        kept = self.parts.get((setting, times))
        schemes = dict(kept.schemes if kept else {})
        for label, new in results.schemes.items():
            schemes[label] = schemes[label].joined(new) if label in schemes else new
        order = [selector["label"] for selector in results.experiment["selectors"]]
        in_order = {label: schemes[label] for label in order if label in schemes}
        seeds = sorted({seed for scheme in in_order.values() for seed in scheme.seeds})
        part = Trials({**results.experiment, "seeds": seeds}, in_order, results.classes)
        self.parts[(setting, times)] = part

    def missing(
        self, setting: str, times: int, labels: Iterable[str], seeds: Iterable[int]
    ) -> dict[str, list[int]]:
        """Return the seeds that each scheme lacks; a complete scheme is not among them.

        Args:
            setting: Label of the setting.
            times: Length.
            labels: The schemes that are wanted.
            seeds: The seeds that are wanted.
        """
        kept = self.parts.get((setting, times))
        done = {label: scheme.seeds for label, scheme in kept.schemes.items()} if kept else {}
        wanted = tuple(seeds)
        lacking = {
            label: [seed for seed in wanted if seed not in done.get(label, ())] for label in labels
        }
        return {label: open_seeds for label, open_seeds in lacking.items() if open_seeds}

    def check(self, setting: str, times: int, experiment: Mapping[str, Any]) -> None:
        """Raise if the kept results follow another protocol.

        Args:
            setting: Label of the setting.
            times: Length.
            experiment: The protocol as it is now, as plain data.
        """
        kept = self.parts.get((setting, times))
        if kept is None:
            return
        wanted = {selector["label"] for selector in experiment["selectors"]}
        both = [label for label in kept.labels if label in wanted]
        there, here = _protocol(kept.experiment, both), _protocol(experiment, both)
        difference = first_difference(there, here, saved_in="the file", wanted_by="the preset")
        if difference is not None:
            raise ResultsError(
                f"the kept results of {self.preset} ({setting or 'its only setting'}) follow "
                f"another protocol: {difference}. Write to another file, or delete them."
            )

    def check_version(self) -> None:
        """Raise if a version of turnout with other numbers made the kept results."""
        made_with = self.made_with.get("turnout", __version__)
        if not repeats(made_with):
            raise ResultsError(
                f"the kept results of {self.preset} were made with turnout {made_with}, and this "
                f"is turnout {__version__}. Write to another file, or delete them."
            )


def by_seeds(lacking: Mapping[str, Sequence[int]]) -> dict[tuple[int, ...], list[str]]:
    """Group schemes that lack the same seeds: each group is one experiment.

    Args:
        lacking: The seeds that each scheme lacks.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for label, seeds in lacking.items():
        groups.setdefault(tuple(seeds), []).append(label)
    return groups


def _protocol(experiment: Mapping[str, Any], labels: Iterable[str]) -> dict[str, Any]:
    """Return what must not change: everything except name, seeds and other schemes."""
    selectors = {selector["label"]: selector for selector in experiment["selectors"]}
    fixed = {
        name: value
        for name, value in experiment.items()
        if name not in {"seeds", "selectors", "name"}
    }
    return fixed | {label: selectors.get(label) for label in labels}
