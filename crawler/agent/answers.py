"""What an answer means for its page and its site: pure rules, one place.

A page's turn ends (`stored`, `redirected`, `failed`), or it gets another one; a site that is overloaded or
asks for a rest (429, 503, Retry-After) rests as a whole.
"""

from __future__ import annotations

import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple

from crawler.health import ASKS_FOR_REST

Verdict = Literal["stored", "redirected", "failed", "again"]

# A site's first rest after 429 or 503, doubled from time to time up to a day.
FIRST_REST_SECONDS = 60.0
LONGEST_REST_SECONDS = 86_400.0
# What leads elsewhere.
REDIRECTS = (301, 302, 303, 307, 308)


class Meaning(NamedTuple):
    """What to do: end the page's turn, or give it another; rest_seconds is for the whole site."""

    verdict: Verdict
    rest_seconds: float = 0.0


def meaning(status: int, retry_after: str, tries: int, max_tries: int, strikes: int) -> Meaning:
    """For an HTTP status; `strikes` counts the site's earlier rests in a row."""
    if 200 <= status < 300:
        return Meaning("stored")
    if status in REDIRECTS:
        return Meaning("redirected")
    if status in ASKS_FOR_REST:
        rest = seconds_asked(retry_after)
        rest = rest_of(strikes) if rest is None else min(rest, LONGEST_REST_SECONDS)
        return Meaning("again" if tries < max_tries else "failed", rest)
    if status >= 500 and tries < max_tries:
        return Meaning("again")
    return Meaning("failed")


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
