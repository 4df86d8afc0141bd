"""The user's own traces, and FedScale's."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.experiment.config import world_of, world_table
from turnout.worlds import AvailabilityFile, DeviceFile, DeviceTimes, Environment

SESSIONS = """\
client,start,end
ann,0,60
bo,60,180
ann,120,240
ann,130,150
"""


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def pickled(folder: Path, name: str, value: object) -> str:
    path = folder / name
    path.write_bytes(pickle.dumps(value))
    return str(path)


def rounds(model: AvailabilityFile, n_clients: int, n_rounds: int, seed: int = 0) -> list[str]:
    world = Environment(n_clients, seed, availability=model)
    return [
        "".join("x" if there else "." for there in world.context(round, 1).available)
        for round in range(n_rounds)
    ]


def test_sessions_by_hand(tmp_path: Path) -> None:
    """A record repeats after 240 s, and the third client replays the first record."""
    model = AvailabilityFile(written(tmp_path, "s.csv", SESSIONS), round_s=60)
    assert rounds(model, 3, 5) == ["x.x", ".x.", "xxx", "x.x", "x.x"]


def test_the_seed_draws_records_only_if_asked(tmp_path: Path) -> None:
    lines = "".join(f"c{i},{i},{i + 1}\n" for i in range(50))
    path = written(tmp_path, "s.csv", "client,start,end\n" + lines)
    in_order = AvailabilityFile(path, round_s=1)
    assert rounds(in_order, 50, 50, seed=1) == rounds(in_order, 50, 50, seed=2)
    drawn = AvailabilityFile(path, round_s=1, shuffle=True)
    assert rounds(drawn, 50, 50, seed=1) != rounds(drawn, 50, 50, seed=2)
    together = np.array([list(row) for row in rounds(drawn, 50, 50, seed=1)])
    assert ((together == "x").sum(axis=0) == 1).all()


def test_availability_of_fedscale(tmp_path: Path) -> None:
    trace = {
        7: {
            "duration": 9,
            "active": [0, 30],
            "inactive": [10, 40],
            "finish_time": 50,
            "model": "a",
        },
        9: {"duration": 9, "active": [20], "inactive": [30], "finish_time": 40, "model": "b"},
    }
    model = AvailabilityFile(pickled(tmp_path, "client_behave_trace", trace), round_s=10)
    assert rounds(model, 2, 7) == ["x.", "..", ".x", "x.", "..", "x.", ".x"]


def test_devices_by_hand(tmp_path: Path) -> None:
    path = written(tmp_path, "d.csv", "client,speed,bandwidth\na,100,2\nb,200,4\nc,400,10\n")
    devices = DeviceFile(path)
    assert devices.speed(4, seed=0).tolist() == [0.5, 1, 2, 0.5]
    world = Environment(3, timing=DeviceTimes(devices, work_s=10, model_mbit=20))
    assert world.fate(0).duration.tolist() == pytest.approx([20 + 10, 10 + 5, 5 + 2])
    assert world.fate(9).duration.tolist() == world.fate(0).duration.tolist()


def test_devices_of_fedscale(tmp_path: Path) -> None:
    """Computation is milliseconds per example, communication is kilobits per second."""
    capacity = {
        1: {"computation": 50.0, "communication": 2000.0},
        2: {"computation": 100.0, "communication": 500.0},
        3: {"computation": 200.0, "communication": 4000.0},
    }
    devices = DeviceFile(pickled(tmp_path, "client_device_capacity", capacity))
    assert devices.speed(3, seed=0).tolist() == [2, 1, 0.5]
    assert devices.expected_s_per_mbit(3, seed=0).tolist() == [0.5, 2, 0.25]


def test_own_traces_are_part_of_a_worlds_table(tmp_path: Path) -> None:
    path = written(tmp_path, "d.csv", "speed,bandwidth\n1,2\n")
    table = {"timing": {"kind": "device-times", "devices": {"kind": "device-file", "path": path}}}
    world = world_of(table, 3)
    assert world.timing == DeviceTimes(DeviceFile(path))
    assert world_of(world_table(world), 3) == world


class Harmful:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("harmed",)


def test_a_pickle_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = pickled(tmp_path, "client_device_capacity", {1: Harmful()})
    with pytest.raises(InvalidInput, match=r"FedScale's client_device_capacity: it asks for"):
        DeviceFile(path).speed(1, seed=0)
    assert not Path("harmed").exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.csv", "client,start\na,1\n", r"^path .*must be a table with the headings client, st"),
        ("s.csv", "client,start,end\n", r"^path .*must be a table"),
        ("s.csv", "client,start,end\na,1\n", r"a value of each in every line"),
        ("s.csv", "client,start,end\na,1,noon\n", r"column end must hold numbers: .*'noon'"),
        ("s.csv", "client,start,end\na,5,1\n", r"every session must have 0 <= start <= end"),
        ("s.txt", "client,start,end\na,0,1\n", r"^path .*must be a \.csv table or FedScale's"),
    ],
)
def test_damaged_files_are_explained(tmp_path: Path, name: str, text: str, message: str) -> None:
    model = AvailabilityFile(written(tmp_path, name, text))
    with pytest.raises(InvalidInput, match=message):
        rounds(model, 1, 1)


def test_settings_are_checked_by_name(tmp_path: Path) -> None:
    for make in (AvailabilityFile, DeviceFile):
        with pytest.raises(InvalidInput, match=r"^path must be set to a file"):
            make()
        with pytest.raises(InvalidInput, match=r"^shuffle must be True or False"):
            make("a.csv", shuffle=1)
    with pytest.raises(InvalidInput, match=r"^path .*none\.csv cannot be read"):
        DeviceFile(str(tmp_path / "none.csv")).speed(1, seed=0)
    path = written(tmp_path, "d.csv", "speed,bandwidth\n0,2\n")
    with pytest.raises(InvalidInput, match="must be above 0"):
        DeviceFile(path).speed(1, seed=0)
