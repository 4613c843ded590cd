"""Fetches a leased site: robots.txt first, then page by page.

Each turn is one Request; its page is published or gets another turn. Responses for a lost lease are dropped.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from scrapy import Request, signals
from scrapy.exceptions import DownloadTimeoutError
from scrapy.http import HtmlResponse, Response
from twisted.python.failure import Failure

from crawler import engine, records
from crawler.agent import jobs, politeness, responses
from crawler.agent.observer import SiteLoad, SiteWatch
from crawler.agent.page import LoadedPage
from crawler.agent.requests import PAGE_META, SLOT_META, RequestContext, request_context_of
from crawler.agent.responses import Walls
from crawler.content import html, sitemaps
from crawler.content.traps import Traps
from crawler.fetch.context import KEY
from crawler.fetch.errors import (
    CUT_SHORT,
    IN_A_TRAP,
    OTHER,
    ROBOTS_DENIED,
    AddressRefusedError,
    HeaderLimitError,
    NotSentError,
    ProxyRefusedError,
    TooLargeError,
    in_one_line,
    status_code_of,
    worth_another_try,
)
from crawler.fetch.timeouts import AdaptiveTimeouts, Least, SiteTimeouts
from crawler.robots import policy
from crawler.status.health import ASKS_FOR_REST
from crawler.urls.scope import differs_in_scheme, is_variant
from crawler.urls.url import page_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from crawler.agent.agent import Agent
    from crawler.agent.frontier import Turn
    from crawler.agent.jobs import Work
    from crawler.agent.page import Chain
    from crawler.agent.politeness import SiteDay
    from crawler.agent.site_lease import SiteLease
    from crawler.options import Options

logger = logging.getLogger("agent")

# Redirects of robots.txt that are followed (RFC 9309: at least five).
ROBOTS_HOPS = 5
# Tried if robots.txt names no sitemap.
USUAL_SITEMAP = "/sitemap.xml"
# Characters kept of a header's value.
FIELD_LENGTH = 200
# First wait of a site if its proxy requires a login; doubles each time.
PROXY_SECONDS = 10.0
# Denied pages handled before control returns to the event loop.
DENIED_AT_A_TIME = 200


class _Parsed(NamedTuple):
    """A page whose callback returned output; `done` runs when it is processed."""

    lease: SiteLease
    request: Request | None
    done: Callable[[], None]


class PageFetcher:
    """Builds one agent's requests and handles their outcomes."""

    def __init__(self, crawler: Crawler, agent: Agent, chain: Chain) -> None:
        self._crawler = crawler
        self._agent = agent
        self._options = agent.options
        self._chain = chain
        self._patience = _patience(agent.options)
        self._parsed: list[_Parsed] = []  # pages whose callback returned output
        self._heeds_own = False
        self._proxies_told: set[str] = set()
        self._most_redirects = crawler.settings.getint("REDIRECT_MAX_TIMES")
        # The jobs other than crawling; crawled pages are handled here.
        self._works: dict[str, Work] = {
            name: jobs.make(name, agent, self) for name in agent.works if name in jobs.CLASSES
        }
        agent.leasing.begin = self._begin
        agent.outbox.next_due = self._next_due
        # Our own callbacks and errbacks.
        self._ours = (
            *(self.loaded, self._robots_loaded, self._own_loaded, self._trial_answered),
            *(self.failed, self._robots_failed, self._own_failed, self._trial_failed),
        )

    def next_request(self, lease: SiteLease) -> Request | None:
        """The next request of a ready site. Returns None when there is nothing to fetch; the site is settled then.

        Never raises: an error fails its page, or ends the lease.
        """
        try:
            return self._next_request(lease)
        except Exception as error:
            reason = in_one_line(error)
            _warn(f"{lease.site}: request failed to build: {reason}", error)
            self._do_without_requests(lease, reason)
            return None

    def _next_request(self, lease: SiteLease) -> Request | None:
        if lease.day is not None and self._used_up(lease, lease.day):
            return None
        if lease.given_up:
            self._give_up(lease, *lease.given_up)
            self._agent.settle(lease)
            return None
        now = asyncio.get_running_loop().time()
        if lease.rules is not None and now - lease.rules_read_at > self._options.robots_lifetime_seconds:
            lease.rules = None
        if lease.rules is None or lease.robots_hop:
            return self._start(lease, self._held_robots(lease) or self._robots_request(lease))
        if lease.own_requests:
            return self._start(lease, self._own(lease, lease.own_requests.popleft()))
        turn = self._allowed_turn(lease, now)
        if turn is None:
            self._agent.settle(lease)
            return None
        try:
            return self._start(lease, self._page_request(lease, turn))
        except Exception as error:
            reason = in_one_line(error)
            _warn(f"{lease.site}: {turn.path!r} request failed to build: {reason}", error)
            self._fail(lease, turn, OTHER, reason, {})
            self._agent.settle(lease)
            return None

    def _do_without_requests(self, lease: SiteLease, error: str) -> None:
        if lease.rules is not None or lease.given_up:
            self._agent.park(lease, error)
            return
        # The next request cannot reach the target of this robots.txt redirect either.
        lease.robots_hop, lease.robots_hops = "", 0
        self._leave_alone(lease, OTHER, error, f"request failed to build: {error}")
        self._agent.settle(lease)

    def _begin(self, lease: SiteLease, packed: bytes) -> None:
        self._works[lease.leased.work].begin(lease, packed)

    def _next_due(self, lease: SiteLease) -> float:
        return self._works[lease.leased.work].next_due(lease)

    def _start(self, lease: SiteLease, request: Request) -> Request:
        lease.started_at = asyncio.get_running_loop().time()
        if lease.day is not None:
            lease.day.count(1, 0)
        if lease.traps is None and self._options.trap_pages:
            lease.traps = Traps(self._options.trap_pages)
        if lease.timeouts is None and self._patience is not None:
            lease.timeouts = SiteTimeouts(self._patience)
        lease.site_session.apply(request)
        context = _context(request)
        context.worn = lease.site_session.worn
        context.begin(request)
        return request

    def _used_up(self, lease: SiteLease, day: SiteDay) -> bool:
        """Return the site until the next day if its daily budget is used up."""
        why = day.used_up()
        if why:
            logger.info("site %s: daily budget used up, resuming the next day: %s", lease.site, why)
            self._agent.leasing.end(lease, "later", why, int(day.tomorrow * 1000))
        return bool(why)

    def _give_up(self, lease: SiteLease, status: int, error: str) -> None:
        """Fail every page of a site that was given up."""
        self._drop_held(lease)
        lease.frontier.leave_retakes()
        for _ in range(DENIED_AT_A_TIME):
            turn = lease.frontier.take(math.inf)
            if turn is None:
                return
            self._publish(lease, turn, self._record(lease, turn, "failed", status, error=error))

    def _drop_held(self, lease: SiteLease) -> None:
        """Drop held requests; pages replaced by a middleware get their turn back."""
        self._agent.leasing.tell_unsent(lease)
        held, lease.own_requests = lease.own_requests or (), None
        for context in map(request_context_of, held):
            if context is not None and context.turn is not None:
                lease.frontier.put_back(context.turn)

    def _heard(self, lease: SiteLease) -> None:
        lease.silent.clear()
        lease.frontier.parkings = 0

    def _note_silence(self, lease: SiteLease, turn: Turn, status: int, error: str) -> None:
        if status in politeness.BAD_ANSWER:
            self._heard(lease)
        if politeness.is_silence(status):
            lease.silent.add(politeness.silence_of(turn.path, turn.tries, status))
            step = politeness.next_step(status, len(lease.silent))
            if step == "probe":
                lease.rules = None
            elif step == "trip" and lease.live:
                self._trip(lease, status, error)
        if status in politeness.MAY_BE_THE_SITE and lease.live:
            self._count_failure(lease, turn.path, turn.tries, error, sys.maxsize)

    # --- the site's pace ---

    def _heed(self, lease: SiteLease, url: str, tries: int, response: Response) -> None:
        """Back off if the response requires it; a success ends the back-off."""
        status, strikes = response.status, lease.frontier.strikes
        seconds = responses.rest_asked(status, _retry_after(response), strikes)
        if seconds:
            self._agent.rest(lease, seconds, f"it answered {status}")
        elif status in ASKS_FOR_REST:
            known = len(lease.frontier) if lease.loads else sys.maxsize
            self._count_failure(lease, url, tries, f"it answered {status}", known)
        elif not responses.is_refusal(status):
            lease.row.end()
            lease.frontier.strikes = 0

    def _count_failure(self, lease: SiteLease, url: str, tries: int, what: str, known: int) -> None:
        """Count a failed URL; after several in a row, send a trial request, and back off if it fails too.

        Without a trial if all `known` URLs fail.
        """
        if not lease.row.add(url, tries, lease.frontier.strikes, known) or lease.on_trial:
            return
        loaded = lease.frontier.loaded
        if loaded is None or not lease.live:
            self._rest_after(lease, what)
            return
        lease.on_trial = True
        self._send_next(lease, self._trial(lease, loaded))

    def _rest_after(self, lease: SiteLease, what: str) -> None:
        reason = f"{what}; several URLs failed in a row"
        self._agent.rest(lease, responses.rest_of(lease.frontier.strikes), reason)

    def _trial(self, lease: SiteLease, path: str) -> Request:
        return Request(
            lease.site + path,
            callback=self._trial_answered,
            errback=self._trial_failed,
            meta={
                **PAGE_META,
                KEY: RequestContext(self._may_send(lease), lease=lease, trial=True),
                "dont_cache": True,
            },
            dont_filter=True,
        )

    def _trial_answered(self, response: Response, **_arguments: Any) -> None:
        context = _context(response)
        if not context.end():
            return
        lease, status = context.lease, response.status
        lease.site_session.take_in(response)
        lease.on_trial = False
        self._heard(lease)
        self._note_load(lease, refused=responses.is_refusal(status))
        if not responses.is_refusal(status) or responses.rest_asked(status, _retry_after(response), 0):
            self._heed(lease, context.url, 1, response)
        else:
            self._rest_after(lease, f"it answered {status}")
        self._agent.settle(lease)

    def _trial_failed(self, failure: Failure) -> None:
        request, error = failure.request, failure.value  # type: ignore[attr-defined]
        assert error is not None
        context = _context(request)
        if not context.end():
            return
        lease = context.lease
        if isinstance(error, NotSentError):
            self._send_next(lease, request)
        elif isinstance(error, ProxyRefusedError):
            lease.on_trial = False
            self._wait_for_proxy(lease, error)
        else:
            lease.on_trial = False
            self._rest_after(lease, in_one_line(error))
        self._agent.settle(lease)

    @staticmethod
    def _send_next(lease: SiteLease, request: Request) -> None:
        if lease.own_requests is None:
            lease.own_requests = deque()
        lease.own_requests.appendleft(request)

    def _trip(self, lease: SiteLease, status: int, error: str) -> None:
        self._watch(lease, "/robots.txt", status, {}, politeness.STRAIGHT, error)
        what = "the site does not answer" if politeness.is_silence(status) else "robots.txt cannot be read"
        self._leave_alone(lease, status, error, f"{what}: {error}")

    def _leave_alone(self, lease: SiteLease, status: int, error: str, verdict: str) -> None:
        """Suspend the site, or give it up after MAX_TRIES times in a row."""
        if work := self._works.get(lease.leased.work):
            work.shut(lease, status, error)
            return
        times = lease.frontier.parkings + 1
        if times < self._options.max_tries:
            self._agent.park(lease, error)
            return
        logger.info("site %s: given up after %d attempts: %s", lease.site, times, verdict)
        lease.given_up = (status, verdict[:300])

    def _wait_for_proxy(self, lease: SiteLease, error: ProxyRefusedError) -> None:
        """The proxy's login says nothing about the site: retry later."""
        message = str(error)
        if message not in self._proxies_told:
            self._proxies_told.add(message)
            logger.warning("%s; its sites are retried later", message)
        if not lease.live:
            return
        seconds = min(PROXY_SECONDS * 2 ** min(lease.frontier.strikes, 20), responses.LONGEST_REST_SECONDS)
        lease.frontier.strikes += 1
        self._agent.leasing.end(lease, "later", message, self._agent.leasing.due_ms(seconds))

    def _may_send(self, lease: SiteLease) -> Callable[[], bool]:
        return partial(self._agent.may_send, lease)

    def _allowed_turn(self, lease: SiteLease, now: float) -> Turn | None:
        assert lease.rules is not None
        for _ in range(DENIED_AT_A_TIME):
            turn = lease.frontier.take(now)
            if turn is None:
                return None
            if not lease.rules.allows(lease.site + turn.asked, lease.site_session.user_agent):
                self._deny(lease, turn, ROBOTS_DENIED, "robots.txt forbids it")
            elif lease.traps is not None and lease.traps.holds(turn.path):
                lease.leave_out("family", (turn.path,))
                self._deny(lease, turn, IN_A_TRAP, "left out: part of a crawler trap (TRAP_PAGES)")
            else:
                return turn
        return None

    def _deny(self, lease: SiteLease, turn: Turn, status: int, error: str) -> None:
        if work := self._works.get(lease.leased.work):
            work.unanswered(lease, turn, status, error, {})
            return
        self._agent.publish(lease, self._record(lease, turn, "denied", status, error=error))
        lease.frontier.finish(turn, counts=False)

    def _page_request(self, lease: SiteLease, turn: Turn) -> Request:
        if not turn.asked.startswith("/"):  # appended to the site it could name another host
            raise ValueError(f"{turn.asked!r} is not a path; expected one that begins with /")
        request = Request(
            lease.site + turn.asked,
            callback=self.loaded,
            errback=self.failed,
            meta={
                **PAGE_META,
                KEY: RequestContext(self._may_send(lease), lease=lease, turn=turn),
                "depth": turn.depth,
            },
            dont_filter=True,
        )
        work = self._works.get(lease.leased.work)
        return work.request(lease, turn, request) if work else request

    # --- robots.txt ---

    def _robots_request(self, lease: SiteLease) -> Request:
        return Request(
            lease.robots_hop or f"{lease.site}/robots.txt",
            callback=self._robots_loaded,
            errback=self._robots_failed,
            meta={**PAGE_META, KEY: RequestContext(self._may_send(lease), lease=lease)},
            dont_filter=True,
        )

    @staticmethod
    def _held_robots(lease: SiteLease) -> Request | None:
        """A middleware's substitute for the robots.txt request."""
        held = lease.own_requests or ()
        found = next(
            (one for one in held if (context := request_context_of(one)) and context.for_robots), None
        )
        if found is not None:
            assert lease.own_requests
            lease.own_requests.remove(found)
        return found

    def _robots_loaded(self, response: Response, **_arguments: Any) -> None:
        context = _context(response)
        if not context.end():
            return
        lease = context.lease
        lease.site_session.take_in(response)
        if not context.elsewhere:
            self._note_load(lease, refused=responses.is_refusal(response.status))
        location = response.headers.get("Location")
        if response.status in responses.REDIRECTS and location and lease.robots_hops < ROBOTS_HOPS:
            place = html.target(response.url, location.decode("latin-1"), self._agent.max_url_length)
            if place and lease.live:
                lease.robots_hops += 1
                lease.robots_hop = "".join(place)
                self._agent.settle(lease)
                return
        if policy.LOSSES.intersection(response.flags):
            self._obey(lease, CUT_SHORT, b"", f"{response.url}: the body is truncated or damaged")
            return
        # After the last redirect only: otherwise a redirect to a dead host would postpone the verdict forever.
        self._heard(lease)
        rest = responses.seconds_asked(_retry_after(response))
        self._obey(lease, response.status, response.body, f"robots.txt answered {response.status}", rest)

    def _robots_failed(self, failure: Failure) -> None:
        context, error = _context(failure.request), failure.value  # type: ignore[attr-defined]
        assert error is not None
        if not context.end():
            return
        lease = context.lease
        if isinstance(error, NotSentError | ProxyRefusedError):
            if isinstance(error, ProxyRefusedError):
                self._wait_for_proxy(lease, error)
            self._agent.settle(lease)
            return
        if isinstance(error, DownloadTimeoutError) and not context.elsewhere:
            self._note_load(lease, refused=True)
        status = status_code_of(error)
        if context.elsewhere and status not in politeness.BAD_ANSWER:
            # The redirect's target is unreachable or forbidden, but the pages are on this site.
            status = OTHER
        elif isinstance(error, AddressRefusedError):
            logger.warning("%s; crawl it again with --again afterwards", error)
        self._obey(lease, status, b"", in_one_line(error))

    def _obey(self, lease: SiteLease, status: int, body: bytes, what: str, rest: float | None = None) -> None:
        lease.robots_hop, lease.robots_hops = "", 0
        if not lease.live:
            self._agent.settle(lease)
            return
        rules = policy.rules(
            status, body, lease.site, lease.site_session.user_agent, self._options.robots_max_bytes
        )
        if not rules.available:
            self._do_without_rules(lease, status, what, rest)
        else:
            lease.rules = rules
            rules_file = body if 200 <= status < 300 else b""
            lease.robots = blake2b(rules_file, digest_size=8).hexdigest()
            self._take_sitemaps(lease, rules_file)
            lease.rules_read_at = asyncio.get_running_loop().time()
            crawl_delay = min(rules.crawl_delay or 0.0, self._options.max_crawl_delay_seconds)
            lease.delay = max(lease.least_delay, crawl_delay)
            lease.window = rules.window
        self._agent.settle(lease)

    def _do_without_rules(self, lease: SiteLease, status: int, what: str, rest: float | None) -> None:
        lease.rules = None
        if politeness.shuts(status):
            self._trip(lease, status, what)
            return
        self._watch(lease, "/robots.txt", status, {}, lease.frontier.strikes + 1, what)
        self._agent.rest(lease, max(rest or 0.0, responses.rest_of(lease.frontier.strikes)), what)
        if work := self._works.get(lease.leased.work):
            work.shut(lease, status, what)

    def _take_sitemaps(self, lease: SiteLease, robots_file: bytes) -> None:
        """Add the sitemaps of robots.txt, or the usual one if SITEMAPS is "tried"."""
        if self._options.sitemaps == "off":
            return
        urls = sitemaps.named(robots_file)
        if not urls and self._options.sitemaps == "tried":
            urls = [USUAL_SITEMAP]
        base, length = f"{lease.site}/robots.txt", self._agent.max_url_length
        places = [place for place in html.places(urls, base, lease.site, length)[0] if place]
        own = sorted({path for site, path in places if differs_in_scheme(site, lease.site)})
        lease.sitemaps = frozenset(map(page_of, own))
        if not lease.loads:
            return
        lease.add_found(self._agent.scope.sitemaps_of(lease.site, own), 0)
        for site, path in places:
            if not differs_in_scheme(site, lease.site) and is_variant(site, lease.site):
                self._agent.offers.add(site, (path,), 0)

    # --- pages ---

    def loaded(self, response: Response, **arguments: Any) -> Any:
        """Callback of every page: the output of the user's `parse` for a 2xx response, otherwise None.

        `arguments` are those of a middleware's substitute.
        """
        context = _context(response)
        if not context.end():
            return None
        lease, turn = context.lease, context.turn
        assert turn is not None
        turn = lease.frontier.now(turn)
        lease.site_session.take_in(response)
        self._heard(lease)
        if lease.lost:
            return None
        try:
            return self._take_answer(lease, turn, response, arguments)
        finally:
            self._agent.settle(lease)

    def _take_answer(
        self, lease: SiteLease, turn: Turn, response: Response, arguments: dict[str, Any]
    ) -> Any:
        self._note_load(lease, _page_seconds(turn, response), refused=responses.is_refusal(response.status))
        self._heed(lease, turn.path, turn.tries, response)
        verdict = responses.verdict(response.status, turn.tries, self._options.max_tries)
        self._watch(lease, turn.path, response.status, response.meta, turn.tries)
        if work := self._works.get(lease.leased.work):
            return work.answered(lease, turn, response)
        if verdict == "stored":
            return self.take_in(lease, turn, response, arguments)
        if verdict == "redirected":
            self.redirected(lease, turn, response)
        elif verdict == "again":
            self.again(lease, turn, self._retry_pause(turn))
        else:
            self._publish(lease, turn, self._record(lease, turn, "failed", response.status, response))
        return None

    def failed(self, failure: Failure) -> None:
        """Errback of every page."""
        request: Request = failure.request  # type: ignore[attr-defined]
        context, error = _context(request), failure.value
        assert error is not None
        if not context.end() or context.lease.lost:
            return
        assert context.turn is not None
        turn = context.lease.frontier.now(context.turn)
        try:
            self._take_error(context.lease, turn, request, error)
        finally:
            self._agent.settle(context.lease)

    def _take_error(self, lease: SiteLease, turn: Turn, request: Request, error: BaseException) -> None:
        if isinstance(error, DownloadTimeoutError):
            self._note_load(lease, refused=True)
        if isinstance(error, NotSentError | ProxyRefusedError):
            lease.frontier.put_back(turn)
            if isinstance(error, ProxyRefusedError):
                self._wait_for_proxy(lease, error)
            return
        self._end_unanswered(lease, turn, request, error)
        self._note_silence(lease, turn, status_code_of(error), in_one_line(error))

    def _end_unanswered(self, lease: SiteLease, turn: Turn, request: Request, error: BaseException) -> None:
        work, status, reason = self._works.get(lease.leased.work), status_code_of(error), in_one_line(error)
        first = _context(request).first
        if work and lease.walls and first is not None:  # the page itself has responded
            lease.walls.leave()
            work.answered(lease, turn, first)
            return
        if not work and worth_another_try(error) and turn.tries < self._options.max_tries:
            self.again(lease, turn, self._retry_pause(turn))
            return
        # A timeout may be transient; a status check would retry as well.
        if status in politeness.BAD_ANSWER or turn.tries >= self._options.status_tries:
            self._watch(lease, turn.path, status, request.meta, turn.tries, reason)
        if isinstance(error, TooLargeError) and not isinstance(error, HeaderLimitError):
            lease.leave_out("size", (turn.path,))
        self._fail(lease, turn, status, reason, request.meta)

    def _fail(self, lease: SiteLease, turn: Turn, status: int, reason: str, meta: dict[str, Any]) -> None:
        """`meta` is the request's."""
        if work := self._works.get(lease.leased.work):
            work.unanswered(lease, turn, status, reason, meta)
            return
        record = self._record(lease, turn, "failed", status, error=reason)
        note_times(record, meta)
        self._publish(lease, turn, record)

    def take_in(
        self, lease: SiteLease, turn: Turn, response: Response, arguments: dict[str, Any] | None = None
    ) -> Any:
        """Pass a page to the page pipelines and the spider."""
        record = self._record(lease, turn, "stored", response.status, response)
        lease.frontier.note_loaded(turn)
        lease.redirects.pop(turn.path, None)
        if lease.walls is not None:
            lease.walls.answered(turn.path)
        page = LoadedPage(self._agent, lease, turn, response, record)
        self._chain.process(page)
        if lease.loads and turn.path == "/" and self._options.find_aliases and lease.address and record.size:
            self._agent.ask_for_alias(lease, record.sha256)
        assert self._crawler.spider
        parse = partial(self._crawler.spider._parse, response, **(arguments or {}))
        return self._parse(lease, response.request, parse, page.publish)

    def _parse(
        self, lease: SiteLease, request: Request | None, parse: Callable[[], Any], done: Callable[[], None]
    ) -> Any:
        """The output of a user's callback; `done` is called when the engine has processed all of it.

        Not when it is exhausted: links would come too late, and a crash would lose items in a pipeline.
        """
        output = None
        try:
            output = parse()
        finally:
            if output is None:
                done()
        if output is not None:
            lease.parsing += 1
            self._parsed.append(_Parsed(lease, self._in_progress(request), done))
        return output

    def _in_progress(self, request: Request | None) -> Request | None:
        under_way = engine.in_progress(self._crawler)
        if request is None or request in under_way:
            return request
        context = _context(request)
        return next((one for one in under_way if request_context_of(one) is context), None)

    def end_parsed(self) -> None:
        """End the turns of fully processed pages; called each time the engine pulls a request."""
        if not self._parsed:
            return
        under_way = engine.in_progress(self._crawler)
        ended = [one for one in self._parsed if one.request not in under_way]
        if ended:
            self._parsed = [one for one in self._parsed if one.request in under_way]
        for lease, _, done in ended:
            lease.parsing -= 1
            done()
            self._agent.settle(lease)

    def redirected(self, lease: SiteLease, turn: Turn, response: Response) -> None:
        """End the turn; the target is added like a link."""
        location = (response.headers.get("Location") or b"").decode("latin-1")
        place = html.target(response.url, location, self._agent.max_url_length) if location else None
        if place is None:
            record = self._record(
                lease, turn, "failed", response.status, response, error=f"redirects to {location[:150]!r}"
            )
            self._publish(lease, turn, record)
            return
        site, path = place
        page = page_of(path)
        if site == lease.site and page == turn.path and self._is_spelt_otherwise(lease, turn, path):
            return
        record = self._record(lease, turn, "redirected", response.status, response)
        record.redirect = site + page
        record.error = self._led_on(lease, turn, site, path)
        circle = lease.frontier.note_redirect(turn, page) if site == lease.site else []
        own = site == lease.site and lease.loads
        again = own and self._meets_wall(lease, turn, page, _context(response).worn, in_circle=bool(circle))
        if circle and not again:
            record.error = responses.walls_in_words(circle, with_cookies=lease.site_session.cookies > 0)
        self._publish(lease, turn, record, records.pack_links([record.redirect]))
        if again:
            lease.frontier.ask_again(page)

    @staticmethod
    def first_answer(response: Response) -> Response | None:
        """The page's own redirect, if this is its target's response."""
        return _context(response).first

    def passes_wall(self, lease: SiteLease, turn: Turn, response: Response) -> bool:
        """Whether a redirected page needs another request: its target, or itself with cookies."""
        context, lease.walls = _context(response), lease.walls or Walls()
        if context.first is None:
            lease.walls.redirected(turn.path, context.worn)
        target = self._target_on_site(lease, response)
        if (
            target
            and page_of(target) != turn.path
            and context.hops < self._most_redirects
            and not lease.walls.stand
        ):
            self._send_next(lease, self._request_on_the_way(lease, turn, target, context, response))
            return True
        if lease.walls.worth_asking(turn.path, lease.site_session.cookies, in_circle=False):
            lease.site_session.wear()
            lease.frontier.put_back(turn)
            return True
        lease.walls.led_nowhere()
        if lease.walls.stood(turn.path):
            lease.site_session.take_off()
        return False

    def _target_on_site(self, lease: SiteLease, response: Response) -> str:
        """Empty without a redirect, or if it leaves the site or is disallowed."""
        location = (response.headers.get("Location") or b"").decode("latin-1")
        if response.status not in responses.REDIRECTS or not location or lease.rules is None:
            return ""
        place = html.target(response.url, location, self._agent.max_url_length)
        if place is None or place[0] != lease.site:
            return ""
        return place[1] if lease.rules.allows("".join(place), lease.site_session.user_agent) else ""

    def _request_on_the_way(
        self, lease: SiteLease, turn: Turn, path: str, before: RequestContext, response: Response
    ) -> Request:
        context = RequestContext(
            self._may_send(lease),
            lease=lease,
            turn=turn,
            first=before.first or response,
            hops=before.hops + 1,
        )
        return Request(
            lease.site + path,
            callback=self.loaded,
            errback=self.failed,
            meta={**PAGE_META, KEY: context, "depth": turn.depth},
            dont_filter=True,
        )

    @staticmethod
    def _meets_wall(lease: SiteLease, turn: Turn, path: str, worn: int, *, in_circle: bool) -> bool:
        """Whether a redirect leads to a page to retry with more than `worn` cookies."""
        lease.walls = lease.walls or Walls()
        lease.walls.redirected(turn.path, worn)
        leads_back = in_circle or lease.frontier.has_redirected(path)
        if leads_back and lease.walls.worth_asking(path, lease.site_session.cookies, in_circle=in_circle):
            lease.site_session.wear()
            return True
        if lease.walls.stood(turn.path):
            lease.site_session.take_off()
        return False

    def _is_spelt_otherwise(self, lease: SiteLease, turn: Turn, path: str) -> bool:
        """Whether a page redirects to another spelling of itself."""
        many = lease.redirects.get(turn.path, 0) + 1
        if (
            path == turn.asked
            or many > self._most_redirects
            or not self._agent.scope.has_page(lease.site + path)
        ):
            return False
        lease.redirects[turn.path] = many
        lease.frontier.spell(turn, path)
        lease.frontier.put_back(turn)
        return True

    def _led_on(self, lease: SiteLease, turn: Turn, site: str, path: str) -> str:
        """Returns the reason if the redirect chain is too long."""
        many = lease.redirects.pop(turn.path, 0) + 1
        if many > self._most_redirects:
            lease.cut_redirects[turn.path] = many - 1
            return f"not followed: {many - 1} redirects in a row (REDIRECT_MAX_TIMES)"
        if site != lease.site:
            return self._led_elsewhere(lease, turn, site, path, many)
        indexes = lease.indexes_before(turn)
        if indexes is not None:
            lease.add_sitemaps(self._agent.scope.sitemaps_of(site, [path]), turn.depth, indexes, many)
        elif not (self._agent.scope.has_page(site + path) and lease.add_found((path,), turn.depth, many)):
            return ""
        lease.frontier.hand_on(turn, path)
        lease.redirects[page_of(path)] = many
        return ""

    def _led_elsewhere(self, lease: SiteLease, turn: Turn, site: str, path: str, many: int) -> str:
        """A seed's target becomes the seed."""
        agent = self._agent
        is_seed = turn.depth == 0 and lease.loads and lease.indexes_before(turn) is None
        if is_seed and agent.scope.is_of_a_seed(lease.site):
            return agent.offers.move(lease.site, site, path, many)
        agent.offers.add(site, (path,), turn.depth, many)
        return ""

    def _retry_pause(self, turn: Turn) -> float:
        return float(self._options.retry_delay_seconds * 2 ** (turn.tries - 1))

    @staticmethod
    def finish(lease: SiteLease, turn: Turn) -> None:
        """End a page's turn."""
        lease.frontier.finish(turn)

    @staticmethod
    def again(lease: SiteLease, turn: Turn, pause: float) -> None:
        """Schedule another turn in `pause` seconds at the earliest."""
        lease.frontier.set_back(turn, asyncio.get_running_loop().time() + pause)

    def _publish(self, lease: SiteLease, turn: Turn, record: records.Page, out_links: bytes = b"") -> None:
        self._agent.publish(lease, record, out_links)
        lease.frontier.finish(turn)

    def _record(
        self,
        lease: SiteLease,
        turn: Turn,
        outcome: records.PageOutcome,
        status: int,
        response: Response | None = None,
        error: str = "",
    ) -> records.Page:
        record = records.Page(
            site=lease.site,
            path=turn.path,
            fetched_at=int(time.time() * 1000),
            outcome=outcome,
            status=status,
            depth=turn.depth,
            tries=turn.tries,
            error=error,
            work=lease.leased.work,
            sitemap_lastmod=lease.frontier.changed_at(turn),
            asked_as=turn.asked_as,
        )
        if response is not None:
            note_answer(record, response)
        return record

    def _note_load(self, lease: SiteLease, seconds: float | None = None, *, refused: bool) -> None:
        if lease.load is None:
            lease.load = SiteLoad()
        hour = self._agent.hour
        seen = lease.load.refused(hour) if refused else lease.load.answered(hour, seconds)
        if seen is not None:
            self._agent.outbox.add(lease, lease.visit(seen))

    def _watch(
        self, lease: SiteLease, path: str, status: int, meta: dict[str, Any], tries: int, error: str = ""
    ) -> None:
        given = self._options
        if not given.status_by_traffic:
            return
        if lease.watch is None:
            lease.watch = SiteWatch(
                given.status_delay_seconds, given.status_tries, given.status_interval_seconds
            )
        seconds, now = meta.get("download_latency"), asyncio.get_running_loop().time()
        health = lease.watch.saw(path, status, seconds, now)
        if health is None:
            return
        record = records.Health(
            site=lease.site,
            checked_at=int(time.time() * 1000),
            health=health,
            status=status,
            path=path,
            tries=tries,
            seen_by="traffic",
            address=lease.address,
            error=error,
        )
        note_times(record, meta)
        self._agent.outbox.add(lease, record)

    # --- a user's own requests to a leased site ---

    def _heed_own(self) -> None:
        """Connect at the first own request: the signal would cost every page."""
        if not self._heeds_own:
            self._heeds_own = True
            self._crawler.signals.connect(self._rest_if_asked, signals.response_downloaded)

    def _rest_if_asked(self, request: Request, response: Response) -> None:
        """Sees responses that Scrapy's retry middleware hides from the callback."""
        context = request_context_of(request)
        if context is None or not context.own:
            return
        self._heed(context.lease, request.url, 1 + request.meta.get("retry_times", 0), response)

    def is_copy(self, request: Request) -> bool:
        """Whether it is a user's copy of our request for the same URL."""
        context = request_context_of(request)
        return context is not None and request.url == context.url and request.callback in self._ours

    def freed(self, request: Request) -> Request:
        """The request without our context, which a copy may carry."""
        context, callback, errback = request_context_of(request), request.callback, request.errback
        if context is None and callback not in self._ours and errback not in self._ours:
            return request
        meta = request.meta
        if context is not None:
            meta = {key: value for key, value in meta.items() if key != KEY and key not in context.meta}
        if callback in self._ours:
            callback = context.callback if context else None
        if errback in self._ours:
            errback = context.errback if context else None
        return request.replace(callback=callback, errback=errback, meta=meta)

    def _own(self, lease: SiteLease, request: Request) -> Request:
        if request_context_of(request) is not None:
            return request  # it was sent before, or a middleware substituted it for a page
        self._heed_own()
        callback, errback = request.callback, request.errback
        context = RequestContext(
            self._may_send(lease), lease=lease, own=True, callback=callback, errback=errback
        )
        meta = {**request.meta, **SLOT_META, KEY: context}
        return request.replace(callback=self._own_loaded, errback=self._own_failed, meta=meta)

    def _own_loaded(self, response: Response, **arguments: Any) -> Any:
        context = _context(response)
        if not context.end():
            return None
        lease = context.lease
        lease.site_session.take_in(response)
        assert self._crawler.spider
        parse = partial(context.callback or self._crawler.spider._parse, response, **arguments)
        try:
            return self._parse(lease, response.request, parse, _nothing)
        finally:
            self._agent.settle(lease)

    def _own_failed(self, failure: Failure) -> Any:
        request: Request = failure.request  # type: ignore[attr-defined]
        context = _context(request)
        if not context.end():
            return None
        lease = context.lease
        if isinstance(failure.value, NotSentError) and lease.live:
            self._agent.hold(lease, request)
            return None
        parse = partial(context.errback, failure) if context.errback else lambda: failure
        try:
            return self._parse(lease, request, parse, _nothing)
        finally:
            self._agent.settle(lease)


