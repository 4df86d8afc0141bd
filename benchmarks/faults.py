"""Faults, damaged files and odd input: runs their tests and keeps how often each was tried.

Writes results/faults.json after each row, from which docs/build_reliability.py makes a table of
docs/reliability.md. A row that was tried at least as often is not run again::

    python benchmarks/faults.py            # as often as CI tries it: minutes
    python benchmarks/faults.py --long     # far more often: hours
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from turnout.core.files import write_atomically

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "faults.json"


class Row(NamedTuple):
    """A fault, what its tests assert of it, and where they are."""

    fault: str
    outcome: str
    tests: tuple[str, ...]
    is_kill: bool = False  #: one of the kills at random moments, which the page adds up


def killed(what: str, test: str, outcome: str = "same numbers, nothing left behind") -> Row:
    """Return the row of kills at random moments.

    Args:
        what: What is killed.
        test: Its test.
        outcome: What is asserted.
    """
    return Row(f"killed at a random moment: {what}", outcome, (test,), is_kill=True)


_COMMAND_KILLS = "experiment/test_crash_points.py::test_kills_at_random_moments_change_no_number"
_SERVER_KILLS = "serve/test_faults.py::test_kills_at_random_moments_lose_nothing"
_SERVED = "every answered round and report is there once, cohorts of an offline replay"
_RESUMED = "every round once; cohorts, model and selector as without the kills"


ROWS = (
    Row(
        "a few bytes of a selector's file changed, checksums valid",
        "refused by name, or plays on",
        ("results/test_damaged_files.py::test_flips_under_a_valid_checksum_are_refused_or_usable",),
    ),
    Row(
        "the same with the checkpoint of a live run in Flower",
        "refused by name, or goes on",
        ("live/flower/test_damaged_checkpoint.py::test_flips_under_a_valid_checksum",),
    ),
    Row(
        "NaN, infinite, negative or huge numbers in each part of each selector's state",
        "outside the declared range refused, the rest plays on",
        ("results/test_damaged_files.py::test_numbers_out_of_range_are_refused_or_used",),
    ),
    Row(
        "1e9 clients in a small file, a deflate bomb, a shape without its numbers",
        "refused before anything is allocated",
        (
            "results/test_damaged_files.py::test_many_clients_in_a_small_file_are_not_allocated",
            "results/test_damaged_files.py::test_a_deflate_bomb_is_not_unpacked",
            "results/test_damaged_files.py::test_a_shape_without_its_numbers_is_not_allocated",
        ),
    ),
    Row(
        "a pipe or an endless device in a run folder",
        "refused, no waiting",
        (
            "results/test_files.py::test_files_that_are_none_do_not_hang",
            "results/test_files.py::test_a_run_folder_with_a_pipe_or_a_device_is_refused",
        ),
    ),
    Row(
        "odd values for every public entry, functions of arrays among them",
        "only turnout's errors and `TypeError`",
        ("core/test_bad_input.py::test_odd_values_raise_nothing_but_our_errors",),
    ),
    Row(
        "random bodies for every request of `turnout serve`",
        "a status below 500 and a problem that names the field",
        ("serve/test_bad_requests.py::test_random_bodies_never_fail_the_server",),
    ),
    Row(
        "a full disk (a small one, mounted; a limit on the size of files where mounting is not "
        "allowed)",
        "one line, exit code 1, what was finished is as it was, same numbers when there is room "
        "again",
        (
            "docs/test_faults.py::test_a_full_disk_is_one_line_and_costs_nothing_that_is_finished",
            "docs/test_faults.py::test_a_live_run_on_a_full_disk_goes_on_from_its_last_checkpoint",
        ),
    ),
    Row(
        "a read-only disk, or a target below a file",
        "one line, exit code 1, runs kept",
        (
            "docs/test_faults.py::test_a_place_that_cannot_be_written_is_one_line",
            "docs/test_faults.py::test_results_that_cannot_be_written_are_one_line",
            "docs/test_faults.py::test_a_live_run_that_cannot_be_saved_says_so",
        ),
    ),
    Row(
        "the folder removed meanwhile",
        "one line",
        (
            "docs/test_faults.py::test_a_folder_that_is_removed_meanwhile_is_one_line",
            "docs/test_faults.py::test_a_report_of_a_folder_that_was_removed_is_one_line",
            "docs/test_faults.py::test_a_live_run_whose_folder_is_removed_says_so",
        ),
    ),
    Row(
        "death at an operation on files (write, fsync, rename, link, removal, new folder, "
        "truncation), with and without the loss of what was not synced: `simulate`, `compare`, "
        "many checkpoints, `train`, `reproduce`, `report`, a live run",
        "same numbers after a restart, nothing left behind",
        ("experiment/test_crash_points.py::test_it_may_die_at_every_operation_on_files",),
    ),
    killed("`turnout simulate`", f"{_COMMAND_KILLS}[simulate]"),
    killed("`turnout compare`", f"{_COMMAND_KILLS}[compare]"),
    killed("`turnout compare --train`", f"{_COMMAND_KILLS}[train]"),
    killed("`turnout reproduce`", f"{_COMMAND_KILLS}[reproduce]"),
    killed("`turnout report`", f"{_COMMAND_KILLS}[report]"),
    killed(
        "a grid on Ray, four times of five a worker, otherwise the process that sends the work",
        "experiment/test_ray.py::test_kills_at_random_moments_change_no_number",
    ),
    killed("a live run without a framework", f"{_COMMAND_KILLS}[session]", _RESUMED),
    killed("Flower's strategy, nodes in memory", f"{_COMMAND_KILLS}[flower]", _RESUMED),
    killed("NVFlare's controller, clients in memory", f"{_COMMAND_KILLS}[nvflare]", _RESUMED),
    killed("`turnout serve` on SQLite, under load", f"{_SERVER_KILLS}[sqlite]", _SERVED),
    killed("`turnout serve` on PostgreSQL, under load", f"{_SERVER_KILLS}[postgresql]", _SERVED),
    killed(
        "one of two servers on one PostgreSQL, under load",
        "serve/test_faults.py::test_one_of_two_servers_is_killed",
        _SERVED,
    ),
    Row(
        "the network between server and clients, and between server and PostgreSQL, cut under load "
        "by namespaces; *long*: for 1, 10 and 60 s",
        _SERVED,
        ("serve/test_faults.py::test_the_network_is_cut",),
    ),
    Row(
        "PostgreSQL stopped under load, by turns with a crash of it",
        _SERVED,
        ("serve/test_faults.py::test_the_database_is_stopped_under_load",),
    ),
    Row(
        "a full disk below the SQLite file of a server under load",
        "errors while it is full; every answered round and report is there once",
        ("serve/test_faults.py::test_a_full_disk_under_load",),
    ),
    Row(
        "a slow PostgreSQL: each packet 20 ms later in both directions, by a relay; reports",
        _SERVED,
        ("serve/test_faults.py::test_a_slow_database_costs_time_only",),
    ),
    Row(
        "the clock of `turnout serve` set forward or back by an hour, and back again, under load, "
        "and a kill each time (`time.time` of the process is replaced)",
        _SERVED,
        ("serve/test_faults.py::test_the_clock_of_the_server_is_set_by_an_hour",),
    ),
    Row(
        "Ctrl-C or SIGTERM: `simulate`, `compare`, `train`, `reproduce`, `arena`",
        "a checkpoint after the rounds in progress, its round in the message, same numbers when "
        "the command goes on",
        ("experiment/test_interrupt.py",),
    ),
    Row(
        "Ctrl-C or SIGTERM to a ServerApp of Flower, with Flower's handlers",
        "the checkpoint of the round before, which the message names; same model in the end",
        (
            "live/flower/test_resume.py"
            "::test_a_server_app_that_is_stopped_goes_on_and_says_from_where",
        ),
    ),
    Row(
        "a deployment of NVFlare with processes: server and clients killed in a round, clients "
        "that die, freeze, sleep or send rubbish",
        "same cohorts and model; one receipt for each answer; shadows in every round",
        (
            "live/nvflare/test_simulator.py::test_no_accident_ends_the_run_or_reaches_the_model",
            "live/nvflare/test_simulator.py"
            "::test_a_killed_server_goes_on_with_the_same_cohorts_and_model",
            "live/nvflare/test_simulator.py::test_each_answer_has_one_receipt_that_can_be_checked",
            "live/nvflare/test_simulator.py::test_shadows_choose_in_every_round_also_after_a_kill",
        ),
    ),
    Row(
        "TERM, HUP, KILL or INT to the parent process alone, while workers run",
        "all processes end within seconds, and the folder is free",
        ("results/test_lock.py::test_workers_end_with_their_parent",),
    ),
    Row(
        "a second command on a folder, a lock whose owner is gone",
        "refused with the name of the owner; taken over",
        (
            "results/test_lock.py::test_the_second_is_told_who_holds_the_folder",
            "results/test_lock.py::test_the_command_ends_with_exit_code_2",
            "results/test_lock.py::test_a_merge_does_not_write_beside_a_run",
            "results/test_lock.py::test_a_lock_that_nobody_holds_is_taken_over",
        ),
    ),
    Row(
        "the clock set back or forward by an hour and by a day, between two runs and during one "
        "(an injected clock)",
        "nobody stays busy for longer than when the checkpoint was written; nothing else changes",
        ("live/test_clock.py",),
    ),
    Row(
        "histories against `guarded`, up to 400 for each test, feedback late and out of order "
        "among them, and restarts",
        "inside the [bounds](howto/guarantee.md) over every window, and inside the "
        "[limits](howto/privacy.md) for every pair of rounds",
        ("selectors/test_guarded_histories.py", "selectors/test_participation.py"),
    ),
    Row(
        "clients that lie, fall silent or die, in a small form of the tables below",
        "with `guarded` never above twice the fair share, no honest client below half of it by "
        "more than a place",
        ("docs/test_reliability.py::test_bounds_and_guard_hold_what_the_page_says",),
    ),
)


def played(row: Row, is_long: bool) -> dict[str, Any]:
    """Run the tests of a row and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}"]
        command += ["-o", "junit_family=xunit1"]  # the newer one has no properties of a test
        command += ["--long"] if is_long else []
        command += [f"tests/{test}" for test in row.tests]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        if done.returncode not in (0, 1):  # 1: a test failed, which is a result
            sys.exit(f"pytest ended with {done.returncode}: {' '.join(command)}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    return figures(row, [case for case in cases if not has(case, "skipped")], is_long)


def figures(row: Row, tests: Sequence[ElementTree.Element], is_long: bool) -> dict[str, Any]:
    """Return what is kept of a row; without tests, it was not tried yet."""
    return {
        "fault": row.fault,
        "outcome": row.outcome,
        "tests": list(row.tests),
        "is_kill": row.is_kill,
        "tries": sum(tries(case) for case in tests),
        "failed": sum(has(case, "failure") or has(case, "error") for case in tests),
        "seconds": round(sum(float(case.get("time", 0)) for case in tests), 1),
        "long": is_long,
    }


def has(case: ElementTree.Element, name: str) -> bool:
    """Return whether a test ended in a way."""
    return case.find(name) is not None


def tries(case: ElementTree.Element) -> int:
    """Return how often a test tried; one that says nothing tried once."""
    said = [int(item.get("value", 1)) for item in case.iter("property")]
    return max(said, default=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file to continue")
    parser.add_argument("--long", action="store_true", help="far more often than CI")
    parser.add_argument("--only", nargs="+", default=[""], help="words in the faults to run")
    arguments = parser.parse_args()
    out: Path = arguments.out
    saved: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for row in ROWS:
        is_wanted = any(word in row.fault for word in arguments.only)
        kept = saved.get(row.fault, figures(row, [], False))
        is_same = kept["tests"] == list(row.tests) and kept["long"] >= arguments.long
        if is_wanted and not (is_same and kept["tries"]):
            saved[row.fault] = played(row, arguments.long)
            ordered = {row.fault: saved.get(row.fault, figures(row, [], False)) for row in ROWS}
            write_atomically(out, (json.dumps(ordered, indent=1) + "\n").encode())
    failed = sum(saved[row.fault]["failed"] for row in ROWS if row.fault in saved)
    sys.exit(f"{failed} tests failed." if failed else 0)


if __name__ == "__main__":
    main()
