"""How a site is (paper 002): what one check says of it, and when a change of that is told. Pure functions.

Four words: `normal`; `delayed`, it answered late or asked for a rest; `disconnected`, nobody answered; `error`,
what answered is broken. The paper names the four and no thresholds; the rules below are ours.

A change is told at once, but not of a site that flaps: each change adds 1 to its penalty, which halves in a given
time. From FLAPS on nothing is told until the penalty is below CALM; then what is the case by then.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from crawler.records import SiteHealth

# An outage and its end are told at once (two changes); a third one that soon is flapping.
FLAPS = 2.5
CALM = 1.0
# Bound of the penalty: however long a site flapped, two half-lives after that it is calm.
MOST_PENALTY = 4.0

# No answer: no address, refused, no connection, no head, lost; and addresses that nobody outside can reach.
_DISCONNECTED = frozenset({-1, -2, -3, -4, -6, -10})
# Somebody answered, and it cannot be used: body late or cut off, certificate, too large a head, not HTTP.
_BROKEN = frozenset({-5, -7, -8, -11, -12})
# The site's robots.txt answered and lets us ask no more: what is known is that it answers.
_ROBOTS = -9
# Statuses that say: later.
ASKS_FOR_REST: Final = frozenset({429, 503})


def health_of(
    status: int, seconds: float | None, limit: float, *, looks_broken: bool = False
) -> SiteHealth | None:
    """What an answer, or that there was none, says of a site; None: nothing, for it was not asked.

    `status` is HTTP's, or below 0 (crawler.fetch.errors); `seconds` until the answer's head; one above `limit` seconds
    is late. `looks_broken`: the page that came is an error page whatever its status says.
    """
    if status in _DISCONNECTED:
        return "disconnected"
    if status in ASKS_FOR_REST:
        return "delayed"
    if status >= 400 or status in _BROKEN or looks_broken:
        return "error"
    if status >= 200 or status == _ROBOTS:
        return "delayed" if seconds is not None and seconds > limit else "normal"
    return None


def wants_another_try(health: SiteHealth, status: int) -> bool:
    """Whether the verdict needs a second look: it may be the way there, or a moment. Who asks for a rest gets it."""
    return health in ("disconnected", "delayed") and status not in ASKS_FOR_REST and status != -10


class StatusHistory(NamedTuple):
    """What is known of a site's health by now. Times are milliseconds since 1970."""

    health: SiteHealth
    since: int  # when it was first seen so
    at: int  # of the last check
    told: SiteHealth  # what was last told of; a site begins as normal
    penalty: float = 0.0  # as of the last check
    damped: bool = False  # it flaps: changes are not told


class Change(NamedTuple):
    """One change that is to be told."""

    was: SiteHealth
    now: SiteHealth
    since: int


def follow(
    course: StatusHistory | None, health: SiteHealth, at: int, half_life_seconds: float
) -> tuple[StatusHistory, Change | None]:
    """The course after one more check, and what is to be told; None of it: the site was never checked.

    A check that is not younger than the last one changes nothing: it came twice, or late. A half-life of 0 damps
    nothing.
    """
    if course is None:
        course = StatusHistory(health, at, at, "normal")
        return _tell(course)
    if at <= course.at:
        return course, None
    changed = health != course.health
    penalty = min(_decayed(course.penalty, at - course.at, half_life_seconds) + changed, MOST_PENALTY)
    damped = bool(half_life_seconds) and penalty >= (CALM if course.damped else FLAPS)
    since = at if changed else course.since
    return _tell(StatusHistory(health, since, at, course.told, penalty, damped))


def _tell(course: StatusHistory) -> tuple[StatusHistory, Change | None]:
    if course.damped or course.health == course.told:
        return course, None
    return course._replace(told=course.health), Change(course.told, course.health, course.since)


def _decayed(penalty: float, milliseconds: int, half_life_seconds: float) -> float:
    if not half_life_seconds or not penalty:
        return 0.0
    left: float = penalty * 0.5 ** (milliseconds / 1000 / half_life_seconds)
    return left
