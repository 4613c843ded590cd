"""How long one site is waited for, stage by stage, by how long it took before: paper 001's open question.

A fixed limit is long for a quick site that hangs once and short for a slow one. So each site's own times move its
limits, as a sender of TCP finds how long to wait (RFC 6298): the mean time and four times its mean deviation, between a
least limit and the settings' own, which is never passed. A stage that was late is given twice the time, until it is in
time again.

Nothing is lost by it: a page's last try has the settings' limits, whatever is known of the site. So has a small share
of all requests (probes), since times above a limit are never seen and limits would only fall; so have robots.txt,
without which the whole site rests, and a spider's own requests.

Pure, without a clock of its own, in memory only: a few numbers for each site in hand, and one histogram a stage for the
agent. A site of which little is known has no less than what was enough for nearly all other sites.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scrapy.exceptions import DownloadTimeoutError

from crawler.fetch.errors import BodyTimeoutError, ConnectTimeoutError, HeadTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crawler.options import Options


# ------------------------------------------------------------------------------------------------------------
# How long and how large one download may be: the settings' limits, and one request's own.
#
# Pure values. Each limit of time carries the name of the setting or meta key that it comes from, for error messages.


@dataclass(frozen=True, slots=True)
class Limit:
    """Seconds that one stage may take, and the setting or meta key they come from."""

    seconds: float
    name: str

    def capped(self, seconds: float) -> Limit:
        """The shorter of this limit and the one that the request asks for."""
        return Limit(seconds, "download_timeout") if seconds < self.seconds else self

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.name})"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one download may take. `size` is bytes, on the wire and decoded; 0 = no limit."""

    connect: Limit
    head: Limit
    body: Limit
    header_bytes: int
    header_fields: int
    size: int
    size_name: str = "DOWNLOAD_MAXSIZE"

    @classmethod
    def of(cls, given: Options, size: int) -> Limits:
        """The limits that the settings mean."""
        return cls(
            Limit(given.connect_timeout_seconds, "CONNECT_TIMEOUT_SECONDS"),
            Limit(given.head_timeout_seconds, "HEAD_TIMEOUT_SECONDS"),
            Limit(given.body_timeout_seconds, "BODY_TIMEOUT_SECONDS"),
            given.max_header_bytes,
            given.max_header_fields,
            size,
        )

    def narrowed(self, meta: dict[str, Any]) -> Limits:
        """These limits as one request's meta changes them."""
        limits, seconds, size = self, meta.get("download_timeout"), meta.get("download_maxsize")
        if seconds:
            stages = self.connect.capped(seconds), self.head.capped(seconds), self.body.capped(seconds)
            limits = replace(limits, connect=stages[0], head=stages[1], body=stages[2])
        if size is not None:
            limits = replace(limits, size=size, size_name="download_maxsize")
        return limits


# RFC 6298: what one more time moves the mean and the deviation by, and how many deviations above the mean is too late.
MEAN_GAIN: Final = 1 / 8
DEVIATION_GAIN: Final = 1 / 4
DEVIATIONS: Final = 4
# Times of a site that are too few to go by alone.
FEW_TIMES: Final = 8
# Of other sites' times, how many must lie below a limit that is taken for a site of which little is known, and of how
# many that can be said.
ENOUGH_FOR: Final = 0.995
LEAST_TIMES: Final = 200
# Above so many the older ones count for half: the way to all sites may have changed.
MOST_TIMES: Final = 20_000
# A histogram's bounds, each a tenth above the one before: 1 ms to a minute.
BOUNDS: Final = tuple(0.001 * 1.1**step for step in range(116))

BY_SITE: Final = "ADAPTIVE_TIMEOUTS, by this site's times"
BY_OTHERS: Final = "ADAPTIVE_TIMEOUTS, by other sites' times"


class Least(NamedTuple):
    """Seconds below which no limit of a stage falls."""

    connect: float
    head: float
    body: float


