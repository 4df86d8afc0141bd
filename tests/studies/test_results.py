from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout.core.version import __version__
from turnout.experiment import FolderError, run_experiment
from turnout.report.figure import COLOURS
from turnout.report.to_matplotlib import FORMATS
from turnout.studies import (
    Claim,
    Preset,
    ResultsFile,
    Trials,
    Verdict,
    judge,
    load_preset,
    reproduce,
)
from turnout.studies.measures import measure_named, shown
from turnout.studies.paper_figures import _span, differences_of, draw
from turnout.studies.paper_tables import (
    Judged,
    all_tables,
    claims_table,
    details,
    judged_claims,
)
from turnout.studies.presets import Figure
from turnout.studies.reproduction import collect
from turnout.studies.trials import Curve, ResultsError, SchemeResults, thinned


def ran(preset: Preset, folder: Path, labels: list[str] | None = None) -> Trials:
    setting = preset.settings[0]
    experiment = preset.experiment_of(setting)
    numbers = tuple(figure.number for figure in preset.figures)
    chosen = labels or preset.schemes_for(setting, numbers, times=1, extras=False)
    run_experiment(experiment, folder, n_jobs=1, labels=chosen)
    return collect(preset, experiment, folder, chosen)


@pytest.fixture(scope="module")
def arxiv() -> Preset:
    return load_preset("e3cs-arxiv", seeds=6, rounds=480)  # five equal differences decide nothing


