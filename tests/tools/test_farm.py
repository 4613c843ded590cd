"""The farm tells the truth about itself: a naive crawl finds what it declares, and its log has every request.

The crawler here is deliberately another program than ours: http.client, html.parser and robotparser, one
request at a time. Behaviours are asked through bare sockets, so that no client smooths what they send.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from urllib.robotparser import RobotFileParser

import pytest
from w3lib.url import canonicalize_url

from tests.farm import FORBIDDEN, KINDS, Farm, Plan, Web, behaviours, hostile, truth
from tests.farm.farm import ROOT
from tests.farm.plan import HOSTILITIES, add_arguments, address, from_options, to_arguments
from tests.farm.server import seeds

AGENT = "naive/1"
LONGEST = 2_083


# A naive crawler --------------------------------------------------------------------------------------


class Anchors(HTMLParser):
    """Links of a page that may be followed, made absolute."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.base = url
        self.hrefs: list[str] = []
        self.closed = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        had = {name: value or "" for name, value in attrs}
        if tag == "base":
            self.base = urljoin(self.base, had["href"])
        elif tag == "meta" and had.get("name") == "robots":
            self.closed = "nofollow" in had["content"]
        elif tag == "link" and "canonical" in had["rel"].lower().split():
            self.hrefs += [had["href"]] if re.fullmatch("(http:|[./])[^ ]*", had["href"]) else []
        elif tag == "a" and "nofollow" not in had.get("rel", "").lower().split():
            self.hrefs.append(had["href"])

    def links(self) -> list[str]:
        absolute = (urljoin(self.base, href) for href in self.hrefs)
        return [] if self.closed else [canonicalize_url(url) for url in absolute if url.startswith("http")]


class Naive:
    """Crawls the given sites one page after another; remembers everything that it asked."""

    def __init__(self, start: list[str], origins: set[str]) -> None:
        self.origins = origins
        self.asked: list[tuple[str, int]] = []
        self.found: dict[str, tuple[int, str]] = {}  # URL: depth, SHA-256 of the body
        self._rules: dict[str, RobotFileParser] = {}
        self._seen = set(start)
        self._queue = deque((url, 0) for url in start)

    def run(self) -> None:
        while self._queue:
            url, depth = self._queue.popleft()
            if self._rules_of(url).can_fetch(AGENT, url):
                self._take(url, depth)

    def _take(self, url: str, depth: int) -> None:
        status, fields, body = self._get(url)
        if status == 503:
            status, fields, body = self._get(url)
        if status == 200:
            self.found[url] = (depth, hashlib.sha256(body).hexdigest())
            self._add(self._links(url, fields, body), depth + 1)
        elif "location" in fields:
            # Only first in line keeps a redirect's target at the redirect's own depth.
            self._add([canonicalize_url(urljoin(url, fields["location"]))], depth, first=True)

    def _links(self, url: str, fields: dict[str, str], body: bytes) -> list[str]:
        if 'rel="canonical"' in fields.get("link", ""):
            return [canonicalize_url(urljoin(url, fields["link"].rpartition("<")[2].partition(">")[0]))]
        if not fields["content-type"].startswith("text/html") or "x-robots-tag" in fields:
            return []
        anchors = Anchors(url)
        anchors.feed(body.decode("latin-1"))
        return anchors.links()

    def _add(self, urls: list[str], depth: int, *, first: bool = False) -> None:
        for url in urls:
            if url in self._seen or len(url) > LONGEST or origin(url) not in self.origins:
                continue
            self._seen.add(url)
            # The root of another site is a new start, not a step deeper.
            place = 0 if urlsplit(url).path == "/" and not urlsplit(url).query else depth
            (self._queue.appendleft if first else self._queue.append)((url, place))

    def _rules_of(self, url: str) -> RobotFileParser:
        if origin(url) not in self._rules:
            parser = RobotFileParser()
            parser.parse(self._get(origin(url) + "/robots.txt")[2].decode().splitlines())
            self._rules[origin(url)] = parser
        return self._rules[origin(url)]

    def _get(self, url: str) -> tuple[int, dict[str, str], bytes]:
        status, fields, body = get(url)
        self.asked.append((url, status))
        return status, fields, body


