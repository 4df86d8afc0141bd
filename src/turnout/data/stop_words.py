"""Words that say nothing about who wrote them: the function words of English."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from turnout.errors import InvalidInput

__all__ = ["ENGLISH", "StopWords", "stop_words_of"]

_WORDS = """
a about above across after again against ago all almost along already also although always am among
an and another any anybody anyone anything are around as at away back be became because become been
before behind being below beside between beyond both but by came can cannot come could did do does
doing done down during each either else enough even ever every everybody everyone everything far few
first for from further gave get gets getting give go goes going gone got had has have having he her
here hers herself him himself his how however i if in indeed instead into is it its itself just keep
kind last least less let like little long lot made make many may maybe me might mine more most much
must my myself near need neither never next no nobody none nor not nothing now of off often on once
one only onto or other others ought our ours ourselves out over own per perhaps quite rather really
said same say says see seem seemed seems several shall she should since so some somebody someone
something sometimes somewhat soon still such than that the their theirs them themselves then there
therefore these they thing things this those though through thus to together too toward towards two
under until up upon us used very was way we well went were what whatever when whenever where whether
which while who whoever whole whom whose why will with within without would yes yet you your yours
yourself yourselves
"""
_CONTRACTIONS = """
ain't aren't can't couldn't didn't doesn't don't hadn't hasn't haven't he'd he'll he's here's i'd
i'll i'm i've isn't it'd it'll it's let's mustn't needn't she'd she'll she's shouldn't that's
there's they'd they'll they're they've wasn't we'd we'll we're we've weren't what's who's won't
wouldn't you'd you'll you're you've dont didnt im ive thats its cant doesnt isnt wasnt
"""

#: The list named "english", contractions with either apostrophe.
ENGLISH = frozenset(
    {*_WORDS.split(), *_CONTRACTIONS.split(), *_CONTRACTIONS.replace("'", "\u2019").split()}
)


def _check_stop_words(field: str, stop_words: Any) -> None:
    is_list = not isinstance(stop_words, str) and all(isinstance(word, str) for word in stop_words)
    if stop_words != "english" and not is_list:
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
