"""Words that say nothing about who wrote them: the function words of English."""

from __future__ import annotations

from importlib import resources
from typing import Annotated, Any, Literal

from turnout.errors import InvalidInput

_WORDS = resources.files("turnout.data").joinpath("english_stop_words.txt").read_text("utf-8")

#: The list named "english", contractions with either apostrophe.
ENGLISH = frozenset([*_WORDS.split(), *_WORDS.replace("'", "\u2019").split()])


def _check_stop_words(field: str, stop_words: Any) -> None:
    if isinstance(stop_words, str):
        is_known = stop_words == "english"
    else:
        is_known = all(isinstance(word, str) for word in stop_words)
    if not is_known:
        raise InvalidInput(
            f"{field} must be 'english' or a list of words, for example ['the', 'of'], got "
            f"{stop_words!r}.",
            field=field,
        )


#: "english" or a list of words.
StopWords = Annotated[tuple[str, ...] | Literal["english"], _check_stop_words]


def stop_words_of(stop_words: tuple[str, ...] | str) -> frozenset[str]:
    """Return the words, those of the shipped list for "english".

    Args:
        stop_words: "english" or words.
    """
    return ENGLISH if isinstance(stop_words, str) else frozenset(stop_words)
