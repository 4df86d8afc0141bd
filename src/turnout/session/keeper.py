"""The files of a live run: a checkpoint to go on from and records to report on, if wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnout.errors import OutputError, StateFileError
from turnout.experiment.codec import encode
from turnout.session.checkpoint import (
    Checkpoint,
    check_settings,
    read_checkpoint,
    write_checkpoint,
)
from turnout.session.oversight import about
from turnout.session.post import log
from turnout.session.records import Records
from turnout.session.round import Ended
from turnout.session.session import Session
from turnout.storage import UNREADABLE
from turnout.types import Array


class Keeper:
    """Keeps what a session does.

    Args:
        session: What chooses and learns.
        kind: The framework, as checkpoint and records call it.
        n_rounds: How many rounds there will be.
        versions: Versions of the framework, for the records.
    """

    def __init__(
        self, session: Session, kind: str, n_rounds: int, versions: Mapping[str, str]
    ) -> None:
        self.session = session
        self._kind = f"turnout-{kind}"
        self._identity: dict[str, Any] = {}  # what a checkpoint belongs to
        settings, world, selector = session.settings, session.world, session.chooser.selector
        config = settings.config(kind, selector, session.chooser.policy, world, n_rounds)
        self._about = about(config)
        #: Writes the run folder; None if none is wanted.
        self.records: Records | None = None
        if settings.records is not None:
            classes = None if world is None else world.classes
            rate = selector.guaranteed_rate()
            self.records = Records(settings.records, config, classes, rate, versions)

    def begin(self, host: Mapping[str, Any], restore: Callable[[Checkpoint], None]) -> int:
        """Start afresh, or go on from the checkpoint if there is one; return the rounds done.

        Args:
            host: What the framework adds to the settings that a checkpoint belongs to.
            restore: Takes back what the framework has saved.
        """
        settings, n_done = self.session.settings, 0
        self._identity = settings.identity(self.session.chooser.selector, host)
        path = settings.checkpoint
        if path is not None and path.exists():
            n_done = self._restore(path, restore)
        elif path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self.session.start(self._about)
        if self.records is not None:
            self.records.open(self.session.journal, resumed=n_done > 0)
        return n_done

    def save(self, host: Mapping[str, Any], host_arrays: Mapping[str, Array]) -> None:
        """Write the checkpoint.

        Args:
            host: What the framework keeps, plain.
            host_arrays: The same in arrays, by names without a slash.

        Raises:
            OutputError: It cannot be written; the one before is as it was.
        """
        path = self.session.settings.checkpoint
        if path is None:
            return
        with self.session.spans.part("save"):
            state = self.session.state(self._identity)
            whole = replace(state, host=host, host_arrays=host_arrays)
            try:
                write_checkpoint(path, whole, self._kind)
            except OSError as error:
                raise OutputError(
                    f"{path} cannot be written: {error.strerror or error}. The checkpoint before "
                    "it is whole: make room, or make the folder writable, and start again."
                ) from error

    def note(self, ended: Ended) -> None:
        """Write down who did what in a round, before ``save``: what is not saved is written again.

        Args:
            ended: The last round.
        """
        if self.records is not None:
            self.records.name(ended, self.session.members.roster)

    def record(self) -> None:
        """Write the last round's numbers; raise if too many in a row had too few answers."""
        self.write()
        self.session.spans.finish()
        quorum = self.session.settings.quorum
        quorum.check_rounds(self.session.journal.n_last_below(quorum.min_answers))

    def write(self) -> None:
        """Write the last round's numbers to the records, again if they have changed."""
        if self.records is not None:
            self.records.add(self.session.journal)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let followers end with the block; write down what has stopped the run, if anything."""
        try:
            yield
        except BaseException as error:  # an operator who stops it is a reason, too
            if self.records is not None:
                self.records.fail(self.session.journal, error)
            raise
        finally:
            self.session.end()

    def finish(self) -> None:
        """Write the end of the run."""
        if self.records is not None:
            self.records.finish(self.session.journal)

    def _restore(self, path: Path, restore: Callable[[Checkpoint], None]) -> int:
        """Go back to the end of the last round that was saved."""
        saved = read_checkpoint(path, self._kind)
        try:
            selector = self.session.chooser.selector
            younger = encode(selector.default_parameters())  # than the file, perhaps
            parameters = {**younger, **saved.settings["parameters"]}
            settings = {**saved.settings, "parameters": parameters}
            change = check_settings(path, settings, self._identity)
            if change is not None:
                log.warning("from now on other settings than before: %s", change)
            self.session.load(saved)
            restore(saved)
        except StateFileError as error:
            raise StateFileError(f"{path}: {error}") from error
        except UNREADABLE as error:
            raise StateFileError(
                f"{path} is damaged ({type(error).__name__}: {error}); delete it to start again."
            ) from error
        log.info("going on after round %d, saved in %s", saved.rounds_done, path)
        return saved.rounds_done
