from __future__ import annotations

import dataclasses
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import turnout
from turnout.core.files import try_lock
from turnout.core.persist import FORMAT

N_CLIENTS, COHORT, BREAK, ROUNDS, SEED = 12, 4, 6, 12, 3

#: Besides every registered selector with its defaults: other parameters, schedules among them.
VARIANTS = {
    "e3cs, step": ("e3cs", {"quota": turnout.StepAfter(4, 0.0, 0.9), "draw": "multinomial"}),
    "rbcs-f, lemma": ("rbcs-f", {"rate": 0.1, "explore": turnout.Lemma1(0.1, 1.0, 1.0)}),
    "fedcs, packing": ("fedcs", {"by": "packing", "deadline": 20.0}),
    "fedcs, expected": ("fedcs", {"by": "expected-duration", "deadline": 5.0}),
    "oort, capped": (
        "oort",
        {"max_participation": 2, "preferred_duration": 3.0, "window": 2, "explore": 0.3},
    ),
    "k-linucb, raw": ("k-linucb", {"standardize": False, "ridge": 0.5}),
}


def subjects() -> dict[str, turnout.Selector]:
    made = {name: turnout.make(name) for name in turnout.list_selectors()}
    made |= {key: turnout.make(name, **kwargs) for key, (name, kwargs) in VARIANTS.items()}
    return made


def world(t: int) -> turnout.RoundContext:
    rng = turnout.stream(SEED, turnout.Purpose.ENV, t)
    fixed = np.random.default_rng(0)
    available = rng.random(N_CLIENTS) < 0.85
    available[t % N_CLIENTS] = True
    columns = {
        "num_samples": fixed.integers(10, 500, N_CLIENTS),
        "success_rate": fixed.random(N_CLIENTS),
        "features": fixed.integers(0, 2, (N_CLIENTS, 8)).astype(float),
        "context": 0.5 + rng.random((N_CLIENTS, 3)),
        "expected_duration": rng.gamma(2.0, 2.0, N_CLIENTS),
        "upload_duration": rng.gamma(2.0, 1.0, N_CLIENTS),
        "download_duration": rng.gamma(2.0, 1.0, N_CLIENTS),
        "label_counts": fixed.integers(0, 40, (N_CLIENTS, 5)),
    }
    return turnout.RoundContext(t, COHORT, available, 25.0, columns)


def play(selector: turnout.Selector, start: int, stop: int) -> list[list[int]]:
    chosen = []
    for t in range(start, stop):
        ctx = world(t)
        rng = turnout.stream(SEED, turnout.Purpose.TRAIN, t)
        all_losses, durations = rng.gamma(2.0, 1.0, N_CLIENTS), rng.gamma(2.0, 2.0, N_CLIENTS)
        status = rng.choice(4, N_CLIENTS, p=[0.7, 0.1, 0.1, 0.1])
        polled = selector.poll(ctx, turnout.stream(SEED, turnout.Purpose.POLL, t))
        if polled is not None:
            ctx = dataclasses.replace(ctx, polled=polled, polled_loss=all_losses[polled])
        selection = selector.select(ctx, turnout.stream(SEED, turnout.Purpose.SELECT, t))
        chosen.append(selection.clients.tolist())
        c = selection.clients
        answered = status[c] <= 1
        metrics = {
            name: np.where(answered, factor * all_losses[c], np.nan)
            for name, factor in (("loss", 1.0), ("loss_std", 0.3), ("loss_rms", 1.2))
        }
        for name, size in selector.metric_sizes.items():
            direction = np.random.default_rng(1).standard_normal((N_CLIENTS, size))[c]
            metrics[name] = direction * metrics["loss"][:, None]
        metrics["update_norm"] = metrics["loss"]
        duration = np.where(answered, durations[c], np.nan)
        selector.observe(selection, turnout.Outcome(status[c], duration, metrics))
    return chosen


def file_of(folder: Path, key: str) -> Path:
    return folder / (key.replace(", ", "+") + ".npz")


