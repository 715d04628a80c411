"""The manifest reads back, has a digest of its contents, and refuses what it does not know."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.manifest import Manifest, ShardInfo
from mae.errors import DataError
from mae.spec import ImageSpec


def edited(directory: Path, **changes: Any) -> Path:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory


def test_load_reads_what_was_written(shards: Callable[..., Path]) -> None:
    directory = shards(9)
    manifest = Manifest.load(directory)
    assert manifest.to_json() == (directory / "manifest.json").read_text()
    assert manifest.num_samples("train") == 9
    assert [shard.num_samples for shard in manifest.shards("train")] == [7, 2]
    assert manifest.splits == ("train",)
    assert manifest.num_samples("val") == 0


def test_digest_ignores_places_and_sees_contents(shards: Callable[..., Path]) -> None:
    first = Manifest.load(shards(4)).digest
    assert Manifest.load(edited(shards(4, name="b"), source="elsewhere")).digest == first
    assert Manifest.load(edited(shards(4, name="c"), num_bytes_images=1)).digest != first


def test_shards_unknown_split_names_the_nearest(shards: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"'trian' \(did you mean 'train'\?\)"):
        Manifest.load(shards(2)).shards("trian")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 99}, "99"),
        ({"format": "other"}, "other"),
        (
            {"shards": [{"path": "x"}]},
            r"lacks or misspells fields of shards\[0\]: lacks split, num",
        ),
        ({"extra": 1}, r"has unknown \"extra\""),
        ({"spec": 5}, "spec is 5; allowed: an object"),
        ({"options": [1]}, "options is a list of 1 values; allowed: an object"),
        ({"options": {"ignore_suffixes": "txt"}}, "ignore_suffixes in it a list of texts"),
        ({"options": {"a": [[[[[[[[[1]]]]]]]]]}}, "nested 8 deep"),
        ({"class_counts": [1]}, "class_counts is a list"),
        ({"class_counts": {"train": {"cat": 1}}}, "nothing without classes"),
        ({"classes": ["a", "a"]}, "classes is a list of 2 values; allowed: .* each once"),
        ({"multilabel": "no"}, r"multilabel is \"no\"; allowed: true or false"),
        ({"num_bytes_images": -1}, "num_bytes_images is -1; allowed: a whole number, 0 or more"),
        ({"num_bytes_images": 10**400}, "is a number beyond 64 bits"),
        ({"min_size": [1, 2, 3]}, r"min_size is a list of 3 values; allowed: \[height, width\]"),
        ({"left_out": {"broken": True}}, "left_out is an object of 1 values; allowed: an object"),
        ({"source": None}, "source is null; allowed: a text"),
        ({"shards": {}}, "shards is an object of 0 values; allowed: a list"),
        ({"spec": {"chanels": ["gray"]}}, "not an ImageSpec"),
    ],
)
def test_load_foreign_manifest_is_refused(
    shards: Callable[..., Path], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        Manifest.load(edited(shards(2), **changes))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("num_samples", None, "a whole number from 0 to num_bytes / 512"),
        ("num_samples", 10**9, "a whole number from 0 to num_bytes / 512"),
        ("num_bytes", True, "a whole number"),
        ("sha256", "abc", "64 hexadecimal digits"),
        ("index_sha256", "G" * 64, "64 hexadecimal digits"),
        ("path", 5, "a path below the manifest"),
        ("path", "a/../../b.tar", "a path below the manifest"),
        ("path", "\ud800.tar", "a path below the manifest"),
        ("path", "a\0.tar", "a path below the manifest"),
        ("split", ["train"], "a text"),
    ],
)
def test_load_bad_shard_is_refused_by_field(
    shards: Callable[..., Path], field: str, value: Any, words: str
) -> None:
    directory = shards(9)
    listed = json.loads((directory / "manifest.json").read_text())["shards"]
    listed[1][field] = value
    with pytest.raises(DataError, match=rf"manifest\.json: shards\[1\]\.{field} is .*: {words}"):
        Manifest.load(edited(directory, shards=listed))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mean", 5),
        ("mean", ["1", "2", "3"]),
        ("std", [1.0]),
        ("value_range", [0, 1, 2]),
        ("scale", None),
        ("unit", 1),
        ("nodata", "none"),
        ("channels", "red"),
        ("channels", [[], [], []]),
    ],
)
def test_load_bad_spec_is_refused_by_field(
    shards: Callable[..., Path], field: str, value: Any
) -> None:
    directory = shards(2)
    spec = json.loads((directory / "manifest.json").read_text())["spec"] | {field: value}
    with pytest.raises(DataError, match=rf"manifest\.json: spec\.{field} is .*; allowed: "):
        Manifest.load(edited(directory, spec=spec))


@pytest.mark.parametrize("text", ["[" * 99_999, '{"a":' * 99_999, "NaN", "\xff", "[1, 2"])
def test_load_what_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(DataError, match=r"manifest\.json cannot be read"):
        Manifest.load(tmp_path)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of a JSON document."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


VALID = Manifest(
    spec=ImageSpec(
        channels=("gray",), dtype="uint8", mean=(1.5,), std=(2.0,), value_range=(0.0, 255.0)
    ),
    shard_list=tuple(
        ShardInfo(
            path=f"{split}-0.tar",
            split=split,
            num_samples=2,
            num_bytes=10240,
            sha256="0f" * 32,
            index_sha256="a1" * 32,
        )
        for split in ("train", "val")
    ),
    classes=("cat", "dog"),
    class_counts={split: {"cat": 1, "dog": 1} for split in ("train", "val")},
    options={"seed": 0, "ignore_suffixes": ["txt"], "max_side": None},
    source="images",
).to_dict()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6
)


@settings(max_examples=400, deadline=None)
@given(changes=st.lists(st.tuples(st.sampled_from(list(places(VALID))), VALUES), max_size=3))
def test_from_dict_whatever_is_changed_is_refused_or_reads_back(
    changes: list[tuple[tuple[Any, ...], Any]],
) -> None:
    fields = json.loads(json.dumps(VALID))
    for path, value in changes:
        place = fields
        try:
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
        except (IndexError, KeyError, TypeError):
            fields = value if not path else fields
    try:
        manifest = Manifest.from_dict(fields, root="here")
    except DataError as error:
        assert "manifest.json" in str(error)  # noqa: PT017 (or no error at all)
        return
    assert manifest.to_dict() == fields
    assert Manifest.from_dict(json.loads(manifest.to_json()), root="here") == manifest
    assert len(manifest.digest) == 64
    for split in manifest.splits:
        assert sum(shard.num_samples for shard in manifest.shards(split)) > 0


def test_shown_root_and_messages_have_no_secrets(shards: Callable[..., Path]) -> None:
    root = "https://user:word@host/data"
    manifest = Manifest.from_dict(VALID, root=root)
    assert manifest.shown_root == "https://host/data"
    assert manifest.root == root
    for act in (lambda: manifest.shards("trian"), lambda: Manifest.from_dict({}, root=root)):
        with pytest.raises(DataError, match="https://host/data") as error:
            act()
        assert "word" not in str(error.value)


def test_load_wrong_directory_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        Manifest.load(tmp_path / "none")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match=r"it holds: a\.txt.*mae pack"):
        Manifest.load(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        Manifest.load(tmp_path)


def test_verify_sizes_cut_or_missing_shard_is_named(shards: Callable[..., Path]) -> None:
    manifest = Manifest.load(shards(9))
    manifest.verify_sizes(manifest.shard_list)
    path = Path(manifest.root) / "train-000001.tar"
    declared = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-512])
    with pytest.raises(DataError, match=f"{declared - 512:,} bytes.*{declared:,}"):
        manifest.verify_sizes(manifest.shard_list)
    path.unlink()
    with pytest.raises(DataError, match="cannot be opened"):
        manifest.verify_sizes(manifest.shard_list)
