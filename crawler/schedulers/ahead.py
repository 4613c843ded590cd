"""Values later hours: when the crawl can end, what an hour costs, and what waiting costs each site.

A site's remaining pages are assigned to its cheapest hours (slot-hours a page) before the horizon, without the present
one; the dearest of these is its alternative. The index is alternative / cost now: above 1, now is cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from crawler.schedulers.law import HOURS, blocks, pace_by_hour

if TYPE_CHECKING:
    from crawler.schedulers import SiteView

# How much of a later hour's deviation from the site's mean is believed; the minimum of 24 is biased.
# 1.0 gains 0.3 % with exact forecasts and loses 1.5 to 4 % with others.
TRUST = 0.85
# A running site continues until its index is this share below the last one that would get a slot. 0 makes crawls 0.2 %
# shorter with 3 % more starts; 0.2 saves 10 % of the starts and costs 1 %.
HYSTERESIS = 0.10
# Bisection steps: finds the alternative to 1 % where costs differ a thousandfold.
HALVINGS = 10
# Sites sampled for horizon and prices, by the time they will take.
SAMPLE = 2000
# The furthest horizon in hours: a year. Longer sites are critical from the start.
FURTHEST = 8784.0
# Precision of the horizon, in hours and as a share of it; with whole hours, crawls of 14 hours took 1.5 % longer.
FINEST, FINEST_SHARE = 1 / 32, 1 / 500
# Limits against float32 overflow.
SLOWEST, FASTEST, LARGEST = np.float32(1e-9), np.float32(1e9), np.float32(1e18)
# The highest index of a site that can wait; the lowest of one that cannot.
HIGHEST, CRITICAL = np.float32(4096), np.float32(8192)
# Weight of tightness in the index: orders sites whose hours are all equal.
TIE = np.float32(0.05)
# Price search: rounds, final rounds to average, first step.
ROUNDS, AVERAGED, STEP = 60, 40, 0.15


@dataclass(frozen=True)
class Outlook:
    """Figures shared by all sites, for each hour of the day from now on."""

    times: np.ndarray  # (24,) float32: occurrences until the horizon, without the present one
    price: np.ndarray  # (24,) float32: of a slot-hour
    delay: np.ndarray  # (24,) float32: extra cost of a page fetched then instead of now
    trust: float  # 0 to 1


@dataclass(frozen=True)
class Sample:
    """A sample of the open sites; `weight`: sites that each one stands for."""

    pace: np.ndarray  # (24, m)
    remaining: np.ndarray  # (m,)
    weight: np.ndarray  # (m,)


# --- Index per site ---


def index(view: SiteView, open_now: np.ndarray, outlook: Outlook) -> np.ndarray:
    """(n,) float32: higher = sooner, finite for open sites, -inf for others."""
    score = np.full(len(open_now), -np.inf, dtype=np.float32)
    for block in blocks(len(open_now)):
        rows = np.flatnonzero(open_now[block]) + block.start
        if len(rows):
            score[rows] = _index(view, rows, outlook)
    return score


def _index(view: SiteView, rows: np.ndarray, outlook: Outlook) -> np.ndarray:
    pace, remaining = _bounded(view, rows, outlook.trust)
    now = pace[0] / outlook.price[0]
    later = np.flatnonzero(outlook.times > 0)
    if len(later) < HOURS:
        pace = pace[later]
    room = pace * outlook.times[later, None]
    total = np.maximum(room.sum(axis=0), SLOWEST)
    tight = remaining / total
    found: np.ndarray = CRITICAL + np.minimum(tight, CRITICAL)
    if len(later):
        cost = outlook.price[later, None] / pace + outlook.delay[later, None]
        regret = np.minimum(dearest_used(cost, room, remaining) * now, HIGHEST) + TIE * np.minimum(tight, 1)
        found = np.where(remaining > total, found, regret)
    # Sites that cannot be crawled now come last, even if they are critical.
    found[now <= SLOWEST / outlook.price[0]] = 0
    return found


def dearest_used(cost: np.ndarray, room: np.ndarray, remaining: np.ndarray) -> np.ndarray:
    """(m,): cost of the dearest hour used when `remaining` fills the cheapest."""
    dearest: np.ndarray = cost.min(axis=0)
    more = np.flatnonzero((room * (cost <= dearest)).sum(axis=0) < remaining)
    if len(more):
        dearest[more] = _halved(cost[:, more], room[:, more], remaining[more], dearest[more])
    return dearest


def _halved(cost: np.ndarray, room: np.ndarray, remaining: np.ndarray, low: np.ndarray) -> np.ndarray:
    # Bisecting the logarithm of the cost is three times as fast as sorting 24 hours of each site.
    high = cost.max(axis=0)
    for _ in range(HALVINGS):
        middle = np.sqrt(low) * np.sqrt(high)
        enough = (room * (cost <= middle)).sum(axis=0) >= remaining
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle)
    dearest: np.ndarray = (cost * (cost <= high)).max(axis=0)
    return dearest


def nearly_best(score: np.ndarray, slots: int, running: np.ndarray, hysteresis: float) -> np.ndarray:
    """Per running row: whether its score is among the best `slots`, or at most `hysteresis` below the last of them."""
    going: np.ndarray = np.isfinite(score[running])
    if not len(running) or slots >= len(score):
        return going
    last = np.partition(score, len(score) - slots)[len(score) - slots] if slots else np.float32(np.inf)
    kept: np.ndarray = going & (score[running] >= last * (1 - hysteresis))
    return kept


# --- Shared by all sites: horizon, delays, prices ---


def sample(view: SiteView, open_now: np.ndarray, trust: float) -> Sample:
    """All open sites, or SAMPLE of them by the time they will take, so that the longest are included."""
    rows = np.flatnonzero(open_now & (view.pages_per_hour > 0) & (view.pace_cap > 0))
    weight = np.ones(len(rows), dtype=np.float32)
    if len(rows) > SAMPLE:
        rows, weight = _drawn(view, rows)
    pace, remaining = _bounded(view, rows, trust)
    # Sites that cannot end before FURTHEST say nothing about the horizon.
    ends = pace.mean(axis=0) * np.float32(FURTHEST) > remaining
    return Sample(pace[:, ends], remaining[ends], weight[ends])


def _drawn(view: SiteView, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Systematic sampling by slot-hours: the same view gives the same sample.
    fastest = np.minimum(view.pages_per_hour[rows], view.pace_cap[rows]).clip(SLOWEST, FASTEST)
    hours = (np.minimum(view.remaining[rows], LARGEST) / fastest).clip(SLOWEST, np.float32(FURTHEST))
    until = np.cumsum(hours, dtype=np.float64)
    step = until[-1] / SAMPLE
    taken = np.searchsorted(until, (np.arange(SAMPLE) + 0.5) * step).clip(max=len(rows) - 1)
    return rows[taken], (step / hours[taken]).astype(np.float32)


def horizon_of(view: SiteView, drawn: Sample, price: np.ndarray) -> float:
    """The fewest hours, after the present one, in which all remaining pages fit at these prices."""
    high = 1.0
    while high < FURTHEST and not _suffices(view, drawn, price, high):
        high *= 2
    low, high = (high / 2 if high > 1 else 0.0), min(high, FURTHEST)
    while high - low > max(FINEST, high * FINEST_SHARE):
        middle = (low + high) / 2
        if _suffices(view, drawn, price, middle):
            high = middle
        else:
            low = middle
    return high


def _suffices(view: SiteView, drawn: Sample, price: np.ndarray, hours: float) -> bool:
    times = _all_times(view, hours)
    if ((drawn.pace * times[:, None]).sum(axis=0) * np.float32(1.0001) < drawn.remaining).any():
        return False
    taken = slot_hours(drawn, times, price, np.zeros(HOURS, np.float32))
    return bool((taken @ drawn.weight) @ price <= max(1, view.slots) * (times @ price))


def slot_hours(drawn: Sample, times: np.ndarray, price: np.ndarray, delay: np.ndarray) -> np.ndarray:
    """(24, m): slot-hours of each site in each hour when its pages fill its cheapest hours."""
    room = drawn.pace * times[:, None]
    cost = price[:, None] / drawn.pace + delay[:, None]
    coming = times > 0
    dearest = dearest_used(cost[coming], room[coming], drawn.remaining)
    below, at = cost < dearest, cost == dearest
    rest = drawn.remaining - (room * below).sum(axis=0)
    share = (rest / np.maximum((room * at).sum(axis=0), SLOWEST)).clip(0, 1)
    taken: np.ndarray = (below + at * share) * times[:, None]
    return taken


def prices_of(view: SiteView, drawn: Sample, hours: float, delay: np.ndarray, *, scaled: bool) -> np.ndarray:
    """(24,) float32: prices at which each hour's demand equals its slots; `scaled` keeps their mean at 1."""
    times = _all_times(view, hours)
    slots = max(1, view.slots) * np.maximum(times, SLOWEST)
    price, total = np.ones(HOURS), np.zeros(HOURS)
    for turn in range(ROUNDS):
        wanted = slot_hours(drawn, times, price.astype(np.float32), delay) @ drawn.weight
        step = STEP * np.clip((wanted - slots) / slots, -1, 1) / np.sqrt(1 + turn / 20)
        price *= np.exp(np.where(times > 0, step, 0))
        if scaled:
            price /= (price @ times) / times.sum()
        if turn >= ROUNDS - AVERAGED:
            total += price
    return (total / AVERAGED).astype(np.float32)


