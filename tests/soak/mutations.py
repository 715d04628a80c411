"""Mutations of a shard's structure: where it is cut, flipped, zeroed, and what its headers claim.

Each function takes a source of random numbers and an archive, and returns the bytes of a file.
"""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import zipfile
from collections.abc import Callable

from tests.soak.archives import (
    BLOCK,
    FIELDS,
    TRAILER,
    Archive,
    entry,
    gnu_long,
    header,
    joined,
    make_archive,
    padded,
    pax,
    payload,
    pick_entry,
    sealed,
    set_field,
)
from tests.soak.bombs import gzipped_zeros

Mutation = Callable[[random.Random, Archive], bytes]


def cut(draw: random.Random, archive: Archive) -> bytes:
    """Cut at every kind of place."""
    data, starts = archive.data, archive.starts
    begin = draw.choice(starts[:-1])
    size = _content_size(data, begin)
    place = {
        "nothing left": 0,
        "inside a header": begin + draw.randrange(1, BLOCK),
        "between members": draw.choice(starts[1:]),
        "before a content": begin + BLOCK,
        "in a content": begin + BLOCK + draw.randrange(size + 1),
        "in a padding": begin + BLOCK + size,
        "before the trailer": starts[-1],
        "in the trailer": starts[-1] + draw.randrange(1, len(TRAILER)),
        "after one block of it": starts[-1] + BLOCK,
        "by one byte": len(data) - 1,
        "anywhere": draw.randrange(len(data)),
    }
    return data[: draw.choice(list(place.values()))]


def flip_header(draw: random.Random, archive: Archive) -> bytes:
    """Flip one bit of any header field."""
    place = draw.choice(archive.starts[:-1]) + draw.randrange(*draw.choice(list(FIELDS.values())))
    return _flipped(draw, archive.data, place)


def flip_sealed_header(draw: random.Random, archive: Archive) -> bytes:
    """Change a header field, and the checksum with it."""
    data = bytearray(archive.data)
    begin = draw.choice(archive.starts[:-1])
    block = bytearray(data[begin : begin + BLOCK])
    field = draw.choice(list(FIELDS))
    for _ in range(draw.choice((1, 1, 3))):
        block[draw.randrange(*FIELDS[field])] = draw.choice((0, 32, 47, 48, 55, 128, 255))
    data[begin : begin + BLOCK] = sealed(bytes(block))
    return bytes(data)


def flip_anywhere(draw: random.Random, archive: Archive) -> bytes:
    """Flip one bit anywhere: mostly in contents, some in paddings and in the trailer."""
    return _flipped(draw, archive.data, draw.randrange(len(archive.data)))


def flip_trailer(draw: random.Random, archive: Archive) -> bytes:
    """Flip one bit behind the last member."""
    return _flipped(draw, archive.data, archive.starts[-1] + draw.randrange(len(TRAILER)))


def zero_bytes(draw: random.Random, archive: Archive) -> bytes:
    """Put zeros over a header, a content, the rest of the file, or a random piece."""
    data, starts = archive.data, archive.starts
    begin, any_place = draw.choice(starts[:-1]), draw.randrange(len(data))
    first, last = draw.choice(
        [
            (begin, begin + BLOCK),
            (begin + BLOCK, begin + 2 * BLOCK),
            (begin, len(data)),
            (any_place, len(data)),
            (any_place, min(any_place + draw.choice((1, 8, BLOCK, 3000)), len(data))),
        ]
    )
    last = min(last, len(data))
    return data[:first] + bytes(last - first) + data[last:]


def move_blocks(draw: random.Random, archive: Archive) -> bytes:
    """Insert, delete, repeat or exchange whole blocks."""
    data = archive.data
    blocks = [data[i : i + BLOCK] for i in range(0, len(data), BLOCK)]
    a, b = draw.randrange(len(blocks)), draw.randrange(len(blocks))
    what = draw.randrange(5)
    if what == 0:
        blocks.insert(a, bytes(BLOCK))
    elif what == 1:
        blocks.insert(a, draw.randbytes(BLOCK))
    elif what == 2:
        del blocks[a]
    elif what == 3:
        blocks.insert(b, blocks[a])
    else:
        blocks[a], blocks[b] = blocks[b], blocks[a]
    return b"".join(blocks)


def append(draw: random.Random, archive: Archive) -> bytes:
    """Put something behind the end: zeros, noise, an odd number of bytes, another archive."""
    tails = (bytes(512 * 18), draw.randbytes(700), b"\0" * 3, archive.data, b"x", TRAILER + b"x")
    return archive.data + draw.choice(tails)


