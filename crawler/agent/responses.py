"""What an answer means for its page and its site: pure rules, one place.

A page's turn ends (`stored`, `redirected`, `failed`), or it gets another one. A site that asks for a rest (429, or a
Retry-After with any answer but 2xx) gets it as a whole. A 503 without Retry-After belongs to its URL
(crawler.agent.breaker says when it is the site's).
"""

from __future__ import annotations

import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal

Verdict = Literal["stored", "redirected", "failed", "again"]

# A site's first rest, doubled with each further one until a page succeeds, up to a day.
FIRST_REST_SECONDS = 60.0
LONGEST_REST_SECONDS = 86_400.0
# What leads elsewhere.
REDIRECTS = (301, 302, 303, 307, 308)


def verdict(status: int, tries: int, max_tries: int) -> Verdict:
    """What an HTTP status means for the page whose `tries`th try it answers."""
    if 200 <= status < 300:
        return "stored"
    if status in REDIRECTS:
        return "redirected"
    return "again" if is_refusal(status) and tries < max_tries else "failed"


def rest_asked(status: int, retry_after: str, strikes: int) -> float:
    """Seconds for which the site asks to be left alone; 0.0: it does not ask. `strikes` counts its rests in a row."""
    if 200 <= status < 300:  # there the field says when the result of a task is worth asking for
        return 0.0
    asked = seconds_asked(retry_after)
    if asked is not None:
        return min(asked, LONGEST_REST_SECONDS)
    return rest_of(strikes) if status == 429 else 0.0


def is_refusal(status: int) -> bool:
    """Whether the site had an answer, but nothing for us: it is overloaded, or we ask too often."""
    return status == 429 or status >= 500


def rest_of(strikes: int) -> float:
    """How long a site rests that did not say how long: a minute, doubled each time, at most a day."""
    return float(min(FIRST_REST_SECONDS * 2 ** min(strikes, 20), LONGEST_REST_SECONDS))


def seconds_asked(retry_after: str) -> float | None:
    """Retry-After in seconds from now; None where there is none that can be read."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        # A date without zone is meant in the only one that HTTP has.
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
