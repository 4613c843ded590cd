"""A small web whose pages change at rates that are known, for benchmarks/freshness.py. It is the judge.

All is drawn from a seed: how many pages each site has (few have most), how often each page changes (some all the time,
most hardly ever), how large it is, which others it has links to (a few of each site have most). The web stands still
until it is told to begin; then pages change at the drawn times. It writes down which version of which page it gave to
whom. Everybody gets validators and may ask by them, but those whose name ends in PLAIN.

`ChangingWeb` is a process of its own, and ends with its parent. `standing` says how fresh a copy was, from what was
given and from the drawn changes alone.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.farm.plan import address  # noqa: E402
from tests.farm.server import listen  # noqa: E402

PLAIN = "-plain"
ROBOTS = b"User-agent: *\nDisallow: /private/\n"
# Median and spread (of the logarithm) of pages' sizes.
MEDIAN_BYTES, SIZE_SPREAD = 8_000, 1.0
LARGEST_BYTES = 200_000
# Links of a page, to pages of its site.
LINKS = 6
WORDS = ("tide", "harbour", "lantern", "gravel", "orchard", "copper", "window", "thistle", "ferry", "marble")


@dataclass(frozen=True)
class Plan:
    """What is drawn; the same for equal plans. Times in seconds from the beginning."""

    sites: int
    pages: int  # of all sites
    sweep: float  # the time in which a crawler's budget asks each page once
    changes: float  # of a page in a sweep, on average
    seconds: float  # pages change for so long
    seed: int = 0

    @cached_property
    def site(self) -> np.ndarray:
        """Of each page; a site's pages are neighbours, and the first of them leads to the others."""
        share = 1 / np.arange(1, self.sites + 1)
        count = np.maximum((self.pages * share / share.sum()).astype(int), 2)
        count[0] += self.pages - count.sum()
        return np.repeat(np.arange(self.sites), count)

    @cached_property
    def rate(self) -> np.ndarray:
        """Changes a second of each page: some sites' pages change more often than others', some pages far more."""
        chance = np.random.default_rng(self.seed)
        site = chance.gamma(2.0, 0.5, self.sites)[self.site]
        rate: np.ndarray = site * chance.gamma(0.5, 2.0, len(self.site))
        return rate * (self.changes / self.sweep / rate.mean())

    @cached_property
    def changed(self) -> list[list[float]]:
        """When each page changes, in order."""
        chance = np.random.default_rng(self.seed + 1)
        many = chance.poisson(self.rate * self.seconds)
        return [sorted(chance.uniform(0, self.seconds, n).tolist()) for n in many]

    @cached_property
    def size(self) -> np.ndarray:
        """Bytes of each page, about."""
        drawn = np.random.default_rng(self.seed + 2).lognormal(0.0, SIZE_SPREAD, len(self.site))
        return np.minimum(MEDIAN_BYTES * drawn, LARGEST_BYTES).astype(int)

    @cached_property
    def first(self) -> np.ndarray:
        """Of each site, its first page."""
        return np.searchsorted(self.site, np.arange(self.sites))

    def path(self, page: int) -> str:
        """Its own, without the site."""
        place = page - int(self.first[self.site[page]])
        return f"/{place}.html" if place else "/"

    def version(self, page: int, since: float) -> int:
        """How often it has changed by then."""
        return bisect_right(self.changed[page], since)

    def links(self, page: int) -> list[int]:
        """Pages that it leads to: from a site's first to all others, from those to the well-known among them."""
        first = int(self.first[self.site[page]])
        others = range(first + 1, int(np.searchsorted(self.site, self.site[page], "right")))
        if page == first:
            return list(others)
        known = [1 / (place + 1) for place in range(len(others))]
        return random.Random(page).choices(others, known, k=LINKS)

    def body(self, page: int, version: int) -> bytes:
        """What it says: links on the first page of a site, and text that each version has of its own."""
        links = "".join(f"<a href={self.path(other)}>page {other}</a>\n" for other in self.links(page))
        words = random.Random(f"{page} {version}").choices(WORDS, k=int(self.size[page]) // 7)
        text = f"<!doctype html><title>Page {page}</title>\n<h1>As it is for the {version}. time</h1>\n{links}<p>"
        return (text + " ".join(words)).encode()


class Given(NamedTuple):
    """One answer: when (seconds since 1970), to whom, which version of which page, and how."""

    at: float
    who: str
    page: int
    version: int
    status: int
    size: int  # bytes of the body, as they went out


# --- how fresh a copy was -----------------------------------------------------------------------------------


class Standing(NamedTuple):
    """Means over all pages and a stretch of time."""

    fresh: float  # share of pages whose copy was the page
    weighted: float  # the same of their importance
    age: float  # seconds since the first change that the copy missed; 0 where it missed none
    stale: float  # seconds since the last visit


def standing(
    plan: Plan, given: Iterable[Given], weight: np.ndarray, began: float, since: float, until: float
) -> Standing:
    """Of a copy that took in these answers; exact. Times are seconds since 1970, `began` is when changes did."""
    visits: list[list[Given]] = [[] for _ in plan.site]
    for one in given:
        visits[one.page].append(one)
    sums = np.zeros(4)
    weight = weight / weight.mean()
    for page, own in enumerate(visits):
        own.sort()
        ends = [one.at for one in own[1:]] + [until]
        for visit, end in zip(own, ends, strict=True):
            later = plan.changed[page][visit.version : visit.version + 1]
            missed = began + later[0] if later else until
            fresh, age, stale = _between(visit.at, missed, max(visit.at, since), min(end, until))
            sums += (fresh, fresh * weight[page], age, stale)
    return Standing(*(sums / (len(plan.site) * (until - since))).tolist())


def _between(visited: float, missed: float, start: float, end: float) -> tuple[float, float, float]:
    """Seconds fresh, and integrals of age and staleness, from start to end, in which nobody asked."""
    if end <= start:
        return 0.0, 0.0, 0.0
    from_then = max(start, missed)
    age = ((end - missed) ** 2 - (from_then - missed) ** 2) / 2 if end > from_then else 0.0
    stale = ((end - visited) ** 2 - (start - visited) ** 2) / 2
    return max(min(end, missed) - start, 0.0), age, stale


# --- the web ------------------------------------------------------------------------------------------------


class ChangingWeb:
    """The web as a process; a context manager."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __enter__(self) -> Self:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, self.plan), daemon=True
        )
        self._process.start()
        self.port: int = self._pipe.recv()
        return self

    def __exit__(self, *_error: object) -> None:
        with suppress(OSError):
            self._pipe.send("end")
        self._process.join(10)
        self._process.kill()

    def site(self, number: int) -> str:
        """Its address."""
        return f"http://{address(number)}:{self.port}"

    def url(self, page: int) -> str:
        """Of a page."""
        return self.site(int(self.plan.site[page])) + self.plan.path(page)

    @property
    def seeds(self) -> list[str]:
        """First pages of all sites."""
        return [f"{self.site(number)}/" for number in range(self.plan.sites)]

    def begin(self) -> float:
        """Let pages change from now on; the time, seconds since 1970."""
        self._pipe.send("begin")
        return float(self._pipe.recv())

    def given(self) -> list[Given]:
        """Every page that was answered so far, in order; robots.txt is none."""
        self._pipe.send("given")
        return [Given(*row) for row in self._pipe.recv()]


def _serve(pipe: Any, plan: Plan) -> None:
    asyncio.run(_Served(plan).run(pipe))


class _Served:
    """What the process holds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.began = float("inf")
        self.given: list[Given] = []
        self.pages = {
            (address(int(site)), plan.path(page).encode()): page for page, site in enumerate(plan.site)
        }

    async def run(self, pipe: Any) -> None:
        """Until we are told to end, or our parent is gone."""
        loop = asyncio.get_running_loop()
        sockets = listen([address(site) for site in range(self.plan.sites)], 0)
        servers = [await loop.create_server(lambda: _Line(self), sock=sock) for sock in sockets]
        pipe.send(sockets[0].getsockname()[1])
        with suppress(EOFError):
            while (word := await loop.run_in_executor(None, pipe.recv)) != "end":
                if word == "begin":
                    self.began = time.time()
                pipe.send(self.began if word == "begin" else [tuple(one) for one in self.given])
        for server in servers:
            server.close()

    def answer(self, place: str, path: bytes, fields: dict[bytes, bytes]) -> bytes:
        """One request's."""
        if path == b"/robots.txt":
            return _answer("200 OK", b"text/plain", ROBOTS)
        page = self.pages.get((place, path))
        if page is None:
            return _answer("404 Not Found", b"text/plain", b"")
        now = time.time()
        version = self.plan.version(page, now - self.began)
        who = fields.get(b"user-agent", b"").decode()
        tag = b"" if PLAIN in who else b'"%d-%d"' % (page, version)
        if tag and fields.get(b"if-none-match") == tag:
            self.given.append(Given(now, who, page, version, 304, 0))
            return _answer("304 Not Modified", b"", b"", tag)
        body = self.plan.body(page, version)
        self.given.append(Given(now, who, page, version, 200, len(body)))
        return _answer("200 OK", b"text/html; charset=utf-8", body, tag)


class _Line(asyncio.Protocol):
    """One connection."""

    def __init__(self, served: _Served) -> None:
        self._served = served
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        """The address that was connected to is the site."""
        self._transport = transport
        self._place = transport.get_extra_info("sockname")[0]

    def data_received(self, data: bytes) -> None:
        """Answer every whole request; none has a body."""
        *heads, self._rest = (self._rest + data).split(b"\r\n\r\n")
        for head in heads:
            first, *lines = head.split(b"\r\n")
            fields = dict(line.split(b": ", 1) for line in lines if b": " in line)
            path = first.split(b" ")[1]
            named = {name.lower(): value for name, value in fields.items()}
            self._transport.write(self._served.answer(self._place, path, named))


def _answer(status: str, kind: bytes, body: bytes, tag: bytes = b"") -> bytes:
    lines = [b"HTTP/1.1 " + status.encode(), b"Content-Length: %d" % len(body)]
    lines += [b"Content-Type: " + kind] if kind else []
    lines += [b"ETag: " + tag] if tag else []
    return b"\r\n".join([*lines, b"", b""]) + body
