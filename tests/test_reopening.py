"""Finished sites that are opened again: what recheck and revive find is loaded by the next crawl, always.

What is new is found in the tables of every database; what is known opens nothing.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator

import msgspec
import pytest
from scrapy.settings import Settings
from sqlalchemy import Engine, event, select

from crawler.left_out import LeftOut
from crawler.queue.errors import LockLostError
from crawler.queue.sites import Newcomer, Offer, Restored
from crawler.reconcile import reopening
from crawler.reconcile.reopening import (
    HASHES_AT_A_TIME,
    SITES_AT_A_TIME,
    DecisionLock,
    RefusedPages,
    Reopening,
    refuse_full,
    unknown_of,
)
from crawler.records import Page, SiteEnded, hash64, set_hash
from crawler.store import tables
from crawler.store.database import transaction
from crawler.store.write import Stored, store
from tests.conftest import OpenTables
from tests.crawling import Place
from tests.databases import KINDS
from tests.queue_driver import BASE, Driver, driver, queue_options
from tests.servers import RunningServer, eventually
from tests.small_site import Reply, SmallSite, links
from tests.test_offers import leaf, leaves, sites

A, B = "https://a.example", "https://b.example"
_entries = itertools.count(100)
# Pages are due for recheck and revive at once.
AT_ONCE = {
    "RECRAWL_MODE": "interval",
    "RECHECK_INTERVAL_SECONDS": 1,
    "REVIVE_FIRST_SECONDS": 0.2,
    "REVIVE_SECOND_SECONDS": 60,
}


def put(engine: Engine, site: str, *paths: str) -> None:
    rows = [
        Page(site=site, path=path, fetched_at=number, outcome="stored", status=200)
        for number, path in enumerate(paths)
    ]
    with transaction(engine) as connection:
        store(connection, [Stored(f"{number + 1}-0", row) for number, row in enumerate(rows)])


@pytest.mark.parametrize("kind", KINDS)
def test_paths_that_the_tables_do_not_have(kind: str, filled: OpenTables) -> None:
    engine = filled(kind)
    many = [f"/{number}" for number in range(HASHES_AT_A_TIME + 9)]
    put(engine, A, "/", *many)
    put(engine, B, "/%C3%A9")
    offered = {A: ["/", "/%C3%A9", "/new", *many], B: ["/", "/%C3%A9", "/1"], "https://c.example": ["/"]}
    assert unknown_of(engine, {site: dict.fromkeys(paths, 0) for site, paths in offered.items()}) == {
        A: {"/%C3%A9", "/new"},
        B: {"/", "/1"},
        "https://c.example": {"/"},
    }
    assert unknown_of(engine, {}) == {}


# --- A coordinator's decisions ----------------------------------------------------------------------------


class Opener:
    """A coordinator that decides of a queue's sites when it is asked to."""

    def __init__(self, queue: Driver, engine: Engine) -> None:
        self.queue, self.engine = queue, engine
        self._reopening = Reopening(Settings({"REDIS_URL": queue.server.url}), queue.options, "c")

    def finish(self, *sites: str, pages: int = 1) -> None:
        """Sites whose pages are `/`, `/1` and so on."""
        paths = ["/", *(f"/{number}" for number in range(1, pages))]
        for site in sites:
            put(self.engine, site, *paths)
        done = {site: set_hash(hash64(site + path) for path in paths) for site in sites}
        figures = {"known": pages, "done": pages}
        self.queue.restore([Restored(site, "finished", done_hash=done[site], **figures) for site in sites])

    def decide(self) -> bool:
        return self._reopening.decide(self.engine)

    def close(self) -> None:
        self._reopening.close()


@pytest.fixture
def opener(valkey: RunningServer, filled: OpenTables) -> Iterator[Opener]:
    with driver(valkey, max_pages_per_site=0) as queue:
        made = Opener(queue, filled("sqlite"))
        yield made
        made.close()


def test_every_site_gets_its_turn_however_many_wait(opener: Opener) -> None:
    """The stream is never empty, as under a crawl; what is in it is always younger than what waits."""
    many = 3 * SITES_AT_A_TIME
    names = [f"https://s{number}.example" for number in range(many)]
    opener.finish(*names, pages=2)
    opener.queue.offer([Offer(site, ["/", "/1"]) for site in names])
    for _ in range(4):
        eventually(lambda: opener.queue.server_ms() > newest(opener.queue), "the next record is younger")
        opener.queue.tell([b"record"])
        trim(opener.queue)
        opener.decide()
    assert opener.queue.undecided() == 0


