import numpy as np
import pytest

from turnout.data.base import PADDING
from turnout.data.texts import UNKNOWN, sequences, tokenised, vocabulary


def sentences(corpus):
    parts = np.split(corpus.words, corpus.offsets[1:-1])
    return [[corpus.types[number] for number in part] for part in parts]


def numbered(corpus, *words):
    """Number words by hand, 0 = unknown."""
    number = np.zeros(len(corpus.types), dtype=np.int32)
    for at, word in enumerate(words, start=1):
        number[corpus.types.index(word)] = at
    return number


def train_only(corpus):
    return np.zeros(corpus.author.size, dtype=bool)


def test_words_by_hand():
    corpus = tokenised(
        [("a", ["It's the 2nd, don't you-know?", "“Isn\u2019t” it_so: CAFÉ 'quoted'"])]
    )
    assert sentences(corpus) == [
        ["it's", "the", "2nd", "don't", "you", "know"],
        ["isn\u2019t", "it", "so", "café", "quoted"],
    ]


def test_authors_may_come_more_than_once_and_short_sentences_go():
    texts = [("a", ["one two", "single", ""]), ("b", ["three four"]), ("a", ["five six\nseven up"])]
    corpus = tokenised(texts)
    assert corpus.authors == ("a", "b")
    assert corpus.author.tolist() == [0, 1, 0, 0]
    assert sentences(corpus) == [
        ["one", "two"],
        ["three", "four"],
        ["five", "six"],
        ["seven", "up"],
    ]


def test_stop_words_are_taken_out_first():
    corpus = tokenised([("a", ["the cat sat", "the dog", "a bird on THE tree"])], ("The", "a", "x"))
    assert sentences(corpus) == [["cat", "sat"], ["bird", "on", "tree"]]


def test_no_texts_at_all():
    with pytest.raises(ValueError, match="no texts"):
        tokenised([])
    assert tokenised([("a", ["one", "!?"])]).author.size == 0


def test_the_vocabulary_is_the_most_frequent_ties_by_alphabet():
    corpus = tokenised([("a", ["b b c", "d a", "a c e"])])
    words, number = vocabulary(corpus, train_only(corpus), 4)
    assert words == (UNKNOWN, "a", "b", "c")
    assert [number[corpus.types.index(word)] for word in "abcde"] == [1, 2, 3, 0, 0]


@pytest.mark.parametrize(("size", "kept"), [(2, 1), (3, 2), (6, 5), (50, 5)])
def test_the_vocabulary_has_a_size_limit(size, kept):
    corpus = tokenised([("a", ["b b c", "d a", "a c e"])])
    words, number = vocabulary(corpus, train_only(corpus), size)
    assert len(words) == kept + 1
    assert sorted(number[number > 0]) == list(range(1, kept + 1))
    assert number[corpus.types.index("\n")] == 0


def test_the_vocabulary_does_not_see_the_test():
    corpus = tokenised([("a", ["x y x y", "z z z z"])])
    words, _ = vocabulary(corpus, np.array([False, True]), 10)
    assert words == (UNKNOWN, "x", "y")


def test_sequences_by_hand():
    corpus = tokenised([("a", ["p q r s t", "q p"])])
    made = sequences(corpus, numbered(corpus, "p", "q", "r", "s", "t"), 3, predict_unknown=False)
    assert made.x.tolist() == [[1, 2, 3], [4, 0, 0], [2, 0, 0]]
    assert made.y.tolist() == [[2, 3, 4], [5, PADDING, PADDING], [1, PADDING, PADDING]]
    assert made.sentence.tolist() == [0, 0, 1]
    assert made.x.dtype == made.y.dtype == np.int32


def test_unknown_words_are_no_labels_unless_asked():
    corpus = tokenised([("a", ["p odd q odd", "p odd", "q p"])])
    number = numbered(corpus, "p", "q")
    made = sequences(corpus, number, 3, predict_unknown=False)
    assert made.x.tolist() == [[1, 0, 2], [2, 0, 0]]
    assert made.y.tolist() == [[PADDING, 2, PADDING], [1, PADDING, PADDING]]
    assert made.sentence.tolist() == [0, 2]  # "p odd" has no label
    asked = sequences(corpus, number, 3, predict_unknown=True)
    assert asked.y.tolist() == [[0, 2, 0], [0, PADDING, PADDING], [1, PADDING, PADDING]]


@pytest.mark.parametrize("length", [1, 2, 4, 7, 30])
@pytest.mark.parametrize("chunk", [1, 3, 65_536])
def test_every_pair_of_neighbours_is_predicted_once(monkeypatch, length, chunk):
    monkeypatch.setattr("turnout.data.texts._CHUNK", chunk)
    rng = np.random.default_rng(length)
    texts = [" ".join(rng.choice(list("abcde"), size=n)) for n in rng.integers(2, 20, 12)]
    corpus = tokenised([("someone", texts)])
    made = sequences(corpus, numbered(corpus, *"abcde"), length, predict_unknown=False)
    is_label = made.y != PADDING
    found = list(zip(made.x[is_label].tolist(), made.y[is_label].tolist(), strict=True))
    letter = {word: at for at, word in enumerate("abcde", start=1)}
    pairs = [
        (letter[here], letter[then])
        for text in texts
        for here, then in zip(text.split(), text.split()[1:], strict=False)
    ]
    assert found == pairs
    assert made.x.shape[1] == length