def delays(hours: float) -> np.ndarray:
    """(24,) float32: mean lateness of each hour, 0 for now and 1 for the horizon."""
    first = np.arange(HOURS)
    last = first + np.maximum(0, np.ceil((hours - first) / HOURS) - 1) * HOURS
    late: np.ndarray = ((first + last) / 2 / max(1, hours)).astype(np.float32)
    return late


def mean_cost(drawn: Sample) -> np.float32:
    """Slot-hours of a page in its site's best hour, mean over pages."""
    pages = drawn.remaining * drawn.weight
    cost: np.float32 = (pages / drawn.pace.max(axis=0)).sum() / np.maximum(pages.sum(), SLOWEST)
    return cost


def times_until(hours: float) -> np.ndarray:
    """(24,) float32: occurrences of each hour within `hours` after the present one; fractions count."""
    days, rest = divmod(hours, HOURS)
    times: np.ndarray = days + np.clip(rest - np.arange(HOURS), 0.0, 1.0)
    return np.roll(times, 1).astype(np.float32)


def _all_times(view: SiteView, hours: float) -> np.ndarray:
    # With the rest of the present hour.
    times = times_until(hours)
    times[0] += view.hour_left
    return times


def _bounded(view: SiteView, rows: np.ndarray, trust: float) -> tuple[np.ndarray, np.ndarray]:
    """Limited pace and pages left; later hours are moved towards the site's mean by `trust`."""
    pace = pace_by_hour(view, rows)
    np.clip(pace, SLOWEST, FASTEST, out=pace)
    if trust < 1:
        later, mean = pace[1:], pace.mean(axis=0)
        later *= np.float32(trust)
        later += np.float32(1 - trust) * mean
    return pace, np.minimum(view.remaining[rows], LARGEST)
