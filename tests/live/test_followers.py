"""Who follows a live run: trackers, Prometheus, your own code; nobody of them disturbs it."""

import socket
import urllib.error
import urllib.request

import pytest

from tests.live.history import FakePort, History
from tests.live.test_session import COHORT, answered, calm, play_round, present, session_of
from turnout import InvalidInput
from turnout.live import Follower, Kind, Live, Prometheus, Quorum
from turnout.live.round import BY_SERVER
from turnout.results.callbacks import Callback


class Diary(Follower):
    """Keeps what it was told."""

    def __init__(self):
        self.told = []

    def start(self, run, about):
        self.told.append(("start", run, about))

    def opened(self, run, round, people):
        self.told.append(("opened", run, round, people))

    def ended(self, run, ended, numbers):
        self.told.append(("ended", run, ended, numbers))

    def measured(self, run, round, values):
        self.told.append(("measured", run, round, dict(values)))

    def end(self, run):
        self.told.append(("end", run))


class Notes(Callback):
    def __init__(self):
        self.told = []

    def start(self, settings):
        self.told.append(("start", dict(settings)))

    def round(self, round, values):
        self.told.append((round, dict(values)))

    def end(self):
        self.told.append(("end",))


class Broken(Follower):
    """Whatever is asked of it after the start fails."""

    def opened(self, run, round, people):
        raise OSError("the disk is full")

    ended = measured = opened

    def end(self, run):
        raise OSError("the disk is still full")


def test_a_follower_is_told_of_every_round_in_order(ticking):
    diary = Diary()
    session = session_of("random", followers=[diary], quorum=Quorum(min_answers=2), label="mine")
    session.start({"seed": 5})
    present(session)
    answered(session, session.open(), Kind.ANSWERED, Kind.FAILED, Kind.LOST, Kind.GARBLED)
    ticking.at += 7.0
    session.close(length_s=3.0)
    session.journal.note(BY_SERVER, 1, {"accuracy": 0.5})
    session.end()
    session.end()
    kinds = [what[0] for what in diary.told]
    assert kinds == ["start", "opened", "ended", "measured", "end"]
    assert {what[1] for what in diary.told} == {"mine"}
    assert diary.told[0][2] == {"seed": 5}
    assert diary.told[1][3]._asdict() == {"known": 4, "connected": 4, "free": 4, "busy": 0}
    ended, numbers = diary.told[2][2:]
    assert ended.is_void
    assert numbers.statuses == {"completed": 1, "late": 0, "failed": 2, "silent": 1}
    assert (numbers.train_s, numbers.wait_s) == (3.0, 4.0)
    assert (numbers.success_ratio, numbers.fairness) == (0.25, 1.0)
    assert diary.told[3][2:] == (0, {"accuracy": 0.5, "void": 1.0})


def test_ages_count_the_rounds_in_which_a_client_was_free(ticking):
    diary = Diary()
    live = Live(session_of("round-robin", cohort_size=2, followers=[diary]), FakePort(calm(n=6)))
    for _ in range(3):
        live.gather(6)
        chosen = live.choose()
        live.train(chosen, ["work"] * len(chosen.ids))
    ages = [what[3].ages for what in diary.told if what[0] == "ended"]
    assert ages == [(1.0, 1.0, 1.0), (1.0, 2.0, 2.0), (1.0, 2.0, 2.0)]


def test_callbacks_of_training_follow_live_runs(ticking):
    notes = Notes()
    live = Live(session_of(followers=[notes]), FakePort(History(3)))
    live.session.start({"selector": "e3cs"})
    for _ in range(3):
        play_round(live)
        live.port.history.advance()
    live.session.journal.note(BY_SERVER, 3, {"accuracy": 0.75})
    live.session.end()
    assert notes.told[0] == ("start", {"selector": "e3cs"})
    assert [what[0] for what in notes.told[1:]] == [0, 1, 2, 2, "end"]
    first = notes.told[1][1]
    assert first["chosen"] == sum(first[s] for s in ("completed", "late", "failed", "silent"))
    assert set(first) == {
        *("chosen", "completed", "late", "failed", "silent", "void", "alerts"),
        *("wanted", "known", "connected", "free", "busy", "train_s", "wait_s", "longest_wait"),
        *("success_ratio", "fairness"),
    }
    assert notes.told[4][1] == {"accuracy": 0.75}