def get(url: str, method: str = "GET", **fields: str) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own; names in .localhost go to 127.0.0.1."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    connection = http.client.HTTPConnection(
        "127.0.0.1" if host.endswith(".localhost") else host, parts.port, timeout=10
    )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method, target, headers={"Host": parts.netloc, "User-Agent": AGENT, **fields})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def origin(url: str) -> str:
    return truth.split(url)[0]


def by_origin(urls: Iterator[str] | dict[str, tuple[int, str]]) -> dict[str, set[str]]:
    grouped: dict[str, set[str]] = {}
    for url in urls:
        grouped.setdefault(origin(url), set()).add(url)
    return grouped


# Truth ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pages", [1, 2, (3, 30)])
def test_naive_crawl_finds_what_is_declared(pages: int | tuple[int, int]) -> None:
    with Farm(sites=3, pages=pages) as farm:
        crawl = Naive(farm.seeds, {farm.site(index) for index in range(3)})
        crawl.run()
        assert by_origin(crawl.found) == farm.expected()
        for url, (depth, sha256) in crawl.found.items():
            assert (farm.declared[url].depth, farm.declared[url].sha256) == (depth, sha256), url
        assert [(hit.url, hit.status) for hit in farm.hits()] == crawl.asked
        assert farm.forbidden_hits() == []


def test_naive_crawl_of_named_sites() -> None:
    with Farm(sites=1, pages=5) as farm:
        origins = set(farm.web.index)
        crawl = Naive([farm.site("www.one.localhost") + "/"], origins)
        crawl.run()
        assert set(by_origin(crawl.found)) == origins
        assert by_origin(crawl.found) == farm.expected("any", seeds=[farm.site("www.one.localhost") + "/"])


def test_plain_farm_has_ordinary_pages_only() -> None:
    with Farm(sites=2, pages=7, kinds=(), names=()) as farm:
        crawl = Naive(farm.seeds, set(farm.web.index))
        crawl.run()
        assert by_origin(crawl.found) == farm.expected()
        assert {len(urls) for urls in farm.expected().values()} == {7}
        assert {hit.status for hit in farm.hits()} == {200}


@pytest.mark.parametrize("pages", [(1, 1), (2, 2), (4, 4), (300, 300)])
@pytest.mark.parametrize("links", [2, 12, 60])
def test_every_page_is_reachable_and_canonical(pages: tuple[int, int], links: int) -> None:
    web = Web(Plan(sites=2, pages=pages, links=links), 8000)
    for url, declared in truth.declared(web).items():
        reached = declared.depth is not None
        assert reached == (declared.kind not in (*FORBIDDEN, "robots")), url
        assert declared.kind == "alias" or canonicalize_url(url) == url


def test_equal_plans_give_equal_bytes() -> None:
    first, second = (truth.declared(Web(Plan(sites=2), 8000)) for _ in range(2))
    assert {url: d.sha256 for url, d in first.items()} == {url: d.sha256 for url, d in second.items()}


def test_only_declared_duplicates_share_bytes() -> None:
    declared = truth.declared(Web(Plan(sites=3), 8000)).values()
    single = [d.sha256 for d in declared if d.kind in ("page", "binary")]
    doubles = [d.sha256 for d in declared if d.kind == "duplicate"]
    assert len(set(single)) == len(single)
    assert set(doubles) < set(single)


def test_page_size_links_and_page_count_follow_the_plan() -> None:
    web = Web(Plan(sites=20, pages=(3, 9), links=10, size=5_000, kinds=()), 8000)
    counts = {web.site(index).pages for index in range(20)}
    assert min(counts) >= 3
    assert max(counts) <= 9
    assert len(counts) > 3
    page = web.site(0).resource("/")
    assert page is not None
    assert 4_900 <= len(page.body) <= 5_100
    assert len(page.links) == 10


