"""What a site's robots.txt allows (RFC 9309): a parsed file, or the rule that stands in for one.

4xx: everything is allowed. 5xx, 429 and no answer: nothing is, and the site is asked again later. What was read
is kept by the slot; nothing here talks to the network.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from protego import Protego

from crawler.sites.windows import Window


class Rules(NamedTuple):
    """What this crawler may do on one site."""

    available: bool  # False: nothing may be fetched, ask again later
    crawl_delay: float | None  # seconds; None: none asked for
    parsed: Protego | None = None  # None: everything is allowed
    window: Window | None = None  # Visit-time: pages are fetched within it only; None: at all times

    def allows(self, url: str, agent: str) -> bool:
        """Whether this URL may be fetched."""
        return self.available and (self.parsed is None or bool(self.parsed.can_fetch(url, agent)))


# The code of a fetch that our own guard refused (crawler/agent/errors.py).
ADDRESS_REFUSED = -10
EVERYTHING = Rules(available=True, crawl_delay=None)
UNAVAILABLE = Rules(available=False, crawl_delay=None)
# Some files name a crawler with its version; the rules are meant for every version.
_VERSION = re.compile(r"^([ \t]*user-agent[ \t]*:[ \t]*[\w-]+)/[^\r\n]*", re.IGNORECASE | re.MULTILINE)


def rules(status: int, body: bytes, agent: str, most_bytes: int) -> Rules:
    """The rules that an answer to GET /robots.txt means for `agent` (the product token of our user agent)."""
    if 200 <= status < 300:
        return _parse(_whole_lines(body, most_bytes), agent)
    if status == ADDRESS_REFUSED:
        return EVERYTHING  # the page's own fetch is refused as well, and says so in its record
    if status == 429 or status >= 500 or status < 0:
        return UNAVAILABLE
    return EVERYTHING


def product(user_agent: str) -> str:
    """The word that robots.txt files name us by: what stands before the version."""
    return user_agent.split("/")[0].split(" ")[0].strip() or "*"


def _parse(body: bytes, agent: str) -> Rules:
    text = body.decode("utf-8-sig", "replace")
    parsed = Protego.parse(_VERSION.sub(r"\1", text))
    delay = parsed.crawl_delay(agent)
    delay = float(delay) if delay is not None else None
    return Rules(available=True, crawl_delay=delay, parsed=parsed, window=_window(parsed, agent))


def _window(parsed: Protego, agent: str) -> Window | None:
    asked = parsed.visit_time(agent)
    if asked is None:
        return None
    opens, closes = (time.hour * 60 + time.minute for time in asked)
    return Window.between(opens, closes)


def _whole_lines(body: bytes, most_bytes: int) -> bytes:
    """The lines that lie wholly within the bound: half a rule is another rule."""
    if len(body) <= most_bytes:
        return body
    end = max(body.rfind(b"\n", 0, most_bytes), body.rfind(b"\r", 0, most_bytes))
    return body[: end + 1]
