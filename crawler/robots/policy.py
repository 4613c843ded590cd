"""The rules of a site by the response to GET /robots.txt (RFC 9309).

4xx allows everything; 5xx, 429 and no response forbid everything.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from crawler.robots.rules import RobotsFile, Window
from crawler.urls.url import host_of


class Rules(NamedTuple):
    """What one site allows."""

    available: bool  # False: nothing may be fetched, retry later
    crawl_delay: float | None  # seconds, or None
    file: RobotsFile | None = None  # None: everything is allowed
    window: Window | None = None  # Visit-time; None: at all times

    def allows(self, url: str, agent: str) -> bool:
        """Whether this URL may be fetched."""
        return self.available and (self.file is None or self.file.to(agent).allows(url))


# Status code of a fetch that the guard refused (crawler/fetch/errors.py).
ADDRESS_REFUSED = -10
# Flags of an incomplete response: the missing rules may be the ones that forbid.
LOSSES = frozenset({"dataloss", "doubtful"})
EVERYTHING = Rules(available=True, crawl_delay=None)
UNAVAILABLE = Rules(available=False, crawl_delay=None)
# A browser-like user agent with the crawler's name in parentheses.
_AS_BROWSERS = re.compile(r"Mozilla/.*?\(compatible; *([\w.-]+)", re.IGNORECASE)


def rules(status: int, body: bytes, site: str, agent: str, most_bytes: int) -> Rules:
    """The rules for `agent`, our product token."""
    if 200 <= status < 300:
        file = RobotsFile(_whole_lines(body, most_bytes), host_of(site))
        found = file.to(agent)
        return Rules(available=True, crawl_delay=found.delay, file=file, window=found.window)
    if status == ADDRESS_REFUSED:
        return EVERYTHING  # the page's own fetch fails with the same status
    if status == 429 or status >= 500 or status < 0:
        return UNAVAILABLE
    return EVERYTHING


def product(user_agent: str) -> str:
    """The product token of a user agent."""
    if named := _AS_BROWSERS.match(user_agent):
        return named[1]
    return user_agent.split("/")[0].split(" ")[0].strip() or "*"


def _whole_lines(body: bytes, most_bytes: int) -> bytes:
    """Truncate at a line end: half a rule is a different rule."""
    if len(body) <= most_bytes:
        return body
    end = max(body.rfind(b"\n", 0, most_bytes), body.rfind(b"\r", 0, most_bytes))
    return body[: end + 1]
