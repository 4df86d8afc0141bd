"""A guarantee for the clients of a live run, whoever chooses."""

from __future__ import annotations

from dataclasses import dataclass

from turnout.registry import make, name_of
from turnout.selector import Selector


@dataclass(frozen=True, slots=True)
class Guard:
    """A floor and a cap to put around a selector; see ``turnout.selectors.Guarded``.

    Args:
        floor: Share of its fair share that each client gets at least, from 0 to 1.
        cap: Multiple of its fair share that each client gets at most, at least 1; infinity for
            no cap.

    >>> Guard(floor=0.5, cap=2.0).around(make("round-robin"))
    Guarded(inner='round-robin', floor=0.5, cap=2.0, inner_parameters={})
    """

    floor: float = 0.5
    cap: float = 2.0

    def around(self, selector: Selector) -> Selector:
        """Return a guarded selector like this one, without state.

        Args:
            selector: Its class must be importable by its name, as it is made anew.
        """
        return make(
            "guarded",
            inner=name_of(type(selector)),
            floor=self.floor,
            cap=self.cap,
            inner_parameters=selector.parameters,
        )
