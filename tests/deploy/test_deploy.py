"""The files of ``deploy/``: what they name exists, what they start works, and they are closed.

No container engine runs here. The commands of the container run as processes, and the files are
held against rules of hadolint, kubeconform and compose that matter for them.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.main import get_group

from tests.serve.conftest import client_of, create, empty, engine, portal  # noqa: F401
from tests.serve.processes import PATIENCE_S, free_port
from tests.serve.test_rounds import opened, outcomes, report
from turnout import __version__
from turnout.cli import serve
from turnout.serve.app import _SNAPSHOT_S, GRACE_S
from turnout.serve.auth import declare_tokens, list_tokens
from turnout.serve.database import writing

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LAST_S = GRACE_S + _SNAPSHOT_S


def load(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def steps():
    """The instructions of the container file, with their arguments."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def last(name):
    return [rest for step, rest in steps() if step == name][-1]


COMPOSE, (RULES,) = load("compose.yaml")[0], load("alerts.yml")
KINDS = {one["kind"]: one for one in load("kubernetes.yaml")}
UNIT = (DEPLOY / "turnout.service").read_text()


def test_every_variable_is_an_option():
    options = {f"TURNOUT_{one.name.upper()}" for one in get_group(serve.app).params}
    for path in sorted(DEPLOY.rglob("*")):
        if path.is_file() and path.name != "README.md":
            code = re.sub(r"(^|\s)#.*", "", path.read_text(), flags=re.MULTILINE)
            assert set(re.findall(r"TURNOUT_[A-Z_]+", code)) <= options, path


# --------------------------------------------------------------------------------------------------
# The container.
# --------------------------------------------------------------------------------------------------


def test_the_container_is_slim_pinned_and_not_root():
    bases = [rest.split()[0] for step, rest in steps() if step == "FROM"]
    assert all(re.fullmatch(r"python:3\.\d+-slim", base) for base in bases)
    assert int(last("USER")) > 0
    uid = re.search(r"useradd .*--uid (\d+)", last("RUN"))[1]
    assert uid == last("USER")
    assert "--no-cache-dir" in next(rest for step, rest in steps() if step == "RUN")
    for step, rest in steps():
        assert step != "ADD"
        if step in ("ENTRYPOINT", "CMD"):
            json.loads(rest)  # no shell between the server and its signals


def test_the_container_copies_what_exists_and_asks_for_extras_that_exist():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for step, rest in steps():
        if step == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["readme"] in ignored[2:] or f"!{project['readme']}" in ignored
    extras = re.search(r"'\.\[(.*?)\]'", (DEPLOY / "Dockerfile").read_text())[1].split(",")
    assert set(extras) <= set(project["optional-dependencies"])


@pytest.mark.slow
def test_the_container_s_commands_work_as_processes(tmp_path):
    """Its variables, its entry point and its health check, without its file system."""
    variables = dict(word.split("=", 1) for word in shlex.split(last("ENV")))
    for name, value in {
        "TURNOUT_DATABASE": f"sqlite:///{tmp_path}/t.db",
        "TURNOUT_HOST": "127.0.0.1",
        "TURNOUT_PORT": str(free_port()),
    }.items():
        assert name in variables
        variables[name] = value
    (tmp_path / "tokens").write_text("operator admin " + "0" * 32)
    variables |= {"TURNOUT_TOKEN_FILE": str(tmp_path / "tokens"), "PATH": os.environ["PATH"]}
    env = os.environ | variables
    program, *arguments = json.loads(last("ENTRYPOINT"))
    assert program == "turnout"
    command = [sys.executable, "-m", program, *arguments]
    python, *check = json.loads(last("HEALTHCHECK").partition("CMD")[2])
    assert python == "python"
    check = [sys.executable, *check]
    server = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        ends = 0
        while subprocess.run(check, env=env, stderr=subprocess.DEVNULL).returncode:
            ends += 1
            assert ends < 10 * PATIENCE_S
            assert server.poll() is None
    finally:
        server.terminate()
        server.wait(PATIENCE_S)
    assert subprocess.run(check, env=env, stderr=subprocess.DEVNULL).returncode != 0


# --------------------------------------------------------------------------------------------------
# Compose.
# --------------------------------------------------------------------------------------------------


