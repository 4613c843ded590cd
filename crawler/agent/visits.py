"""The requests of a slot, and what their answers mean: robots.txt first, then page by page.

Builds the one Request of a page at its turn, and takes answers and errors as callback and errback. A page either
ends (published), or gets another turn; a site that is overloaded or gone rests. Answers for a lost lease are
dropped without a trace in the results.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request, signals
from scrapy.http import Response
from twisted.python.failure import Failure

from crawler import engine, records
from crawler.agent import answers, links, robots
from crawler.agent.errors import AddressRefused, NotSent, status_code_of
from crawler.agent.pages import Chain, LoadedPage

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from crawler.agent.agent import Agent
    from crawler.agent.frontier import Turn
    from crawler.agent.slots import Slot

logger = logging.getLogger("agent")

# Redirects of robots.txt that are followed (RFC 9309 asks for five at least).
ROBOTS_HOPS = 5
# Pages denied by robots.txt in one go before the event loop gets a turn.
DENIED_AT_A_TIME = 200
# The frontier retries, follows and judges by itself; the answer of any status comes to us.
PAGE_META = {
    "download_slot": "agent",
    "dont_redirect": True,
    "dont_retry": True,
    "handle_httpstatus_all": True,
}


# What we put into a request's meta; a user who copies a response's meta must not copy these.
OUR_META = frozenset({*PAGE_META, "slot", "turn", "sending", "own"})


class _Parsed(NamedTuple):
    """A page whose callback has given something, and what is to be done when all of that is processed."""

    slot: Slot
    request: Request | None
    done: Callable[[], None]


class Visits:
    """One agent's requests and their outcomes."""

    def __init__(self, crawler: Crawler, agent: Agent) -> None:
        self._crawler = crawler
        self._agent = agent
        self._options = agent.options
        self._chain = Chain(crawler, agent.options.page_pipelines)
        self._parsed: list[_Parsed] = []  # pages whose callback has given something
        self._heeds_own = False

    def next_request(self, slot: Slot) -> Request | None:
        """The next request of a ready slot; None: there is nothing to fetch now, the slot was settled."""
        now = asyncio.get_running_loop().time()
        if slot.rules is not None and now - slot.rules_read_at > self._options.robots_lifetime_seconds:
            slot.rules = None
        if slot.rules is None or slot.robots_hop:
            return self._start(slot, self._robots_request(slot, slot.robots_hop or f"{slot.site}/robots.txt"))
        if slot.own_requests:
            return self._start(slot, self._own(slot, slot.own_requests.popleft()))
        turn = self._allowed_turn(slot, now)
        if turn is None:
            self._agent.settle(slot)
            return None
        return self._start(slot, self._page_request(slot, turn))

    def _start(self, slot: Slot, request: Request) -> Request:
        slot.in_flight += 1
        slot.started_at = asyncio.get_running_loop().time()
        request.meta["sending"] = partial(self._agent.may_send, slot)
        slot.dress.put_on(request)
        return request

    def _allowed_turn(self, slot: Slot, now: float) -> Turn | None:
        assert slot.rules is not None
        for _ in range(DENIED_AT_A_TIME):
            turn = slot.frontier.take(now)
            if turn is None or slot.rules.allows(slot.site + turn.path, slot.dress.user_agent):
                return turn
            slot.frontier.finish(turn, counts=False)
            self._agent.publish(slot, self._record(slot, turn, "denied", -9, error="robots.txt forbids it"))
        return None

    def _page_request(self, slot: Slot, turn: Turn) -> Request:
        return Request(
            slot.site + turn.path,
            callback=self.loaded,
            errback=self.failed,
            meta={**PAGE_META, "slot": slot, "turn": turn, "depth": turn.depth},
            dont_filter=True,
        )

    # --- robots.txt ---

    def _robots_request(self, slot: Slot, url: str) -> Request:
        return Request(
            url,
            callback=self._robots_loaded,
            errback=self._robots_failed,
            meta={**PAGE_META, "slot": slot},
            dont_filter=True,
        )

    def _robots_loaded(self, response: Response) -> None:
        slot: Slot = response.meta["slot"]
        slot.in_flight -= 1
        slot.dress.take_in(response)
        location = response.headers.get("Location")
        if response.status in (301, 302, 303, 307, 308) and location and slot.robots_hops < ROBOTS_HOPS:
            place = links.target(response.url, location.decode("latin-1"), self._agent.max_url_length)
            if place and slot.live:
                slot.robots_hops += 1
                slot.robots_hop = "".join(place)
                self._agent.settle(slot)
                return
        rest = answers.seconds_asked((response.headers.get("Retry-After") or b"").decode("latin-1"))
        self._obey(slot, response.status, response.body, f"robots.txt answered {response.status}", rest)

    def _robots_failed(self, failure: Failure) -> None:
        slot: Slot = failure.request.meta["slot"]  # type: ignore[attr-defined]
        slot.in_flight -= 1
        assert failure.value is not None
        if isinstance(failure.value, NotSent):
            self._agent.settle(slot)
            return
        if isinstance(failure.value, AddressRefused):
            logger.warning("%s; --again walks it anew then", failure.value)
        self._obey(slot, status_code_of(failure.value), b"", _one_line(failure.value))

    def _obey(self, slot: Slot, status: int, body: bytes, what: str, rest: float | None = None) -> None:
        slot.robots_hop, slot.robots_hops = "", 0
        if not slot.live:
            self._agent.settle(slot)
            return
        rules = robots.rules(status, body, slot.dress.user_agent, self._options.robots_max_bytes)
        if not rules.available:
            slot.rules = None
            self._agent.rest(slot, max(rest or 0.0, answers.rest_of(slot.frontier.strikes)), what)
        else:
            slot.rules = rules
            slot.rules_read_at = asyncio.get_running_loop().time()
            asked = min(rules.crawl_delay or 0.0, self._options.max_crawl_delay_seconds)
            slot.delay = max(slot.least_delay, asked)
        self._agent.settle(slot)

    # --- pages ---

    def loaded(self, response: Response) -> Any:
        """Callback of every page: what the user's `parse` gives for an answer 2xx, else nothing."""
        slot: Slot = response.meta["slot"]
        turn: Turn = response.meta["turn"]
        slot.in_flight -= 1
        slot.dress.take_in(response)
        if slot.lost:
            return None
        try:
            return self._take_answer(slot, turn, response)
        finally:
            self._agent.settle(slot)

    def _take_answer(self, slot: Slot, turn: Turn, response: Response) -> Any:
        retry_after = (response.headers.get("Retry-After") or b"").decode("latin-1")
        meaning = answers.meaning(
            response.status, retry_after, turn.tries, self._options.max_tries, slot.frontier.strikes
        )
        if meaning.rest_seconds:
            self._agent.rest(slot, meaning.rest_seconds, f"it answered {response.status}")
        else:
            slot.frontier.strikes = 0
        if meaning.verdict == "stored":
            return self._stored(slot, turn, response)
        if meaning.verdict == "redirected":
            self._redirected(slot, turn, response)
        elif meaning.verdict == "again":
            self._again(slot, turn)
        else:
            self._publish(slot, turn, self._record(slot, turn, "failed", response.status, response))
        return None

    def failed(self, failure: Failure) -> None:
        """Errback of every page: no answer came, or a middleware refused."""
        request: Request = failure.request  # type: ignore[attr-defined]
        slot: Slot = request.meta["slot"]
        turn: Turn = request.meta["turn"]
        slot.in_flight -= 1
        error = failure.value
        assert error is not None
        status = status_code_of(error)
        if slot.lost:
            return
        if isinstance(error, NotSent):
            slot.frontier.put_back(turn)
        elif status in _WORTH_ANOTHER_TRY and turn.tries < self._options.max_tries:
            self._again(slot, turn)
        else:
            self._publish(slot, turn, self._record(slot, turn, "failed", status, error=_one_line(error)))
        self._agent.settle(slot)

    def _stored(self, slot: Slot, turn: Turn, response: Response) -> Any:
        record = self._record(slot, turn, "stored", response.status, response)
        page = LoadedPage(self._agent, slot, turn, response, record)
        page.held = True
        self._chain.process(page)
        if turn.path == "/" and self._options.find_aliases and slot.address and record.size:
            self._agent.ask_for_alias(slot, record.sha256)
        assert self._crawler.spider
        parse = partial(self._crawler.spider._parse, response)
        return self._parse(slot, response.request, parse, page.release)

    def _parse(
        self, slot: Slot, request: Request | None, parse: Callable[[], Any], done: Callable[[], None]
    ) -> Any:
        """What a user's callback gives; `done` is called when the engine has processed all of it.

        Not when it is exhausted: a link would come too late for its site, and an item that is still in a pipeline would
        be lost with an agent whose record is out.
        """
        output = None
        try:
            output = parse()
        finally:
            if output is None:
                done()
        if output is not None:
            slot.parsing += 1
            self._parsed.append(_Parsed(slot, self._in_progress(request), done))
        return output

    def _in_progress(self, request: Request | None) -> Request | None:
        """The request that the engine has in hand; a middleware may have given its response another."""
        under_way = engine.in_progress(self._crawler)
        if request is None or request in under_way:
            return request
        mark = _mark(request)
        return next((one for one in under_way if _mark(one) is mark), None)

    def end_parsed(self) -> None:
        """End the turns of those pages of which nothing is under way any more; called whenever the engine asks on."""
        if not self._parsed:
            return
        under_way = engine.in_progress(self._crawler)
        ended = [one for one in self._parsed if one.request not in under_way]
        if ended:
            self._parsed = [one for one in self._parsed if one.request in under_way]
        for slot, _, done in ended:
            slot.parsing -= 1
            done()
            self._agent.settle(slot)

    def _redirected(self, slot: Slot, turn: Turn, response: Response) -> None:
        location = (response.headers.get("Location") or b"").decode("latin-1")
        place = links.target(response.url, location, self._agent.max_url_length) if location else None
        if place is None:
            record = self._record(
                slot, turn, "failed", response.status, response, error=f"redirects to {location[:150]!r}"
            )
            self._publish(slot, turn, record)
            return
        site, path = place
        record = self._record(slot, turn, "redirected", response.status, response)
        record.redirect = site + path
        if site != slot.site:
            self._agent.seeding.met(site, [path])
        elif self._agent.scope.has_page(site + path):
            slot.frontier.add((path,), turn.depth)
        self._publish(slot, turn, record, records.pack_links([site + path]))

    def _again(self, slot: Slot, turn: Turn) -> None:
        pause = self._options.retry_delay_seconds * 2 ** (turn.tries - 1)
        slot.frontier.set_back(turn, asyncio.get_running_loop().time() + pause)

    def _publish(self, slot: Slot, turn: Turn, record: records.Page, out_links: bytes = b"") -> None:
        slot.frontier.finish(turn)
        self._agent.publish(slot, record, out_links)

    def _record(
        self,
        slot: Slot,
        turn: Turn,
        outcome: records.PageOutcome,
        status: int,
        response: Response | None = None,
        error: str = "",
    ) -> records.Page:
        record = records.Page(
            site=slot.site,
            path=turn.path,
            fetched_at=int(time.time() * 1000),
            outcome=outcome,
            status=status,
            depth=turn.depth,
            tries=turn.tries,
            error=error,
        )
        if response is not None:
            record.size = len(response.body)
            record.latency_ms = int(response.meta.get("download_latency", 0.0) * 1000)
            record.content_type = (response.headers.get("Content-Type") or b"").decode("latin-1")[:200]
        return record

    # --- a user's own requests to a site in hand ---

    def _heed_own(self) -> None:
        """Be told of answers from the first own request on: most crawls have none, and every page would pay."""
        if not self._heeds_own:
            self._heeds_own = True
            self._crawler.signals.connect(self._rest_if_asked, signals.response_downloaded)

    def _rest_if_asked(self, request: Request, response: Response) -> None:
        """Told of every answer when it comes: where it means a rest, Scrapy's middlewares keep it from its callback."""
        if not request.meta.get("own"):
            return
        slot: Slot = request.meta["slot"]
        retry_after = (response.headers.get("Retry-After") or b"").decode("latin-1")
        seconds = answers.meaning(response.status, retry_after, 1, 1, slot.frontier.strikes).rest_seconds
        if seconds:
            self._agent.rest(slot, seconds, f"it answered {response.status}")

    def is_ours(self, request: Request) -> bool:
        """Whether a slot waits for this request's end: told by its callback, since users copy `meta`."""
        if request.callback in (self.loaded, self._robots_loaded):
            return True
        return getattr(request.callback, "ours", False) is True

    def _own(self, slot: Slot, request: Request) -> Request:
        """Let the slot know when the request has ended, however it ends."""
        if self.is_ours(request):
            return request
        self._heed_own()
        callback, errback = request.callback, request.errback

        def loaded(response: Response, **arguments: Any) -> Any:
            slot.in_flight -= 1
            slot.dress.take_in(response)
            assert self._crawler.spider
            parse = partial(callback or self._crawler.spider._parse, response, **arguments)
            try:
                return self._parse(slot, response.request, parse, _nothing)
            finally:
                self._agent.settle(slot)

        def failed(failure: Failure) -> Any:
            slot.in_flight -= 1
            try:
                parse = partial(errback, failure) if errback else lambda: failure
                return self._parse(slot, failure.request, parse, _nothing)  # type: ignore[attr-defined]
            finally:
                self._agent.settle(slot)

        loaded.ours = True  # type: ignore[attr-defined]
        meta = {**request.meta, "download_slot": "agent", "slot": slot, "own": object()}
        return request.replace(callback=loaded, errback=failed, meta=meta)


# No answer, or a broken one: another try may bring it. Refused addresses, robots and sizes stay as they are.
_WORTH_ANOTHER_TRY = frozenset({-1, -2, -3, -4, -5, -6, -7, -8, -12, -13})


def _nothing() -> None:
    """What is to be done after a user's own request: nothing."""


def _mark(request: Request) -> Any:
    """What tells a request of ours from all others, also in a copy of it."""
    return request.meta.get("turn") or request.meta.get("own")


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
