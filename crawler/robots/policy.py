"""What a site's robots.txt allows (RFC 9309): a parsed file, or the rule that stands in for one.

4xx: everything is allowed. 5xx, 429 and no answer: nothing is, and the site is asked again later. What was read
is kept by the slot; nothing here talks to the network.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from crawler.robots.rules import RobotsFile, Window
from crawler.urls.url import host_of


class Rules(NamedTuple):
    """What this crawler may do on one site."""

    available: bool  # False: nothing may be fetched, ask again later
    crawl_delay: float | None  # seconds; None: none asked for
    file: RobotsFile | None = None  # None: everything is allowed
    window: Window | None = None  # Visit-time: pages are fetched within it only; None: at all times

    def allows(self, url: str, agent: str) -> bool:
        """Whether this URL may be fetched."""
        return self.available and (self.file is None or self.file.to(agent).allows(url))


# The code of a fetch that our own guard refused (crawler/fetch/errors.py).
ADDRESS_REFUSED = -10
# Flags of an answer that is not all of robots.txt, which DOWNLOAD_FAIL_ON_DATALOSS would have pages made of: rules that
# are missing may be those that forbid.
LOSSES = frozenset({"dataloss", "doubtful"})
EVERYTHING = Rules(available=True, crawl_delay=None)
UNAVAILABLE = Rules(available=False, crawl_delay=None)
# A user agent in the manner of browsers, with the crawler's own name in parentheses.
_AS_BROWSERS = re.compile(r"Mozilla/.*?\(compatible; *([\w.-]+)", re.IGNORECASE)


def rules(status: int, body: bytes, site: str, agent: str, most_bytes: int) -> Rules:
    """The rules that the site's answer to GET /robots.txt means for `agent`, the product token of our user agent."""
    if 200 <= status < 300:
        file = RobotsFile(_whole_lines(body, most_bytes), host_of(site))
        said = file.to(agent)
        return Rules(available=True, crawl_delay=said.delay, file=file, window=said.window)
    if status == ADDRESS_REFUSED:
        return EVERYTHING  # the page's own fetch is refused as well, and says so in its record
    if status == 429 or status >= 500 or status < 0:
        return UNAVAILABLE
    return EVERYTHING


def product(user_agent: str) -> str:
    """The word that robots.txt files name us by: what stands before the version."""
    if named := _AS_BROWSERS.match(user_agent):
        return named[1]
    return user_agent.split("/")[0].split(" ")[0].strip() or "*"


def _whole_lines(body: bytes, most_bytes: int) -> bytes:
    """The lines that lie wholly within the bound: half a rule is another rule."""
    if len(body) <= most_bytes:
        return body
    end = max(body.rfind(b"\n", 0, most_bytes), body.rfind(b"\r", 0, most_bytes))
    return body[: end + 1]
