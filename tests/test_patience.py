"""How long a site is waited for: by its own times, never less than the least nor more than the settings say."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scrapy import Request
from scrapy.http import Response

from crawler.agent.frontier import Turn
from crawler.agent.requests import RequestContext
from crawler.fetch import errors
from crawler.fetch.context import KEY
from crawler.fetch.handler import CurlDownloadHandler
from crawler.fetch.timeouts import (
    BY_OTHERS,
    BY_SITE,
    FEW_TIMES,
    LEAST_TIMES,
    MOST_TIMES,
    AdaptiveTimeouts,
    Crowd,
    Least,
    Limit,
    Limits,
    SiteTimeouts,
    taken_in,
)
from crawler.fetch.wire import wire_of
from tests.crawling import Place
from tests.raw_server import (
    Exchange,
    RawServer,
    Serve,
    answer,
    in_loop,
    page,
    repeat_after,
    stay_silent_after,
)
from tests.servers import RunningServer
from tests.small_site import SmallSite, links
from tests.test_download import HEAD, failure, handler_with
from tests.told import told_pages

LEAST = Least(2.0, 2.0, 4.0)
LIMITS = Limits(Limit(15.0, "C"), Limit(10.0, "H"), Limit(20.0, "B"), 1, 1, 1)


def times(
    connect: float | None = None, head: float | None = None, body: float | None = None
) -> dict[str, Any]:
    """Of one request; a `connect` of 0.0 is a connection that was there already."""
    reused = connect == 0.0
    return {"connect_s": connect, "tls_s": 0.0, "reused": reused, "head_s": head, "body_s": body}


def used_to(head: float, agent: AdaptiveTimeouts | None = None, many: int = FEW_TIMES) -> SiteTimeouts:
    """A site whose heads took so long, again and again."""
    site = SiteTimeouts(agent or AdaptiveTimeouts(LEAST, 0.0, 3))
    for _ in range(many):
        site.take_in(times(0.0, head, head))
    return site


# --- The rule -------------------------------------------------------------------------------------------------


def test_an_unknown_site_has_the_settings_limits() -> None:
    site = SiteTimeouts(AdaptiveTimeouts(LEAST, 0.0, 3))
    assert site.narrow(LIMITS, 1) == LIMITS
    site.take_in(times(0.01, 0.01))
    assert site.narrow(LIMITS, 1) == LIMITS, "one time is too little to go by"


def test_a_limit_is_the_mean_and_four_deviations() -> None:
    """The sums of RFC 6298, section 2, for times of 1 and 2 s in turn."""
    site = SiteTimeouts(AdaptiveTimeouts(Least(0.0, 0.0, 0.0), 0.0, 3))
    mean, deviation = 1.0, 0.5
    site.take_in(times(0.0, 1.0))
    for number in range(1, 20):
        seconds = 1.0 + number % 2
        deviation = 3 / 4 * deviation + 1 / 4 * abs(mean - seconds)
        mean = 7 / 8 * mean + 1 / 8 * seconds
        site.take_in(times(0.0, seconds))
    limit = site.narrow(LIMITS, 1).head
    assert limit.seconds == pytest.approx(mean + 4 * deviation)
    assert limit.name == BY_SITE
    assert site.narrow(LIMITS, 1).connect == LIMITS.connect, "a kept connection says nothing of connecting"


def test_a_limit_lies_between_the_least_and_the_settings() -> None:
    assert used_to(0.001).narrow(LIMITS, 1).head.seconds == 2.0
    assert used_to(0.001).narrow(LIMITS, 1).body.seconds == 4.0
    assert used_to(9.0).narrow(LIMITS, 1).head == LIMITS.head
    short = Limits(*[Limit(0.5, "download_timeout")] * 3, 1, 1, 1)
    assert used_to(0.001).narrow(short, 1) == short, "below the least only where a setting says so"


def test_a_late_stage_gets_twice_the_time_until_it_is_in_time() -> None:
    site = used_to(0.001)
    seen = []
    for _ in range(4):
        seen.append(site.narrow(LIMITS, 1).head.seconds)
        site.was_late(errors.HeadTimeoutError("late"))
    assert seen == [2.0, 4.0, 8.0, 10.0]
    assert site.narrow(LIMITS, 1).body.seconds == 4.0, "of that stage alone"
    for _ in range(10_000):
        site.was_late(errors.HeadTimeoutError("late"))
    assert site.narrow(LIMITS, 1).head == LIMITS.head
    site.take_in(times(0.0, 0.001))
    assert site.narrow(LIMITS, 1).head.seconds == 2.0


def test_a_page_gets_more_time_with_each_try_and_all_of_it_with_the_last() -> None:
    site = used_to(0.001)
    assert [site.narrow(LIMITS, tries).head.seconds for tries in (1, 2, 3, 4)] == [2.0, 4.0, 10.0, 10.0]
    assert used_to(0.001, AdaptiveTimeouts(LEAST, 0.0, 1)).narrow(LIMITS, 1) == LIMITS, "one try is the last"


def test_every_address_has_its_own_time() -> None:
    site = SiteTimeouts(AdaptiveTimeouts(LEAST, 0.0, 3))
    for _ in range(FEW_TIMES):
        site.take_in(times(0.01))
    assert [site.narrow(LIMITS, 1, addresses).connect.seconds for addresses in (1, 3)] == [2.0, 6.0]


def test_probes_have_the_settings_limits() -> None:
    site = used_to(0.001, AdaptiveTimeouts(LEAST, 0.02, 3))
    probes = sum(site.narrow(LIMITS, 1) == LIMITS for _ in range(1000))
    assert probes == 20


def test_limits_do_not_fall_for_ever() -> None:
    """Times of which those above the limit are never seen: by probes and last tries a site that grows slow is known."""
    draw = random.Random(3)
    site = used_to(0.05, AdaptiveTimeouts(Least(0.1, 0.1, 0.1), 0.02, 3))
    came = 0
    for _ in range(2000):
        seconds = min(draw.lognormvariate(0.7, 0.5), 10.0)  # 2 s, where it was 0.05 s
        for tries in (1, 2, 3):
            if seconds <= site.narrow(LIMITS, tries).head.seconds:
                site.take_in(times(0.0, seconds))
                came += 1
                break
            site.was_late(errors.HeadTimeoutError("late"))
    assert came == 2000
    assert site.narrow(LIMITS, 1).head.seconds > 3.0


# --- Other sites ----------------------------------------------------------------------------------------------


def test_a_site_of_which_little_is_known_goes_by_the_others() -> None:
    agent = AdaptiveTimeouts(LEAST, 0.0, 3)
    for number in range(LEAST_TIMES):
        assert SiteTimeouts(agent).narrow(LIMITS, 1).head == LIMITS.head
        used_to(3.0 if number % 10 else 5.0, agent, many=1)
    limit = SiteTimeouts(agent).narrow(LIMITS, 1).head
    assert limit.name == BY_OTHERS
    assert 5.0 <= limit.seconds <= 5.0 * 1.1
    assert used_to(0.001, agent).narrow(LIMITS, 1).head.seconds == 2.0, "of a known one its own times count"


def test_no_site_speaks_for_all() -> None:
    """Only the first times of a site: one large site would otherwise say what all others may take."""
    agent = AdaptiveTimeouts(LEAST, 0.0, 3)
    used_to(0.001, agent, many=10 * LEAST_TIMES)
    assert SiteTimeouts(agent).narrow(LIMITS, 1).head == LIMITS.head


def test_what_the_agent_keeps_has_an_end() -> None:
    crowd = Crowd()
    for _ in range(3 * MOST_TIMES):
        crowd.add(0.5)
    for _ in range(MOST_TIMES // 2):
        crowd.add(5.0)
    assert 5.0 <= crowd.enough <= 5.5, "older times count for less"
    crowd.add(1e9)
    assert sum(crowd._counts) <= MOST_TIMES
    assert not hasattr(SiteTimeouts(AdaptiveTimeouts(LEAST, 0.0, 3)), "__dict__")


def test_an_error_of_another_kind_is_no_lateness() -> None:
    site = used_to(0.001)
    for error in (errors.ConnectionLostError("lost"), ValueError("x")):
        with pytest.raises(type(error)), taken_in(site, times(0.0)):
            raise error
    assert site.narrow(LIMITS, 1).head.seconds == 2.0
    with pytest.raises(errors.BodyTimeoutError), taken_in(None, times()):
        raise errors.BodyTimeoutError("late")


# --- On the wire ----------------------------------------------------------------------------------------------

TIGHT = Least(0.5, 0.5, 0.5)


class RecheckResult:
    """Pages of one site, asked for as an agent does, with a patience of its own."""

    def __init__(self, handler: CurlDownloadHandler, url: str, timeouts: SiteTimeouts) -> None:
        self.handler, self.url = handler, url
        self.lease = SimpleNamespace(site=url, timeouts=timeouts, in_flight=0)

    def request(self, path: str = "/", tries: int = 1, *, turn: bool = True) -> Request:
        context = RequestContext(
            lambda: True, lease=cast("Any", self.lease), turn=Turn(0, path, 0, tries, path) if turn else None
        )
        request = Request(self.url + path, meta={KEY: context})
        context.begin(request)
        return request

    async def load(self, *what: Any, **more: Any) -> Response:
        return await self.handler.download_request(self.request(*what, **more))

    async def fails(self, *what: Any, **more: Any) -> tuple[BaseException, float]:
        """The error, and the seconds until it came."""
        started = time.monotonic()
        error = await failure(self.handler, self.request(*what, **more))
        return error, time.monotonic() - started


@asynccontextmanager
async def asking_of(
    serve: Serve, probe_share: float = 0.0, most: float = 2.0
) -> AsyncIterator[RecheckResult]:
    """A site that `serve` is, once it has answered a few quick pages."""

    async def first_quick(exchange: Exchange) -> None:
        while len(exchange.server.requests) < FEW_TIMES:
            await exchange.request()
            await exchange.send(page(b"x"))
        await serve(exchange)

    limits = {"HEAD_TIMEOUT_SECONDS": most, "BODY_TIMEOUT_SECONDS": most}
    async with RawServer(first_quick) as server, handler_with(**limits) as handler:
        timeouts = SiteTimeouts(AdaptiveTimeouts(TIGHT, probe_share, 3))
        asked = RecheckResult(handler, server.url, timeouts)
        for _ in range(FEW_TIMES):
            await asked.load()
        yield asked


@pytest.mark.parametrize(
    ("serve", "kind"),
    [
        (stay_silent_after(), errors.HeadTimeoutError),
        (repeat_after(HEAD, b"A: 1\r\n", 0.05), errors.HeadTimeoutError),
        (repeat_after(HEAD + b"Content-Length: 999\r\n\r\n", b"y", 0.05), errors.BodyTimeoutError),
    ],
    ids=["silent head", "head drip", "body drip"],
)
@in_loop
async def test_a_quick_site_that_hangs_is_not_waited_for(serve: Serve, kind: type[Exception]) -> None:
    """A drip too: the time counts from the beginning of the stage, whatever comes meanwhile."""
    async with asking_of(serve, most=30.0) as asked:
        error, seconds = await asked.fails("/slow")
        assert type(error) is kind
        assert f"within 0.5 s ({BY_SITE})" in str(error)
        assert 0.5 <= seconds < 30.0
    async with asking_of(serve) as asked:
        error, seconds = await asked.fails("/slow", tries=3)
        stage = "HEAD" if kind is errors.HeadTimeoutError else "BODY"
        assert f"within 2 s ({stage}_TIMEOUT_SECONDS)" in str(error)
        assert seconds >= 2.0


@in_loop
async def test_robots_txt_is_waited_for_as_long_as_the_settings_say() -> None:
    async with asking_of(stay_silent_after()) as asked:
        error, seconds = await asked.fails("/robots.txt", turn=False)
        assert "(HEAD_TIMEOUT_SECONDS)" in str(error)
        assert seconds >= 2.0


@in_loop
async def test_waiting_on_our_side_is_not_counted() -> None:
    """Before the handler has the request, and in it: as many connections as are needed are made at once."""
    async with asking_of(answer(page(b"x"))) as asked:
        request = asked.request("/later")
        await asyncio.sleep(0.8)
        assert (await asked.handler.download_request(request)).status == 200
        pages = await asyncio.gather(*(asked.load(f"/{number}") for number in range(100)))
        assert {one.status for one in pages} == {200}


@in_loop
async def test_time_in_which_the_loop_stands_still_is_no_sites() -> None:
    async def soon(exchange: Exchange) -> None:
        while True:
            await exchange.request()
            await asyncio.sleep(0.2)
            await exchange.send(page(b"x"))

    async with asking_of(soon) as asked:
        loading = asyncio.ensure_future(asked.load("/slow"))
        await asyncio.sleep(0.1)
        asyncio.get_running_loop().call_soon(time.sleep, 1.2)  # as the parsing of a monstrous page would
        assert (await loading).status == 200
        assert wire_of(asked.handler.crawler)._active == {}


@in_loop
async def test_a_redirect_of_robots_txt_teaches_nothing_of_the_site() -> None:
    async with RawServer(answer(page(b"x"))) as other, asking_of(answer(page(b"x"))) as asked:
        request = asked.request()
        context: RequestContext = request.meta[KEY]
        elsewhere = Request(other.url, meta={KEY: context})
        context.begin(elsewhere)
        assert context.timeouts is None


# --- In a crawl -----------------------------------------------------------------------------------------------


def test_a_page_that_is_late_by_its_sites_times_is_loaded_by_its_last_try(
    place: Place, valkey: RunningServer
) -> None:
    names = [f"/{number}" for number in range(FEW_TIMES)]
    with SmallSite({"/": links(*names, "/slow"), "/slow": links("/", seconds=1.5), "*": links()}) as site:
        given = {"LEAST_HEAD_SECONDS": 0.3, "LEAST_CONNECT_SECONDS": 0.3, "TIMEOUT_PROBE_SHARE": 0}
        place.crawl([site.root], REDIS_URL=valkey.url, MAX_TRIES=3, **given).succeeded()
    assert site.pages["/slow"] == 3
    (slow,) = [one for one in told_pages(valkey) if one.path == "/slow"]
    assert (slow.outcome, slow.tries) == ("stored", 3)
