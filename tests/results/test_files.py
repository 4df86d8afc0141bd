import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from turnout.core.files import read_npz, write_atomically, write_npz
from turnout.experiment import Experiment, run_experiment
from turnout.results import files
from turnout.results.files import DamagedFile, FolderError
from turnout.results.reader import read_cell, read_cells


def npy_with_header(header):
    content = header.encode().ljust(118)
    return b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content


def archive(content, name="a.npy"):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        b"\x93NUMPY",
        archive(b""),
        archive(npy_with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }")),
        archive(npy_with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (")),
        archive(npy_with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-3,), }")),
        archive(npy_with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (10**18,), }")),
        archive(npy_with_header(str({"descr": "<f8", "fortran_order": False, "shape": (2**60,)}))),
        archive(npy_with_header("\x00\x00")),
        archive(npy_with_header("'" * 50)),
    ],
)
def test_a_damaged_archive_is_named(content, tmp_path):
    path = tmp_path / "selections.npz"
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"selections\.npz is not a complete \.npz") as caught:
        files.read_arrays(path)
    assert "delete the folder" in str(caught.value)
    assert caught.value.brief.startswith("selections.npz is not")


def test_a_single_array_is_no_archive(tmp_path):
    path = tmp_path / "selections.npz"
    with path.open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(DamagedFile, match="not a complete"):
        files.read_arrays(path)


def test_pickles_are_refused(tmp_path):
    path = tmp_path / "selections.npz"
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(DamagedFile, match="never unpickled"):
        files.read_arrays(path)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "a.npz"
    digest = write_npz(path, {"a/b": np.arange(3), "c": np.ones(2)})
    assert digest == files.digest_of(path)
    assert files.digest_of(tmp_path / "none") == ""
    assert {name: values.tolist() for name, values in read_npz(path).items()} == {
        "a/b": [0, 1, 2],
        "c": [1.0, 1.0],
    }


@pytest.mark.parametrize("read", [files.read_json, files.read_lines, files.read_arrays])
def test_files_that_are_none_do_not_hang(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        DamagedFile, match=r"pipe cannot be read \(OSError: not a regular file\); delete"
    ):
        read(tmp_path / "pipe")
    with pytest.raises(DamagedFile, match="nothing is missing"):
        read(tmp_path / "nothing")
    with pytest.raises(DamagedFile, match="cannot be read"):
        read(tmp_path)


def test_lines_that_hold_no_object_are_counted(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(b'{"a": 1}\n\n[1]\n{"a": \n{"b": 2}')
    assert files.read_lines(path) == ([{"a": 1}, {"b": 2}], 2)


def test_numbers_that_are_not_finite_become_null(tmp_path):
    path = tmp_path / "summary.json"
    files.write_json(path, {"a": np.float64("nan"), "b": [float("inf"), np.int64(3)]})
    assert files.read_json(path) == {"a": None, "b": [None, 3]}


def test_a_folder_that_is_none_is_not_complete(tmp_path):
    with pytest.raises(FolderError, match=r"not complete: it has no summary\.json"):
        read_cell(str(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("where", [".", "random/seed-0"])
@pytest.mark.parametrize("name", [".turnout.lock", files.ROUNDS, files.CONFIG, files.STATE])
def test_a_run_folder_with_a_pipe_or_a_device_is_refused(tmp_path, where, name):
    place = tmp_path / where / name
    place.parent.mkdir(parents=True, exist_ok=True)
    experiment = Experiment(["random"], n_clients=10, cohort_size=2, n_rounds=3, seeds=1)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(place)
        with pytest.raises(files.FolderError, match=rf"{name}.*(not a file|regular)"):
            run_experiment(experiment, tmp_path, n_jobs=1)
        assert read_cells([tmp_path])[0] == []
        place.unlink()


def test_a_device_is_not_written_over(tmp_path):
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(OSError, match="regular"):
        write_atomically(tmp_path / "link", b"x")
    assert not Path("/dev/null").is_file()
