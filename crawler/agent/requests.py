"""The context of an agent's requests: one object in `meta` under KEY.

Each request ends exactly once, whatever middlewares and users copy: only the substitute for the request under way
returns to its lease.
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


# All sites share one download slot, which AutoThrottle would slow down for all of them.
SLOT_META: Final[dict[str, Any]] = {"download_slot": "agent", "autothrottle_dont_adjust_delay": True}
# The download slot of status checks; settings/base.py gives neither a delay (DOWNLOAD_SLOTS).
CHECKS: Final = "status"
# The frontier retries and follows redirects itself, so responses of every status come to us. Scrapy and the download
# handler leave a verbatim URL as it is.
PAGE_META: Final[dict[str, Any]] = {
    **SLOT_META,
    "verbatim_url": True,
    "dont_redirect": True,
    "dont_retry": True,
    "handle_httpstatus_all": True,
}


@dataclass(eq=False, repr=False, slots=True)
class RequestContext(FetchContext):
    """A lease's request: robots.txt, a page (`turn`), a spider's own (`own`) or a `trial`."""

    lease: SiteLease = field(kw_only=True)
    turn: Turn | None = None
    own: bool = False
    trial: bool = False  # requests a page loaded before, to test the site
    callback: Callable[..., Any] | None = None  # the user's, for an own request
    errback: Callable[..., Any] | None = None
    replaced: int = 0  # substitutions by middlewares so far
    replacement: Request | None = None  # the current substitute, until it returns
    under_way: bool = False
    url: str = ""  # last URL requested
    headers: Headers | None = None  # of that request, including those of middlewares
    worn: int = 0  # number of times the site had set the cookies that were sent
    first: Response | None = None  # the page's redirect; this request fetches its target
    hops: int = 0  # such requests for the page, including this one

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url or self.lease.site}>"

    @property
    def meta(self) -> dict[str, Any]:
        """Our meta keys, which copies must not keep."""
        return SLOT_META if self.own else PAGE_META

    @property
    def for_robots(self) -> bool:
        """Whether it fetches robots.txt."""
        return self.turn is None and not self.own and not self.trial

    @property
    def tries(self) -> int | None:
        """Number of the page's try. Returns None when it fetches no page."""
        return self.turn.tries if self.turn else None

    @property
    def elsewhere(self) -> bool:
        """Whether it goes to another site (robots.txt redirects)."""
        return not self.url.startswith(f"{self.lease.site}/")

    def begin(self, request: Request) -> None:
        """Mark the request as sent."""
        self.under_way = True
        self.url, self.headers = request.url, request.headers
        self.timeouts = None if self.elsewhere else self.lease.timeouts
        self.lease.in_flight += 1

    def end(self) -> bool:
        """Mark it as ended. Returns False when it had ended before."""
        if not self.under_way:
            return False
        # The substitute refers to this context: break the reference cycle.
        self.under_way, self.replacement = False, None
        self.lease.in_flight -= 1
        if self.lease.day is not None:
            self.lease.day.count(0, self.received)
            self.received = 0
        return True


def request_context_of(request: Request) -> RequestContext | None:
    """The context in a request's meta. None: no request of the crawl."""
    context = request.meta.get(KEY)
    return context if isinstance(context, RequestContext) else None


# --- A spider's own requests ---


logger = logging.getLogger("agent")

# Meta keys that Scrapy and we write; any other is the user's.
_WRITTEN: Final = frozenset({"depth", "is_start_request"})
# Further meta keys of a response; a user who copies its whole meta did not set them.
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
# Scrapy writes this header if REFERER_ENABLED is set.
_NOT_GIVEN: Final = frozenset({b"Referer"})


# Meta key of a spider's request on its way to the scheduler: the lease of its page.
_GIVEN_BY: Final = "lowtide_given_by"


class GivenBy(BaseSpiderMiddleware):
    """Spider middleware: stores the lease of the page that yields a request."""

    def get_processed_request(self, request: Request, response: Response | None) -> Request:
        """Called with every request that a spider yields."""
        parent = getattr(response, "request", None)
        context = request_context_of(parent) if parent is not None else None
        if context is not None:
            request.meta[_GIVEN_BY] = context.lease
        return request


def giver_of(request: Request) -> SiteLease | None:
    """Remove and return the lease of the page that yielded the request, if known."""
    lease: SiteLease | None = request.meta.pop(_GIVEN_BY, None)
    return lease


def default_callbacks(spider: Spider | None) -> tuple[object, ...]:
    """Callbacks that mean the default one."""
    return None, getattr(spider, "parse", None), getattr(spider, "_parse", None)


def beyond_link(request: Request, spider: Spider | None) -> list[str]:
    """What makes the request more than a plain link; empty for a link."""
    found = [] if request.method == "GET" else [f"the method {request.method}"]
    if request.body:
        found.append("a body")
    if request.callback not in default_callbacks(spider):
        found.append("a callback of its own")
    return found


