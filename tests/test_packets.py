"""Paper 002's packets: what is well formed becomes one check, all else is refused by name, whatever the bytes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crawler import records
from crawler.fetch import errors
from crawler.records import Check
from crawler.status import packets
from crawler.status.packets import (
    AHEAD_MS,
    DIGITS,
    LEAST_BYTES,
    MOST_BYTES,
    STATUSES,
    Fault,
    Frames,
    PacketError,
    Refusal,
    decode,
    fields_of,
    join,
    offset,
)

NOW = 1_795_003_200_000  # 2026-11-18 12:00:00 UTC
LIMIT = 200
FIVE = ("7", "1042", "200", "20261118120000")
# What is nearly a packet: broken in one place, which random bytes hardly ever are.
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
URLS = TEXT.map("url=http://{}".format) | TEXT.map("url=https://example.org/{}".format)
NEARLY = st.lists(
    st.sampled_from([*FIVE, "-1", "999", "", "url=x", "url=http://[", "run=a", "seq=1"]) | TEXT | URLS,
    max_size=9,
)
PACKETS = st.lists(st.integers(0, 10**9), max_size=6).map(
    lambda codes: [join(["1", str(code), "200", "20261118120000"]) for code in codes]
)


def read(*fields: str, now: int = NOW, zone: timezone = UTC) -> Check:
    return decode(join(fields), now, zone)


def refused(packet: bytes) -> PacketError:
    with pytest.raises(PacketError) as caught:
        decode(packet, NOW, UTC)
    return caught.value


def cut(frames: Frames, *chunks: bytes) -> list[bytes | Refusal]:
    """All that comes of these chunks and the connection's end."""
    return [found for chunk in chunks for found in frames.feed(chunk)] + frames.end()


def with_length(behind: bytes, more: int = 0) -> bytes:
    """What follows the length, behind a length that is right, or off by `more`."""
    return b"%08d" % (DIGITS + len(behind) + more) + behind


# --- One packet -------------------------------------------------------------------------------------------


def test_the_example_of_the_page_is_a_packet() -> None:
    found = re.search(r"^    (\d{8}\|\|.*)$", packets.__doc__ or "", re.MULTILINE)
    assert found
    packet = found[1].encode()
    assert cut(Frames(LIMIT, several=False), packet) == [packet]
    check = decode(packet, NOW, UTC)
    assert (check.crawler, check.code, check.status, check.checked_at) == (7, 1042, 200, NOW)
    assert check.url == "https://example.org/a||b"
    assert check.agent == "packets-7"


def test_the_papers_five_fields_are_enough() -> None:
    check = read(*FIVE)
    assert (check.run, check.seq, check.url, check.latency_ms, check.more) == ("", 0, "", None, [])


def test_further_fields() -> None:
    named = ("url=HTTP://Example.org/b?b=1&a=2#x", "run=r 1", "seq=9223372036854775807", "latency_ms=12")
    check = read(*FIVE, "first", *named, "", "depth=3")
    assert (check.site, check.path) == ("http://example.org", "/b?a=2&b=1")
    assert (check.run, check.seq, check.latency_ms) == ("r 1", 2**63 - 1, 12)
    assert check.more == ["first", "", "depth=3"]


def test_a_bar_that_stands_alone_is_itself() -> None:
    assert fields_of(with_length(b"||a|b||||c\\|d\\\\")) == ["a|b", "", "c|d\\"]


def test_equal_bytes_are_one_check_and_others_are_not() -> None:
    digests = [read(*FIVE, *more).digest for more in ((), (), ("x",), ("run=r", "seq=1"), ("run=r", "seq=2"))]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


def test_every_status_that_an_agent_stores_is_one_of_a_packet() -> None:
    ours = {code for _, code in errors.STATUS_CODES} | {errors.OTHER}
    assert ours <= STATUSES
    assert {100, 200, 404, 599} <= STATUSES
    assert not {0, 99, 600, -15} & STATUSES


