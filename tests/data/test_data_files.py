"""Marks of what is in files."""

import numpy as np
import pytest

from turnout.data.files import content_id


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 5_000, (64 << 20) + 5, 70 << 20])
def test_the_mark_of_a_file_changes_with_its_first_and_last_byte_and_its_size(tmp_path, size):
    path, copy = tmp_path / "a", tmp_path / "b"
    content = np.random.default_rng(0).integers(256, size=size, dtype=np.uint8)
    content.tofile(path)
    content.tofile(copy)
    found = content_id(path)
    assert found == content_id(copy)
    assert len(found) == 16
    seen = {found}
    for place in (0, -1):
        changed = content.copy()
        changed[place] ^= 1
        changed.tofile(path)
        seen.add(content_id(path))
    content[:-1].tofile(path)
    seen.add(content_id(path))
    assert len(seen) == (4 if size > 1 else 3)  # of one byte, the first is the last


def test_the_mark_of_a_folder_is_that_of_all_files_in_it(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "a").write_text("1")
    (tmp_path / "in" / "deep" / "b").write_text("2")
    first = content_id(tmp_path / "in")
    (tmp_path / "in" / "deep" / "b").write_text("3")
    second = content_id(tmp_path / "in")
    (tmp_path / "in" / "deep" / "b").rename(tmp_path / "in" / "deep" / "c")
    assert len({first, second, content_id(tmp_path / "in")}) == 3
