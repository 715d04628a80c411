from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import save_file

from mae.errors import OutputError
from mae.files import atomic_folder, atomic_write

TENSORS = {"a": torch.zeros(100_000)}


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Let the kernel refuse writes past 100 kB of a file, midway, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_atomic_write_new_file_has_content_and_the_usual_mode(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("x")
    path = atomic_write(tmp_path / "deep" / "file", lambda p: p.write_text("new"))
    assert path.read_text() == "new"
    assert path.stat().st_mode == plain.stat().st_mode
    assert names(path.parent) == ["file"]


def test_atomic_write_failure_keeps_the_old_file_and_leaves_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(temporary):
        temporary.write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        atomic_write(path, fail)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "writer",
    [
        lambda path: torch.save(TENSORS, path),
        lambda path: save_file(TENSORS, path),
        lambda path: path.write_bytes(bytes(400_000)),
    ],
    ids=["torch", "safetensors", "bytes"],
)
def test_atomic_write_full_disk_is_a_sentence_and_the_old_file_stays(tmp_path, full_disk, writer):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(OutputError, match=r"cannot write .*free space on that disk"):
        atomic_write(path, writer)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_atomic_write_under_a_file_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        atomic_write(tmp_path / "file" / "below", lambda p: p.write_text("x"))


def test_atomic_folder_existing_folder_is_kept_unless_told(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").write_text("")
    with (
        pytest.raises(OutputError, match="exists already; choose another --out"),
        atomic_folder(folder),
    ):
        pytest.fail("must not get here")
    with atomic_folder(folder, overwrite=True) as temporary:
        (temporary / "new").write_text("")
    assert names(folder) == ["new"]
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_atomic_folder_failure_leaves_what_was_there(tmp_path, overwrite):
    folder = tmp_path / "folder"
    if overwrite:
        folder.mkdir()
        (folder / "old").write_text("")

    def fail():
        with atomic_folder(folder, overwrite=overwrite) as temporary:
            (temporary / "new").write_text("")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert names(tmp_path) == (["folder"] if overwrite else [])
    if overwrite:
        assert names(folder) == ["old"]