def splice(draw: random.Random, archive: Archive) -> bytes:
    """Begin as one archive and go on as another."""
    flavour = draw.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    other = make_archive(draw.choice((0, 100)), canary=archive.canary, flavour=flavour)
    one, two = archive.data, other.data
    if draw.random() < 0.5:
        here, there = draw.choice(archive.starts), draw.choice(other.starts)
    else:
        here, there = draw.randrange(len(one)), draw.randrange(len(two))
    return one[:here] + two[there:]


def rearrange(draw: random.Random, archive: Archive) -> bytes:
    """Repeat, drop, move or exchange whole members."""
    entries = list(archive.entries)
    a, b = pick_entry(draw, archive), pick_entry(draw, archive)
    what = draw.randrange(4)
    if what == 0:
        entries.insert(b, entries[a])
    elif what == 1:
        del entries[a]
    elif what == 2:
        entries.insert(b, entries.pop(a))
    else:
        entries[a], entries[b] = entries[b], entries[a]
    return joined(entries)


NAMES = (
    "/etc/000.png", "../000.png", "a/../../000.png", "a/..", "..", "a\\..\\b.png", "C:\\x.png",
    "1.2.840.113.png", "000.tar.png", ".png", "a/.png", "png", "a.", "", " .png", "a//b.png",
    "./000.png", "a.png/", "a\x01.png", "a\n.png", "a\x7f.png", "a\u202egnp.png", "é.png",
    "a.PNG", "a.p\u0130ng", "000.png.gz", "000.json.gz", "000.pyd", "000.pkl", "000.pickle",
    "000.pth", "000.pt", "000.npy", "000.npz", "000.py", "000.sh", "000.zip", "000.tar",
    "000.mp4", "000.txt", "pipe:touch x.png", "|touch x.png", "__key__.png", "a.__key__",
    "a.__url__", "x" * 95 + ".png",
)  # fmt: skip


def rename(draw: random.Random, archive: Archive) -> bytes:
    """Give a member, or a new one, a name that should not be."""
    name = draw.choice(NAMES).encode()
    if draw.random() < 0.1:
        name = draw.choice((b"\xff\xfe.png", b"a\xc3.png", draw.randbytes(20) + b".png"))
    content = draw.choice((payload(archive.canary), gzip.compress(b"x"), archive.members[0][1]))
    entries = list(archive.entries)
    if draw.random() < 0.5:
        entries.insert(pick_entry(draw, archive), _named(draw, name, content))
    else:
        entries[pick_entry(draw, archive)] = _named(draw, name, content)
    return joined(entries)


def long_name(draw: random.Random, archive: Archive) -> bytes:
    """Give names by GNU's and pax's extensions: long, too long, several, of nobody."""
    length = draw.choice((1, 120, 500, 1020, 1025, 5000, 70_000))
    name = b"y" * length + draw.choice((b".png", b".pyd", b"\0z.png", b"/../a.png", b""))
    image = entry("zzz.png", archive.members[0][1])
    extended = draw.choice(
        [
            gnu_long(name) + image,
            pax({"path": name}) + image,
            pax({"path": name, "comment": b"c" * draw.choice((10, 3000, 70_000))}) + image,
            gnu_long(name) + pax({"path": b"other.png"}) + image,
            pax({"path": b"other.png"}) + gnu_long(name) + image,
            gnu_long(b"one.png") + gnu_long(b"two.png") + image,
            pax({"path": b"one.png"}) + pax({"path": b"two.png"}) + image,
            gnu_long(name, kind=b"K") + image,
            gnu_long(name),
            pax({"path": name}),
            pax({"path": b"all.png"}, kind=b"g") + image,
            pax({"size": b"0"}, kind=b"g") + image,
            gnu_long(b"deep/" * 200 + b"a.png") + image,
            gnu_long(name) * draw.choice((2, 200)) + image,
        ]
    )
    place = draw.choice((0, len(archive.entries), pick_entry(draw, archive)))
    entries = list(archive.entries)
    entries.insert(place, extended)
    return joined(entries)


