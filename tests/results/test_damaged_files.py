"""State files from anywhere: whatever is in them, loading refuses it by name or it can be used."""

from __future__ import annotations

import os
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

import turnout
from tests.core.test_persist import (
    BREAK,
    N_CLIENTS,
    ROUNDS,
    SEED,
    contents,
    play,
    rewrite,
    subjects,
)
from turnout.core.files import LIMIT_VARIABLE, read_npz
from turnout.core.selector import Selector
from turnout.core.stateful import Range

#: What a float and an integer of a state are replaced by.
ODD_FLOATS = (5e-324, np.nan, np.inf, -np.inf, -1.0, 1e308, -1e308)
ODD_INTEGERS = (-1, -(2**62), 2**62)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    """A file of every selector in the middle of a run."""
    folder = tmp_path_factory.mktemp("states")
    made = {}
    for number, (key, selector) in enumerate(subjects().items()):
        selector.prepare(N_CLIENTS, SEED)
        play(selector, 0, BREAK)
        made[key] = folder / f"{number}.npz"
        turnout.save(selector, made[key])
    return made


def usable_or_refused(path: Path) -> bool:
    """Return whether a file was loaded; then the selector must be able to go on."""
    try:
        selector = turnout.load(path)
    except turnout.StateFileError:
        return False
    if selector.n_clients == N_CLIENTS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # huge numbers overflow, and queues are impossible
            play(selector, BREAK, ROUNDS)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("key", subjects())
def test_numbers_out_of_range_are_refused_or_used(files, tmp_path, key):
    header, arrays = contents(files[key])
    ranges = turnout.load(files[key]).state_ranges
    path = tmp_path / "odd.npz"
    for name, values in arrays.items():
        odd_values = ODD_FLOATS if values.dtype.kind == "f" else ODD_INTEGERS
        for odd in odd_values if values.size and values.dtype.kind in "fi" else ():
            damaged = values.copy()
            damaged.flat[-1] = odd
            rewrite(path, header, arrays | {name: damaged})
            was_loaded = usable_or_refused(path)
            own_range = ranges.get(name, Range())
            if not own_range.least <= odd <= own_range.most and not name.startswith("inner_"):
                assert not was_loaded, (name, odd)


def test_a_damaged_number_is_named(files, tmp_path):
    header, arrays = contents(files["oort"])
    arrays["utility_"][3] = np.nan
    rewrite(tmp_path / "odd.npz", header, arrays)
    with pytest.raises(turnout.StateFileError, match=r"odd\.npz: utility_ must be .*got nan"):
        turnout.load(tmp_path / "odd.npz")


