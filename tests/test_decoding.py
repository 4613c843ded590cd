"""Bodies out of their Content-Encoding: whole ones, faulty ones, and such as are in no encoding."""

from __future__ import annotations

import gzip
import random
import sys
import zlib

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.fetch.decoding import MOST_MEMBERS, Decoded, decoded
from tests.costs import ratio

MOST = 1_000_000
TEXT = "".join(f"<p>{number} the tide {number * 7919 % 1000}" for number in range(3_000)).encode()
GZIP = gzip.compress(TEXT, mtime=0)
ZLIB = zlib.compress(TEXT)
DEFLATE = zlib.compress(TEXT, wbits=-15)
BR = brotli.compress(TEXT)
WRONG_SUM = GZIP[:-8] + b"\1\2\3\4" + GZIP[-4:]


def named_gzip(data: bytes) -> bytes:
    """A member with all that a head may have: fields, name, comment, sum."""
    packed = gzip.compress(data, mtime=0)
    return packed[:3] + b"\x1e" + packed[4:10] + b"\3\0abcname\0comment\0\1\2" + packed[10:]


@pytest.mark.parametrize(
    ("encodings", "wire"),
    [
        ("gzip", GZIP),
        ("x-gzip", GZIP),
        ("GZip", GZIP),
        ("gzip,", GZIP),
        (" gzip ", named_gzip(TEXT)),
        ("deflate", ZLIB),
        ("deflate", DEFLATE),
        ("br", BR),
        ("gzip, br", brotli.compress(GZIP)),
        ("gzip, gzip", gzip.compress(GZIP)),
        ("gzip, gzip", GZIP),
        ("identity", TEXT),
        ("none", TEXT),
        ("gzip, identity", GZIP),
        # What stands behind the end, or is missing of it.
        ("gzip", GZIP + b"\n"),
        ("gzip", GZIP + bytes(512)),
        ("gzip", GZIP + b"<!-- cached -->"),
        ("gzip", gzip.compress(TEXT[:50], mtime=0) + gzip.compress(TEXT[50:], mtime=0)),
        ("gzip", gzip.compress(b"", mtime=0) + GZIP + b"\0"),
        ("deflate", ZLIB + b"\n"),
        ("deflate", ZLIB[:-4]),
        ("deflate", DEFLATE + bytes(100)),
        ("deflate", DEFLATE + b"<!-- cached -->"),
        ("br", BR + b"\n"),
        ("br", BR + b"<!-- cached -->"),
    ],
)
def test_what_browsers_read(encodings: str, wire: bytes) -> None:
    assert decoded(wire, encodings, MOST) == Decoded(TEXT)


@pytest.mark.parametrize(
    ("encodings", "wire", "error"),
    [
        ("gzip", WRONG_SUM, "its gzip has a wrong checksum"),
        ("gzip", GZIP[:-4], "its gzip has no checksum"),
        ("gzip", GZIP[:-8], "its gzip has no checksum"),
        ("gzip", GZIP[:-8] + bytes(8), "its gzip has no checksum"),
        ("gzip, br", brotli.compress(WRONG_SUM), "its gzip has a wrong checksum"),
    ],
)
def test_a_wrong_sum_is_told_and_the_body_is_whole(encodings: str, wire: bytes, error: str) -> None:
    assert decoded(wire, encodings, MOST) == Decoded(TEXT, error=error)


@pytest.mark.parametrize("encodings", ["gzip", "deflate", "br", "zstd", "utf-8", "gzip, gzip"])
@pytest.mark.parametrize(
    "body",
    [
        TEXT,
        b"ok",
        b"x",
        b"plain or whatever",
        b'[{"a@b": 1}, 2]',
        b"hb and hC begin like deflate",
        b"User-agent: *\nDisallow: /no\n",
        "<p>\ubb3c\ub54c \ubb3c\ub54c".encode("euc-kr") * 50,
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 9,
    ],
)
def test_what_is_in_no_encoding_stays_as_it_came(encodings: str, body: bytes) -> None:
    assert decoded(body, encodings, MOST) == Decoded(body, as_it_came=True)


