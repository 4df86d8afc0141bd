import numpy as np
import pytest

from tests.worlds.helpers import assert_share, moment
from turnout.core.errors import InvalidInput, TurnoutError
from turnout.worlds import (
    DataMissing,
    DeviceTimes,
    FittedDevices,
    PhoneTrace,
    TracedDevices,
    best_devices,
)
from turnout.worlds.traces import bandwidth, device_speeds, has_traces, phone_states

DAY = 86_400
MIDNIGHT = 20 * DAY  # some midnight


@pytest.fixture
def data(tmp_path):
    """A data directory with small traces whose every entry is known."""
    traces = tmp_path / "traces"
    traces.mkdir()
    (traces / "ai_benchmark_devices.csv").write_text(
        "model,soc,cpu_float_score\na,x,100\nb,y,400\nc,z,200\nd,w,\n", encoding="utf-8"
    )
    # phone 3: minutes 1..4 after midnight, then a pause of two days and one minute, then minute 6
    # phone 9: one row at minute 0 and one at minute 90
    user = np.array([3, 3, 3, 3, 3, 9, 9], dtype=np.uint8)
    minute = np.array([1, 2, 3, 4, 2 * 1440 + 6, 0, 90])
    np.savez(
        traces / "extrasensory_phone_state.npz",
        user=user,
        timestamp=(MIDNIGHT + 60 * minute + 5).astype(np.int32),
        network=np.array([1, 1, 0, 1, 1, 1, 1], dtype=np.uint8),
        charging=np.array([1, 255, 1, 1, 1, 1, 0], dtype=np.uint8),
    )
    np.savez(
        traces / "bandwidth_3g_and_fixed.npz",
        trace=np.array([0, 0, 0, 4], dtype=np.uint16),
        sec=np.array([0.0, 30.0, 60.0, 10.0], dtype=np.float32),
        mbps=np.array([1.0, 3.0, 4.0, 0.0], dtype=np.float32),
    )
    np.savez(
        traces / "bandwidth_5g_ucc.npz",
        trace=np.array([0, 1, 1], dtype=np.uint8),
        sec=np.array([0, 0, 59], dtype=np.int32),
        dl_kbps=np.array([9, 5000, 15000], dtype=np.int32),
        trace_names=np.array(["Netflix/a.csv", "Download/b.csv"]),
    )
    return tmp_path


def test_device_speeds_are_relative_to_the_median(data):
    np.testing.assert_allclose(device_speeds(data), [0.5, 2.0, 1.0])


def test_bandwidth_by_hand(data):
    slow = bandwidth("3g-and-fixed", data)
    np.testing.assert_allclose(slow.mbps, [2.0, 4.0, 0.01])  # the last one at its floor
    np.testing.assert_array_equal(slow.offset, [0, 2, 3])
    np.testing.assert_allclose(slow.mean_s_per_mbit, [0.375, 100.0])
    fast = bandwidth("5g", data)
    np.testing.assert_allclose(fast.mbps, [10.0])  # downloads only
    np.testing.assert_array_equal(fast.offset, [0, 1])


def test_phone_states_by_hand(data):
    states = phone_states(data)
    np.testing.assert_array_equal(states.offset, [0, 7, 7 + 91])
    # phone 3, minutes 0..6: no record yet, yes, unknown, no Wi-Fi, yes, held, yes after the pause
    np.testing.assert_array_equal(
        states.eligible[:7], [False, True, False, False, True, True, True]
    )
    second = states.eligible[7:]  # held for an hour after minute 0, then away; not charging at 90
    assert second[:61].all()
    assert not second[61:].any()


def test_readers_are_read_only_and_stateless(data):
    states = phone_states(data)
    with pytest.raises(ValueError, match="read-only"):
        states.eligible[0] = True
    model = PhoneTrace(data, round_s=60.0)
    late = model.available(moment(500, n=30))
    asked = [model.available(moment(t, n=30)) for t in (3, 9, 0)]
    np.testing.assert_array_equal(model.available(moment(500, n=30)), late)
    np.testing.assert_array_equal(model.available(moment(9, n=30)), asked[1])


