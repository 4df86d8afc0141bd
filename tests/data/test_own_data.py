"""The user's own tables, folders of images and collections of examples."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from turnout.core.errors import InvalidInput
from turnout.data import (
    Arrays,
    CsvFile,
    DamagedData,
    DataMissing,
    Examples,
    Iid,
    ImageFolder,
    Natural,
    federate,
    from_examples,
)

TABLE = """\
id,length,width,species,site,part
a,1.0,4,ape,north,train
b,2.0,4,cat,south,train
c,3.0,4,ape,north,test
d,5.0,4,cat,south,test
e,9.0,4,dog,north,train
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(text: str = TABLE) -> None:
    Path("own.csv").write_text(text, encoding="utf-8")


# CSV -------------------------------------------------------------------------------------------


def test_a_table_by_hand(here: Path) -> None:
    table()
    source = CsvFile("own.csv", "species", "site", ignore=("id",), test="part", standardise=False)
    dataset = source.load(seed=0)
    assert dataset.name == "own"
    assert dataset.x.tolist() == [[1, 4], [2, 4], [9, 4]]
    assert dataset.y.tolist() == [0, 1, 2]
    assert dataset.x_test.tolist() == [[3, 4], [5, 4]]
    assert dataset.y_test.tolist() == [0, 1]
    assert dataset.group_names == ("north", "south")
    assert dataset.group.tolist() == [0, 1, 0]
    assert federate(source, Natural(), 2, seed=0).client_names == ("north", "south")


def test_features_are_standardised_by_the_training_part(here: Path) -> None:
    table()
    dataset = CsvFile("own.csv", "species", ignore=("id", "site"), test="part").load(seed=0)
    assert dataset.x[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert dataset.x[:, 0].std() == pytest.approx(1)
    assert dataset.x_test[:, 0].tolist() == pytest.approx([-0.2810, 0.2810], abs=1e-3)
    assert not dataset.x[:, 1].any()


def test_a_share_of_each_label_is_for_the_test(here: Path) -> None:
    lines = [f"{i},{i % 2 * 9 + 1}" for i in range(40)]
    table("\n".join(["value,label", *lines]))
    first, second = (CsvFile("own.csv", test_share=0.25).load(seed) for seed in (0, 1))
    assert np.bincount(first.y).tolist() == [15, 15]
    assert np.bincount(first.y_test).tolist() == [5, 5]
    assert not np.array_equal(first.x, second.x)


def test_numbers_as_labels_are_in_the_order_of_numbers(here: Path) -> None:
    table("value,label\n" + "\n".join(f"{place},{place}" for place in (10, 9, 2, 10, 9, 2)))
    dataset = CsvFile("own.csv", standardise=False, test_share=0.5).load(seed=0)
    assert dict(zip(dataset.x[:, 0], dataset.y, strict=True)) == {2: 0, 9: 1, 10: 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label": "specie"}, r"own\.csv cannot be used: .*label=specie is no column.*'species'"),
        (
            {"label": "species"},
            r"column id must hold numbers, got 'a' in line 2.*ignore=id.*group=id",
        ),
        ({"label": "species", "group": "owner"}, "group=owner is no column"),
        ({"label": "species", "ignore": ("id", "x")}, "ignore=x is no column"),
    ],
)
def test_a_wrong_setting_of_a_table_is_named(here: Path, settings: dict, message: str) -> None:
    table()
    with pytest.raises(DamagedData, match=message):
        CsvFile("own.csv", **settings).load(seed=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs a line of headings"),
        ("a,label\n", "at least one example"),
        ("a,a,label\n1,2,3\n", "same heading"),
        ("a,label\n1,2\n1\n", "line 3 has 1 cells, not 2"),
        ("label\n1\n", "no column of features"),
        ("a,label\n,1\n", "column a must hold numbers, got '' in line 2"),
    ],
)
def test_a_damaged_table_is_explained(here: Path, text: str, message: str) -> None:
    table(text)
    with pytest.raises(DamagedData, match=message):
        CsvFile("own.csv").load(seed=0)


def test_other_files_are_no_tables(here: Path) -> None:
    with pytest.raises(DataMissing, match=r"own\.csv"):
        CsvFile("own.csv").load(seed=0)
    with pytest.raises(DamagedData, match="path is a folder"):
        CsvFile(str(here)).load(seed=0)
    np.savez("own.npz", x=np.zeros(2))
    with pytest.raises(DamagedData, match=r"own\.npz cannot be used"):
        CsvFile("own.npz").load(seed=0)


# images ----------------------------------------------------------------------------------------


def image(path: str, value: int, size: tuple[int, int] = (4, 3)) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 0)).save(path)


