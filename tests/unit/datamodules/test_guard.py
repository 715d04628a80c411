"""What may stand in a shard, and which bytes count as an image."""

from __future__ import annotations

import pytest

from datamodules.guard import BadImageError, check_member, check_pixels, sniff
from mae.errors import DataError


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "jpeg"),
        (b"\x89PNG\r\n\x1a\n", "png"),
        (b"II*\0", "tiff"),
        (b"MM\0*", "tiff"),
        (b"II+\0", "tiff"),
        (b"MM\0+", "tiff"),
    ],
)
def test_sniff_magic_bytes_decide(start: bytes, kind: str) -> None:
    assert sniff(start + bytes(200), what="x") == kind


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x80\x04\x95", "not an image"),  # a pickle
        (bytes(128) + b"DICM", "DICOM is not supported"),
        (b"PK\x03\x04", "zip is not supported"),
        (b"", "empty file"),
    ],
)
def test_sniff_other_bytes_are_refused_by_reason(data: bytes, name: str) -> None:
    with pytest.raises(BadImageError) as caught:
        sniff(data, what="x")
    assert caught.value.reason == name


def test_check_member_key_ends_at_first_dot_of_last_part() -> None:
    assert check_member("a.b/c.png", 1, is_file=True, where="s") == ("a.b/c", "png")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.pkl", "suffix 'pkl'"),
        ("1.2.840.png", "dot in a key"),
        ("noextension", "suffix ''"),
        (".png", "suffix 'png'"),
        ("../a.png", "outside"),
        ("/etc/a.png", "outside"),
        ("a\\b.png", "outside"),
    ],
)
def test_check_member_bad_name_is_refused(name: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        check_member(name, 1, is_file=True, where="shard at byte 7")
    assert "shard at byte 7" in str(caught.value)


def test_check_member_link_or_huge_is_refused() -> None:
    with pytest.raises(DataError, match="no regular file"):
        check_member("a.png", 0, is_file=False, where="s")
    with pytest.raises(DataError, match="1,073,741,825 bytes"):
        check_member("a.png", 2**30 + 1, is_file=True, where="s")


def test_check_pixels_counts_channels_too() -> None:
    check_pixels(10, 10, 4, max_pixels=100, what="x")
    with pytest.raises(BadImageError, match="5 channels"):
        check_pixels(10, 10, 5, max_pixels=100, what="x")
    with pytest.raises(BadImageError, match="at least one"):
        check_pixels(0, 10, 1, max_pixels=100, what="x")


def test_bad_image_error_survives_a_worker_process() -> None:
    # torch re-raises a worker's error as type(error)(message).
    assert BadImageError("message").reason == "undecodable"
