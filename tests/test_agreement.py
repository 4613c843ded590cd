"""A database that lost rows while the queue lives: the ledger, the next crawl and `queue repair` see it and mend it.

First the comparison over a real queue and each kind of database, then commands as a person runs them.
"""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from scrapy.settings import Settings
from sqlalchemy import Engine, create_engine, delete, select, text, update

from crawler.admin import operator
from crawler.admin.repair import Repair, Repaired
from crawler.agent.frontier import Frontier
from crawler.queue.sites import Leased, Newcomer, Restored
from crawler.reconcile import agreement
from crawler.reconcile.agreement import UNKNOWN, Account, Owed
from crawler.reconcile.comparing import Comparison, count_lost
from crawler.records import (
    SET_HASHES,
    Page,
    Record,
    SiteEnded,
    SiteFound,
    SiteOpened,
    decode,
    encode,
    hash64,
    pack_links,
    set_hash,
)
from crawler.store.database import transaction
from crawler.store.tables import pages, sites
from crawler.store.write import DeadLetter, Stored, bury, store
from crawler.urls.scope import Scope
from tests.conftest import OpenTables
from tests.crawling import Place, fetched, wait_for_hits
from tests.databases import KINDS, fresh_database
from tests.farm import Farm
from tests.queue_driver import BASE, Driver, delivery, driver
from tests.servers import RunningServer, eventually
from tests.small_site import SmallSite, links

A, B = "https://a.example", "https://b.example"
PATHS = ["/", *(f"/{number}" for number in range(1, 9))]
every_kind = pytest.mark.parametrize("kind", KINDS)
some_kinds = pytest.mark.parametrize("kind", KINDS[:1])


# --- The comparison ---------------------------------------------------------------------------------------


class World:
    """A queue and its tables, whose sites' pages are walked without a web."""

    def __init__(self, queue: Driver, engine: Engine) -> None:
        self.queue, self.engine = queue, engine
        self.settings = Settings({"REDIS_URL": queue.server.url})
        self.clock = 1_000
        self._entries = 0
        self._held: dict[str, Leased] = {}
        queue.join("one", {})

    def walk(
        self, site: str, paths: Sequence[str], *, stored: bool = True, again: bool = False, left: int = 0
    ) -> Frontier:
        """Fetch these pages of a site, but for the last so many; it is finished where none is left."""
        self.queue.discover([Newcomer(site, b"")], 0, again=again)
        self._held |= {one.site: one for one in self.queue.take("one", 9)}
        leased = self._held.pop(site)
        frontier = Frontier(site=site)
        frontier.restore(self.queue.checkpoint(site)[0])
        frontier.add(paths, 0)
        for _ in range(len(paths) - left):
            if turn := frontier.take(0.0):
                self.load(site, turn.path, stored=stored)
                frontier.finish(turn)
        self._give_back(leased, frontier, stored=stored)
        return frontier

    def _give_back(self, leased: Leased, frontier: Frontier, *, stored: bool) -> None:
        figures = {
            "known": len(frontier),
            "done": frontier.published,
            "done_hash": frontier.done_hash,
        }
        self.queue.send("one", delivery(leased, 1, 0, delta=frontier.whole(), fold=True, **figures))
        end = SiteEnded(
            site=leased.site,
            ended_at=self.clock,
            finished=not frontier.pending,
            published=frontier.published,
            known=len(frontier),
            pending=frontier.pending,
        )
        how = "suspended" if frontier.pending else "finished"
        self.queue.leave("one", leased, how, detail=0, report=b"" if stored else encode(end), **figures)
        if stored:
            self.put(end)

    def load(self, site: str, path: str, *, stored: bool = True, links: bytes = b"", **more: Any) -> None:
        """A page, into the tables or into the stream."""
        self.clock += 1
        page = Page(site=site, path=path, fetched_at=self.clock, outcome="stored", status=200, **more)
        if stored:
            self.put(page, links=links)
        else:
            self.queue.tell([encode(page)])

    def put(self, *records: Record, links: bytes = b"") -> None:
        self._entries += 1
        with transaction(self.engine) as db:
            store(db, [Stored(f"{self._entries}-{n}", one, links) for n, one in enumerate(records)])

    def drop(self, site: str, *paths: str) -> None:
        """Rows of these pages are gone."""
        with transaction(self.engine) as db:
            db.execute(delete(pages).where(pages.c.url_hash.in_([hash64(site + path) for path in paths])))

    def accounts(self, *, whole: bool = False) -> dict[str, Account]:
        return self.queue.wait(self._compare(whole=whole))  # type: ignore[no-any-return]

    async def _compare(self, *, whole: bool) -> dict[str, Account]:
        queue, options = self.queue.queue, self.queue.options
        seen = await agreement.read_server(queue, self.queue.client, options.key_prefix)
        found = await agreement.compare(queue, self.engine, seen, self.settings, options, whole=whole)
        return {one.site: one for one in found}

    def wrong(self) -> dict[str, str]:
        """What both looks find, the quick one and the whole one."""
        quick = {site: one.wrong for site, one in self.accounts().items()}
        assert quick == {site: one.wrong for site, one in self.accounts(whole=True).items() if one.wrong}
        return quick

    def lose_queue(self) -> None:
        self.queue.raw.flushall()
        self.queue.join("one", {})

    def take_in(self) -> None:
        """What is in the stream, into the tables."""
        for entry, fields in self.queue.raw.xrange(BASE + "results"):
            with transaction(self.engine) as db:
                store(db, [Stored(entry.decode(), decode(fields)[0])])
            self.queue.raw.xdel(BASE + "results", entry)

    def repair(self, give_up: set[str] | None = None) -> Repaired:
        options = self.queue.options
        made = Repair(
            self.queue.queue, self.queue.client, self.engine, Scope(options), self.settings, options
        )
        doing = made.give_up(give_up) if give_up else made.run()
        return self.queue.wait(doing)  # type: ignore[no-any-return]

    def count_lost(self) -> int:
        """As `scrapy doctor` counts."""
        return count_lost(self.engine, self.queue.raw, self.queue.options.key_prefix)

    def rebuild(self) -> operator.Rebuilt:
        options = self.queue.options
        doing = operator.rebuild(self.queue.queue, self.engine, Scope(options), options)
        return self.queue.wait(doing)  # type: ignore[no-any-return]


