"""The how-to page: its commands, its Java and its Python are run against a server."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.docs.test_docs import blocks
from tests.serve.processes import servers

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "serve.md").read_text(encoding="utf-8")
PRINTED = "http://127.0.0.1:8717"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    path = tmp_path_factory.mktemp("howto")
    with servers(f"sqlite:///{path}/turnout.db", 1) as (server,):
        yield server.url


def ran(command, **more):
    return subprocess.run(command, capture_output=True, text=True, check=True, **more).stdout


def test_curl(url):
    script, *_ = [block for block in blocks(PAGE, "sh") if "curl" in block]
    said = ran(["sh", "-e", "-c", script.replace(PRINTED, url)])
    answers = [json.loads(line) for line in re.sub(r"\}\{", "}\n{", said).splitlines()]
    assert answers[0]["selector"] == "oort"
    assert answers[1]["new"] == 4
    assert len(answers[2]["clients"]) == 2
    assert [answer["state"] for answer in answers[3:]] == ["open", "closed"]


def test_curl_where_rounds_overlap(url):
    script = next(block for block in blocks(PAGE, "sh") if "/places" in block)
    names = f"URL={url}/federations\nJSON='Content-Type: application/json'\n"
    said = ran(["sh", "-e", "-c", names + script])
    _, _, first, report, second = map(json.loads, re.sub(r"\}\{", "}\n{", said).splitlines())
    assert sorted(first["clients"]) == ["a", "b", "c"]
    assert (report["new"], report["closed"], report["next_choice"]) == (1, [], 1)
    assert (second["choice"], second["clients"], second["model"]) == (1, ["a"], 0)


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java on this machine")
def test_java(url, tmp_path):
    (program,) = blocks(PAGE, "java")
    (tmp_path / "Rounds.java").write_text(program.replace(PRINTED, url), encoding="utf-8")
    said = ran(["java", "Rounds.java"], cwd=tmp_path)
    assert re.fullmatch(r'(round \d: "[abcd]","[abcd]"\n){3}', said)


def test_python(url):
    (program,) = blocks(PAGE, "python")
    here = {}
    exec(compile(program.replace(PRINTED, url), "serve.md", "exec"), here)
    rounds = httpx.get(f"{url}/federations/simulation/rounds").json()["rounds"]
    expected = here["here"]
    assert [one["round"] for one in rounds] == [4, 3, 2, 1, 0]
    for one in rounds:  # the choices were made there, and are those that were made here
        assert one["clients"] == expected.chosen_in(one["round"]).tolist()
        assert one["state"] == "closed"


def test_requests_that_offer_http2_keep_their_body(url):
    """As those of Java's client do, unless they are told not to."""
    offer = {
        "Connection": "Upgrade, HTTP2-Settings",
        "Upgrade": "h2c",
        "HTTP2-Settings": "AAEAAEAA",
    }
    body = {"name": "offered", "selector": "random", "cohort_size": 1}
    answer = httpx.post(f"{url}/federations", json=body, headers=offer)
    assert answer.status_code == 201
