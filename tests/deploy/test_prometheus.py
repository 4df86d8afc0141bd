"""The rules and the dashboard in a real Prometheus, where it is installed."""

import json
import shutil
import subprocess
import time
import urllib.request

import httpx
import pytest
import yaml

from tests.deploy.test_deploy import DEPLOY, ROOT, RULE_LIST, load
from tests.serve.conftest import create
from tests.serve.processes import PATIENCE_S, Server, free_port
from tests.serve.test_rounds import opened, report

pytestmark = [
    pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed"),
    pytest.mark.slow,
]
FAILED = 'turnout_chosen_total{run="r",status="failed"}'
COMPLETED = 'turnout_chosen_total{run="r",status="completed"}'
NOT_KNOWN = 'turnout_request_seconds_count{instance="a",status="401"}'
AWAY = 'turnout_request_seconds_count{instance="a",status="503"}'

#: For each rule series by minutes, once with what it is for and once without.
CASES = {
    "TurnoutDown": ({'up{job="turnout",instance="a"}': "0x90"}, "1x90"),
    "TurnoutErrors": ({AWAY: "0+1x90"}, "7x90"),
    "TurnoutRoundHangs": ({'turnout_open_round_seconds{run="r"}': "7201x90"}, "7200x90"),
    "TurnoutVoidRounds": ({'turnout_void_rounds_total{run="r"}': "0+1x90"}, "7x90"),
    "TurnoutSilentClients": ({FAILED: "0+4x90", COMPLETED: "0+6x90"}, "0+1x90"),
    "TurnoutShortRounds": ({'turnout_short_rounds_total{run="r"}': "0+1x90"}, "7x90"),
    "TurnoutAlert": ({'turnout_alerts_total{run="r",kind="model"}': "0x80 1x10"}, "1x90"),
    "TurnoutWrongTokens": ({NOT_KNOWN: "0x80 30x10"}, "30x90"),
    "TurnoutClock": ({'turnout_clock_seconds{instance="a"}': "3600+60x90"}, "20+60x90"),
    "TurnoutMemory": ({'process_resident_memory_bytes{job="turnout"}': "3000000000x90"}, "1e9x90"),
}


def test_every_rule_is_tried():
    assert set(CASES) == {rule["alert"] for rule in RULE_LIST}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_wrong", [True, False], ids=["wrong", "well"])
def test_a_rule_fires_when_it_should_and_only_then(name, is_wrong, tmp_path):
    series, harmless = CASES[name]
    first = next(iter(series))
    told = series if is_wrong else series | {first: harmless}
    firing = f'count(ALERTS{{alertname="{name}",alertstate="firing"}})'
    test = {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in told.items()],
        "promql_expr_test": [
            {"expr": firing, "eval_time": "85m", "exp_samples": [{"value": 1}] if is_wrong else []}
        ],
    }
    rules = str(DEPLOY / "alerts.yml")
    content = {"rule_files": [rules], "evaluation_interval": "1m", "tests": [test]}
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(content))
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """Prometheus over a server with rounds, by the configuration of ``deploy`` but for places."""
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "tokens").write_text(f"boss admin {'b' * 32}\nscraper read {'s' * 32}\n")
    options = ("--token-file", str(folder / "tokens"))
    server = Server(f"sqlite:///{folder}/t.db", *options, no_auth=False, stderr=None)
    boss = {"Authorization": f"Bearer {'b' * 32}"}
    with httpx.Client(base_url=server.url, headers=boss, timeout=PATIENCE_S) as http:
        server.wait()
        (config,) = load("prometheus.yml")
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        (job,) = config["scrape_configs"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{server.port}"]}]
        (folder / "scraper").write_text("s" * 32)
        job["authorization"]["credentials_file"] = str(folder / "scraper")
        config["rule_files"] = [str(DEPLOY / "alerts.yml")]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        subprocess.run(["promtool", "check", "config", folder / "prometheus.yml"], check=True)
        port, path = free_port(), create(http, "phones")
        command = ["prometheus", f"--config.file={folder}/prometheus.yml"]
        command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            until, t = time.monotonic() + PATIENCE_S, 0
            while len(asked(port, "turnout_rounds_total[5m]")) == 0 or t < 12:
                assert time.monotonic() < until
                report(http, path, t, opened(http, path)["clients"])
                t += 1
                time.sleep(0.5)
            yield port
            process.terminate()
    server.kill()


def asked(port, query):
    """Return what Prometheus answers to a query."""
    url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.request.quote(query)}"
    try:
        with urllib.request.urlopen(url, timeout=60.0) as answer:
            return json.load(answer)["data"]["result"]
    except urllib.request.HTTPError as error:
        raise AssertionError(error.read()) from error
    except OSError:  # it is starting
        return []


def panels(board):
    for panel in board.get("panels", []):
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", []))
        yield from panels(panel)


PANELS = sorted(panels(json.loads((ROOT / "examples/grafana/turnout.json").read_text())))


@pytest.mark.parametrize(("title", "query"), PANELS)
def test_prometheus_has_an_answer_for_every_panel(scraped, title, query):
    query = query.replace("$__rate_interval", "1m").replace("$run", "phones")
    until = time.monotonic() + 30.0
    while not (found := asked(scraped, query)) and title != "Model":  # a server sees no models
        assert time.monotonic() < until, query
        time.sleep(0.5)
    assert title == "Model" or all(one["value"][1] != "" for one in found)


def test_no_alert_fires_where_all_is_well(scraped):
    assert asked(scraped, "up") != []
    assert asked(scraped, 'ALERTS{alertstate="firing"}') == []