@pytest.fixture
def world(kind: str, valkey: RunningServer, filled: OpenTables) -> Iterator[World]:
    with driver(valkey) as queue:
        yield World(queue, filled(kind))


@every_kind
def test_the_hash_of_rows_is_that_of_their_urls(world: World) -> None:
    """Whatever the signs of the hashes, and however often their sum goes around."""
    hashes = [0, -1, 1, 2**63 - 1, -(2**63), 2**32, -(2**32), 2**31, *map(hash64, PATHS)]
    with transaction(world.engine) as db:
        for number, one in enumerate(hashes):
            page = Page(site=A, path=f"/{number}", fetched_at=1, outcome="stored", status=200)
            store(db, [Stored("1-0", page)])
            db.execute(update(pages).where(pages.c.url_hash == hash64(page.url)).values(url_hash=one))
    for tables in (agreement.count_pages(world.engine), agreement.count_pages(world.engine, by_place=True)):
        assert tables.of(A).hash == set_hash(hashes)
        assert tables.of(A).places.total() == len(hashes)
    assert len(agreement.count_pages(world.engine, site=B).counted) == 0


@every_kind
def test_what_is_in_order_is_in_order(world: World) -> None:
    world.walk(A, PATHS)
    world.walk(B, PATHS, left=4)
    assert world.wrong() == {}
    accounts = world.accounts(whole=True)
    assert [accounts[site].places["stored"] for site in (A, B)] == [9, 5]
    assert (accounts[A].owed.pending, accounts[B].owed.pending) == (0, 4)
    assert not any(world.repair().values())


