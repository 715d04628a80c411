"""Equal files: found whatever their number and place, and never in two splits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.packing.duplicates import Depth, Digest, digests, drop_duplicates, find_equal
from datamodules.packing.items import Item
from datamodules.packing.places import StoredPlace
from mae.errors import DataError

PNG = b"\x89PNG\r\n\x1a\n"


def item_of(path: Path, data: bytes) -> Item:
    path.write_bytes(data)
    place = StoredPlace.of_file(str(path))
    assert place is not None
    return Item(place, path.name)


def look(items: Sequence[Item], depth: Depth) -> list[Digest]:
    return digests([(item.place, item.name) for item in items], depth)


def names(sets: list[list[Item]]) -> set[tuple[str, ...]]:
    return {tuple(item.name for item in of_set) for of_set in sets}


contents = st.tuples(
    st.sampled_from([0, 5, 9000]), st.sampled_from([0, 4, 4500, -1]), st.integers(0, 2)
)


@settings(max_examples=50, deadline=None)
@given(st.lists(contents, max_size=12))
def test_find_equal_finds_what_comparing_all_bytes_finds(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("equal")
    items, by_content = [], dict[bytes, list[str]]()
    for number, (length, place, value) in enumerate(made):
        data = bytearray(PNG + bytes(length))
        if length:
            data[8 + place % length if place >= 0 else -1] = value
        items.append(item_of(folder / f"{number:02d}", bytes(data)))
        by_content.setdefault(bytes(data), []).append(f"{number:02d}")
    expected = {tuple(found) for found in by_content.values() if len(found) > 1}
    assert names(find_equal(items, look)) == expected


def test_find_equal_reads_nothing_of_files_alone_in_size(tmp_path: Path) -> None:
    items = [item_of(tmp_path / str(n), PNG + bytes(n)) for n in range(5)]
    asked: list[int] = []

    def count(some: Sequence[Item], depth: Depth) -> list[Digest]:
        asked.append(len(some))
        return look(some, depth)

    assert find_equal(items, count) == []
    assert sum(asked) == 0


def test_find_equal_leaves_what_is_no_image_to_the_packing(tmp_path: Path) -> None:
    page = b"<html>404</html>"
    items = [item_of(tmp_path / f"{n}.png", page) for n in range(3)]
    items += [item_of(tmp_path / f"empty{n}.png", b"") for n in range(3)]
    assert find_equal(items, look) == []


def item(name: str, split: str, *, labels: tuple[str, ...] | None = None) -> Item:
    return Item(StoredPlace(name, 1, 0), name, labels, None, split)


def test_drop_duplicates_first_by_name_stays() -> None:
    of_set = [item("c", "train"), item("a", "train"), item("b", "train")]
    left_out = drop_duplicates([of_set], is_drawn=lambda _: False)
    assert [(e.name, e.reason, e.message) for e in left_out] == [
        ("b", "duplicate", "b has the same bytes as a"),
        ("c", "duplicate", "c has the same bytes as a"),
    ]


def test_drop_duplicates_across_splits_is_an_error_naming_both() -> None:
    of_set = [item("a", "train"), item("b", "test")]
    with pytest.raises(
        DataError, match=r"(?s)a pair .*--duplicates keep\n  'a' in train and 'b' in test"
    ):
        drop_duplicates([of_set], is_drawn=lambda _: False)


def test_drop_duplicates_drawn_split_gives_way() -> None:
    both = [item("a", "val"), item("b", "train")]
    (left_out,) = drop_duplicates([both], is_drawn=lambda _: True)
    assert left_out.name == "b"
    (left_out,) = drop_duplicates([both], is_drawn=lambda i: i.name == "a")
    assert left_out.name == "a"


def test_drop_duplicates_with_other_labels_is_an_error_naming_both() -> None:
    of_set = [item("a", "train", labels=("x",)), item("b", "train", labels=("y", "z"))]
    with pytest.raises(
        DataError, match=r"(?s)not the same labels.*'a' as 'x' and 'b' as 'y' \+ 'z'"
    ):
        drop_duplicates([of_set], is_drawn=lambda _: True)


def test_drop_duplicates_counts_all_pairs_and_shows_some() -> None:
    sets = [[item(f"a{n}", "train"), item(f"b{n}", "test")] for n in range(8)]
    with pytest.raises(DataError, match=r"(?s)^8 pairs.*a4.* and 3 more$") as caught:
        drop_duplicates(sets, is_drawn=lambda _: False)
    assert "a5" not in str(caught.value)