@pytest.mark.parametrize(
    ("text", "at", "zone"),
    [
        ("20261118120000", "2026-11-18T12:00:00+00:00", "+00:00"),
        ("20261118210000", "2026-11-18T12:00:00+00:00", "+09:00"),
        ("2026-11-18 21:00:00", "2026-11-18T12:00:00+00:00", "+09:00"),
        ("2026-11-18T12:00:00Z", "2026-11-18T12:00:00+00:00", "+09:00"),
        ("2026-11-18T07:30:00.25-04:30", "2026-11-18T12:00:00.250+00:00", "+09:00"),
        ("19691231235959", "1969-12-31T23:59:59+00:00", "+00:00"),
        ("00010101000000", "0001-01-01T00:00:00+14:00", "+14:00"),
    ],
)
def test_times(text: str, at: str, zone: str) -> None:
    wanted = (datetime.fromisoformat(at) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert read("1", "1", "200", text, zone=offset(zone)).checked_at == wanted


@pytest.mark.parametrize("ahead", [-AHEAD_MS, 0, AHEAD_MS, AHEAD_MS + 1])
def test_a_time_may_be_a_little_ahead(ahead: int) -> None:
    if ahead <= AHEAD_MS:
        assert read(*FIVE, now=NOW - ahead).checked_at == NOW
    else:
        with pytest.raises(
            PacketError, match=r"time is '20261118120000', 300 s ahead; expected at most 300 s"
        ):
            read(*FIVE, now=NOW - ahead)


@pytest.mark.parametrize("text", ["9:00", "+9:00", "+15:00", "+09:60", "Z", "", "+09:00 "])
def test_what_is_no_offset(text: str) -> None:
    with pytest.raises(ValueError, match="expected one such as"):
        offset(text)


BAD: list[tuple[Fault, tuple[str, ...], str]] = [
    ("fields", (), "2 fields; expected also code, status, time"),
    ("fields", ("7", "1", "200"), "4 fields; expected also time"),
    ("crawler", ("", "1", "200", FIVE[3]), "crawler is ''; expected an integer"),
    ("crawler", ("-1", "1", "200", FIVE[3]), "crawler is '-1'"),
    ("crawler", ("1.0", "1", "200", FIVE[3]), "crawler is '1.0'"),
    ("crawler", ("1_0", "1", "200", FIVE[3]), "crawler is '1_0'"),
    ("crawler", ("\u0661", "1", "200", FIVE[3]), "crawler is '\u0661'"),
    ("code", ("7", "x" * 200, "200", FIVE[3]), f"code is '{'x' * 80}'; expected"),
    ("code", ("7", "1" * 19, "200", FIVE[3]), "expected an integer of at most 18 digits"),
    ("status", ("7", "1", "0", FIVE[3]), "status is '0'; expected 100 to 599, or -14 to -1"),
    ("status", ("7", "1", "600", FIVE[3]), "status is '600'"),
    ("status", ("7", "1", "-15", FIVE[3]), "status is '-15'"),
    ("status", ("7", "1", "OK", FIVE[3]), "status is 'OK'"),
    ("status", ("7", "1", " 200", FIVE[3]), "status is ' 200'"),
    ("time", ("7", "1", "200", "yesterday"), "time is 'yesterday'; expected YYYYMMDDhhmmss or"),
    ("time", ("7", "1", "200", "20261318120000"), "time is '20261318120000'"),
    ("time", ("7", "1", "200", "20260229120000"), "time is"),
    ("time", ("7", "1", "200", "20261118120060"), "time is"),
    ("time", ("7", "1", "200", "00000101000000"), "time is"),
    ("time", ("7", "1", "200", "1795003200"), "time is"),
    ("time", ("7", "1", "200", "2026-11-18T12:00:00+25:00"), "time is"),
    ("time", ("7", "1", "200", "\u0662\u0660\u0662\u06661118120000"), "time is"),
    ("ahead", ("7", "1", "200", "20261118120501"), "301 s ahead; expected at most 300 s"),
    (
        "named",
        (*FIVE, "url=ftp://example.org/"),
        "url is not a web URL: 'ftp://example.org/' has scheme 'ftp'",
    ),
    ("named", (*FIVE, "url="), "url is not a web URL"),
    ("named", (*FIVE, "run=r"), "run is given alone; expected run and seq together"),
    ("named", (*FIVE, "seq=1"), "seq is given alone"),
    ("named", (*FIVE, "run=", "seq=1"), "run is ''; expected 1 to 64 letters"),
    ("named", (*FIVE, f"run={'r' * 65}", "seq=1"), "expected 1 to 64 letters"),
    ("named", (*FIVE, "run=a\0b", "seq=1"), "expected 1 to 64 letters"),
    ("named", (*FIVE, "run=r", "seq=-1"), "seq is '-1'; expected an integer up to 9223372036854775807"),
    ("named", (*FIVE, "run=r", "seq=9223372036854775808"), "seq is"),
    ("named", (*FIVE, "latency_ms=2147483648"), "latency_ms is '2147483648'; expected an integer up to"),
    ("named", (*FIVE, "latency_ms=1", "latency_ms=1"), "latency_ms is given twice; expected once"),
]


@pytest.mark.parametrize(("fault", "fields", "said"), BAD, ids=lambda part: str(part)[:40])
def test_what_is_refused_is_told_by_name(fault: Fault, fields: tuple[str, ...], said: str) -> None:
    error = refused(join(fields))
    assert error.fault == fault
    assert said in str(error)


@pytest.mark.parametrize(
    ("fault", "behind", "said"),
    [
        ("text", b"||7||1||200||20261118120000||\xff", "byte 37 is not UTF-8"),
        ("text", b"||7||1||200||20261118120000||\xed\xa0\x80", "is not UTF-8"),
        ("escape", b"||7||1||200||20261118120000||C:\\x", r"'\\x' in '\\x'; expected \| or \\"),
        ("escape", b"||7||1||200||20261118120000||\\", r"'\\' in"),
    ],
)
def test_bytes_that_are_no_text_of_ours(fault: Fault, behind: bytes, said: str) -> None:
    error = refused(with_length(behind))
    assert error.fault == fault
    assert said in str(error)


def test_a_packet_too_long_to_say_so() -> None:
    with pytest.raises(ValueError, match=f"expected at most {MOST_BYTES}"):
        join(["x" * MOST_BYTES])


@given(
    st.lists(
        st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(["|", "||", "\\|", "\\"]),
        min_size=1,
    )
)
def test_fields_come_back_as_they_were(fields: list[str]) -> None:
    assert fields_of(join(fields)) == fields


@given(st.binary(max_size=300) | NEARLY.map(join) | NEARLY.map(lambda fields: join([*FIVE, *fields])))
@example(join([*FIVE, "url=http://\u2100.example/"]))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_a_check_or_refused(packet: bytes) -> None:
    try:
        check = decode(packet, NOW, UTC)
    except PacketError as error:
        assert error.fault
        assert str(error).isprintable()
        assert len(str(error)) < 1000
        return
    numbers = (check.crawler, check.code, check.seq, check.checked_at, check.status, check.latency_ms or 0)
    assert all(-(2**63) <= number < 2**63 for number in numbers)
    assert check.checked_at <= NOW + AHEAD_MS
    again, _ = records.decode({b"v": records.VERSION, b"r": records.encode(check)})
    assert again == check


# --- Packets of a connection ------------------------------------------------------------------------------


def test_the_shortest_packet() -> None:
    packet = join(["0", "0", "-1", "20261118120000"])
    assert len(packet) == LEAST_BYTES
    assert cut(Frames(LIMIT, several=False), packet) == [packet]
    decode(packet, NOW, UTC)


@given(PACKETS, st.lists(st.integers(1, 50)), st.binary(max_size=9))
@settings(max_examples=200, deadline=None)
def test_several_packets_are_cut_alike_however_they_come(
    sent: list[bytes], sizes: list[int], rest: bytes
) -> None:
    data = b"".join(sent) + rest
    frames = Frames(LIMIT, several=True)
    found: list[bytes | Refusal] = []
    while data:
        size = sizes.pop() if sizes else len(data)
        found += frames.feed(data[:size])
        data = data[size:]
    found += frames.end()
    assert found[: len(sent)] == sent
    assert [part.fault for part in found[len(sent) :] if isinstance(part, Refusal)] == (
        [] if not rest else ["cut" if rest[:8].isdigit() and rest[8:] in (b"", b"|") else "length"]
    )


@given(st.integers(1, 60), st.binary(max_size=50))
@settings(deadline=None)
def test_one_packet_a_connection_whatever_its_pieces(size: int, more: bytes) -> None:
    """Bytes behind it make it refused, whether they come with it or later."""
    packet = join(FIVE)
    data = packet + more
    chunks = [data[start : start + size] for start in range(0, len(data), size)]
    found = cut(Frames(LIMIT, several=False), *chunks)
    if more:
        (refusal,) = found
        assert isinstance(refusal, Refusal)
        assert refusal.fault == "trailing"
        assert refusal.packet.startswith(packet)
    else:
        assert found == [packet]


@pytest.mark.parametrize(
    ("data", "fault", "said"),
    [
        (b"GET / HTTP/1.1\r\n", "length", "a packet begins with b'GET / HTTP'; expected 8 digits and ||"),
        (b"0000x", "length", "a packet begins with b'0000x'"),
        (b"00000040|x", "length", "expected 8 digits and ||"),
        (b"000000041||", "length", "expected 8 digits and ||"),
        (b"00000033||", "short", f"length is 33; expected {LEAST_BYTES} bytes or more"),
        (b"00000201||", "long", f"length is 201; expected {LIMIT} bytes at most"),
        (b"99999999||", "long", "length is 99999999"),
        (b"0000", "cut", "the connection ended after 4 bytes; expected a length of 8 digits"),
        (b"00000040||1||", "cut", "the connection ended after 13 bytes; expected 40 bytes"),
        (with_length(b"||7||1042||200||20261118120000", 1), "cut", "after 38 bytes; expected 39 bytes"),
        (with_length(b"||7||1042||200||20261118120000", -1), "trailing", "bytes or more for a packet of 37"),
    ],
)
def test_bytes_that_are_no_packet(data: bytes, fault: Fault, said: str) -> None:
    (refusal,) = cut(Frames(LIMIT, several=False), data)
    assert isinstance(refusal, Refusal)
    assert refusal.fault == fault
    assert said in refusal.why
    assert refusal.packet == data


def test_where_packets_follow_each_other_a_wrong_length_ends_all() -> None:
    good = join(FIVE)
    frames = Frames(LIMIT, several=True)
    found = cut(frames, good + with_length(b"||7||1042||200||20261118120000", -1) + good)
    assert found[0] == good
    assert isinstance(found[1], bytes)  # cut as it said, for decode to judge
    (last,) = found[2:]
    assert isinstance(last, Refusal)
    assert last.fault == "length"
    assert frames.broken
    assert frames.feed(good) == []


@given(st.lists(st.binary(max_size=400), max_size=20), st.booleans())
@settings(max_examples=300, deadline=None)
def test_no_bytes_whatever_are_held_beyond_the_limit(chunks: list[bytes], several: bool) -> None:
    frames = Frames(LIMIT, several=several)
    found: list[bytes | Refusal] = []
    for chunk in chunks:
        found += frames.feed(chunk)
        assert frames.begun <= LIMIT
    found += frames.end()
    assert sum(isinstance(part, Refusal) for part in found) <= 1
    assert all(len(part.packet if isinstance(part, Refusal) else part) <= LIMIT for part in found)
    assert frames.begun == 0


# --- On the way to the dead letters -----------------------------------------------------------------------


def test_what_was_refused_before_is_refused_again_for_the_same_reason() -> None:
    entry = records.refused("status is '0'", packet=b"\xff")
    with pytest.raises(records.RecordError, match=r"^status is '0'$"):
        records.decode(entry)
    assert entry[b"packet"] == b"\xff"