@every_kind
def test_rows_that_are_gone_are_missed(world: World) -> None:
    world.walk(A, PATHS)
    world.walk(B, PATHS, left=4)
    world.drop(A, "/3", "/4")
    world.drop(B, "/1")
    lost = "pages are not in the tables"
    assert world.wrong() == {A: f"2 of its 9 {lost}", B: f"1 of its 5 {lost}"}
    assert world.accounts()[B].missing == ("/1",)
    done = world.repair()
    assert (done["walked"], done["pages"]) == ([A], {B: 1})
    assert world.wrong() == {}
    assert not any(world.repair().values())
    # What is fetched now is what was missing, and of the finished site, whose pages nobody can name, all.
    of_a, of_b = world.walk(A, PATHS), world.walk(B, PATHS)
    assert (of_a.published, of_b.published) == (9, 9)
    assert world.wrong() == {}
    assert world.queue.state(A) == world.queue.state(B) == "finished"


@every_kind
def test_a_row_of_another_url_is_seen(world: World) -> None:
    world.walk(A, PATHS)
    with transaction(world.engine) as db:
        db.execute(
            update(pages)
            .where(pages.c.url_hash == hash64(A + "/3"))
            .values(url=A + "/other", url_hash=hash64(A + "/other"))
        )
    assert world.wrong() == {A: "the tables have other pages than those that were fetched"}
    assert world.repair()["walked"] == [A]


@every_kind
def test_pages_of_earlier_walks_are_no_loss_and_hide_none(world: World) -> None:
    world.walk(A, PATHS)
    world.walk(A, PATHS[:4], again=True)
    assert world.wrong() == {}
    assert world.accounts(whole=True)[A].earlier == 5
    # Recheck loads two that the walk did not meet: they are newer than the walk's, and not of it.
    for path in ("/7", "/8"):
        world.load(A, path, work="recheck")
    assert world.wrong() == {}
    assert world.accounts(whole=True)[A].earlier == 5
    world.drop(A, "/2")
    assert set(world.wrong()) == {A}, "an older row stands in for none of the walk's"


@every_kind
def test_what_is_on_its_way_counts(world: World) -> None:
    world.walk(A, PATHS, stored=False)
    assert world.wrong() == {}
    assert world.accounts(whole=True)[A].places == {"in_stream": 9}
    # Stored, and not acknowledged yet; among the dead letters; an older row of a page that is on its way.
    for number in range(3):
        world.put(Page(site=A, path=PATHS[number], fetched_at=1_001 + number, outcome="stored", status=200))
    world.put(Page(site=A, path="/8", fetched_at=5, outcome="failed", status=500))
    assert world.wrong() == {}
    assert world.accounts(whole=True)[A].places == {"in_stream": 6, "stored": 3}
    entries = world.queue.raw.xrange(BASE + "results")
    with transaction(world.engine) as db:
        bury(db, [DeadLetter(entries[5][0].decode(), "it does not fit", entries[5][1])])
    world.queue.raw.xdel(BASE + "results", entries[5][0])
    assert world.wrong() == {}
    assert world.accounts(whole=True)[A].places == {"in_stream": 5, "stored": 3, "refused": 1}
    world.queue.raw.xdel(BASE + "results", entries[6][0])
    assert world.wrong() == {A: "1 of its 9 pages are not in the tables"}


@every_kind
def test_a_site_that_only_one_side_knows(world: World) -> None:
    world.walk(A, PATHS)
    world.walk(B, PATHS)
    with transaction(world.engine) as db:
        db.execute(delete(sites))
    gone = "it is not in table sites"
    assert world.wrong() == {A: gone, B: gone}
    assert world.repair()["rewritten"] == [A, B]
    assert world.wrong() == {}, "its end is in the stream"
    other = "https://c.example"
    world.put(
        SiteFound(site=other, found_at=1),
        SiteEnded(site=other, ended_at=2, finished=False, published=0, known=3, pending=3),
    )
    assert world.wrong() == {other: "the queue does not know it"}
    assert world.repair()["restored"] == [other]
    assert world.queue.state(other) == "waiting"
    # A finished one is nobody's loss: it may be of a crawl before a reset.
    world.put(SiteEnded(site="https://d.example", ended_at=2, finished=True, published=0, known=0))
    assert world.wrong() == {}


@every_kind
def test_a_rebuilt_queue_agrees(world: World) -> None:
    world.walk(A, PATHS)
    world.walk(A, PATHS[:4], again=True)
    world.walk(B, PATHS, left=4)
    world.queue.part("one")
    world.queue.reset()
    world.rebuild()
    assert world.wrong() == {}
    assert world.queue.record(A).done_hash == set_hash(hash64(A + path) for path in PATHS[:4])
    world.drop(A, "/2")
    assert set(world.wrong()) == {A}