def load_finish_and_die(folder: str) -> None:
    """Run in a fresh process: the other half, from the files alone, saved; then ``kill -9``."""
    results = {}
    for key in subjects():
        selector = turnout.load(file_of(Path(folder), key))
        results[key] = play(selector, BREAK, ROUNDS)
        turnout.save(selector, Path(folder) / f"end-{file_of(Path(), key).name}")
    Path(folder, "results.json").write_text(json.dumps(results))
    os.kill(os.getpid(), signal.SIGKILL)


def in_another_process(function: str, folder: Path) -> int:
    program = f"import tests.core.test_persist as t; t.{function}({str(folder)!r})"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert not done.stderr, done.stderr
    return done.returncode


def same_state(one: turnout.Selector, other: turnout.Selector) -> bool:
    a, b = one.state(), other.state()
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].tobytes() == b[k].tobytes() for k in a
    )


@pytest.mark.slow
def test_resumed_run_equals_the_uninterrupted_one(tmp_path):
    whole = {}
    for key, selector in subjects().items():
        selector.prepare(N_CLIENTS, SEED)
        play(selector, 0, BREAK)
        turnout.save(selector, file_of(tmp_path, key))
        whole[key] = (selector, play(selector, BREAK, ROUNDS))
    assert in_another_process("load_finish_and_die", tmp_path) == -signal.SIGKILL
    results = json.loads((tmp_path / "results.json").read_text())
    wrong = []
    for key, (selector, second) in whole.items():
        end = turnout.load(tmp_path / f"end-{file_of(Path(), key).name}")
        if results[key] != second or not same_state(selector, end):
            wrong.append(key)
        assert end.parameters == selector.parameters
        assert type(end) is type(selector)
    assert not wrong


# --- small files to damage ---


@pytest.fixture
def saved(tmp_path):
    """A selector in the middle of a run, and its file."""
    selector = turnout.make("oort", window=2)
    selector.prepare(N_CLIENTS, SEED)
    play(selector, 0, BREAK)
    path = tmp_path / "state.npz"
    turnout.save(selector, path)
    return selector, path


def contents(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    return json.loads(str(arrays.pop("header"))), arrays


def rewrite(path: Path, header, arrays) -> None:
    np.savez(path, header=np.array(json.dumps(header)), **arrays)


def untouched(selector: turnout.Selector, path: Path, error=turnout.StateFileError, match=None):
    """Both ways of loading must refuse, and ``into`` must stay as it was."""
    twin = selector.clone()
    twin.prepare(N_CLIENTS, SEED)
    play(twin, 0, 2)
    before = twin.state()
    with pytest.raises(error, match=match):
        turnout.load(path, into=twin)
    after = twin.state()
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    with pytest.raises(error, match=match):
        turnout.load(path)


def test_round_trip_and_into(saved):
    selector, path = saved
    assert same_state(turnout.load(path), selector)
    twin = selector.clone()
    twin.reset(N_CLIENTS)
    assert turnout.load(path, into=twin) is twin
    assert same_state(twin, selector)
    # What was loaded is a copy: playing on leaves the file and the original alone.
    play(twin, BREAK, ROUNDS)
    assert not same_state(twin, selector)
    assert same_state(turnout.load(str(path)), selector)


def test_file_is_npz_with_a_json_header_and_no_pickle(saved):
    _, path = saved
    header, arrays = contents(path)
    assert header["format"] == FORMAT == 1
    assert header["selector"] == "oort"
    assert header["n_clients"] == N_CLIENTS
    assert header["parameters"]["window"] == 2
    assert all(array.dtype != object for array in arrays.values())


def test_truncated_anywhere(saved, tmp_path):
    selector, path = saved
    content = path.read_bytes()
    twin = selector.clone()
    twin.prepare(N_CLIENTS, SEED)
    before = twin.state()
    cuts = sorted({*range(0, len(content), 97), *range(len(content) - 60, len(content), 3)})
    broken = tmp_path / "broken.npz"
    for cut in cuts:
        broken.write_bytes(content[:cut])
        with pytest.raises(turnout.StateFileError, match=r"broken\.npz"):
            turnout.load(broken, into=twin)
    after = twin.state()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


@pytest.mark.slow
def test_flipped_bytes_are_refused_or_harmless(saved, tmp_path):
    selector, path = saved
    content = path.read_bytes()
    broken = tmp_path / "broken.npz"
    refused = 0
    for position in range(0, len(content), 13):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        broken.write_bytes(bytes(damaged))
        try:
            loaded = turnout.load(broken)
        except turnout.StateFileError:
            refused += 1
        else:
            assert same_state(loaded, selector)
    assert refused > 100


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00",
        b"garbage",
        b"PK\x03\x04",
        b"\x93NUMPY",
        pickle.dumps({"a": 1}),
        bytes(range(256)) * 40,
        b"{}",
    ],
)
def test_garbage(saved, content):
    selector, path = saved
    path.write_bytes(content)
    untouched(selector, path, match=r"state\.npz")