def test_a_folder_with_two_parts(here: Path) -> None:
    image("photos/train/cat/1.png", 10)
    image("photos/train/ape/1.png", 20)
    image("photos/test/cat/9.png", 30)
    Path("photos/train/cat/notes.txt").write_text("no image", encoding="utf-8")
    dataset = ImageFolder("photos").load(seed=0)
    assert dataset.name == "photos"
    assert dataset.x.shape == (2, 3, 3, 4)
    assert dataset.x.dtype == np.uint8
    assert dataset.x[:, 0, 0, 0].tolist() == [20, 10]
    assert dataset.y.tolist() == [0, 1]
    assert dataset.y_test.tolist() == [1]
    assert dataset.scale == 1 / 255


def test_a_folder_of_labels_is_split_and_resized(here: Path) -> None:
    for place in range(4):
        image(f"photos/cat/{place}.png", place, size=(8, 8 + place))
        image(f"photos/ape/{place}.png", place)
    dataset = ImageFolder("photos", size=5, grey=True, test_share=0.25).load(seed=0)
    assert dataset.x.shape == (6, 1, 5, 5)
    assert np.bincount(dataset.y_test).tolist() == [1, 1]
    with pytest.raises(DamagedData, match=r"cat/0\.png has shape .*ape/0\.png .*size=32"):
        ImageFolder("photos").load(seed=0)


def test_a_folder_that_holds_no_images_is_explained(here: Path) -> None:
    with pytest.raises(DataMissing, match="photos"):
        ImageFolder("photos").load(seed=0)
    table()
    with pytest.raises(DamagedData, match="path is a file, but must be a folder"):
        ImageFolder("own.csv").load(seed=0)
    Path("photos/cat").mkdir(parents=True)
    with pytest.raises(DamagedData, match="no images in photos/<label>/"):
        ImageFolder("photos").load(seed=0)
    Path("photos/cat/1.png").write_bytes(b"no image")
    with pytest.raises(DamagedData, match=r"photos cannot be used: cat/1\.png: .*cannot identify"):
        ImageFolder("photos").load(seed=0)


# collections -----------------------------------------------------------------------------------


class Pairs(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        if place >= 6:
            raise IndexError(place)
        return torch.full((2, 5), float(place)), place % 3


def rows(image_size: int = 4) -> list[dict[str, object]]:
    """Examples as a Hugging Face dataset gives them."""
    return [
        {"image": Image.new("L", (image_size, 3), place), "label": name, "user": f"u{place % 2}"}
        for place, name in enumerate(("no", "yes", "no", "yes"))
    ]


def sets() -> tuple[object, object]:
    return rows(), rows()


def not_sets() -> int:
    return 3


def test_a_torch_dataset_keeps_its_shape() -> None:
    source = from_examples(Pairs(), torch.utils.data.Subset(Pairs(), [0, 4]))
    assert isinstance(source, Arrays)
    data = federate(source, Iid(), 2, seed=0)
    assert data.example_shape == (2, 5)
    assert data.n_classes == 3
    assert data.x_test[:, 0, 0].tolist() == [0, 4]
    assert data.y_test.tolist() == [0, 1]


def test_examples_with_names_images_and_owners() -> None:
    source = from_examples(rows(), rows(), x="image", y="label", group="user", scale=1 / 255)
    dataset = source.load(seed=0)
    assert dataset.x.shape == (4, 1, 3, 4)
    assert dataset.y.tolist() == [0, 1, 0, 1]
    assert dataset.group_names == ("u0", "u1")


def test_a_function_gives_the_examples_in_a_configuration() -> None:
    source = Examples(f"{__name__}:sets", x="image", y="label", group="user")
    data = federate(source, Natural(), 2, seed=0)
    assert data.name == "sets"
    assert data.client_names == ("u0", "u1")


def test_wrong_collections_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"^train has a length of 1, .*dataset\['train'\]"):
        from_examples({"train": []}, [])
    with pytest.raises(InvalidInput, match=r"^train must have a length, .*list_iterator.*list\("):
        from_examples(iter(rows()), rows())  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"^train\[0\] has no part 'img'.*'image', 'label'"):
        from_examples(rows(), rows(), x="img", y="label")
    with pytest.raises(InvalidInput, match=r"^test\[1\], part 'image', has shape \(1, 3, 5\)"):
        from_examples(rows(), [rows()[0], rows(5)[1]], x="image", y="label")
    with pytest.raises(InvalidInput, match=r"^path must be 'module:function', got ''"):
        Examples()
    with pytest.raises(InvalidInput, match=r"^path .*not_sets.* must return \(train, test\)"):
        Examples(f"{__name__}:not_sets").load(seed=0)
    with pytest.raises(InvalidInput, match="cannot be imported"):
        Examples("no_such_module:sets").load(seed=0)


def test_natural_names_the_setting_for_owners() -> None:
    with pytest.raises(InvalidInput, match=r"Set group of your own source"):
        federate(from_examples(Pairs(), Pairs()), Natural(), 2, seed=0)


def test_pillow_is_needed_for_folders_only(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image("photos/cat/1.png", 1)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"pip install 'turnout\[images\]'"):
        ImageFolder("photos").load(seed=0)