@some_kinds
def test_what_the_operator_wanted_comes_back_to_the_tables(world: World) -> None:
    world.walk(A, PATHS)
    world.walk(B, PATHS, left=4)
    world.queue.order(B, "block", "rude")
    world.queue.set_budget(A, 20)
    with transaction(world.engine) as db:
        db.execute(delete(sites))
    world.drop(B, "/1")
    assert set(world.wrong()) == {A, B}
    done = world.repair()
    assert (done["rewritten"], done["given_up"]) == ([A], [B])
    assert world.wrong() == {}
    orders = [
        entry[b"r"] for _, entry in world.queue.raw.xrange(BASE + "results") if b'"order"' in entry[b"r"]
    ]
    assert len(orders) == 2
    assert b'"reason":"rude"' in b"".join(orders)
    assert b'"pages":20' in b"".join(orders)
    assert world.queue.state(B) == "blocked"


@some_kinds
def test_a_site_that_an_agent_holds_is_left_until_the_agent_is_gone(world: World) -> None:
    world.walk(A, PATHS, left=4)
    world.drop(A, "/1")
    world.queue.take_one("one")
    assert world.repair()["left"] == [A]
    world.queue.pass_time(60_000_000)
    assert world.repair()["pages"] == {A: 1}
    assert world.wrong() == {}
    assert world.queue.state(A) == "suspended"


@some_kinds
def test_a_site_that_lost_its_pages_is_walked_again_when_it_is_opened_again(world: World) -> None:
    """A checkpoint that is made of the tables would hide what they lost."""
    world.walk(A, PATHS)
    assert agreement.lost_pages(world.engine, world.queue.record(A), 5) is None
    world.drop(A, "/3")
    lost = agreement.lost_pages(world.engine, world.queue.record(A), 5)
    whole, gone = set_hash(hash64(A + path) for path in PATHS), hash64(A + "/3") % SET_HASHES
    assert lost == Owed(5, 9, whole, 1, gone)


# --- What is owed -----------------------------------------------------------------------------------------


@some_kinds
def test_what_is_not_found_again_stays_told_until_it_is_given_up(world: World) -> None:
    """The walk that looked for it has figures of its own, which agree."""
    world.walk(A, PATHS)
    world.drop(A, "/7", "/8")
    assert world.repair()["walked"] == [A]
    world.walk(A, PATHS[:-2])
    told = {A: "of the 2 pages that were lost, 2 or more are not found again"}
    assert world.wrong() == told
    assert world.repair()["lost"] == [A]
    assert world.wrong() == told
    # Opened and walked once more: one of them comes back, then the other.
    for many in (-1, None):
        world.walk(A, PATHS[:many], again=True)
        assert set(world.wrong()) == ({A} if many else set())
    assert world.queue.wait(world.queue.queue.owed()) == {}


@some_kinds
def test_other_pages_stand_in_for_none_that_was_lost(world: World) -> None:
    world.walk(A, PATHS)
    world.drop(A, "/8")
    world.repair()
    world.walk(A, [*PATHS[:-1], "/x", "/y", "/z"])
    assert world.wrong() == {A: "of the 1 pages that were lost, 1 or more are not found again"}
    world.walk(A, [*PATHS, "/x", "/y", "/z"], again=True)
    assert world.wrong() == {}


@some_kinds
def test_what_a_site_lost_is_given_up_by_name(world: World) -> None:
    for site in (A, B):
        world.walk(site, PATHS)
        world.drop(site, "/8")
    world.repair()
    for site in (A, B):
        world.walk(site, PATHS[:-1])
    assert set(world.wrong()) == {A, B}
    assert world.repair(give_up={A})["given_up"] == [A]
    assert set(world.wrong()) == {B}
    assert not any(world.repair(give_up={A}).values())