def bad_pax(draw: random.Random, archive: Archive) -> bytes:
    """Write pax records whose lengths, sizes or keys lie."""
    size = draw.choice((b"0", b"1", b"511", b"99999999999999999999", b"-1", b"1e3", b"\xb2", b""))
    record = draw.choice(
        [
            pax({"size": size}),
            pax({"path": b"a.png", "size": size}),
            pax({"GNU.sparse.major": b"1", "GNU.sparse.name": b"a.png"}),
            pax({"hdrcharset": b"BINARY", "path": b"\xff.png"}),
            entry(b"pax", b"999999999 path=a.png\n", kind=b"x"),
            entry(b"pax", b"0 path=a.png\n", kind=b"x"),
            entry(b"pax", b"5 a=\n", kind=b"x"),
            entry(b"pax", b"20 path=a.png", kind=b"x"),
            entry(b"pax", draw.randbytes(40), kind=b"x"),
            entry(b"pax", b"", kind=b"x"),
            header(b"pax", 2**33, kind=b"x"),
            header(b"pax", 2**70, kind=draw.choice((b"x", b"g", b"L", b"K"))),
        ]
    )
    entries = list(archive.entries)
    entries.insert(pick_entry(draw, archive), record)
    return joined(entries)


def special_member(draw: random.Random, archive: Archive) -> bytes:
    """Add a link, device, pipe, folder, sparse file or something unknown."""
    kind = draw.choice(
        (b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"S", b"V", b"M", b"D", b"Z", b"A", b"\0")
    )
    content = draw.choice((b"", entry("hidden.png", archive.members[0][1])))
    name = draw.choice(("zz.png", "zz/", "zz", archive.members[0][0]))
    link = draw.choice((b"", b"/etc/passwd", b"../../x", archive.members[0][0].encode()[:99]))
    entries = list(archive.entries)
    entries.insert(pick_entry(draw, archive), entry(name, content, kind=kind, link=link))
    return joined(entries)


def lying_size(draw: random.Random, archive: Archive) -> bytes:
    """Declare another size than the content has, also one beyond everything."""
    entries = list(archive.entries)
    number = pick_entry(draw, archive)
    block = bytearray(entries[number][:BLOCK])
    size = int(block[124:135], 8)
    octal = draw.choice((0, 1, size + 1, max(size - 1, 0), size + BLOCK, 2**30 + 1, 8**11 - 1))
    value = draw.choice(
        (
            b"%011o\0" % octal,
            b"%011o\0" % octal,
            b"\x80" + (2 ** draw.choice((9, 31, 33, 63, 64, 87))).to_bytes(11, "big"),
            b"\xff" * 12,
            b"\0" * 12,
            b"-0000000001\0",
            b"0x000000001\0",
            b"1_000000000\0",
            b"99999999999\0",
        )
    )
    set_field(block, "size", value)
    entries[number] = sealed(bytes(block)) + entries[number][BLOCK:]
    return joined(entries)


def many_members(draw: random.Random, archive: Archive) -> bytes:
    """Give one sample very many members, or the archive very many folders."""
    what = draw.randrange(3)
    if what == 0:
        more = [entry(f"zz.{'a' * i}png", b"x") for i in range(1, 80)]
    elif what == 1:
        more = [entry(f"zz.{'pngjson'[: draw.randrange(3, 8)]}", b"x") for _ in range(80)]
    else:
        more = [entry("d/" * 20, b"", kind=b"5")] * 300
    return joined([*archive.entries, *more])


def packed_whole(draw: random.Random, archive: Archive) -> bytes:
    """Hand over something that is no tar: compressed, a zip, noise, zeros, a folder's worth."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as file:
        file.writestr("a.png", archive.members[0][1])
    return draw.choice(
        (
            gzip.compress(archive.data),
            gzipped_zeros(),
            zipped.getvalue(),
            draw.randbytes(len(archive.data)),
            bytes(len(archive.data)),
            payload(archive.canary),
            padded(payload(archive.canary)) + archive.data,
        )
    )


def _named(draw: random.Random, name: bytes, content: bytes) -> bytes:
    form = draw.randrange(3)
    if form == 0 or len(name) > 100:
        return gnu_long(name) + entry(b"zz.png", content)
    return pax({"path": name}) + entry(b"zz.png", content) if form == 1 else entry(name, content)


def _flipped(draw: random.Random, data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]


def _content_size(data: bytes, begin: int) -> int:
    return int(data[begin + 124 : begin + 135], 8)


STRUCTURE: dict[str, Mutation] = {
    function.__name__: function
    for function in (
        cut,
        flip_header,
        flip_sealed_header,
        flip_anywhere,
        flip_trailer,
        zero_bytes,
        move_blocks,
        append,
        splice,
        rearrange,
        rename,
        long_name,
        bad_pax,
        special_member,
        lying_size,
        many_members,
        packed_whole,
    )
}
