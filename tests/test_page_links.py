"""What crawls take from pages as links: what frames show, and what pages with the same bytes lead to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crawler.content.copies import FIRST_PAGES
from crawler.records import hash_of
from tests.crawling import Place
from tests.servers import eventually
from tests.small_site import Reply, Route, SmallSite

HTML = {"Content-Type": "text/html"}


def html(body: str) -> Reply:
    return Reply(200, HTML, body)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place(tmp_path_factory.mktemp("page-links")) as found:
        yield found


def out_links(place: Place, site: SmallSite, path: str) -> set[int]:
    """Hashes of the URLs that a page's row says it links to."""
    [(packed,)] = place.rows(f"select links from pages where url = '{site.site}{path}'")
    return {int.from_bytes(packed[at : at + 8], "little") for at in range(0, len(packed), 8)}


def test_a_site_of_frames_is_walked_to_its_end(place: Place) -> None:
    """What Javadoc and manuals of their day are made of; an iframe of another site is followed where it may be."""
    with SmallSite({}, "127.0.1.2") as other, SmallSite({}) as site:
        other.routes = {"/": html("<p>other"), "/widget": html("<p>widget")}
        site.routes = {
            "/": html("<frameset cols=20%><frame src=menu.html><frame src=text.html name=text></frameset>"),
            "/menu.html": html("<a href=one.html target=text>1</a>"),
            "/text.html": html(f"<iframe src='part/'></iframe><iframe src={other.site}/widget></iframe>"),
            "/one.html": html("<iframe src=picture.svg></iframe><iframe srcdoc='<a href=/never>'></iframe>"),
            "/part/": html("<head><noscript><meta http-equiv=refresh content='0;url=plain'></noscript>"),
            "/part/plain": html("<p>without JavaScript"),
        }
        place.crawl([site.root, other.root]).succeeded()
        assert site.pages == dict.fromkeys(site.routes, 1)
        assert other.pages == {"/": 1, "/widget": 1}
        assert out_links(place, site, "/") == {
            hash_of(f"{site.site}/{name}.html") for name in ("menu", "text")
        }
        assert out_links(place, site, "/text.html") == {hash_of(f"{site.site}/part/")}


def test_a_list_of_all_pages_behind_a_long_menu_is_taken_whole(place: Place) -> None:
    """By the defaults: a menu of thousands of places on the page, and pages behind the first megabyte."""
    menu = "".join(f"<a href='#part{number}'>{number}</a>" for number in range(6_000))
    filler = "<p>" + "words " * 200_000
    listed = [f"/listed/{number}" for number in range(40)]
    with SmallSite({}, "127.0.1.3") as site:
        listing = "".join(f"<a href={path}>x</a>" for path in listed)
        site.routes = {"/": html(menu + filler + listing), **{path: html(f"<p>{path}") for path in listed}}
        place.crawl([site.root]).succeeded()
        assert site.pages == dict.fromkeys(site.routes, 1)
        assert place.rows(f"select error from pages where url = '{site.root}'") == [(None,)]


def test_what_is_cut_is_told(place: Place) -> None:
    with SmallSite({}, "127.0.1.4") as site:
        site.routes = {
            "/": html("".join(f"<a href=/{number}>x</a>" for number in range(5))),
            **{f"/{number}": html(f"<p>{number}") for number in range(5)},
        }
        place.crawl([site.root], MAX_LINKS_PER_PAGE=3).succeeded()
        assert sorted(site.pages) == ["/", "/0", "/1", "/2"]
        told = place.rows(f"select error from pages where url = '{site.root}'")
        assert told == [("first 3 distinct links, 2 left out (MAX_LINKS_PER_PAGE)",)]


def talks(many: int) -> dict[str, Route]:
    """Folders whose index has the same bytes, and pages of their own."""
    routes: dict[str, Route] = {
        "/": html("".join(f"<a href={number}/index.html>x</a>" for number in range(many)))
    }
    for number in range(many):
        routes[f"/{number}/index.html"] = html("<title>Talk</title><a href=p1.html>1</a><a href=/>up</a>")
        routes[f"/{number}/p1.html"] = html(f"<p>Slide of talk {number}<a href=index.html>back</a>")
    return routes


def test_pages_behind_copies_in_other_folders_are_found(place: Place) -> None:
    with SmallSite(talks(60), "127.0.1.5") as site:
        place.crawl([site.root]).succeeded()
        assert site.pages == dict.fromkeys(site.routes, 1)
        told = dict(
            place.rows(f"select outcome, count(*) from pages where url like '{site.root}%' group by outcome")
        )
        assert told == {"stored": 1 + 1 + 60, "duplicate": 59}
        assert out_links(place, site, "/0/index.html") == {
            hash_of(f"{site.site}{path}") for path in ("/", "/0/p1.html")
        }
        assert place.rows(f"select links from pages where url = '{site.root}7/index.html'") == [(None,)]


def test_copies_without_end_end_though_the_crawl_is_killed(place: Place) -> None:
    """With `kill -9` of all processes in the middle: what was tried by then counts on."""
    with SmallSite({"*": html("<a href=a/>deeper</a><a href=b/>or</a>")}, "127.0.1.6") as site:
        given = {"TRAP_PAGES": 0, "DOWNLOAD_DELAY": 0.1}
        for pages in (8, 14):
            run = place.start_crawl([site.root], **given)
            eventually(lambda: len(site.pages) >= pages, f"{pages} pages")  # noqa: B023
            place.kill_all()
            run.wait()
        place.crawl([site.root], **given).succeeded()
        # The server's file may lack the last second, after which some pages are others than before.
        assert 3 + FIRST_PAGES <= len(site.pages) <= 3 + 2 * FIRST_PAGES
        [(state, left_out)] = place.rows(f"select state, left_out_by from sites where site = '{site.site}'")
        assert state == "finished"
        assert "copy" in left_out
