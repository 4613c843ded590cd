"""What agents tell of sites' load: which pages are timed, what counts as refused, and when a visit's record comes."""

from __future__ import annotations

import time

import pytest

from crawler.agent.observer import LEAST_PAGES, MOST_TIMES, LoadSample, SiteLoad
from crawler.records import SiteEnded, Visit
from tests.crawling import Place
from tests.servers import RunningServer
from tests.small_site import Reply, SmallSite, at_first, links, text
from tests.told import told

# --- One slot's measuring ---------------------------------------------------------------------------------


def test_the_median_of_an_hour_is_told_when_the_next_begins() -> None:
    load = SiteLoad()
    assert [load.answered(7, seconds) for seconds in (0.3, 0.1, 9.0, None)] == [None] * 4
    assert load.answered(8, 0.2) == LoadSample(7, 3, 0.3, 0.0)
    assert load.take() is None, "one page says nothing"
    assert load.take() is None


def test_too_few_pages_are_not_told_but_a_refusal_is() -> None:
    load = SiteLoad()
    for _ in range(LEAST_PAGES - 1):
        load.answered(7, 0.1)
    assert not load.tells
    assert load.refused(8) is None
    load.answered(8, None)
    assert load.tells
    assert load.take() == LoadSample(8, 0, 0.0, 0.5)


def test_an_hour_of_many_pages_takes_little_room() -> None:
    load = SiteLoad()
    for number in range(100_000):
        load.answered(7, 1.0 + number)
    assert len(load._times) < MOST_TIMES
    seen = load.take()
    assert seen is not None
    assert seen.pages == 100_000
    assert seen.seconds == pytest.approx(50_000, rel=0.02)


# --- Crawls -----------------------------------------------------------------------------------------------


# No hour ends while a crawl runs, which would tell of it in two parts.
LONG_HOUR = 1_000_000


def visits(valkey: RunningServer) -> list[Visit]:
    return [record for record in told(valkey) if isinstance(record, Visit)]


def test_a_lease_tells_what_it_saw(place: Place, valkey: RunningServer) -> None:
    """Timed is what came at once as HTML; robots.txt, another try, and other kinds only count as requests."""
    page = links("/a", "/b", "/c", "/file", seconds=0.5)
    busy = at_first(Reply(429, {"Retry-After": "0"}), page)
    routes = {"/": page, "/a": page, "/b": page, "/c": busy, "/file": text("x")}
    with SmallSite(routes) as site:
        place.crawl([site.root], REDIS_URL=valkey.url, HOUR_SECONDS=LONG_HOUR).succeeded()
    (visit,) = visits(valkey)
    assert visit.site == site.site
    assert visit.hour == int(time.time() // LONG_HOUR)
    assert visit.pages == 3
    assert 0.5 <= visit.seconds < 3 * 0.5, "of one page, not of all three"
    assert visit.refused == pytest.approx(1 / 7)
    assert (visit.delay_seconds, visit.hours_open) == (0.0, "")
    records = told(valkey)
    (ended,) = [record for record in records if isinstance(record, SiteEnded)]
    assert records.index(visit) < records.index(ended)
    assert ended.published == 5, "the visit is no page"
    numbers = [(record.agent, record.seq) for record in records if record.seq]
    assert len(numbers) == len(set(numbers))


def test_pause_and_window_are_told_and_small_sites_are_silent(place: Place, valkey: RunningServer) -> None:
    now = time.time()
    window = "-".join(time.strftime("%H%M", time.gmtime(at)) for at in (now - 3600, now + 3600))
    robots = text(f"User-agent: *\nCrawl-delay: 0.25\nVisit-time: {window}\n")
    many = {"/robots.txt": robots, "/": links("/a", "/b", "/c"), "*": links()}
    with SmallSite(many) as one, SmallSite({"/": links("/a"), "*": links()}, "127.0.1.2") as small:
        place.crawl([one.root, small.root], REDIS_URL=valkey.url, HOUR_SECONDS=LONG_HOUR).succeeded()
    (visit,) = visits(valkey)
    assert (visit.site, visit.pages) == (one.site, 4)
    assert (visit.delay_seconds, visit.hours_open) == (0.25, window)


def test_each_hour_is_told_once(place: Place, valkey: RunningServer) -> None:
    """But for those of few pages, of which a busy machine makes some."""
    began = time.time()
    with SmallSite({"/": links(*map(str, range(25))), "*": links()}) as site:
        place.crawl([site.root], REDIS_URL=valkey.url, HOUR_SECONDS=1, DOWNLOAD_DELAY=0.1).succeeded()
    found = visits(valkey)
    assert found
    assert [visit.hour for visit in found] == sorted({visit.hour for visit in found})
    assert all(visit.pages >= LEAST_PAGES for visit in found)
    hours = int(time.time()) - int(began) + 1
    assert 0 <= 26 - sum(visit.pages for visit in found) < LEAST_PAGES * hours


def test_a_site_without_an_answer_in_time_is_told_as_refusing(place: Place, valkey: RunningServer) -> None:
    given = {"HEAD_TIMEOUT_SECONDS": 0.3, "MAX_TRIES": 2, "HOUR_SECONDS": LONG_HOUR}
    with SmallSite({"/": Reply(200, {}, "late", 5.0)}) as site:
        place.crawl([site.root], REDIS_URL=valkey.url, **given).succeeded()
    (visit,) = visits(valkey)
    assert (visit.pages, visit.seconds) == (0, 0.0)
    assert visit.refused == pytest.approx(2 / 3)
