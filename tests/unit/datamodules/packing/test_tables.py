"""CSVs and lists of paths: what they say, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datamodules.packing.items import Listing
from datamodules.packing.parts import SourceOptions
from datamodules.packing.sources import list_source as list_with
from mae.errors import ConfigError, DataError


def list_source(source: Path | str, **options: Any) -> Listing:
    return list_with(source, SourceOptions(**options))


def test_list_source_csv_columns_decide(csv_source: Callable[..., Path]) -> None:
    path = csv_source(
        ["path", "label", "group", "split", "camera"],
        [["a.png", "x", "p1", "train", "7"], ["sub/b.png", "y", "p2", "valid", "8"]],
    )
    listing = list_source(path)
    assert [(i.place.path, i.name, i.labels, i.group, i.split) for i in listing.items] == [
        (str(path.parent / "a.png"), "a.png", ("x",), "p1", "train"),
        (str(path.parent / "sub/b.png"), "sub/b.png", ("y",), "p2", "val"),
    ]
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


def test_list_source_csv_several_labels_are_split_and_may_be_empty(
    csv_source: Callable[..., Path],
) -> None:
    rows = [["a.png", "edema | effusion"], ["b.png", ""], ["c.png", "edema|edema|"]]
    path = csv_source(["path", "label"], rows)
    listing = list_source(path, labels="multi")
    assert listing.multilabel
    assert [i.labels for i in listing.items] == [("edema", "effusion"), (), ("edema",)]
    semicolons = csv_source(["path", "label"], [["a.png", "x;y"], ["b.png", "x|y"]])
    listing = list_source(semicolons, labels="multi", label_separator=";")
    assert [i.labels for i in listing.items] == [("x", "y"), ("x|y",)]


def test_list_source_csv_several_labels_only_on_request(csv_source: Callable[..., Path]) -> None:
    path = csv_source(["path", "label"], [["a.png", "x|y"], ["b.png", "x"]])
    listing = list_source(path)
    assert not listing.multilabel
    assert [i.labels for i in listing.items] == [("x|y",), ("x",)]


def test_list_source_multi_without_labels_is_refused(csv_source: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="--labels multi needs a CSV with a column 'label'"):
        list_source(csv_source(["path"], [["a.png"]]), labels="multi")
    with pytest.raises(ConfigError, match="label_separator is empty"):
        list_source(csv_source(["path"], [["a.png"]]), labels="multi", label_separator=" ")


def test_list_source_text_list_is_relative_to_its_folder(
    csv_source: Callable[..., Path], tmp_path: Path
) -> None:
    folder = csv_source(["path"], [["a.png"], ["sub/b.png"], ["c.png"]]).parent
    (folder / "some.txt").write_text(f"\ufeffsub/b.png\n\n./a.png \n{folder}/c.png\n")
    items = list_source(folder / "some.txt").items
    assert [i.name for i in items] == sorted([f"{folder}/c.png", "a.png", "sub/b.png"])
    assert {i.place.path for i in items} == {
        str(folder / n) for n in ("a.png", "sub/b.png", "c.png")
    }


def test_list_source_text_list_faults_are_named_by_line(
    csv_source: Callable[..., Path],
) -> None:
    folder = csv_source(["path"], [["a.png"]]).parent
    table = folder / "some.txt"
    table.write_text("a.png\nnone.png\n")
    with pytest.raises(DataError, match=r"1 of 2 rows name files that do not exist.*: row 2;"):
        list_source(table)
    table.write_text("a.png\n./a.png\n")
    with pytest.raises(DataError, match="more than once"):
        list_source(table)
    table.write_text("\n \n")
    with pytest.raises(DataError, match="lists nothing"):
        list_source(table)
    table.write_bytes(b"\xff\n")
    with pytest.raises(DataError, match="no UTF-8"):
        list_source(table)
