import json

import numpy as np
import pytest

from tests.results.test_columns import row
from turnout.results import files
from turnout.results.files import keep_previous
from turnout.results.writer import CellWriter, RoundLog


def test_lines_are_added_and_the_last_is_written_again(tmp_path):
    log = RoundLog(tmp_path / "rounds.jsonl")
    assert log.n_bytes == -1
    log.begin(["a", "bb"])
    log.replace_last("b")
    log.append(["c", "dddd"])
    log.replace_last("d")
    log.append(["e"])
    assert log.path.read_text() == "a\nb\nc\nd\ne\n"
    assert log.cut(4, None)
    assert log.path.read_text() == "a\nb\n"
    log.begin()
    assert log.n_bytes == 0


def writer_of(path, n_rounds):
    writer = CellWriter(path, 12, 3, lambda t: 0.5, [files.STATE])
    saved, note = writer.resume()
    assert (saved, note) == (None, "")
    add(writer, 0, n_rounds)
    return writer


def add(writer, start, stop):
    for t in range(start, stop):
        writer.add(row(t, 3), np.arange(12) % 2 == t % 2)


@pytest.fixture
def saved(tmp_path):
    (tmp_path / files.STATE).write_bytes(b"selector")
    writer = writer_of(tmp_path, 4)
    writer.checkpoint({"mine": np.arange(3)})
    add(writer, 4, 6)
    writer.flush()
    return tmp_path


def test_a_checkpoint_is_gone_back_to(saved):
    writer = CellWriter(saved, 12, 3, lambda t: 0.5, [files.STATE])
    state, note = writer.resume()
    assert note == ""
    assert state["mine"].tolist() == [0, 1, 2]
    assert writer.rounds.n_rounds == 4
    assert len((saved / files.ROUNDS).read_text().splitlines()) == 4
    add(writer, 4, 6)
    writer.flush()
    (saved / "whole").mkdir()
    whole = writer_of(saved / "whole", 6)
    whole.flush()
    np.testing.assert_array_equal(writer.regret, whole.regret)
    logs = [(path / files.ROUNDS).read_text() for path in (saved, saved / "whole")]
    assert logs[0] == logs[1]
    assert [json.loads(line)["regret"] for line in logs[0].splitlines()] == whole.regret.tolist()


@pytest.mark.parametrize("torn", [files.STATE, files.SELECTIONS])
def test_a_torn_checkpoint_without_another_starts_again(saved, torn):
    content = (saved / torn).read_bytes()
    (saved / torn).write_bytes(content[: len(content) // 3])
    writer = CellWriter(saved, 12, 3, lambda t: 0.5, [files.STATE])
    state, note = writer.resume()
    assert state is None
    assert "torn" in note
    assert writer.rounds.n_rounds == (saved / files.ROUNDS).stat().st_size == 0


@pytest.mark.parametrize("damage", ["short", "gone", "changed"])
def test_a_damaged_log_is_written_again_from_the_columns(saved, damage):
    log = saved / files.ROUNDS
    before = log.read_bytes()
    n_kept = len(b"".join(before.splitlines(keepends=True)[:4]))
    if damage == "gone":
        log.unlink()
    else:
        changed = before.replace(b'"round": 2', b'"round": 7')
        log.write_bytes(before[: n_kept // 2] if damage == "short" else changed)
    state, note = CellWriter(saved, 12, 3, lambda t: 0.5, [files.STATE]).resume()
    assert state is not None
    assert note == "its rounds.jsonl was damaged and was written again."
    assert log.read_bytes() == before[:n_kept]


@pytest.mark.parametrize("torn", [files.STATE, files.SELECTIONS, files.PROGRESS])
def test_a_torn_checkpoint_gives_way_to_the_one_before(saved, torn):
    log = (saved / files.ROUNDS).read_bytes()
    writer = CellWriter(saved, 12, 3, lambda t: 0.5, [files.STATE])
    writer.resume()
    add(writer, 4, 5)
    keep_previous(saved)
    (saved / files.STATE).unlink()  # as a new file takes its place
    (saved / files.STATE).write_bytes(b"selector, later")
    writer.checkpoint({"mine": np.arange(5)})
    (saved / torn).unlink()
    (saved / torn).write_bytes(b"PK")
    writer = CellWriter(saved, 12, 3, lambda t: 0.5, [files.STATE])
    state, note = writer.resume()
    assert note == "its last checkpoint was torn, so it went on from the one before."
    assert (state["mine"].size, writer.rounds.n_rounds) == (3, 4)
    assert (saved / files.STATE).read_bytes() == b"selector"
    assert (saved / files.ROUNDS).read_bytes() == b"".join(log.splitlines(keepends=True)[:4])


def test_what_a_killed_process_was_writing_is_removed(saved):
    (saved / ".state.npz.k3x.tmp").write_bytes(b"half")
    CellWriter(saved, 12, 3, lambda t: 0.5, [files.STATE]).resume()
    assert not list(saved.glob(".*"))


def test_a_damaged_checkpoint_is_named(saved):
    (saved / files.PROGRESS).write_bytes(b"PK")
    with pytest.raises(files.DamagedFile, match=r"progress\.npz is not a complete"):
        CellWriter(saved, 12, 3, lambda t: 0.5, [files.STATE]).resume()
