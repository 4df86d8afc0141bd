"""The page in a real Chromium: it follows rounds, runs no text of others, and asks for a token."""

import socket
import threading

import pytest
import uvicorn

from tests.report.browser import TIMEOUT_MS, chromium
from tests.serve.conftest import create
from turnout.serve import create_app
from turnout.serve.auth import make_token
from turnout.serve.database import writing

ATTACK = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def url(engine):
    """The address of a server in a thread."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        app = create_app(engine, no_auth=True)
        config = uvicorn.Config(app, log_level="warning", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        yield "http://{}:{}".format(*sock.getsockname())
        server.should_exit = True
        thread.join()


@pytest.fixture
def visit(browser):
    """Opens pages, and closes them when they have been asked for complaints."""
    contexts, complaints = [], []

    def visit(url, width=1440):
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}))
        page = contexts[-1].new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text))
        page.goto(url)
        page.wait_for_function("() => document.documentElement?.dataset.ready === 'true'")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert [text for text in complaints if "401" not in text] == []


def play(http, path, t, status="completed"):
    clients = http.post(f"{path}/rounds").json()["clients"]
    outcomes = [{"client": c, "seconds": 2.0, "status": status} for c in clients[:1]]
    outcomes += [{"client": c, "seconds": 2.0} for c in clients[1:]]
    http.post(f"{path}/rounds/{t}/outcomes", json={"outcomes": outcomes})


@pytest.mark.parametrize("width", [1440, 400])
def test_the_page_follows_rounds(url, http, demo, visit, width):
    create(http, name="other", n_clients=0)
    for t in range(3):
        play(http, demo, t, "failed")
    page = visit(url, width)
    assert page.inner_text("nav").split() == ["demo", "other"]
    rows = page.locator("#rounds tr")
    assert rows.count() == 3
    assert "2" in rows.first.inner_text()
    assert rows.first.locator("td.wide").get_attribute("title") == "4 completed, 1 failed"
    assert rows.first.locator("rect").count() == 2
    tiles = dict(zip(page.locator("dt").all_inner_texts(), page.locator("dd").all_inner_texts(),
                     strict=True))  # fmt: skip
    assert (tiles["clients"], tiles["rounds"], tiles["open round"]) == ("10", "3", "none")
    assert page.locator("#chart rect").count() == 11
    assert page.locator("#least li").count() == 10
    play(http, demo, 3)
    page.wait_for_function("() => document.querySelectorAll('#rounds tr').length === 4")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.click("text=other")
    page.wait_for_function("() => document.querySelectorAll('#rounds tr').length === 0")
    assert page.is_visible("text=No round has been opened yet.")
    assert page.is_visible("text=No client has been selected yet.")


def test_texts_of_others_are_texts(url, http, visit):
    path = create(http, n_clients=0)
    http.put(f"{path}/clients", json={"clients": [ATTACK, "b"]})
    play(http, path, 0)
    page = visit(url)
    assert ATTACK in page.inner_text("#most")
    assert page.title() == "turnout serve"
    assert page.locator("img").count() == 0
    policy = http.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_token_is_asked_for_and_kept_in_the_tab_only(url, http, engine, demo, visit):
    with writing(engine) as connection:
        token = make_token(connection, "viewer", "read", "demo")
    page = visit(url)
    assert page.is_visible("#login")
    assert not page.is_visible("#federation")
    page.fill("#token", "turnout_wrong")
    page.press("#token", "Enter")
    page.wait_for_function(
        "() => document.getElementById('refused').textContent.includes('not known')"
    )
    page.fill("#token", token)
    page.click("text=Show")
    page.wait_for_selector("#tiles div")
    assert not page.is_visible("#login")
    assert page.evaluate("localStorage.length") == 0
    assert page.inner_text("nav") == "demo"
