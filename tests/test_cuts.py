"""Every cut is told: in the page's record, in its site's reason, in the summary and in the ledger, with the setting.

Whole crawls of sites that have more than a bound lets through, one for each bound.
"""

from __future__ import annotations

import csv
import io
import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.crawling import Place
from tests.servers import eventually
from tests.small_site import Reply, SmallSite

HTML = {"Content-Type": "text/html"}
GIVEN: dict[str, Any] = {
    "MAX_DEPTH": 2,
    "MAX_PAGES_PER_SITE": 8,
    "MAX_LINKS_PER_PAGE": 5,
    "MAX_HTML_BYTES": 20_000,
    "DOWNLOAD_MAXSIZE": 50_000,
    "SCOPE_EXCLUDE": "hidden",
}


def linking(*paths: str, more: str = "") -> Reply:
    """A page with a link to each."""
    links = "".join(f"<a href='{path}'>to</a>" for path in paths)
    return Reply(fields=HTML, body=f"<title>links to {len(paths)}</title>{links}{more}")


# The last is found too deep first, and by a redirect from a page that is less deep then.
DEEP = {
    "/": linking("/1"),
    "/1": linking("/2", "/led"),
    "/2": linking("/3a", "/3b", "/late", "/hidden", "http://other.test/"),
    "/led": Reply(302, {"Location": "/late"}),
    "/late": linking("/3a"),
}
# Of the three that are left out one is found elsewhere, and one is out of scope.
LINKS = {
    "/": linking("#top", "/a0", "/a1", "/a2", "/a3", "/a4", "#end", "/a0", "/a5", "/a6", "/hidden"),
    "/a0": linking("/a5"),
    **{f"/a{number}": linking("/") for number in range(1, 6)},
}
BYTES = {"/": linking("/a", more="<p>" + "word " * 5_000 + "<a href=/b>"), "/a": linking("/")}
SIZE = {"/": linking("/big"), "/big": Reply(fields=HTML, body="<p>" + "word " * 20_000)}
LENGTH = {"/": linking("/x?" + 3_000 * "y", "/x?" + 3_000 * "y", "http://other.test/" + 3_000 * "y")}
FAMILY = {"/": linking("/a/b/a/b/a/b", "/a/b/a/b/a/b/c")}
PAGES = {
    "/": linking(*(f"/{number}" for number in range(5))),
    **{f"/{number}": linking(f"/{number}/a", f"/{number}/b") for number in range(5)},
    "*": linking("/"),
}
WEB = {
    "depth": DEEP,
    "links": LINKS,
    "bytes": BYTES,
    "size": SIZE,
    "length": LENGTH,
    "family": FAMILY,
    "pages": PAGES,
}
EXPECTED = {"depth": 2, "links": 1, "bytes": 1, "size": 1, "length": 1, "family": 2, "pages": 8}
REASONS = {
    "depth": "left out: 2 pages by MAX_DEPTH",
    "links": "left out: 1 links by MAX_LINKS_PER_PAGE",
    "bytes": "left out: 1 pages read in part by MAX_HTML_BYTES",
    "size": "left out: 1 pages by DOWNLOAD_MAXSIZE",
    "length": "left out: 1 links by URLLENGTH_LIMIT",
    "family": "left out: 2 pages as traps by TRAP_PAGES; folders repeat in /a/b/a/b/a/b",
    "pages": "left out: 8 pages by MAX_PAGES_PER_SITE",
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Place(tmp_path) as found:
        yield found


def ledger(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.run("report", "ledger", "--json").succeeded().out)["ledger"]
    assert found["balanced"], found
    return found


def test_every_cut_is_told_at_four_places(place: Place) -> None:
    with ExitStack() as stack:
        sites = {
            reason: stack.enter_context(SmallSite(routes, f"127.0.3.{number}"))
            for number, (reason, routes) in enumerate(WEB.items(), 1)
        }
        honest = stack.enter_context(SmallSite({"/": linking("/a"), "/a": linking("/")}, "127.0.3.50"))
        roots = [one.root for one in (*sites.values(), honest)]
        run = place.crawl(roots, "--agents", "2", **GIVEN).succeeded()

        # The page's record.
        errors = dict(place.rows("select url, error from pages where error is not null"))
        assert errors[sites["links"].root] == "first 5 distinct links, 3 left out (MAX_LINKS_PER_PAGE)"
        assert errors[sites["bytes"].root].startswith("parsed the first 20,000 of ")
        assert errors[sites["bytes"].root].endswith("(MAX_HTML_BYTES)")
        assert "DOWNLOAD_MAXSIZE" in errors[f"{sites['size'].site}/big"]

        # The site's reason, and its row.
        rows = {
            site: more for site, *more in place.rows("select site, reason, left_out, left_out_by from sites")
        }
        for reason, site in sites.items():
            many = EXPECTED[reason]
            assert rows[site.site] == [REASONS[reason], many, f'{{"{reason}":{many}}}'], reason
        assert rows[honest.site] == [None, 0, None]

        # The ledger, which balances.
        found = ledger(place)
        assert found["left_out"] == EXPECTED
        assert {site: one["left_out"] for site, one in found["sites"].items()} == {
            **{site.site: {reason: EXPECTED[reason]} for reason, site in sites.items()},
            honest.site: {},
        }
        table = {
            row["site"]: row
            for row in csv.DictReader(io.StringIO(place.run("report", "ledger", "--csv").out))
        }
        assert table[sites["depth"].site]["left_out_depth"] == table[sites["depth"].site]["left_out"] == "2"
        text = place.run("report", "ledger").out
        assert f"{sites['depth'].site}: 2 pages by MAX_DEPTH" in text

        # The summary, with the most first; and at the crawl's end.
        lines = place.run("report", "summary").out.splitlines()
        assert lines[0].split() == [
            "left",
            "out",
            "16",
            "URLs",
            "of",
            "7",
            "sites,",
            "by",
            "bounds;",
            "most",
            "of",
            "all",
        ]
        assert lines[1].strip() == f"{sites['pages'].site}: 8 pages by MAX_PAGES_PER_SITE"
        assert lines[4].split()[:5] == ["to", "fetch", "more:", "change", "MAX_PAGES_PER_SITE,"]
        assert "\n".join(lines[:5]) in run.out
        shown = json.loads(place.run("site", "show", sites["depth"].site, "--json").out)
        assert shown["left_out"] == "2 pages by MAX_DEPTH"


def wide(pages: int) -> dict[str, Reply]:
    """Pages that each name two others that are too deep, and one that all name."""
    paths = [f"/{number}" for number in range(pages)]
    below = {path: linking(f"{path}/a", f"{path}/b", "/common") for path in paths}
    return {"/": linking(*paths), **{path: reply._replace(seconds=0.02) for path, reply in below.items()}}


def test_counts_survive_the_end_of_a_lease_and_a_kill(place: Place) -> None:
    """Another agent goes on with the site each time; at rest the ledger balances; each URL counts once."""
    given = {"MAX_DEPTH": 1, "DOWNLOAD_DELAY": 0, "FLUSH_SECONDS": 0.1}
    with SmallSite(wide(60)) as site:
        for how in (signal.SIGTERM, signal.SIGKILL):
            before = len(site.log)
            run = place.start_crawl([site.root], **given)
            eventually(lambda before=before: len(site.log) > before + 15, "it crawls")  # type: ignore[misc]
            run.process.send_signal(how)
            run.wait()
            place.check_nothing_left()
            left = ledger(place)["left_out"]["depth"]
            assert 20 < left < 121
        place.crawl([site.root], **given).succeeded()
        assert ledger(place)["left_out"] == {"depth": 121}
        assert place.rows("select reason from sites") == [("left out: 121 pages by MAX_DEPTH",)]


def test_a_rebuilt_queue_and_another_walk(place: Place) -> None:
    """What the tables say comes back with a lost queue; `--again` begins the counts anew."""
    with SmallSite(wide(5)) as site:
        place.crawl([site.root], MAX_DEPTH=1, MAX_PAGES_PER_SITE=4).succeeded()
        left = {"depth": 7, "pages": 2}
        assert ledger(place)["left_out"] == left
        place.run("queue", "reset", "--yes").succeeded()
        place.run("queue", "rebuild").succeeded()
        assert ledger(place)["left_out"] == left
        site.routes["/new"] = linking("/new/deep")
        place.crawl([f"{site.root}new"], MAX_DEPTH=1, MAX_PAGES_PER_SITE=9).succeeded()
        found = ledger(place)
        assert found["left_out"] == {"depth": 7, "pages": 2}, (
            "opened for one page, the others are as they were"
        )
        place.crawl([site.root], "--again", MAX_PAGES_PER_SITE=0).succeeded()
        assert ledger(place)["left_out"] == {}
        assert place.rows("select reason, left_out, left_out_by, left_out_hashes from sites") == [
            (None, 0, None, None)
        ]
        assert "left out" not in place.run("report", "summary").out


def test_a_row_that_lost_its_counts_is_noticed_and_repaired(place: Place) -> None:
    with SmallSite(wide(5)) as site:
        place.crawl([site.root], MAX_DEPTH=1).succeeded()
        with closing(sqlite3.connect(place.var / "crawl.db")) as db, db:
            db.execute("update sites set left_out = 0, left_out_by = null")
        run = place.run("report", "ledger")
        assert run.code == 1
        assert f"{site.site}: URLs left out: 0 in table sites, depth11 in the queue" in run.out
        place.run("queue", "repair").succeeded()
        place.crawl([site.root], MAX_DEPTH=1).succeeded()
        assert ledger(place)["left_out"] == {"depth": 11}


def test_a_hostile_site_costs_no_memory(place: Place) -> None:
    """100,000 pages that are too deep, on twenty pages: about so many are told."""
    pages = [
        linking(more="".join(f"<a href=/{page}/{number}>" for number in range(5_000))) for page in range(20)
    ]
    routes = {"/": linking(*(f"/{number}" for number in range(20)))}
    routes |= {f"/{number}": reply for number, reply in enumerate(pages)}
    with SmallSite(routes) as site:
        place.crawl([site.root], MAX_DEPTH=1, DOWNLOAD_DELAY=0).succeeded()
        many = ledger(place)["left_out"]["depth"]
        assert many == pytest.approx(100_000, rel=0.15)
        (hashes,) = place.rows("select length(left_out_hashes) from sites")[0]
        assert hashes < 5_000
        (reason,) = place.rows("select reason from sites")[0]
        assert reason == f"left out: about {many:,} pages by MAX_DEPTH"
