"""What an answer means for its page and its site: pure rules, one place.

A page's turn ends (`stored`, `redirected`, `failed`), or it gets another one. A site that asks for a rest (429, or a
Retry-After with any answer but 2xx) gets it as a whole. A 503 without Retry-After belongs to its URL
(crawler.agent.politeness says when it is the site's).
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence


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


# ------------------------------------------------------------------------------------------------------------
# Cookie walls: a site lets nobody see its pages who does not send the cookie that it sets on the way to them. Pure.
#
# It redirects a page to itself, or to another one that leads back. Redirects are followed as pages of the frontier,
# which remembers them; so where one leads to a page that has redirected, here is decided whether that one is worth
# asking once more, with the cookies of the way. Bounded, for each page and for the site: a wall that sets another
# cookie each time is left standing, and its cookies are sent no longer. Recheck, whose frontier has no other pages,
# goes the way in the turn of a page that was loaded before.


# Times that a page is asked again: a second check may stand behind the first.
MOST_COOKIE_TIMES: Final = 2
# Walls of a site that stood in a row, until no more are tried.
MOST_IN_VAIN: Final = 3
# Redirects of a site that are remembered, the latest.
MOST_REDIRECTS: Final = 10_000


class Walls:
    """What one site in hand does with visitors that have no cookie."""

    def __init__(self) -> None:
        # By path that redirected, how many times the site had set a cookie by then that was sent along.
        self._worn: dict[str, int] = {}
        self._times: Counter[str] = Counter()
        self._in_vain = 0
        self._passed = False

    def redirected(self, path: str, worn: int) -> None:
        """The page redirects, though asked with the cookies that were set `worn` times by then."""
        self._worn.pop(path, None)
        self._worn[path] = worn
        if len(self._worn) > MOST_REDIRECTS:
            del self._worn[next(iter(self._worn))]

    def answered(self, path: str) -> None:
        """The page is no redirect: a wall that was in front of it was passed."""
        if path in self._times:
            self._in_vain, self._passed = 0, True

    def worth_asking(self, path: str, cookies: int, *, in_circle: bool) -> bool:
        """Whether a page that a redirect leads back to is asked again; the site has set cookies so many times by now.

        Of one that redirected in an earlier lease is not known what was set on the way: in a circle it is asked again.
        """
        if self.stand or self._times.get(path, 0) >= MOST_COOKIE_TIMES:
            return False
        if cookies <= self._worn.get(path, -1 if in_circle else 0):
            return False
        self._times[path] += 1
        return True

    def stood(self, path: str) -> bool:
        """The page redirects to no avail; whether the site's cookies have opened nothing so far."""
        if path not in self._times:
            return False
        self._in_vain += 1
        return not self._passed

    @property
    def stand(self) -> bool:
        """Whether no more are looked for."""
        return self._in_vain >= MOST_IN_VAIN

    def led_nowhere(self) -> None:
        """A redirect that was followed on trial leads to no wall."""
        self._in_vain += 1

    def leave(self) -> None:
        """Look for no more of them."""
        self._in_vain = MOST_IN_VAIN


def walls_in_words(circle: Sequence[str], *, with_cookies: bool) -> str:
    """What becomes of a page in a circle; this ends with the page itself, and begins with where it leads."""
    what = "redirects to itself" if len(circle) == 1 else "redirects in a circle"
    asked = " with and without its cookies" if with_cookies else ""
    return f"{what}{asked}: {' -> '.join((circle[-1], *circle))}"[:300]
