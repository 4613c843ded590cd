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
from crawler.agent.requests import PAGE_META, SLOT_META, Errand, errand_of
from crawler.agent.responses import Walls
from crawler.content import html, sitemaps
from crawler.content.traps import Traps
from crawler.fetch.context import KEY
from crawler.fetch.errors import (
    CUT_SHORT,
    IN_A_TRAP,
    OTHER,
    ROBOTS_DENIED,
    AddressRefused,
    HeaderLimitExceeded,
    NotSent,
    ProxyRefused,
    TooLarge,
    in_one_line,
    status_code_of,
    worth_another_try,
)
from crawler.fetch.timeouts import Least, Patience, SitePatience
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
    from crawler.agent.site_lease import Slot
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

    slot: Slot
    request: Request | None
    done: Callable[[], None]


class Visits:
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

    def next_request(self, slot: Slot) -> Request | None:
        """The next request of a ready slot; None: there is nothing to fetch now, the slot was settled.

        Raises nothing: an error costs the page whose turn it is, or the site's lease where it is no page's.
        """
        try:
            return self._next_request(slot)
        except Exception as error:
            words = in_one_line(error)
            _say(f"{slot.site}: no request could be made: {words}", error)
            self._do_without_requests(slot, words)
            return None

    def _next_request(self, slot: Slot) -> Request | None:
        if slot.day is not None and self._used_up(slot, slot.day):
            return None
        if slot.given_up:
            self._give_up(slot, *slot.given_up)
            self._agent.settle(slot)
            return None
        now = asyncio.get_running_loop().time()
        if slot.rules is not None and now - slot.rules_read_at > self._options.robots_lifetime_seconds:
            slot.rules = None
        if slot.rules is None or slot.robots_hop:
            return self._start(slot, self._held_robots(slot) or self._robots_request(slot))
        if slot.own_requests:
            return self._start(slot, self._own(slot, slot.own_requests.popleft()))
        turn = self._allowed_turn(slot, now)
        if turn is None:
            self._agent.settle(slot)
            return None
        try:
            return self._start(slot, self._page_request(slot, turn))
        except Exception as error:
            words = in_one_line(error)
            _say(f"{slot.site}: {turn.path!r} cannot be asked for: {words}", error)
            self._fail(slot, turn, OTHER, words, {})
            self._agent.settle(slot)
            return None

    def _do_without_requests(self, slot: Slot, error: str) -> None:
        """No request can be made: not even for robots.txt is as good as no answer; else the lease alone is over."""
        if slot.rules is not None or slot.given_up:
            self._agent.park(slot, error)
            return
        # Where robots.txt led to cannot be asked by the next one either.
        slot.robots_hop, slot.robots_hops = "", 0
        self._leave_alone(slot, OTHER, error, f"no request can be made: {error}")
        self._agent.settle(slot)

    def _begin(self, slot: Slot, packed: bytes) -> None:
        self._works[slot.leased.work].begin(slot, packed)

    def _next_due(self, slot: Slot) -> float:
        return self._works[slot.leased.work].next_due(slot)

    def _start(self, slot: Slot, request: Request) -> Request:
        slot.started_at = asyncio.get_running_loop().time()
        if slot.day is not None:
            slot.day.count(1, 0)
        if slot.traps is None and self._options.trap_pages:
            slot.traps = Traps(self._options.trap_pages)
        if slot.patience is None and self._patience is not None:
            slot.patience = SitePatience(self._patience)
        slot.dress.put_on(request)
        errand = _errand(request)
        errand.worn = slot.dress.worn
        errand.begin(request)
        return request

    def _used_up(self, slot: Slot, day: SiteDay) -> bool:
        """Whether the site's day has nothing left; then it goes back until the next one."""
        why = day.used_up()
        if why:
            logger.info("%s waits for the next day: %s", slot.site, why)
            self._agent.leasing.end(slot, "later", why, int(day.tomorrow * 1000))
        return bool(why)

    def _give_up(self, slot: Slot, status: int, error: str) -> None:
        """Of a site that is given up each page has failed, without a request."""
        self._drop_held(slot)
        slot.frontier.leave_retakes()
        for _ in range(DENIED_AT_A_TIME):
            turn = slot.frontier.take(math.inf)
            if turn is None:
                return
            self._publish(slot, turn, self._record(slot, turn, "failed", status, error=error))

    def _drop_held(self, slot: Slot) -> None:
        """Nothing that waits beside pages is sent; a page that a middleware asked for otherwise has its turn back."""
        self._agent.leasing.tell_unsent(slot)
        held, slot.own_requests = slot.own_requests or (), None
        for errand in map(errand_of, held):
            if errand is not None and errand.turn is not None:
                slot.frontier.put_back(errand.turn)

    def _heard(self, slot: Slot) -> None:
        slot.silent.clear()
        slot.frontier.parkings = 0

    def _note_silence(self, slot: Slot, turn: Turn, status: int, error: str) -> None:
        """A page had no answer: its site may be gone, or overloaded."""
        if status in politeness.BAD_ANSWER:
            self._heard(slot)
        if politeness.is_silence(status):
            slot.silent.add(politeness.silence_of(turn.path, turn.tries, status))
            step = politeness.next_step(status, len(slot.silent))
            if step == "probe":
                slot.rules = None
            elif step == "trip" and slot.live:
                self._trip(slot, status, error)
        if status in politeness.MAY_BE_THE_SITE and slot.live:
            self._count_failure(slot, turn.path, turn.tries, error, sys.maxsize)

    # --- the site's pace ---

    def _heed(self, slot: Slot, url: str, tries: int, response: Response) -> None:
        """Let the site rest where its answer to a URL's `tries`th try says so; a success ends its back-off."""
        status, strikes = response.status, slot.frontier.strikes
        seconds = responses.rest_asked(status, _retry_after(response), strikes)
        if seconds:
            self._agent.rest(slot, seconds, f"it answered {status}")
        elif status in ASKS_FOR_REST:
            known = len(slot.frontier) if slot.loads else sys.maxsize
            self._count_failure(slot, url, tries, f"it answered {status}", known)
        elif not responses.is_refusal(status):
            slot.row.end()
            slot.frontier.strikes = 0

    def _count_failure(self, slot: Slot, url: str, tries: int, what: str, known: int) -> None:
        """The failure of one URL is its own; several different ones in a row are the site's, unless a trial succeeds.

        A site of which all `known` URLs fail needs no more of them.
        """
        if not slot.row.add(url, tries, slot.frontier.strikes, known) or slot.on_trial:
            return
        loaded = slot.frontier.loaded
        if loaded is None or not slot.live:
            self._rest_after(slot, what)
            return
        slot.on_trial = True
        self._send_next(slot, self._trial(slot, loaded))

    def _rest_after(self, slot: Slot, what: str) -> None:
        reason = f"{what}, as different URLs in a row did not load"
        self._agent.rest(slot, responses.rest_of(slot.frontier.strikes), reason)

    def _trial(self, slot: Slot, path: str) -> Request:
        """A request for a page that was loaded before: where it fails too, the site is overloaded."""
        return Request(
            slot.site + path,
            callback=self._trial_answered,
            errback=self._trial_failed,
            meta={**PAGE_META, KEY: Errand(self._may_send(slot), slot=slot, trial=True), "dont_cache": True},
            dont_filter=True,
        )

    def _trial_answered(self, response: Response, **_arguments: Any) -> None:
        errand = _errand(response)
        if not errand.end():
            return
        slot, status = errand.slot, response.status
        slot.dress.take_in(response)
        slot.on_trial = False
        self._heard(slot)
        self._note_load(slot, refused=responses.is_refusal(status))
        if not responses.is_refusal(status) or responses.rest_asked(status, _retry_after(response), 0):
            self._heed(slot, errand.url, 1, response)
        else:
            self._rest_after(slot, f"it answered {status}")
        self._agent.settle(slot)

    def _trial_failed(self, failure: Failure) -> None:
        request, error = failure.request, failure.value  # type: ignore[attr-defined]
        assert error is not None
        errand = _errand(request)
        if not errand.end():
            return
        slot = errand.slot
        if isinstance(error, NotSent):
            self._send_next(slot, request)
        elif isinstance(error, ProxyRefused):
            slot.on_trial = False
            self._wait_for_proxy(slot, error)
        else:
            slot.on_trial = False
            self._rest_after(slot, in_one_line(error))
        self._agent.settle(slot)

    @staticmethod
    def _send_next(slot: Slot, request: Request) -> None:
        """The site's next request is this one."""
        if slot.own_requests is None:
            slot.own_requests = deque()
        slot.own_requests.appendleft(request)

    def _trip(self, slot: Slot, status: int, error: str) -> None:
        self._watch(slot, "/robots.txt", status, {}, politeness.STRAIGHT, error)
        what = "the site does not answer" if politeness.is_silence(status) else "robots.txt cannot be read"
        self._leave_alone(slot, status, error, f"{what}: {error}")

    def _leave_alone(self, slot: Slot, status: int, error: str, verdict: str) -> None:
        """Park the site, or give it up with this verdict after MAX_TRIES times in a row; a work ends its turns."""
        if work := self._works.get(slot.leased.work):
            work.shut(slot, status, error)
            return
        times = slot.frontier.parkings + 1
        if times < self._options.max_tries:
            self._agent.park(slot, error)
            return
        logger.info("%s is given up after %d times: %s", slot.site, times, verdict)
        slot.given_up = (status, verdict[:300])

    def _wait_for_proxy(self, slot: Slot, error: ProxyRefused) -> None:
        """A proxy that wants a login says nothing of the site: that waits, longer each time, and is never given up."""
        words = str(error)
        if words not in self._proxies_told:
            self._proxies_told.add(words)
            logger.warning("%s; its sites wait", words)
        if not slot.live:
            return
        seconds = min(PROXY_SECONDS * 2 ** min(slot.frontier.strikes, 20), responses.LONGEST_REST_SECONDS)
        slot.frontier.strikes += 1
        self._agent.leasing.end(slot, "later", words, self._agent.leasing.due_ms(seconds))

    def _may_send(self, slot: Slot) -> Callable[[], bool]:
        return partial(self._agent.may_send, slot)

    def _allowed_turn(self, slot: Slot, now: float) -> Turn | None:
        assert slot.rules is not None
        for _ in range(DENIED_AT_A_TIME):
            turn = slot.frontier.take(now)
            if turn is None:
                return None
            if not slot.rules.allows(slot.site + turn.asked, slot.dress.user_agent):
                self._deny(slot, turn, ROBOTS_DENIED, "robots.txt forbids it")
            elif slot.traps is not None and slot.traps.holds(turn.path):
                slot.leave_out("family", (turn.path,))
                self._deny(slot, turn, IN_A_TRAP, "left out: it is of a trap (TRAP_PAGES)")
            else:
                return turn
        return None

    def _deny(self, slot: Slot, turn: Turn, status: int, error: str) -> None:
        """The turn ends without a request."""
        if work := self._works.get(slot.leased.work):
            work.unanswered(slot, turn, status, error, {})
            return
        self._agent.publish(slot, self._record(slot, turn, "denied", status, error=error))
        slot.frontier.finish(turn, counts=False)

    def _page_request(self, slot: Slot, turn: Turn) -> Request:
        if not turn.asked.startswith("/"):  # behind the site's name it could be another host
            raise ValueError(f"{turn.asked!r} is no path; expected one that begins with /")
        request = Request(
            slot.site + turn.asked,
            callback=self.loaded,
            errback=self.failed,
            meta={**PAGE_META, KEY: Errand(self._may_send(slot), slot=slot, turn=turn), "depth": turn.depth},
            dont_filter=True,
        )
        work = self._works.get(slot.leased.work)
        return work.request(slot, turn, request) if work else request

    # --- robots.txt ---

    def _robots_request(self, slot: Slot) -> Request:
        return Request(
            slot.robots_hop or f"{slot.site}/robots.txt",
            callback=self._robots_loaded,
            errback=self._robots_failed,
            meta={**PAGE_META, KEY: Errand(self._may_send(slot), slot=slot)},
            dont_filter=True,
        )

    @staticmethod
    def _held_robots(slot: Slot) -> Request | None:
        """What a middleware put in the place of the request for robots.txt."""
        held = slot.own_requests or ()
        found = next((one for one in held if (errand := errand_of(one)) and errand.for_robots), None)
        if found is not None:
            assert slot.own_requests
            slot.own_requests.remove(found)
        return found

    def _robots_loaded(self, response: Response, **_arguments: Any) -> None:
        errand = _errand(response)
        if not errand.end():
            return
        slot = errand.slot
        slot.dress.take_in(response)
        if not errand.elsewhere:
            self._note_load(slot, refused=responses.is_refusal(response.status))
        location = response.headers.get("Location")
        if response.status in responses.REDIRECTS and location and slot.robots_hops < ROBOTS_HOPS:
            place = html.target(response.url, location.decode("latin-1"), self._agent.max_url_length)
            if place and slot.live:
                slot.robots_hops += 1
                slot.robots_hop = "".join(place)
                self._agent.settle(slot)
                return
        if policy.LOSSES.intersection(response.flags):
            self._obey(slot, CUT_SHORT, b"", f"{response.url}: it is cut short or damaged")
            return
        # Not before the last redirect: one that leads into silence would keep the site from its verdict for ever.
        self._heard(slot)
        rest = responses.seconds_asked(_retry_after(response))
        self._obey(slot, response.status, response.body, f"robots.txt answered {response.status}", rest)

    def _robots_failed(self, failure: Failure) -> None:
        errand, error = _errand(failure.request), failure.value  # type: ignore[attr-defined]
        assert error is not None
        if not errand.end():
            return
        slot = errand.slot
        if isinstance(error, NotSent | ProxyRefused):
            if isinstance(error, ProxyRefused):
                self._wait_for_proxy(slot, error)
            self._agent.settle(slot)
            return
        if isinstance(error, DownloadTimeoutError) and not errand.elsewhere:
            self._note_load(slot, refused=True)
        status = status_code_of(error)
        if errand.elsewhere and status not in politeness.BAD_ANSWER:
            # Another's silence, or another's address that nobody may visit: the pages lie here.
            status = OTHER
        elif isinstance(error, AddressRefused):
            logger.warning("%s; --again walks it anew then", error)
        self._obey(slot, status, b"", in_one_line(error))

    def _obey(self, slot: Slot, status: int, body: bytes, what: str, rest: float | None = None) -> None:
        slot.robots_hop, slot.robots_hops = "", 0
        if not slot.live:
            self._agent.settle(slot)
            return
        rules = policy.rules(status, body, slot.site, slot.dress.user_agent, self._options.robots_max_bytes)
        if not rules.available:
            self._do_without_rules(slot, status, what, rest)
        else:
            slot.rules = rules
            told = body if 200 <= status < 300 else b""
            slot.robots = blake2b(told, digest_size=8).hexdigest()
            self._take_sitemaps(slot, told)
            slot.rules_read_at = asyncio.get_running_loop().time()
            asked = min(rules.crawl_delay or 0.0, self._options.max_crawl_delay_seconds)
            slot.delay = max(slot.least_delay, asked)
            slot.window = rules.window
        self._agent.settle(slot)

    def _do_without_rules(self, slot: Slot, status: int, what: str, rest: float | None) -> None:
        """No page may be asked: the site rests, or is parked."""
        slot.rules = None
        if politeness.shuts(status):
            self._trip(slot, status, what)
            return
        self._watch(slot, "/robots.txt", status, {}, slot.frontier.strikes + 1, what)
        self._agent.rest(slot, max(rest or 0.0, responses.rest_of(slot.frontier.strikes)), what)
        if work := self._works.get(slot.leased.work):
            work.shut(slot, status, what)

    def _take_sitemaps(self, slot: Slot, robots_file: bytes) -> None:
        """Those that robots.txt names, or where it names none and SITEMAPS says so the usual one, are pages to load."""
        if self._options.sitemaps == "off":
            return
        urls = sitemaps.named(robots_file)
        if not urls and self._options.sitemaps == "tried":
            urls = [USUAL_SITEMAP]
        base, length = f"{slot.site}/robots.txt", self._agent.max_url_length
        places = [place for place in html.places(urls, base, slot.site, length)[0] if place]
        own = sorted({path for site, path in places if differs_in_scheme(site, slot.site)})
        slot.sitemaps = frozenset(map(page_of, own))
        if not slot.loads:
            return
        slot.add_found(self._agent.scope.sitemaps_of(slot.site, own), 0)
        for site, path in places:
            if not differs_in_scheme(site, slot.site) and is_variant(site, slot.site):
                self._agent.offers.add(site, (path,), 0)

    # --- pages ---

    def loaded(self, response: Response, **arguments: Any) -> Any:
        """Callback of every page: what the user's `parse` gives for an answer 2xx, else nothing.

        `arguments` are those of a request that a middleware put in the page's place.
        """
        errand = _errand(response)
        if not errand.end():
            return None
        slot, turn = errand.slot, errand.turn
        assert turn is not None
        turn = slot.frontier.now(turn)
        slot.dress.take_in(response)
        self._heard(slot)
        if slot.lost:
            return None
        try:
            return self._take_answer(slot, turn, response, arguments)
        finally:
            self._agent.settle(slot)

    def _take_answer(self, slot: Slot, turn: Turn, response: Response, arguments: dict[str, Any]) -> Any:
        self._note_load(slot, _page_seconds(turn, response), refused=responses.is_refusal(response.status))
        self._heed(slot, turn.path, turn.tries, response)
        verdict = responses.verdict(response.status, turn.tries, self._options.max_tries)
        self._watch(slot, turn.path, response.status, response.meta, turn.tries)
        if work := self._works.get(slot.leased.work):
            return work.answered(slot, turn, response)
        if verdict == "stored":
            return self.take_in(slot, turn, response, arguments)
        if verdict == "redirected":
            self.redirected(slot, turn, response)
        elif verdict == "again":
            self.again(slot, turn, self._retry_pause(turn))
        else:
            self._publish(slot, turn, self._record(slot, turn, "failed", response.status, response))
        return None

    def failed(self, failure: Failure) -> None:
        """Errback of every page: no answer came, or a middleware refused."""
        request: Request = failure.request  # type: ignore[attr-defined]
        errand, error = _errand(request), failure.value
        assert error is not None
        if not errand.end() or errand.slot.lost:
            return
        assert errand.turn is not None
        turn = errand.slot.frontier.now(errand.turn)
        try:
            self._take_error(errand.slot, turn, request, error)
        finally:
            self._agent.settle(errand.slot)

    def _take_error(self, slot: Slot, turn: Turn, request: Request, error: BaseException) -> None:
        if isinstance(error, DownloadTimeoutError):
            self._note_load(slot, refused=True)
        if isinstance(error, NotSent | ProxyRefused):
            slot.frontier.put_back(turn)
            if isinstance(error, ProxyRefused):
                self._wait_for_proxy(slot, error)
            return
        self._end_in_vain(slot, turn, request, error)
        self._note_silence(slot, turn, status_code_of(error), in_one_line(error))

    def _end_in_vain(self, slot: Slot, turn: Turn, request: Request, error: BaseException) -> None:
        """No answer came: the page has another turn, or has failed."""
        work, status, words = self._works.get(slot.leased.work), status_code_of(error), in_one_line(error)
        first = _errand(request).first
        if work and slot.walls and first is not None:  # the page itself has answered
            slot.walls.leave()
            work.answered(slot, turn, first)
            return
        if not work and worth_another_try(error) and turn.tries < self._options.max_tries:
            self.again(slot, turn, self._retry_pause(turn))
            return
        # Silence may be a moment's; a check too would ask again.
        if status in politeness.BAD_ANSWER or turn.tries >= self._options.status_tries:
            self._watch(slot, turn.path, status, request.meta, turn.tries, words)
        if isinstance(error, TooLarge) and not isinstance(error, HeaderLimitExceeded):
            slot.leave_out("size", (turn.path,))
        self._fail(slot, turn, status, words, request.meta)

    def _fail(self, slot: Slot, turn: Turn, status: int, words: str, meta: dict[str, Any]) -> None:
        """The turn of a page ends without an answer; `meta` is its request's."""
        if work := self._works.get(slot.leased.work):
            work.unanswered(slot, turn, status, words, meta)
            return
        record = self._record(slot, turn, "failed", status, error=words)
        note_times(record, meta)
        self._publish(slot, turn, record)

    def take_in(
        self, slot: Slot, turn: Turn, response: Response, arguments: dict[str, Any] | None = None
    ) -> Any:
        """A page's body came: through the page pipelines and to the spider; the turn ends when it is done with it."""
        record = self._record(slot, turn, "stored", response.status, response)
        slot.frontier.note_loaded(turn)
        slot.redirects.pop(turn.path, None)
        if slot.walls is not None:
            slot.walls.answered(turn.path)
        page = LoadedPage(self._agent, slot, turn, response, record)
        self._chain.process(page)
        if slot.loads and turn.path == "/" and self._options.find_aliases and slot.address and record.size:
            self._agent.ask_for_alias(slot, record.sha256)
        assert self._crawler.spider
        parse = partial(self._crawler.spider._parse, response, **(arguments or {}))
        return self._parse(slot, response.request, parse, page.publish)

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
        errand = _errand(request)
        return next((one for one in under_way if errand_of(one) is errand), None)

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

    def redirected(self, slot: Slot, turn: Turn, response: Response) -> None:
        """The turn ends, and where it led is found like a link."""
        location = (response.headers.get("Location") or b"").decode("latin-1")
        place = html.target(response.url, location, self._agent.max_url_length) if location else None
        if place is None:
            record = self._record(
                slot, turn, "failed", response.status, response, error=f"redirects to {location[:150]!r}"
            )
            self._publish(slot, turn, record)
            return
        site, path = place
        page = page_of(path)
        if site == slot.site and page == turn.path and self._is_spelt_otherwise(slot, turn, path):
            return
        record = self._record(slot, turn, "redirected", response.status, response)
        record.redirect = site + page
        record.error = self._led_on(slot, turn, site, path)
        circle = slot.frontier.note_redirect(turn, page) if site == slot.site else []
        own = site == slot.site and slot.loads
        again = own and self._meets_wall(slot, turn, page, _errand(response).worn, in_circle=bool(circle))
        if circle and not again:
            record.error = responses.walls_in_words(circle, with_cookies=slot.dress.cookies > 0)
        self._publish(slot, turn, record, records.pack_links([record.redirect]))
        if again:
            slot.frontier.ask_again(page)

    @staticmethod
    def first_answer(response: Response) -> Response | None:
        """The redirect of the page itself, where this is the answer to a request for where it leads."""
        return _errand(response).first

    def passes_wall(self, slot: Slot, turn: Turn, response: Response) -> bool:
        """Whether something is still to be asked in the turn of a page that has redirected: where it leads, or itself.

        It is asked again with the cookies of the way, if there were any.
        """
        errand, slot.walls = _errand(response), slot.walls or Walls()
        if errand.first is None:
            slot.walls.redirected(turn.path, errand.worn)
        target = self._target_on_site(slot, response)
        if (
            target
            and page_of(target) != turn.path
            and errand.hops < self._most_redirects
            and not slot.walls.stand
        ):
            self._send_next(slot, self._request_on_the_way(slot, turn, target, errand, response))
            return True
        if slot.walls.worth_asking(turn.path, slot.dress.cookies, in_circle=False):
            slot.dress.wear()
            slot.frontier.put_back(turn)
            return True
        slot.walls.led_nowhere()
        if slot.walls.stood(turn.path):
            slot.dress.take_off()
        return False

    def _target_on_site(self, slot: Slot, response: Response) -> str:
        """The path that a redirect leads to; empty: it is none, leads elsewhere, or to what robots.txt forbids."""
        location = (response.headers.get("Location") or b"").decode("latin-1")
        if response.status not in responses.REDIRECTS or not location or slot.rules is None:
            return ""
        place = html.target(response.url, location, self._agent.max_url_length)
        if place is None or place[0] != slot.site:
            return ""
        return place[1] if slot.rules.allows("".join(place), slot.dress.user_agent) else ""

    def _request_on_the_way(
        self, slot: Slot, turn: Turn, path: str, before: Errand, response: Response
    ) -> Request:
        errand = Errand(
            self._may_send(slot), slot=slot, turn=turn, first=before.first or response, hops=before.hops + 1
        )
        return Request(
            slot.site + path,
            callback=self.loaded,
            errback=self.failed,
            meta={**PAGE_META, KEY: errand, "depth": turn.depth},
            dont_filter=True,
        )

    @staticmethod
    def _meets_wall(slot: Slot, turn: Turn, path: str, worn: int, *, in_circle: bool) -> bool:
        """Whether a page that was asked with `worn` cookies leads to one that is to be asked again with more."""
        slot.walls = slot.walls or Walls()
        slot.walls.redirected(turn.path, worn)
        leads_back = in_circle or slot.frontier.has_redirected(path)
        if leads_back and slot.walls.worth_asking(path, slot.dress.cookies, in_circle=in_circle):
            slot.dress.wear()
            return True
        if slot.walls.stood(turn.path):
            slot.dress.take_off()
        return False

    def _is_spelt_otherwise(self, slot: Slot, turn: Turn, path: str) -> bool:
        """Whether a page that redirects to itself does so in another spelling; then that one is asked for instead."""
        many = slot.redirects.get(turn.path, 0) + 1
        if (
            path == turn.asked
            or many > self._most_redirects
            or not self._agent.scope.has_page(slot.site + path)
        ):
            return False
        slot.redirects[turn.path] = many
        slot.frontier.spell(turn, path)
        slot.frontier.put_back(turn)
        return True

    def _led_on(self, slot: Slot, turn: Turn, site: str, path: str) -> str:
        """A redirect's target into its site's frontier; why not, where too many came one behind the other."""
        many = slot.redirects.pop(turn.path, 0) + 1
        if many > self._most_redirects:
            slot.cut_redirects[turn.path] = many - 1
            return f"not followed: the redirect behind {many - 1} others (REDIRECT_MAX_TIMES)"
        if site != slot.site:
            return self._led_elsewhere(slot, turn, site, path, many)
        indexes = slot.indexes_before(turn)
        if indexes is not None:
            slot.add_sitemaps(self._agent.scope.sitemaps_of(site, [path]), turn.depth, indexes, many)
        elif not (self._agent.scope.has_page(site + path) and slot.add_found((path,), turn.depth, many)):
            return ""
        slot.frontier.hand_on(turn, path)
        slot.redirects[page_of(path)] = many
        return ""

    def _led_elsewhere(self, slot: Slot, turn: Turn, site: str, path: str, many: int) -> str:
        """As `_led_on`, to another site: where a seed leads there, that page is the seed."""
        agent = self._agent
        is_seed = turn.depth == 0 and slot.loads and slot.indexes_before(turn) is None
        if is_seed and agent.scope.is_of_a_seed(slot.site):
            return agent.offers.move(slot.site, site, path, many)
        agent.offers.add(site, (path,), turn.depth, many)
        return ""

    def _retry_pause(self, turn: Turn) -> float:
        return float(self._options.retry_delay_seconds * 2 ** (turn.tries - 1))

    @staticmethod
    def finish(slot: Slot, turn: Turn) -> None:
        """The turn of a page has ended, and all that is to be told of it was told."""
        slot.frontier.finish(turn)

    @staticmethod
    def again(slot: Slot, turn: Turn, pause: float) -> None:
        """The page gets another turn, after `pause` seconds at the earliest."""
        slot.frontier.set_back(turn, asyncio.get_running_loop().time() + pause)

    def _publish(self, slot: Slot, turn: Turn, record: records.Page, out_links: bytes = b"") -> None:
        self._agent.publish(slot, record, out_links)
        slot.frontier.finish(turn)

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
            work=slot.leased.work,
            sitemap_lastmod=slot.frontier.changed_at(turn),
            asked_as=turn.asked_as,
        )
        if response is not None:
            note_answer(record, response)
        return record

    def _note_load(self, slot: Slot, seconds: float | None = None, *, refused: bool) -> None:
        """What the slot sees of its site's load; an hour that is over is told."""
        if slot.load is None:
            slot.load = SiteLoad()
        hour = self._agent.hour
        seen = slot.load.refused(hour) if refused else slot.load.answered(hour, seconds)
        if seen is not None:
            self._agent.outbox.add(slot, slot.visit(seen))

    def _watch(
        self, slot: Slot, path: str, status: int, meta: dict[str, Any], tries: int, error: str = ""
    ) -> None:
        """What the site's answer, or that there was none, says of its health; told where it says something new."""
        given = self._options
        if not given.status_by_traffic:
            return
        if slot.watch is None:
            slot.watch = SiteWatch(
                given.status_delay_seconds, given.status_tries, given.status_interval_seconds
            )
        seconds, now = meta.get("download_latency"), asyncio.get_running_loop().time()
        health = slot.watch.saw(path, status, seconds, now)
        if health is None:
            return
        record = records.Health(
            site=slot.site,
            checked_at=int(time.time() * 1000),
            health=health,
            status=status,
            path=path,
            tries=tries,
            seen_by="traffic",
            address=slot.address,
            error=error,
        )
        note_times(record, meta)
        self._agent.outbox.add(slot, record)

    # --- a user's own requests to a site in hand ---

    def _heed_own(self) -> None:
        """Be told of answers from the first own request on: most crawls have none, and every page would pay."""
        if not self._heeds_own:
            self._heeds_own = True
            self._crawler.signals.connect(self._rest_if_asked, signals.response_downloaded)

    def _rest_if_asked(self, request: Request, response: Response) -> None:
        """Called with every answer: Scrapy's middlewares keep one that means a rest from its callback."""
        errand = errand_of(request)
        if errand is None or not errand.own:
            return
        self._heed(errand.slot, request.url, 1 + request.meta.get("retry_times", 0), response)

    def is_copy(self, request: Request) -> bool:
        """Whether it is a user's copy of a request of ours, for the very same URL: that one once more."""
        errand = errand_of(request)
        return errand is not None and request.url == errand.url and request.callback in self._ours

    def freed(self, request: Request) -> Request:
        """A user's request without what is ours in it: he may have copied one of ours, or the meta of its answer."""
        errand, callback, errback = errand_of(request), request.callback, request.errback
        if errand is None and callback not in self._ours and errback not in self._ours:
            return request
        meta = request.meta
        if errand is not None:
            meta = {key: value for key, value in meta.items() if key != KEY and key not in errand.meta}
        if callback in self._ours:
            callback = errand.callback if errand else None
        if errback in self._ours:
            errback = errand.errback if errand else None
        return request.replace(callback=callback, errback=errback, meta=meta)

    def _own(self, slot: Slot, request: Request) -> Request:
        """Let the slot know when the request has ended, however it ends."""
        if errand_of(request) is not None:
            return request  # it had its turn before, or a middleware put it in a page's place
        self._heed_own()
        callback, errback = request.callback, request.errback
        errand = Errand(self._may_send(slot), slot=slot, own=True, callback=callback, errback=errback)
        meta = {**request.meta, **SLOT_META, KEY: errand}
        return request.replace(callback=self._own_loaded, errback=self._own_failed, meta=meta)

    def _own_loaded(self, response: Response, **arguments: Any) -> Any:
        errand = _errand(response)
        if not errand.end():
            return None
        slot = errand.slot
        slot.dress.take_in(response)
        assert self._crawler.spider
        parse = partial(errand.callback or self._crawler.spider._parse, response, **arguments)
        try:
            return self._parse(slot, response.request, parse, _nothing)
        finally:
            self._agent.settle(slot)

    def _own_failed(self, failure: Failure) -> Any:
        request: Request = failure.request  # type: ignore[attr-defined]
        errand = _errand(request)
        if not errand.end():
            return None
        slot = errand.slot
        if isinstance(failure.value, NotSent) and slot.live:
            self._agent.hold(slot, request)
            return None
        parse = partial(errand.errback, failure) if errand.errback else lambda: failure
        try:
            return self._parse(slot, request, parse, _nothing)
        finally:
            self._agent.settle(slot)


