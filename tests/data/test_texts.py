import io
import json
import tarfile
import tracemalloc
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.data import (
    BlogAuthors,
    DamagedData,
    DataMissing,
    Natural,
    Shakespeare,
    StackExchange,
    TextFile,
    Yelp,
    divide,
    federate,
)
from turnout.data.base import PADDING
from turnout.data.features import SimHash
from turnout.data.texts import read_posts, sentences_of, sentences_of_post

from .makers import write_jsonl

CLIENTS = {
    "ann": [f"the cat number {n} sat on a mat" for n in range(10)],
    "bob": [f"a dog ran {n} miles to the sea" for n in range(20)],
    "cy": ["only one sentence here"],
}


@pytest.fixture(autouse=True)
def _no_data_directory(monkeypatch):
    monkeypatch.delenv("TURNOUT_DATA", raising=False)


@pytest.fixture
def blogs(tmp_path):
    write_jsonl(tmp_path / "blog-authors.jsonl", CLIENTS)
    return str(tmp_path)


def spelled(dataset, row):
    return [dataset.words[number] for number in dataset.x[row] if number]


# blog-authors and shakespeare ------------------------------------------------------------------


def test_texts_become_sequences_by_author(blogs):
    dataset = BlogAuthors(blogs, length=5, test_share=0.2).load(seed=0)
    assert dataset.is_text
    assert dataset.group_names == ("ann", "bob", "cy")
    # 8 words: 7 labels in two sequences each; a fifth of the sentences is for the test
    assert np.bincount(dataset.group).tolist() == [16, 32, 1]
    assert dataset.x_test.shape == (12, 5)
    assert dataset.n_classes == len(dataset.words)
    assert dataset.words[:3] == ("<unk>", "a", "the")
    assert spelled(dataset, 0)[:3] == ["the", "cat", "number"]


def test_test_sentences_are_whole_sentences(blogs):
    dataset = BlogAuthors(blogs, length=2, test_share=0.3, predict_unknown=True).load(seed=3)

    def numbers(x):
        return {int(dataset.words[word]) for word in np.unique(x) if dataset.words[word].isdigit()}

    # bob's numbers 10 .. 19 are in no other sentence: a sentence is in one part only
    late = {number for number in numbers(dataset.x) if number >= 10}
    assert 0 < len(late) < 10
    assert not {number for number in numbers(dataset.x_test) if number >= 10}  # not in training


def test_the_seed_chooses_the_test_sentences(blogs):
    first, again, other = (BlogAuthors(blogs).load(seed) for seed in (1, 1, 2))
    assert np.array_equal(first.x, again.x)
    assert first.words == again.words
    assert not np.array_equal(first.x, other.x) or first.words != other.words


def test_the_vocabulary_is_limited(blogs):
    dataset = BlogAuthors(blogs, vocabulary=6).load(seed=0)
    assert dataset.n_classes == 6
    assert dataset.x.max() <= 5
    assert dataset.y[dataset.y != PADDING].min() >= 1
    asked = BlogAuthors(blogs, vocabulary=6, predict_unknown=True).load(seed=0)
    assert asked.y[asked.y != PADDING].min() == 0


def test_stop_words_are_left_out(blogs):
    dataset = BlogAuthors(blogs, stop_words=("the", "a")).load(seed=0)
    assert "the" not in dataset.words
    assert spelled(dataset, 0)[:2] == ["cat", "number"]
    assert "the" not in BlogAuthors(blogs, stop_words="english").load(seed=0).words


def test_codes_are_made_from_the_clients_words(blogs):
    dataset = BlogAuthors(blogs, length=30).load(seed=0)
    data = divide(dataset, Natural(), 3, seed=0)
    for client in range(3):
        part = data.x[data.offsets[client] : data.offsets[client + 1]]
        tokens = [data.words[number] for number in part.ravel() if number]
        assert data.features[client].tolist() == SimHash(64).of_tokens(tokens).tolist()
    assert data.client_names == ("ann", "bob", "cy")


def test_shakespeare_has_the_same_form(tmp_path):
    write_jsonl(tmp_path / "shakespeare.jsonl", {"hamlet / GHOST": ["mark me", "i am thy spirit"]})
    dataset = Shakespeare(str(tmp_path)).load(seed=0)
    assert dataset.group_names == ("hamlet / GHOST",)
    data = federate(Shakespeare(str(tmp_path)), Natural(), 1, seed=0)
    assert data.num_samples.tolist() == [2]


