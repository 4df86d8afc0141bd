"""Forms of models: what must be equal for answers to be averaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeAlias, TypeVar

#: Key, shape and kind of each array, in order.
ArrayForm: TypeAlias = tuple[tuple[str, tuple[int, ...], str], ...]
#: Whatever else must be equal, such as the name of a record, and the arrays.
Form: TypeAlias = tuple[Hashable, ArrayForm]

_Item = TypeVar("_Item", bound=Hashable)


def other_forms(forms: Sequence[Form], model: ArrayForm) -> dict[int, str]:
    """Return which answers have another form than the others, by position, and why.

    The form of the model that was sent out is the right one if anybody has it, else the commonest.

    Args:
        forms: The form of each answer.
        model: The form of the arrays that were sent out.
    """
    if not forms:
        return {}
    usual = most_common([form for form in forms if form[1] == model] or forms)
    reason = "its arrays have other keys, shapes or types than those of the others"
    return {i: reason for i, form in enumerate(forms) if form != usual}


def most_common(items: Sequence[_Item]) -> _Item:
    """Return the item that occurs most often, the earliest of equals.

    Args:
        items: At least one.

    >>> most_common(["b", "a", "a", "b"])
    'b'
    """
    return Counter(items).most_common(1)[0][0]