def test_expected_by_depth_pages_and_scope() -> None:
    web = Web(Plan(sites=4, pages=(40, 40)), 8000)
    start = seeds(web)
    declared = truth.declared(web)
    shallow = truth.expected(web, start, max_depth=1)
    assert all((declared[url].depth or 0) <= 1 for urls in shallow.values() for url in urls)
    assert {len(urls) for urls in truth.expected(web, start, max_pages=6).values()} == {6}
    one = [start[0]]
    assert set(truth.expected(web, one)) == {web.origin(0)}
    assert set(truth.expected(web, one, "any")) == {web.origin(index) for index in range(4)}
    named = [web.origin(4)]
    assert set(truth.expected(web, named, "domain")) == {web.origin(4), web.origin(5)}
    assert set(truth.expected(web, named, {web.origin(4), web.origin(6)})) == {web.origin(4), web.origin(6)}
    with pytest.raises(ValueError, match="scope: 'all' came"):
        truth.expected(web, named, "all")


def test_sites_down_are_not_expected() -> None:
    web = Web(Plan(sites=3, down=(1,)), 8000)
    assert set(truth.expected(web, seeds(web))) == {web.origin(0), web.origin(2)}


# The server -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    plan = Farm(sites=4, pages=3, slow_ms={2: 300}, crawl_delay=0.5, crawl_delays={1: 2}, down=(3,), links=4)
    with plan as running:
        yield running


def test_first_answer_of_a_busy_page_is_503(farm: Farm) -> None:
    url = farm.site(1) + "/busy.html"
    status, fields, _ = get(url)
    assert (status, fields["retry-after"]) == (503, "1")
    assert get(url)[0] == 200
    assert [hit.status for hit in farm.hits() if hit.url == url] == [503, 200]


def test_conditional_request_and_head(farm: Farm) -> None:
    status, fields, body = get(farm.seeds[0])
    assert status == 200
    assert get(farm.seeds[0], **{"If-None-Match": fields["etag"]})[::2] == (304, b"")
    assert get(farm.seeds[0], **{"If-None-Match": '"other"'})[::2] == (200, body)
    status, head, nothing = get(farm.seeds[0], "HEAD")
    assert (status, head["content-length"], nothing) == (200, str(len(body)), b"")
    assert get(farm.seeds[0], "POST")[0] == 405
    assert get(farm.site(0) + "/no/such/page")[0] == 404


def test_requests_of_one_connection_share_its_number(farm: Farm) -> None:
    with connect(farm) as sock:
        for path in (b"/", b"/d1/p1.html"):
            # Both at once: answered in order, on a connection that stays open.
            sock.sendall(request(farm, path.decode(), agent='pipe "é\t1'))
        head, _ = read_answer(sock)
        other, _ = read_answer(sock)
    assert head.startswith(b"HTTP/1.1 200")
    assert other.startswith(b"HTTP/1.1 200")
    hits = [hit for hit in farm.hits() if hit.user_agent == 'pipe "é\t1']
    assert [hit.path for hit in hits] == ["/", "/d1/p1.html"]
    assert len({hit.connection_id for hit in hits}) == 1
    assert hits[0].host == urlsplit(farm.site(0)).netloc
    assert abs(hits[0].time - time.time()) < 60
    assert hits[0].monotonic <= hits[1].monotonic <= time.monotonic()


def test_nonsense_is_answered_400(farm: Farm) -> None:
    with connect(farm) as sock:
        sock.sendall(b"what is this\r\n\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 400")


def test_crawl_delays_slow_site_and_site_that_is_down(farm: Farm) -> None:
    assert b"Crawl-delay: 0.5" in get(farm.site(0) + "/robots.txt")[2]
    assert b"Crawl-delay: 2\n" in get(farm.site(1) + "/robots.txt")[2]
    before = time.monotonic()
    assert get(farm.seeds[2])[0] == 200
    assert time.monotonic() - before >= 0.3
    with pytest.raises(ConnectionRefusedError):
        get(farm.seeds[3])


def test_listens_on_loopback_addresses_only(farm: Farm) -> None:
    listening = set()
    inodes = {file.stat().st_ino for file in Path(f"/proc/{farm.pid}/fd").iterdir()}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and int(words[9]) in inodes:
            listening.add(socket.inet_ntoa(struct.pack("<I", int(words[1].partition(":")[0], 16))))
    assert listening == {address(0), address(1), address(2), "127.0.0.1"}


def test_many_sites_have_addresses_of_their_own() -> None:
    assert len({address(index) for index in range(2_000)}) == 2_000
    with Farm(sites=300, pages=1) as farm:
        assert get(farm.seeds[299])[0] == 200
        assert farm.seeds[299].startswith("http://127.0.2.50:")


