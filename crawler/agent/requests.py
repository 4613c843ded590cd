"""What stands in the meta of a slot's request beside Scrapy's own keys: one object under one key, KEY.

A slot waits for the end of each of its requests, and each end must be told once, whatever middlewares and users copy.
So an errand is begun and ended; an end that was told before counts for nothing. Requests are copied together with
their meta: of all that carry an errand, its heir alone, which a downloader middleware put in the place of the request
under way, comes back to the slot. Every other one is a user's. Raises nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request
from scrapy.core.downloader import Downloader
from scrapy.downloadermiddlewares.redirect import RedirectMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware

from crawler.fetch.context import KEY, FetchContext
from crawler.fetch.errors import RobotsDeniedError
from crawler.urls.url import resolve

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Headers
    from twisted.internet.defer import Deferred

    from crawler.agent.frontier import Turn
    from crawler.agent.site_lease import SiteLease


# All slots share one download slot, which AutoThrottle would slow down for every site.
SLOT_META: Final[dict[str, Any]] = {"download_slot": "agent", "autothrottle_dont_adjust_delay": True}
# And checks of sites' status another; settings/base.py lets neither wait (DOWNLOAD_SLOTS).
CHECKS: Final = "status"
# The frontier retries, follows and judges by itself; the answer of any status comes to us. Scrapy leaves a verbatim URL
# as it is, and so does what fetches it.
PAGE_META: Final[dict[str, Any]] = {
    **SLOT_META,
    "verbatim_url": True,
    "dont_redirect": True,
    "dont_retry": True,
    "handle_httpstatus_all": True,
}


@dataclass(eq=False, repr=False, slots=True)
class RequestContext(FetchContext):
    """One request of a slot: robots.txt, a page's turn (`turn`), a spider's own (`own`), or a `trial` of the site."""

    lease: SiteLease = field(kw_only=True)
    turn: Turn | None = None
    own: bool = False
    trial: bool = False  # a page that was loaded before is asked again: does the site work?
    callback: Callable[..., Any] | None = None  # the user's, of a request of his own
    errback: Callable[..., Any] | None = None
    replaced: int = 0  # requests that middlewares put in its place so far
    replacement: Request | None = None  # the one that is in its place now, and not yet back
    under_way: bool = False
    url: str = ""  # what was asked for at last
    headers: Headers | None = None  # that request's, with what middlewares add
    worn: int = 0  # times that the site had set cookies which were sent along
    first: Response | None = None  # a redirect of the page whose turn it is: this request goes where it leads
    hops: int = 0  # such requests for the page, this one included

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url or self.lease.site}>"

    @property
    def meta(self) -> dict[str, Any]:
        """What the meta of its request says to Scrapy, and no copy of it should."""
        return SLOT_META if self.own else PAGE_META

    @property
    def for_robots(self) -> bool:
        """Whether it fetches robots.txt."""
        return self.turn is None and not self.own and not self.trial

    @property
    def tries(self) -> int | None:
        """How often its page was tried before; None: it asks for none."""
        return self.turn.tries if self.turn else None

    @property
    def elsewhere(self) -> bool:
        """Whether another site is asked: a redirect of robots.txt may lead there."""
        return not self.url.startswith(f"{self.lease.site}/")

    def begin(self, request: Request) -> None:
        """The request is on its way."""
        self.under_way = True
        self.url, self.headers = request.url, request.headers
        self.timeouts = None if self.elsewhere else self.lease.timeouts
        self.lease.in_flight += 1

    def end(self) -> bool:
        """The request is no longer under way; whether it was."""
        if not self.under_way:
            return False
        # The heir refers to this errand in turn: such a circle would be freed late.
        self.under_way, self.replacement = False, None
        self.lease.in_flight -= 1
        if self.lease.day is not None:
            self.lease.day.count(0, self.received)
            self.received = 0
        return True


def request_context_of(request: Request) -> RequestContext | None:
    """The errand in a request's meta; None: it is not a slot's, nor a copy of one."""
    context = request.meta.get(KEY)
    return context if isinstance(context, RequestContext) else None


# ------------------------------------------------------------------------------------------------------------
# A spider's own requests: which are plain links, and which were asked for before.
#
# A plain link becomes a page of its site: at once where the page that gives it is of the same site in hand, for then
# both are published together, else it is offered. Any other request of a user's has something that a page has no room
# for (a callback, data, a body) and is fetched beside the pages: once per site in hand unless its `dont_filter` is
# set, and no more of them than the site may have pages. Raises nothing.


logger = logging.getLogger("agent")

# Keys of meta that Scrapy and we write; a user's own may be any other.
_WRITTEN: Final = frozenset({"depth", "is_start_request"})
# What else is in the meta of a response; whoever copies it whole gives nothing of his own with these.
_COPIED: Final = _WRITTEN | {
    "cache_timestamp",
    "cached_response",
    "decoding_error",
    "download_latency",
    "download_timeout",
    "encoded",
    "proxy",
    "raw_head",
    "redirect_reasons",
    "redirect_times",
    "redirect_ttl",
    "redirect_urls",
    "retry_times",
    "stage_times",
    "_auth_proxy",
    "_dont_cache",
    "_scheme_proxy",
}
# A link's header that Scrapy writes where REFERER_ENABLED says so.
_NOT_GIVEN: Final = frozenset({b"Referer"})


# In the meta of a spider's request on its way to the scheduler: the slot of the page that gives it.
_GIVEN_BY: Final = "lowtide_given_by"


class GivenBy(BaseSpiderMiddleware):
    """Spider middleware: notes in each request which site in hand gives it, for `giver_of`."""

    def get_processed_request(self, request: Request, response: Response | None) -> Request:
        """Called with every request that a spider gives."""
        asked = getattr(response, "request", None)
        context = request_context_of(asked) if asked is not None else None
        if context is not None:
            request.meta[_GIVEN_BY] = context.lease
        return request


def giver_of(request: Request) -> SiteLease | None:
    """The slot of the page that gives this request, said once; None: no page of a site in hand, or it is not known."""
    lease: SiteLease | None = request.meta.pop(_GIVEN_BY, None)
    return lease


def default_callbacks(spider: Spider | None) -> tuple[object, ...]:
    """What a request's callback may be that has none of its own."""
    return None, getattr(spider, "parse", None), getattr(spider, "_parse", None)


