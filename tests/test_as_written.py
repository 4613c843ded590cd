"""Pages are asked for as they were written: by a link, a seed, a redirect, from another site, and ever after.

The sites here answer to one spelling of each path and to nothing else, as gitweb, PukiWiki and whoever signs queries
do. That two spellings are one page holds all the same: it is asked for once, as it was first met.
"""

from __future__ import annotations

import html
import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from crawler.archive.reader import captures
from crawler.local.server import Server
from crawler.urls.url import page_of
from tests.crawling import Place
from tests.servers import eventually
from tests.small_site import Reply, Route, SmallSite, moved, text
from tests.small_site import links as bare_links

pytestmark = pytest.mark.timeout(240)

# What links say in the folder /dir/, and what is asked for then.
HREFS = {
    "/gitweb?p=x.git;a=summary": "/gitweb?p=x.git;a=summary",
    "/wiki?FrontPage": "/wiki?FrontPage",
    "/wiki?%E3%83%88": "/wiki?%E3%83%88",
    "/wiki?%e3%83%89": "/wiki?%e3%83%89",
    "/wiki?ト;1": "/wiki?%E3%83%88;1",
    "/signed?z=1&a=2&sig=%2f+%20&&": "/signed?z=1&a=2&sig=%2f+%20&&",
    "?f%5B%5D=1": "/dir/page?f%5B%5D=1",
    "?f[]=2": "/dir/page?f[]=2",
    "?": "/dir/page?",
    "a//b": "/dir/a//b",
    "x;": "/dir/x;",
    "/lone?": "/lone?",
    "/esc/%2fa%7e": "/esc/%2fa%7e",
    "/esc/%2Fb%7E~": "/esc/%2Fb%7E~",
    "/ta\tb\nhere\r": "/tabhere",
    "\\back\\slash": "/back/slash",
    "/open?u=/a:b@c&q=subject:x": "/open?u=/a:b@c&q=subject:x",
    "/asp?w=%u9888": "/asp?w=%u9888",
    "sp ace?q=a b+c": "/dir/sp%20ace?q=a%20b+c",
    "/a/%2e%2e/dots/.%2E/b": "/b",
    "/quo'te|[x]?'": "/quo'te|[x]?%27",
}
ASKED = [*HREFS.values()]
PAGE = "/dir/page?b=1&a"


def links(*targets: str) -> Reply:
    """A page that links to these, whatever they consist of."""
    body = "".join(f'<a href="{html.escape(target)}">x</a>' for target in targets)
    return Reply(200, {"Content-Type": "text/html; charset=utf-8"}, body or "<p>no links")


def leaves(paths: list[str] = ASKED, words: str = "") -> dict[str, Route]:
    """A page without links for each of them, of its own content."""
    return {
        path: Reply(200, {"Content-Type": "text/html"}, f"<p>{number} {words}")
        for number, path in enumerate(paths)
    }


def routes(words: str = "") -> dict[str, Route]:
    return {"/": links(PAGE), PAGE: links(*HREFS), **leaves(words=words)}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place(tmp_path) as place:
        yield place


def asked_once(site: SmallSite, *also: str, times: int = 1) -> None:
    """Fails unless the site was asked so often for each page in its spelling, and for nothing else."""
    assert site.pages == dict.fromkeys((*ASKED, *also), times)


def told(place: Place, site: SmallSite) -> dict[str, str]:
    """By path as asked: the page's name, as the tables have them."""
    rows = place.rows("select url, asked_as from pages")
    return {
        (asked or url).removeprefix(site.site): url.removeprefix(site.site)
        for url, asked in rows
        if url.startswith(site.site)
    }


def push(place: Place, *values: str) -> None:
    """As `redis-cli lpush` does."""
    with Server(place.var).join("visitor") as server, closing(redis.Redis.from_url(server.url)) as client:
        client.lpush("site:start_urls", *values)


# --- By a link --------------------------------------------------------------------------------------------


