import pytest

from tests.golden.selections import N_ROUNDS, everything, golden, selections

pytestmark = pytest.mark.filterwarnings("ignore:rate = ")


@pytest.mark.parametrize("title", everything())
def test_first_fifty_selections_are_as_recorded(title):
    # A change here changes results: run `make golden` and say why in CHANGELOG.md.
    name, parameters = everything()[title]
    assert selections(name, parameters) == golden()[title]


def test_the_golden_file_records_everyone_and_nobody_else():
    assert list(golden()) == list(everything())
    assert all(len(rounds) == N_ROUNDS for rounds in golden().values())