@every_kind
def test_pages_of_other_sites_that_name_what_is_lost_are_fetched_again(world: World) -> None:
    """Once for each loss: what they name may be out of the crawl's scope."""
    naming = {"links": pack_links([B + "/8", A + "/1"]), "outside_hosts": ["b.example"]}
    other = {"links": pack_links(["https://c.example/x"]), "outside_hosts": ["c.example"]}
    world.walk(B, PATHS)
    world.walk(A, PATHS)
    world.clock += 1
    for path, more in (("/3", naming), ("/4", other), ("/5", {"redirect": B + "/8"})):
        world.load(A, path, **more)
    assert world.repair()["named"] == {}, "nothing is lost"
    world.drop(B, "/8")
    done = world.repair()
    assert (done["walked"], done["named"]) == ([B], {A: 2})
    frontier = Frontier(site=A)
    frontier.restore(world.queue.checkpoint(A)[0])
    assert {path for path, _ in frontier.to_fetch()} == {"/3", "/5"}
    assert world.wrong() == {}
    # They are fetched, and what they name is not found all the same.
    world.clock = 10**14
    world.walk(A, PATHS, again=True)
    for path, more in (("/3", naming), ("/5", {"redirect": B + "/8"})):
        world.load(A, path, **more)
    world.walk(B, PATHS[:-1])
    assert set(world.wrong()) == {B}
    assert (done := world.repair())["lost"] == [B]
    assert done["named"] == {}


@every_kind
def test_a_rebuild_fetches_pages_that_name_what_no_table_has(world: World) -> None:
    """What was offered to an unfinished site stood in the queue alone."""
    world.walk(A, PATHS)
    world.walk(B, PATHS, left=2)
    world.load(A, "/3", links=pack_links([B + "/offered"]), outside_hosts=["b.example"])
    world.lose_queue()
    world.rebuild()
    assert world.wrong() == {}
    assert (world.queue.state(A), world.queue.state(B)) == ("suspended", "suspended")
    frontier = Frontier(site=A)
    frontier.restore(world.queue.checkpoint(A)[0])
    assert [path for path, _ in frontier.to_fetch()] == ["/3"]
    assert (len(frontier), frontier.published) == (9, 8)


@some_kinds
def test_a_rebuild_says_which_pages_it_cannot_fetch_again(world: World) -> None:
    """Another site that named what was offered to a lost one is in an agent's hand."""
    world.walk(A, PATHS, left=1)
    world.walk(B, PATHS, left=2)
    world.load(A, "/3", links=pack_links([B + "/offered"]), outside_hosts=["b.example"])
    assert world.queue.forget(B) == 1
    assert world.queue.record(A).agent == "one"
    assert world.rebuild()["held"] == 1


@some_kinds
def test_a_rebuild_looks_for_nothing_that_names_a_finished_site(world: World) -> None:
    for site in (A, B):
        world.walk(site, PATHS)
    world.load(A, "/3", links=pack_links([B + "/offered"]), outside_hosts=["b.example"])
    world.lose_queue()
    world.rebuild()
    assert (world.queue.state(A), world.queue.state(B)) == ("finished", "finished")


@every_kind
def test_pages_that_an_unfinished_site_knew_are_owed_after_a_rebuild(world: World) -> None:
    world.walk(A, PATHS, left=4)
    world.lose_queue()
    world.rebuild()
    assert world.wrong() == {}
    world.walk(A, PATHS[:6])
    assert world.wrong() == {A: "of the 4 pages that were lost, 3 or more are not found again"}
    world.walk(A, PATHS, again=True)
    assert world.wrong() == {}


# --- Sites that are opened again --------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("way", ["again", "resumed", "repaired"])
def test_a_lost_queue_is_missed_where_a_finished_site_was_gone_on_with(world: World, way: str) -> None:
    """The tables hear of it in the call that opens the site."""
    world.walk(A, PATHS)
    if way == "again":
        world.queue.discover([Newcomer(A, b"")], 0, again=True)
    elif way == "resumed":
        world.queue.order(A, "block")
        world.queue.order(A, "resume")
    else:
        world.drop(A, "/3")
        world.repair()
    world.take_in()
    world.lose_queue()
    assert world.count_lost() == 1
    assert UNKNOWN in (world.wrong()[A] if way != "repaired" else UNKNOWN)
    world.rebuild()
    assert world.queue.state(A) == "suspended"
    world.walk(A, PATHS, stored=False)
    world.take_in()
    assert world.wrong() == {}
    assert world.queue.state(A) == "finished"


