import json

import numpy as np
import pytest
from typer.testing import CliRunner

import turnout
from turnout import InvalidInput
from turnout.cli import app
from turnout.core.files import write_npz
from turnout.results import files, read_cell
from turnout.results.metrics import guarantee
from turnout.worlds import Bernoulli, Environment, e3cs_world

HALF_THERE = Environment(20, availability=Bernoulli(rate=0.5), seed=4)


def simulated(selector, world=HALF_THERE, n_rounds=120):
    return turnout.simulate(selector, world, cohort_size=4, n_rounds=n_rounds)


def run_command(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["fedcs", "oort", "dirichlet", "round-robin"])
def test_a_guarded_run_is_certified_and_an_unguarded_is_not(inner):
    run = simulated(turnout.make("guarded", inner=inner))
    assert guarantee(run).holds
    if inner != "round-robin":
        assert not guarantee(simulated(inner)).holds


def test_names_who_fell_short_and_who_was_ahead():
    run = simulated(turnout.make("dirichlet", concentration=0.05))
    certificate = guarantee(run, floor=0.5, cap=2.0)
    np.testing.assert_array_equal(certificate.chosen, run.counts)
    never = run.counts == 0
    assert never.any()
    assert certificate.is_short[never].all()
    np.testing.assert_allclose(certificate.shortfall[never], 0.5 * certificate.share[never])
    assert certificate.is_ahead[run.counts.argmax()]


def test_places_are_what_was_asked_for():
    run = simulated("random", e3cs_world(seed=1), n_rounds=10)
    assert guarantee(run).share.tolist() == pytest.approx([10 * 4 / 100] * 100)


def test_no_cap_and_no_floor_always_hold():
    certificate = guarantee(simulated("dirichlet"), floor=0.0, cap=np.inf, slack=0.0)
    assert certificate.holds
    assert certificate.excess.max() == 0.0


@pytest.mark.parametrize("wrong", [{"floor": 2.0}, {"cap": 0.5}, {"slack": -1.0}])
def test_refuses_what_is_no_guarantee(wrong):
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} must be"):
        guarantee(simulated("random", n_rounds=2), **wrong)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    sizes = ["--rounds", "150", "--clients", "30", "--cohort", "5"]
    for name, selector in {"fair": "guarded", "unfair": "fedcs"}.items():
        inner = ["--param", "inner=fedcs", "--param", "floor=0.5"] if name == "fair" else []
        made = run_command("simulate", selector, *inner, *sizes, "--out", folder / name)
        assert made.exit_code == 0, made.output
    return folder


@pytest.mark.slow
def test_audit_ends_with_0_when_the_guarantee_holds(runs):
    audited = run_command("audit", runs / "fair", "--floor", "0.5", "--cap", "2")
    assert audited.exit_code == 0, audited.output
    assert "holds" in audited.output


def test_audit_names_the_clients_and_ends_with_1(runs):
    audited = run_command("audit", runs / "unfair", "--floor", "0.5", "--cap", "2", "--json")
    assert audited.exit_code == 1
    offences = json.loads(audited.output)
    (path,) = (path.parent for path in (runs / "unfair").rglob(files.SUMMARY))
    certificate = guarantee(read_cell(path).run)
    short = [row["client"] for row in offences if row["what"] == "short"]
    assert sorted(short) == np.flatnonzero(certificate.is_short).tolist()
    assert offences[0]["places"] == pytest.approx(certificate.shortfall.max())
    shown = run_command("audit", runs / "unfair")
    assert shown.exit_code == 1
    assert f"{len(offences)} offences" in shown.output


def test_audit_without_a_run_is_refused(tmp_path):
    assert run_command("audit", tmp_path).exit_code == 2


def test_a_damaged_availability_is_noticed(runs, tmp_path):
    (summary,) = (runs / "fair").rglob(files.SUMMARY)
    for path in summary.parent.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    columns = files.read_arrays(tmp_path / files.SELECTIONS)
    write_npz(tmp_path / files.SELECTIONS, columns | {"available_at": columns["offsets"] * 9})
    with pytest.raises(files.DamagedFile, match="available_at does not fit"):
        read_cell(tmp_path)


def test_the_report_and_the_summary_show_the_worst_shortfall(runs, tmp_path):
    page = tmp_path / "report.html"
    made = run_command("report", runs / "unfair", "--out", page, "--json")
    assert made.exit_code == 0, made.output
    (row,) = json.loads(made.output)["rows"]
    (summary,) = (runs / "unfair").rglob(files.SUMMARY)
    expected = guarantee(read_cell(summary.parent).run, floor=0.5).shortfall.max()
    assert row["shortfall"]["mean"] == pytest.approx(expected)
    assert json.loads(summary.read_text())["shortfall"] == pytest.approx(expected)
    assert "Shortfall" in page.read_text()
