import numpy as np
import pytest

from turnout import InvalidInput
from turnout.data import (
    Arrays,
    ClientCode,
    Digits,
    Iid,
    Natural,
    PrimaryLabel,
    Synthetic,
    divide,
    federate,
)
from turnout.data.features import ENGLISH, PStableLSH, SimHash, mean_codes, mean_vectors, word_codes
from turnout.experiment.codec import decode, encode
from turnout.training import Federation, Training

WORDS = ("<unk>", "apple", "pear", "plum", "fig", "nut")


def test_word_codes_are_the_simhash_of_the_words_a_client_reads():
    x = np.array([[1, 2, 0], [1, 1, 0], [3, 4, 5], [5, 0, 0]])
    codes = word_codes(x, np.array([0, 2, 4]), WORDS, ClientCode())
    first = SimHash(64).of_tokens(["apple", "pear", "apple", "apple"])
    second = SimHash(64).of_tokens(["plum", "fig", "nut", "nut"])
    assert codes.tolist() == [first.tolist(), second.tolist()]


@pytest.mark.slow
def test_word_codes_of_many_clients_equal_those_of_each():
    rng = np.random.default_rng(0)
    words = ("<unk>", *(f"w{number}" for number in range(3000)))
    x = rng.integers(0, 3001, (4000, 5))
    offsets = np.array([0, 1, 2000, 2003, 4000])
    together = word_codes(x, offsets, words, ClientCode())
    for client in range(4):
        own = x[offsets[client] : offsets[client + 1]]
        alone = word_codes(own, np.array([0, len(own)]), words, ClientCode())
        assert np.array_equal(together[client], alone[0])


def test_words_without_a_vocabulary_are_their_numbers():
    x = np.array([[1, 2], [2, 2]])
    data = federate(Arrays(x, x, x, x, group=[0, 1]), Natural(), 2, seed=0)
    assert data.features[1].tolist() == SimHash(64).of_tokens(["2", "2"]).tolist()


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_mean_vectors_by_hand(monkeypatch, chunk):
    monkeypatch.setattr("turnout.data.features._CHUNK", chunk)
    x = np.arange(24, dtype=np.uint8).reshape(6, 1, 2, 2) * 10
    means = mean_vectors(x, np.array([0, 1, 4, 6]))
    flat = x.reshape(6, 4).astype(float)
    expected = [flat[0], flat[1:4].mean(axis=0), flat[4:].mean(axis=0)]
    assert np.allclose(means, expected)


def test_mean_codes_are_the_p_stable_hash():
    means = np.random.default_rng(1).normal(size=(3, 10))
    assert np.array_equal(mean_codes(means, 64), PStableLSH(10, 64, step=0.25).bits(means))


def test_a_code_depends_on_the_client_alone():
    dataset = Synthetic(n_clients=5).load(seed=0)
    everyone = divide(dataset, Natural(), 5, seed=0)
    some = divide(dataset, Natural(choose="largest"), 2, seed=0)
    largest = np.sort(np.argsort(-everyone.num_samples, kind="stable")[:2])
    assert np.array_equal(some.features, everyone.features[largest])


def test_held_out_examples_do_not_enter_the_code():
    dataset = Digits().load(seed=0)
    data = divide(dataset, Iid(), 4, seed=0, hold_out=0.5)
    means = mean_vectors(data.x, data.offsets) * data.scale + data.shift
    assert np.array_equal(data.features, mean_codes(means, 64))


def test_clients_with_the_same_primary_label_have_near_codes():
    data = federate(Digits(), PrimaryLabel(0.8, samples=100), 60, seed=1)
    label = data.label_counts.argmax(axis=1)
    distance = (data.features[:, None] != data.features[None]).mean(axis=2)
    pairs = np.triu_indices(60, 1)
    same = (label[:, None] == label[None])[pairs]
    near, far = distance[pairs][same].mean(), distance[pairs][~same].mean()
    assert far > 3 * near  # 0.22 against 0.04
    assert data.features.shape == (60, 64)
    assert set(np.unique(data.features)) <= {0, 1}


def test_stop_words_do_not_count_in_codes():
    words = ("<unk>", "the", "cat", "don\u2019t", "sat")
    x, offsets = np.array([[1, 2, 1, 3], [1, 1, 4, 3]]), np.array([0, 1, 2])
    for stop_words in ("english", ("the", "don\u2019t")):
        codes = word_codes(x, offsets, words, ClientCode(stop_words=stop_words))
        for code, own in zip(codes, (["cat"], ["sat"]), strict=True):
            assert code.tolist() == SimHash(64).of_tokens(own).tolist()
    kept = word_codes(x, offsets, words, ClientCode())
    assert kept[0].tolist() != SimHash(64).of_tokens(["cat"]).tolist()


def test_bits_is_the_length_of_a_code():
    short, long = (
        federate(Digits(), Iid(), 5, seed=0, code=ClientCode(bits=bits)).features
        for bits in (16, 200)
    )
    assert (short.shape, long.shape) == ((5, 16), (5, 200))
    text = word_codes(np.array([[1, 2]]), np.array([0, 1]), WORDS, ClientCode(bits=100))
    assert text.shape == (1, 100)


def test_bad_codes_are_refused():
    for bits in (0, 513, 2.5):
        with pytest.raises(InvalidInput, match="bits"):
            ClientCode(bits=bits)
    for stop_words in ("french", (1,)):
        with pytest.raises(InvalidInput, match="stop_words must be 'english' or a list"):
            ClientCode(stop_words=stop_words)


def test_the_shipped_list_holds_words_as_texts_are_cut():
    assert {"the", "of", "don't", "don\u2019t", "i"} <= ENGLISH
    assert not {"cat", "time", "people"} & ENGLISH
    assert all(word == word.lower() and word.strip() == word for word in ENGLISH)


def test_a_recipe_keeps_its_digest_unless_the_code_is_set():
    assert "code" not in encode(Training())
    recipe = Training(code=ClientCode(bits=128, stop_words="english"))
    table = encode(recipe)
    assert table["code"] == {"bits": 128, "stop_words": "english"}
    assert decode(table, Training) == recipe
    federation = Federation(recipe, 10)
    assert federation.columns["features"].shape == (10, 128)
