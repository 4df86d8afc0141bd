from __future__ import annotations

import ast
import collections
from pathlib import Path

import pytest

import turnout
from turnout.core.names import import_extra, import_object, nearest, shortened


def test_a_path_names_an_object_also_inside_a_class():
    assert import_object("collections:OrderedDict") is collections.OrderedDict
    assert import_object("collections:OrderedDict.fromkeys") == collections.OrderedDict.fromkeys


@pytest.mark.parametrize("path", ["no_such:Name", "math:nothing", "math:", "math", ":pi", ""])
def test_a_path_that_names_nothing(path):
    with pytest.raises(turnout.InvalidInput, match=r"path '.*' cannot be imported: .*module:Name"):
        import_object(path)


def test_a_module_that_fails_on_import(tmp_path, monkeypatch):
    (tmp_path / "fails_on_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(turnout.InvalidInput, match="division by zero"):
        import_object("fails_on_import:Name")


def test_a_module_that_is_not_installed():
    assert import_extra("collections", "unused") is collections
    with pytest.raises(turnout.MissingExtra, match=r"^do this$"):
        import_extra("no_such_module", "do this")


@pytest.mark.parametrize("word", ["n_client", "n_clients ", "N_CLIENTS", "n-clients"])
def test_the_nearest_option_is_suggested(word):
    assert nearest(word, ["rounds", "n_clients"]).startswith(" Did you mean 'n_clients'?")


def test_without_a_near_option_all_are_listed():
    assert nearest("zzz", ["a", "b"]) == " Known: a, b."
    assert nearest(7, []) == " Known: none."


def test_only_long_texts_are_shortened():
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "ab…"


def test_no_two_classes_share_a_name():
    """``Dirichlet`` is a partition and a selector; run folders know both by that name."""
    places = {}
    root = Path(turnout.__file__).parent
    for file in sorted(root.rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(file.relative_to(root).as_posix())
    doubled = {name: files for name, files in places.items() if len(files) > 1}
    assert doubled.keys() == {"Dirichlet"}