class Crowd:
    """What one stage took on the first requests to each site of the agent."""

    __slots__ = ("_counts", "_total", "enough")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0
        self.enough = inf  # seconds that nearly all of them took at most; inf: too few to tell

    def add(self, seconds: float) -> None:
        """One more time."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += 1
        if self._total > MOST_TIMES:
            self._counts = [count // 2 for count in self._counts]
            self._total = sum(self._counts)
        # Anew after every 64th: it takes as long as a hundred times that are added.
        if self._total >= LEAST_TIMES and (self._total % 64 == 0 or self.enough == inf):
            self.enough = self._quantile()

    def _quantile(self) -> float:
        place = bisect_left(list(accumulate(self._counts)), ENOUGH_FOR * self._total)
        return BOUNDS[place] if place < len(BOUNDS) else inf


class Stage:
    """One stage of one site: its mean time, how far times lie from it, and how often in a row it was late."""

    __slots__ = ("_crowd", "_deviation", "_late", "_mean", "_times")

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._mean = self._deviation = 0.0
        self._times = self._late = 0

    def came(self, seconds: float) -> None:
        """It took so long."""
        if self._times:
            self._deviation += DEVIATION_GAIN * (abs(seconds - self._mean) - self._deviation)
            self._mean += MEAN_GAIN * (seconds - self._mean)
        else:
            self._mean, self._deviation = seconds, seconds / 2
        if self._times < FEW_TIMES:
            self._times += 1
            self._crowd.add(seconds)
        self._late = 0

    def was_late(self) -> None:
        """It was not done within its limit."""
        self._late += 1

    def limit(self, least: float, most: Limit, doublings: int, ways: int = 1) -> Limit:
        """How long to wait for it: `least` at least, as long for each of `ways`, and never longer than `most`."""
        seconds, name = self._mean + DEVIATIONS * self._deviation, BY_SITE
        if self._times < FEW_TIMES and self._crowd.enough > seconds:
            seconds, name = self._crowd.enough, BY_OTHERS
        # So far the doublings may go: 2 s become an hour.
        seconds = max(seconds, least) * ways * 2 ** min(self._late + doublings, 11)
        return Limit(seconds, name) if seconds < most.seconds else most


class AdaptiveTimeouts:
    """One agent's patience with all its sites. `probe_share` of requests have the settings' limits, 0: none."""

    def __init__(self, least: Least, probe_share: float, most_tries: int) -> None:
        self.least = least
        self.most_tries = most_tries  # of a page
        self.connect, self.head, self.body = Crowd(), Crowd(), Crowd()
        self._share = probe_share
        self._probes = 0.0  # that are owed

    def probes(self) -> bool:
        """Whether the next request is a probe; asked once for each."""
        self._probes += self._share
        if self._probes < 1.0:
            return False
        self._probes -= 1.0
        return True


class SiteTimeouts:
    """The agent's patience with one site; lives as long as the site is in hand."""

    __slots__ = ("_of_agent", "body", "connect", "head")

    def __init__(self, of_agent: AdaptiveTimeouts) -> None:
        self._of_agent = of_agent
        self.connect = Stage(of_agent.connect)
        self.head = Stage(of_agent.head)
        self.body = Stage(of_agent.body)

    def narrow(self, limits: Limits, tries: int, addresses: int = 1) -> Limits:
        """The limits of a page's try, this one included in `tries`; every address to be tried has time of its own."""
        agent = self._of_agent
        if tries >= agent.most_tries or agent.probes():
            return limits
        least, doublings = agent.least, tries - 1
        return replace(
            limits,
            connect=self.connect.limit(least.connect, limits.connect, doublings, addresses),
            head=self.head.limit(least.head, limits.head, doublings),
            body=self.body.limit(least.body, limits.body, doublings),
        )

    def take_in(self, times: dict[str, Any]) -> None:
        """What a request took: the `stage_times` of its meta, as far as it came."""
        if times["connect_s"] and not times["reused"]:
            self.connect.came(times["connect_s"] + (times["tls_s"] or 0.0))
        if times["head_s"] is not None:
            self.head.came(times["head_s"])
        if times["body_s"] is not None:
            self.body.came(times["body_s"])

    def was_late(self, error: BaseException) -> None:
        """The error of a stage that was not done within its limit; any other says nothing."""
        for kind, stage in (
            (ConnectTimeoutError, self.connect),
            (HeadTimeoutError, self.head),
            (BodyTimeoutError, self.body),
        ):
            if isinstance(error, kind):
                stage.was_late()


@contextmanager
def taken_in(timeouts: SiteTimeouts | None, times: dict[str, Any]) -> Iterator[None]:
    """Takes in what the request within takes, whatever comes of it; None: nobody is to know."""
    try:
        yield
    except DownloadTimeoutError as error:
        if timeouts is not None:
            timeouts.was_late(error)
        raise
    finally:
        if timeouts is not None:
            timeouts.take_in(times)
