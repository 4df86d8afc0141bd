"""Any collection of examples: a torch ``Dataset``, a Hugging Face dataset, a list of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from turnout.data.base import Dataset, Source
from turnout.data.user_data import Arrays
from turnout.domains import Finite, check_fields
from turnout.errors import InvalidInput
from turnout.names import import_object
from turnout.types import Array

#: Place or name of a part of an example.
Part = int | str


class Collection(Protocol):
    """What has a length and an example at each place, as a map-style torch ``Dataset`` has."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def __getitem__(self, place: int, /) -> Any:
        """Return an example: a pair or a mapping."""


def from_examples(
    train: Collection,
    test: Collection,
    *,
    x: Part = 0,
    y: Part = 1,
    group: Part | None = None,
    scale: float = 1.0,
    shift: float = 0.0,
    name: str = "examples",
) -> Arrays:
    """Collect examples into arrays. All must have the same shape.

    Args:
        train: Training examples. Each is a pair (x, y) or a mapping.
        test: Test examples.
        x: Place or name of what the model sees: an array, a tensor, a number of numbers or an
            image of Pillow, which becomes (channels, height, width).
        y: Place or name of the label: an integer from 0, or a name.
        group: Place or name of the owner, for ``Natural()``. Default: nobody owns examples.
        scale: A model sees ``x * scale + shift``. Use 1/255 for pixels from 0 to 255.
        shift: See ``scale``.
        name: The name that results show.

    Returns:
        The source.

    Raises:
        InvalidInput: There is no such part, or shapes differ; the message names the example.

    >>> pairs = [([0.0, 1.0], "cat"), ([1.0, 0.0], "dog")]
    >>> from_examples(pairs, pairs).load(seed=0).y
    array([0, 1])

    """
    if x is None or y is None:
        raise InvalidInput(f"x and y must name parts of an example, got {x!r} and {y!r}.")
    x_train, y_train, *owner = _columns("train", train, (x, y, group))
    x_test, y_test = _columns("test", test, (x, y))
    return Arrays(
        x_train,
        y_train,
        x_test,
        y_test,
        scale=scale,
        shift=shift,
        group=owner[0] if owner else None,
        name=name,
    )


@dataclass(frozen=True, slots=True)
class Examples(Source):
    """Your own torch or Hugging Face dataset: path=module:function.

    The function takes no arguments and returns the training and the test examples: two collections
    with a length and an example at each place.

    Args:
        path: The function as ``"package.module:name"``. It must be set.
        x: Place or name of what the model sees in an example: 0, or "image".
        y: Place or name of the label.
        group: Place or name of the owner; then divide with ``Natural()``.
        scale: A model sees ``x * scale + shift``. Use 1/255 = 0.003922 for pixels.
        shift: See ``scale``.

    """

    path: str = ""
    x: Part = 0
    y: Part = 1
    group: Part | None = None
    scale: Finite = 1.0
    shift: Finite = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.path, str) or len(self.path.split(":")) != 2:
            raise InvalidInput(f"path must be 'module:function', got {self.path!r}.", field="path")

    def load(self, seed: int) -> Dataset:
        """Call the function and collect what it returns."""
        try:
            train, test = import_object(self.path)()
        except InvalidInput:
            raise
        except Exception as error:  # the user's own code
            raise InvalidInput(
                f"path {self.path!r} must return (train, test): {type(error).__name__}: {error}.",
                field="path",
            ) from error
        own = from_examples(
            train,
            test,
            x=self.x,
            y=self.y,
            group=self.group,
            scale=self.scale,
            shift=self.shift,
            name=self.path.partition(":")[2],
        )
        return own.load(seed)


def pixels(image: Any) -> Array:
    """Return an image of Pillow as (channels, height, width) of uint8.

    Args:
        image: The image, in a mode of one byte for each channel.

    """
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)


def _columns(which: str, examples: Collection, parts: tuple[Part | None, ...]) -> list[Array]:
    try:
        places = range(len(examples))
    except TypeError as error:
        raise InvalidInput(
            f"{which} must have a length, as a list or a map-style dataset has, got "
            f"{type(examples).__name__}: collect a stream with list(...) first.",
            field=which,
        ) from error
    columns: list[list[Any]] = [[] for part in parts if part is not None]
    for place in places:
        example = _example(which, examples, place)
        for column, part in zip(columns, parts, strict=False):
            column.append(_part(f"{which}[{place}]", example, part))
    return [_stacked(which, column, part) for column, part in zip(columns, parts, strict=False)]


def _example(which: str, examples: Collection, place: int) -> Any:
    try:
        return examples[place]
    except LookupError as error:
        raise InvalidInput(
            f"{which} has a length of {len(examples)}, but no example {place}: of a dataset with "
            "several splits give one, such as dataset['train'].",
            field=which,
        ) from error


def _part(where: str, example: Any, part: Any) -> Any:
    try:
        value = example[part]
    except (LookupError, TypeError) as error:
        has = ", ".join(map(repr, example)) if isinstance(example, Mapping) else "a pair"
        raise InvalidInput(
            f"{where} has no part {part!r}: set x and y to names or places of its parts ({has})."
        ) from error
    return pixels(value) if hasattr(value, "getbands") else np.asarray(value)


def _stacked(which: str, values: list[Any], part: Any) -> Array:
    shapes = [value.shape for value in values]
    for place, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise InvalidInput(
                f"{which}[{place}], part {part!r}, has shape {shape}, but {which}[0] has "
                f"{shapes[0]}: give all examples one shape.",
                field=which,
            )
    return np.array(values)
