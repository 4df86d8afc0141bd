import json
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.report.folders import change_arrays, change_json, run_cell, simulated
from turnout.core.errors import InvalidInput
from turnout.report import write_report
from turnout.report.charts import sections
from turnout.report.page import summary_rows
from turnout.results.catalogue import shown_in
from turnout.results.groups import gather
from turnout.results.reader import read_cells


def only_problem(folder):
    cells, problems = read_cells([folder])
    assert len(problems) == 1
    return cells, problems[0]


def test_a_cell_is_read_as_it_was_run(tmp_path):
    folder = run_cell(tmp_path, "e3cs-0.5", seed=3, n_rounds=15)
    run, world = simulated("e3cs-0.5", 3, n_rounds=15)
    (cell,), problems = read_cells([folder])
    assert problems == []
    assert cell.settings.seed == 3
    assert cell.settings.parameters["quota"] == 0.5
    assert cell.is_complete
    assert cell.n_rounds == 15
    np.testing.assert_array_equal(cell.choices.clients, run.clients)
    np.testing.assert_array_equal(cell.class_of, world.classes)
    np.testing.assert_array_equal(np.cumsum(cell.series["completed"]), run.cep)
    np.testing.assert_array_equal(cell.series["length_s"], run.length_s)
    np.testing.assert_array_equal(cell.curves["regret"], run.regret(0.5))


def test_folders_of_any_level_are_found_once(small):
    one = small / "random" / "seed-0"
    assert len(read_cells([small])[0]) == 4
    assert len(read_cells([small.parent])[0]) == 4
    assert len(read_cells([small / "random"])[0]) == 2
    assert len(read_cells([one])[0]) == 1
    assert len(read_cells([one, small, small / "random"])[0]) == 4


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", b'{"format": 1', "config.json is not readable JSON"),
        ("config.json", b"[1, 2]", "config.json holds a list"),
        ("config.json", b"\xff\xfe\x00", "config.json is not readable JSON"),
        ("config.json", b"[" * 100_000, "config.json is not readable JSON"),
        ("summary.json", b'{"cep": ', "summary.json is not readable JSON"),
        ("summary.json", b"null", "summary.json holds a NoneType"),
        ("rounds.jsonl", None, "rounds.jsonl is missing"),
        ("rounds.jsonl", b"", "rounds.jsonl holds 0 rounds in a row of 12"),
        ("selections.npz", None, "selections.npz is missing"),
        ("selections.npz", b"", "selections.npz is not a complete .npz"),
        ("selections.npz", b"PK\x03\x04 not a zip", "selections.npz is not a complete .npz"),
    ],
)
def test_a_damaged_file_is_named_and_the_others_stay(small, name, content, message):
    path = small / "random" / "seed-1" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    cells, problem = only_problem(small)
    assert len(cells) == 3
    assert problem.kind == "damaged"
    assert problem.where == str(path.parent)
    assert message in problem.message


def test_a_truncated_npz_is_damaged(small):
    path = small / "random" / "seed-1" / "selections.npz"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    cells, problem = only_problem(small)
    assert (len(cells), problem.kind) == (3, "damaged")
    assert "selections.npz is not a complete .npz" in problem.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": np.array([0, 5])}, "offsets do not fit"),
        ({"offsets": np.zeros((2, 2), np.int64)}, "columns of integers"),
        ({"clients": np.full(12 * 8, 40)}, "outside 0 .. 39"),
        ({"clients": np.full(12 * 8, -1)}, "outside 0 .. 39"),
        ({"clients": np.full(12 * 8, 1.5)}, "columns of integers"),
        ({"class_of": np.zeros(7, np.int64)}, "class_of is not one class for each of 40"),
        ({"regret": np.zeros(3)}, "regret is not one number per round"),
        ({"backlog_mean": np.full(12, "a")}, "backlog_mean is not one number per round"),
    ],
)
def test_arrays_that_do_not_fit_are_damage(small, change, message):
    path = small / "random" / "seed-1" / "selections.npz"
    change_arrays(path, offsets=np.arange(13) * 8, clients=np.tile(np.arange(8), 12))
    assert read_cells([small])[1] == []
    change_arrays(path, **change)
    cells, problem = only_problem(small)
    assert (len(cells), problem.kind) == (3, "damaged")
    assert message in problem.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("label", 3),
        ("label", ""),
        ("seed", "0"),
        ("seed", True),
        ("n_clients", 0),
        ("n_clients", 10**12),
        ("n_rounds", 1.5),
        ("world_id", None),
        ("world", []),
        ("classes", "a"),
    ],
)
def test_settings_of_the_wrong_kind_are_damage(small, key, value):
    path = small / "random" / "seed-1" / "config.json"
    change_json(path, **{key: value})
    cells, problem = only_problem(small)
    assert (len(cells), problem.kind) == (3, "damaged")
    assert f"config.json: {key} must be" in problem.message