@pytest.fixture(scope="module")
def shortened(arxiv: Preset, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return ran(arxiv, tmp_path_factory.mktemp("arxiv"))


def test_the_claims_of_e3cs(arxiv: Preset, shortened: Trials) -> None:
    verdicts = {
        claim.says: judge(claim, shortened, arxiv.drawn(claim.figure)).verdict
        for claim in arxiv.claims
    }
    # a CEP margin of 1,800 is for 2,000 rounds; the equality needs more rounds to be told
    assert verdicts.pop("E3CS-inc goes to the value of Random after T/4") != Verdict.FAILS
    assert set(verdicts.values()) == {Verdict.HOLDS}
    for label in ("E3CS-0", "E3CS-0.5", "E3CS-0.8"):
        regret = shortened.values(label, "regret")
        assert (regret < shortened.values(label, "regret-bound")).all()


def test_time_falls_with_the_penalty(tmp_path: Path) -> None:
    preset = load_preset("rbcs-f", seeds=2, rounds=150)
    setting = preset.settings[0]
    labels = preset.schemes_for(setting, (3, 4), times=1, extras=False)
    results = ran(preset, tmp_path, labels)
    mean = {label: results.estimate(label, "total-time").mean for label in labels}
    ordered = ["random", *(f"RBCS-F({v})" for v in (1, 5, 10, 20, 50)), "FedCS(3)"]
    assert sorted(mean, key=lambda label: -mean[label]) == ordered
    for number in (3, 4):
        check_drawing(preset.figure(number), {"": results}, tmp_path, ordered)


@pytest.mark.parametrize("number", [2, 3])
def test_figures_are_drawn(number: int, arxiv: Preset, shortened: Trials, tmp_path: Path) -> None:
    figure = arxiv.figure(number)
    check_drawing(figure, {"": shortened}, tmp_path, figure.schemes)


def test_a_figure_has_no_date_inside(tmp_path: Path) -> None:
    preset = load_preset("rbcs-f", seeds=2, rounds=20)
    labels = preset.schemes_for(preset.settings[0], (2,), times=1, extras=False)
    results = {"": ran(preset, tmp_path, labels)}
    check_drawing(preset.figure(2), results, tmp_path, labels)
    first, second = (
        [path.read_bytes() for path in draw(preset.figure(2), results, tmp_path, order=labels)]
        for _ in range(2)
    )
    assert first == second


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    preset = load_preset("ucb-cs", seeds=2, rounds=40)
    labels = [label for label in preset.experiment.labels if "m=3" not in label]
    return ran(preset, tmp_path_factory.mktemp("ucb"), labels)


def test_training_is_kept_and_drawn(trained: Trials, tmp_path: Path) -> None:
    scheme = trained.schemes["UCB-CS, m=1"]
    assert scheme.curves["global loss"].rounds.tolist() == [10, 20, 30, 40]
    last = scheme.curves["global loss"].values[:, -1]
    assert trained.values("UCB-CS, m=1", "global-loss").tolist() == last.tolist()
    assert scheme.clients["losses"].shape == (2, 30)
    worst = trained.values("UCB-CS, m=1", "log-worst-client-loss")
    assert np.exp(worst) == pytest.approx(scheme.clients["losses"].max(axis=1))
    schemes = tuple(label for label in trained.labels if "published" not in label)
    names = ["UCB-CS", "m = 2"]
    check_drawing(Figure(1, "global-loss", schemes), {"": trained}, tmp_path, names)
    check_drawing(Figure(2, "client-losses", schemes[:4]), {"": trained}, tmp_path, schemes[:4])


def test_settings_are_panels(tmp_path: Path) -> None:
    def curves(level: float) -> dict[str, Curve]:
        rounds = np.arange(1, 6)
        rising = level * np.stack([rounds, rounds + 0.5]) / 6
        names = ("accuracy", "global loss", "time", "hold-out accuracy")
        return {name: Curve(rounds, rising) for name in names}

    parts = {
        name: Trials(
            {"n_rounds": 5},
            {label: SchemeResults((0, 1), 2, {}, curves(level), {}) for label in ("A", "B")},
            {},
        )
        for name, level in (("iid", 1.0), ("non-iid", 0.5))
    }
    for draws in (
        "accuracy",
        "hold-out-accuracy",
        "accuracy-and-loss",
        "accuracy-of-settings",
        "accuracy-by-time",
    ):
        texts = ["iid", "non-iid", "A", "B"]
        check_drawing(Figure(1, draws, ("A", "B")), parts, tmp_path, texts)
    only = Figure(1, "accuracy", ("A", "B"), settings=("iid",))
    drawn = draw(only, parts, tmp_path, order=only.schemes)
    assert "non-iid" not in drawn[1].read_text(encoding="utf-8")


def test_a_scheme_looks_the_same_whatever_else_its_setting_has(tmp_path: Path) -> None:
    curve = {"accuracy": Curve(np.arange(1, 6), np.linspace(0.1, 0.9, 10).reshape(2, 5))}

    def part(*labels: str) -> Trials:
        schemes = {label: SchemeResults((0, 1), 2, {}, curve, {}) for label in labels}
        return Trials({"n_rounds": 5}, schemes, {})

    parts = {"one": part("A", "B"), "two": part("B")}
    figure = Figure(1, "accuracy", ("B",))
    (path,) = draw(figure, parts, tmp_path, order=("A", "B"), formats=["svg"])
    svg = path.read_text(encoding="utf-8")
    first, second = (colour.lower() for colour in COLOURS[:2])
    assert second in svg
    assert first not in svg


def test_an_axis_of_accuracies_begins_where_lines_are_after_a_twentieth_of_the_rounds() -> None:
    def trials(first: float, second: float) -> Trials:
        values = np.array([[first, second, 0.9], [first, math.nan, 0.8]])
        curves = {"accuracy": Curve(np.array([1, 2, 40]), values)}
        return Trials({"n_rounds": 40}, {"A": SchemeResults((0, 1), 2, {}, curves, {})}, {})

    looks = {"A": {}, "absent": {}}
    found = _span(looks, [trials(0.1, 0.6), trials(0.2, 0.5)], "accuracy")
    assert found == pytest.approx((0.5 - 0.05 * 0.4, 0.9 + 0.05 * 0.4))
    longer = Trials({"n_rounds": 100}, trials(0.1, 0.6).schemes, {})  # T/20 is round 5
    assert _span(looks, [longer], "accuracy")[0] == pytest.approx(0.8 - 0.05 * 0.1)


def test_differences_are_those_of_the_same_seed_and_round(tmp_path: Path) -> None:
    def scheme(seeds: tuple[int, ...], rounds: list[int], values: Any) -> SchemeResults:
        curves = {"accuracy": Curve(np.array(rounds), np.array(values))}
        return SchemeResults(seeds, 2, {}, curves, {})

    base = scheme((0, 1, 2), [5, 10, 15], [[0.1, 0.2, 0.3], [0.5, 0.6, 0.7], [0.0, 0.0, 0.0]])
    other = scheme((1, 0), [5, 15], [[0.6, 0.9], [0.1, 0.25]])  # other seeds, looks, order
    parts = {
        "both": Trials({"n_rounds": 15}, {"A": other, "Random": base}, {}),
        "alone": Trials({"n_rounds": 15}, {"Random": base}, {}),
        "without": Trials({"n_rounds": 15}, {"A": other}, {}),
    }
    figure = Figure(1, "accuracy", ("A", "Random"), against="Random")
    (found,) = differences_of(figure, parts).values()
    rounds, values = found.schemes["A"].curves["accuracy"]
    assert (found.schemes["A"].seeds, rounds.tolist()) == ((1, 0), [5, 15])
    assert values == pytest.approx(np.array([[0.1, 0.2], [0.0, -0.05]]))
    assert not found.schemes["Random"].curves["accuracy"].values.any()
    written = draw(figure, parts, tmp_path, order=figure.schemes, formats=("svg",))
    assert [path.name for path in written] == ["figure-1.svg", "figure-1-differences.svg"]
    again = written[1].read_text(encoding="utf-8")
    assert all(text in again for text in ("minus Random", ">A<", ">both<"))
    assert not any(text in again for text in (">alone<", ">without<"))
    assert differences_of(Figure(1, "accuracy", ("A", "Random")), parts) == {}


def test_differences_of_what_cannot_be_compared(tmp_path: Path) -> None:
    def scheme(seed: int, rounds: list[int]) -> SchemeResults:
        curve = Curve(np.array(rounds), np.full((1, len(rounds)), 0.5))
        return SchemeResults((seed,), 2, {}, {"accuracy": curve}, {})

    figure = Figure(1, "accuracy", ("A", "Random"), against="Random")
    for other, is_drawn in (((1, [5, 10]), False), ((0, [6]), True), ((0, [5, 10]), True)):
        schemes = {"A": scheme(*other), "Random": scheme(0, [5, 10])}
        parts = {"": Trials({"n_rounds": 10}, schemes, {})}
        written = draw(figure, parts, tmp_path, order=figure.schemes, formats=("png",))
        assert ("figure-1-differences.png" in [path.name for path in written]) == is_drawn


def check_drawing(figure: Figure, results: dict[str, Trials], folder: Path, texts: Any) -> None:
    order = dict.fromkeys(label for part in results.values() for label in part.labels)
    written = draw(figure, results, folder, order=list(order))
    assert [path.suffix for path in written] == [f".{form}" for form in FORMATS]
    assert written[0].read_bytes().startswith(b"%PDF")
    assert written[2].read_bytes().startswith(b"\x89PNG")
    svg = written[1].read_text(encoding="utf-8")
    assert all(text in svg for text in texts)


# files -----------------------------------------------------------------------------------------


def test_results_come_back_from_their_file(
    arxiv: Preset, shortened: Trials, tmp_path: Path
) -> None:
    file = ResultsFile("e3cs-arxiv", {("", 1): shortened}, {"turnout": "1"})
    file.write(tmp_path / "x.json")
    again = ResultsFile.read(tmp_path / "x.json", "e3cs-arxiv")
    assert again.made_with == {"turnout": "1"}
    (kept,) = again.parts.values()
    for label in shortened.labels:
        ours = shortened.values(label, "jain")
        assert kept.values(label, "jain").tolist() == pytest.approx(ours.tolist(), rel=1e-5)
    # pages, verdicts and tables are made from the file alone
    for claim in arxiv.claims:
        drawn = arxiv.drawn(claim.figure)
        assert judge(claim, kept, drawn).verdict == judge(claim, shortened, drawn).verdict
    assert all_tables(arxiv, again)[0].rows == all_tables(arxiv, file)[0].rows
    judged = judged_claims(arxiv, again, extras=False)
    assert len(claims_table(judged).rows) == len(arxiv.claims)
    assert len(details(judged)) == len(arxiv.claims)


def test_never_and_diverged_survive_a_file(tmp_path: Path) -> None:
    values = {"rounds-to-0.8": np.array([10.0, math.inf]), "cep": np.array([math.nan, 1.5])}
    part = Trials(
        {"n_rounds": 20, "selectors": [{"label": "A"}]},
        {"A": SchemeResults((0, 1), 2, values, {}, {})},
        {},
    )
    ResultsFile("rbcs-f", {("", 1): part}).write(tmp_path / "x.json")
    kept = ResultsFile.read(tmp_path / "x.json", "rbcs-f").parts[("", 1)]
    assert kept.values("A", "rounds-to-0.8").tolist() == [10.0, math.inf]
    assert math.isnan(kept.values("A", "cep")[0])
    assert json.loads((tmp_path / "x.json").read_text())["format"] == 1


def test_results_of_another_protocol_are_refused(shortened: Trials, arxiv: Preset) -> None:
    file = ResultsFile("e3cs-arxiv", {("", 1): shortened})
    file.check("", 1, arxiv.experiment.table())
    more_seeds = load_preset("e3cs-arxiv", seeds=7, rounds=480).experiment.table()
    file.check("", 1, more_seeds)  # more seeds are more of the same
    longer = load_preset("e3cs-arxiv", seeds=5, rounds=960).experiment.table()
    with pytest.raises(ResultsError, match=r"another protocol: n_rounds"):
        file.check("", 1, longer)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"format": 9}', "newer turnout"),
        ('{"format": 1, "preset": "ucb-cs"}', "is about ucb-cs"),
        ('{"format": 1, "preset": "rbcs-f", "parts": [{}]}', "cannot be read"),
    ],
)
def test_damaged_results_are_named(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "rbcs-f.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match=problem):
        ResultsFile.read(path, "rbcs-f")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda table: table.pop("made_with"), "lacks 'made_with'"),
        (lambda table: table["parts"][0].update(experiment={}), "experiment lacks n_rounds"),
        (
            lambda table: schemes_in(table)["FedCS"]["measures"]["cep"].pop(),
            "cep does not have one",
        ),
        (lambda table: schemes_in(table)["FedCS"].update(seeds="012345"), "seeds must be"),
        (lambda table: schemes_in(table).update(FedCS=[]), "cannot be read"),
    ],
)
def test_results_that_do_not_fit_together_are_named(
    damage: Callable[[dict[str, Any]], object], problem: str, shortened: Trials, tmp_path: Path
) -> None:
    path = tmp_path / "e3cs-arxiv.json"
    ResultsFile("e3cs-arxiv", {("", 1): shortened}).write(path)
    ResultsFile.read(path, "e3cs-arxiv")
    table = json.loads(path.read_text())
    damage(table)
    path.write_text(json.dumps(table))
    with pytest.raises(ResultsError, match=f"{problem}.*move it away"):
        ResultsFile.read(path, "e3cs-arxiv")