def _patience(given: Options) -> Patience | None:
    """None: every stage has the limits of the settings."""
    if not given.adaptive_timeouts:
        return None
    least = Least(given.least_connect_seconds, given.least_head_seconds, given.least_body_seconds)
    return Patience(least, given.timeout_probe_share, given.max_tries)


def note_answer(record: records.Page, response: Response) -> None:
    """What the answer says of itself, and how it came."""
    record.size = len(response.body)
    record.wire_size = response.meta.get("encoded", ("", record.size))[1]
    record.error = record.error or response.meta.get("decoding_error", "")
    record.content_type = _field(response, "Content-Type")
    note_headers(record, response)
    note_times(record, response.meta)


def note_headers(record: records.Page | records.Asked, response: Response) -> None:
    """What the answer says of the page's version, and who gave it."""
    record.etag = _field(response, "ETag")
    record.last_modified = _field(response, "Last-Modified")
    record.address = str(response.ip_address or "")


def _retry_after(response: Response) -> str:
    return (response.headers.get("Retry-After") or b"").decode("latin-1")


def _field(response: Response, name: str) -> str:
    return (response.headers.get(name) or b"").decode("latin-1")[:FIELD_LENGTH]


def note_times(record: records.Page | records.Asked | records.Health, meta: dict[str, Any]) -> None:
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


def _errand(one: Request | Response) -> Errand:
    errand: Errand = one.meta[KEY]
    return errand
