"""What cannot be written is known before."""

from __future__ import annotations

from pathlib import Path

import pytest

from mae.commands.outputs import check_writable
from mae.errors import OutputError


def test_check_writable_new_file_in_new_folders_is_allowed_and_not_made(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder" / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_check_writable_relative_file_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_writable(Path("x.json"))


def test_check_writable_folder_or_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path, tmp_path / "file" / "x.json", tmp_path / "file" / "new" / "x.json"):
        with pytest.raises(OutputError, match="cannot be written; name a file"):
            check_writable(path)


def test_check_writable_folder_of_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(OutputError, match=r"x\.json cannot be written"):
        check_writable(tmp_path / "x.json")