def test_what_followers_raise_is_logged_and_the_run_goes_on(ticking, caplog):
    diary = Diary()
    session = session_of("random", followers=[Broken(), diary])
    session.start({})
    present(session)
    answered(session, session.open(), *[Kind.ANSWERED] * 4)
    assert len(session.close().answers) == 4
    session.end()
    assert [what[0] for what in diary.told] == ["start", "opened", "ended", "end"]
    faults = [record.message for record in caplog.records if "failed to follow" in record.message]
    assert faults[0] == "Broken failed to follow this run: OSError: the disk is full"
    assert len(faults) == 3


def test_a_follower_that_cannot_start_stops_the_run_and_ends_the_others():
    class Late(Follower):
        def start(self, run, about):
            raise InvalidInput("no such server")

    diary = Diary()
    session = session_of("random", followers=[diary, Late()])
    with pytest.raises(InvalidInput, match="no such server"):
        session.start({})
    session.end()
    assert [what[0] for what in diary.told] == ["start", "end"]


def test_what_cannot_follow_is_refused():
    with pytest.raises(InvalidInput, match=r"followers must be a list of trackers.*got 'tens"):
        session_of("random", followers=["tensorboard"])


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"turnout_{name}", {"run": "session"} | labels)


def played(metrics, n_rounds=4):
    live = Live(session_of("random", followers=[metrics]), FakePort(History(7)))
    live.session.start({})
    statuses = []
    for _ in range(n_rounds):
        statuses += play_round(live)[2].closed.status.tolist()
        live.port.history.advance()
    return live, statuses


def test_prometheus_counts_what_happened(ticking):
    metrics = Prometheus()
    live, statuses = played(metrics)
    for code, status in enumerate(("completed", "late", "failed", "silent")):
        assert sample(metrics, "chosen_total", status=status) == statuses.count(code)
    assert sample(metrics, "rounds_total") == sample(metrics, "round") == 4
    assert sample(metrics, "train_seconds_count") == 4
    assert sample(metrics, "train_seconds_sum") == live.session.journal.columns()["length_s"].sum()
    assert sample(metrics, "void_rounds_total") == 0
    assert sample(metrics, "clients", state="known") == len(live.session.members.roster)
    assert sample(metrics, "clients", state="connected") == live.session.members.n_connected
    assert sample(metrics, "success_ratio") == statuses.count(0) / len(statuses)
    assert sample(metrics, "last_choice_age_rounds", share="1") >= 0
    live.session.journal.note(BY_SERVER, 4, {"accuracy": 0.5})
    assert sample(metrics, "model", metric="accuracy") == 0.5
    assert b'turnout_rounds_total{run="session"} 4.0' in metrics.text()
    assert metrics.content_type.startswith("text/plain")
    metrics.forget("session")
    assert b'run="session"' not in metrics.text()


def test_no_client_can_make_up_ever_more_series(ticking):
    metrics = Prometheus()
    metrics.measured("session", 0, {f"made up {i}": 1.0 for i in range(1000)})
    assert metrics.text().count(b"turnout_model{") == 50


def test_prometheus_is_served_while_the_run_lasts(ticking):
    metrics = Prometheus(port=0)
    live, _ = played(metrics)
    address = f"http://127.0.0.1:{metrics.port}/metrics"
    with urllib.request.urlopen(address) as answer:
        text = answer.read()
    assert b"turnout_train_seconds_bucket" in text
    live.session.end()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)


def test_a_port_that_is_taken_is_an_error_before_the_run(ticking):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        session = session_of("random", followers=[Prometheus(port)])
        with pytest.raises(InvalidInput, match=f"port {port} of 127.0.0.1 cannot be opened"):
            session.start({})


def test_prometheus_writes_a_file_for_node_exporter(ticking, tmp_path):
    path = tmp_path / "turnout.prom"
    metrics = Prometheus(file=path)
    played(metrics)
    assert path.read_bytes() == metrics.text()
    with pytest.raises(InvalidInput, match=r"file must end in \.prom"):
        Prometheus(file=tmp_path / "turnout.txt")
    elsewhere = Prometheus(file=tmp_path / "nowhere" / "turnout.prom")  # a job may go there
    with pytest.raises(InvalidInput, match="does not exist"):
        elsewhere.start("run", {})


def test_several_runs_may_share_the_metrics(ticking):
    metrics = Prometheus(port=0)
    sessions = [session_of("random", followers=[metrics], label=name) for name in "ab"]
    for session in sessions:
        session.start({})
        present(session)
        answered(session, session.open(), *[Kind.ANSWERED] * COHORT)
        session.close()
    sessions[0].end()
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics") as answer:
        text = answer.read()
    assert all(f'turnout_rounds_total{{run="{name}"}} 1.0'.encode() in text for name in "ab")
    sessions[1].end()