@some_kinds
def test_a_site_that_ended_after_it_was_opened_is_finished(world: World) -> None:
    """Whatever the order in which the records are stored."""
    end = SiteEnded(site=A, ended_at=1, finished=True, published=9, known=9)
    records = [Stored("9-0", end), Stored("8-0", SiteOpened(site=A, opened_at=1, known=9, pending=9))]
    for batch in ([records], [records[:1], records[1:]]):
        for some in batch:
            with transaction(world.engine) as db:
                store(db, some)
        with transaction(world.engine) as db:
            assert db.execute(select(sites.c.state, sites.c.published)).all() == [("finished", 9)]


@some_kinds
def test_a_repair_leaves_the_sites_of_another_crawl_alone(world: World) -> None:
    """Crawls may share tables; only what this queue has lost comes back to it."""
    lost, others = "https://lost.example", [f"https://o{number}.example" for number in range(3)]
    with driver(world.queue.server, key_prefix="other") as other:
        other.restore([Restored(site, "waiting", known=2) for site in others])
        for site in (lost, *others):
            world.put(
                SiteFound(site=site, found_at=1),
                SiteEnded(site=site, ended_at=2, finished=False, published=0, known=3, pending=3),
            )
        # One of them is finished, and rows of it are gone.
        world.put(SiteEnded(site=others[0], ended_at=3, finished=True, published=5, known=5))
        assert world.wrong() == {lost: "the queue does not know it"}
        assert world.repair()["restored"] == [lost]
        assert [record.site for record in world.queue.records()] == [lost]
        assert world.wrong() == {}


@some_kinds
def test_sites_that_a_reset_gave_up_are_not_those_that_are_lost_later(world: World) -> None:
    given_up, lost = ([f"https://{name}{number}.example" for number in range(1200)] for name in "gl")
    found = [SiteFound(site=site, found_at=1) for site in given_up]
    world.put(*found)
    world.queue.reset(gives_up=True)
    assert (world.wrong(), world.repair()["restored"]) == ({}, [])
    assert world.count_lost() == 0
    entry = f"{world.queue.server_ms()}-0"
    with transaction(world.engine) as db:
        store(db, [Stored(entry, SiteFound(site=site, found_at=2)) for site in (given_up[0], *lost)])
    unknown = dict.fromkeys((given_up[0], *lost), "the queue does not know it")
    assert world.wrong() == unknown, "all of them are named, and no others"
    assert world.count_lost() == len(unknown)
    assert world.repair()["restored"] == sorted(unknown)
    assert world.count_lost() == 0
    # A rebuild brings back the others too: from then on they are missed.
    world.rebuild()
    world.queue.reset()
    assert world.count_lost() == len(given_up) + len(lost)


@some_kinds
def test_a_count_that_began_before_a_reset_takes_no_part_of_it_away(world: World) -> None:
    """The reset makes the queue shrink, and a coordinator counts at once."""
    world.put(*(SiteFound(site=site, found_at=1) for site in (A, B)))
    comparison = Comparison(world.queue.raw, world.queue.options)
    comparison._count_if_due(world.engine)
    assert world.queue.tables_word().lost == 2
    world.queue.reset(gives_up=True)
    assert world.queue.tables_word() is None, "nothing was counted since"
    comparison._write(0, 2, 0)  # what a count says that began before
    assert world.queue.tables_word() is None
    comparison._count_if_due(world.engine)
    assert world.queue.tables_word().lost == 0


@some_kinds
def test_sites_are_compared_with_their_own_rows_whatever_their_ids(world: World) -> None:
    """Ids are signed; the two sides are walked in their order."""
    names = [f"https://s{number}.example" for number in range(3000)]
    world.queue.restore([Restored(site, "finished", known=2) for site in names[:2000]])
    world.put(
        *(
            SiteEnded(site=site, ended_at=2, finished=True, published=0, known=2, over_budget=2)
            for site in names[1000:]
        )
    )
    assert world.wrong() == dict.fromkeys(names[:1000], "it is not in table sites")
    assert set(world.accounts(whole=True)) == set(names)


