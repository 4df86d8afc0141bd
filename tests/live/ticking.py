"""A clock that moves only when somebody sleeps."""

from turnout.live.transport import clock


class Ticking:
    at = 1000.0
    set_by = 0.0  #: seconds by which somebody has moved the computer's clock

    def now(self):
        return self.at

    def wall(self):
        return 1.7e9 + self.at + self.set_by

    def sleep(self, seconds):
        assert seconds >= 0.0
        self.at += seconds

    @classmethod
    def installed(cls, monkeypatch):
        """Return one that live runs look at from now on."""
        ticks = cls()
        for name in ("now", "wall", "sleep"):
            monkeypatch.setattr(clock, name, getattr(ticks, name))
        return ticks
