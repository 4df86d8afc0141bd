import pytest

from tests.live.ticking import Ticking


@pytest.fixture
def ticking(monkeypatch):
    """A clock that moves only when somebody sleeps."""
    return Ticking.installed(monkeypatch)