# Its life ---------------------------------------------------------------------------------------------


def test_stop_leaves_nothing() -> None:
    farm = Farm(sites=1, pages=1).start()
    pid, seed, folder = farm.pid, farm.seeds[0], farm._folder
    get(seed)
    with connect(farm):  # An open connection holds nothing up.
        farm.stop()
    assert not alive(pid)
    assert not folder.exists()
    assert len(farm.hits()) == 1
    with pytest.raises(ConnectionRefusedError):
        get(seed)
    farm.stop()
    with Farm(sites=1, pages=1, port=farm.port) as again:
        assert again.seeds == [seed]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_ends_cleanly_on_signals(end: signal.Signals, tmp_path: Path) -> None:
    process = run_farm("--sites=1", f"--ready={tmp_path / 'ready'}")
    try:
        wait_for((tmp_path / "ready").exists)
        assert json.loads((tmp_path / "ready").read_text())["seeds"][0].startswith("http://127.0.1.1:")
        process.send_signal(end)
        assert process.wait(60) == 0
    finally:
        process.kill()
        assert process.communicate() == (b"", b"")


def test_ends_with_its_parent(tmp_path: Path) -> None:
    code = "import time; from tests.farm import Farm; print(Farm(sites=1).start().pid, flush=True); time.sleep(60)"
    # The folder of a killed parent stays behind: let it be in ours.
    place = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=place, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    try:
        pid = int(parent.stdout.readline())
        assert alive(pid)
    finally:
        parent.kill()
        parent.communicate()
    wait_for(lambda: not alive(pid))


def test_command_line_says_the_same_as_the_plan() -> None:
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    plain = Plan(sites=3, pages=(1, 3), kinds=(), names=(), delay_ms=1.5)
    odd = Plan(kinds=("busy", "base"), slow_ms={1: 20.0, 11: 3.0}, crawl_delays={2: 1.5}, down=(4, 5))
    hostile = Plan(hostile={2: "calendar", 7: "gzip-bomb"})
    for plan in (Plan(), plain, odd, hostile):
        assert from_options(parser.parse_args(to_arguments(plan))) == plan
    assert from_options(parser.parse_args([])) == Plan()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("--sites=9999", "sites: 9999 came"),
        ("--kinds=odd", "kinds"),
        ("--down=10", "down"),
        ("--hostile=1=odd", "hostile"),
    ],
)
def test_impossible_plans_are_refused(wrong: str, said: str) -> None:
    process = run_farm(wrong)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said in stderr.decode()


def test_a_taken_port_is_told() -> None:
    with Farm(sites=1) as first, pytest.raises(RuntimeError, match="Address already in use"):
        Farm(sites=1, port=first.port).start()


# Behaviours -------------------------------------------------------------------------------------------

Check = Callable[[Farm], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__.removeprefix("check_").replace("_", "-")] = function
    return function


@pytest.mark.parametrize("name", sorted(behaviours.REGISTRY))
def test_behaviour(name: str, farm: Farm) -> None:
    CHECKS[name](farm)
    paths = [(hit.path.partition("?")[0], hit.status) for hit in farm.hits()]
    assert (f"/_/{name}", behaviours.REGISTRY[name].status) in paths


def test_behaviour_with_a_parameter_that_is_no_number(farm: Farm) -> None:
    assert ask(farm, "slow-head?seconds=soon").startswith(b"HTTP/1.1 400")
    assert get(farm.site(0) + "/_/no-such-thing")[0] == 404


@check
def check_slow_head(farm: Farm) -> None:
    with asked(farm, "slow-head?seconds=0.4") as sock:
        assert quiet(sock, 0.2)
        assert read_all(sock).endswith(behaviours.TEXT)


@check
def check_slow_body(farm: Farm) -> None:
    with asked(farm, "slow-body?seconds=0.4") as sock:
        assert sock.recv(65_536).endswith(b"\r\n\r\n")
        assert quiet(sock, 0.2)
        assert read_all(sock) == behaviours.TEXT


@check
def check_drip_head(farm: Farm) -> None:
    answer = ask(farm, "drip-head?seconds=0.01&bytes=5")
    assert b"X-Drip: xxxxx\r\n" in answer
    assert answer.endswith(behaviours.TEXT)


