"""Reads and validates seeds from a file, the command line or Redis. An invalid line becomes a BadSeed.

Redis values are URLs or scrapy-redis's JSON (`{"url": …}`), never pickles.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TextIO

from crawler.urls.scope import has_public_suffix
from crawler.urls.url import UrlError, host_of, resolve

_BARE_HOST = re.compile(r"[^\s/:@?#]+\.[^\s/:@?#.]+(:\d+)?(/\S*)?")
# Names of a table's seed column.
_COLUMNS = frozenset(
    {
        *("url", "urls", "uri", "link", "links", "seed", "seeds", "start_url", "page", "address"),
        *("site", "sites", "website", "homepage", "domain", "domains", "host", "hostname"),
    }
)
_TABLES = (".csv", ".tsv")
_DELIMITERS = "\t;,"
# A comment after a seed: white space and #, which no URL has.
_COMMENT = re.compile(r"(?<=\s)#.*")
_QUOTES = {'"': '"', "'": "'", "<": ">"}
# Bytes that are read to detect the encoding.
_TELLING = 4096
# Seeds that are checked before a crawl starts.
LOOKED_AT = 1000
LOOPBACK = re.compile(r"(localhost|.*\.localhost|127\.\d+\.\d+\.\d+|::1)")


class Seed(NamedTuple):
    """A page to start with."""

    site: str
    path: str  # as written


class BadSeed(NamedTuple):
    """An invalid seed; lines count from 1, 0 without lines."""

    line: int
    text: str
    reason: str


def read(source: str) -> Iterator[Seed | BadSeed]:
    """Seeds from `FILE`, `-` (standard input) or `URL,URL`. Raises OSError.

    A bare name that is not a file must have a public suffix.
    """
    if source == "-":
        yield from from_lines(sys.stdin)
    elif "://" not in source and Path(source).expanduser().exists():
        path = Path(source).expanduser()
        with _opened(path) as lines:
            yield from from_lines(lines, table=path.suffix.lower() in _TABLES)
    elif "://" not in source and (why := _is_no_host(source.split(",")[0].strip())):
        raise FileNotFoundError(f"{source!r} is neither a file nor a URL{why}")
    else:
        for text in source.split(","):
            if text.strip():
                yield parse(text, 0)


def _is_no_host(text: str) -> str:
    """Why this text is not a host, or ""."""
    if not _BARE_HOST.fullmatch(text):
        return "; expected one of them"
    host = re.split("[:/]", text)[0]
    if has_public_suffix(host) or LOOPBACK.fullmatch(host) or re.fullmatch(r"[\d.]+", host):
        return ""
    return f": {host.rpartition('.')[2]!r} is not a public suffix; expected https://{text} for a private host"


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """The file as UTF-8 or UTF-16 text, without byte order mark."""
    head = b""
    if not path.is_fifo():
        with path.open("rb") as file:
            head = file.read(_TELLING)
    encoding = "utf-8-sig"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    elif head[1::2].count(0) > len(head) / 4:
        encoding = "utf-16-le"
    elif head[::2].count(0) > len(head) / 4:
        encoding = "utf-16-be"
    with path.open(encoding=encoding, errors="replace") as lines:
        yield lines


def from_lines(lines: Iterable[str], *, table: bool = False) -> Iterator[Seed | BadSeed]:
    """One seed per line, or the seed column of a CSV table.

    Skips blank lines, comments (`# …`), quotes, brackets, and text after a tab.
    """
    numbered = _without_mark(lines)
    first = next((one for one in numbered if not _is_nothing(one[1])), None)
    if first is None:
        return
    line = first[1]
    delimiter = max(_DELIMITERS, key=line.count)
    names = [cell.strip().strip("\"'").lower() for cell in line.split(delimiter)]
    column = next((place for place, name in enumerate(names) if name in _COLUMNS), None)
    rest = numbered if column is not None else chain([first], numbered)
    if (table or column is not None) and delimiter in line:
        yield from _from_table(rest, delimiter, column)
        return
    for number, line in rest:
        if not _is_nothing(line):
            yield _of_line(line, number)


def _without_mark(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        yield number, line.removeprefix("\ufeff") if number == 1 else line


def _is_nothing(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _of_line(line: str, number: int) -> Seed | BadSeed:
    cell = line.strip().partition("\t")[0]
    text = _COMMENT.sub("", cell).strip()
    if text[:1] in _QUOTES and text.endswith(_QUOTES[text[0]]):
        text = text[1:-1]
    if "\ufffd" in text:
        return BadSeed(number, text[:200], "not UTF-8; expected a UTF-8 file")
    return parse(text, number)


def _from_table(
    numbered: Iterator[tuple[int, str]], delimiter: str, column: int | None
) -> Iterator[Seed | BadSeed]:
    """Without a header: the first column with a seed."""
    at = 0  # the reader's last line

    def lines() -> Iterator[str]:
        nonlocal at
        for number, line in numbered:
            if not _is_nothing(line):
                at = number
                yield line

    rows = csv.reader(lines(), delimiter=delimiter, skipinitialspace=True)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield BadSeed(at, "", f"not a row of a table: {error}")
            continue
        if column is None:
            column = next((place for place, cell in enumerate(row) if isinstance(parse(cell), Seed)), None)
        if column is None or column >= len(row):
            yield BadSeed(at, delimiter.join(row)[:200], "no URL in this row")
        else:
            yield _of_line(row[column], at)


class Look(NamedTuple):
    """The first seeds of a source, before any is queued."""

    good: int
    bad: list[BadSeed]
    leaves: str  # the first site on another machine, or empty
    whole: bool  # there are no further seeds


def look(source: str, most: int = LOOKED_AT) -> Look:
    """Read the first seeds of a file. Raises OSError."""
    found = list(islice(read(source), most + 1))
    good = [seed for seed in found[:most] if isinstance(seed, Seed)]
    bad = [seed for seed in found[:most] if isinstance(seed, BadSeed)]
    leaves = next((seed.site for seed in good if leaves_loopback(seed)), "")
    return Look(len(good), bad, leaves, len(found) <= most)


def why_not(source: str, user_agent: str) -> str:
    """Why a crawl cannot start with this source, or "". Raises OSError."""
    if "://" not in source and Path(source).is_fifo():  # reading would consume it
        return ""
    found = look(source)
    if found.leaves and not names_contact(user_agent):
        return no_contact(user_agent, found.leaves)
    if found.good or not found.whole:
        return ""
    if not found.bad:
        return f"no seeds: {source} has none; expected one URL per line"
    first = found.bad[0]
    where = f"line {first.line}: " if first.line else ""
    return (
        f"no seeds: expected URLs, and none of the {len(found.bad)} lines given is one; {where}{first.text!r} is no "
        f"seed: {first.reason}"
    )


def no_contact(user_agent: str, site: str) -> str:
    """The error for a user agent without contact."""
    return (
        f"USER_AGENT {user_agent!r} has no contact; expected a URL or e-mail address before crawling {site}, as "
        "-s USER_AGENT='mybot (+https://example.org/bot)'"
    )


def parse(text: str, line: int = 0) -> Seed | BadSeed:
    """One seed from its text; a bare host name means https."""
    text = text.strip()
    url = text if "://" in text or not _BARE_HOST.fullmatch(text) else f"https://{text}"
    if re.search(r"\s", url):
        return BadSeed(line, text[:200], "a URL has no spaces")
    try:
        return Seed(*resolve(url))
    except UrlError as error:
        return BadSeed(line, text[:200], str(error))


def from_inlet(value: bytes) -> Seed | BadSeed:
    """A seed from Redis."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return BadSeed(0, repr(value[:80])[:200], "not text; expected a URL or JSON with a url")
    if text.lstrip().startswith("{"):
        try:
            text = str(json.loads(text)["url"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return BadSeed(0, text[:200], 'expected a URL or JSON with a url, as {"url": "https://…"}')
    return parse(text)


def leaves_loopback(seed: Seed) -> bool:
    """Whether this seed is on another machine."""
    return not LOOPBACK.fullmatch(host_of(seed.site))


def names_contact(user_agent: str) -> bool:
    """Whether a user agent contains a URL or e-mail address."""
    return "://" in user_agent or "@" in user_agent