# --- Commands ---------------------------------------------------------------------------------------------


def change(place: Place, *statements: str) -> None:
    with closing(sqlite3.connect(place.var / "crawl.db")) as db, db:
        for statement in statements:
            db.execute(statement)


def ledger(place: Place, code: int, **given: Any) -> dict[str, Any]:
    run = place.run("report", "ledger", "--json", **given)
    assert run.code == code, run.err + run.out
    found: dict[str, Any] = json.loads(run.out)["ledger"]
    assert found["balanced"] is (code == 0)
    return found


def check_seen(place: Place, lost: set[str], **given: Any) -> None:
    """By the ledger, and by a crawl that finds nothing to do; both name the sites and what mends them."""
    assert set(ledger(place, 1, **given)["wrong"]) == lost
    told = place.run("report", "ledger", **given)
    assert "NOT balanced" in told.out
    run = place.crawl([], **given)
    assert run.code == 1, run.err + run.out
    for said in (told.out, run.err):
        assert all(site in said for site in lost), said
        assert "scrapy queue repair" in said


def repair(place: Place, **given: Any) -> dict[str, Any]:
    """What `queue repair` did; a second one has nothing to do."""
    done: dict[str, Any] = json.loads(place.run("queue", "repair", "--json", **given).succeeded().out)
    assert any(done.values()), done
    assert "queue and tables agree" in place.run("queue", "repair", **given).succeeded().out
    return done


def check_mended(place: Place, **given: Any) -> None:
    """By the next crawl."""
    place.crawl([], **given).succeeded()
    assert ledger(place, 0, **given)["pending"] == 0


OF_A_PAGE = "where id = (select max(id) from pages where outcome = 'stored' and depth > 0)"
LOSSES = {
    "emptied": ["delete from pages", "delete from sites"],
    "pages": ["delete from pages"],
    "a tenth": ["delete from pages where id % 10 = 0"],
    "a page": [f"delete from pages {OF_A_PAGE}"],
    "another URL": [f"update pages set url = url || 'x', url_hash = url_hash + 1 {OF_A_PAGE}"],
    "a site": [
        "delete from pages where site_id = (select min(site_id) from sites)",
        "delete from sites where site_id = (select min(site_id) from sites)",
    ],
    "rows of sites": ["delete from sites"],
    "states": ["update sites set state = 'queued', published = 0, known = 0, ended_entry = null"],
}
OF_ALL_SITES = ("emptied", "pages", "rows of sites", "states")
OF_ONE = ("a page", "another URL", "a site")


@pytest.mark.parametrize("name", LOSSES)
def test_lost_rows_are_seen_and_mended(name: str, place: Place) -> None:
    with Farm(sites=3, pages=12, kinds=[]) as farm:
        place.crawl(farm.seeds).succeeded()
        before = place.stored()
        change(place, *LOSSES[name])
        lost = set(ledger(place, 1)["wrong"])
        assert len(lost) == {**dict.fromkeys(OF_ALL_SITES, 3), **dict.fromkeys(OF_ONE, 1)}.get(
            name, len(lost)
        )
        check_seen(place, lost)
        repair(place)
        check_mended(place)
        after = place.stored()
        assert {site: urls & after[site] for site, urls in before.items()} == before
        assert place.rows("select count(*) from sites where state = 'finished'") == [(3,)]


def test_a_restored_backup_is_seen_and_only_what_it_lacks_is_fetched(place: Place) -> None:
    """An older copy of the database, with the queue as it is now: of unfinished sites the missing pages are known."""
    with Farm(sites=2, pages=60, kinds=[], delay_ms=30) as farm:
        for hits in (20, 60):
            shutil.copytree(
                place.var, place.folder / f"copy-{hits}", dirs_exist_ok=True
            ) if hits == 60 else None
            run = place.start_crawl(farm.seeds)
            wait_for_hits(farm, hits)
            run.end().succeeded()
        for left in place.var.glob("crawl.db*"):
            left.unlink()
        for kept in (place.folder / "copy-60").glob("crawl.db*"):
            shutil.copy(kept, place.var)
        lost = ledger(place, 1)["missing"]
        assert lost > 0
        done = repair(place)
        assert sum(done["pages"].values()) == lost
        assert not done["walked"]
        before = len(farm.hits())
        have = {url for urls in place.stored().values() for url in urls}
        check_mended(place)
        assert place.stored() == {site: set(urls) for site, urls in farm.expected().items()}
        asked = fetched(farm.hits()[before:])
        assert not have & asked.keys(), "what is there is not fetched again"


