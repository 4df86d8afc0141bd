"""Clients of a checkpoint are renamed and merged, and the run goes on."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.live.history import FakePort, History
from tests.live.test_session import calm, play_round, session_of
from turnout import InvalidInput, Roster, make
from turnout.cli.app import app
from turnout.live import Live, LiveSettings, Reply, Session, VirtualWorld
from turnout.live.checkpoint import read_checkpoint, write_checkpoint
from turnout.live.clients import clients_of, find, merge, rename
from turnout.worlds import e3cs_world


def played(n_rounds=10, history=None):
    """Return a live run after some rounds."""
    live = Live(session_of(), FakePort(history or calm(n=8)))
    for _ in range(n_rounds):
        play_round(live)
    return live


def resumed(saved, port):
    fresh = session_of()
    fresh.load(saved)
    return Live(fresh, port)


def chosen_by(saved):
    return {client.id: client.chosen for client in clients_of(saved)}


def test_clients_of_a_checkpoint_are_listed(ticking):
    live = played()
    run = live.session.journal.run
    found = clients_of(live.session.state({}))
    assert [client.id for client in found] == [f"client-{i:03d}" for i in range(8)]
    assert [client.chosen for client in found] == run.counts.tolist()
    for client in found:
        rounds = [t for t in range(10) if client.index in run.chosen_in(t)]
        assert client.last == rounds[-1] + 1
        assert client.address == live.port.history.online()[client.index]
        assert client.busy_s == 0.0


def test_a_renamed_client_goes_on_under_its_new_id(ticking):
    live, plain = played(), played()
    saved = rename(live.session.state({}), "client-003", "tablet")
    live.port.history.names[3] = "tablet"
    again, unchanged = resumed(saved, live.port), resumed(plain.session.state({}), plain.port)
    for _ in range(10):
        names = [name.replace("client-003", "tablet") for name in play_round(unchanged)[0].ids]
        assert list(play_round(again)[0].ids) == names
    assert len(again.session.members.roster) == 8


def test_merged_ids_are_one_client_and_nobody_else_moves(ticking):
    live = played()
    before = live.session.state({})
    saved = merge(before, "client-002", "client-005")
    counts = chosen_by(before)
    counts["client-002"] += counts["client-005"]
    assert chosen_by(saved) == counts | {"client-005": 0}
    assert clients_of(saved)[5].merged_into == "client-002"
    live.port.claims[live.port.history.online()[2]] = "nobody in particular"
    again = resumed(saved, live.port)
    learned = before.arrays["selector"]["log_weight_"]
    np.testing.assert_array_equal(again.session.selector.log_weight_, learned)
    tally = again.session.monitor.tally
    assert tally.chosen.tolist() == [
        *(counts[f"client-{i:03d}"] for i in range(5)),
        0,
        *(counts[f"client-{i:03d}"] for i in (6, 7)),
    ]
    assert tally.free[5] == 0
    there = again.port.history.online()[5]  # the device still says its old id
    names = set()
    for _ in range(30):
        chosen = play_round(again)[0]
        names |= set(chosen.ids)
        at = dict(zip(chosen.ids, chosen.addresses, strict=True))
        assert at.get("client-002", there) == there
        assert 5 not in again.session.journal.last
    assert "client-002" in names
    assert "client-005" not in names
    assert len(again.session.members.roster) == 9  # with "nobody in particular"
    assert Roster.from_json(again.session.state({}).roster).known_as("client-005") == "client-002"
    assert again.session.receive("client-005", Reply()) is False  # it is known


def test_a_run_with_accidents_goes_on_after_merges(ticking):
    live = played(20, History(11))
    saved = live.session.state({})
    ids = [client.id for client in clients_of(saved)][:4]
    total = sum(chosen_by(saved).values())
    saved = merge(merge(saved, ids[0], ids[1]), ids[2], ids[0])  # all three are one
    assert sum(chosen_by(saved).values()) == total
    assert {c.id: c.merged_into for c in clients_of(saved)[:3]} == {
        ids[0]: ids[2],
        ids[1]: ids[2],
        ids[2]: None,
    }
    again = resumed(saved, live.port)
    for _ in range(40):
        assert not set(play_round(again)[0].ids) & set(ids[:2])
        live.port.history.advance()


def test_a_merged_client_is_busy_as_long_as_either_was_and_knows_what_both_told(ticking):
    live = played(1)
    state = live.session.state({})
    until = [["client-001", 1e12, 50.0], ["client-004", 2e12, 80.0]]
    columns = {"x": np.array([0, np.nan, 2, 3, 4, 5, 6, 7.0]), "y": np.arange(8.0)}
    saved = type(state)(
        **{name: getattr(state, name) for name in ("settings", "rounds_done", "roster", "seen")},
        metrics=state.metrics,
        busy=until,
        bindings=[["client-004", 9], ["client-000", 8]],
        arrays={**state.arrays, "columns": columns},
    )
    one = merge(saved, "client-001", "client-004")
    assert one.busy == [["client-001", 2e12, 80.0]]
    assert sorted(one.bindings) == [["client-000", 8], ["client-001", 9]]
    assert one.arrays["columns"]["x"][1] == 4.0
    assert one.arrays["columns"]["y"][1] == 1.0


def test_a_busy_client_is_busy_under_its_new_id(ticking):
    state = played(1).session.state({})
    saved = rename(type(state)(**{**vars(state), "busy": [["client-001", 3.0]]}), "client-001", "x")
    assert saved.busy == [["x", 3.0]]
    assert ["x", 10_002] in saved.bindings


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda s: rename(s, "client-001", "client-002"), "'client-002' is taken"),
        (lambda s: rename(s, "nobody", "x"), "'nobody' is not on the roster"),
        (lambda s: rename(s, "client-001", ""), "new id that is not empty"),
        (lambda s: merge(s, "client-001", "client-001"), "with itself"),
        (lambda s: merge(s, "client-001", "nobody"), "'nobody' is not on the roster"),
        (
            lambda s: merge(merge(s, "client-001", "client-002"), "client-002", "client-003"),
            "'client-002' was merged into 'client-001'",
        ),
        (
            lambda s: rename(merge(s, "client-001", "client-002"), "client-003", "client-002"),
            "'client-002' is taken",
        ),
        (lambda s: find(s, "clent-003"), "no client 'clent-003'.* Did you mean 'client-003'"),
    ],
)
def test_what_cannot_be_is_refused(ticking, change, fault):
    with pytest.raises(InvalidInput, match=fault):
        change(played(1).session.state({}))


def test_ids_of_a_world_stay():
    world = VirtualWorld(e3cs_world(n_clients=4, seed=1))
    session = Session(LiveSettings(cohort_size=2), make("random"), world=world)
    with pytest.raises(InvalidInput, match="whose clients have the ids of the world"):
        rename(session.state({}), 1, 7)


@pytest.fixture
def path(ticking, tmp_path):
    live = played()
    write_checkpoint(tmp_path / "run.npz", live.session.state({}), "turnout-test")
    return tmp_path / "run.npz"


def command(*words):
    return CliRunner().invoke(app, ["clients", *map(str, words)], env={"COLUMNS": "160"})


def test_the_command_lists_clients(path):
    result = command(path)
    assert result.exit_code == 0
    assert "8 clients" in result.output
    assert "client-007" in result.output
    rows = json.loads(command(path, "--json").output)
    assert rows == [json.loads(json.dumps(row)) for row in rows]
    assert rows[3]["id"] == "client-003"
    assert not list(path.parent.glob("*.bak*"))


def test_the_command_changes_ids_and_keeps_the_old_file(path):
    old = path.read_bytes()
    result = command(
        *(path, "--rename", "client-001=a=b", "--merge", "client-002,client-003", "--json")
    )
    assert result.exit_code == 0
    assert (path.parent / "run.npz.bak").read_bytes() == old
    assert "the old one is" in result.stderr
    saved = read_checkpoint(path, "turnout-test")
    assert [client.id for client in clients_of(saved)][:3] == ["client-000", "a=b", "client-002"]
    assert clients_of(saved)[3].merged_into == "client-002"
    assert command(path, "--rename", "a=b=plain").exit_code == 0
    assert (path.parent / "run.npz.bak2").exists()
    assert clients_of(read_checkpoint(path))[1].id == "plain"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--rename", "client-001"], "--rename needs two ids with '='"),
        (["--rename", "clint-001=x"], "Did you mean 'client-001'?"),
        (["--merge", "client-001,clientt-002"], "Did you mean 'client-002'?"),
        (
            ["--rename", "client-001=x", "--merge", "client-001,client-002"],
            "no client 'client-001'",
        ),
        (["--rename", "client-001=x", "--rename", "client-002=x"], "'x' is taken"),
    ],
)
def test_the_command_checks_everything_before_it_writes(path, words, fault):
    old = path.read_bytes()
    result = command(path, *words)
    assert result.exit_code == 2
    assert fault in result.stderr
    assert path.read_bytes() == old
    assert not list(path.parent.glob("*.bak*"))


def test_what_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert "is not a complete checkpoint" in command(tmp_path / "notes.txt").stderr