def flipped(path: Path, target: Path, rng: np.random.Generator) -> None:
    """Write a copy with a few bytes of one member changed, and all checksums valid again."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        victim = rng.choice(old.namelist())
        for name in old.namelist():
            content = bytearray(old.read(name))
            if name == victim:
                last = 128 if rng.random() < 0.3 else len(content)  # the array's own header
                for at in rng.integers(min(last, len(content)), size=rng.integers(1, 4)):
                    content[at] ^= int(rng.integers(1, 256))
            new.writestr(name, bytes(content))


@pytest.mark.slow
def test_flips_under_a_valid_checksum_are_refused_or_usable(files, tmp_path, n_tries):
    rng = np.random.default_rng(13)
    path, keys = tmp_path / "flipped.npz", [key for key in files if key != "nccb"]
    n_refused = 0
    for _ in range(n_tries(400, 20_000)):
        flipped(files[rng.choice(keys)], path, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # NumPy's, about headers of Python 2
            n_refused += not usable_or_refused(path)
    assert n_refused > 100


def test_many_clients_in_a_small_file_are_not_allocated(files, tmp_path):
    header, arrays = contents(files["oort"])
    arrays["n_clients_"] = np.array(10**9)
    rewrite(tmp_path / "huge.npz", header | {"n_clients": 10**9}, arrays)
    with pytest.raises(turnout.StateFileError, match=r"10{9}, more than max_clients = 1"):
        turnout.load(tmp_path / "huge.npz")
    with pytest.raises(turnout.StateFileError, match=r"has shape \(12,\), and n_clients = 10{9}"):
        turnout.load(tmp_path / "huge.npz", max_clients=10**10)


class Triangle(Selector):
    """State of an odd shape."""

    def reset(self, n_clients):
        super().reset(n_clients)
        self.edge_ = np.zeros((2, n_clients + 1))

    def select(self, ctx, rng):
        return turnout.Selection(ctx.round, ctx.pool[: ctx.size])


def test_sizes_that_grow_with_the_clients_are_known(tmp_path):
    selector = Triangle()
    selector.reset(5)
    turnout.save(selector, tmp_path / "state.npz")
    assert turnout.load(tmp_path / "state.npz").edge_.shape == (2, 6)


def test_a_deflate_bomb_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.npy", bytes(100_000_000))
    assert path.stat().st_size < 200_000
    with pytest.raises(turnout.StateFileError, match=rf"100 MB, .* 64 MB .*; set {LIMIT_VARIABLE}"):
        turnout.load(path)
    monkeypatch.setenv(LIMIT_VARIABLE, "1000")
    with pytest.raises(turnout.StateFileError, match="magic string"):
        turnout.load(path)


def test_a_shape_without_its_numbers_is_not_allocated(tmp_path):
    path = tmp_path / "shape.npz"
    with zipfile.ZipFile(path, "w") as file, file.open("a.npy", "w") as member:
        table = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
        np.lib.format.write_array_header_1_0(member, table)
    with pytest.raises(ValueError, match="a does not have the size"):
        read_npz(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_and_devices_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "endless.npz").symlink_to("/dev/zero")
    for name in ("pipe.npz", "endless.npz"):
        with pytest.raises(turnout.StateFileError, match="not a regular file"):
            turnout.load(tmp_path / name)


@pytest.mark.parametrize(
    "parameters",
    [
        {"window": {"kind": "list", "of": 5}},
        {"window": {"kind": [], "of": 5}},
        {"window": {"kind": "dict", "of": [[[], 1]]}},
        {"window": {"dataclass": 5, "fields": {}}},
        {"window": {"dataclass": "turnout.core.schedules:Constant", "fields": 5}},
        {"window": {"dataclass": "turnout.core.schedules:Constant", "fields": {"value": []}}},
        {"window": [1] * 3},
    ],
)
def test_parameters_of_any_shape(files, tmp_path, parameters):
    header, arrays = contents(files["oort"])
    rewrite(tmp_path / "odd.npz", header | {"parameters": parameters}, arrays)
    with pytest.raises(turnout.StateFileError, match=r"window"):
        turnout.load(tmp_path / "odd.npz")


def test_deep_headers_are_refused(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    np.savez(tmp_path / "deep.npz", header=np.array(f'{{"format": {deep}}}'), n_clients_=1)
    with pytest.raises(turnout.StateFileError, match=r"deep\.npz"):
        turnout.load(tmp_path / "deep.npz")


# --- files of earlier versions ---

#: Written at commit 4b97097 by ``play`` of ``tests/core/test_persist.py``, up to ``BREAK``.
OLD = sorted((Path(__file__).parents[1] / "old_files").glob("*.npz"))


@pytest.mark.slow
@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_files_of_format_1_are_read_and_gone_on_with(path):
    header, arrays = contents(path)
    selector = turnout.load(path)
    state = selector.state()
    assert header["format"] == 1
    assert state.keys() - arrays.keys() <= selector.later_state
    assert all(state[name].tobytes() == values.tobytes() for name, values in arrays.items())
    assert header["parameters"].keys() <= selector.parameters.keys()
    assert len(play(selector, BREAK, ROUNDS)) == ROUNDS - BREAK


def test_every_selector_of_that_time_has_a_file():
    later = {"guarded", "pace", "afl", "clustered", "divfl", "fed-cbs", "fedcor", "hics-fl", "ocs"}
    known = set(turnout.list_selectors()) - later - {"tifl", "mix", "refl"}
    assert {path.stem.partition("+")[0] for path in OLD} == known
