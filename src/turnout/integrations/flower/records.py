"""The run folder of a Flower run, in the format that ``turnout report`` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from turnout.experiment.cell import cell_folder
from turnout.experiment.summary import curves, summarize
from turnout.integrations.flower import clock
from turnout.integrations.flower.journal import Journal
from turnout.runs import files
from turnout.runs.files import FolderError
from turnout.runs.versions import versions
from turnout.storage import write_atomically, write_npz
from turnout.types import IntArray

__all__ = ["Records"]

#: The choices are written again after so many seconds, and at the end.
_FLUSH_SECONDS = 5.0


class Records:
    """Writes a cell of kind "flower": one line per round, choices now and then, a summary last."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        config: dict[str, Any],
        classes: IntArray | None = None,
    ) -> None:
        self.path = cell_folder(Path(root), config["label"], config["seed"])
        self._config = config
        self._classes = {} if classes is None or not classes.any() else {"class_of": classes}
        self._started = clock.now()
        self._flushed = self._started - _FLUSH_SECONDS
        self._n_lines = self._last_at = 0

    def open(self, journal: Journal, *, resumed: bool) -> None:
        """Make the folder, with the rounds that are done already."""
        log = self.path / files.ROUNDS
        if not resumed and log.exists() and log.stat().st_size:
            raise FolderError(
                f"{self.path} already holds a run: delete it, or give another folder or label; to "
                "go on with that run, give its checkpoint."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / files.SUMMARY).unlink(missing_ok=True)
        files.write_json(self.path / files.VERSIONS, versions() | _flower_version())
        self._write_config(journal)
        lines = [_line(journal, t) for t in range(journal.n_rounds)]
        write_atomically(log, b"".join(lines))
        self._n_lines = len(lines)
        self._last_at = sum(len(line) for line in lines[:-1])  # bytes before the last line

    def add(self, journal: Journal) -> None:
        """Write the last round; if it was written already, in its place."""
        if self._config["n_clients"] != journal.n_clients:
            self._write_config(journal)
        with (self.path / files.ROUNDS).open("rb+") as log:
            if journal.n_rounds > self._n_lines:
                self._last_at = log.seek(0, os.SEEK_END)
            log.seek(self._last_at)
            log.write(_line(journal, journal.n_rounds - 1))
            log.truncate()
        self._n_lines = journal.n_rounds
        if clock.now() - self._flushed >= _FLUSH_SECONDS:
            self._write_choices(journal)

    def finish(self, journal: Journal) -> None:
        """Write the end; the summary makes the run complete."""
        if not journal.n_rounds:
            return
        run = journal.run
        made = curves(run, np.full(run.n_rounds, np.nan), None)
        self._write_choices(journal, {name: made[name] for name in made if name != "regret"})
        summary = summarize(run, made, clock.now() - self._started)
        lines = [journal.line(t) for t in range(journal.n_rounds)]
        for name in ("accuracy", "loss"):
            known = [line[name] for line in lines if line.get(name) is not None]
            summary |= {name: known[-1]} if known else {}
        files.write_json(self.path / files.SUMMARY, summary)

    def _write_config(self, journal: Journal) -> None:
        self._config["n_clients"] = journal.n_clients
        files.write_json(self.path / files.CONFIG, self._config)

    def _write_choices(self, journal: Journal, more: dict[str, Any] | None = None) -> None:
        columns = journal.columns() | self._classes | (more or {})
        write_npz(self.path / files.SELECTIONS, columns)
        self._flushed = clock.now()


def _line(journal: Journal, t: int) -> bytes:
    return (json.dumps(journal.line(t), allow_nan=False) + "\n").encode()


def _flower_version() -> dict[str, str]:
    import flwr

    return {"flwr": flwr.__version__}