@pytest.mark.parametrize(
    ("encodings", "wire"), [("gzip", GZIP), ("deflate", ZLIB), ("deflate", DEFLATE), ("br", BR)]
)
def test_what_is_cut_short_gives_what_came_before(encodings: str, wire: bytes) -> None:
    for left in (100, len(wire) // 2, len(wire) - 20):
        found = decoded(wire[:left], encodings, MOST)
        assert found.loss == f"its {encodings} is truncated"
        assert TEXT.startswith(found.body) and len(found.body) < len(TEXT)
    assert len(found.body) > len(TEXT) / 2


def test_a_second_member_that_is_cut_short_is_a_loss() -> None:
    found = decoded(GZIP + GZIP[: len(GZIP) // 2], "gzip", MOST)
    assert found.loss and found.body.startswith(TEXT + TEXT[:100])
    assert decoded(GZIP + GZIP[:5], "gzip", MOST) == Decoded(TEXT, loss="its gzip is truncated")


def test_a_body_that_may_be_another_is_doubtful() -> None:
    half = len(GZIP) // 2
    found = decoded(GZIP[:-8] + b"\1\2\3\4" * 2, "gzip", MOST)
    assert found == Decoded(TEXT, error="its gzip has a wrong checksum and a wrong size", doubtful=True)
    found = decoded(ZLIB[:-4] + b"\1\2\3\4", "deflate", MOST)
    assert found == Decoded(TEXT, error="its deflate has a wrong checksum", doubtful=True)
    for packed in (GZIP, ZLIB):
        name = "gzip" if packed is GZIP else "deflate"
        found = decoded(packed[:half] + b"\xff" * 40 + packed[half + 40 :], name, MOST)
        assert found.doubtful or found.loss


@pytest.mark.parametrize("encodings", ["gzip", "deflate", "br"])
def test_what_is_damaged_in_the_middle_is_a_loss(encodings: str) -> None:
    """By a block of a kind that there is not."""
    made = zlib.compressobj(wbits=31 if encodings == "gzip" else 15)
    wire = made.compress(TEXT) + made.flush(zlib.Z_FULL_FLUSH) + b"\xff" * 99
    if encodings == "br":
        packer = brotli.Compressor()
        wire = packer.process(TEXT) + packer.flush() + b"\xff" * 99
    found = decoded(wire, encodings, MOST)
    assert found._replace(body=b"") == Decoded(b"", loss=f"its {encodings} is damaged")
    assert TEXT.startswith(found.body)
    assert len(found.body) > len(TEXT) - 2_000


@pytest.mark.parametrize(
    ("encodings", "wire"), [("gzip", GZIP), ("deflate", ZLIB), ("deflate", DEFLATE), ("br", BR)]
)
def test_no_more_is_made_than_is_asked_for(encodings: str, wire: bytes) -> None:
    for most in (1, 1000, len(TEXT) - 1):
        assert decoded(wire, encodings, most) == Decoded(TEXT[: most + 1])
    assert decoded(wire, encodings, len(TEXT)) == Decoded(TEXT)
    assert decoded(wire, encodings, sys.maxsize) == Decoded(TEXT), "as much as there is"


@pytest.mark.parametrize("encodings", ["gzip", "deflate", "br", "gzip, gzip"])
def test_a_bomb_takes_little(encodings: str) -> None:
    zeros = bytes(100_000_000)
    wire = {
        "gzip": lambda: gzip.compress(zeros, 1),
        "deflate": lambda: zlib.compress(zeros, 1),
        "br": lambda: brotli.compress(zeros, quality=1),
        "gzip, gzip": lambda: gzip.compress(gzip.compress(zeros, 1), 1),
    }[encodings]()

    def little() -> None:
        assert decoded(wire, encodings, 10_000) == Decoded(bytes(10_001))

    assert ratio(little, lambda: decoded(wire, encodings, sys.maxsize), 0.2) < 0.2


def test_members_without_end_take_little() -> None:
    def read(members: int) -> None:
        found = decoded(gzip.compress(b"") * members, "gzip", MOST)
        assert found.loss == f"its gzip has more than {MOST_MEMBERS} members"

    assert ratio(lambda: read(30 * MOST_MEMBERS), lambda: read(MOST_MEMBERS + 1), 3) < 3


@given(
    st.binary(max_size=300),
    st.sampled_from(["gzip", "deflate", "br", "gzip, br", "br, deflate", "zstd"]),
    st.sampled_from(
        [b"", b"\x1f\x8b\x08", b"\x1f\x8b\x08\x1c\0\0\0\0\0\0", b"\x78\x9c", GZIP[:500], BR[:100]]
    ),
)
def test_any_bytes_are_taken(rest: bytes, encodings: str, begun: bytes) -> None:
    found = decoded(begun + rest, encodings, 1000)
    assert found.as_it_came or len(found.body) <= 1001


def test_a_wrong_bit_raises_nothing() -> None:
    chance = random.Random(5)
    for encodings, wire in (("gzip", GZIP), ("deflate", ZLIB), ("br", BR)):
        for _ in range(300):
            damaged = bytearray(wire)
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            decoded(bytes(damaged), encodings, MOST)
