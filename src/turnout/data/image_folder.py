"""The user's own images: a folder for each label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.data.base import Dataset, Draw, Source
from turnout.data.data_files import Files, part_named
from turnout.data.embedded import TestShare, held_back
from turnout.data.examples import pixels
from turnout.data.user_data import Arrays, OwnPath, numbered
from turnout.domains import CheckedFields, Count, Flag
from turnout.names import import_extra
from turnout.types import Array

_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")


class _Images(NamedTuple):
    """Images, and the folder of each: its label."""

    x: Array
    label: Array


@dataclass(frozen=True, slots=True)
class ImageFolder(CheckedFields, Source):
    """Your own images: path=folder with a folder for each label.

    The files are ``path/label/name.png``. Or there are two parts, ``path/train/label/name.png`` and
    ``path/test/label/name.png``. Labels are numbered in alphabetical order. Needs Pillow.

    Args:
        path: The folder. It must be set.
        size: Height and width that all images get, such as 32. Default: as they are, which must be
            the same for all.
        grey: Whether colours are turned into grey: one channel instead of three.
        test_share: Share of each label's images that is kept for the test, inside (0, 1), if there
            is no folder ``test``.
        directory: The folder that a relative path starts from. Default: the current folder.

    """

    path: OwnPath = ""
    size: Count | None = None
    grey: Flag = False
    test_share: TestShare = 0.2
    directory: str | None = "."

    @property
    def files(self) -> Files[list[_Images]]:
        """The user's folder."""
        fix = "Give the path of a folder that exists."
        return Files(Path(self.path).name, {self.path: self._read}, fix, is_own=True)

    def find(self) -> Path:
        """Return the folder."""
        return self.files.find(self.directory)

    def load(self, seed: int) -> Dataset:
        """Read all images."""
        path, parts = self.files.read(self.directory)
        if len(parts) == 1:
            images = parts[0]
            label, _ = numbered(images.label)
            is_test = held_back(label, self.test_share, Draw.CONTENT.rng(seed))
            parts = [_Images(images.x[rows], images.label[rows]) for rows in (~is_test, is_test)]
        with self.files.reading(path):
            train, test = parts
            own = Arrays(train.x, train.label, test.x, test.label, scale=1 / 255, name=path.name)
            return own.load(seed)

    def _read(self, path: Path) -> list[_Images]:
        if not path.is_dir():
            raise ValueError("path is a file, but must be a folder with a folder for each label")
        has_parts = (path / "train").is_dir() and (path / "test").is_dir()
        folders = [path / "train", path / "test"] if has_parts else [path]
        return [self._images(folder) for folder in folders]

    def _images(self, folder: Path) -> _Images:
        library = import_extra(
            "PIL.Image", "image-folder needs Pillow: pip install 'turnout[images]'"
        )
        files = list(_image_files(folder))
        if not files:
            raise ValueError(f"no images in {folder.name}/<label>/: put a folder for each label in")
        images = [self._image(library, file) for file in files]
        for file, image in zip(files, images, strict=True):
            if image.shape != images[0].shape:
                raise ValueError(
                    f"{file.relative_to(folder)} has shape {image.shape}, but "
                    f"{files[0].relative_to(folder)} has {images[0].shape}: set size=32 or another"
                )
        return _Images(np.stack(images), np.array([file.parent.name for file in files]))

    def _image(self, library: Any, file: Path) -> Array:
        with part_named(f"{file.parent.name}/{file.name}"):
            try:
                with library.open(file) as opened:
                    image = opened.convert("L" if self.grey else "RGB")
            except OSError as error:  # of Pillow, for a file that is no image
                raise ValueError(str(error)) from error
            return pixels(image if self.size is None else image.resize((self.size, self.size)))


def _image_files(folder: Path) -> Iterator[Path]:
    for label in sorted(part for part in folder.iterdir() if part.is_dir()):
        yield from sorted(file for file in label.iterdir() if file.suffix.lower() in _ENDINGS)
