"""The requests of a slot, and what their answers mean: robots.txt first, then page by page.

Builds the one Request of a page at its turn, and takes answers and errors as callback and errback. A page either
ends (published), or gets another turn; a site that is overloaded or gone rests. Answers for a lost lease are
dropped without a trace in the results. A user's own request to a site in hand is sent here too, and what comes goes to
his callback.
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

# Redirects of robots.txt that are followed (RFC 9309 asks for five at least).
ROBOTS_HOPS = 5
# Where a sitemap is looked for that nobody names.
USUAL_SITEMAP = "/sitemap.xml"
# Of a header's value that is kept.
FIELD_LENGTH = 200
# How long a site waits for a proxy that wants a login, doubled each time.
PROXY_SECONDS = 10.0
# Pages denied in one go before the event loop gets a turn.
DENIED_AT_A_TIME = 200


class _Parsed(NamedTuple):
    """A page whose callback has given something, and what is to be done when all of that is processed."""

    lease: SiteLease
    request: Request | None
    done: Callable[[], None]


class PageFetcher:
    """One agent's requests and their outcomes."""

    def __init__(self, crawler: Crawler, agent: Agent, chain: Chain) -> None:
        self._crawler = crawler
        self._agent = agent
        self._options = agent.options
        self._chain = chain
        self._patience = _patience(agent.options)
        self._parsed: list[_Parsed] = []  # pages whose callback has given something
        self._heeds_own = False
        self._proxies_told: set[str] = set()
        self._most_redirects = crawler.settings.getint("REDIRECT_MAX_TIMES")
        # Of the works beside loading; what is loaded is judged here.
        self._works: dict[str, Work] = {
            name: jobs.make(name, agent, self) for name in agent.works if name in jobs.CLASSES
        }
        agent.leasing.begin = self._begin
        agent.outbox.next_due = self._next_due
        # What our requests have for callback and errback.
        self._ours = (
            *(self.loaded, self._robots_loaded, self._own_loaded, self._trial_answered),
            *(self.failed, self._robots_failed, self._own_failed, self._trial_failed),
        )

    def next_request(self, lease: SiteLease) -> Request | None:
        """The next request of a ready slot; None: there is nothing to fetch now, the slot was settled.

        Raises nothing: an error costs the page whose turn it is, or the site's lease where it is no page's.
        """
        try:
            return self._next_request(lease)
        except Exception as error:
            words = in_one_line(error)
            _say(f"{lease.site}: no request could be made: {words}", error)
            self._do_without_requests(lease, words)
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
            words = in_one_line(error)
            _say(f"{lease.site}: {turn.path!r} cannot be asked for: {words}", error)
            self._fail(lease, turn, OTHER, words, {})
            self._agent.settle(lease)
            return None

    def _do_without_requests(self, lease: SiteLease, error: str) -> None:
        """No request can be made: not even for robots.txt is as good as no answer; else the lease alone is over."""
        if lease.rules is not None or lease.given_up:
            self._agent.park(lease, error)
            return
        # Where robots.txt led to cannot be asked by the next one either.
        lease.robots_hop, lease.robots_hops = "", 0
        self._leave_alone(lease, OTHER, error, f"no request can be made: {error}")
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
        context = _errand(request)
        context.worn = lease.site_session.worn
        context.begin(request)
        return request

    def _used_up(self, lease: SiteLease, day: SiteDay) -> bool:
        """Whether the site's day has nothing left; then it goes back until the next one."""
        why = day.used_up()
        if why:
            logger.info("%s waits for the next day: %s", lease.site, why)
            self._agent.leasing.end(lease, "later", why, int(day.tomorrow * 1000))
        return bool(why)

    def _give_up(self, lease: SiteLease, status: int, error: str) -> None:
        """Of a site that is given up each page has failed, without a request."""
        self._drop_held(lease)
        lease.frontier.leave_retakes()
        for _ in range(DENIED_AT_A_TIME):
            turn = lease.frontier.take(math.inf)
            if turn is None:
                return
            self._publish(lease, turn, self._record(lease, turn, "failed", status, error=error))

    def _drop_held(self, lease: SiteLease) -> None:
        """Nothing that waits beside pages is sent; a page that a middleware asked for otherwise has its turn back."""
        self._agent.leasing.tell_unsent(lease)
        held, lease.own_requests = lease.own_requests or (), None
        for context in map(request_context_of, held):
            if context is not None and context.turn is not None:
                lease.frontier.put_back(context.turn)

    def _heard(self, lease: SiteLease) -> None:
        lease.silent.clear()
        lease.frontier.parkings = 0

    def _note_silence(self, lease: SiteLease, turn: Turn, status: int, error: str) -> None:
        """A page had no answer: its site may be gone, or overloaded."""
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
        """Let the site rest where its answer to a URL's `tries`th try says so; a success ends its back-off."""
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
        """The failure of one URL is its own; several different ones in a row are the site's, unless a trial succeeds.

        A site of which all `known` URLs fail needs no more of them.
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
        reason = f"{what}, as different URLs in a row did not load"
        self._agent.rest(lease, responses.rest_of(lease.frontier.strikes), reason)

    def _trial(self, lease: SiteLease, path: str) -> Request:
        """A request for a page that was loaded before: where it fails too, the site is overloaded."""
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
        context = _errand(response)
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
        context = _errand(request)
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
        """The site's next request is this one."""
        if lease.own_requests is None:
            lease.own_requests = deque()
        lease.own_requests.appendleft(request)

    def _trip(self, lease: SiteLease, status: int, error: str) -> None:
        self._watch(lease, "/robots.txt", status, {}, politeness.STRAIGHT, error)
        what = "the site does not answer" if politeness.is_silence(status) else "robots.txt cannot be read"
        self._leave_alone(lease, status, error, f"{what}: {error}")

    def _leave_alone(self, lease: SiteLease, status: int, error: str, verdict: str) -> None:
        """Park the site, or give it up with this verdict after MAX_TRIES times in a row; a work ends its turns."""
        if work := self._works.get(lease.leased.work):
            work.shut(lease, status, error)
            return
        times = lease.frontier.parkings + 1
        if times < self._options.max_tries:
            self._agent.park(lease, error)
            return
        logger.info("%s is given up after %d times: %s", lease.site, times, verdict)
        lease.given_up = (status, verdict[:300])

    def _wait_for_proxy(self, lease: SiteLease, error: ProxyRefusedError) -> None:
        """A proxy that wants a login says nothing of the site: that waits, longer each time, and is never given up."""
        words = str(error)
        if words not in self._proxies_told:
            self._proxies_told.add(words)
            logger.warning("%s; its sites wait", words)
        if not lease.live:
            return
        seconds = min(PROXY_SECONDS * 2 ** min(lease.frontier.strikes, 20), responses.LONGEST_REST_SECONDS)
        lease.frontier.strikes += 1
        self._agent.leasing.end(lease, "later", words, self._agent.leasing.due_ms(seconds))

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
                self._deny(lease, turn, IN_A_TRAP, "left out: it is of a trap (TRAP_PAGES)")
            else:
                return turn
        return None

    def _deny(self, lease: SiteLease, turn: Turn, status: int, error: str) -> None:
        """The turn ends without a request."""
        if work := self._works.get(lease.leased.work):
            work.unanswered(lease, turn, status, error, {})
            return
        self._agent.publish(lease, self._record(lease, turn, "denied", status, error=error))
        lease.frontier.finish(turn, counts=False)

    def _page_request(self, lease: SiteLease, turn: Turn) -> Request:
        if not turn.asked.startswith("/"):  # behind the site's name it could be another host
            raise ValueError(f"{turn.asked!r} is no path; expected one that begins with /")
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
        """What a middleware put in the place of the request for robots.txt."""
        held = lease.own_requests or ()
        found = next(
            (one for one in held if (context := request_context_of(one)) and context.for_robots), None
        )
        if found is not None:
            assert lease.own_requests
            lease.own_requests.remove(found)
        return found

    def _robots_loaded(self, response: Response, **_arguments: Any) -> None:
        context = _errand(response)
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
            self._obey(lease, CUT_SHORT, b"", f"{response.url}: it is cut short or damaged")
            return
        # Not before the last redirect: one that leads into silence would keep the site from its verdict for ever.
        self._heard(lease)
        rest = responses.seconds_asked(_retry_after(response))
        self._obey(lease, response.status, response.body, f"robots.txt answered {response.status}", rest)

    def _robots_failed(self, failure: Failure) -> None:
        context, error = _errand(failure.request), failure.value  # type: ignore[attr-defined]
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
            # Another's silence, or another's address that nobody may visit: the pages lie here.
            status = OTHER
        elif isinstance(error, AddressRefusedError):
            logger.warning("%s; --again walks it anew then", error)
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
            told = body if 200 <= status < 300 else b""
            lease.robots = blake2b(told, digest_size=8).hexdigest()
            self._take_sitemaps(lease, told)
            lease.rules_read_at = asyncio.get_running_loop().time()
            asked = min(rules.crawl_delay or 0.0, self._options.max_crawl_delay_seconds)
            lease.delay = max(lease.least_delay, asked)
            lease.window = rules.window
        self._agent.settle(lease)

    def _do_without_rules(self, lease: SiteLease, status: int, what: str, rest: float | None) -> None:
        """No page may be asked: the site rests, or is parked."""
        lease.rules = None
        if politeness.shuts(status):
            self._trip(lease, status, what)
            return
        self._watch(lease, "/robots.txt", status, {}, lease.frontier.strikes + 1, what)
        self._agent.rest(lease, max(rest or 0.0, responses.rest_of(lease.frontier.strikes)), what)
        if work := self._works.get(lease.leased.work):
            work.shut(lease, status, what)

    def _take_sitemaps(self, lease: SiteLease, robots_file: bytes) -> None:
        """Those that robots.txt names, or where it names none and SITEMAPS says so the usual one, are pages to load."""
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
        """Callback of every page: what the user's `parse` gives for an answer 2xx, else nothing.

        `arguments` are those of a request that a middleware put in the page's place.
        """
        context = _errand(response)
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
        """Errback of every page: no answer came, or a middleware refused."""
        request: Request = failure.request  # type: ignore[attr-defined]
        context, error = _errand(request), failure.value
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
        self._end_in_vain(lease, turn, request, error)
        self._note_silence(lease, turn, status_code_of(error), in_one_line(error))

    def _end_in_vain(self, lease: SiteLease, turn: Turn, request: Request, error: BaseException) -> None:
        """No answer came: the page has another turn, or has failed."""
        work, status, words = self._works.get(lease.leased.work), status_code_of(error), in_one_line(error)
        first = _errand(request).first
        if work and lease.walls and first is not None:  # the page itself has answered
            lease.walls.leave()
            work.answered(lease, turn, first)
            return
        if not work and worth_another_try(error) and turn.tries < self._options.max_tries:
            self.again(lease, turn, self._retry_pause(turn))
            return
        # Silence may be a moment's; a check too would ask again.
        if status in politeness.BAD_ANSWER or turn.tries >= self._options.status_tries:
            self._watch(lease, turn.path, status, request.meta, turn.tries, words)
        if isinstance(error, TooLargeError) and not isinstance(error, HeaderLimitError):
            lease.leave_out("size", (turn.path,))
        self._fail(lease, turn, status, words, request.meta)

    def _fail(self, lease: SiteLease, turn: Turn, status: int, words: str, meta: dict[str, Any]) -> None:
        """The turn of a page ends without an answer; `meta` is its request's."""
        if work := self._works.get(lease.leased.work):
            work.unanswered(lease, turn, status, words, meta)
            return
        record = self._record(lease, turn, "failed", status, error=words)
        note_times(record, meta)
        self._publish(lease, turn, record)

    def take_in(
        self, lease: SiteLease, turn: Turn, response: Response, arguments: dict[str, Any] | None = None
    ) -> Any:
        """A page's body came: through the page pipelines and to the spider; the turn ends when it is done with it."""
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
            lease.parsing += 1
            self._parsed.append(_Parsed(lease, self._in_progress(request), done))
        return output

    def _in_progress(self, request: Request | None) -> Request | None:
        """The request that the engine has in hand; a middleware may have given its response another."""
        under_way = engine.in_progress(self._crawler)
        if request is None or request in under_way:
            return request
        context = _errand(request)
        return next((one for one in under_way if request_context_of(one) is context), None)

    def end_parsed(self) -> None:
        """End the turns of those pages of which nothing is under way any more; called whenever the engine asks on."""
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
        """The turn ends, and where it led is found like a link."""
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
        again = own and self._meets_wall(lease, turn, page, _errand(response).worn, in_circle=bool(circle))
        if circle and not again:
            record.error = responses.walls_in_words(circle, with_cookies=lease.site_session.cookies > 0)
        self._publish(lease, turn, record, records.pack_links([record.redirect]))
        if again:
            lease.frontier.ask_again(page)

    @staticmethod
    def first_answer(response: Response) -> Response | None:
        """The redirect of the page itself, where this is the answer to a request for where it leads."""
        return _errand(response).first

    def passes_wall(self, lease: SiteLease, turn: Turn, response: Response) -> bool:
        """Whether something is still to be asked in the turn of a page that has redirected: where it leads, or itself.

        It is asked again with the cookies of the way, if there were any.
        """
        context, lease.walls = _errand(response), lease.walls or Walls()
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
        """The path that a redirect leads to; empty: it is none, leads elsewhere, or to what robots.txt forbids."""
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
        """Whether a page that was asked with `worn` cookies leads to one that is to be asked again with more."""
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
        """Whether a page that redirects to itself does so in another spelling; then that one is asked for instead."""
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
        """A redirect's target into its site's frontier; why not, where too many came one behind the other."""
        many = lease.redirects.pop(turn.path, 0) + 1
        if many > self._most_redirects:
            lease.cut_redirects[turn.path] = many - 1
            return f"not followed: the redirect behind {many - 1} others (REDIRECT_MAX_TIMES)"
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
        """As `_led_on`, to another site: where a seed leads there, that page is the seed."""
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
        """The turn of a page has ended, and all that is to be told of it was told."""
        lease.frontier.finish(turn)

    @staticmethod
    def again(lease: SiteLease, turn: Turn, pause: float) -> None:
        """The page gets another turn, after `pause` seconds at the earliest."""
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
        """What the slot sees of its site's load; an hour that is over is told."""
        if lease.load is None:
            lease.load = SiteLoad()
        hour = self._agent.hour
        seen = lease.load.refused(hour) if refused else lease.load.answered(hour, seconds)
        if seen is not None:
            self._agent.outbox.add(lease, lease.visit(seen))

    def _watch(
        self, lease: SiteLease, path: str, status: int, meta: dict[str, Any], tries: int, error: str = ""
    ) -> None:
        """What the site's answer, or that there was none, says of its health; told where it says something new."""
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

    # --- a user's own requests to a site in hand ---

    def _heed_own(self) -> None:
        """Be told of answers from the first own request on: most crawls have none, and every page would pay."""
        if not self._heeds_own:
            self._heeds_own = True
            self._crawler.signals.connect(self._rest_if_asked, signals.response_downloaded)

    def _rest_if_asked(self, request: Request, response: Response) -> None:
        """Called with every answer: Scrapy's middlewares keep one that means a rest from its callback."""
        context = request_context_of(request)
        if context is None or not context.own:
            return
        self._heed(context.lease, request.url, 1 + request.meta.get("retry_times", 0), response)

    def is_copy(self, request: Request) -> bool:
        """Whether it is a user's copy of a request of ours, for the very same URL: that one once more."""
        context = request_context_of(request)
        return context is not None and request.url == context.url and request.callback in self._ours

    def freed(self, request: Request) -> Request:
        """A user's request without what is ours in it: he may have copied one of ours, or the meta of its answer."""
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
        """Let the slot know when the request has ended, however it ends."""
        if request_context_of(request) is not None:
            return request  # it had its turn before, or a middleware put it in a page's place
        self._heed_own()
        callback, errback = request.callback, request.errback
        context = RequestContext(
            self._may_send(lease), lease=lease, own=True, callback=callback, errback=errback
        )
        meta = {**request.meta, **SLOT_META, KEY: context}
        return request.replace(callback=self._own_loaded, errback=self._own_failed, meta=meta)

    def _own_loaded(self, response: Response, **arguments: Any) -> Any:
        context = _errand(response)
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
        context = _errand(request)
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
    """None: every stage has the limits of the settings."""
    if not given.adaptive_timeouts:
        return None
    least = Least(given.least_connect_seconds, given.least_head_seconds, given.least_body_seconds)
    return AdaptiveTimeouts(least, given.timeout_probe_share, given.max_tries)