def newest(queue: Driver) -> int:
    """When the last of the sites came to wait."""
    rows = queue.raw.zrange(BASE + "undecided", -1, -1, withscores=True)
    return int(rows[0][1]) if rows else 0


def trim(queue: Driver) -> None:
    """All records but the last are stored."""
    entries = queue.raw.xrange(BASE + "results")
    for entry, _ in entries[:-1]:
        queue.raw.xdel(BASE + "results", entry)


def test_nothing_is_decided_before_what_was_published_is_stored(opener: Opener) -> None:
    opener.finish(A, B)
    opener.queue.tell([b"record"])
    opener.queue.offer([Offer(A, ["/new"])])
    opener.queue.plan_reopening([B])
    assert not opener.decide()
    opener.queue.raw.delete(BASE + "results")
    assert opener.decide()
    assert opener.queue.undecided() == 0
    assert (opener.queue.state(A), opener.queue.state(B)) == ("suspended", "finished")


def test_the_lock_is_kept_as_long_as_the_tables_are_asked(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site of a million pages is read for longer than the lock holds by itself."""
    monkeypatch.setattr(reopening, "LOCK_SECONDS", 1.0)
    opener.finish(A)
    queue = opener.queue
    lock = queue.wait(DecisionLock.acquire(queue.queue, "c"))
    queue.wait(lock.keep(lambda: time.sleep(2.0)))
    assert queue.reopen(*lock.holder, A, b"checkpoint", 0)
    queue.raw.set(BASE + "opener", f"other {lock.holder[1] + 1}")
    with pytest.raises(LockLostError):
        queue.wait(lock.keep(lambda: time.sleep(1.0)))


def test_many_paths_are_decided_however_long_that_takes(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that takes longer for all paths of a look than the lock holds by itself."""
    monkeypatch.setattr(reopening, "LOCK_SECONDS", 1.0)

    @event.listens_for(opener.engine, "before_cursor_execute")
    def wait(*_about: object) -> None:
        time.sleep(1.2)

    opener.finish(A)
    opener.queue.offer([Offer(A, ["/new"])])
    opener.decide()
    assert opener.queue.state(A) == "suspended"


def test_what_cannot_be_read_is_said_once(opener: Opener, caplog: pytest.LogCaptureFixture) -> None:
    """Agents wait for the decision, and records are stored all the same."""
    opener.queue.raw.set(BASE + "undecided", "of another kind")
    for _ in range(2):
        assert not opener.decide()
    assert caplog.text.count("finished sites are not reopened until this key is repaired: WRONGTYPE") == 1
    opener.queue.raw.delete(BASE + "undecided")


def test_an_unfinished_site_with_pages_to_load_again_takes_no_time(opener: Opener) -> None:
    opener.finish(A)
    opener.queue.restore([Restored(B, "waiting")])
    opener.queue.plan_reopening([B])
    assert not opener.decide()
    opener.queue.offer([Offer(A, ["/new"])])
    opener.queue.discover([Newcomer(A, b"")], 0, again=True)
    opener.queue.raw.xtrim(BASE + "results", maxlen=0)  # what is published is stored
    assert opener.decide()
    assert opener.queue.checkpoint(A)[:2] == ([], ["/", "/new"]), "no checkpoint was made of its pages"


@pytest.mark.parametrize("method", ["get", "head"])
def test_what_recheck_finds_is_loaded_by_the_next_crawl(place: Place, method: str) -> None:
    """Eight sites, so that no luck of time is enough."""
    with sites(*({"/": links("/a"), "/a": leaf("old")} for _ in range(8))) as found:
        seeds = [site.root for site in found]
        given = {**AT_ONCE, "RECHECK_METHOD": method}
        place.crawl(seeds, **given).succeeded()
        for site in found:
            site.routes |= {"/": links("/a", "/b"), "/b": leaf("new"), "/a": leaf("and newer than before")}
        run = place.start_crawl([], "--when-idle", "wait", spider="recheck", **given)
        eventually(
            lambda: all(min(site.pages["/"], site.pages["/a"]) >= 2 for site in found), "all are asked"
        )
        run.end().succeeded()
        place.crawl([], RECHECK_INTERVAL_SECONDS=0).succeeded()
        for site in found:
            assert site.pages["/b"] == 1, site.pages
        texts = place.rows("select count(*) from pages where url like '%/a' and size > 20")
        assert texts == [(8,)]
    assert "balanced" in place.run("report", "ledger").succeeded().out


def test_what_revive_finds_is_loaded_by_the_next_crawl(place: Place) -> None:
    with sites(*({"/": links("/late"), "/late": Reply(404)} for _ in range(8))) as found:
        place.crawl([site.root for site in found], **AT_ONCE).succeeded()
        for site in found:
            site.routes |= {"/late": links("/fresh"), **leaves("/fresh")}
        place.crawl([], spider="revive", **AT_ONCE).succeeded()
        place.crawl([], **AT_ONCE).succeeded()
        for site in found:
            assert site.pages["/fresh"] == 1, site.pages


@pytest.mark.parametrize("kind", KINDS)
def test_each_url_that_a_full_site_is_offered_counts_once(kind: str, filled: OpenTables) -> None:
    engine, options = filled(kind), queue_options(max_pages_per_site=2)

    def refused(*paths: str) -> RefusedPages:
        found = refuse_full(engine, options, A, paths)
        assert found is not None
        if found.record:
            put_records(engine, msgspec.json.decode(found.record, type=SiteEnded))
        return found

    put(engine, A, "/", "/1")
    assert refuse_full(engine, options, A, ["/x"]) is None, "it is not finished"
    left = LeftOut()
    left.add("depth", ["/deep"])
    ended = SiteEnded(site=A, ended_at=7, finished=True, published=2, known=2, reason="given up: x")
    put_records(
        engine,
        msgspec.structs.replace(ended, left_out={"depth": 1, "copy": 3}, left_out_hashes=left.packed({})),
    )
    assert refused() == RefusedPages("copy3,depth1", b"")
    assert refused("/x", "/x?", "/deep").left_out == "copy3,depth1,pages1"
    assert refused("/x") == RefusedPages("copy3,depth1,pages1", b"")
    assert refused("/y").left_out == "copy3,depth1,pages2"
    with transaction(engine) as connection:
        row = connection.execute(select(tables.sites)).one()
    words = "left out: 3 links of copies, 2 pages by MAX_PAGES_PER_SITE, 1 pages by MAX_DEPTH"
    assert (row.reason, row.left_out, row.ended_at) == (f"given up: x; {words}", 6, 7)
    assert refuse_full(engine, queue_options(max_pages_per_site=3), A, ["/z"]) is None, "it may have one more"


def put_records(engine: Engine, *records: SiteEnded) -> None:
    number = next(_entries)
    with transaction(engine) as connection:
        store(connection, [Stored(f"{number}-0", record) for record in records])


def test_what_a_full_site_is_offered_is_left_out(place: Place) -> None:
    """It is counted with what the site's own pages name, once each, until the site may have more pages."""
    with SmallSite({"/": links("/a", "/over"), **leaves("/a", "/b", "/over")}) as site:
        place.crawl([site.root], MAX_PAGES_PER_SITE=2).succeeded()
        for paths, many in (["b"], 2), (["b"], 2), (["c", "b", "over", "b#x"], 3):
            run = place.crawl([site.root + path for path in paths], MAX_PAGES_PER_SITE=2).succeeded()
            assert f"{site.site}: {many} pages by MAX_PAGES_PER_SITE" in run.out
            assert ledger(place) == {"pages": many}
            assert place.rows("select reason from sites") == [
                (f"left out: {many} pages by MAX_PAGES_PER_SITE",)
            ]
        assert set(site.pages) == {"/", "/a"}
        place.crawl([f"{site.root}b"], MAX_PAGES_PER_SITE=3).succeeded()
        assert set(site.pages) == {"/", "/a", "/b"}
        assert ledger(place) == {"pages": 2}


def test_with_a_higher_limit_a_walk_again_finds_what_was_left_out(place: Place) -> None:
    with sites({"/": links("{1}/b")}, leaves("/", "/b")) as (hub, full):
        seeds = [hub.root, full.root]
        place.crawl([full.root], MAX_PAGES_PER_SITE=1).succeeded()
        place.crawl(seeds, MAX_PAGES_PER_SITE=1).succeeded()
        assert set(full.pages) == {"/"}
        assert ledger(place) == {"pages": 1}
        place.crawl(seeds, "--again", MAX_PAGES_PER_SITE=2).succeeded()
        assert set(full.pages) == {"/", "/b"}
        assert ledger(place) == {}


def ledger(place: Place) -> dict[str, int]:
    """What bounds leave out, by a ledger that balances."""
    found = json.loads(place.run("report", "ledger", "--json").succeeded().out)["ledger"]
    assert found["balanced"], found["wrong"]
    left_out: dict[str, int] = found["left_out"]
    return left_out
