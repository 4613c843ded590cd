"""Where a crawl begins: seeds from a file, the command line or Redis's inlet, normalised and checked.

Reading never fails as a whole: a line that is no seed comes out as BadSeed with its number and reason, and the
good ones go on. Values in the inlet may be plain URLs or scrapy-redis's JSON (`{"url": …}`); never pickles.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from crawler.sites.scope import has_public_suffix
from crawler.sites.url import UrlError, host_of, resolve

_BARE_HOST = re.compile(r"[^\s/:@?#]+\.[^\s/:@?#.]+(:\d+)?(/\S*)?")
LOOPBACK = re.compile(r"(localhost|.*\.localhost|127\.\d+\.\d+\.\d+|::1)")


class Seed(NamedTuple):
    """A page to begin with."""

    site: str
    path: str  # as written


class BadSeed(NamedTuple):
    """What stood where a seed was expected; line counts from 1, 0 where there are no lines."""

    line: int
    text: str
    reason: str


def read(source: str) -> Iterator[Seed | BadSeed]:
    """Seeds from `FILE`, `-` (standard input) or `URL,URL`; OSError where the file cannot be read.

    A name without a scheme that is no file is taken for a host only if it ends as hosts of the web do.
    """
    if source == "-":
        yield from from_lines(sys.stdin)
    elif "://" not in source and Path(source).expanduser().exists():
        with Path(source).expanduser().open(encoding="utf-8-sig", errors="replace") as lines:
            yield from from_lines(lines)
    elif "://" not in source and (why := _is_no_host(source.split(",")[0].strip())):
        raise FileNotFoundError(f"{source!r} is neither a file nor a URL{why}")
    else:
        for text in source.split(","):
            if text.strip():
                yield parse(text, 0)


def _is_no_host(text: str) -> str:
    """Why this text cannot be meant as a host, to be put behind what it is not; empty: it can."""
    if not _BARE_HOST.fullmatch(text):
        return "; wanted one of them"
    host = re.split("[:/]", text)[0]
    if has_public_suffix(host) or LOOPBACK.fullmatch(host) or re.fullmatch(r"[\d.]+", host):
        return ""
    return f": no host of the web ends in {host.rpartition('.')[2]!r}; wanted https://{text} for one of another net"


def from_lines(lines: Iterable[str]) -> Iterator[Seed | BadSeed]:
    """One seed a line; blank lines and lines that start with # are skipped, as is a byte order mark before them."""
    for number, line in enumerate(lines, 1):
        text = (line.removeprefix("\ufeff") if number == 1 else line).strip()
        if text and not text.startswith("#"):
            yield parse(text, number)


def parse(text: str, line: int = 0) -> Seed | BadSeed:
    """One seed from its text; a bare host name is taken as https."""
    text = text.strip()
    url = text if "://" in text or not _BARE_HOST.fullmatch(text) else f"https://{text}"
    if re.search(r"\s", url):
        return BadSeed(line, text[:200], "a URL has no spaces")
    try:
        return Seed(*resolve(url))
    except UrlError as error:
        return BadSeed(line, text[:200], str(error))


def from_inlet(value: bytes) -> Seed | BadSeed:
    """A seed from a value of the inlet."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return BadSeed(0, repr(value[:80])[:200], "not text; wanted a URL or JSON with a url")
    if text.lstrip().startswith("{"):
        try:
            text = str(json.loads(text)["url"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return BadSeed(0, text[:200], 'wanted a URL or JSON with a url, as {"url": "https://…"}')
    return parse(text)


def leaves_loopback(seed: Seed) -> bool:
    """Whether fetching this seed talks to another machine."""
    return not LOOPBACK.fullmatch(host_of(seed.site))


def names_contact(user_agent: str) -> bool:
    """Whether a site's owner can find the operator through this user agent: a URL or a mail address in it."""
    return "://" in user_agent or "@" in user_agent