def beyond_link(request: Request, spider: Spider | None) -> list[str]:
    """What makes it more than the request of a link to a page, in words; nothing for one."""
    found = [] if request.method == "GET" else [f"the method {request.method}"]
    if request.body:
        found.append("a body")
    if request.callback not in default_callbacks(spider):
        found.append("a callback of its own")
    return found


def carried(request: Request, context: RequestContext | None) -> list[str]:
    """What it has for its callback or for the site that a page has no room for, by name.

    `context` tells that it is a copy of a request of ours, or has its meta: what others put in is no word of the user.
    """
    headers = request.headers.keys() - _NOT_GIVEN
    if context is not None and not context.own and request.headers == context.headers:
        headers = set()
    given: dict[str, Any] = {
        "errback": request.errback,
        "cb_kwargs": request.cb_kwargs,
        "headers": headers,
        "cookies": request.cookies,
    }
    written = _WRITTEN if context is None else _COPIED
    meta = [f"meta[{key!r}]" for key in request.meta if key not in written]
    return [name for name, one in given.items() if one] + meta


class OwnRequests:
    """Those that were taken for the sites in hand. `most` per site; 0: no limit."""

    def __init__(self, crawler: Crawler, most: int) -> None:
        self._crawler = crawler
        self._most = most
        self._taken: dict[str, _Taken] = {}

    def take(self, lease: SiteLease, request: Request) -> bool:
        """Whether this one is to be fetched; counted as taken if so."""
        taken = self._of(lease)
        assert self._crawler.request_fingerprinter
        mark = self._crawler.request_fingerprinter.fingerprint(request)
        if mark in taken.marks and not request.dont_filter:
            self._crawler.stats.inc_value("dupefilter/filtered")
            return False
        if 0 < self._most <= taken.count:
            if not taken.told:
                logger.warning(
                    "%s: %d requests of the spider's own (MAX_PAGES_PER_SITE); more are dropped",
                    lease.site,
                    self._most,
                )
            taken.told = True
            return False
        taken.marks.add(mark)
        taken.count += 1
        return True

    def _of(self, lease: SiteLease) -> _Taken:
        taken = self._taken.get(lease.site)
        if taken is None or taken.lease is not lease:
            # What went back is forgotten here, where alone the number grows.
            self._taken = {site: one for site, one in self._taken.items() if one.lease.live}
            taken = self._taken[lease.site] = _Taken(lease)
        return taken


class _Taken:
    def __init__(self, lease: SiteLease) -> None:
        self.lease = lease
        self.marks: set[bytes] = set()
        self.count = 0
        self.told = False