def schemes_in(table: dict[str, Any]) -> dict[str, Any]:
    schemes: dict[str, Any] = table["parts"][0]["schemes"]
    return schemes


def test_runs_of_other_settings_or_another_version_are_not_collected(tmp_path: Path) -> None:
    preset = load_preset("rbcs-f", seeds=1, rounds=5)
    labels = ["RBCS-F(1)", "random"]
    ran(preset, tmp_path, labels)
    cell = tmp_path / "rbcs-f-1" / "seed-0"
    config, made_by = cell / "config.json", cell / "versions.json"
    for file, key, value, problem in (
        (config, "cohort_size", 7, "cohort_size is 7"),
        (made_by, "turnout", "0.0.9", r"made by turnout 0\.0\.9"),
    ):
        kept = file.read_text()
        file.write_text(json.dumps({**json.loads(kept), key: value}))
        with pytest.raises(FolderError, match=problem):
            collect(preset, preset.experiment, tmp_path, labels)
        file.write_text(kept)
    assert collect(preset, preset.experiment, tmp_path, labels).labels == tuple(labels)


def test_a_part_that_is_run_later_joins_the_others(shortened: Trials) -> None:
    file = ResultsFile("e3cs-arxiv")
    halves = [shortened.labels[3:], shortened.labels[:3]]
    for labels in halves:
        schemes = {label: shortened.schemes[label] for label in labels}
        file.update("", 1, Trials(shortened.experiment, schemes, shortened.classes))
    assert file.parts[("", 1)].labels == shortened.labels
    file.update("", 1, Trials(shortened.experiment, {}, {}))
    assert file.parts[("", 1)].labels == shortened.labels


