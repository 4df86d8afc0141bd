"""Our questions as models, and models as answers to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel

from turnout.integrations.nvflare import keys
from turnout.session.port import AskColumns, AskIdentity, Heard, Identity, Kind, Question


def written(question: Question, model: FLModel, *, took_part: bool) -> FLModel:
    """Return a question as a model.

    Who is asked for the first time may not know our questions: it gets the real model, trains, and
    its answer says nothing.

    Args:
        question: What is asked.
        model: The model of the federation.
        took_part: Whether who is asked was chosen in the round before.
    """
    asked: dict[str, Any]
    params: Any = {}
    if isinstance(question, AskIdentity):
        asked, params = {keys.ASK: keys.IDENTITY}, model.params
    elif isinstance(question, AskColumns):
        asked = {keys.ASK: keys.COLUMNS, keys.TOOK_PART: took_part}
    else:
        asked = {keys.ASK: keys.LOSS, keys.POLL_DATA: question.data}
        params = question.model.params
    return FLModel(
        params=params,
        start_round=model.start_round,
        current_round=model.current_round,
        total_rounds=model.total_rounds,
        meta={keys.MARK: asked},
    )


def answer_to(question: Question, client: str, received: FLModel | Heard) -> Heard:
    """Return what is heard of a client that was asked something.

    Args:
        question: What it was asked.
        client: The name of its site.
        received: What came back.
    """
    said: Mapping[str, Any] = {}
    if isinstance(received, FLModel):
        marked = (received.meta or {}).get(keys.MARK)
        said = marked if isinstance(marked, Mapping) else {}
    if isinstance(question, AskIdentity):  # the name is known, whatever the client says
        changing = said.get(keys.EVERY_ROUND)
        named = changing if isinstance(changing, list | tuple) else ()
        return Heard(metrics=_columns(said), content=Identity(client, frozenset(map(str, named))))
    if isinstance(received, Heard):
        return received
    if isinstance(question, AskColumns):
        return Heard(metrics=_columns(said))
    if keys.LOSS not in said:
        return Heard(Kind.FAILED, reason="it has no answer to the question for its loss")
    return Heard(metrics={"loss": said[keys.LOSS]})


def _columns(said: Mapping[str, Any]) -> Mapping[str, Any]:
    columns = said.get(keys.COLUMNS)
    if not isinstance(columns, Mapping):
        return {}
    return {name: value for name, value in columns.items() if isinstance(name, str)}
