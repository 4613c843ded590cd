"""Whole crawls of sites whose bodies have faults: what browsers read is read, and what is cut short is a loss."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import brotli
import pytest

from crawler.queue.batches import BatchPage
from tests.crawling import Place
from tests.raw_server import page
from tests.servers import RunningServer
from tests.small_site import Reply, SmallSite, links
from tests.test_works import give
from tests.told import outcomes

FILLING = "".join(f"<p>{number} the tide {number * 7919 % 1000}" for number in range(500))


def html(path: str) -> bytes:
    return f"<title>page {path}</title><a href={path}/inner>x</a>{FILLING}".encode()


def sent(encoding: str, packed: bytes, content_type: str = "text/html") -> Reply:
    return Reply(200, {"Content-Type": content_type, "Content-Encoding": encoding}, packed=packed)


def packed_pages() -> dict[str, Reply]:
    """Pages that are whole, by a path that says what is odd."""
    body = {path: html(path) for path in ODD}
    packed = {path: gzip.compress(one) for path, one in body.items()}
    return {
        "/newline": sent("gzip", packed["/newline"] + b"\n"),
        "/zeros": sent("gzip", packed["/zeros"] + bytes(99)),
        "/garbage": sent("gzip", packed["/garbage"] + b"<!-- cached -->"),
        "/members": sent("gzip", gzip.compress(body["/members"][:99]) + gzip.compress(body["/members"][99:])),
        "/sum": sent("gzip", packed["/sum"][:-8] + b"\1\2\3\4" + packed["/sum"][-4:]),
        "/deflate": sent("deflate", zlib.compress(body["/deflate"]) + b"<!-- cached -->"),
        "/br": sent("br", brotli.compress(body["/br"]) + b"\n"),
        "/plain-gzip": sent("gzip", body["/plain-gzip"]),
        "/plain-br": sent("br", body["/plain-br"]),
        "/plain-deflate": sent("deflate", body["/plain-deflate"]),
        "/unknown": sent("utf-8", body["/unknown"]),
    }


ODD = (
    *("/newline", "/zeros", "/garbage", "/members", "/sum", "/deflate", "/br"),
    *("/plain-gzip", "/plain-br", "/plain-deflate", "/unknown"),
)


def test_what_browsers_read_is_read_at_once(tmp_path: Path) -> None:
    with SmallSite({"/": links(*ODD), **packed_pages()}) as web, Place(tmp_path) as place:
        web.routes |= {f"{path}/inner": links() for path in ODD}
        place.crawl([web.root]).succeeded()
        assert web.pages == dict.fromkeys(["/", *ODD, *(f"{path}/inner" for path in ODD)], 1)
        found = {
            url.removeprefix(web.site): (outcome, title, error)
            for url, outcome, title, error in place.rows("select url, outcome, title, error from pages")
        }
        whole = {path: ("stored", f"page {path}", None) for path in ODD}
        whole["/sum"] = ("stored", "page /sum", "its gzip has a wrong checksum")
        assert {path: found[path] for path in ODD} == whole
        before = place.rows("select url, error, title, links, robots, sha256 from pages order by url")
        place.run("extract").succeeded()
        assert place.rows("select url, error, title, links, robots, sha256 from pages order by url") == before


CUT = ("/cut-gzip", "/cut-br", "/cut-deflate", "/damaged")


def cut_pages() -> dict[str, Reply]:
    packed = {path: gzip.compress(html(path)) for path in CUT}
    half = {path: len(one) // 2 for path, one in packed.items()}
    return {
        "/cut-gzip": sent("gzip", packed["/cut-gzip"][: half["/cut-gzip"]]),
        "/cut-br": sent("br", brotli.compress(html("/cut-br"), quality=5)[:-200]),
        "/cut-deflate": sent("deflate", zlib.compress(html("/cut-deflate"))[:-200]),
        "/damaged": sent("gzip", packed["/damaged"][: half["/damaged"]] + b"\xff" * 300),
    }


@pytest.mark.parametrize("fails", [True, False])
def test_what_only_its_own_end_tells_to_be_cut_short_is_a_loss(tmp_path: Path, fails: bool) -> None:
    with SmallSite({"/": links(*CUT), **cut_pages()}) as web, Place(tmp_path) as place:
        web.routes |= {f"{path}/inner": links() for path in CUT}
        place.crawl([web.root], DOWNLOAD_FAIL_ON_DATALOSS=fails, MAX_TRIES=2).succeeded()
        rows = place.rows("select url, outcome, status, tries, error from pages")
        found = {url.removeprefix(web.site): tuple(rest) for url, *rest in rows}
        if fails:
            assert {found[path][:3] for path in CUT} == {("failed", -8, 2)}
            assert all("its " in found[path][3] for path in CUT), found
            assert web.pages == {"/": 1, **dict.fromkeys(CUT, 2)}
        else:
            assert {found[path][:3] for path in CUT} == {("stored", 200, 1)}
            assert {f"{path}/inner" for path in CUT} <= found.keys(), "what came is read"


def test_a_body_that_heals_is_whole(tmp_path: Path) -> None:
    whole = gzip.compress(html("/a"))
    with SmallSite({"/": links("/a"), "/a/inner": links()}) as web, Place(tmp_path) as place:
        web.routes["/a"] = lambda times: sent("gzip", whole if times > 1 else whole[:-30])
        place.crawl([web.root]).succeeded()
        assert place.rows("select outcome, tries, title from pages where url like '%/a'") == [
            ("stored", 2, "page /a")
        ]


def test_recheck_reads_them_too(tmp_path: Path) -> None:
    """It has one try for a page."""
    routes: dict[str, Any] = {"/": links(*ODD), **dict.fromkeys(ODD, links())}
    with SmallSite(routes) as web, Place(tmp_path) as place:
        place.crawl([web.root]).succeeded()
        web.routes |= packed_pages()
        give(place, web.site, "recheck", *(BatchPage(path, "visited") for path in ODD))
        place.crawl([], spider="recheck").succeeded()
        rows = place.rows("select url, title from pages where url not like '%/' and url not like '%/inner'")
        assert {url.removeprefix(web.site): title for url, title in rows} == {
            path: f"page {path}" for path in ODD
        }


# --- robots.txt ---

RULES = "User-agent: *\nDisallow: /no\n" + "".join(f"# {number} filling\n" for number in range(2000))
LATE_RULES = "".join(f"# {number} filling\n" for number in range(2000)) + "User-agent: *\nDisallow: /no\n"
PACKED = gzip.compress(LATE_RULES.encode())


@pytest.mark.parametrize(
    "robots",
    [
        sent("gzip", gzip.compress(RULES.encode()) + b"\n", "text/plain"),
        sent("gzip", PACKED[:-8] + b"\1\2\3\4" + PACKED[-4:], "text/plain"),
        sent("gzip", RULES.encode(), "text/plain"),
        sent("br", RULES.encode(), "text/plain"),
        sent("utf-8", RULES.encode(), "text/plain"),
    ],
    ids=["newline", "wrong sum", "plain called gzip", "plain called br", "unknown"],
)
def test_rules_that_can_be_read_hold(place: Place, valkey: RunningServer, robots: Reply) -> None:
    with SmallSite({"/robots.txt": robots, "*": links("/no", "/yes")}) as web:
        place.crawl([web.root], REDIS_URL=valkey.url).succeeded()
        assert web.paths == ["/robots.txt", "/", "/yes"]
        assert outcomes(valkey)[f"{web.site}/no"] == "denied"


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize(
    "robots",
    [
        sent("gzip", PACKED[: len(PACKED) // 2], "text/plain"),
        sent("gzip", PACKED[:100] + b"\xff" * 100 + PACKED[200:], "text/plain"),
        sent("br", brotli.compress(LATE_RULES.encode())[:-30], "text/plain"),
        Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n" + LATE_RULES[:900].encode()),
    ],
    ids=["cut", "damaged", "br cut", "shorter than it says"],
)
def test_rules_that_are_cut_short_close_their_site(tmp_path: Path, robots: Reply, fails: bool) -> None:
    """It is given up after MAX_TRIES, and its pages say why."""
    with SmallSite({"/robots.txt": robots, "*": links("/no", "/yes")}) as web, Place(tmp_path) as place:
        given = {"MAX_TRIES": 2, "SITE_PROBE_SECONDS": 0.01, "DOWNLOAD_FAIL_ON_DATALOSS": fails}
        runs = [place.crawl([web.root], **given).stored_nothing()]
        if "given up after" not in runs[0].err:  # else the site was due again before the agent had ended
            runs.append(place.crawl([], **given).stored_nothing())
        assert "given up after 2 attempts: robots.txt cannot be read" in runs[-1].err
        assert web.pages == {}
        assert place.rows("select outcome, status, error like '%robots.txt cannot be read%' from pages") == [
            ("failed", -8, 1)
        ]
        assert place.rows("select state from sites") == [("finished",)]


# --- Heads ---


def test_of_two_locations_the_first_is_followed(tmp_path: Path) -> None:
    twice = page(b"", b"Location: /first", b"X-Other: a", b"location: /second", status=b"302 Found")
    with SmallSite({"/": links("/a"), "/first": links()}) as web, Place(tmp_path) as place:
        web.routes["/a"] = Reply(raw=twice)
        place.crawl([web.root]).succeeded()
        assert web.pages == {"/": 1, "/a": 1, "/first": 1}
        assert place.rows("select outcome, status, redirect from pages where url like '%/a'") == [
            ("redirected", 302, f"{web.site}/first")
        ]


@pytest.mark.parametrize(
    "content_type", ["*/*", "text/html, text/html", "text/html;charset=utf-8, */*", "html"]
)
def test_a_type_that_says_nothing_or_twice_the_same_is_html(tmp_path: Path, content_type: str) -> None:
    odd = Reply(200, {"Content-Type": content_type}, "<title>odd</title><a href=/b>b</a>")
    image = Reply(200, {"Content-Type": content_type}, packed=b"\x89PNG\r\n\x1a\n<title>x</title>")
    with SmallSite({"/": odd, "/b": links("/image"), "/image": image}) as web, Place(tmp_path) as place:
        place.crawl([web.root]).succeeded()
        assert web.pages == {"/": 1, "/b": 1, "/image": 1}
        titles = dict(place.rows("select url, title from pages"))
        assert titles[web.root] == "odd"
        if content_type == "*/*":
            assert titles[f"{web.site}/image"] is None
