"""Which bytes are let in.

Everything that comes from outside passes here before a decoder sees it: member names and sizes
when a shard is indexed, the kind of file and its pixel count when an image is decoded.  The pixel
count is read from the header, so a decompression bomb is refused before it takes memory.  Limits
are arguments; Pillow's global limit is neither used nor changed.
"""

from __future__ import annotations

from typing import Literal

from mae.errors import DataError

ImageKind = Literal["jpeg", "png", "tiff"]

# Choice: 10,000 x 10,000 px, a large scan; decoded to 8-bit RGB it takes 300 MB.
MAX_PIXELS = 100_000_000
# A decoded image holds at most this many values per pixel of the limit, so 13 bands at 30
# megapixels pass and a file that declares 60,000 channels does not.
VALUES_PER_PIXEL = 4
MAX_MEMBER_BYTES = 2**30
MAX_TEXT_BYTES = 2**20  # of a sidecar or a class index
MAX_NAME_BYTES = 1024

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "tif", "tiff")
TEXT_SUFFIXES = ("json", "cls")
MEMBER_SUFFIXES = frozenset((*IMAGE_SUFFIXES, *TEXT_SUFFIXES))
SUFFIX_OF: dict[ImageKind, str] = {"jpeg": "jpg", "png": "png", "tiff": "tif"}

_MAGIC: tuple[tuple[bytes, ImageKind], ...] = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),  # BigTIFF
    (b"MM\0+", "tiff"),
)
_FOREIGN: tuple[tuple[int, bytes, str], ...] = (
    (0, b"GIF8", "GIF"),
    (0, b"BM", "BMP"),
    (8, b"WEBP", "WebP"),
    (128, b"DICM", "DICOM"),
    (4, b"jP  ", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"\x93NUMPY", "NumPy"),
    (0, b"\x89HDF", "HDF5"),
    (0, b"PK\x03\x04", "zip"),
    (0, b"\x1f\x8b", "gzip"),
)


class BadImageError(DataError):
    """One image cannot be used.

    Args:
        message: The full sentence, with the image's name.
        reason: A few words, the same for all images with this fault; ledgers count by it.
    """

    def __init__(self, message: str, *, reason: str = "undecodable"):
        super().__init__(message)
        self.reason = reason


def sniff(data: bytes, *, what: str) -> ImageKind:
    """Return the kind of image by its first bytes; names and suffixes are not looked at.

    Args:
        data: The file's bytes, at least its beginning.
        what: Name of the image for the message.

    Raises:
        BadImageError: If the bytes are none of JPEG, PNG, TIFF.
    """
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    if not data:
        raise BadImageError(f"{what} is empty (0 bytes); copy it again", reason="empty file")
    for offset, magic, name in _FOREIGN:
        if data[offset : offset + len(magic)] == magic:
            raise BadImageError(
                f"{what} holds {name} data; allowed: JPEG, PNG, TIFF. Convert it to PNG or TIFF, "
                f"which keep every level",
                reason=f"{name} is not supported",
            )
    raise BadImageError(
        f"{what} starts with {data[:4]!r}, which is no image; allowed: JPEG, PNG, TIFF",
        reason="not an image",
    )


def check_pixels(height: int, width: int, num_channels: int, *, max_pixels: int, what: str) -> None:
    """Refuse an image whose header declares too many pixels, or none.

    Raises:
        BadImageError: If the size is zero or above the limit; names the count and the option.
    """
    pixels = height * width
    if pixels <= 0 or num_channels <= 0:
        raise BadImageError(
            f"{what} declares {height} x {width} px with {num_channels} channels; at least one "
            f"pixel and channel are needed",
            reason="no pixels",
        )
    if pixels > max_pixels or pixels * num_channels > VALUES_PER_PIXEL * max_pixels:
        raise BadImageError(
            f"{what} declares {height} x {width} px = {pixels:,} px with {num_channels} channels; "
            f"allowed: max_pixels = {max_pixels:,} px and {VALUES_PER_PIXEL} times as many values. "
            f"Cut it into tiles, or raise max_pixels if you trust the file",
            reason="too many pixels",
        )


def split_member(name: str, *, where: str) -> tuple[str, str]:
    """Split a member's name into key and suffix by WebDataset's rule: at the first dot.

    Args:
        name: Name in the tar.
        where: Shard and byte for the message.

    Returns:
        The key, with its folders, and the suffix in lower case.

    Raises:
        DataError: For absolute or upward paths, control characters, names that are too long or
            have no key or no suffix.
    """
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\\" in name:
        raise DataError(f"{where}: member {name!r} points outside the shard; pack the images again")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise DataError(
            f"{where}: the member name {name[:60]!r}… has {len(name.encode()):,} bytes; allowed: "
            f"{MAX_NAME_BYTES:,}"
        )
    if not name.isprintable():
        raise DataError(f"{where}: member {name!r} has control characters in its name; rename it")
    stem, dot, suffix = parts[-1].partition(".")
    if not (stem and dot and suffix):
        raise DataError(
            f"{where}: member {name!r} has no key or no suffix; allowed: KEY.png, KEY.json …"
        )
    return "/".join((*parts[:-1], stem)), suffix.lower()


def check_member(name: str, suffix: str, num_bytes: int, *, where: str) -> None:
    """Refuse a member of a kind or size that a shard must not hold.

    Args:
        name: Name in the tar.
        suffix: Its suffix, from `split_member`.
        num_bytes: Bytes of its content.
        where: Shard and byte for the message.

    Raises:
        DataError: For suffixes that are not allowed, or too many bytes.
    """
    if suffix not in MEMBER_SUFFIXES:
        raise DataError(
            f"{where}: member {name!r} has the suffix {suffix!r}; allowed: "
            f"{', '.join(sorted(MEMBER_SUFFIXES))}. A dot in a key is taken for its suffix; "
            f"`mae pack` gives keys without dots"
        )
    limit = MAX_TEXT_BYTES if suffix in TEXT_SUFFIXES else MAX_MEMBER_BYTES
    if num_bytes > limit:
        raise DataError(f"{where}: member {name!r} has {num_bytes:,} bytes; allowed: {limit:,}")


class SampleKeys:
    """Members of one shard so far: what a reader would merge or halve is refused.

    A sample has one image and one member of each suffix for text, so `MAX_MEMBER_BYTES` and
    `MAX_TEXT_BYTES` bound the sample as well.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._key = ""
        self._suffixes: list[str] = []

    def add(self, key: str, suffix: str, *, where: str) -> bool:
        """Take in a member, from `split_member`, and return whether a sample begins with it.

        Args:
            key: Key of its sample.
            suffix: Its suffix.
            where: Shard and byte for the message.

        Raises:
            DataError: If the members of a sample are not adjacent, or it has two members of a
                suffix, or two images.
        """
        if is_new := key != self._key:
            if key in self.seen:
                raise DataError(
                    f"{where}: the members of sample {key!r} are not adjacent, or the key stands "
                    f"twice; pack the images again"
                )
            self.seen.add(key)
            self._key, self._suffixes = key, []
        elif suffix in self._suffixes:
            raise DataError(f"{where}: sample {key!r} has two members .{suffix}; pack it again")
        self._suffixes.append(suffix)
        images = [name for name in self._suffixes if name in IMAGE_SUFFIXES]
        if len(images) > 1:
            raise DataError(
                f"{where}: sample {key!r} has {len(images)} images ({', '.join(images)}); allowed: "
                f"exactly one of .{', .'.join(IMAGE_SUFFIXES)} per sample"
            )
        return is_new
