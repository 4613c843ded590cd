"""robots.txt for a user's own requests; that of pages is the frontier's business (crawler/agent/visits.py).

What the rules forbid is never fetched: the request's errback gets RobotsDenied.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from crawler.agent.errors import RobotsDenied
from crawler.sites.canonical import split

if TYPE_CHECKING:
    from scrapy import Request

    from crawler.agent.slots import Slot

logger = logging.getLogger("agent")


class OwnRobots:
    """A downloader middleware that looks at requests marked `own`, redirected ones included."""

    def process_request(self, request: Request) -> None:
        """Raise RobotsDenied where the site's rules forbid the URL, or are another site's and not known here."""
        if not request.meta.get("own"):
            return
        slot: Slot = request.meta["slot"]
        if split(request.url)[0] != slot.site:
            reason = f"{request.url} is not of {slot.site}, whose request was redirected there"
        elif slot.rules is None or not slot.rules.allows(request.url, slot.dress.user_agent):
            reason = f"robots.txt of {slot.site} forbids {request.url}"
        else:
            return
        logger.info("%s; it is not fetched", reason)
        raise RobotsDenied(reason)