def test_texts_in_a_file_of_the_users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "mine.jsonl", CLIENTS)
    dataset = TextFile(path="mine.jsonl").load(seed=0)
    assert dataset.name == "mine"
    assert dataset.group_names == ("ann", "bob", "cy")
    with pytest.raises(InvalidInput, match=r"^path"):
        TextFile()
    (tmp_path / "mine.jsonl").write_text('{"sentences": []}\n', encoding="utf-8")
    with pytest.raises(
        DamagedData, match=r"^mine\.jsonl cannot be used: .*line 1 must have"
    ) as raised:
        TextFile(path="mine.jsonl").load(seed=0)
    assert "Correct the file" in str(raised.value)
    assert "Delete" not in str(raised.value)  # it is the only one there is


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"client": "a", "sentences": ["x y"]}\n{"client": "b", "sen', r"line 2"),
        ('{"client": "a"}\n', r"line 1 must have the keys 'client' and 'sentences'"),
        ('["a"]\n', r"line 1 is not a JSON object"),
        ('{"client": "a", "sentences": "x y"}\n', r"line 1: sentences must be a list of strings"),
        ('{"client": "a", "sentences": [1]}\n', r"line 1: sentences must be a list of strings"),
        ('{"client": "a", "sentences": ["x"]}\n', r"no sentence has two words"),
        ("", r"no texts"),
    ],
)
def test_damaged_texts_are_named_with_the_line(tmp_path, content, message):
    path = tmp_path / "blog-authors.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DamagedData, match=rf"blog-authors\.jsonl is damaged.*{message}"):
        BlogAuthors(str(tmp_path)).load(seed=0)


def test_texts_that_are_not_utf_8(tmp_path):
    (tmp_path / "blog-authors.jsonl").write_bytes(b'{"client": "a", "sentences": ["\xff\xfe x"]}')
    with pytest.raises(DamagedData, match="UnicodeDecodeError"):
        BlogAuthors(str(tmp_path)).load(seed=0)


# StackExchange ---------------------------------------------------------------------------------

POSTS = [
    ("1", "7", "<p>How do I list files? I tried <code>ls -Z</code> twice.</p>"),
    ("2", "7", "<p>Use the shell &amp; read the manual.</p><pre><code>man ls\n</code></pre>"),
    ("2", "8", "<p>It&#39;s in the settings.<br>Look under tools</p>"),
    ("4", "7", "<p>wiki text of a tag</p>"),
    ("1", None, "<p>post of a deleted user</p>"),
    ("2", "9", "<p>another user entirely</p>"),
    ("2", "8", "<ul><li>first item</li><li>second item</li></ul>"),
]


def posts_xml(posts):
    rows = []
    for number, (kind, owner, body) in enumerate(posts):
        by = "" if owner is None else f' OwnerUserId="{owner}"'
        rows.append(f'<row Id="{number}" PostTypeId="{kind}"{by} Body={quoteattr(body)} />')
    return '<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "\n".join(rows) + "\n</posts>"


@pytest.fixture
def dump(tmp_path):
    (tmp_path / "superuser.com").mkdir()
    path = tmp_path / "superuser.com" / "Posts.xml"
    path.write_text(posts_xml(POSTS), encoding="utf-8")
    return tmp_path


def test_posts_are_stripped_of_markup_and_code():
    assert sentences_of_post(POSTS[0][2]) == ["How do I list files", "I tried twice"]
    assert sentences_of_post(POSTS[1][2]) == ["Use the shell & read the manual"]
    assert sentences_of_post(POSTS[2][2]) == ["It's in the settings", "Look under tools"]
    assert sentences_of_post(POSTS[6][2]) == ["first item", "second item"]
    assert sentences_of_post("<p>a &lt;b&gt; c</p>") == ["a <b> c"]
    assert sentences_of_post("<PRE class='x'>gone</PRE> stays here") == ["stays here"]


def test_sentences_by_hand():
    assert sentences_of("One. Two three!  Four?\n\nFive 3.5 six") == [
        "One",
        "Two three",
        "Four",
        "Five 3.5 six",
    ]
    assert sentences_of(" \n ") == []


def test_posts_by_user(dump):
    source = StackExchange(str(dump), min_texts=2, predict_unknown=True)
    dataset = source.load(seed=0)
    assert dataset.group_names == ("7", "8")  # the others have one post, or none
    assert "manual" in dataset.words
    assert {"wiki", "deleted", "entirely", "ls", "man"}.isdisjoint(dataset.words)
    assert StackExchange(str(dump), min_texts=1).load(seed=0).group_names == ("7", "8", "9")


