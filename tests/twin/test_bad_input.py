"""Records that cannot be fitted, or say less than they seem to."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import turnout
from tests.report.live_folders import live_folder
from turnout.cli import app
from turnout.core.errors import InvalidInput
from turnout.core.files import write_npz
from turnout.core.types import Status
from turnout.experiment import Experiment, run_experiment
from turnout.results.answers import LiveAnswers
from turnout.results.files import read_arrays
from turnout.studies import advise
from turnout.twin import check, replay
from turnout.twin.fit import fit_log
from turnout.twin.log import read_log
from turnout.worlds import FixedDeadline


def recorded(folder: Path, world: str = "volatile", n_rounds: int = 60, **more: object) -> Path:
    options = {"seeds": 1, "n_jobs": 1, "out": folder, **more}
    turnout.compare(["random"], world, n_rounds=n_rounds, **options)
    return folder


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("bad") / "log")


def changed(
    log: Path, target: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
) -> Path:
    shutil.copytree(log, target)
    path = target / "random" / "seed-0" / "selections.npz"
    write_npz(path, change(read_arrays(path)))
    return target


def by_name(world: turnout.twin.FittedWorld) -> dict[str, turnout.twin.Quantity]:
    return {each.name: each for each in world.quantities}


def test_nothing_to_read(tmp_path: Path):
    with pytest.raises(InvalidInput, match="does not exist"):
        turnout.fit(tmp_path / "nope")
    with pytest.raises(InvalidInput, match="runs must hold recorded rounds"):
        turnout.fit(tmp_path)


def test_two_federations(log: Path, tmp_path: Path):
    other = recorded(tmp_path / "e3cs", "e3cs")
    with pytest.raises(InvalidInput, match="were simulated in different worlds"):
        turnout.fit([log, other])
    seeds = recorded(tmp_path / "seeds", seeds=2)
    with pytest.raises(InvalidInput, match="give runs of one seed"):
        turnout.fit(seeds)


def test_rounds_that_overlap(tmp_path: Path):
    schedule = {"kind": "buffered", "size": 4, "concurrency": 10}
    overlapping = recorded(tmp_path / "overlapping", schedule=schedule)
    message = "rounds of this run overlap, and fit and replay read synchronous rounds only"
    for use in (turnout.fit, check, lambda runs: replay(runs, ["e3cs"]), advise):
        with pytest.raises(InvalidInput, match=message):
            use(overlapping)
    with pytest.raises(InvalidInput, match=message):
        turnout.fit([recorded(tmp_path / "log"), overlapping])


def test_too_few_later_rounds_are_no_verdict(tmp_path: Path):
    few = recorded(tmp_path / "few", n_rounds=20)
    checked = check(few, n_draws=10)
    assert not checked.is_judged
    assert checked.is_calibrated is None
    told = CliRunner().invoke(
        app, ["fit", str(few), "-o", str(tmp_path / "w.toml"), "--check", "--json"]
    )
    assert json.loads(told.stdout)["check"]["is_calibrated"] is None


def test_two_selectors_in_one_world_are_one_federation(tmp_path: Path):
    options = {"n_rounds": 60, "seeds": 1, "n_jobs": 1, "out": tmp_path}
    turnout.compare(["random", "e3cs"], "volatile", **options)
    world = turnout.fit(tmp_path)
    assert world.n_rounds == 60
    assert "2,400 choices" in by_name(world)["success"].learned_from
    # Both saw the same 60 rounds, so the pool is counted once.
    assert by_name(world)["availability"].learned_from == "6,000 client rounds"


def test_records_of_mixed_versions_are_noted(tmp_path: Path):
    options = {"n_rounds": 60, "seeds": 1, "n_jobs": 1, "out": tmp_path}
    turnout.compare(["random", "e3cs"], "volatile", **options)
    path = tmp_path / "e3cs" / "seed-0" / "versions.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"turnout": "0.1.0"}))
    assert any("turnout 0.1.0 and " in text for text in turnout.fit(tmp_path).notes)


def test_a_short_log_leaves_more_open(tmp_path: Path, log: Path):
    short, long = turnout.fit(recorded(tmp_path / "short", n_rounds=10)), turnout.fit(log)
    spread = [
        np.std(
            [w.environment_of(seed).volatility.effects(100, seed)[:, 1] for seed in range(20)],
            axis=0,
        )
        for w in (short, long)
    ]
    assert spread[0].mean() > 1.3 * spread[1].mean()
    with pytest.raises(InvalidInput, match="at least 5 rounds"):
        turnout.fit(recorded(tmp_path / "shorter", n_rounds=3))
    with pytest.raises(InvalidInput, match="at least 8 rounds for a check, got 6"):
        check(recorded(tmp_path / "six", n_rounds=6))


def test_no_answer_at_all(log: Path, tmp_path: Path):
    all_silent = changed(
        log, tmp_path / "silent", lambda c: c | {"status": np.full_like(c["status"], 3)}
    )
    with pytest.raises(InvalidInput, match="not one answer in time"):
        turnout.fit(all_silent)


def test_clocks_that_jump_are_left_out(log: Path, tmp_path: Path):
    def jump(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        duration = columns["duration"].copy()
        duration[::10] += 86_400.0
        duration[5::10] = -3.0
        return columns | {"duration": duration}

    plain, odd = turnout.fit(log), turnout.fit(changed(log, tmp_path / "jump", jump))
    assert any("a clock has jumped" in text for text in odd.notes)
    assert np.median(np.abs(np.log(odd.seconds / plain.seconds))) < 0.1


def test_no_durations_are_a_guess(log: Path, tmp_path: Path):
    unknown = changed(
        log, tmp_path / "unknown", lambda c: c | {"duration": np.full_like(c["duration"], np.nan)}
    )
    assert by_name(turnout.fit(unknown))["durations"].is_guess


def test_late_answers_do_not_stand_for_unknown_ones(tmp_path: Path):
    """Without seconds of answers in time, the late ones made everyone slower than the deadline."""
    policy = FixedDeadline(6.0)
    experiment = Experiment(["random"], world="volatile", n_rounds=60, seeds=1, policy=policy)
    run_experiment(experiment, log := tmp_path / "late", n_jobs=1)
    success = read_log([log]).status == Status.COMPLETED

    def forget(share: float) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
        def change(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            gone = np.random.default_rng(1).random(columns["status"].size) < share
            return columns | {"duration": np.where(gone, np.nan, columns["duration"])}

        return change

    for share in (0.5, 1.0):
        world = turnout.fit(changed(log, tmp_path / f"{share}", forget(share)))
        assert by_name(world)["durations"].is_guess == (share == 1.0)
        assert world.in_time(6.0).mean() == pytest.approx(success.mean(), abs=0.08)


def test_clients_that_report_their_seconds_do_not_pay_for_those_that_do_not(tmp_path: Path):
    policy = FixedDeadline(6.0)
    experiment = Experiment(["random"], world="volatile", n_rounds=150, seeds=1, policy=policy)
    run_experiment(experiment, log := tmp_path / "late", n_jobs=1)

    def silent(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return columns | {
            "duration": np.where(columns["clients"] % 2 == 0, np.nan, columns["duration"])
        }

    whole, some = turnout.fit(log), turnout.fit(changed(log, tmp_path / "some", silent))
    reporting = some.in_time(6.0)[1::2].mean() - whole.in_time(6.0)[1::2].mean()
    assert abs(reporting) < 0.025
    assert abs(some.in_time(6.0)[::2].mean() - whole.in_time(6.0)[::2].mean()) < 0.12


def test_runs_that_happen_to_choose_the_same_clients_are_no_copies(tmp_path: Path):
    everyone = Experiment(
        ["random", "e3cs"], world="volatile", n_clients=8, cohort_size=8, n_rounds=20, seeds=1
    )
    run_experiment(everyone, tmp_path / "everyone", n_jobs=1)
    assert len(read_log([tmp_path / "everyone"]).records) == 2


def test_a_run_and_its_copy_are_refused(log: Path, tmp_path: Path):
    shutil.copytree(log, tmp_path / "backup")
    with pytest.raises(InvalidInput, match=r"got the same rounds in .* leave out one of them"):
        turnout.fit([log, tmp_path / "backup"])


def rewritten(path: Path, lines: list[dict[str, object]]) -> Path:
    (path / "answers.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def test_live_records_whose_clock_went_back_or_that_lack_rounds_are_noted(tmp_path: Path):
    path = live_folder(tmp_path, n_rounds=20)
    lines = [json.loads(line) for line in (path / "answers.jsonl").read_text().splitlines()]
    assert turnout.fit(path).notes == ()
    back = [each | {"began": "2020-01-01T00:00:00+00:00"} if t > 12 else each
            for t, each in enumerate(lines)]  # fmt: skip
    (note,) = turnout.fit(rewritten(path, back)).notes
    assert note.endswith("clock went back before round 14, so times of day were not used.")
    unknown = [each | {"began": ""} if t in (3, 4, 5) else each for t, each in enumerate(back)]
    (note,) = turnout.fit(rewritten(path, unknown)).notes
    assert "before round 14" in note
    (note,) = replay(rewritten(path, lines[:12]), ["random"]).log.notes
    assert "answers.jsonl has 12 of 20 rounds" in note
    (path / "answers.jsonl").unlink()
    assert "answers.jsonl has 0 of 20 rounds" in turnout.fit(path).notes[0]


def test_an_old_record_without_the_pool_is_a_guess(log: Path, tmp_path: Path):
    def old(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: x for name, x in columns.items() if not name.startswith("available")}

    world = turnout.fit(changed(log, tmp_path / "old", old))
    assert by_name(world)["availability"].is_guess
    assert world.environment.context(0, 5).pool.size > 90
    assert not [each for each in check(tmp_path / "old").coverages if "there" in each.name]


def test_a_damaged_run_is_named_and_the_others_are_used(tmp_path: Path):
    options = {"n_rounds": 60, "seeds": 1, "n_jobs": 1, "out": tmp_path}
    turnout.compare(["random", "e3cs"], "volatile", **options)
    (tmp_path / "e3cs" / "seed-0" / "selections.npz").write_bytes(b"PK")
    world = turnout.fit(tmp_path)
    assert "1,200 choices" in by_name(world)["success"].learned_from
    assert any("selections.npz is not a complete .npz" in text for text in world.notes)
    (tmp_path / "random" / "seed-0" / "rounds.jsonl").unlink()
    with pytest.raises(InvalidInput, match=r"runs must hold recorded rounds: damaged"):
        turnout.fit(tmp_path)


def test_a_replay_never_takes_a_jump_of_the_clock_for_work(log: Path, tmp_path: Path):
    def jump(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        jumped = {name: columns[name].copy() for name in ("duration", "spent")}
        for values in jumped.values():
            values[::50] += 86_400.0
        return columns | jumped

    odd = replay(changed(log, tmp_path / "jump", jump), ["e3cs"])
    assert any("a clock has jumped" in text for text in odd.notes)
    assert any(text.startswith("seconds are not judged") for text in odd.notes)
    assert set(odd.candidates[0].estimates) == {"success", "wasted"}  # who answered wasted none
    plain = replay(log, ["e3cs"])
    assert set(plain.candidates[0].estimates) == {"success", "seconds", "wasted"}
    assert odd.candidates[0].estimates["success"]["self_normalised"].mean == (
        plain.candidates[0].estimates["success"]["self_normalised"].mean
    )


def test_no_losses_are_a_guess_and_not_judged(log: Path):
    world, found = turnout.fit(log), replay(log, ["e3cs"])
    assert by_name(world)["losses"].is_guess
    assert "no losses in the records" in by_name(world)["losses"].remark
    assert any("no client reported a loss" in text for text in found.notes)
    assert "utility" not in found.candidates[0].estimates


def test_a_replay_of_a_damaged_run_or_of_two_federations_is_refused(log: Path, tmp_path: Path):
    broken = tmp_path / "broken"
    shutil.copytree(log, broken)
    (broken / "random" / "seed-0" / "selections.npz").write_bytes(b"PK")
    with pytest.raises(InvalidInput, match=r"selections\.npz is not a complete \.npz"):
        replay(broken, ["e3cs"])
    with pytest.raises(InvalidInput, match="were simulated in different worlds"):
        replay([log, recorded(tmp_path / "e3cs", "e3cs")], ["e3cs"])


def test_clients_that_were_renamed_are_noted(log: Path):
    """Half of the clients are there in the first half of the rounds, the others in the second."""
    found = read_log([log])
    (record,) = found.records
    run, n = record.run, found.n_clients
    there = np.zeros((run.n_rounds, n), dtype=np.bool_)
    there[: run.n_rounds // 2, : n // 2] = True
    there[run.n_rounds // 2 :, n // 2 :] = True
    none, idle = np.zeros(0, dtype=np.int64), np.zeros(run.n_rounds)
    began = tuple(f"2026-03-01T{t // 60:02d}:{t % 60:02d}:00+00:00" for t in range(run.n_rounds))
    answers = LiveAnswers(
        found.names, began, idle, idle, idle > 0.0, (none,) * run.n_rounds, none, none, none,
        np.zeros(0), {},
    )  # fmt: skip
    pooled = replace(
        run,
        available_bits=np.packbits(there, axis=1).ravel(),
        available_at=np.arange(run.n_rounds + 1) * math.ceil(n / 8),
        n_available=there.sum(axis=1),
    )
    live = replace(found, records=(record._replace(run=pooled, answers=answers),))
    (note,) = fit_log(live).notes
    assert note.startswith(f"{n // 2} clients were there in the first third of the rounds and not")
    assert "join them in the checkpoint with turnout clients --merge" in note