def test_seeds_that_are_run_later_join_the_others() -> None:
    def scheme(*seeds: int, shift: float = 0.0) -> SchemeResults:
        values = np.array(seeds) + shift
        curve = Curve(np.array([1, 2]), np.stack([values, values], axis=1))
        return SchemeResults(seeds, 2, {"cep": values}, {"time": curve}, {"counts": curve.values})

    both = scheme(0, 3, 1).joined(scheme(2, 1, shift=0.5))
    assert both.seeds == (0, 1, 2, 3)
    assert both.measures["cep"].tolist() == [0.0, 1.5, 2.5, 3.0]  # seed 1 as run last
    assert both.curves["time"].values[:, 1].tolist() == [0.0, 1.5, 2.5, 3.0]
    assert both.clients["counts"].shape == (4, 2)
    other = SchemeResults((5,), 2, {"jain": np.ones(1)}, {}, {})
    with pytest.raises(ResultsError, match=r"other claims or figures: measures cep, jain"):
        scheme(0, 1).joined(other)
    newer = SchemeResults((0, 1), 2, {"jain": np.ones(2)}, {}, {})
    assert scheme(0, 1).joined(newer) is newer  # all of them were collected again
    curve = Curve(np.array([2]), np.ones((1, 1)))  # a run that diverged after its first look
    short = SchemeResults(
        (5,), 2, {"cep": np.ones(1)}, {"time": curve}, {"counts": np.ones((1, 2))}
    )
    both = scheme(0, 1).joined(short).curves["time"]
    assert both.rounds.tolist() == [1, 2]
    np.testing.assert_array_equal(both.values, [[0.0, 0.0], [1.0, 1.0], [np.nan, 1.0]])
    file = ResultsFile("e3cs-arxiv")
    for seeds in ([3, 4], [0, 1]):
        run = {"selectors": [{"label": "a"}], "seeds": seeds}
        file.update("", 1, Trials(run, {"a": scheme(*seeds)}, {}))
    assert file.parts[("", 1)].experiment["seeds"] == [0, 1, 3, 4]


