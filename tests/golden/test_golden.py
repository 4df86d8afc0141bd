import pytest

from tests.golden.selections import GOLDEN_FILE, recorded

pytestmark = pytest.mark.filterwarnings("ignore:rate = ")


def test_first_fifty_selections_are_as_recorded():
    # A change here changes results: run `make golden` and say why in CHANGELOG.md.
    assert recorded() == GOLDEN_FILE.read_text(encoding="utf-8")


def test_the_golden_file_has_fifty_rounds_of_everyone():
    blocks = GOLDEN_FILE.read_text(encoding="utf-8").strip().split("\n\n")
    assert len(blocks) >= 14
    for block in blocks:
        title, *rounds = block.splitlines()
        assert title.startswith("[")
        assert len(rounds) == 50
