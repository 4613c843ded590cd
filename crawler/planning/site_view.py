"""Builds the `SiteView` that policies score, from queue records and known loads. Pure.

Sizes of sites with few known pages are estimated with the mean of finished sites; unknown paces get the mean of known
ones. Rows are in the order of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from crawler.queue.sites import SiteRecord
from crawler.schedulers import SiteView
from crawler.schedulers.law import FULL, UNKNOWN

# Pages of an unvisited site before any site is finished.
FIRST_SIZE = 100.0
# Pages done at which a site's own estimate counts as much as the mean of all. With own estimates alone, crawls
# took 3 % longer than with the mean alone.
HALF_KNOWN = 30.0
# Pages per 3600 s if nothing was measured: one a second.
FIRST_PACE = 3600.0


class Ended(NamedTuple):
    """Number of finished sites, and their pages in total."""

    sites: int
    pages: int


NONE_ENDED = Ended(0, 0)


class Hours(NamedTuple):
    """Known figures of n sites; column 0 is the requested hour."""

    load: np.ndarray  # (n, 24) uint8: 0 idle .. 254 full, 255 unknown
    pace: float  # pages in 3600 s at load 0; 0: unknown
    delay: np.ndarray  # (n,) float32: seconds between two requests; NaN: unknown
    is_open: np.ndarray  # (n, 24) bool: robots.txt allows visits
    is_seen: np.ndarray  # (n,) bool: data exist for this hour of the day
    listed: np.ndarray  # (n,) int64: order of listing


@dataclass(frozen=True)
class Prospects:
    """Sites that may be crawled now or soon, unordered; one array element each."""

    names: list[str]
    known: np.ndarray  # (n,) float32: URLs; 0: not visited yet
    done: np.ndarray  # (n,) float32: URLs handled
    running: np.ndarray  # (n,) bool: leased
    ended: Ended = NONE_ENDED


def open_sites(
    records: Iterable[SiteRecord], progress: Mapping[str, tuple[int, int]], parked: Set[str] = frozenset()
) -> Prospects:
    """Sites that are waiting, suspended or leased for crawling, except those waiting for an address.

    `progress`: (known, done) URLs of leased sites (SiteQueue.running). `parked`: SiteQueue.parked.
    """
    names: list[str] = []
    known: list[int] = []
    done: list[int] = []
    running: list[bool] = []
    ended_sites = ended_pages = 0
    for record in records:
        if record.state == "finished" and record.known:
            ended_sites += 1
            ended_pages += record.known
        if record.site in parked and not record.agent:
            continue
        if record.paused or record.state not in ("waiting", "suspended") or record.work not in ("", "site"):
            continue
        held = progress.get(record.site) if record.agent else None
        site_known, site_done = held if held and held[0] else (record.known, record.done)
        names.append(record.site)
        known.append(site_known)
        done.append(site_done)
        running.append(bool(record.agent))
    return Prospects(
        names,
        np.array(known, np.float32),
        np.array(done, np.float32),
        np.array(running, bool),
        Ended(ended_sites, ended_pages),
    )


def remaining(known: np.ndarray, done: np.ndarray, most: int = 0, ended: Ended = NONE_ENDED) -> np.ndarray:
    """(n,) float32: estimated pages to fetch, at least 1, at most `most` per site in all (0: no limit)."""
    looked = int(np.count_nonzero(known)) + ended.sites
    mean = np.float32((known.sum(dtype=np.float64) + ended.pages) / looked if looked else FIRST_SIZE)
    if most:
        mean, known = np.minimum(mean, np.float32(most)), np.minimum(known, np.float32(most))
    trust = done / (done + np.float32(HALF_KNOWN))
    guess = trust * known + (1 - trust) * mean - done
    left: np.ndarray = np.maximum(np.maximum(known - done, guess), 1).astype(np.float32)
    return left


def view(
    prospects: Prospects,
    hours: Hours,
    *,
    slots: int,
    hour_left: float,
    hour_seconds: float,
    delay: float,
    most_pages: int = 0,
) -> SiteView:
    """The view of this hour; `delay`: DOWNLOAD_DELAY, for sites without a known one."""
    load = np.where(hours.is_open, hours.load, np.uint8(FULL))
    pause = np.where(np.isnan(hours.delay), np.float32(delay), hours.delay)
    with np.errstate(divide="ignore"):
        cap = np.float32(hour_seconds) / pause
    return SiteView(
        load=_frozen(load),
        pages_per_hour=_frozen(_paces(hours, hour_seconds)),
        pace_cap=_frozen(cap.astype(np.float32)),
        remaining=_frozen(remaining(prospects.known, prospects.done, most_pages, prospects.ended)),
        ready=_frozen(hours.is_open[:, 0].copy()),
        sequence=_frozen(hours.listed),
        slots=slots,
        hour_left=hour_left,
    )


def next_hour(now: SiteView, is_open: np.ndarray) -> SiteView:
    """The same sites one hour later, if nothing is fetched until then."""
    load = np.roll(now.load, -1, axis=1)
    return replace(now, load=_frozen(load), ready=_frozen(is_open[:, 1].copy()), hour_left=1.0)


def _paces(hours: Hours, hour_seconds: float) -> np.ndarray:
    pace = np.float32((hours.pace or FIRST_PACE) * hour_seconds / 3600)
    known = hours.load != UNKNOWN
    has_load = known.any(axis=1)
    if has_load.all() or not has_load.any():
        return np.full(len(has_load), pace, np.float32)
    mean_load = hours.load[has_load][known[has_load]].mean(dtype=np.float64) / FULL
    return np.where(has_load, pace, pace * np.float32(1 - mean_load)).astype(np.float32)


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
