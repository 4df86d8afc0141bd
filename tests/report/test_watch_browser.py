"""The page of ``turnout watch`` in a real Chromium, while a run is written."""

import threading

import pytest

from tests.live.ticking import Ticking
from tests.report.browser import DRAWN, FITS, chromium, complaints, wait
from tests.report.live_folders import HOSTILE, LiveFolder
from turnout.report.watch import WatchServer

CLIENTS = "(document.querySelector('#run-status')?.data?.[0].z ?? [])"
STATE = "document.querySelector('.state').textContent"


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def ticking(monkeypatch):
    return Ticking.installed(monkeypatch)


@pytest.fixture
def server(tmp_path):
    with WatchServer(tmp_path / "runs", stalled_s=1e6) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def page(browser, server):
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(60_000)
    page.goto(server.address)
    wait(page, "document.documentElement?.dataset.ready === 'true'")
    yield page
    page.close()


def says(page, words):
    wait(page, f"{STATE}.includes({words!r})")


def test_the_page_follows_a_run_by_itself(page, tmp_path, ticking):
    says(page, "does not exist yet")
    live = LiveFolder(tmp_path / "runs", n_rounds=6, names=[HOSTILE]).play(5)
    says(page, "5 of 6 rounds are done")
    wait(page, f"{CLIENTS}.length === 12")
    chosen = live.choose()
    wait(page, "document.querySelectorAll('.cohort li').length > 0")
    assert page.locator(".cohort li").count() == len(chosen.ids)
    ended = live.train(chosen)
    wait(page, "document.querySelectorAll('.cohort li.quiet').length < 4")
    assert page.locator("#run-status .ytick text").filter(has_text="<script>").count() == 1
    assert page.title() == "runs · turnout watch"  # the name of a client ran no script
    for drawn, width, height in page.evaluate(DRAWN).values():
        assert drawn > 0
        assert width > 250
        assert height > 100
    page.evaluate("document.querySelector('#run-answers').kept = true")
    live.record(ended)
    live.finish()
    says(page, "Ended")
    wait(page, "document.querySelector('#run-answers').data[0].y.length === 6")
    assert page.evaluate("document.querySelector('#run-answers').kept")  # with its zoom
    page.set_viewport_size({"width": 400, "height": 800})
    wait(page, "document.documentElement.scrollWidth <= 400")  # drawn again
    hosts = {request.url.split("/")[2] for request in page.requests() if "://" in request.url}
    assert len(hosts) == 1  # nothing but loopback was asked
    assert complaints(page) == []


def test_what_was_scrolled_stays_and_a_stopped_watch_is_told(page, server, tmp_path, ticking):
    live = LiveFolder(tmp_path / "runs", n_rounds=400).play(3)
    says(page, "3 of 400 rounds are done")
    page.set_viewport_size({"width": 400, "height": 800})
    scroll = "document.querySelector('.scroll[aria-label=Clients]')"
    page.evaluate(f"{scroll}.scrollLeft = 90")
    live.play(1)
    says(page, "4 of 400 rounds are done")
    assert page.evaluate(f"{scroll}.scrollLeft") == 90
    assert page.locator("#lost").is_hidden()
    server.shutdown()
    server.server_close()
    page.locator("#lost").wait_for(state="visible")


def test_the_full_report_is_one_press_away(page, tmp_path, ticking):
    LiveFolder(tmp_path / "runs", n_rounds=4).play(4).finish()
    says(page, "Ended")
    page.click("text=Full report")
    wait(page, "document.documentElement?.dataset.ready === 'true'")
    assert page.evaluate("document.querySelector('#w0-live-0-status').data[0].z.length") == 12
    assert page.evaluate(FITS)
    assert complaints(page) == []