def test_missing_file_and_directory(saved, tmp_path):
    selector, _ = saved
    untouched(selector, tmp_path / "none.npz", match=r"none\.npz.*does not exist")
    untouched(selector, tmp_path)


def test_npy_file(saved):
    selector, path = saved
    with path.open("wb") as file:
        np.save(file, np.arange(5))
    untouched(selector, path)


def test_zip_without_a_header(saved):
    selector, path = saved
    np.savez(path, other=np.arange(3))
    untouched(selector, path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.npy", "nonsense")
    untouched(selector, path)


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("bomb-went-off",))


def test_pickle_inside_is_refused_and_not_run(saved, monkeypatch, tmp_path):
    selector, path = saved
    monkeypatch.chdir(tmp_path)
    _, arrays = contents(path)
    header = io.BytesIO()
    np.save(header, np.array(Bomb(), dtype=object), allow_pickle=True)
    original = path.read_bytes()
    for victim in ("header", "utility_"):
        path.write_bytes(original)
        damaged = io.BytesIO()
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(damaged, "w") as new:
            for name in old.namelist():
                evil = name == f"{victim}.npy"
                new.writestr(name, header.getvalue() if evil else old.read(name))
        path.write_bytes(damaged.getvalue())
        untouched(selector, path)
        assert not (tmp_path / "bomb-went-off").exists()
    assert "utility_" in arrays


def test_state_of_another_selector(saved):
    _, path = saved
    other = turnout.make("ucb-cs")
    other.reset(N_CLIENTS)
    before = other.state()
    with pytest.raises(turnout.StateFileError, match=r"'oort'.*'ucb-cs'"):
        turnout.load(path, into=other)
    assert all(np.array_equal(before[name], other.state()[name]) for name in before)


def test_state_of_another_size(saved):
    _, path = saved
    other = turnout.make("oort", window=2)
    other.reset(N_CLIENTS + 1)
    before = other.state()
    with pytest.raises(turnout.StateFileError, match=r"n_clients = 12.*13.*grow"):
        turnout.load(path, into=other)
    assert all(np.array_equal(before[name], other.state()[name]) for name in before)


def test_state_with_other_parameters(saved):
    _, path = saved
    other = turnout.make("oort", window=3)
    other.reset(N_CLIENTS)
    with pytest.raises(turnout.StateFileError, match=r"window = 2.*3"):
        turnout.load(path, into=other)
    assert int(other.n_rounds_) == 0


def test_into_before_reset(saved):
    _, path = saved
    with pytest.raises(turnout.NotReset, match="reset"):
        turnout.load(path, into=turnout.make("oort", window=2))


@pytest.mark.parametrize("version", [FORMAT + 1, 99])
def test_newer_format(saved, version):
    selector, path = saved
    header, arrays = contents(path)
    rewrite(path, {**header, "format": version}, arrays)
    untouched(selector, path, match=rf"format {version}.*upgrade")


