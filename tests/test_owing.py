"""What is owed after a loss, and which rows settle it; and crawls of sites whose pages only others name."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from crawler.reconcile.agreement import Owed, read_owed, what_is_missing
from crawler.records import SET_HASHES, hash64, set_hash
from tests.crawling import Place
from tests.servers import RunningServer, eventually
from tests.small_site import SmallSite, links, text
from tests.test_agreement import change, ledger
from tests.test_losses import Crawl

# --- What settles it --------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """Hashes of rows that were kept, of those that were lost, and of some that come later."""

    kept: set[int]
    lost: set[int]
    new: set[int]

    @property
    def owed(self) -> Owed:
        rows = self.kept | self.lost
        return Owed(7, len(rows), set_hash(rows), len(self.lost), set_hash(self.lost))


def loss(kept: int, lost: int, new: int) -> Loss:
    names = [hash64(f"{random.random()}") for _ in range(kept + lost + new)]
    return Loss(set(names[:kept]), set(names[kept : kept + lost]), set(names[kept + lost :]))


@pytest.mark.parametrize("lost", range(1, 6))
@pytest.mark.parametrize("new", range(6))
def test_what_is_found_again_is_not_missed(lost: int, new: int) -> None:
    """And what is not found is, whatever came in its place; where it cannot be told it is missed too."""
    one = loss(20, lost, new)
    all_there = what_is_missing(one.owed, one.kept | one.lost | one.new, 0)
    assert bool(all_there) == (lost > 2 and new > 2)
    assert not all_there or "is unknown whether" in all_there
    some = set(list(one.lost)[1:])
    assert what_is_missing(one.owed, one.kept | some | one.new, 0)
    assert what_is_missing(one.owed, one.kept, 0)


def test_one_hash_twice_is_no_two_pages() -> None:
    one = loss(5, 2, 3)
    half = hash64("half")
    owed = one.owed._replace(missing_hash=2 * half % SET_HASHES)
    assert what_is_missing(owed, one.kept | one.new | {half}, 0)


def test_where_only_a_number_is_known_that_counts() -> None:
    owed = Owed(7, 10, None, 3)
    assert (
        what_is_missing(owed, set(range(9)), 0)
        == "of the 3 pages that were lost, 1 or more are not found again"
    )
    assert what_is_missing(owed, set(range(9)), 1) == "", "a limit leaves out one"
    assert what_is_missing(owed, set(range(11)), 0) == ""


@pytest.mark.parametrize("owed", [Owed(1, 2, 3, 4, 5), Owed(1, 2, None), Owed(1, 2, 2**64 - 1)])
def test_it_is_read_as_it_was_written(owed: Owed) -> None:
    assert read_owed(owed.text) == owed


@pytest.mark.parametrize("words", ["", "1", "1 2 3 4", "a b c d e", "- 1 2 3 4", "1 - 2 3 4"])
def test_what_is_nothing_of_this_is_left(words: str) -> None:
    assert read_owed(words) is None


def test_a_second_loss_adds_to_the_first() -> None:
    both = Owed(9, 10, 5, 2, 3).and_before(Owed(4, 12, 6, 1, 2))
    assert both == Owed(4, 12, None, 3)
    assert Owed(9, 10, 5, 2, 3).and_before(None) == Owed(9, 10, 5, 2, 3)


# --- Crawls -----------------------------------------------------------------------------------------------


class Web(NamedTuple):
    """One site's page leads to `/orphan` of the other, and that to `/child`; nothing leads to `/island`."""

    naming: SmallSite
    other: SmallSite

    @property
    def roots(self) -> list[str]:
        return [self.naming.root, self.other.root]


ORPHANS = {"/orphan", "/child"}


@contextmanager
def web() -> Iterator[Web]:
    routes = {
        "/": links("/a"),
        "/a": text("a"),
        "/new": text("new"),
        "/island": text("island"),
        "/orphan": links("/child", "/"),
        "/child": text("child"),
    }
    with SmallSite(routes, "127.0.5.2") as other, SmallSite({}, "127.0.5.1") as naming:
        outside = "http://127.0.5.9:1/"  # out of scope
        naming.routes |= {
            "/": links("/names", "/x"),
            "/names": links(f"{other.site}/orphan", outside),
            "/x": text("x"),
        }
        yield Web(naming, other)


def have(place: Place, site: SmallSite) -> set[str]:
    return {url.removeprefix(site.site) for url in place.stored().get(site.site, set())}


