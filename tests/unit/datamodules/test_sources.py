"""Listing folders and CSVs: labels, groups, splits, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from datamodules.sources import (
    Item,
    assign_splits,
    class_names,
    list_source,
    shuffled,
)
from mae.errors import ConfigError, DataError


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def test_list_source_folder_finds_nested_images_sorted(tmp_path: Path) -> None:
    touch(tmp_path, "b/ü x.PNG", "b/c/z.jpeg", "a.1.5T.tiff", ".hidden/q.png", "b/._a.png")
    listing = list_source(tmp_path)
    assert [item.name for item in listing.items] == ["a.1.5T.tiff", "b/c/z.jpeg", "b/ü x.PNG"]
    assert all(item.path.is_file() for item in listing.items)
    assert listing.notes == ()


def test_list_source_other_files_are_counted(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "x.txt", "y.txt", "z.webp", "README")
    (note,) = list_source(tmp_path).notes
    assert note == "passed over other files: 2 .txt, 1 .no suffix, 1 .webp"


def test_list_source_linked_folder_is_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "real/a.png", "src/b.png")
    (tmp_path / "src" / "link").symlink_to(tmp_path / "real")
    (tmp_path / "src" / "loop").symlink_to(tmp_path / "src")
    assert [item.name for item in list_source(tmp_path / "src").items] == ["b.png", "link/a.png"]


def test_list_source_no_images_lists_looked_for_and_seen(tmp_path: Path) -> None:
    touch(tmp_path, "x.txt")
    with pytest.raises(DataError, match=r"looked for \.jpg.*saw 1 \.txt"):
        list_source(tmp_path)
    with pytest.raises(DataError, match="does not exist"):
        list_source(tmp_path / "none")


def test_list_source_class_folders_give_labels(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.png", "cat/deep/b.png", "dog/a.png")
    items = list_source(tmp_path, labels="folders").items
    assert [item.label for item in items] == ["cat", "cat", "dog"]


def test_list_source_split_and_class_folders(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/a.png", "validation/dog/b.png", "test/cat/c.png")
    items = list_source(tmp_path, labels="folders", split="folders").items
    assert {item.name: (item.split, item.label) for item in items} == {
        "train/cat/a.png": ("train", "cat"),
        "validation/dog/b.png": ("val", "dog"),
        "test/cat/c.png": ("test", "cat"),
    }


def test_list_source_split_folders_taken_for_classes_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/a.png", "test/cat/c.png")
    with pytest.raises(ConfigError, match="--split folders"):
        list_source(tmp_path, labels="folders")


def test_list_source_image_outside_class_folders_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "cat/a.png", "lost.png")
    with pytest.raises(DataError, match=r"lost\.png lies in no class folder"):
        list_source(tmp_path, labels="folders")


def test_list_source_csv_columns_decide(csv_source: Callable[..., Path]) -> None:
    path = csv_source(
        ["path", "label", "group", "split", "camera"],
        [["a.png", "x", "p1", "train", "7"], ["sub/b.png", "y", "p2", "valid", "8"]],
    )
    listing = list_source(path)
    assert listing.items == (
        Item(path.parent / "a.png", "a.png", "x", "p1", "train"),
        Item(path.parent / "sub/b.png", "sub/b.png", "y", "p2", "val"),
    )
    assert listing.notes == ("columns of images.csv not used: camera",)


@pytest.mark.parametrize(
    ("header", "rows", "words"),
    [
        (["file", "label"], [["a.png", "x"]], "no column 'path'"),
        (["path", "lable"], [["a.png", "x"]], "'lable' (did you mean 'label'?)"),
        (["path", "Label"], [["a.png", "x"]], "'Label' (did you mean 'label'?)"),
        (["path", "label"], [["a.png", "x"], ["b.png", ""], ["c.png"]], "have no label: row 3, 4"),
        (["path", "split"], [["a.png", "trian"]], "row 2: unknown split 'trian' (did you mean"),
        (["path"], [], "no rows"),
        (["path"], [["a.png"], ["./a.png"]], "more than once"),
    ],
)  # fmt: skip
def test_list_source_csv_fault_is_named(
    csv_source: Callable[..., Path], header: list[str], rows: list[list[str]], words: str
) -> None:
    path = csv_source(header, rows, images=header[0] == "path")
    with pytest.raises(DataError) as caught:
        list_source(path)
    assert words in str(caught.value)


def test_list_source_csv_missing_files_are_named_by_row(csv_source: Callable[..., Path]) -> None:
    path = csv_source(["path"], [["a.png"], ["b.png"]], images=False)
    with pytest.raises(
        DataError, match=r"2 of 2 rows name files that do not exist, first .*a.png: row 2, 3"
    ):
        list_source(path)


def test_list_source_csv_with_byte_order_mark_reads(csv_source: Callable[..., Path]) -> None:
    path = csv_source(["path"], [["a.png"]])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(list_source(path).items) == 1


def test_list_source_csv_with_folder_options_is_refused(csv_source: Callable[..., Path]) -> None:
    path = csv_source(["path"], [["a.png"]])
    with pytest.raises(ConfigError, match="columns"):
        list_source(path, labels="folders")


def test_list_source_group_regex_takes_first_bracket(tmp_path: Path) -> None:
    touch(tmp_path, "p1_a.png", "p1_b.png", "p22_a.png")
    items = list_source(tmp_path, group_regex=r"(p\d+)_").items
    assert [item.group for item in items] == ["p1", "p1", "p22"]
    items = list_source(tmp_path, group_regex=r"p\d+").items
    assert [item.group for item in items] == ["p1", "p1", "p22"]


def test_list_source_group_regex_faults_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "p1_a.png", "other.png")
    with pytest.raises(DataError, match=r"no group in 'other\.png'"):
        list_source(tmp_path, group_regex=r"(p\d+)_")
    with pytest.raises(ConfigError, match="is no expression"):
        list_source(tmp_path, group_regex="(")


def items_of(count: int, *, groups: int) -> list[Item]:
    return [Item(Path(f"{i}.png"), f"{i}.png", group=f"g{i % groups}") for i in range(count)]


def test_assign_splits_groups_stay_whole_and_shares_hold() -> None:
    placed = assign_splits(items_of(9000, groups=3000), val_fraction=0.1, test_fraction=0.2, seed=0)
    splits_of_group: dict[str | None, set[str]] = {}
    for item in placed:
        splits_of_group.setdefault(item.group, set()).add(item.split)
    assert all(len(splits) == 1 for splits in splits_of_group.values())
    counts = Counter(next(iter(splits)) for splits in splits_of_group.values())
    # Binomial: 3000 groups, five standard deviations.
    assert abs(counts["val"] - 300) < 5 * (3000 * 0.1 * 0.9) ** 0.5
    assert abs(counts["test"] - 600) < 5 * (3000 * 0.2 * 0.8) ** 0.5


def test_assign_splits_added_images_move_nothing() -> None:
    few = assign_splits(items_of(50, groups=50), val_fraction=0.3, test_fraction=0.3, seed=4)
    many = assign_splits(items_of(200, groups=200), val_fraction=0.3, test_fraction=0.3, seed=4)
    assert few == many[:50]
    other = assign_splits(items_of(50, groups=50), val_fraction=0.3, test_fraction=0.3, seed=5)
    assert few != other


def test_assign_splits_group_in_two_named_splits_is_refused() -> None:
    items = [
        Item(Path("a"), "a", group="p", split="train"),
        Item(Path("b"), "b", group="p", split="test"),
    ]
    with pytest.raises(DataError, match="group 'p' stands in two splits: 'a' in train and 'b'"):
        assign_splits(items, val_fraction=0, test_fraction=0, seed=0)


@pytest.mark.parametrize(("val", "test"), [(-0.1, 0), (0.5, 0.5), (0, 1)])
def test_assign_splits_impossible_shares_are_refused(val: float, test: float) -> None:
    with pytest.raises(ConfigError, match="together below 1"):
        assign_splits([], val_fraction=val, test_fraction=test, seed=0)


def test_shuffled_is_keyed_and_mixes_classes() -> None:
    items = [Item(Path(f"{i}"), f"{'ab'[i // 50]}/{i}", label="ab"[i // 50]) for i in range(100)]
    order = shuffled(items, seed=0)
    assert order == shuffled(reversed(items), seed=0)
    assert order != shuffled(items, seed=1)
    # Hypergeometric, 25 of 100: mean 12.5, standard deviation 2.2.
    assert 4 < sum(item.label == "a" for item in order[:25]) < 21


def test_class_names_numbers_sort_by_value() -> None:
    def labelled(*names: str) -> list[Item]:
        return [Item(Path(name), name, label=name) for name in names]

    assert class_names(labelled("10", "9", "-1")) == ("-1", "9", "10")
    assert class_names(labelled("b", "a", "10")) == ("10", "a", "b")
    assert class_names([Item(Path("a"), "a")]) is None