@pytest.mark.parametrize("version", ["2", None, 1.5, []])
def test_nonsense_format(saved, version):
    selector, path = saved
    header, arrays = contents(path)
    rewrite(path, {**header, "format": version}, arrays)
    untouched(selector, path)


@pytest.mark.parametrize("key", ["format", "selector", "n_clients", "parameters"])
def test_header_without_a_key(saved, key):
    selector, path = saved
    header, arrays = contents(path)
    del header[key]
    rewrite(path, header, arrays)
    untouched(selector, path)


@pytest.mark.parametrize(
    "change",
    [
        {"selector": 5},
        {"selector": None},
        {"selector": "no-such-selector"},
        {"n_clients": -1},
        {"n_clients": "12"},
        {"n_clients": None},
        {"n_clients": 12.5},
        {"n_clients": 10**15},
        {"n_clients": 13},
        {"parameters": []},
        {"parameters": None},
        {"parameters": {"window": {}}},
        {"parameters": {"window": {"dataclass": "None"}}},
        {"parameters": {"window": {"dataclass": "turnout.core.schedules:Constant"}}},
        {
            "parameters": {
                "window": {"dataclass": "turnout.core.schedules:Constant", "fields": {"nope": 1}}
            }
        },
        {"parameters": {"window": {"dataclass": "os:system", "fields": {"command": "true"}}}},
        {"parameters": {"window": {"dataclass": "turnout.core.schedules:Nothing", "fields": {}}}},
        {"parameters": {"window": [1, 2]}},
        {"parameters": {"window": -5}},
        {"parameters": {"no_such_parameter": 1}},
    ],
)
def test_damaged_header(saved, change):
    selector, path = saved
    header, arrays = contents(path)
    rewrite(path, {**header, **change}, arrays)
    untouched(selector, path, error=turnout.TurnoutError)


@pytest.mark.parametrize("header", [[], 5, None, "text"])
def test_header_of_another_kind(saved, header):
    selector, path = saved
    _, arrays = contents(path)
    rewrite(path, header, arrays)
    untouched(selector, path)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("utility_", np.zeros(N_CLIENTS + 1)),
        ("utility_", np.zeros((N_CLIENTS, 1))),
        ("utility_", np.zeros(N_CLIENTS, dtype=np.float32)),
        ("utility_", np.zeros(N_CLIENTS, dtype=np.int64)),
        ("utility_", np.array(1.0)),
        ("utility_", np.array(["x"] * N_CLIENTS)),
        ("n_chosen_", np.zeros(N_CLIENTS)),
        ("pace_", np.zeros(3, dtype=np.int64)),
        ("pace_", np.array("x")),
        ("pace_", np.array(1.5)),
        ("pace_", np.array(np.nan)),
        ("n_clients_", np.array(N_CLIENTS + 1)),
        ("extra_", np.zeros(3)),
    ],
)
def test_wrong_arrays(saved, name, array):
    selector, path = saved
    header, arrays = contents(path)
    rewrite(path, header, {**arrays, name: array})
    untouched(selector, path, match=rf"state\.npz.*{name.rstrip('_')}")


def test_missing_array(saved):
    selector, path = saved
    header, arrays = contents(path)
    for name in arrays.keys() - selector.later_state:
        rewrite(path, header, {key: value for key, value in arrays.items() if key != name})
        untouched(selector, path, match=rf"state\.npz.*{name.rstrip('_')}")


# --- nothing is imported for a file ---


