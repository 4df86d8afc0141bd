import pytest

from tests.live.ticking import Ticking


@pytest.fixture
def ticking(monkeypatch):
    """A clock that moves only when somebody sleeps."""
    return Ticking.installed(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def _decomposers():
    """What NVFlare's server does when it starts."""
    from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

    nvflare_fobs_initialize()