# ------------------------------------------------------------------------------------------------------------
# robots.txt for what no frontier gave: a user's own requests, what middlewares replace, trials, the way of a
# redirect.
#
# That of pages is looked at when their turn comes (crawler/agent/fetcher.py). What the rules forbid is never fetched:
# the request's errback gets RobotsDeniedError, and the page whose place it was in has failed.


class OwnRobots:
    """A downloader middleware, the first: redirected and replaced requests come by here once more."""

    def process_request(self, request: Request) -> None:
        """Raise RobotsDeniedError where the site's rules forbid the URL, or are another site's and not known here."""
        context = request_context_of(request)
        if context is None or not _is_strange(context):
            return
        lease = context.lease
        if resolve(request.url)[0] != lease.site:
            reason = f"{request.url} is not of {lease.site}, in whose request's place it was put"
        elif lease.rules is None or not lease.rules.allows(request.url, lease.site_session.user_agent):
            reason = f"robots.txt of {lease.site} forbids {request.url}"
        else:
            return
        logger.info("%s; it is not fetched", reason)
        raise RobotsDeniedError(reason)


def _is_strange(context: RequestContext) -> bool:
    """Whether nobody has looked at the URL since these rules were read; robots.txt itself is read wherever it lies."""
    beside_pages = context.own or context.trial or context.hops > 0
    return beside_pages or (context.replaced > 0 and not context.for_robots)


# ------------------------------------------------------------------------------------------------------------
# Redirects of a user's own requests; those of pages are the frontier's business (crawler/agent/fetcher.py).


class OwnRedirects(RedirectMiddleware):
    """Scrapy's, without a Referer: no page is told where we came from."""

    def handle_referer(self, request: Request, response: Response) -> None:  # noqa: ARG002 - Scrapy's
        """Keep none."""
        request.headers.pop("Referer", None)


# ------------------------------------------------------------------------------------------------------------
# Scrapy's downloader, which lets no request of a slot go astray.
#
# A slot waits for the end of each of its requests. Scrapy would end one without a word to it where a downloader
# middleware gives another request, or an answer that belongs to another request, in its place: such a request takes
# over the place, whatever it brings of the old one, and such an answer is the page's own. A request with a callback
# of its own cannot be both: it is fetched beside the page, and the page's turn ends with IgnoreRequest, as it does
# when there is no end of new ones.


# Requests in place of one, one after the other; logins and challenges take a few.
MOST_IN_PLACE: Final = 20


class TurnDownloader(Downloader):
    """What Scrapy's DOWNLOADER names."""

    def fetch(self, request: Request, spider: Spider | None = None) -> Deferred[Response | Request]:  # noqa: ARG002
        """What came for the request through all downloader middlewares: its response, or a request in its place."""
        context = request_context_of(request)
        if context is not None and not context.under_way:
            # A copy that goes around the queue: no slot sends it.
            del request.meta[KEY]
            context = None
        fetched: Deferred[Response | Request] = super().fetch(request)
        return fetched if context is None else fetched.addCallback(partial(self._kept, request, context))

    def needs_backout(self) -> bool:
        """Whether CONCURRENT_REQUESTS are under way; checks of sites' status do not count, or ill sites stop it all."""
        checks = self.slots.get(CHECKS)
        pages = len(self.active) - (len(checks.active) if checks else 0)
        return 0 < self.total_concurrency <= pages

    def _kept(
        self, request: Request, context: RequestContext, came: Response | Request
    ) -> Response | Request:
        if isinstance(came, Request):
            return self._in_place(request, context, came)
        if came.request is not None and came.request is not request:
            for key, value in came.request.meta.items():
                request.meta.setdefault(key, value)
        came.request = request
        if "cached" in came.flags:
            # Nobody was asked, so the site's delay has nothing to count from.
            context.lease.started_at = 0.0
        return came

    def _in_place(self, request: Request, context: RequestContext, came: Request) -> Request:
        context.replaced += 1
        if context.replaced > MOST_IN_PLACE:
            raise IgnoreRequest(f"middlewares put {MOST_IN_PLACE} requests in its place, one after the other")
        known = (request.callback, context.callback, *default_callbacks(self.crawler.spider))
        if came.callback not in known:
            self.crawler.engine.crawl(came)
            raise IgnoreRequest(f"a middleware put {came.url} with a callback of its own in its place")
        # What a copy lacks was taken out of it, as the proxy by a redirect to another scheme.
        meta = came.meta if request_context_of(came) is context else {**request.meta, **came.meta}
        context.replacement = came.replace(
            callback=request.callback,
            errback=request.errback,
            cb_kwargs=came.cb_kwargs or request.cb_kwargs,
            meta={**meta, **context.meta, KEY: context},
        )
        return context.replacement
