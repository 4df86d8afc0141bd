"""Readers of texts by author: JSON lines, StackExchange's Posts.xml, Yelp's reviews.

Each reader yields (author, sentences), one client or one text at a time. Nothing is kept in memory.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
import tarfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from turnout.data.data_files import UnfitSetting

#: (author, sentences) pairs.
Texts = Iterator[tuple[str, list[str]]]

_YELP_MEMBER = "yelp_academic_dataset_review.json"

_CODE = re.compile(r"<(pre|code)\b.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_PARAGRAPH = re.compile(r"</?(?:p|br|li|ul|ol|h\d|blockquote|div|hr)\b[^>]*>", re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s)|\n+")

#: Questions and answers; the other kinds of posts are made by the site.
_POST_TYPES = frozenset({"1", "2"})


def read_jsonl(path: Path) -> Texts:
    """Read a file with a line ``{"client": name, "sentences": [...]}`` for each client.

    Args:
        path: The file.

    """
    with path.open(encoding="utf-8") as lines:
        for number, row in _json_rows(lines):
            if not {"client", "sentences"} <= row.keys():
                raise ValueError(f"line {number} must have the keys 'client' and 'sentences'")
            sentences = row["sentences"]
            if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
                raise ValueError(f"line {number}: sentences must be a list of strings")
            yield str(row["client"]), sentences


def read_posts(path: Path) -> Texts:
    """Read the questions and answers of a StackExchange dump; authors are ``OwnerUserId``.

    Args:
        path: The file ``Posts.xml``.

    """
    context = iter(ElementTree.iterparse(path, events=("start", "end")))  # nosec B314: the user's own file
    _, root = next(context)
    for event, element in context:
        if event != "end" or element.tag != "row":
            continue
        owner, kind = element.get("OwnerUserId"), element.get("PostTypeId")
        if owner is not None and kind in _POST_TYPES:
            yield owner, [element.get("Body", "")]
        root.clear()


def sentences_of_post(body: str) -> list[str]:
    """Return the sentences of a post, without HTML tags and without code.

    Args:
        body: The HTML of the post.

    >>> sentences_of_post("<p>Try <b>this</b>. It&#39;s short:</p><pre><code>ls -l</code></pre>")
    ['Try this', "It's short:"]

    """
    prose = _PARAGRAPH.sub("\n", _CODE.sub(" ", body))
    return sentences_of(html.unescape(_TAG.sub(" ", prose)))


def read_reviews(path: Path) -> Texts:
    """Read Yelp's reviews; authors are ``user_id``.

    Args:
        path: The file of JSON lines, or the tar archive that holds it.

    """
    with _review_lines(path) as lines:
        for _, row in _json_rows(lines):
            yield row["user_id"], [row["text"]]


def sentences_of(text: str) -> list[str]:
    """Return the sentences of running text.

    Args:
        text: Plain text. A sentence ends at a full stop, question or exclamation mark, or line end.

    >>> sentences_of("Good food. Would I go again? Yes!")
    ['Good food', 'Would I go again', 'Yes!']

    """
    parts = (" ".join(part.split()) for part in _SENTENCE_END.split(text))
    return [part for part in parts if part]


def prolific(
    read: Callable[[], Texts], at_least: int, split: Callable[[str], Iterable[str]]
) -> Texts:
    """Yield the sentences of authors who wrote many texts.

    Args:
        read: Opens the file and yields (author, texts). It is called twice.
        at_least: Authors with fewer texts are left out.
        split: Cuts a text into sentences.

    Raises:
        UnfitSetting: No author wrote that many.

    """
    n_texts = Counter(author for author, _ in read())
    most = max(n_texts.values(), default=at_least)
    if most < at_least:
        raise UnfitSetting(
            f"min_texts is {at_least}, but no author wrote more than {most} texts: lower min_texts."
        )
    for author, texts in read():
        if n_texts[author] >= at_least:
            yield author, [sentence for text in texts for sentence in split(text)]


def _json_rows(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is not a JSON object")
        yield number, row


@contextlib.contextmanager
def _review_lines(path: Path) -> Iterator[IO[str]]:
    if path.suffix != ".tar":
        with path.open(encoding="utf-8") as lines:
            yield lines
        return
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(_YELP_MEMBER) else None
            if file is not None:
                yield io.TextIOWrapper(file, encoding="utf-8")
                return
    raise ValueError(f"it does not contain {_YELP_MEMBER}")
