"""Clients that stop answering lose their lead, in every selector that estimates them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import turnout
from turnout import InvalidInput, Outcome, Purpose, RoundContext, StateFileError, Status, stream
from turnout.sampling.running import below_everyone, count_unanswered, lowered

N_CLIENTS, COHORT_SIZE = 40, 5
PATIENT: dict[str, dict[str, Any]] = {
    "oort": {},
    "oort normalize=False": {"normalize": False},
    "oort rules=fedscale": {"rules": "fedscale"},
    "k-linucb": {},
    "nccb": {"clusters": 3, "threshold": 2, "width": 8, "memory": 32, "steps": 1},
    "rbcs-f": {"rate": 0.05},
    "rpow-d": {},
    "ucb-cs": {},
    "ucb-cs stored_index=True": {"stored_index": True},
}
N_ROUNDS = dict.fromkeys(PATIENT, 200) | {"nccb": 100, "ucb-cs stored_index=True": 260}


def make(case: str, **parameters: Any) -> turnout.Selector:
    return turnout.make(case.split()[0], **(PATIENT[case] | parameters))


def is_dead(clients: np.ndarray) -> np.ndarray:
    return clients < 4


def context(selector: turnout.Selector, round: int) -> RoundContext:
    """Return a round in which the first four are alike and better than all others."""
    is_good = is_dead(np.arange(N_CLIENTS))
    columns = {
        "num_samples": np.full(N_CLIENTS, 10.0),
        "features": np.where(is_good[:, None], [1.0, 0.0], [0.0, 1.0]),
        "context": np.where(is_good[:, None], [0.1, 0.5, 0.1], [1.0, 0.5, 1.0]),
    }
    declared = selector.needs_columns | selector.uses_columns
    known = {name: values for name, values in columns.items() if name in declared}
    everyone = np.ones(N_CLIENTS, dtype=bool)
    return RoundContext(round, COHORT_SIZE, everyone, deadline=10.0, columns=known)


def answers(clients: np.ndarray, silent: np.ndarray) -> Outcome:
    loss = np.where(silent, np.nan, np.where(is_dead(clients), 3.0, 1.0))
    status = np.where(silent, np.int8(Status.SILENT), np.int8(Status.COMPLETED))
    seconds = np.where(silent, np.nan, np.where(is_dead(clients), 1.0, 4.0))
    return Outcome(status, seconds, {"loss": loss, "loss_rms": loss, "loss_std": 0.1 * loss})


def share_of_dead(selector: turnout.Selector, rounds: range, *, death: int) -> float:
    """Return the places of the first four in the last 20 rounds, in times of their fair share."""
    selector.prepare(N_CLIENTS)
    places = []
    for t in rounds:
        selection = selector.select(context(selector, t), stream(0, Purpose.SELECT, t))
        silent = is_dead(selection.clients) & (t >= death)
        selector.observe(selection, answers(selection.clients, silent))
        places.append(is_dead(selection.clients))
    return float(np.concatenate(places[-20:]).mean()) / (4 / N_CLIENTS)


def test_each_request_after_the_patience_halves_the_score() -> None:
    score = np.array([8.0, 8.0, 8.0, 1.0, 5.0])
    unanswered = np.array([3, 4, 6, 5, 0])
    assert lowered(score, unanswered, 3).tolist() == [8.0, 4.0, 1.0, 0.25, 5.0]
    assert lowered(score, unanswered, None) is score
    assert lowered(score, unanswered, 6) is score
    assert score.tolist() == [8.0, 8.0, 8.0, 1.0, 5.0]


def test_scores_are_counted_from_the_base_and_nobody_gains() -> None:
    score, unanswered = np.array([-1.0, -2.0, -8.0]), np.array([1, 0, 1])
    assert lowered(score, unanswered, 0, lambda _: -5.0).tolist() == [-3.0, -2.0, -8.0]


def test_scores_of_any_sign_fall_below_everyone() -> None:
    score = np.array([1.0, -1.0, 1.0, 0.0])  # lowest -1, highest 1: base -3
    assert lowered(score, np.array([0, 0, 2, 1]), 0, below_everyone).tolist() == [1, -1, -2, -1.5]


@pytest.mark.parametrize("score", [[np.inf, np.inf], [np.inf, 3.0], [1e30, 1e30]])
def test_scores_stay_numbers_at_the_ends(score: list[float]) -> None:
    changed = lowered(np.array(score), np.array([0, 5000]), 5)
    assert not np.isnan(changed).any()
    assert changed[0] == score[0]
    assert changed[1] <= score[1]
    assert lowered(np.zeros(0), np.zeros(0, dtype=np.int64), 5).size == 0


def test_an_answer_ends_the_count() -> None:
    unanswered = np.array([4, 4, 4])
    count_unanswered(unanswered, np.array([0, 2]), np.array([True, False]))
    assert unanswered.tolist() == [0, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("case", PATIENT)
def test_the_dead_lose_their_places(case: str) -> None:
    n_rounds = N_ROUNDS[case]
    assert share_of_dead(make(case), range(n_rounds), death=n_rounds * 2 // 5) <= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("case", sorted(PATIENT.keys() - {"nccb", "rbcs-f"}))
def test_the_paper_keeps_the_places_of_the_dead(case: str) -> None:
    assert share_of_dead(make(case, patience=None), range(200), death=80) >= 1.6


@pytest.mark.slow
@pytest.mark.parametrize("case", PATIENT)
def test_nothing_changes_up_to_the_patience(case: str) -> None:
    patient, paper = make(case, patience=1), make(case, patience=None)
    for selector in (patient, paper):
        selector.prepare(N_CLIENTS)
    for t in range(30):
        ctx = context(patient, t)
        chosen = [each.select(ctx, stream(0, Purpose.SELECT, t)) for each in (patient, paper)]
        np.testing.assert_array_equal(chosen[0].clients, chosen[1].clients)
        silent = (chosen[0].clients == 2) & (patient.unanswered_[chosen[0].clients] == 0)
        for selector, selection in zip((patient, paper), chosen, strict=True):
            selector.observe(selection, answers(selection.clients, silent))


@pytest.mark.parametrize("case", PATIENT)
def test_a_state_from_before_the_count_can_be_loaded(case: str) -> None:
    selector = make(case)
    selector.prepare(N_CLIENTS)
    selector.unanswered_[3] = 7
    older = {name: values for name, values in selector.state().items() if name != "unanswered_"}
    selector.load_state(older)
    assert not selector.unanswered_.any()
    del older["n_clients_"]
    with pytest.raises(StateFileError, match="n_clients_"):
        selector.load_state(older)


@pytest.mark.parametrize("patience", [-1, 0.5, True, "5"])
def test_a_patience_is_a_count(patience: Any) -> None:
    for case in PATIENT:
        with pytest.raises(InvalidInput, match="patience"):
            make(case, patience=patience).reset(3)
