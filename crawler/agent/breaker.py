"""The site breaker: a site that does not answer is left alone as a whole, and not page by page. Pure rules.

Two straight pages without a connection park the site: its pages wait, and its next lease begins with robots.txt, which
is the probe. Two straight pages without a head may be two bad pages of a good site; so robots.txt is asked at once, and
its silence parks the site. So does a robots.txt that begins and cannot be read to its end, for without it no page may
be asked. A site that was silent at MAX_TRIES leases in a row is given up: each page that was still to be fetched has
failed, and is revive's from then on. Any answer, whatever its status, begins anew; a page's body that is late, cut
short or malformed is an answer too. A site for which no request can be made, not even for robots.txt, is parked and
given up alike; its pages are left out then.
"""

from __future__ import annotations

from typing import Final, Literal

# Straight failures that trip it.
STRAIGHT: Final = 2
# Status codes (crawler.agent.errors): no address, refused, no connection in time, no TLS; and no head.
NO_CONNECTION: Final = frozenset({-1, -2, -3, -7})
NO_HEAD: Final = frozenset({-4, -6})
# Somebody answered, if badly: late body, cut short, too large, malformed.
BAD_ANSWER: Final = frozenset({-5, -8, -11, -12})
# The longest pause between two probes.
LONGEST_PAUSE_SECONDS: Final = 86_400.0

Step = Literal["go_on", "probe", "trip"]


def is_silence(status: int) -> bool:
    """Whether a page's failure says that its site may be gone."""
    return status in NO_CONNECTION or status in NO_HEAD


def shuts(status: int) -> bool:
    """Whether a robots.txt that could not be had says that nobody gets into its site: no answer, or no whole one."""
    return is_silence(status) or status in BAD_ANSWER


def step(status: int, straight: int) -> Step:
    """What to do after a page's silence, which is the `straight`th in a row."""
    if straight < STRAIGHT:
        return "go_on"
    return "trip" if status in NO_CONNECTION else "probe"


def pause(parkings: int, first_seconds: float) -> float:
    """How long a site is left alone that was parked so many times in a row, this one included."""
    return min(first_seconds * 2.0 ** min(parkings - 1, 20), LONGEST_PAUSE_SECONDS)