def carried(request: Request, context: RequestContext | None) -> list[str]:
    """Names of the request's parts that a page cannot keep.

    A `context` marks a copy: what middlewares added does not count.
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
    """Own requests taken for leased sites, at most `most` per site (0: no limit), without duplicates."""

    def __init__(self, crawler: Crawler, most: int) -> None:
        self._crawler = crawler
        self._most = most
        self._taken: dict[str, _Taken] = {}

    def take(self, lease: SiteLease, request: Request) -> bool:
        """Whether to fetch this request, which is then counted."""
        taken = self._of(lease)
        assert self._crawler.request_fingerprinter
        mark = self._crawler.request_fingerprinter.fingerprint(request)
        if mark in taken.marks and not request.dont_filter:
            self._crawler.stats.inc_value("dupefilter/filtered")
            return False
        if 0 < self._most <= taken.count:
            if not taken.warned:
                logger.warning(
                    "site %s: %d of the spider's own requests (MAX_PAGES_PER_SITE), dropping more",
                    lease.site,
                    self._most,
                )
            taken.warned = True
            return False
        taken.marks.add(mark)
        taken.count += 1
        return True

    def _of(self, lease: SiteLease) -> _Taken:
        taken = self._taken.get(lease.site)
        if taken is None or taken.lease is not lease:
            # Forget returned sites here, the only place where the number grows.
            self._taken = {site: one for site, one in self._taken.items() if one.lease.live}
            taken = self._taken[lease.site] = _Taken(lease)
        return taken


class _Taken:
    def __init__(self, lease: SiteLease) -> None:
        self.lease = lease
        self.marks: set[bytes] = set()
        self.count = 0
        self.warned = False


# --- robots.txt for own requests, substitutes, trials and redirects ---


class OwnRobots:
    """The first downloader middleware: checks redirected and substituted requests."""

    def process_request(self, request: Request) -> None:
        """Raises RobotsDeniedError if robots.txt disallows the URL, or it is on another site."""
        context = request_context_of(request)
        if context is None or not _is_strange(context):
            return
        lease = context.lease
        if resolve(request.url)[0] != lease.site:
            reason = f"{request.url} is not on {lease.site}, whose request it replaced"
        elif lease.rules is None or not lease.rules.allows(request.url, lease.site_session.user_agent):
            reason = f"robots.txt of {lease.site} disallows {request.url}"
        else:
            return
        logger.info("not fetched: %s", reason)
        raise RobotsDeniedError(reason)


def _is_strange(context: RequestContext) -> bool:
    """Whether the URL was not checked when its turn came."""
    own_request = context.own or context.trial or context.hops > 0
    return own_request or (context.replaced > 0 and not context.for_robots)


# --- Redirects of a user's own requests ---


class OwnRedirects(RedirectMiddleware):
    """Scrapy's, without a Referer."""

    def handle_referer(self, request: Request, response: Response) -> None:  # noqa: ARG002 - Scrapy's
        """Remove the header."""
        request.headers.pop("Referer", None)


# --- Scrapy's downloader, without lost requests ---


# Substitutes of one request in a row; logins and challenges take a few.
MOST_IN_PLACE: Final = 20


class TurnDownloader(Downloader):
    """The class in Scrapy's DOWNLOADER: every request of a lease ends, whatever middlewares return.

    A substitute takes over the context. With its own callback it is sent separately, and the page's turn ends with
    IgnoreRequest.
    """

    def fetch(self, request: Request, spider: Spider | None = None) -> Deferred[Response | Request]:  # noqa: ARG002
        """The response, or a substitute request."""
        context = request_context_of(request)
        if context is not None and not context.under_way:
            # A copy that bypasses the queue and belongs to no lease.
            del request.meta[KEY]
            context = None
        fetched: Deferred[Response | Request] = super().fetch(request)
        return fetched if context is None else fetched.addCallback(partial(self._kept, request, context))

    def needs_backout(self) -> bool:
        """Whether CONCURRENT_REQUESTS are under way, without status checks."""
        checks = self.slots.get(CHECKS)
        pages = len(self.active) - (len(checks.active) if checks else 0)
        return 0 < self.total_concurrency <= pages

    def _kept(
        self, request: Request, context: RequestContext, result: Response | Request
    ) -> Response | Request:
        if isinstance(result, Request):
            return self._in_place(request, context, result)
        if result.request is not None and result.request is not request:
            for key, value in result.request.meta.items():
                request.meta.setdefault(key, value)
        result.request = request
        if "cached" in result.flags:
            # Nothing was sent, so the site's delay does not apply.
            context.lease.started_at = 0.0
        return result

    def _in_place(self, request: Request, context: RequestContext, substitute: Request) -> Request:
        context.replaced += 1
        if context.replaced > MOST_IN_PLACE:
            raise IgnoreRequest(f"middlewares replaced it {MOST_IN_PLACE} times in a row")
        known = (request.callback, context.callback, *default_callbacks(self.crawler.spider))
        if substitute.callback not in known:
            self.crawler.engine.crawl(substitute)
            raise IgnoreRequest(f"a middleware replaced it by {substitute.url} with its own callback")
        # What a copy lacks was removed on purpose, like the proxy by a redirect to another scheme.
        meta = (
            substitute.meta
            if request_context_of(substitute) is context
            else {**request.meta, **substitute.meta}
        )
        context.replacement = substitute.replace(
            callback=request.callback,
            errback=request.errback,
            cb_kwargs=substitute.cb_kwargs or request.cb_kwargs,
            meta={**meta, **context.meta, KEY: context},
        )
        return context.replacement