def test_compose_names_what_exists_and_opens_nothing_to_other_machines():
    services = COMPOSE["services"]
    assert set(services) == {"server", "database", "prometheus", "grafana"}
    for name, service in services.items():
        if "image" in service:
            assert re.search(r":v?\d", service["image"]), name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), mount
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert service["restart"] == "unless-stopped"
    server = services["server"]
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert "outside" not in services["database"]["networks"]
    assert int(server["stop_grace_period"].rstrip("s")) > LAST_S
    assert (server["read_only"], server["cap_drop"]) == (True, ["ALL"])
    assert server["environment"]["TURNOUT_TOKEN_FILE"] == "/run/secrets/tokens"


def test_its_secrets_are_made_once_and_are_tokens_that_the_server_takes(tmp_path, engine):  # noqa: F811
    folder = tmp_path / "deploy"
    folder.mkdir()
    script = shutil.copy(DEPLOY / "secrets.sh", folder)
    subprocess.run(["sh", script], check=True, capture_output=True)
    made = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = subprocess.run(["sh", script], capture_output=True)
    assert again.returncode != 0
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == made
    with writing(engine) as connection:
        declare_tokens(connection, folder / "secrets" / "tokens")
        assert list_tokens(connection) == [("operator", "admin", None), ("scraper", "read", None)]
    for secret in COMPOSE["secrets"].values():
        assert (folder / secret["file"]).is_file()
    scraper = (folder / "secrets" / "scraper").read_text()
    assert f"scraper read {scraper}\n" in (folder / "secrets" / "tokens").read_text()
    assert (folder / "secrets").stat().st_mode & 0o077 == 0
    wanted = set(re.findall(r"\$\{(\w+):\?", (DEPLOY / "compose.yaml").read_text()))
    assert {line.split("=")[0] for line in (folder / ".env").read_text().split()} == wanted
    ignored = subprocess.run(["git", "check-ignore", "deploy/.env", "deploy/secrets/tokens"],
                             cwd=ROOT, capture_output=True, text=True)  # fmt: skip
    if ignored.returncode != 128:  # not in a repository
        assert ignored.stdout.split() == ["deploy/.env", "deploy/secrets/tokens"]


