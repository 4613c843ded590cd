"""A site's health (paper 002) and when a change is reported. Pure functions.

`normal`; `delayed`: answers late or requests a rest; `disconnected`: no answer; `error`: the answer is unusable. A
change is reported at once unless the site flaps: each change adds 1 to a penalty that halves with time. From FLAPS on
nothing is reported until it is below CALM; then the current health is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from crawler.records import SiteHealth

# An outage and its end (two changes) are reported at once; a third change soon after is flapping.
FLAPS = 2.5
CALM = 1.0
# Limits the penalty: two half-lives after flapping ends, the site is calm.
MOST_PENALTY = 4.0

# No answer: DNS, refused, no connection, no response headers, lost; private addresses.
_DISCONNECTED = frozenset({-1, -2, -3, -4, -6, -10})
# An answer that cannot be used: body late or cut off, certificate, headers too large, not HTTP.
_BROKEN = frozenset({-5, -7, -8, -11, -12})
# Forbidden by robots.txt: the site does answer.
_ROBOTS = -9
# Statuses that mean: later.
ASKS_FOR_REST: Final = frozenset({429, 503})


def health_of(
    status: int, seconds: float | None, limit: float, *, looks_broken: bool = False
) -> SiteHealth | None:
    """The health that a check shows; None if it shows nothing.

    `status`: HTTP's, or below 0 (crawler.fetch.errors). `seconds`: until the response headers; above `limit` is late.
    `looks_broken`: the page is an error page despite its status.
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
    """Whether to check again before accepting the verdict; not for sites that request a rest."""
    return health in ("disconnected", "delayed") and status not in ASKS_FOR_REST and status != -10


class StatusHistory(NamedTuple):
    """A site's current health. Times are milliseconds since 1970."""

    health: SiteHealth
    since: int  # first check with this health
    at: int  # last check
    told: SiteHealth  # last reported health; initially normal
    penalty: float = 0.0  # as of the last check
    damped: bool = False  # the site flaps: changes are not reported


class Change(NamedTuple):
    """A change to report."""

    was: SiteHealth
    now: SiteHealth
    since: int


def follow(
    course: StatusHistory | None, health: SiteHealth, at: int, half_life_seconds: float
) -> tuple[StatusHistory, Change | None]:
    """The history after one more check (None before: first check), and the change to report, if any.

    A check not younger than the last one changes nothing. A half-life of 0 turns damping off.
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