def test_only_runs_that_are_missing_are_run(shortened: Trials) -> None:
    file = ResultsFile("e3cs-arxiv", {("", 1): shortened})
    labels = shortened.labels
    assert file.missing("", 1, labels, range(6)) == {}
    assert file.missing("", 1, labels, range(8)) == {label: [6, 7] for label in labels}
    assert file.missing("", 1, [*labels, "pow-d"], range(2)) == {"pow-d": [0, 1]}
    assert file.missing("", 4, labels, range(2)) == {label: [0, 1] for label in labels}


def test_nothing_was_judged_without_runs(arxiv: Preset) -> None:
    assert judged_claims(arxiv, ResultsFile("e3cs-arxiv")) == []


#: Made up: how far others are above FedCS.
FAR = (1.9, 2.4, 2.9, 3.4, 3.9)


def letters_with(above_fedcs: tuple[float, ...]) -> list[Judged]:
    preset = load_preset("e3cs-letters")
    measures = [name for name in preset.measures() if "hold-out" in name]
    schemes = {
        label: SchemeResults(
            (0, 1, 2, 3, 4),
            20,
            dict.fromkeys(measures, 9.0 + (label != "FedCS") * np.array(above_fedcs)),
            {},
            {},
        )
        for label in preset.experiment.labels
    }
    run = [setting.label for setting in preset.settings if ", iid, FedAvg" in setting.label]
    parts = {(label, 1): Trials({"n_rounds": 400}, schemes, {}) for label in run}
    return judged_claims(preset, ResultsFile("e3cs-letters", parts))