def test_prometheus_and_grafana_find_each_other_and_the_server():
    services = COMPOSE["services"]
    (prometheus,) = load("prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    host, port = job["static_configs"][0]["targets"][0].split(":")
    assert host in services
    assert port == re.search(r"TURNOUT_PORT=(\d+)", last("ENV"))[1] == last("EXPOSE")
    assert job["authorization"]["credentials_file"] == "/run/secrets/scraper"
    assert "scraper" in services["prometheus"]["secrets"]
    mounts = [m for one in services.values() for m in one.get("volumes", ())]
    assert prometheus["rule_files"] == ["alerts.yml"]
    assert "./alerts.yml:/etc/prometheus/alerts.yml:ro" in mounts
    (source,) = load("grafana/datasource.yaml")[0]["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = load("grafana/dashboards.yaml")[0]["providers"]
    assert f"../examples/grafana:{provider['options']['path']}:ro" in mounts


def test_there_is_one_dashboard():
    assert not list(DEPLOY.rglob("*.json"))
    assert len(list((ROOT / "examples" / "grafana").glob("*.json"))) == 1


# --------------------------------------------------------------------------------------------------
# Kubernetes and systemd.
# --------------------------------------------------------------------------------------------------


def test_the_deployment_is_probed_closed_and_ends_in_time(engine, portal):  # noqa: F811
    spec = KINDS["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    http = client_of(engine, portal)
    for probe, path in [("startup", "/health"), ("liveness", "/health"), ("readiness", "/ready")]:
        asked = container[f"{probe}Probe"]["httpGet"]
        assert asked["path"] == path
        assert http.get(path).status_code == 200
        assert asked["port"] in [port["name"] for port in container["ports"]]
    assert spec["enableServiceLinks"] is False  # it would set TURNOUT_PORT
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == int(last("USER"))
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    wait_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    env = {one["name"]: one for one in container["env"]}
    grace_s = int(env["TURNOUT_GRACE"]["value"])
    assert spec["terminationGracePeriodSeconds"] > wait_s + grace_s + _SNAPSHOT_S
    assert container["image"] == f"turnout:{__version__}"
    assert "memory" in container["resources"]["limits"]
    mounted = {one["name"] for one in container["volumeMounts"]}
    assert mounted == {one["name"] for one in spec["volumes"]}


def test_the_manifests_belong_together():
    secret, labels = KINDS["Secret"], {"app.kubernetes.io/name": "turnout"}
    pod = KINDS["Deployment"]["spec"]["template"]
    assert pod["metadata"]["labels"] == labels
    assert KINDS["Service"]["spec"]["selector"] == labels
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert KINDS[kind]["spec"]["selector"]["matchLabels"] == labels
    policy = KINDS["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (port,) = KINDS["Service"]["spec"]["ports"]
    (inside,) = pod["spec"]["containers"][0]["ports"]
    assert port["port"] == inside["containerPort"] == policy["ingress"][0]["ports"][0]["port"]
    for one in pod["spec"]["containers"][0]["env"]:
        if "valueFrom" in one:
            wanted = one["valueFrom"]["secretKeyRef"]
            assert (wanted["name"], wanted["key"] in secret["stringData"]) == ("turnout", True)
    (volume,) = [one for one in pod["spec"]["volumes"] if "secret" in one]
    assert volume["secret"]["items"][0]["key"] in secret["stringData"]


def test_what_is_to_be_filled_in_is_no_token(tmp_path, engine):  # noqa: F811
    """Whoever forgets it gets an error, and no server with a token that everybody knows."""
    from turnout.core.errors import InvalidInput

    (tmp_path / "tokens").write_text(KINDS["Secret"]["stringData"]["tokens"])
    with writing(engine) as connection, pytest.raises(InvalidInput, match="at least 32"):
        declare_tokens(connection, tmp_path / "tokens")


def test_the_unit_starts_the_command_and_waits_for_its_end():
    values = dict(re.findall(r"^(\w+)=(.*)$", UNIT, flags=re.MULTILINE))
    assert values["ExecStart"].endswith("/bin/turnout serve")
    assert int(values["TimeoutStopSec"]) > LAST_S
    assert (values["DynamicUser"], values["ProtectSystem"]) == ("yes", "strict")
    assert values["StateDirectory"] == "turnout"
    assert "sqlite:////var/lib/turnout/" in UNIT


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_takes_the_unit(tmp_path):
    unit = tmp_path / "turnout.service"
    unit.write_text(UNIT.replace("/opt/turnout/bin/turnout", "/usr/bin/env"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, "turnout.service" in done.stderr) == (0, False), done.stderr


# --------------------------------------------------------------------------------------------------
# The rules.
# --------------------------------------------------------------------------------------------------

RULE_LIST = [rule for group in RULES["groups"] for rule in group["rules"]]
#: Made by Prometheus itself.
OF_PROMETHEUS = {"up"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory, portal):  # noqa: F811
    """The labels with their values of every series of a server, by name."""
    from turnout.serve import open_database

    database = open_database(f"sqlite:///{tmp_path_factory.mktemp('rules')}/t.db")
    http = client_of(database, portal)
    path = create(http)
    report(http, path, 0, opened(http, path)["clients"])
    body = outcomes(opened(http, path)["clients"], status="silent")
    http.post(f"{path}/rounds/1/outcomes", json=body)
    text = http.get("/metrics").text
    database.dispose()
    labels = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found = labels.setdefault(one.name, {})
            for name, value in one.labels.items():
                found.setdefault(name, set()).add(value)
    return labels


@pytest.mark.parametrize("rule", RULE_LIST, ids=[rule["alert"] for rule in RULE_LIST])
def test_every_rule_asks_for_series_that_a_server_exports(exported, rule):
    text = rule["expr"]
    names = set(re.findall(r"\b(?:turnout|process)_\w+|\bup\b", text)) - OF_PROMETHEUS
    assert names or "up" in text
    assert names <= set(exported)
    for name, inside in re.findall(r"(\w+)\{([^}]*)\}", text):
        for label, _, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', inside):
            if label == "job":  # Prometheus adds it
                assert value == load("prometheus.yml")[0]["scrape_configs"][0]["job_name"]
                continue
            assert label in exported[name], text
            for one in value.split("|"):  # those that have not happened are there, as 0
                assert any(re.fullmatch(one, known) for known in exported[name][label]), text
    known = {label for name in names for label in exported[name]} | {"instance", "job"}
    for group in re.findall(r"by \(([\w, ]+)\)", text):
        assert set(group.split(", ")) <= known
    assert rule["labels"]["severity"] in ("page", "warn")
    used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert used <= known
