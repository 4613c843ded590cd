"""Scrapy's downloader, which lets no request of a slot go astray.

A slot waits for the end of each of its requests. Scrapy would end one without a word to it where a downloader
middleware gives another request, or an answer that belongs to another request, in its place: such a request takes
over the place, whatever it brings of the old one, and such an answer is the page's own. A request with a callback of
its own cannot be both: it is fetched beside the page, and the page's turn ends with IgnoreRequest, as it does when
there is no end of new ones.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from scrapy import Request
from scrapy.core.downloader import Downloader
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from crawler.agent.own_requests import default_callbacks
from crawler.agent.request_context import CHECKS, errand_of
from crawler.fetch.context import KEY

if TYPE_CHECKING:
    from scrapy import Spider
    from twisted.internet.defer import Deferred

    from crawler.agent.request_context import Errand

# Requests in place of one, one after the other; logins and challenges take a few.
MOST_IN_PLACE: Final = 20


class TurnDownloader(Downloader):
    """What Scrapy's DOWNLOADER names."""

    def fetch(self, request: Request, spider: Spider | None = None) -> Deferred[Response | Request]:  # noqa: ARG002
        """What came for the request through all downloader middlewares: its response, or a request in its place."""
        errand = errand_of(request)
        if errand is not None and not errand.under_way:
            # A copy that goes around the queue: no slot sends it.
            del request.meta[KEY]
            errand = None
        fetched: Deferred[Response | Request] = super().fetch(request)
        return fetched if errand is None else fetched.addCallback(partial(self._kept, request, errand))

    def needs_backout(self) -> bool:
        """Whether CONCURRENT_REQUESTS are under way; checks of sites' status do not count, or ill sites stop it all."""
        checks = self.slots.get(CHECKS)
        pages = len(self.active) - (len(checks.active) if checks else 0)
        return 0 < self.total_concurrency <= pages

    def _kept(self, request: Request, errand: Errand, came: Response | Request) -> Response | Request:
        if isinstance(came, Request):
            return self._in_place(request, errand, came)
        if came.request is not None and came.request is not request:
            for key, value in came.request.meta.items():
                request.meta.setdefault(key, value)
        came.request = request
        if "cached" in came.flags:
            # Nobody was asked, so the site's delay has nothing to count from.
            errand.slot.started_at = 0.0
        return came

    def _in_place(self, request: Request, errand: Errand, came: Request) -> Request:
        errand.replaced += 1
        if errand.replaced > MOST_IN_PLACE:
            raise IgnoreRequest(f"middlewares put {MOST_IN_PLACE} requests in its place, one after the other")
        known = (request.callback, errand.callback, *default_callbacks(self.crawler.spider))
        if came.callback not in known:
            self.crawler.engine.crawl(came)
            raise IgnoreRequest(f"a middleware put {came.url} with a callback of its own in its place")
        # What a copy lacks was taken out of it, as the proxy by a redirect to another scheme.
        meta = came.meta if errand_of(came) is errand else {**request.meta, **came.meta}
        errand.heir = came.replace(
            callback=request.callback,
            errback=request.errback,
            cb_kwargs=came.cb_kwargs or request.cb_kwargs,
            meta={**meta, **errand.meta, KEY: errand},
        )
        return errand.heir