def test_links_are_asked_for_as_they_are_written(place: Place) -> None:
    with SmallSite(routes()) as site:
        run = place.crawl([site.root]).succeeded()
        asked_once(site, "/", PAGE)
        wanted = {path: page_of(path) for path in (*ASKED, "/", PAGE)}
        assert told(place, site) == wanted
        assert place.rows("select count(*) from pages where outcome = 'stored' and asked_as = url") == [(0,)]
        assert place.rows("select count(*) from pages where asked_as is null")[0][0] == sum(
            path == page for path, page in wanted.items()
        )
        assert f"(200) <GET {site.site}/wiki?FrontPage>" in run.err or "Crawled" not in run.err
        assert "balanced" in place.run("report", "ledger").succeeded().out
        # The archive has what was asked for, and finds it again.
        (file,) = (place.var / "archive").glob("*.warc.gz")
        kept = {capture.url for capture in captures(file)}  # type: ignore[union-attr]
        assert kept == {site.site + path for path in wanted}
        place.run("extract", "--check").succeeded()
        place.run("extract").succeeded()
        assert told(place, site) == wanted
        assert place.rows("select count(*) from pages where extracted_at is null") == [(0,)]
    index = (place.var / "archive").glob("*.cdxj")
    lines = [json.loads(line.split(b" ", 2)[2]) for one in index for line in one.read_bytes().splitlines()]
    assert {line["url"] for line in lines} == kept


def test_two_spellings_are_one_page_asked_for_as_first_met(place: Place) -> None:
    spellings = ["/w?b=2&a=1", "/w?a=1&b=2", "/%7ex", "/~x", "/y?", "/y", "/q?a", "/q?a=", "/z%2f", "/z%2F"]
    first = spellings[::2]
    with SmallSite({"/": links(*spellings), **leaves(first)}) as site:
        place.crawl([site.root]).succeeded()
        assert site.pages == dict.fromkeys(("/", *first), 1)
        assert told(place, site) == {path: page_of(path) for path in ("/", *first)}


def test_robots_txt_is_about_what_is_asked_for(place: Place) -> None:
    rules = text(
        "User-agent: *\nDisallow: /gitweb?p=x.git;a=summary\nDisallow: /wiki?FrontPage$\nDisallow: /dir/x;"
    )
    forbidden = {"/gitweb?p=x.git;a=summary", "/wiki?FrontPage", "/dir/x;"}
    with SmallSite({**routes(), "/robots.txt": rules}) as site:
        place.crawl([site.root]).succeeded()
        assert site.pages == dict.fromkeys({"/", PAGE, *ASKED} - forbidden, 1)
        denied = place.rows("select asked_as from pages where outcome = 'denied'")
        assert {url.removeprefix(site.site) for (url,) in denied} == forbidden


def test_patterns_see_what_is_asked_for(place: Place) -> None:
    with SmallSite(routes()) as site:
        place.crawl([site.root], SCOPE_EXCLUDE=r"a=summary$|wiki\?FrontPage$|x;$").succeeded()
        assert set(ASKED) - set(site.pages) == {"/gitweb?p=x.git;a=summary", "/wiki?FrontPage", "/dir/x;"}


# --- By other ways ----------------------------------------------------------------------------------------


def test_seeds_are_asked_for_as_they_are_written(place: Place, tmp_path: Path) -> None:
    with SmallSite({"/": links(), **leaves()}) as site:
        file = tmp_path / "seeds.txt"
        file.write_text("".join(f"{site.site}{path}\n" for path in ASKED))
        place.run("seed", str(file)).succeeded()
        place.crawl([]).succeeded()
        asked_once(site)
        # One that is known, in another spelling.
        place.crawl([f"{site.site}/wiki?FrontPage="]).succeeded()
        asked_once(site)