@pytest.fixture(scope="module")
def letters() -> list[Judged]:
    return letters_with(FAR)


def test_another_protocol_stands_apart(letters: list[Judged]) -> None:
    n_claims = len(load_preset("e3cs-letters").claims)
    apart = [one for one in letters if one.differs]
    assert (len(letters), len(apart)) == (2 * n_claims - 1, n_claims - 1)
    assert all("mean-returned" in one.setting for one in apart)
    assert letters[-len(apart) :] == apart
    lowest = [one for one in letters if one.claim.order == "others > FedCS"]
    assert [one.ours.verdict for one in lowest] == [Verdict.HOLDS, Verdict.HOLDS]
    unfolded = details(lowest)
    assert ["deviates: the usual mean" in text for text in unfolded] == [False, True]
    assert all("against every other scheme" in text for text in unfolded)


def test_up_to_is_judged_once_over_all_settings(letters: list[Judged]) -> None:
    (up_to,) = (one for one in letters if one.claim.is_anywhere)
    assert (up_to.setting, up_to.place) == ("any of 4, 1 run", "abstract")
    assert up_to.ours.verdict == Verdict.UNDECIDED
    assert up_to.ours.numbers.startswith("nearest in Letters features, iid, FedAvg, keep-global: ")


def test_a_figure_without_its_settings_is_not_drawn(tmp_path):
    (figure,) = load_preset("e3cs-letters").figures
    assert figure.settings
    elsewhere = {"elsewhere": Trials({}, {}, {})}
    assert draw(figure, elsewhere, tmp_path, order=figure.schemes) == []
    assert list(tmp_path.iterdir()) == []


def test_results_of_another_selector_or_version_are_refused(shortened: Trials) -> None:
    now = dict(shortened.experiment)
    file = ResultsFile("e3cs-arxiv", {("", 1): shortened}, {"turnout": __version__})
    file.check("", 1, now)
    changed = [{**one, "eta": 0.7} if one["label"] == "E3CS-0" else one for one in now["selectors"]]
    with pytest.raises(ResultsError, match=r"another protocol: E3CS-0\.eta is 0\.6 .* and 0\.7"):
        file.check("", 1, {**now, "selectors": changed})
    more = [*now["selectors"], {"label": "new", "name": "random"}]
    file.check("", 1, {**now, "selectors": more, "seeds": [9]})
    file.check_version()
    older = ResultsFile("e3cs-arxiv", {("", 1): shortened}, {"turnout": "0.0.1"})
    older.check("", 1, now)  # it may be looked at
    with pytest.raises(ResultsError, match=rf"turnout 0\.0\.1, and this is turnout {__version__}"):
        older.check_version()
    same = ResultsFile("e3cs-arxiv", {("", 1): shortened}, {"turnout": "0.1.0"})
    same.check_version()  # the numbers did not change since


def accuracies(curves: dict[str, list[list[float]]], seeds: tuple[int, ...] = (0, 1)) -> Trials:
    rounds = np.array([5, 10, 15])
    schemes = {
        label: SchemeResults(seeds, 2, {}, {"accuracy": Curve(rounds, np.array(values))}, {})
        for label, values in curves.items()
    }
    return Trials({"n_rounds": 15, "selectors": []}, schemes, {})


