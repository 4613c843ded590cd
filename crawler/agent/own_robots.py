"""robots.txt for what no frontier gave: a user's own requests, what middlewares replace, trials, the way of a redirect.

That of pages is looked at when their turn comes (crawler/agent/fetcher.py). What the rules forbid is never fetched: the
request's errback gets RobotsDenied, and the page whose place it was in has failed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from crawler.agent.request_context import errand_of
from crawler.fetch.errors import RobotsDenied
from crawler.urls.url import resolve

if TYPE_CHECKING:
    from scrapy import Request

    from crawler.agent.request_context import Errand

logger = logging.getLogger("agent")


class OwnRobots:
    """A downloader middleware, the first: redirected and replaced requests come by here once more."""

    def process_request(self, request: Request) -> None:
        """Raise RobotsDenied where the site's rules forbid the URL, or are another site's and not known here."""
        errand = errand_of(request)
        if errand is None or not _is_strange(errand):
            return
        slot = errand.slot
        if resolve(request.url)[0] != slot.site:
            reason = f"{request.url} is not of {slot.site}, in whose request's place it was put"
        elif slot.rules is None or not slot.rules.allows(request.url, slot.dress.user_agent):
            reason = f"robots.txt of {slot.site} forbids {request.url}"
        else:
            return
        logger.info("%s; it is not fetched", reason)
        raise RobotsDenied(reason)


def _is_strange(errand: Errand) -> bool:
    """Whether nobody has looked at the URL since these rules were read; robots.txt itself is read wherever it lies."""
    beside_pages = errand.own or errand.trial or errand.hops > 0
    return beside_pages or (errand.replaced > 0 and not errand.for_robots)
