"""What a policy is shown of the sites that may be worked on: from the queue's records and what is known of their hours.

Pure: records and arrays in, a `SiteView` out. Hides how sizes are guessed (a young frontier knows few of a site's
pages, so it is drawn towards what sites have on average) and what stands for a pace that nobody has measured. Promises
a view without NaN, rows in the order of the sites given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from crawler.queue.sites import SiteRecord
from crawler.schedulers import SiteView
from crawler.schedulers.law import FULL, UNKNOWN

# Pages of a site nobody has looked into yet, before any site was.
FIRST_SIZE = 100.0
# Pages done of a site at which what its frontier says counts as much as the mean of all sites: with own guesses alone
# crawls were 3 % longer than with all sites taken for average (simulated).
HALF_KNOWN = 30.0
# Pages an hour of 3600 s where nothing was measured: one a second.
FIRST_PACE = 3600.0


class Ended(NamedTuple):
    """Sites that were walked to their end, and their pages together: what sites are like on average."""

    sites: int
    pages: int


NONE_ENDED = Ended(0, 0)


class Hours(NamedTuple):
    """What is known of n sites' hours, column 0 being the hour asked for."""

    load: np.ndarray  # (n, 24) uint8: 0 idle .. 254 full, 255 unknown
    pace: float  # pages in 3600 s at load 0; 0: nothing was measured anywhere
    delay: np.ndarray  # (n,) float32: seconds between two requests; NaN: not told yet
    is_open: np.ndarray  # (n, 24) bool: whether robots.txt allows visits then
    is_seen: np.ndarray  # (n,) bool: whether there is evidence for this hour of the day
    listed: np.ndarray  # (n,) int64: order of listing


@dataclass(frozen=True)
class Prospects:
    """Sites that may be worked on now or soon, in no order; the arrays have a row for each."""

    names: list[str]
    known: np.ndarray  # (n,) float32: URLs; 0: nobody has looked
    done: np.ndarray  # (n,) float32: of these, have had their turn
    running: np.ndarray  # (n,) bool: somebody holds it
    ended: Ended = NONE_ENDED


def open_sites(
    records: Iterable[SiteRecord], progress: Mapping[str, tuple[int, int]], parked: Set[str] = frozenset()
) -> Prospects:
    """Those that wait, are suspended, or are held for loading; not those that wait for a place, which no list can give.

    `progress`: of held ones, how many URLs are known and done by now (SiteQueue.running). `parked`: SiteQueue.parked.
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
    """(n,) float32: pages still to fetch; at least one of every open site, of `most` (0: no limit) at most."""
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
    """The view of this hour; `delay` is that of sites whose own is not known (DOWNLOAD_DELAY), in seconds."""
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
    """The same sites as the next hour will find them, if nothing is done meanwhile."""
    load = np.roll(now.load, -1, axis=1)
    return replace(now, load=_frozen(load), ready=_frozen(is_open[:, 1].copy()), hour_left=1.0)


def _paces(hours: Hours, hour_seconds: float) -> np.ndarray:
    """(n,) float32: pages per hour at load 0; a site whose load nobody knows has the mean pace of the others."""
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
