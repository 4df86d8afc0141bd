import pytest


@pytest.fixture
def ticking(monkeypatch):
    """A clock that moves only when somebody sleeps."""
    from turnout.session import clock

    class Ticking:
        at = 1000.0

        def now(self):
            return self.at

        def wall(self):
            return 1.7e9 + self.at

        def sleep(self, seconds):
            assert seconds >= 0.0
            self.at += seconds

    ticks = Ticking()
    for name in ("now", "wall", "sleep"):
        monkeypatch.setattr(clock, name, getattr(ticks, name))
    return ticks