def test_posts_in_the_folder_of_another_site(dump):
    (dump / "stackexchange").mkdir()
    (dump / "superuser.com").rename(dump / "stackexchange" / "cooking.stackexchange.com")
    source = StackExchange(str(dump), site="cooking.stackexchange.com", min_texts=1)
    assert source.load(seed=0).name == "stack-exchange (cooking.stackexchange.com)"
    with pytest.raises(DataMissing, match=r"superuser\.com/Posts\.xml.*superuser\.com\.7z"):
        StackExchange(str(dump)).load(seed=0)


def test_posts_that_break_off(dump):
    path = dump / "superuser.com" / "Posts.xml"
    path.write_text(path.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    with pytest.raises(DamagedData, match=r"Posts\.xml is damaged .*ParseError.*7z"):
        StackExchange(str(dump), min_texts=1).load(seed=0)


def test_nobody_has_enough_posts(dump):
    with pytest.raises(
        InvalidInput, match=r"^min_texts is 150, but .* more than 2 texts: lower min_texts"
    ):
        StackExchange(str(dump)).load(seed=0)


@pytest.mark.slow
def test_posts_are_read_without_keeping_them(dump):
    path = dump / "superuser.com" / "Posts.xml"
    path.write_text(posts_xml(POSTS * 4000), encoding="utf-8")
    assert path.stat().st_size > 3_000_000
    tracemalloc.start()
    try:
        n_posts = sum(1 for _ in read_posts(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert n_posts == 5 * 4000
    assert peak < 500_000


# Yelp ------------------------------------------------------------------------------------------

REVIEWS = [
    {"review_id": "r1", "user_id": "u1", "stars": 5.0, "text": "Good food. Would go again!"},
    {"review_id": "r2", "user_id": "u2", "stars": 1.0, "text": "Cold soup\n\nslow service"},
    {"review_id": "r3", "user_id": "u1", "stars": 3.0, "text": "Nice place but loud."},
]
MEMBER = "yelp_academic_dataset_review.json"


def reviews():
    return "".join(json.dumps(review) + "\n" for review in REVIEWS).encode()


@pytest.mark.parametrize("form", ["file", "folder", "tar"])
def test_reviews_by_user(tmp_path, form):
    if form == "tar":
        with tarfile.open(tmp_path / "yelp_dataset.tar", "w") as archive:
            for name, content in (("Dataset_User_Agreement.pdf", b"x"), (MEMBER, reviews())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    else:
        folder = tmp_path if form == "file" else tmp_path / "yelp"
        folder.mkdir(exist_ok=True)
        (folder / MEMBER).write_bytes(reviews())
    dataset = Yelp(str(tmp_path), min_texts=1).load(seed=0)
    assert dataset.group_names == ("u1", "u2")
    assert {"soup", "service", "loud"} <= set(dataset.words)
    assert Yelp(str(tmp_path), min_texts=2).load(seed=0).group_names == ("u1",)


def test_an_archive_without_reviews(tmp_path):
    with tarfile.open(tmp_path / "yelp_dataset.tar", "w"):
        pass
    with pytest.raises(DamagedData, match=f"does not contain {MEMBER}"):
        Yelp(str(tmp_path), min_texts=1).load(seed=0)


def test_reviews_that_break_off(tmp_path):
    (tmp_path / MEMBER).write_bytes(reviews()[:-20])
    with pytest.raises(DamagedData, match="line 3"):
        Yelp(str(tmp_path), min_texts=1).load(seed=0)


# settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, r"^length"),
        ({"vocabulary": 1}, r"^vocabulary"),
        ({"test_share": 0.0}, r"^test_share"),
        ({"predict_unknown": 2}, r"^predict_unknown"),
        ({"stop_words": "the"}, r"^stop_words"),
        ({"stop_words": (1,)}, r"^stop_words"),
    ],
)
@pytest.mark.parametrize("cls", [BlogAuthors, Shakespeare, StackExchange, Yelp])
def test_settings_are_checked_by_name(cls, settings, message):
    with pytest.raises(InvalidInput, match=message):
        cls(**settings)


def test_settings_of_dumps():
    with pytest.raises(InvalidInput, match=r"^min_texts"):
        Yelp(min_texts=0)
    with pytest.raises(InvalidInput, match=r"^min_texts"):
        StackExchange(min_texts=0)
    for site in ("", "../elsewhere", "a/b", None):
        with pytest.raises(InvalidInput, match=r"^site"):
            StackExchange(site=site)
