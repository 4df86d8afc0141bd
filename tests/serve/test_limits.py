"""What a request may cost before it is known whose it is: bodies, wrong tokens, slow senders."""

import contextlib
import logging
import socket
import threading
import time

import pytest
import uvicorn

from tests.serve.conftest import LOCAL
from turnout.serve import auth, create_app, protocol
from turnout.serve.auth import is_loopback, make_token
from turnout.serve.database import writing
from turnout.serve.logs import CALLER


@pytest.fixture
def token(engine):
    with writing(engine) as connection:
        return make_token(connection, "only", "admin", None)


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("sent", [{}, bearer("turnout_wrong")])
def test_the_body_of_a_request_without_a_good_token_is_not_read(http, demo, token, sent):
    """As no part of the body is asked for, the server keeps none of it."""
    answers = []

    async def receive():
        raise AssertionError("the body was read")

    async def send(message):
        answers.append(message)

    headers = {"host": "127.0.0.1:8717", "content-type": "application/json"} | sent
    for method, path in [
        ("PUT", f"{demo}/clients"), ("PUT", f"{demo}/state"), ("POST", "/federations"),
        ("POST", f"{demo}/rounds"), ("POST", f"{demo}/rounds/0/outcomes"),
        ("POST", f"{demo}/poll"), ("POST", f"{demo}/tokens"), ("POST", f"{demo}/clients/withdraw"),
    ]:  # fmt: skip
        scope = {
            "type": "http", "method": method, "path": path, "query_string": b"",
            "client": LOCAL["client"], "server": ("127.0.0.1", 8717), "scheme": "http",
            "headers": [(k.lower().encode(), v.encode()) for k, v in headers.items()],
        }  # fmt: skip
        answers.clear()
        http.portal.call(http.app, scope, receive, send)
        assert answers[0]["status"] == 401


def test_bodies_that_name_no_clients_are_small(http, demo):
    long = " " * 2**17
    definition = '{"name": "new", "selector": "random", "cohort_size": 1}'
    clients = '{"clients": ["a"]}'
    json = {"Content-Type": "application/json"}
    refused = http.post("/federations", content=definition + long, headers=json)
    assert (refused.status_code, refused.json()["field"]) == (413, "body")
    assert "65536 bytes" in refused.json()["detail"]
    assert http.post(f"{demo}/tokens", content=long, headers=json).status_code == 413
    assert http.put(f"{demo}/clients", content=clients + long, headers=json).status_code == 200
    assert http.post("/federations", content=definition, headers=json).status_code == 201


def test_an_address_that_sends_wrong_tokens_has_to_wait(http, demo, token, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(auth.time, "monotonic", lambda: now[0])
    assert http.get(demo, headers=bearer(token)).status_code == 200

    def wrong(n):
        return [http.get(demo, headers=bearer(f"turnout_{i}")) for i in range(n)]

    assert {answer.status_code for answer in wrong(20)} == {401}
    assert http.get(demo).status_code == 401  # without a token: it is told how
    now[0] = 50.5
    last = wrong(1)[0]
    assert (last.status_code, last.json()["type"]) == (429, "urn:turnout:too-many-tokens")
    assert last.headers["Retry-After"] == "10"
    assert http.get(demo, headers=bearer(token)).status_code == 200  # a caller that is known
    now[0] = 60.5
    assert wrong(1)[0].status_code == 401


def test_few_addresses_are_remembered(monkeypatch):
    monkeypatch.setattr(auth, "_MAX_ADDRESSES", 3)
    counted = auth.WrongTokens()
    for i in range(10):
        counted.note(f"10.0.0.{i}", "x", is_right=False)
    assert list(counted._wrong) == ["10.0.0.7", "10.0.0.8", "10.0.0.9"]


@pytest.fixture
def address(engine, monkeypatch):
    """Where a server listens that waits for a request for a tenth of a second."""
    monkeypatch.setattr(protocol, "ARRIVAL_S", 0.1)
    app = create_app(engine, no_auth=True)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        config = {"log_level": "warning", "ws": "none", "timeout_keep_alive": 1}
        server = uvicorn.Server(uvicorn.Config(app, http=protocol.TimedProtocol, **config))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        while not server.started:
            thread.join(0.01)
        yield sock.getsockname()
        server.should_exit = True
        thread.join()


HEAD = b"PUT /federations/demo/clients HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\n"
LARGE = (
    b"PUT /federations/demo/clients HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/json\r\nContent-Length: 4194304\r\n\r\n"
)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost: ",
        HEAD + b"Content-Type: application/json\r\n\r\n{",
        HEAD + b"Authorization: Bearer turnout_wrong\r\n\r\n{",
        b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /hea",
    ],
    ids=["nothing", "headers", "body", "rejected body", "ignored body", "second request"],
)
def test_a_request_that_does_not_arrive_is_given_up(address, sent):
    with socket.create_connection(address, timeout=60.0) as connection:
        connection.sendall(sent)
        while connection.recv(65536):  # a response, if there is one; then the end
            pass