def note_answer(record: records.Page, response: Response) -> None:
    """What the answer says of itself, and how it came."""
    record.size = len(response.body)
    record.wire_size = response.meta.get("encoded", ("", record.size))[1]
    record.error = record.error or response.meta.get("decoding_error", "")
    record.content_type = _field(response, "Content-Type")
    note_headers(record, response)
    note_times(record, response.meta)


def note_headers(record: records.Page | records.RecheckResult, response: Response) -> None:
    """What the answer says of the page's version, and who gave it."""
    record.etag = _field(response, "ETag")
    record.last_modified = _field(response, "Last-Modified")
    record.address = str(response.ip_address or "")


def _retry_after(response: Response) -> str:
    return (response.headers.get("Retry-After") or b"").decode("latin-1")


def _field(response: Response, name: str) -> str:
    return (response.headers.get(name) or b"").decode("latin-1")[:FIELD_LENGTH]


def note_times(record: records.Page | records.RecheckResult | records.Health, meta: dict[str, Any]) -> None:
    """The times of the stages that the exchange came through; none where another handler made it."""
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


def _say(words: str, error: Exception) -> None:
    """Why nothing is asked; where it is no URL that is at fault, with the place in the code."""
    logger.warning("%s", words, exc_info=None if isinstance(error, ValueError) else error)


def _page_seconds(turn: Turn, response: Response) -> float | None:
    """How long the site took for the page; None where the time says something else too (crawler.agent.observer)."""
    times = response.meta.get("stage_times")
    if times is None or not times["reused"] or times["body_s"] is None:
        return None
    if turn.tries > 1 or response.status != 200 or not isinstance(response, HtmlResponse):
        return None
    seconds: float = times["head_s"] + times["body_s"]
    return seconds


def _nothing() -> None:
    """What is to be done after a user's own request: nothing."""


def _errand(one: Request | Response) -> RequestContext:
    context: RequestContext = one.meta[KEY]
    return context