def test_a_database_that_is_gone_is_seen_by_the_next_crawl(place: Place) -> None:
    with Farm(sites=2, pages=8, kinds=[]) as farm:
        place.crawl(farm.seeds).succeeded()
        for left in place.var.glob("crawl.db*"):
            left.unlink()
        run = place.crawl([])
        assert run.code == 1, run.err
        assert all(site in run.err for site in farm.expected())
        assert len(repair(place)["from_root"]) == 2
        check_mended(place)
        assert place.stored() == {site: set(urls) for site, urls in farm.expected().items()}


def test_a_walk_again_is_seen_and_mended(place: Place) -> None:
    with SmallSite({"/": links("/a", "/b"), "/a": links(), "/b": links("/c"), "/c": links()}) as site:
        place.crawl([site.site]).succeeded()
        place.crawl([site.site], "--again", MAX_DEPTH=1).succeeded()
        assert ledger(place, 0)["earlier"] == 1
        change(place, "delete from pages where url like '%/b'")
        assert set(ledger(place, 1)["wrong"]) == {site.site}, (
            "the earlier row stands in for none of this walk"
        )
        repair(place)
        check_mended(place)


def test_a_site_that_is_opened_again_shows_what_it_lost(place: Place) -> None:
    """A checkpoint made of the tables would make the loss the truth: the whole site is walked again instead."""
    routes = {"/": links("/a", "/b"), "/a": links(), "/b": links("/c"), "/c": links(), "/new": links()}
    with SmallSite(routes) as site:
        place.crawl([site.site]).succeeded()
        change(place, "delete from pages where url like '%/b'")
        place.crawl([f"{site.site}/new"]).succeeded()
        assert "/b" in {url.removeprefix(site.site) for url in place.stored()[site.site]}
        assert ledger(place, 0)["stored"] + ledger(place, 0)["duplicate"] == len(routes)


def test_several_agents_end_with_an_error_too(place: Place) -> None:
    """The command looks once for all of them, and starts none of them again."""
    with Farm(sites=2, pages=8, kinds=[]) as farm:
        place.crawl(farm.seeds, "--agents", "2").succeeded()
        change(place, "delete from pages where id % 3 = 0")
        run = place.crawl([], "--agents", "2", "--no-summary")
        assert run.code == 1
        assert run.err.count("queue and tables differ on 2 sites") == 1


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_cluster_sees_and_mends_it(kind: str, place: Place, valkey: RunningServer) -> None:
    with fresh_database(kind, place.folder) as database, Farm(sites=2, pages=12, kinds=[]) as farm:
        given = {"REDIS_URL": valkey.url, "DATABASE_URL": database}
        coordinator = place.start("coordinate", BATCH_SECONDS=0.1, **given)
        engine = create_engine(database)
        place.crawl(farm.seeds, **given).succeeded()
        eventually(lambda: all_stored(place, given), "all is stored", 60)
        with engine.begin() as db:
            expected = db.execute(select(pages.c.url)).scalars().all()
            db.execute(text("delete from pages where mod(id, 3) = 0"))
        check_seen(place, set(farm.expected()), **given)
        another = place.start("coordinate", **given)
        another.says("queue and tables differ on 2 sites")
        another.end(signal.SIGTERM).succeeded()
        repair(place, **given)
        place.crawl([], **given)
        eventually(lambda: all_stored(place, given), "all is mended", 60)
        with engine.begin() as db:
            assert set(expected) <= set(db.execute(select(pages.c.url)).scalars())
        engine.dispose()
        coordinator.end(signal.SIGTERM).succeeded()


def all_stored(place: Place, given: dict[str, Any]) -> bool:
    run = place.run("report", "ledger", "--json", **given)
    return run.code == 0 and not json.loads(run.out)["ledger"]["in_stream"]
