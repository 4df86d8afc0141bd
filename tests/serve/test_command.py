"""``turnout serve`` as a command: help, tokens, what it refuses, TLS."""

import ssl
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from tests.serve.processes import Server
from turnout.cli import app
from turnout.core.names import NO_PLUGINS_VARIABLE

#: What ``turnout serve token`` does.
CREATE_TOKEN = "import turnout.serve; turnout.serve.make_token"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the command on a database of its own."""
    monkeypatch.setenv(NO_PLUGINS_VARIABLE, "")  # what the command sets is undone

    def run(*arguments, code=0):
        database = ["--database", f"sqlite:///{tmp_path}/turnout.db"]
        result = CliRunner().invoke(app, ["serve", *database, *arguments])
        assert result.exit_code == code, result.output
        return result.output

    return run


def test_an_option_of_the_server_behind_a_command_says_where_it_belongs():
    result = CliRunner().invoke(app, ["serve", "tokens", "--database", "sqlite:///x.db"])
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert "It belongs before 'tokens': " in said
    assert "serve --database ... tokens." in said
    other = CliRunner().invoke(app, ["serve", "tokens", "--nothing"])
    assert "belongs" not in other.output


def test_tokens_are_made_listed_and_revoked(run):
    token = run("token", "trainer", "--scope", "select").strip()
    assert token.startswith("turnout_")
    listed = run("tokens")
    assert "trainer" in listed
    assert "select" in listed
    assert token not in listed
    assert "exists: choose another" in run("token", "trainer", code=2)
    assert "no federation 'none'" in run("token", "a", "--federation", "none", code=2)
    assert "scope must be one of" in run("token", "a", "--scope", "root", code=2)
    assert run("revoke", "trainer") == "Revoked trainer.\n"
    assert "there is no token" in run("revoke", "trainer", code=2)
    assert "has a token, or had one" in run("--no-auth", code=2)


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a\nb", "a\n", "a\x1b[31m", "Trainer", "a" * 65, ".a"]
)
def test_the_name_of_a_token_is_checked(run, name):
    output = " ".join(run("token", name, code=2).split())
    assert "name must not be" in output
    assert "a name has up to 64 of a-z, 0-9" in output
    assert "\x1b" not in output
    assert run("tokens").count("all") == 0  # none was made


def test_what_is_unsafe_or_impossible_is_refused_before_a_port_is_opened(run):
    assert "no token is configured" in run(code=2)
    assert "no token is configured" in run("--host", "0.0.0.0", code=2)
    assert "for this machine only" in run("--no-auth", "--host", "0.0.0.0", code=2)
    assert "belong together" in run("--key", "k.pem", code=2)
    assert "check --database" in run("--database", "sqlite:////none/x.db", code=2)


def test_help_has_an_example():
    result = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"})
    assert "turnout serve --database sqlite:///phones.db" in result.output


@pytest.mark.parametrize("use", ["from turnout.serve import create_app", CREATE_TOKEN])
def test_without_the_extra_it_says_what_to_install(use, tmp_path):
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from turnout.core.errors import MissingExtra\n"
        f"try:\n    {use}\n"
        "except MissingExtra as error:\n    print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path)
    assert said == "the server needs fastapi: pip install 'turnout[serve]'\n"


def test_the_client_needs_httpx_only():
    """``turnout[remote]`` has neither the framework nor the database of the server."""
    code = (
        "import sys\n"
        "for name in ('fastapi', 'starlette', 'pydantic', 'sqlalchemy', 'alembic', 'uvicorn'):\n"
        "    sys.modules[name] = None\n"
        "from turnout.serve.client import Remote\n"
        "remote = Remote(url='http://127.0.0.1:1', federation='x', selector='e3cs', patience_s=0)\n"
        "print(remote.polls, [name for name in sys.modules if name.startswith('turnout.serve')])\n"
        "try:\n    remote.reset(3)\n"
        "except Exception as error:\n    print(error)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    loaded, error = said.splitlines()
    assert loaded == "False ['turnout.serve', 'turnout.serve.client']"
    assert "does not respond" in error


@pytest.mark.slow
def test_tls_by_certificate(tmp_path):
    files = {name: tmp_path / f"{name}.pem" for name in ("key", "certificate")}
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", files["key"],
         "-out", files["certificate"]],
        check=True, capture_output=True,
    )  # fmt: skip
    options = [text for name, path in files.items() for text in (f"--{name}", str(path))]
    trusted = ssl.create_default_context(cafile=files["certificate"])
    server = Server(f"sqlite:///{tmp_path}/turnout.db", *options, verify=trusted)
    try:
        assert server.url.startswith("https://")
        assert server.wait().json()["status"] == "ready"
        plain = server.url.replace("https", "http")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{plain}/health")
    finally:
        server.kill()