def test_an_address_leaves_connections_to_others(address, monkeypatch):
    """A proxy on this machine stands for many."""
    monkeypatch.setattr(protocol, "ARRIVAL_S", 60.0)
    monkeypatch.setattr(protocol, "_MOST_PER_ADDRESS", 3)
    monkeypatch.setattr(protocol, "is_loopback", lambda host: host == "127.0.0.1")

    def connected(host):
        made = socket.create_connection(address, timeout=60.0, source_address=(host, 0))
        stack.enter_context(made)
        return made

    def answers(connection):
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return connection.recv(65536).startswith(b"HTTP/1.1 200")

    with contextlib.ExitStack() as stack:
        first = [connected("127.0.0.2") for _ in range(3)]
        assert all(map(answers, first))
        assert connected("127.0.0.2").recv(1) == b""  # closed
        assert all(answers(connected(host)) for host in ["127.0.0.3", *["127.0.0.1"] * 4])
        first.pop().close()
        until = time.monotonic() + 60.0
        while not is_open(connected("127.0.0.2")):  # the server has not seen yet that one is gone
            assert time.monotonic() < until


def is_open(connection):
    connection.settimeout(0.2)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True


def test_what_comes_behind_a_request_is_not_logged_as_its_caller_s(address):
    seen = []
    log = logging.getLogger("uvicorn.error")
    handler = logging.Handler()
    handler.emit = lambda record: seen.append((record.getMessage(), CALLER.get(None)))
    log.addHandler(handler)
    try:
        with socket.create_connection(address, timeout=60.0) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n\0garbage\r\n\r\n")
            while connection.recv(65536):
                pass
    finally:
        log.removeHandler(handler)
    assert seen == [("Invalid HTTP request received.", None)]


def test_time_in_which_the_server_does_not_read_does_not_count(address, monkeypatch):
    """A busy server is not the caller's fault; the body is larger than what is read in advance."""
    asked, go = threading.Event(), threading.Event()

    def slow(request):
        asked.set()
        assert go.wait(60.0)
        return auth.Grant("admin")

    monkeypatch.setattr(auth, "_grant", slow)
    monkeypatch.setattr(protocol, "_BYTES_PER_S", 2**40)
    body = b" " * 2**22
    with socket.create_connection(address, timeout=60.0) as connection:
        sender = threading.Thread(target=connection.sendall, args=(LARGE + body,))
        sender.start()
        assert asked.wait(60.0)
        go.wait(0.5)  # longer than a request may take to arrive
        go.set()
        assert connection.recv(65536).startswith(b"HTTP/1.1 422")
        sender.join()


def test_a_request_that_arrives_in_pieces_is_answered(address):
    """A connection without a request is kept; every kilobyte gives the request more time."""
    with socket.create_connection(address, timeout=60.0) as connection:
        for _ in range(3):
            for part in (b"GET /hea", b"lth HTTP/1.1\r\n", b"Host: 127.0.0.1\r\n\r\n"):
                connection.sendall(part)
            said = connection.recv(65536)
            while not said.endswith(b"}"):  # the body may come behind the head
                said += connection.recv(65536)
            assert said.startswith(b"HTTP/1.1 200")
            threading.Event().wait(0.3)  # longer than a request may take


def test_ipv4_on_a_socket_of_ipv6_is_this_machine_as_well():
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("::ffff:10.0.0.1")
    assert not is_loopback("10.0.0.1")