def test_a_newer_format_asks_for_an_upgrade(small):
    path = small / "random" / "seed-1" / "config.json"
    change_json(path, format=2)
    _, problem = only_problem(small)
    assert "upgrade turnout" in problem.message


def test_a_torn_line_is_tolerated_where_no_round_is_missing(small):
    path = small / "random" / "seed-1" / "rounds.jsonl"
    lines = path.read_text().splitlines()
    # a crash tore the line of round 5; the resumed run wrote rounds 4 .. again
    path.write_text("\n".join([*lines[:5], lines[5][:20], *lines[4:]]) + "\n")
    cells, problem = only_problem(small)
    assert len(cells) == 4
    assert problem.kind == "note"
    assert "1 unreadable line" in problem.message
    resumed = next(cell for cell in cells if cell.path == path.parent)
    assert resumed.n_rounds == 12


def test_a_lost_round_of_a_complete_cell_is_damage(small):
    path = small / "random" / "seed-1" / "rounds.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:7] + lines[8:]))
    _, problem = only_problem(small)
    assert problem.kind == "damaged"
    assert "holds 7 rounds in a row of 12" in problem.message
    path.write_text("\n".join([*lines[:11], lines[11][:30]]))  # torn at the very end
    _, problem = only_problem(small)
    assert problem.kind == "damaged"
    assert "holds 11 rounds in a row of 12" in problem.message


def test_an_incomplete_cell_with_a_torn_line_is_read_up_to_it(small):
    folder = small / "random" / "seed-1"
    (folder / "summary.json").unlink()
    (folder / "selections.npz").unlink()
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    (folder / "rounds.jsonl").write_text("\n".join([*lines[:7], lines[7][:30]]))
    cells, problem = only_problem(small)
    assert problem.kind == "incomplete"
    assert problem.message == "7 of 12 rounds, no summary.json."
    cell = next(cell for cell in cells if cell.path == folder)
    assert (cell.n_rounds, cell.is_complete, cell.choices) == (7, False, None)


def test_a_folder_that_only_exists_is_damage(small):
    (small / "random" / "seed-7").mkdir()
    cells, problem = only_problem(small)
    assert (len(cells), problem.kind) == (4, "damaged")


def test_paths_that_are_no_folders_are_refused(small):
    with pytest.raises(InvalidInput, match="does not exist: give a run folder"):
        read_cells([small / "nothing"])
    with pytest.raises(InvalidInput, match="is a file"):
        read_cells([small / "random" / "seed-0" / "config.json"])


def test_unknown_versions_do_not_matter(small):
    (small / "random" / "seed-1" / "versions.json").unlink()
    (small / "random" / "seed-0" / "versions.json").write_text("{")
    cells, problems = read_cells([small])
    assert (len(cells), problems) == (4, [])


FILES = ("config.json", "rounds.jsonl", "selections.npz", "summary.json")


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    folder = run_cell(tmp_path_factory.mktemp("fuzz"), "e3cs-0.5", n_rounds=6)
    return folder, {name: (folder / name).read_bytes() for name in FILES}


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(FILES),
    cut=st.floats(0.0, 1.0),
    flips=st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 255)), max_size=4),
)
def test_no_damage_stops_the_reader(victim, name, cut, flips):
    folder, whole = victim
    content = bytearray(whole[name][: round(cut * len(whole[name]))])
    for where, byte in flips:
        if content:
            content[round(where * (len(content) - 1))] = byte
    for each in FILES:
        (folder / each).write_bytes(whole[each])
    (folder / name).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cells, problems = read_cells([folder])
        assert cells or problems
        worlds, _ = gather(cells)
        for world in worlds:
            summary_rows(world, shown_in("report"))
            sections(world, {variant.name: 0 for variant in world.variants})


def test_numbers_beyond_reason_count_as_missing(small, tmp_path):
    path = small / "random" / "seed-1" / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[3] |= {"length_s": 1e300, "wasted_s": "much", "regret": True}
    text = "\n".join(json.dumps(line) for line in lines)
    path.write_text(text.replace('"late": 0', '"late": NaN', 1))
    cells, problems = read_cells([small])
    assert problems == []
    cell = next(cell for cell in cells if cell.path == path.parent)
    assert [np.isnan(cell.series[name][3]) for name in ("length_s", "wasted_s", "regret")] == [
        True
    ] * 3
    write_report([small], tmp_path / "r.html")