def test_pushed_urls_are_asked_for_as_they_are_written(place: Place) -> None:
    with SmallSite({"/": links(), **leaves()}) as site:
        half = len(ASKED) // 2
        push(place, *(site.site + path for path in ASKED[:half]))
        place.crawl([]).succeeded()
        assert site.pages == dict.fromkeys(ASKED[:half], 1)
        # To a site that is finished by now.
        push(place, *(json.dumps({"url": site.site + path}) for path in ASKED[half:]))
        place.crawl([]).succeeded()
        asked_once(site)


def test_redirects_sitemaps_and_canonical_names_lead_where_they_say(place: Place) -> None:
    ways = [f"/to/{number}" for number in range(len(ASKED))]
    third = len(ASKED) // 3
    listed = "".join(f"<url><loc>{html.escape(path)}</loc></url>" for path in ASKED[third : 2 * third])
    named = {
        way: Reply(200, {"Content-Type": "text/html", "Link": f"<{path}>; rel=canonical"}, f"<p>{way}")
        for way, path in zip(ways[2 * third :], ASKED[2 * third :], strict=True)
    }
    found: dict[str, Route] = {
        "/": links(*ways[:third], *ways[2 * third :]),
        **{way: moved(path) for way, path in zip(ways[:third], ASKED[:third], strict=True)},
        **named,
        **leaves(),
        "/map.xml?v=1;2": Reply(200, {"Content-Type": "text/xml"}, f"<urlset>{listed}</urlset>"),
    }
    with SmallSite(found) as site:
        # By its other scheme, as many name their own; locations are of the site itself.
        site.routes["/map.xml?v=1;2"] = Reply(
            200,
            {"Content-Type": "text/xml"},
            f"<urlset>{listed}</urlset>".replace("<loc>", f"<loc>{site.site}"),
        )
        site.routes["/robots.txt"] = text(f"Sitemap: https{site.site.removeprefix('http')}/map.xml?v=1;2")
        place.crawl([site.root]).succeeded()
        asked_once(site, "/", *ways[:third], *ways[2 * third :], "/map.xml?v=1;2")


def test_other_sites_are_told_the_spelling(place: Place) -> None:
    with SmallSite({"/": links(), **leaves()}, "127.0.1.2") as other, SmallSite({}, "127.0.1.1") as site:
        site.routes["/"] = links(*(other.site + path for path in ASKED))
        place.crawl([site.root], SCOPE="any").succeeded()
        asked_once(other, "/")
        # Again, to a site that is finished, and in other spellings too.
        other.routes |= leaves(["/late?x;y"])
        site.routes["/"] = links(other.site + "/late?x;y", f"{other.site}/wiki?FrontPage=")
        place.crawl([site.root], "--again", SCOPE="any").succeeded()
        assert other.pages["/late?x;y"] == 1
        assert set(other.pages) == {"/", "/late?x;y", *ASKED}


def test_a_page_that_redirects_to_another_spelling_of_itself_is_asked_for_so(place: Place) -> None:
    found: dict[str, Route] = {
        "/": links("/%7euser/", "/x?b&a", "/tab?c", "/round?a"),
        "/%7euser/": moved("/~user/"),
        "/x?b&a": moved("/x?b=&a="),
        "/x?b=&a=": moved("/x?a=&b="),
        "/tab?c": moved("/tab?c="),
        "/round?a": moved("/round?a="),
        "/round?a=": moved("/round?a"),
        **leaves(["/~user/", "/x?a=&b=", "/tab?c="]),
    }
    with SmallSite(found) as site:
        place.crawl([site.root]).succeeded()
        pages = site.pages
        round_and_round = pages.pop("/round?a") + pages.pop("/round?a=")
        assert pages == {path: 1 for path in found if "round" not in path}
        assert round_and_round == 1 + 5, "as often as redirects are followed"
        outcomes = place.rows("select coalesce(asked_as, url), outcome, tries from pages")
        assert {(url.removeprefix(site.site), outcome, tries) for url, outcome, tries in outcomes} == {
            *(
                ("/", "stored", 1),
                ("/~user/", "stored", 1),
                ("/x?a=&b=", "stored", 1),
                ("/tab?c=", "stored", 1),
            ),
            ("/round?a=", "redirected", 1),
        }
        place.crawl([site.root], "--again").succeeded()
        assert site.pages["/~user/"] == 2


