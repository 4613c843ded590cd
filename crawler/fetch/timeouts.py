"""Adaptive timeouts per site and stage, computed as TCP's retransmission timeout (RFC 6298). Pure, in memory only.

A limit is the mean time plus four mean deviations, between a minimum and the setting; each timeout doubles it. The
settings' limits apply to a page's last try, probes, robots.txt and a spider's own requests.
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


# --- Limits of one download ---


@dataclass(frozen=True, slots=True)
class Limit:
    """Seconds that one stage may take, and the setting that says so."""

    seconds: float
    name: str

    def capped(self, seconds: float) -> Limit:
        """The shorter of both."""
        return Limit(seconds, "download_timeout") if seconds < self.seconds else self

    def __str__(self) -> str:
        return f"{self.seconds:g} s ({self.name})"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one download. `size` is bytes, wire and decoded; 0 = none."""

    connect: Limit
    head: Limit
    body: Limit
    header_bytes: int
    header_fields: int
    size: int
    size_name: str = "DOWNLOAD_MAXSIZE"

    @classmethod
    def of(cls, options: Options, size: int) -> Limits:
        """The limits of the settings."""
        return cls(
            Limit(options.connect_timeout_seconds, "CONNECT_TIMEOUT_SECONDS"),
            Limit(options.head_timeout_seconds, "HEAD_TIMEOUT_SECONDS"),
            Limit(options.body_timeout_seconds, "BODY_TIMEOUT_SECONDS"),
            options.max_header_bytes,
            options.max_header_fields,
            size,
        )

    def narrowed(self, meta: dict[str, Any]) -> Limits:
        """These limits with one request's meta applied."""
        limits, seconds, size = self, meta.get("download_timeout"), meta.get("download_maxsize")
        if seconds:
            stages = self.connect.capped(seconds), self.head.capped(seconds), self.body.capped(seconds)
            limits = replace(limits, connect=stages[0], head=stages[1], body=stages[2])
        if size is not None:
            limits = replace(limits, size=size, size_name="download_maxsize")
        return limits


# RFC 6298: smoothing gains of mean and deviation; a time is late past this many deviations above the mean.
MEAN_GAIN: Final = 1 / 8
DEVIATION_GAIN: Final = 1 / 4
DEVIATIONS: Final = 4
# Samples of a site below which other sites' times count too.
FEW_TIMES: Final = 8
# The quantile of other sites' times that limits a little-known site, and the samples it needs.
ENOUGH_FOR: Final = 0.995
LEAST_TIMES: Final = 200
# Past this count older samples count half: the network may have changed.
MOST_TIMES: Final = 20_000
# Histogram bounds, each 10 % above the last: 1 ms to a minute.
BOUNDS: Final = tuple(0.001 * 1.1**step for step in range(116))

BY_SITE: Final = "ADAPTIVE_TIMEOUTS, by this site's times"
BY_OTHERS: Final = "ADAPTIVE_TIMEOUTS, by other sites' times"


class Least(NamedTuple):
    """Minimum limits in seconds."""

    connect: float
    head: float
    body: float


class Crowd:
    """Histogram of one stage's times on little-known sites."""

    __slots__ = ("_counts", "_total", "enough")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0
        self.enough = inf  # seconds that sufficed for nearly all; inf: too few samples

    def add(self, seconds: float) -> None:
        """Add one time."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._total += 1
        if self._total > MOST_TIMES:
            self._counts = [count // 2 for count in self._counts]
            self._total = sum(self._counts)
        # Recomputed after every 64th sample: it costs as much as adding a hundred.
        if self._total >= LEAST_TIMES and (self._total % 64 == 0 or self.enough == inf):
            self.enough = self._quantile()

    def _quantile(self) -> float:
        place = bisect_left(list(accumulate(self._counts)), ENOUGH_FOR * self._total)
        return BOUNDS[place] if place < len(BOUNDS) else inf


class Stage:
    """One stage of one site."""

    __slots__ = ("_crowd", "_deviation", "_late", "_mean", "_times")

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._mean = self._deviation = 0.0
        self._times = self._late = 0

    def came(self, seconds: float) -> None:
        """Record a completed stage."""
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
        """Record a timeout."""
        self._late += 1

    def limit(self, least: float, most: Limit, doublings: int, ways: int = 1) -> Limit:
        """The limit: at least `least`, times `ways` addresses, at most `most`."""
        seconds, name = self._mean + DEVIATIONS * self._deviation, BY_SITE
        if self._times < FEW_TIMES and self._crowd.enough > seconds:
            seconds, name = self._crowd.enough, BY_OTHERS
        # At most 11 doublings: 2 s become an hour.
        seconds = max(seconds, least) * ways * 2 ** min(self._late + doublings, 11)
        return Limit(seconds, name) if seconds < most.seconds else most


class AdaptiveTimeouts:
    """Timeouts of one agent; a share of requests are probes with the settings' limits."""

    def __init__(self, least: Least, probe_share: float, most_tries: int) -> None:
        self.least = least
        self.most_tries = most_tries  # of a page
        self.connect, self.head, self.body = Crowd(), Crowd(), Crowd()
        self._share = probe_share
        self._probes = 0.0  # due

    def probes(self) -> bool:
        """Whether the next request is a probe; call once per request."""
        self._probes += self._share
        if self._probes < 1.0:
            return False
        self._probes -= 1.0
        return True


class SiteTimeouts:
    """Timeouts of one site, kept while the site is leased."""

    __slots__ = ("_of_agent", "body", "connect", "head")

    def __init__(self, of_agent: AdaptiveTimeouts) -> None:
        self._of_agent = of_agent
        self.connect = Stage(of_agent.connect)
        self.head = Stage(of_agent.head)
        self.body = Stage(of_agent.body)

    def narrow(self, limits: Limits, tries: int, addresses: int = 1) -> Limits:
        """Limits for try number `tries`; every address gets connect time."""
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
        """Record the finished stages of `stage_times`."""
        if times["connect_s"] and not times["reused"]:
            self.connect.came(times["connect_s"] + (times["tls_s"] or 0.0))
        if times["head_s"] is not None:
            self.head.came(times["head_s"])
        if times["body_s"] is not None:
            self.body.came(times["body_s"])

    def was_late(self, error: BaseException) -> None:
        """Count a timeout; ignore other errors."""
        for kind, stage in (
            (ConnectTimeoutError, self.connect),
            (HeadTimeoutError, self.head),
            (BodyTimeoutError, self.body),
        ):
            if isinstance(error, kind):
                stage.was_late()


@contextmanager
def taken_in(timeouts: SiteTimeouts | None, times: dict[str, Any]) -> Iterator[None]:
    """Record times and timeouts of the request made inside."""
    try:
        yield
    except DownloadTimeoutError as error:
        if timeouts is not None:
            timeouts.was_late(error)
        raise
    finally:
        if timeouts is not None:
            timeouts.take_in(times)
