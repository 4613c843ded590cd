"""What a response means for its page and its site. Pure rules."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence


Verdict = Literal["stored", "redirected", "failed", "again"]

# First back-off of a site, doubled until a page succeeds, at most a day.
FIRST_REST_SECONDS = 60.0
LONGEST_REST_SECONDS = 86_400.0
# Statuses of a redirect.
REDIRECTS = (301, 302, 303, 307, 308)


def verdict(status: int, tries: int, max_tries: int) -> Verdict:
    """The page's outcome for try number `tries`."""
    if 200 <= status < 300:
        return "stored"
    if status in REDIRECTS:
        return "redirected"
    return "again" if is_refusal(status) and tries < max_tries else "failed"


def rest_asked(status: int, retry_after: str, strikes: int) -> float:
    """Seconds of back-off; 0.0: none. `strikes` counts back-offs in a row."""
    if 200 <= status < 300:  # here Retry-After refers to the result of a task
        return 0.0
    seconds = seconds_asked(retry_after)
    if seconds is not None:
        return min(seconds, LONGEST_REST_SECONDS)
    return rest_of(strikes) if status == 429 else 0.0


def is_refusal(status: int) -> bool:
    """Whether the site is overloaded or limits our rate."""
    return status == 429 or status >= 500


def rest_of(strikes: int) -> float:
    """Default back-off in seconds, doubled each time."""
    return float(min(FIRST_REST_SECONDS * 2 ** min(strikes, 20), LONGEST_REST_SECONDS))


def seconds_asked(retry_after: str) -> float | None:
    """Retry-After in seconds from now. Returns None when it is absent or invalid."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        # A date without a zone is UTC, as HTTP requires.
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


# --- Cookie walls ---


# Retries of a page with cookies: a second check may follow the first.
MOST_COOKIE_TIMES: Final = 2
# Failed walls in a row after which a site's cookies are not tried again.
MOST_FAILED: Final = 3
# Redirects remembered per site, the latest ones.
MOST_REDIRECTS: Final = 10_000


class Walls:
    """Cookie walls of one leased site: pages that redirect until a cookie is sent. Pure.

    Redirected pages are retried with the cookies set on the way, within limits.
    """

    def __init__(self) -> None:
        # By redirected path: the number of cookie changes sent along.
        self._worn: dict[str, int] = {}
        self._times: Counter[str] = Counter()
        self._failed = 0
        self._passed = False

    def redirected(self, path: str, worn: int) -> None:
        """Store a redirect despite `worn` cookie changes."""
        self._worn.pop(path, None)
        self._worn[path] = worn
        if len(self._worn) > MOST_REDIRECTS:
            del self._worn[next(iter(self._worn))]

    def answered(self, path: str) -> None:
        """The page loaded."""
        if path in self._times:
            self._failed, self._passed = 0, True

    def worth_asking(self, path: str, cookies: int, *, in_circle: bool) -> bool:
        """Whether to retry a page; the site changed cookies `cookies` times."""
        if self.stand or self._times.get(path, 0) >= MOST_COOKIE_TIMES:
            return False
        if cookies <= self._worn.get(path, -1 if in_circle else 0):
            return False
        self._times[path] += 1
        return True

    def stood(self, path: str) -> bool:
        """Count a failed wall. Returns whether none was ever passed."""
        if path not in self._times:
            return False
        self._failed += 1
        return not self._passed

    @property
    def stand(self) -> bool:
        """Whether walls are no longer tried."""
        return self._failed >= MOST_FAILED

    def led_nowhere(self) -> None:
        """Count a redirect without a wall."""
        self._failed += 1

    def leave(self) -> None:
        """Stop trying walls."""
        self._failed = MOST_FAILED


def walls_in_words(circle: Sequence[str], *, with_cookies: bool) -> str:
    """Describe a redirect cycle, which ends with the page."""
    what = "redirects to itself" if len(circle) == 1 else "redirects in a circle"
    cookies = " with and without its cookies" if with_cookies else ""
    return f"{what}{cookies}: {' -> '.join((circle[-1], *circle))}"[:300]