@check
def check_drip_body(farm: Farm) -> None:
    with asked(farm, "drip-body?seconds=0.05&bytes=5") as sock:
        parts = [sock.recv(65_536) for _ in range(4)]
    assert [len(part) for part in parts[1:]] == [1, 1, 1]


@check
def check_silent(farm: Farm) -> None:
    with asked(farm, "silent") as sock:
        assert quiet(sock, 0.3)


@check
def check_reset(farm: Farm) -> None:
    with asked(farm, "reset") as sock, pytest.raises(ConnectionResetError):
        sock.recv(1)


@check
def check_reset_body(farm: Farm) -> None:
    with asked(farm, "reset-body") as sock:
        assert b"Content-Length: 1000" in sock.recv(65_536)
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


@check
def check_short_body(farm: Farm) -> None:
    head, body = ask(farm, "short-body").split(b"\r\n\r\n")
    assert b"Content-Length: 1000" in head
    assert len(body) == 100


@check
def check_endless_body(farm: Farm) -> None:
    with asked(farm, "endless-body") as sock:
        assert len(read_some(sock, 20 << 20)) >= 20 << 20


@check
def check_endless_headers(farm: Farm) -> None:
    with asked(farm, "endless-headers") as sock:
        assert b"\r\n\r\n" not in read_some(sock, 5 << 20)


@check
def check_many_fields(farm: Farm) -> None:
    assert ask(farm, "many-fields?count=3000").count(b"X-Field-") == 3000


@check
def check_long_header_line(farm: Farm) -> None:
    lines = ask(farm, "long-header-line").split(b"\r\n")
    assert max(map(len, lines)) == 1_000_000 + len("X-Long: ")


@check
def check_hundred_flood(farm: Farm) -> None:
    answer = ask(farm, "hundred-flood")
    assert answer.count(b"HTTP/1.1 100 Continue\r\n\r\n") == 200_000
    assert answer.endswith(behaviours.TEXT)


@check
def check_gzip(farm: Farm) -> None:
    head, _, body = ask(farm, "gzip").partition(b"\r\n\r\n")
    assert b"Content-Encoding: gzip" in head
    assert gzip.decompress(body) == behaviours.TEXT


@check
def check_br(farm: Farm) -> None:
    brotli = pytest.importorskip("brotli")
    head, _, body = ask(farm, "br").partition(b"\r\n\r\n")
    assert b"Content-Encoding: br" in head
    assert brotli.decompress(body) == behaviours.TEXT


@check
def check_bad_gzip(farm: Farm) -> None:
    _, _, body = ask(farm, "bad-gzip").partition(b"\r\n\r\n")
    with pytest.raises(zlib.error):
        gzip.decompress(body)


@check
def check_gzip_bomb(farm: Farm) -> None:
    _, _, body = ask(farm, "gzip-bomb?megabytes=50").partition(b"\r\n\r\n")
    assert len(body) < 100_000
    assert gzip.decompress(body) == bytes(50 << 20)


@check
def check_bad_status(farm: Farm) -> None:
    assert ask(farm, "bad-status").startswith(b"HTTP/1.1 abc OK\r\n")


@check
def check_no_status(farm: Farm) -> None:
    assert ask(farm, "no-status") == behaviours.TEXT


@check
def check_bad_chunk(farm: Farm) -> None:
    assert b"\r\n\r\n5\r\nhello\r\nzz\r\n" in ask(farm, "bad-chunk")


@check
def check_two_lengths(farm: Farm) -> None:
    answer = ask(farm, "two-lengths")
    assert b"Content-Length: 5\r\nContent-Length: 7\r\n" in answer


@check
def check_redirect_loop(farm: Farm) -> None:
    assert get(farm.site(0) + "/_/redirect-loop")[1]["location"] == "/_/redirect-loop"


@check
def check_redirect_long(farm: Farm) -> None:
    assert b"Location: /" + b"x" * 5_000 + b"\r\n" in ask(farm, "redirect-long?bytes=5000")


@check
def check_endless_chunk(farm: Farm) -> None:
    with asked(farm, "endless-chunk") as sock:
        assert len(read_some(sock, 1_000_000)) >= 1_000_000


