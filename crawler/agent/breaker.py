"""The site breaker: a site that does not answer is left alone as a whole, and not page by page. Pure rules.

Two straight pages without a connection park the site: its pages wait, and its next lease begins with robots.txt, which
is the probe. Two straight pages without a head may be two bad pages of a good site; so robots.txt is asked at once, and
its silence parks the site. So does a robots.txt that begins and cannot be read to its end, for without it no page may
be asked. A site that was silent at MAX_TRIES leases in a row is given up: each page that was still to be fetched has
failed, and is revive's from then on. Any answer, whatever its status, begins anew; a page's body that is late, cut
short or malformed is an answer too. A site for which no request can be made, not even for robots.txt, is parked and
given up alike; its pages are left out then.

One URL is not its site: what counts is different URLs that fail one after the other (`Row`). A URL that is tried again
says nothing new of its site.
"""

from __future__ import annotations

from typing import Final, Literal

# Different URLs without an answer, one after the other, that trip it.
STRAIGHT: Final = 2
# Different URLs that fail in a row, however they fail, before the whole site rests. A page often links to several bad
# URLs of one kind; and five requests do no harm to a site that is overloaded.
IN_A_ROW: Final = 5
# Status codes (crawler.fetch.errors): no address, refused, no connection in time, no TLS; and no head.
NO_CONNECTION: Final = frozenset({-1, -2, -3, -7})
NO_HEAD: Final = frozenset({-4, -6})
# Somebody answered, if badly: late body, cut short, too large, malformed.
BAD_ANSWER: Final = frozenset({-5, -8, -11, -12})
# What an overloaded site does to its visitors as well: no answer, a late body, one that is cut short.
MAY_BE_THE_SITE: Final = NO_CONNECTION | NO_HEAD | {-5, -8}
# The longest pause between two probes.
LONGEST_PAUSE_SECONDS: Final = 86_400.0

Step = Literal["go_on", "probe", "trip"]


class Row:
    """The URLs of a site that failed one after the other: 503, time-outs, resets. A success ends the row."""

    __slots__ = ("_urls", "first_tries")

    def __init__(self) -> None:
        self._urls: set[str] = set()
        self.first_tries = 0  # different URLs whose first try failed

    def end(self) -> None:
        """The site answered a URL as a working site does."""
        if self._urls:
            self._urls.clear()
            self.first_tries = 0

    def add(self, url: str, tries: int, strikes: int, known: int) -> bool:
        """A try of this URL failed, its `tries`th; whether the site as a whole seems to be the cause.

        `strikes` counts the site's rests since its last success: above 0 one more URL is enough. `known` URLs are all
        that is known of the site; when each of them fails, no other one can tell.
        """
        new = url not in self._urls
        self._urls.add(url)
        if len(self._urls) >= known:
            return True
        if tries > 1 or not new:
            return False
        self.first_tries += 1
        return strikes > 0 or self.first_tries >= IN_A_ROW


def is_silence(status: int) -> bool:
    """Whether a page's failure says that its site may be gone."""
    return status in NO_CONNECTION or status in NO_HEAD


def shuts(status: int) -> bool:
    """Whether a robots.txt that could not be had says that nobody gets into its site: no answer, or no whole one."""
    return is_silence(status) or status in BAD_ANSWER


def silence_of(path: str, tries: int, status: int) -> tuple[str, int]:
    """What tells one silence from another: the URL; where there was no connection, which no URL decides, each try."""
    return (path, tries if status in NO_CONNECTION else 0)


def step(status: int, straight: int) -> Step:
    """What to do after a page's silence, with which `straight` different ones came in a row."""
    if straight < STRAIGHT:
        return "go_on"
    return "trip" if status in NO_CONNECTION else "probe"


def pause(parkings: int, first_seconds: float) -> float:
    """How long a site is left alone that was parked so many times in a row, this one included."""
    return min(first_seconds * 2.0 ** min(parkings - 1, 20), LONGEST_PAUSE_SECONDS)