# --- Ever after -------------------------------------------------------------------------------------------


def test_a_killed_agent_leaves_the_spelling_to_the_next(place: Place) -> None:
    with SmallSite({**routes(), "*": Reply(404)}) as site:
        slow = {
            path: reply._replace(seconds=0.3) for path, reply in leaves().items() if isinstance(reply, Reply)
        }
        site.routes |= slow
        run = place.start_crawl([site.root], LEASE_SECONDS=2)
        eventually(lambda: len(site.pages) > 6, "a few pages were asked for")
        run.process.send_signal(signal.SIGKILL)
        run.wait()
        site.routes |= leaves()
        place.crawl([], LEASE_SECONDS=2).succeeded()
        assert set(site.pages) == {"/", PAGE, *ASKED}
        assert told(place, site) == {path: page_of(path) for path in (*ASKED, "/", PAGE)}
        assert place.rows("select count(*) from pages where outcome != 'stored'") == [(0,)]


def test_again_recheck_revive_and_a_rebuilt_queue_ask_in_the_spelling(place: Place) -> None:
    given = {"RECRAWL_MODE": "interval", "RECHECK_INTERVAL_SECONDS": 1, "REVIVE_FIRST_SECONDS": 0.2}
    late = ["/late?;", "/late?x"]
    with SmallSite(routes()) as site:
        site.routes[PAGE] = links(*HREFS, *late)
        every = {"/", PAGE, *ASKED, *late}
        place.crawl([site.root], **given).succeeded()
        assert site.pages == dict.fromkeys(every, 1)
        site.routes |= leaves(late)
        site.log.clear()
        place.crawl([], spider="revive", **given).succeeded()
        assert site.pages.keys() == set(late)
        # What these brought is loaded: by a checkpoint that is made of the tables.
        place.crawl([], **given).succeeded()
        assert site.pages.keys() == set(late)
        site.log.clear()
        run = place.start_crawl([], "--when-idle", "wait", spider="recheck", RECHECK_METHOD="head", **given)
        eventually(lambda: site.pages.keys() >= every, "all are asked")
        run.end().succeeded()
        assert site.pages.keys() == every
        site.routes |= routes("changed")
        site.routes[PAGE] = links(*HREFS, *late)
        run = place.start_crawl([], "--when-idle", "wait", spider="recheck", **given)
        eventually(lambda: min(site.pages[path] for path in every) > 1, "all are asked once more")
        run.end().succeeded()
        place.run("queue", "reset", "--yes").succeeded()
        place.run("queue", "rebuild").succeeded()
        place.crawl([], RECHECK_INTERVAL_SECONDS=0).succeeded()
        assert site.pages.keys() == every
        site.log.clear()
        place.crawl([site.root], "--again", **given).succeeded()
        assert site.pages == dict.fromkeys(every, 1)


def test_a_queue_rebuilt_in_the_middle_of_a_site_asks_in_the_spelling(place: Place) -> None:
    with SmallSite(routes()) as site:
        place.crawl([site.root], MAX_PAGES_PER_SITE=10).succeeded()
        place.run("queue", "reset", "--yes").succeeded()
        # As a site that was lost in the middle of its walk: all that is known of it is walked again.
        place.run("queue", "rebuild").succeeded()
        place.crawl([f"{site.site}{ASKED[-1]}"]).succeeded()
        assert set(site.pages) <= {"/", PAGE, *ASKED}


def test_a_crawl_of_one_page_needs_no_spelling(place: Place) -> None:
    with SmallSite({"/": bare_links("/a"), "/a": bare_links()}) as site:
        place.crawl([site.root]).succeeded()
        assert place.rows("select distinct asked_as from pages") == [(None,)]