def test_pages_that_only_another_site_names_come_back(place: Place) -> None:
    with web() as one:
        place.crawl(one.roots).succeeded()
        assert have(place, one.other) >= ORPHANS
        change(place, "delete from pages where url like '%/orphan' or url like '%/child'")
        done = json.loads(place.run("queue", "repair", "--json").succeeded().out)
        assert (done["walked"], done["named"]) == ([one.other.site], {one.naming.site: 1})
        before = one.naming.pages
        place.crawl([]).succeeded()
        assert one.naming.pages - before == {"/names": 1}
        assert have(place, one.other) >= ORPHANS
        ledger(place, 0)
        assert "nothing to repair" in place.run("queue", "repair").succeeded().out


def test_a_seed_that_was_lost_stays_told(place: Place) -> None:
    """No row knows it; given again it is found, and if nobody wants it, it is given up."""
    with web() as one:
        island = f"{one.other.site}/island"
        place.crawl([*one.roots, island]).succeeded()
        shutil.copytree(place.var, place.folder / "before")
        for wanted in (True, False):
            shutil.rmtree(place.var)
            shutil.copytree(place.folder / "before", place.var)
            change(place, "delete from pages where url like '%/island'")
            place.run("queue", "repair").succeeded()
            place.crawl([]).refused(one.other.site, "lost", code=1)
            assert set(ledger(place, 1)["wrong"]) == {one.other.site}
            said = place.run("queue", "repair").succeeded().out
            assert "--give-up" in said
            assert "next:" not in said, "another crawl finds no more"
            if wanted:
                place.crawl([island]).succeeded()
            else:
                place.crawl([]).refused(one.other.site, code=1)
                place.run("queue", "repair", "--give-up", "127.0.5.3").refused("no site")
                said = place.run("queue", "repair", "--give-up", one.other.site).succeeded().out
                assert one.other.site in said
                place.crawl([]).succeeded()
            ledger(place, 0)


def test_a_site_that_is_opened_without_a_repair_tells_what_it_lost(place: Place) -> None:
    with web() as one:
        place.crawl(one.roots).succeeded()
        change(place, "delete from pages where url like '%/orphan' or url like '%/child'")
        place.crawl([f"{one.other.site}/new"]).refused(one.other.site, "not found again", code=1)
        ledger(place, 1)
        place.run("queue", "repair").succeeded()
        place.crawl([]).succeeded()
        assert have(place, one.other) >= ORPHANS | {"/new"}
        ledger(place, 0)


def test_what_was_offered_to_a_site_outlives_the_queue(place: Place) -> None:
    """The other one is paused, so that the path stands in Redis alone."""
    with web() as one:
        place.crawl([one.other.root]).succeeded()
        place.run("site", "pause", one.other.site).succeeded()
        place.crawl([one.naming.root]).succeeded()
        assert not have(place, one.other) & ORPHANS
        shutil.rmtree(place.var / "valkey")
        place.run("queue", "rebuild").succeeded()
        place.run("site", "resume", one.other.site).succeeded()
        place.crawl([]).succeeded()
        assert have(place, one.other) >= ORPHANS
        ledger(place, 0)


def test_a_walk_again_that_lost_its_queue_is_missed(place: Place, valkey: RunningServer) -> None:
    crawl = Crawl(place, valkey)
    pages = {f"/{number}": text(f"{number}") for number in range(40)}
    with SmallSite({"/": links(*pages), **pages}, "127.0.5.4") as site:
        coordinator = crawl.coordinator()
        crawl.agent([site]).wait().succeeded()
        pages["/late"] = text("late")
        site.routes |= {"/": links(*pages), **pages}
        before = len(site.log)
        agent = crawl.agent([site], "--again", DOWNLOAD_DELAY=0.5)
        eventually(lambda: len(site.log) > before + 2, "the site is walked again")
        opened = "select count(*) from sites where state = 'unfinished' and published = 0"
        eventually(lambda: place.rows(opened) == [(1,)], "the tables know it")
        valkey.client.flushall()
        agent.wait().refused("the queue does not know 1 unfinished sites", code=1)
        assert "lacks 1 unfinished sites" in crawl.run("doctor").out
        crawl.run("queue", "rebuild").succeeded()
        crawl.agent([]).wait().succeeded()
        eventually(lambda: "/late" in have(place, site), "it is walked to its end")
        coordinator.end(signal.SIGTERM).succeeded()
