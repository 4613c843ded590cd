"""One agent against servers that do their worst: every page ends with its error, in time, and in little memory.

The worst of tests/farm one after the other, beside a site that behaves and a server that never answers a connection.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.crawling import Place, Run
from tests.farm import Farm
from tests.servers import RunningServer
from tests.small_site import Reply, SmallSite
from tests.told import told_pages

# What each ends with. Too slow or without end: within its limit of time, or of bytes.
ENDS = {
    "slow-head?seconds=90": ("failed", -4),
    "slow-body?seconds=90": ("failed", -5),
    "drip-head": ("failed", -4),
    "drip-body": ("failed", -5),
    "silent": ("failed", -4),
    "endless-chunk": ("failed", -5),
    "endless-body": ("failed", -11),
    "endless-headers": ("failed", -11),
    "many-fields": ("failed", -11),
    "long-header-line": ("failed", -11),
    "hundred-flood": ("failed", -11),
    "gzip-bomb": ("failed", -11),
    "gzip-layers": ("failed", -12),
    "bad-gzip": ("failed", -8),
    "bad-status": ("failed", -12),
    "no-status": ("failed", -12),
    "two-lengths": ("failed", -12),
    "bad-length": ("failed", -12),
    "reset": ("failed", -6),
    "reset-body": ("failed", -8),
    "short-body": ("failed", -8),
    "bad-chunk": ("failed", -8),
    "redirect-loop": ("redirected", 302),
    "redirect-private": ("redirected", 302),
    "redirect-file": ("failed", 302),
    "redirect-long": ("failed", -11),
    "gzip": ("stored", 200),
}
STAGE_SECONDS = 0.5
HTML = {"Content-Type": "text/html"}
# An agent with nothing to do has 90 MB; a page may have 10 MB, and be there twice.
MOST_BYTES = 160_000_000
MOST_SECONDS = 30.0


@contextmanager
def deaf_server() -> Iterator[str]:
    """A site whose connections are never answered: its queue of them is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.3.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield "http://{}:{}".format(*listener.getsockname())


def peak_memory(run: Run) -> int:
    """The most memory that the process had, in bytes, once it has ended."""
    most, deadline = 0, time.monotonic() + MOST_SECONDS
    while run.process.poll() is None:
        assert time.monotonic() < deadline, run.err[-3000:]
        for line in Path(f"/proc/{run.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                most = max(most, int(line.split()[1]) * 1024)
        time.sleep(0.05)
    return most


def test_the_worst_of_the_web(place: Place, valkey: RunningServer) -> None:
    with Farm(sites=2, pages=20, kinds=(), names=()) as farm, deaf_server() as deaf:
        bad, good = farm.site(0), farm.site(1)
        given: dict[str, Any] = {"HEAD_TIMEOUT_SECONDS": STAGE_SECONDS, "BODY_TIMEOUT_SECONDS": STAGE_SECONDS}
        run = place.start_crawl(
            # A page that loads shows that the bad ones are not the site's end: else it would rest after five of them.
            [f"{good}/", f"{deaf}/", f"{bad}/", *(f"{bad}/_/{name}" for name in ENDS)],
            REDIS_URL=valkey.url,
            MAX_TRIES=1,
            CONNECT_TIMEOUT_SECONDS=1,
            fresh=True,  # its memory is looked at
            **given,
        )
        memory = peak_memory(run)
        run.wait().succeeded()
        pages = told_pages(valkey)
        ends = {one.path.removeprefix("/_/"): (one.outcome, one.status) for one in pages if one.site == bad}
        assert {name: ends.get(name) for name in ENDS} == ENDS
        stored = {one.url for one in pages if one.site == good and one.outcome == "stored"}
        assert stored == farm.expected()[good]
        # Its one try (MAX_TRIES) was robots.txt's: the site as a whole is given up.
        (gone,) = (one for one in pages if one.site == deaf)
        assert (gone.path, gone.outcome, gone.status) == ("/", "failed", -3)
        assert "within 1 s (CONNECT_TIMEOUT_SECONDS)" in gone.error
        told = json.loads(place.run("site", "show", deaf, "--json", REDIS_URL=valkey.url).succeeded().out)
        assert told["state"] == "finished"
        assert memory < MOST_BYTES, f"{memory / 1e6:.0f} MB"


def test_redirects_without_end(place: Place) -> None:
    """Five are followed one behind the other; a page in between, or a link, begins the count anew."""
    routes = {f"/{number}": Reply(302, {"Location": f"/{number + 1}"}) for number in range(30)}
    routes["/"] = Reply(fields=HTML, body='<a href="/0">0</a><a href="/9">9</a><a href="/28">28</a>')
    routes["/13"] = Reply(fields=HTML, body='<meta http-equiv=refresh content="0; url=/20">')
    routes["/28"] = Reply(fields={"Content-Type": "text/plain", "Refresh": "1; url=/29"}, body="on")
    with SmallSite(routes) as site:
        place.crawl([site.root]).succeeded()
        asked = [0, 9, 1, 10, 2, 11, 3, 12, 4, 13, 5, 20, 21, 22, 23, 24, 25, 28, 29, 30]
        assert sorted(site.paths) == sorted(["/robots.txt", "/", *(f"/{number}" for number in asked)])
        rows = place.rows("select url, redirect, error from pages where outcome = 'redirected'")
        last = {url: error for url, _, error in rows if error}
        assert set(last) == {f"{site.site}/5", f"{site.site}/25"}
        assert all(
            "not followed: 5 redirects in a row (REDIRECT_MAX_TIMES)" in error for error in last.values()
        )
        assert {f"{site.site}/{number}" for number in (1, 6, 26, 30)} <= {to for _, to, _ in rows}