def test_rounds_to_the_best_of_another_scheme_are_of_the_same_seed() -> None:
    random = [[0.1, 0.3, 0.2], [0.5, 0.6, np.nan]]
    trials = accuracies({"Random": random, "NCCB": [[0.3, 0.4, 0.5], [0.5, 0.55, 0.59]]})
    measure = "rounds-to-best-of-Random"
    assert trials.values("Random", measure).tolist() == [10.0, 10.0]
    assert trials.values("NCCB", measure).tolist() == [5.0, math.inf]
    claim = Claim(1, "", "order", measure, order="Random > NCCB")
    found = judge(claim, trials)
    assert found.verdict == Verdict.UNDECIDED
    assert found.numbers == "Random 10, NCCB never (1 of 2 never)"
    alone = accuracies({"NCCB": random})
    assert np.isnan(alone.values("NCCB", measure)).all()
    assert shown(alone.values("NCCB", measure), measure_named(measure)) == "-"


def test_runs_that_diverged_at_once_have_an_empty_curve() -> None:
    curves = thinned({"accuracy": np.full((2, 4), np.nan)})
    assert curves["accuracy"].values.shape == (2, 0)
    trials = accuracies({"Random": [[0.1, 0.2, 0.3]] * 2, "NCCB": [[0.1, 0.2, 0.3]] * 2})
    lost = SchemeResults((0, 1), 2, {}, curves, {})
    for other in ("Random", "NCCB"):
        mixed = Trials(trials.experiment, {**trials.schemes, other: lost}, {})
        again = Trials.from_table(mixed.table())
        wanted = [math.inf] * 2 if other == "NCCB" else [5.0, 5.0]  # anything beats no model
        assert again.values("NCCB", "rounds-to-best-of-Random").tolist() == wanted


def test_a_figure_is_drawn_of_what_was_run(tmp_path: Path, shortened: Trials) -> None:
    figure = load_preset("e3cs-arxiv").figure(3)
    label = figure.schemes[1]
    part = Trials(shortened.experiment, {label: shortened.schemes[label]}, shortened.classes)
    check_drawing(figure, {"": part}, tmp_path, [label])


# the Python call -------------------------------------------------------------------------------


def test_reproduce_runs_keeps_judges_and_draws(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"figures": [4], "rounds": 20, "seeds": 2, "extras": False}
    seen: list[Any] = []
    where = {"out": tmp_path / "runs", "results": tmp_path / "kept"}
    study = reproduce("rbcs-f", **sizes, **where, n_jobs=1, progress=seen.append)
    assert seen
    assert all(run.summary is not None for one in study.ran for run in one.runs)
    assert study.path == tmp_path / "kept" / "rbcs-f.json"
    assert study.path.exists()
    (claim,) = study.claims
    assert claim.place == "Fig. 4"
    assert study.tables[-1].rows == claims_table(study.claims).rows
    assert study.has_failed == (claim.ours.verdict == Verdict.FAILS)
    assert {path.suffix for path in study.draw()} == {".pdf", ".svg", ".png"}
    again = reproduce("rbcs-f", **sizes, **where)
    assert again.ran == []  # all of it was kept
    assert [one.ours.numbers for one in again.claims] == [one.ours.numbers for one in study.claims]


def test_reproduce_keeps_complete_runs_when_it_is_interrupted(tmp_path: Path) -> None:
    def interrupted(*arguments: Any, **options: Any) -> Any:
        run_experiment(*arguments, **options)
        raise KeyboardInterrupt

    sizes: dict[str, Any] = {"figures": [4], "rounds": 20, "seeds": 1, "extras": False}
    with pytest.raises(KeyboardInterrupt):
        reproduce("rbcs-f", **sizes, out=tmp_path, n_jobs=1, run=interrupted)
    assert ResultsFile.read(tmp_path / "rbcs-f.json", "rbcs-f").parts
    collected = reproduce("rbcs-f", **sizes, out=tmp_path, only_collect=True)
    schemes = load_preset("rbcs-f").figure(4).schemes
    assert set(collected.file.parts[("", 1)].labels) == set(schemes)