def _patience(given: Options) -> AdaptiveTimeouts | None:
    """Returns None when the settings fix all timeouts."""
    if not given.adaptive_timeouts:
        return None
    floor = Least(given.least_connect_seconds, given.least_head_seconds, given.least_body_seconds)
    return AdaptiveTimeouts(floor, given.timeout_probe_share, given.max_tries)


def note_answer(record: records.Page, response: Response) -> None:
    """Copy size, headers and timings of the response."""
    record.size = len(response.body)
    record.wire_size = response.meta.get("encoded", ("", record.size))[1]
    record.error = record.error or response.meta.get("decoding_error", "")
    record.content_type = _field(response, "Content-Type")
    note_headers(record, response)
    note_times(record, response.meta)


def note_headers(record: records.Page | records.RecheckResult, response: Response) -> None:
    """Copy validators and the server's address."""
    record.etag = _field(response, "ETag")
    record.last_modified = _field(response, "Last-Modified")
    record.address = str(response.ip_address or "")


def _retry_after(response: Response) -> str:
    return (response.headers.get("Retry-After") or b"").decode("latin-1")


def _field(response: Response, name: str) -> str:
    return (response.headers.get(name) or b"").decode("latin-1")[:FIELD_LENGTH]


def note_times(record: records.Page | records.RecheckResult | records.Health, meta: dict[str, Any]) -> None:
    """Copy the timings, if the download handler measured them."""
    if "download_latency" in meta:
        record.latency_ms = int(meta["download_latency"] * 1000)
    times = meta.get("stage_times")
    if times is None:
        return
    if times["connect_s"] is not None and not times["reused"]:
        record.connect_ms = int((times["connect_s"] + (times["tls_s"] or 0.0)) * 1000)
    if times["head_s"] is not None:
        record.head_ms = int(times["head_s"] * 1000)
    if times["body_s"] is not None:
        record.body_ms = int(times["body_s"] * 1000)


def _warn(message: str, error: Exception) -> None:
    """With a traceback, unless the URL is at fault (ValueError)."""
    logger.warning("%s", message, exc_info=None if isinstance(error, ValueError) else error)


def _page_seconds(turn: Turn, response: Response) -> float | None:
    """Returns None when the time is not only the site's (crawler.agent.observer)."""
    times = response.meta.get("stage_times")
    if times is None or not times["reused"] or times["body_s"] is None:
        return None
    if turn.tries > 1 or response.status != 200 or not isinstance(response, HtmlResponse):
        return None
    seconds: float = times["head_s"] + times["body_s"]
    return seconds


def _nothing() -> None:
    """Nothing follows a user's own request."""


def _context(message: Request | Response) -> RequestContext:
    context: RequestContext = message.meta[KEY]
    return context
