"""The manifest reads back, has a digest of its contents, and refuses what it does not know."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datamodules.manifest import Manifest
from mae.errors import DataError


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
        ({"shards": [{"path": "x"}]}, "lacks or misspells"),
        ({"spec": {"chanels": ["gray"]}}, "not an ImageSpec"),
    ],
)
def test_load_foreign_manifest_is_refused(
    shards: Callable[..., Path], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        Manifest.load(edited(shards(2), **changes))


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
