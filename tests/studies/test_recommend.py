"""``turnout recommend``: who fits, who is ahead, and what to take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import turnout
from turnout.cli import app
from turnout.core.errors import InvalidInput
from turnout.experiment.variants import parse_variant
from turnout.results.catalogue import metric_named
from turnout.results.scores import Numbers, Scores
from turnout.studies import recommend
from turnout.studies.recommendation import candidates, needs_of, verdict

SMALL = ("--rounds", "20", "--clients", "12", "--cohort", "3", "--seeds", "3", "--jobs", "1")
METRIC = metric_named("success_ratio")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def scores(**values: list[float]) -> Scores:
    def numbers(value: float) -> Numbers:
        return lambda metric: value

    return Scores(
        {
            label.replace("_", "-"): {seed: numbers(value) for seed, value in enumerate(those)}
            for label, those in values.items()
        }
    )


def take(table: Scores) -> tuple[str, set[str]]:
    decision = verdict(table, METRIC, [parse_variant(label) for label in table.labels])
    return decision.winner, set(decision.alike)


# who fits --------------------------------------------------------------------------------------


def test_who_needs_what_the_world_has_not_is_left_out_with_the_reason() -> None:
    experiment, left_out = candidates([], ["success_rate", "poll"], world="e3cs", seeds=2)
    assert "context" in left_out["rbcs-f"]
    assert left_out["fedcs"] == "it needs success_rate"
    assert left_out["pow-d"] == left_out["cpow-d"] == "it needs poll"
    assert {"dirichlet", "guarded", "mix"} < set(left_out)
    assert {*experiment.labels, *left_out} == set(turnout.list_selectors())
    for variant in experiment.selectors:
        assert not {"success_rate", "poll", "context"} & set(needs_of(variant.make()))


def test_in_another_world_others_fit() -> None:
    experiment, left_out = candidates([], (), world="volatile", seeds=2)
    assert {"rbcs-f", "fedcs", "pow-d"} <= set(experiment.labels)
    assert set(left_out) == {"dirichlet", "guarded", "mix"}


def test_those_who_were_asked_for_are_candidates() -> None:
    experiment, left_out = candidates(["dirichlet", "e3cs:quota=[0,1]"], seeds=2)
    assert experiment.labels == ("dirichlet", "e3cs quota=0", "e3cs quota=1")
    assert left_out == {}
    with pytest.raises(InvalidInput, match=r"no selector fits.*rbcs-f.*'context'"):
        candidates(["rbcs-f"], world="e3cs", seeds=2)
    with pytest.raises(InvalidInput, match="quotta"):
        candidates(["e3cs:quotta=1"], seeds=2)


# what to take ----------------------------------------------------------------------------------


def test_a_lead_that_is_more_than_chance_wins() -> None:
    table = scores(random=[0.1, 0.2, 0.1, 0.2], oort=[0.6, 0.72, 0.61, 0.7])
    assert take(table) == ("oort", {"oort"})


def test_of_those_that_are_alike_the_one_that_needs_least_is_taken() -> None:
    noise = scores(oort=[0.5, 0.7, 0.4], e3cs=[0.6, 0.4, 0.5], random=[0.4, 0.5, 0.6])
    assert take(noise) == ("random", {"oort", "e3cs", "random"})
    clear = scores(
        oort=[0.7, 0.5, 0.6, 0.72], e3cs=[0.6, 0.6, 0.61, 0.6], random=[0.1, 0.11, 0.1, 0.09]
    )
    assert take(clear) == ("e3cs", {"oort", "e3cs"})


def test_if_all_are_equal_the_baseline_is_taken() -> None:
    assert take(scores(e3cs=[1.0, 1.0], random=[1.0, 1.0])) == ("random", {"e3cs", "random"})


# command line ----------------------------------------------------------------------------------


def test_it_prints_the_ranking_the_reasons_and_a_line_that_works() -> None:
    command = ("recommend", "random", "E=e3cs:quota=0.0", "rbcs-f", "--world", "e3cs", *SMALL)
    result = run(*command)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "Left out: rbcs-f: RBCSF needs the column 'context'" in text
    assert "Take " in text
    assert "It needs: nothing" in text
    assert "20 rounds, 3 of 12 clients, 3 seeds" in text
    line = next(line for line in result.output.splitlines() if line.startswith("strategy = "))
    made: list[Any] = []
    names = {"SelectingStrategy": lambda *a, **k: made.append((a, k)), "FedAvg": list}
    assert "import turnout" in result.output.splitlines()
    exec(f"import turnout\n{line}", names)
    ((_, selector), options) = made[0]
    assert isinstance(selector, turnout.Selector)
    assert options == {"cohort_size": 3}


def test_json_has_the_ranking() -> None:
    command = ("recommend", "random", "fedcs", "--without", "poll", "--world", "e3cs", *SMALL)
    row = json.loads(run(*command, "--json").stdout)
    assert row["metric"] == "success_ratio"
    assert [each["label"] for each in row["ranking"]] == ["fedcs", "random"]
    assert (row["take"], row["alike"], row["is_clear"]) == ("fedcs", ["fedcs"], True)
    assert row["ranking"][1]["difference"]["success_ratio"]["p"] < 0.05
    assert Path(row["folder"]).is_dir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--metric", "accuracy"), "--metric accuracy needs training: give --train"),
        (("--metric", "sucess_ratio"), "success_ratio"),
        (("--data", "digits"), "without --train"),
        (("--world", "e3cs", "--world", "volatile"), "compare takes several"),
        (("rbcs-f", "--world", "e3cs"), "no selector fits"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    arguments: tuple[str, ...], message: str
) -> None:
    result = run("recommend", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert list(Path().iterdir()) == []


# where it starts -------------------------------------------------------------------------------


def test_it_starts_from_the_arena_and_leaves_changed_parameters_out() -> None:
    result = run("recommend", "random", "e3cs", "--json", *SMALL)
    content = json.loads(result.stdout)
    assert set(content["arena"]) == {"random", "e3cs"}
    assert content["arena"]["e3cs"]["time"][0] > 0.0
    other = run("recommend", "random", "Mine=e3cs:quota=0.9", "--json", *SMALL)
    assert set(json.loads(other.stdout)["arena"]) == {"random"}
    shown = run("recommend", "random", "e3cs", *SMALL).output
    assert shown.index("In the arena") < shown.index("Take ")


def test_the_python_call_returns_the_decision_and_the_ranking() -> None:
    sizes = {"n_rounds": 20, "n_clients": 12, "cohort_size": 3, "seeds": 3}
    found = recommend(
        ["random", "fedcs", "rbcs-f"], without=["poll"], n_jobs=1, world="e3cs", **sizes
    )
    assert found.winner.label == found.decision.winner == "fedcs"
    assert found.ranking.labels == ("fedcs", "random")
    assert set(found.left_out) == {"rbcs-f"}
    assert found.metric is METRIC
    assert found.results.folder.is_dir()
    with pytest.raises(InvalidInput, match="needs training"):
        recommend(["random"], metric="accuracy", world="e3cs")