@check
def check_gzip_layers(farm: Farm) -> None:
    with asked(farm, "gzip-layers?count=3") as sock:
        head, body = read_answer(sock)
    assert b"Content-Encoding: gzip, gzip, gzip\r\n" in head
    assert gzip.decompress(gzip.decompress(gzip.decompress(body))) == behaviours.TEXT


@check
def check_bad_length(farm: Farm) -> None:
    assert b"Content-Length: -1\r\n" in ask(farm, "bad-length")


@check
def check_redirect_private(farm: Farm) -> None:
    assert get(farm.site(0) + "/_/redirect-private")[1]["location"] == "http://10.1.2.3/"


@check
def check_redirect_file(farm: Farm) -> None:
    assert get(farm.site(0) + "/_/redirect-file")[1]["location"].startswith("file:///")


# Means ------------------------------------------------------------------------------------------------


def connect(farm: Farm) -> socket.socket:
    return socket.create_connection((address(0), farm.port), timeout=10)


def request(farm: Farm, path: str, agent: str = AGENT) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {address(0)}:{farm.port}", f"User-Agent: {agent}", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def asked(farm: Farm, behaviour: str) -> socket.socket:
    sock = connect(farm)
    sock.sendall(request(farm, f"/_/{behaviour}"))
    return sock


def ask(farm: Farm, behaviour: str) -> bytes:
    with asked(farm, behaviour) as sock:
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(1 << 20), b""))


def read_some(sock: socket.socket, length: int) -> bytes:
    taken = bytearray()
    while len(taken) < length:
        part = sock.recv(1 << 20)
        assert part, "the server ended what has no end"
        taken += part
    return bytes(taken)


def read_answer(sock: socket.socket) -> tuple[bytes, bytes]:
    with sock.makefile("rb", buffering=0) as lines:
        head = b"".join(iter(lines.readline, b"\r\n"))
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        body = b""
        while len(body) < length:
            body += lines.read(length - len(body)) or b""
        return head, body


def quiet(sock: socket.socket, seconds: float) -> bool:
    """Whether nothing comes for so long."""
    sock.settimeout(seconds)
    try:
        return sock.recv(1, socket.MSG_PEEK) == b"?"
    except TimeoutError:
        return True
    finally:
        sock.settimeout(10)


def run_farm(*options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.farm", *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def test_every_kind_is_registered() -> None:
    from tests.farm import kinds

    assert set(kinds.REGISTRY) == set(KINDS)


# Hostile sites ----------------------------------------------------------------------------------------


def test_every_hostility_is_registered() -> None:
    assert hostile.names() == set(HOSTILITIES)


@pytest.mark.parametrize("how", sorted(hostile.TRAPS))
def test_every_page_of_a_trap_is_there_and_leads_on(how: str) -> None:
    site = Web(Plan(sites=2, hostile={1: how}), 80).site(1)
    path = "/"
    for _ in range(3):
        page = site.resource(path)
        assert page is not None
        assert page.kind == "hostile"
        assert page.body == site.resource(path).body, "another one each time"
        found = re.findall(rb"href=\"?([^ \">]+)", page.body)
        path = urlsplit(urljoin(f"http://h{path}", found[-1].decode())).path if found else path
    assert site.resource("/robots.txt").body == hostile.RULES


def test_hostile_sites_answer_as_planned() -> None:
    with Farm(sites=4, pages=2, names=(), hostile={1: "bad-length", 2: "calendar", 3: "no_rules"}) as farm:
        assert get(farm.site(0) + "/")[0] == 200
        assert b"/door/7" in get(farm.site(1) + "/")[2]
        assert get(farm.site(1) + "/robots.txt")[2].startswith(b"User-agent")
        with socket.create_connection((address(1), farm.port), timeout=10) as sock:
            sock.sendall(b"GET /door/7 HTTP/1.1\r\nHost: %s\r\n\r\n" % farm.site(1)[7:].encode())
            assert b"Content-Length: -1" in read_all(sock)
        assert b"/calendar/0/0/2" in get(farm.site(2) + "/calendar/0/0/1")[2]
        assert get(farm.site(3) + "/robots.txt")[0] == 302
        assert set(farm.expected()) == {farm.site(0)}
        assert all(url.startswith(farm.site(0)) for url in farm.declared)
