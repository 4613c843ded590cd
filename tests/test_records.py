"""Records of the results stream: what goes in comes out, and what is no record is refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler import records
from crawler.records import OperatorCommand, Page, Record, RecordError, RunEvent, SiteEnded, SiteFound, Visit

# SQL's widest integer; nothing that we count is wider.
_INTS = st.integers(-(2**63), 2**63 - 1)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_JSON = st.recursive(
    st.none() | st.booleans() | _INTS | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXT, inner, max_size=2),
    max_leaves=5,
)


def _any_of(kind: type[Record]) -> st.SearchStrategy[Record]:
    values = {
        str: _TEXT,
        int: _INTS,
        bytes: st.binary(max_size=40),
        int | None: st.none() | _INTS,
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        list[str]: st.lists(_TEXT, max_size=2),
        dict[str, int]: st.dictionaries(_TEXT, _INTS, max_size=2),
        dict[str, Any]: st.dictionaries(_TEXT, _JSON, max_size=2),
    }
    return st.builds(
        kind,
        **{
            field.encode_name: values[field.type]
            if field.type in values
            else st.sampled_from(field.type.__args__)
            for field in msgspec.structs.fields(kind)
        },
    )


RECORDS = st.one_of(
    *(_any_of(kind) for kind in (Page, SiteFound, SiteEnded, OperatorCommand, RunEvent, Visit))
)
LINKS = st.lists(st.binary(min_size=8, max_size=8), max_size=5).map(b"".join)


def fields_of(record: Record, links: bytes = b"") -> dict[bytes, bytes]:
    return {b"v": records.VERSION, b"r": records.encode(record), b"l": links}


def refusal(fields: dict[bytes, bytes]) -> str:
    with pytest.raises(RecordError) as caught:
        records.decode(fields)
    return str(caught.value)


# --- Round trips ------------------------------------------------------------------------------------------


@given(record=RECORDS, links=LINKS)
@settings(max_examples=200, deadline=None)
def test_what_goes_in_comes_out(record: Record, links: bytes) -> None:
    again, got = records.decode(fields_of(record, links))
    assert again == record
    assert type(again) is type(record)
    assert got == links


def test_a_person_can_read_it() -> None:
    page = Page(
        site="https://example.org", path="/x", fetched_at=5, outcome="stored", status=200, title="\ud55c"
    )
    assert json.loads(records.encode(page)) == {
        "kind": "page",
        "site": "https://example.org",
        "path": "/x",
        "fetched_at": 5,
        "outcome": "stored",
        "status": 200,
        "title": "\ud55c",
    }
    assert "\ud55c" in records.encode(page).decode()
    assert page.url == "https://example.org/x"


@pytest.mark.parametrize(
    ("text", "record"),
    [
        (
            '{"kind":"page","seq":3,"site":"s","path":"/","fetched_at":1,"outcome":"denied","status":-9}',
            Page(seq=3, site="s", path="/", fetched_at=1, outcome="denied", status=-9),
        ),
        ('{"kind":"site","site":"s","found_at":1}', SiteFound(site="s", found_at=1, source="seed")),
        (
            '{"kind":"ended","site":"s","ended_at":1,"finished":true,"published":2,"known":3}',
            SiteEnded(site="s", ended_at=1, finished=True, published=2, known=3),
        ),
        (
            '{"kind":"order","site":"s","ordered_at":1,"order":"budget","pages":0}',
            OperatorCommand(site="s", ordered_at=1, order="budget", pages=0),
        ),
        ('{"kind":"run","spider":"site","started_at":1}', RunEvent(spider="site", started_at=1)),
        ('{"kind":"visit","site":"s","hour":494000}', Visit(site="s", hour=494_000, seconds=0.0)),
        # What the first release wrote of a page, and one of this release as the first one reads it.
        (
            '{"kind":"page","site":"s","path":"/","fetched_at":1,"outcome":"stored","status":200,"title":"t"}',
            Page(
                site="s",
                path="/",
                fetched_at=1,
                outcome="stored",
                status=200,
                title="t",
                canonical="",
                extra={},
            ),
        ),
        (
            '{"kind":"page","site":"s","path":"/","fetched_at":1,"outcome":"stored","status":200,'
            '"extra":{"words":3,"a":[null,{"b":0.5}]}}',
            Page(
                site="s",
                path="/",
                fetched_at=1,
                outcome="stored",
                status=200,
                extra={"words": 3, "a": [None, {"b": 0.5}]},
            ),
        ),
        # A field of a later release is passed over.
        ('{"kind":"site","site":"s","found_at":1,"colour":"blue"}', SiteFound(site="s", found_at=1)),
    ],
)
def test_records_of_version_1_are_read(text: str, record: Record) -> None:
    assert records.decode({b"v": b"1", b"r": text.encode()}) == (record, b"")


# --- Refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, b"", b"0", b"2", b"1.0", b"01", b"\xff"])
def test_other_versions_are_refused(version: bytes | None) -> None:
    fields = fields_of(SiteFound(site="s", found_at=1)) | {b"v": version}
    assert refusal(fields) == f"record version {version!r}: expected b'1'"
    del fields[b"v"]
    assert "version None" in refusal(fields)


GOOD = b'{"kind":"site","site":"s","found_at":1}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "truncated"),
        (b"null", "Expected `object`"),
        (b"[]", "Expected `object`"),
        (b"{}", "`kind`"),
        (b'{"kind":"planet"}', "'planet'"),
        (b'{"kind":"site","site":"s"}', "`found_at`"),
        (b'{"kind":"site","site":5,"found_at":1}', "Expected `str`, got `int`"),
        (b'{"kind":"site","site":null,"found_at":1}', "got `null`"),
        (b'{"kind":"site","site":"s","found_at":"1"}', "Expected `int`"),
        (b'{"kind":"site","site":"s","found_at":1.5}', "Expected `int`"),
        (b'{"kind":"page","site":"s","path":"/","fetched_at":1,"outcome":"eaten","status":1}', "'eaten'"),
        (b'{"kind":"site","site":"\xff","found_at":1}', "utf-8"),
        (b'{"kind":"site","site":"\\ud800","found_at":1}', "surrogate"),
        (b'{"kind":"site","site":"s","found_at":1,"x":' + b"[" * 100_000, "recursion"),
        (GOOD + GOOD, "trailing"),
        (b"\x80\x04K\x01.", "malformed"),
    ],
)
def test_what_is_no_record_is_refused_in_words(text: bytes, said: str) -> None:
    message = refusal({b"v": b"1", b"r": text})
    assert said in message
    assert repr(text[:20])[2:-1] in message
    assert len(message) < 2000


def test_every_truncation_is_refused() -> None:
    for length in range(len(GOOD)):
        refusal({b"v": b"1", b"r": GOOD[:length]})
    refusal({b"v": b"1"})


@given(text=st.one_of(st.binary(max_size=60), st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255))))
@settings(max_examples=300, deadline=None)
def test_damaged_records_are_refused_or_read(text: bytes | tuple[int, int]) -> None:
    if isinstance(text, tuple):
        place, value = text
        text = GOOD[:place] + bytes([value]) + GOOD[place + 1 :]
    try:
        record, _ = records.decode({b"v": b"1", b"r": text})
    except RecordError:
        return
    assert records.decode(fields_of(record))[0] == record


@pytest.mark.parametrize("length", [1, 7, 9, 15])
def test_links_come_in_whole_hashes(length: int) -> None:
    fields = fields_of(SiteFound(site="s", found_at=1), b"x" * length)
    assert refusal(fields) == f"{length} bytes of links: expected a multiple of 8"


# --- Hashes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", -5426141060434712860),
        ("https://example.org/", -5134289984887863442),
        ("https://xn--3e0b707e/%ED%95%9C?a=1", 5955350712172288686),
        ("http://a/\ud800", 427267820325162175),
    ],
)
def test_hashes_stay_what_they_are_in_every_table(text: str, value: int) -> None:
    assert records.hash64(text) == value


@given(st.lists(st.text(max_size=20), max_size=20))
@settings(max_examples=100, deadline=None)
def test_packed_links_are_sorted_distinct_hashes(urls: list[str]) -> None:
    packed = records.pack_links(urls)
    words = [packed[start : start + 8] for start in range(0, len(packed), 8)]
    assert {int.from_bytes(word, "little", signed=True) for word in words} == set(map(records.hash64, urls))
    numbers = [int.from_bytes(word, "little") for word in words]
    assert numbers == sorted(set(numbers))


def test_packed_links_are_blake2b_little_endian() -> None:
    urls = ["https://example.org/b", "https://example.org/", "https://example.org/"]
    digests = {blake2b(url.encode(), digest_size=8).digest() for url in urls}
    assert records.pack_links(urls) == b"".join(sorted(digests, key=lambda digest: digest[::-1]))
    assert records.pack_links(urls).hex() == "ddb93afaf58f3db56ec7e91c7656bfb8"
    assert records.pack_links([]) == b""


# --- packed ---


def test_a_packed_record_is_the_same_record() -> None:
    page = records.Page(
        site="https://a.example", path="/", fetched_at=1, outcome="stored", status=200, title="한" * 50
    )
    text = records.encode(page)
    fields = {b"v": records.VERSION, b"r": records.pack(text), b"l": b"12345678"}
    assert len(fields[b"r"]) < len(text)
    assert records.decode(fields) == (page, b"12345678")
    assert not records.is_plain(fields), "nobody has looked whether it is"


@pytest.mark.parametrize("spoil", [lambda packed: packed[:-9], lambda packed: b"x" + packed, lambda _: b"x"])
def test_what_cannot_be_unpacked_is_no_record(spoil: Callable[[bytes], bytes]) -> None:
    packed = records.pack(b'{"kind":"site","site":"https://a.example","found_at":1}')
    with pytest.raises(records.RecordError, match="packed"):
        records.decode({b"v": records.VERSION, b"r": spoil(packed)})


def test_a_few_bytes_do_not_become_a_great_many() -> None:
    bomb = records.pack(b" " * (records.LARGEST_RECORD + 1))
    assert len(bomb) < 200_000
    with pytest.raises(records.RecordError, match="above"):
        records.decode({b"v": records.VERSION, b"r": bomb})
