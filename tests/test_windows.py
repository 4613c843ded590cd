"""Visit-time of robots.txt: when a site lets itself be visited, and that nobody fetches a page of it at other times."""

from __future__ import annotations

import time

import pytest

from crawler.robots.policy import rules
from crawler.robots.rules import DAY_SECONDS, Window
from tests.crawling import Place
from tests.drills import key
from tests.servers import RunningServer, eventually
from tests.small_site import Reply, SmallSite, links, text

SITE = "https://example.org"
HOUR = 3600
# Some midnight.
MIDNIGHT = 20_000 * DAY_SECONDS


def hhmm(at: float) -> str:
    return time.strftime("%H%M", time.gmtime(at))


def visit_time(opens: float, closes: float) -> Reply:
    """A robots.txt with this window, of times since 1970."""
    return text(f"User-agent: *\nVisit-time: {hhmm(opens)}-{hhmm(closes)}\n")


# --- The window -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "at", "wait"),
    [
        ("0100-0800", 0, HOUR),
        ("0100-0800", HOUR, 0),
        ("0100-0800", 8 * HOUR - 1, 0),
        ("0100-0800", 8 * HOUR, 17 * HOUR),
        ("2230-0415", 4 * HOUR, 0),
        ("2230-0415", 23 * HOUR, 0),
        ("2230-0415", 5 * HOUR, 17.5 * HOUR),
        ("2230-2400", 0, 22.5 * HOUR),
        ("2230-2400", 24 * HOUR - 1, 0),
    ],
)
def test_how_long_until_it_opens(given: str, at: float, wait: float) -> None:
    window = Window.read(given)
    assert window is not None
    assert window.wait(MIDNIGHT + at) == wait
    assert str(window) == given


@pytest.mark.parametrize(
    ("given", "at", "share"),
    [
        ("0100-0800", 0.5 * HOUR, 0.5),
        ("0100-0800", HOUR, 1.0),
        ("0100-0800", 8 * HOUR, 0.0),
        ("2330-0015", 23 * HOUR, 0.5),
        ("2330-0015", 23.5 * HOUR, 0.75),
        ("2330-0015", 0, 0.25),
    ],
)
def test_how_much_of_an_hour_it_is_open(given: str, at: float, share: float) -> None:
    window = Window.read(given)
    assert window is not None
    assert window.share(MIDNIGHT + at, HOUR) == pytest.approx(share)
    assert window.share(MIDNIGHT + at, 7 * DAY_SECONDS) == pytest.approx(
        (window.closes - window.opens) % 1440 / 1440
    )


def test_the_whole_day_is_no_window() -> None:
    assert Window.between(0, 0) is Window.between(0, 1439) is Window.between(480, 480) is None
    assert Window.read("") is None
    assert Window.between(60, 480) == Window.read("0100-0800")


@pytest.mark.parametrize("given", ["0100", "2500-0100", "0160-0800", "2400-0100", "a", "0100-0800 UTC"])
def test_what_is_no_window_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="expected HHMM-HHMM"):
        Window.read(given)


@pytest.mark.parametrize(
    ("lines", "window"),
    [
        ("User-agent: *\nVisit-time: 0100-0800", "0100-0800"),
        ("User-agent: *\nVisit-time: 2200-0630 # at night", "2200-0630"),
        ("User-agent: other\nVisit-time: 0100-0800", ""),
        ("User-agent: *\nVisit-time: 0000-2359", ""),
        ("User-agent: *\nVisit-time: at night", ""),
        ("User-agent: *\nDisallow: /x", ""),
    ],
)
def test_the_window_that_is_asked_for(lines: str, window: str) -> None:
    assert str(rules(200, lines.encode(), SITE, "lowtide", 500_000).window or "") == window


# --- Crawls -----------------------------------------------------------------------------------------------


def due(valkey: RunningServer, site: SmallSite) -> float:
    found = valkey.client.zscore(key("wake:site"), site.site)
    assert isinstance(found, float), f"{site.site} does not wait"
    return found / 1000


def test_a_site_that_is_closed_is_left_until_it_opens(place: Place, valkey: RunningServer) -> None:
    """Whatever HOUR_SECONDS says, it is real hours that robots.txt means; an open site beside it is walked."""
    opens = (time.time() + 2 * HOUR) // 60 * 60
    closed = {"/robots.txt": visit_time(opens, opens + HOUR), "*": links("/a")}
    open_now = {"/robots.txt": visit_time(opens - 3 * HOUR, opens - HOUR), "*": links("/a")}
    with SmallSite(closed) as one, SmallSite(open_now, "127.0.1.2") as two:
        run = place.crawl([one.root, two.root], REDIS_URL=valkey.url, HOUR_SECONDS=600).succeeded()
        assert one.paths == ["/robots.txt"]
        assert two.pages == {"/": 1, "/a": 1}
        assert abs(due(valkey, one) - opens) < 1
        words = time.strftime("robots.txt allows visits from %H:%M to ", time.gmtime(opens))
        assert words in run.err


@pytest.mark.drill
def test_a_window_opens_and_closes_under_a_crawl(place: Place, valkey: RunningServer) -> None:
    """A site that opens within a minute is waited for in hand; one that closes goes back for a day."""
    eventually(lambda: 5 < time.time() % 60 < 45, "a minute that is long enough", 30)
    change = time.time() // 60 * 60 + 60
    soon = {"/robots.txt": visit_time(change, change + HOUR), "*": links("/a")}
    over = {"/robots.txt": visit_time(change - 2 * HOUR, change), "*": links(*map(str, range(2000)))}
    with SmallSite(soon) as one, SmallSite(over, "127.0.1.2") as two:
        run = place.start_crawl([one.root, two.root], REDIS_URL=valkey.url, DOWNLOAD_DELAY=0.1)
        run.wait(120).succeeded()
        ahead = change - time.time() + time.monotonic()  # the change on the sites' clock
        assert one.pages == {"/": 1, "/a": 1}
        assert min(asked.at for asked in one.log if asked.path != "/robots.txt") >= ahead - 0.1
        assert len(two.pages) > 20
        assert max(asked.at for asked in two.log) < ahead + 5, "as many again would take three minutes"
        assert abs(due(valkey, two) - (change - 2 * HOUR + DAY_SECONDS)) < 1
