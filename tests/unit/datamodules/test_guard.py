"""What may stand in a shard, and which bytes count as an image."""

from __future__ import annotations

import pytest

from datamodules.guard import BadImageError, check_member, check_pixels, sniff, split_member
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


def test_split_member_key_ends_at_first_dot_of_last_part() -> None:
    assert split_member("a.b/c.png", where="s") == ("a.b/c", "png")
    assert split_member("n01440764_1.JPEG", where="s") == ("n01440764_1", "jpeg")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("noextension", "no key or no suffix"),
        (".png", "no key or no suffix"),
        ("a.", "no key or no suffix"),
        ("a/" * 600 + "b.png", "1,205 bytes; allowed: 1,024"),
        ("a\nb.png", "control characters"),
        ("../a.png", "outside"),
        ("/etc/a.png", "outside"),
        ("a\\b.png", "outside"),
    ],
)
def test_split_member_bad_name_is_refused(name: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        split_member(name, where="shard at byte 7")
    assert "shard at byte 7" in str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "num_bytes", "words"),
    [
        ("pkl", 1, "suffix 'pkl'; allowed: cls, jpeg"),
        ("2.840.png", 1, "dot in a key"),
        ("png.gz", 1, "suffix 'png.gz'"),
        ("png", 2**30 + 1, "1,073,741,825 bytes"),
        ("json", 2**20 + 1, "1,048,577 bytes"),
    ],
)
def test_check_member_foreign_or_huge_is_refused(suffix: str, num_bytes: int, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        check_member(f"a.{suffix}", suffix, num_bytes, where="shard at byte 7")
    assert "shard at byte 7" in str(caught.value)


def test_check_pixels_counts_channels_too() -> None:
    check_pixels(10, 10, 4, max_pixels=100, what="x")
    with pytest.raises(BadImageError, match="5 channels"):
        check_pixels(10, 10, 5, max_pixels=100, what="x")
    with pytest.raises(BadImageError, match="at least one"):
        check_pixels(0, 10, 1, max_pixels=100, what="x")


def test_bad_image_error_survives_a_worker_process() -> None:
    # torch re-raises a worker's error as type(error)(message).
    assert BadImageError("message").reason == "undecodable"