@pytest.mark.parametrize("where", ["selector", "parameter"])
def test_no_module_is_imported(saved, tmp_path, monkeypatch, where):
    selector, path = saved
    (tmp_path / "turnout_evil.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    header, arrays = contents(path)
    if where == "selector":
        header["selector"] = "turnout_evil:Thing"
    else:
        header["parameters"]["window"] = {"dataclass": "turnout_evil:Thing", "fields": {}}
    rewrite(path, header, arrays)
    with pytest.raises(turnout.StateFileError, match=r"turnout_evil.*import"):
        turnout.load(path)
    untouched(selector, path)
    assert "turnout_evil" not in sys.modules


# --- writing ---


@pytest.mark.parametrize("victim", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_crash_while_writing_keeps_the_old_file(saved, tmp_path, monkeypatch, victim, error):
    selector, path = saved
    before = path.read_bytes()
    play(selector, BREAK, ROUNDS)

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(os, victim, fail)
    with pytest.raises(type(error)):
        turnout.save(selector, path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["state.npz"]
    turnout.save(selector, path)
    assert same_state(turnout.load(path), selector)
    assert [file.name for file in tmp_path.iterdir()] == ["state.npz"]


@pytest.mark.skipif(sys.platform == "win32", reason="locks of files that are open twice")
def test_leftovers_of_killed_processes_go_and_those_of_living_ones_stay(saved, tmp_path):
    selector, path = saved
    dead, living = (tmp_path / f".state.npz.{name}.tmp" for name in ("dead", "living"))
    other = tmp_path / ".another.npz.dead.tmp"
    for file in (dead, living, other):
        file.write_bytes(b"half")
    with living.open("rb+") as writing:
        assert try_lock(writing.fileno())
        turnout.save(selector, path)
        names = sorted(file.name for file in tmp_path.iterdir())
        assert names == [other.name, living.name, "state.npz"]
    turnout.save(selector, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [other.name, "state.npz"]


def test_what_cannot_be_saved_leaves_no_file(tmp_path):
    path = tmp_path / "state.npz"
    with pytest.raises(turnout.NotReset, match=r"reset\(n_clients\).*super\(\)\.reset"):
        turnout.save(turnout.make("ucb-cs"), path)
    selector = turnout.make("e3cs", quota=lambda round: 0.5)
    selector.reset(N_CLIENTS)
    with pytest.raises(turnout.StateFileError, match=r"quota.*cannot be saved.*dataclass"):
        turnout.save(selector, path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ucb-cs", {"discount": np.float64(0.25)}),
        ("ucb-cs", {"discount": np.float32(0.25)}),
        ("oort", {"window": np.int64(3), "penalty": np.float16(1.5)}),
        ("oort", {"window": np.int32(3), "max_participation": np.uint8(4)}),
        ("e3cs", {"quota": turnout.Constant(np.float32(0.5))}),
        ("e3cs", {"quota": turnout.StepAfter(np.int64(3), 0.0, 0.5)}),
        ("e3cs", {"quota": turnout.Linear(0.1, 0.9, 10)}),
        ("e3cs", {"quota": turnout.StepDecay(0.5, at=(3, np.int64(6)))}),
        ("rbcs-f", {"explore": turnout.Lemma1(1.0, 2.0, 3.0, delta=0.01)}),
        ("fedcs", {"by": "packing", "deadline": np.float64(3.5)}),
    ],
)
def test_parameters_round_trip(tmp_path, name, parameters):
    selector = turnout.make(name, **parameters)
    selector.reset(N_CLIENTS)
    path = tmp_path / "state.npz"
    turnout.save(selector, path)
    loaded = turnout.load(path)
    assert loaded.parameters == selector.parameters
    assert turnout.load(path, into=selector) is selector


class Custom(turnout.Selector):
    """Registered nowhere: known to the file by its path."""

    def __init__(self, *, label: str = "x", level: float | None = None):
        self.label = label
        self.level = level

    def reset(self, n_clients):
        super().reset(n_clients)
        self.grid_ = np.zeros((2, n_clients), dtype=np.int16)
        self.flag_ = False
        self.share_ = 0.1

    def select(self, ctx, rng):
        return turnout.Selection(ctx.round, ctx.pool[: ctx.size])


@pytest.mark.parametrize("level", [[1, (2, 3)], (np.float32(0.5), None), {"a": [1], 2: "b"}, {}])
def test_containers_keep_their_type(tmp_path, level):
    selector = Custom(level=level)
    selector.reset(5)
    turnout.save(selector, tmp_path / "state.npz")
    loaded = turnout.load(tmp_path / "state.npz")
    assert loaded.parameters["level"] == level
    assert type(loaded.parameters["level"]) is type(level)


def test_files_hold_dataclasses_as_they_always_did(tmp_path):
    selector = turnout.make("e3cs", quota=turnout.StepAfter(3, 0.0, 0.5))
    selector.reset(5)
    turnout.save(selector, tmp_path / "state.npz")
    header = json.loads(str(np.load(tmp_path / "state.npz")["header"]))
    fields = {"rounds": 3, "before": 0.0, "after": 0.5}
    expected = {"dataclass": "turnout.core.schedules:StepAfter", "fields": fields}
    assert header["parameters"]["quota"] == expected


def test_own_class_by_path(tmp_path):
    selector = Custom(label='"quotes" and ünicode', level=None)
    selector.reset(5)
    selector.grid_[1, 3] = -7
    selector.flag_, selector.share_ = True, 1 / 3
    path = tmp_path / "state.npz"
    turnout.save(selector, path)
    loaded = turnout.load(path)
    assert type(loaded) is Custom
    assert loaded.parameters == selector.parameters
    assert loaded.grid_[1, 3] == -7
    assert loaded.grid_.dtype == np.int16
    assert loaded.flag_ is True
    assert loaded.share_ == 1 / 3


def test_grown_selector(tmp_path):
    selector = turnout.make("ucb-cs")
    selector.reset(4)
    outcome = turnout.Outcome([0, 0], [1.0, 1.0], {"loss": [2.0, 3.0], "loss_std": [0.1, 0.2]})
    selector.observe(turnout.Selection(0, [1, 3]), outcome)
    selector.grow(7)
    turnout.save(selector, tmp_path / "state.npz")
    loaded = turnout.load(tmp_path / "state.npz")
    assert loaded.n_clients == 7
    assert same_state(loaded, selector)


def test_load_state_checks_before_it_changes():
    selector = turnout.make("oort")
    selector.prepare(N_CLIENTS, SEED)
    play(selector, 0, 3)
    good = selector.state()
    before = selector.state()
    with pytest.raises(turnout.StateFileError, match="duration_"):
        selector.load_state({**good, "utility_": good["utility_"] + 1, "duration_": np.zeros(2)})
    assert all(before[name].tobytes() == selector.state()[name].tobytes() for name in before)


def test_state_is_a_copy():
    selector = turnout.make("ucb-cs")
    selector.reset(3)
    state = selector.state()
    state["count_"][:] = 9.0
    assert selector.count_.tolist() == [0.0] * 3
    selector.load_state(state)
    state["count_"][:] = 1.0
    assert selector.count_.tolist() == [9.0] * 3


@pytest.mark.parametrize("name", turnout.list_selectors(plugins=False))
def test_a_fresh_state_is_inside_its_ranges(name):
    selector = turnout.make(name)
    selector.prepare(N_CLIENTS, SEED)
    before = selector.state()
    selector.load_state(before)
    after = selector.state()
    assert after.keys() == before.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value)


@pytest.mark.parametrize(
    ("name", "part", "values"),
    [
        ("guarded", "lot_", (-0.5, 1.5)),
        ("guarded", "tokens_", (1.5,)),
        ("k-linucb", "moments_", (-0.5,)),  # of the first, the number of rewards
        ("oort", "duration_", (-1.5,)),
        ("oort", "pace_", (-6,)),
        ("round-robin", "last_round_", (-1.5,)),
        ("rpow-d", "last_loss_", (-1.5, 2.1e30)),
        ("rpow-d", "last_round_", (-2,)),
        ("ucb-cs", "mean_loss_", (-0.5, 1.1e30)),
        ("ucb-cs", "spread_", (-0.5, 1.1e30)),
    ],
)
def test_numbers_that_no_run_leaves_are_refused(name, part, values):
    selector = turnout.make(name)
    selector.prepare(N_CLIENTS, SEED)
    for value in values:
        state = selector.state()
        state[part].flat[0] = value
        with pytest.raises(turnout.StateFileError, match=part):
            selector.load_state(state)