def test_phone_trace_plays_the_records(data):
    model = PhoneTrace(data, round_s=60.0)
    n = 400
    first = np.array([model.available(moment(t, n)) for t in range(91 * 7)])
    # everyone starts at midnight: a client is phone 3 (period 7) or phone 9 (period 91)
    is_first_phone = ~first[0]
    assert_share(is_first_phone.sum(), n, 0.5)
    states = phone_states(data)
    np.testing.assert_array_equal(
        first[:7, is_first_phone].T, np.tile(states.eligible[:7], (is_first_phone.sum(), 1))
    )
    np.testing.assert_array_equal(first[7:14, is_first_phone], first[:7, is_first_phone])
    np.testing.assert_array_equal(
        first[:91, ~is_first_phone].T, np.tile(states.eligible[7:], ((~is_first_phone).sum(), 1))
    )


def test_phone_trace_with_shifted_clocks(data):
    model = PhoneTrace(data, round_s=60.0, same_clock=False)
    n = 1000
    present = model.available(moment(0, n))
    # half the clients at a random minute of 7 (4 eligible), half at one of 91 (61 eligible)
    assert_share(present.sum(), n, 0.5 * 4 / 7 + 0.5 * 61 / 91)


def test_traced_devices_play_their_traces(data):
    devices = TracedDevices("3g-and-fixed", data)
    n = 200
    speed = devices.speed(n, seed=1)
    assert set(speed) == {0.5, 1.0, 2.0}
    now, later = devices.s_per_mbit(moment(0, n)), devices.s_per_mbit(moment(1, n))
    assert set(np.round(now, 6)) == {0.25, 0.5, 100.0}
    on_first = now < 1.0
    assert_share(on_first.sum(), n, 0.5)
    np.testing.assert_allclose(now[on_first] + later[on_first], 0.75)  # it alternates
    np.testing.assert_allclose(devices.expected_s_per_mbit(n, 1), np.where(on_first, 0.375, 100.0))
    model = DeviceTimes(devices, work_s=10.0, model_mbit=2.0)
    np.testing.assert_allclose(model.duration(moment(0, n)), 10.0 / speed + 2.0 * now)


def test_best_devices_falls_back_to_the_generator(data, tmp_path, monkeypatch):
    monkeypatch.delenv("TURNOUT_DATA", raising=False)
    assert best_devices() == FittedDevices()
    assert not has_traces()
    assert best_devices("5g", data) == TracedDevices("5g", data)
    monkeypatch.setenv("TURNOUT_DATA", str(data))
    assert has_traces()
    np.testing.assert_array_equal(device_speeds(), device_speeds(data))


def test_another_data_directory_is_noticed(data, tmp_path, monkeypatch):
    monkeypatch.setenv("TURNOUT_DATA", str(data))
    model = TracedDevices()
    model.s_per_mbit(moment(0, n=50))
    other = tmp_path / "other"
    (other / "traces").mkdir(parents=True)
    (other / "traces" / "ai_benchmark_devices.csv").write_text("cpu_float_score\n7\n")
    np.savez(
        other / "traces" / "bandwidth_3g_and_fixed.npz",
        trace=np.zeros(1, np.uint16),
        sec=np.zeros(1, np.float32),
        mbps=np.full(1, 8.0, np.float32),
    )
    monkeypatch.setenv("TURNOUT_DATA", str(other))
    assert (model.s_per_mbit(moment(0, n=50)) == 0.125).all()
    assert (model.speed(50, 1) == 1.0).all()


def test_missing_data_says_how_to_fill_it_and_what_runs_without(tmp_path, monkeypatch):
    monkeypatch.delenv("TURNOUT_DATA", raising=False)
    with pytest.raises(DataMissing, match="TURNOUT_DATA is not set") as caught:
        PhoneTrace().available(moment())
    assert isinstance(caught.value, TurnoutError)
    assert isinstance(caught.value, FileNotFoundError)
    assert "prepare.py" in str(caught.value)
    assert "FittedDevices()" in str(caught.value)
    with pytest.raises(DataMissing, match="does not exist"):
        TracedDevices(directory=tmp_path).speed(3, 0)


def test_damaged_files_are_named(data):
    (data / "traces" / "bandwidth_5g_ucc.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(InvalidInput, match="bandwidth_5g_ucc"):
        bandwidth("5g", data)
    np.savez(data / "traces" / "extrasensory_phone_state.npz", user=np.zeros(1))
    with pytest.raises(InvalidInput, match="timestamp"):
        phone_states(data)
    (data / "traces" / "ai_benchmark_devices.csv").write_text("model\na\n", encoding="utf-8")
    with pytest.raises(InvalidInput, match="cpu_float_score"):
        device_speeds(data)
