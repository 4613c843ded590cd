"""Counts the URLs that a limit excludes, by reason and setting.

Each URL counts once. Above MOST_HASHES a count is an estimate by adaptive sampling, some 4 % off, shown with
"about". `unpacked` raises ValueError for bytes that `packed` did not write. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, NamedTuple, cast

import msgspec
from isal import isal_zlib

# Why a URL is excluded. URLs out of scope or forbidden by robots.txt do not count: no limit excludes them.
Reason = Literal[
    "pages", "depth", "links", "bytes", "markup", "size", "family", "copy", "length", "memory", "alias"
]


class Bound(NamedTuple):
    """The setting and the text of a reason."""

    setting: str  # the setting to change; empty: none
    words: str  # follows the number of URLs


BOUNDS: Final[dict[Reason, Bound]] = {
    "pages": Bound("MAX_PAGES_PER_SITE", "pages by MAX_PAGES_PER_SITE"),
    "depth": Bound("MAX_DEPTH", "pages by MAX_DEPTH"),
    "links": Bound("MAX_LINKS_PER_PAGE", "links by MAX_LINKS_PER_PAGE"),
    "bytes": Bound("MAX_HTML_BYTES", "pages read in part by MAX_HTML_BYTES"),
    "markup": Bound("", "pages read in part as their markup is too deep or wide"),
    "size": Bound("DOWNLOAD_MAXSIZE", "pages by DOWNLOAD_MAXSIZE"),
    "family": Bound("TRAP_PAGES", "pages as traps by TRAP_PAGES"),
    "copy": Bound("", "links of copies"),
    "length": Bound("URLLENGTH_LIMIT", "links by URLLENGTH_LIMIT"),
    "memory": Bound("MAX_PAGES_PER_SITE", "pages not remembered by MAX_PAGES_PER_SITE"),
    "alias": Bound("FIND_ALIASES", "pages as another site's by FIND_ALIASES"),
}
# Hashes kept per reason: 100 kB in memory, 4 kB packed.
MOST_HASHES: Final = 1_024
_BITS = 32
_ALL = 1 << _BITS
# Spreads CRCs evenly: those of similar URLs form patterns.
_SPREAD = 0x9E3779B1

_Halvings = Annotated[int, msgspec.Meta(ge=0, le=_BITS)]
# Reason, number of halvings, hashes. Empty reason: hashes no longer excluded.
Part = tuple[str, _Halvings, bytes]


class _Sample:
    """The hashes of one reason below its limit."""

    __slots__ = ("halvings", "hashes", "limit")

    def __init__(self) -> None:
        self.halvings = 0
        self.limit = _ALL
        self.hashes: set[int] = set()

    def add(self, number: int) -> None:
        """Keep the hash if it is below the limit."""
        if number < self.limit:
            self.hashes.add(number)
            while len(self.hashes) > MOST_HASHES:
                self.halve(self.halvings + 1)

    def halve(self, times: int) -> None:
        """Halve the limit until `times` halvings in all."""
        if times > self.halvings:
            self.halvings, self.limit = times, _ALL >> times
            self.hashes = {number for number in self.hashes if number < self.limit}

    @property
    def count(self) -> int:
        return len(self.hashes) << self.halvings


class LeftOut:
    """The excluded URLs of one site; a URL counts for its first reason."""

    __slots__ = ("_touched", "samples")

    def __init__(self) -> None:
        self.samples: dict[str, _Sample] = {}  # empty: none
        self._touched: set[int] = set()  # hashes changed since `tell`

    @property
    def counts(self) -> dict[str, int]:
        """URLs by reason, without zeros."""
        return {reason: sample.count for reason, sample in self.samples.items() if sample.hashes}

    def add(self, reason: Reason, urls: Iterable[str]) -> None:
        """Exclude these URLs, or paths of the site."""
        samples, sample = self.samples, self.samples.get(reason)
        for url in urls:
            if sample is None:
                sample = samples[reason] = _Sample()
            number = _hash(url)
            # Most are above the limit, or known, if there are many.
            if number >= sample.limit or number in sample.hashes:
                continue
            if len(samples) == 1 or not any(number in one.hashes for one in samples.values()):
                sample.add(number)
                self._touched.add(number)

    def take_out(self, url: str) -> None:
        """Include this URL again."""
        number = _hash(url)
        for sample in self.samples.values():
            if number in sample.hashes:
                sample.hashes.remove(number)
                self._touched.add(number)

    def changes(self) -> list[Part]:
        """Changes since `tell`; empty: none."""
        touched = self._touched
        if not touched:
            return []
        parts = [
            (reason, sample.halvings, _packed(sample.hashes & touched))
            for reason, sample in self.samples.items()
        ]
        return [("", 0, _packed(touched)), *parts]

    def everything(self) -> list[Part]:
        """The whole content."""
        return [(reason, sample.halvings, _packed(sample.hashes)) for reason, sample in self.samples.items()]

    def tell(self) -> None:
        """Start a new set of `changes`."""
        self._touched.clear()

    def replay(self, parts: Iterable[Part]) -> None:
        """Apply `changes` or `everything`, in their order."""
        for reason, halvings, packed in parts:
            numbers = _unpacked(packed)
            if not reason:
                for sample in self.samples.values():
                    sample.hashes.difference_update(numbers)
                continue
            sample = self.samples.setdefault(reason, _Sample())
            sample.halve(halvings)
            for number in numbers:
                sample.add(number)

    def packed(self, more: Mapping[Reason, Iterable[str]]) -> bytes:
        """As bytes, with URLs of further reasons; empty: none."""
        copy = LeftOut()
        copy.replay(self.everything())
        for reason, urls in more.items():
            copy.add(reason, urls)
        return _encoder.encode(copy.everything()) if copy.counts else b""


def unpacked(data: bytes) -> list[Part]:
    """The inverse of `packed`, for `replay`."""
    try:
        parts = _decoder.decode(data) if data else []
    except msgspec.MsgspecError as error:
        raise ValueError(f"{len(data)} bytes of left-out URLs: {error}") from None
    for _, _, hashes in parts:
        _unpacked(hashes)
    return parts


# --- As text ---


def in_words(counts: Mapping[str, int]) -> str:
    """`31,887 pages by MAX_PAGES_PER_SITE, 120 pages by MAX_DEPTH`; empty: none."""
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{number(reason, many)} {_bound(reason).words}" for reason, many in ordered if many)


def number(reason: str, many: int) -> str:
    """The count, with "about" if it is an estimate."""
    # Of known URLs the count is exact.
    return f"about {many:,}" if many > MOST_HASHES and reason != "pages" else f"{many:,}"


def settings_of(counts: Mapping[str, int]) -> list[str]:
    """The settings to change, largest count first."""
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    names = (_bound(reason).setting for reason, many in ordered if many)
    return list(dict.fromkeys(filter(None, names)))


def to_text(counts: Mapping[str, int]) -> str:
    """`depth120,links31`, the queue's format; empty: none."""
    return ",".join(f"{reason}{many}" for reason, many in sorted(counts.items()) if many)


def from_text(text: str) -> dict[str, int]:
    """The inverse of `to_text`; ignores invalid parts."""
    found = {}
    for word in text.split(","):
        reason = word.rstrip("0123456789")
        if reason and reason != word:
            found[reason] = int(word[len(reason) :])
    return found


def _bound(reason: str) -> Bound:
    return BOUNDS.get(cast("Reason", reason), Bound("", f"URLs by {reason}"))


def _hash(url: str) -> int:
    text = url.encode() if url.isascii() else url.encode("utf-8", "surrogatepass")
    number: int = isal_zlib.crc32(text) * _SPREAD % _ALL
    return number


def _packed(numbers: Iterable[int]) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in sorted(numbers))


def _unpacked(packed: bytes) -> list[int]:
    if len(packed) % 4:
        raise ValueError(f"{len(packed)} bytes of hashes; expected a multiple of 4")
    return [int.from_bytes(packed[start : start + 4], "little") for start in range(0, len(packed), 4)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Part])
