"""Pages that change, and a crawler that visits some of them in each period, for benchmarks/recrawl.py.

A world is drawn once by its seed, its changes too, so that all policies live through the same ones. Time goes in
periods of a minute. A host may be asked for one page in a period. All visits of a period cost no more than its budget
of slot seconds and what the period before left of its own; a page dearer than that is taken alone, and the next
periods are short of it. A visit finds out whether the page changed since the last one, and nothing else.

Freshness is the share of pages whose copy is the page; weighted: of importance. Age: minutes since the first change
that the copy has missed, 0 where it missed none. Staleness: periods since the last visit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

PERIOD = 60.0
HOURS = 24
PERIODS_A_DAY = 1440
# Each page would be visited once in so many periods, if all cost the same: paper 004's mean staleness, twice.
SWEEP = 472
# Periods between two looks at what is fresh.
LOOK = 5


@dataclass(frozen=True)
class Kind:
    """What kind of world."""

    pages: int = 3000
    hosts: int = 40
    days: int = 10
    measured_days: int = 5
    changes: float = 1.0  # of a page in a sweep, on average
    unit: bool = False  # every visit costs the same
    budget: float = 1.0  # share of what one visit a sweep costs
    signals: float = 0.0  # share of pages whose changes are signalled
    recall: float = 0.0  # of those, share of changes with a signal
    alarms: float = 0.0  # and false signals for each change


S1 = Kind(pages=6000, hosts=60, days=14, measured_days=7)
S2 = Kind(unit=True)
S3 = Kind(changes=5.0)
S4 = Kind(changes=0.2)
WORLDS = {"S1": S1, "S2": S2, "S3": S3, "S4": S4}


@dataclass(frozen=True)
class World:
    """One drawn world. Pages of a host are neighbours."""

    kind: Kind
    seed: int
    host: np.ndarray  # of each page
    size: np.ndarray  # bytes
    rate: np.ndarray  # changes a period
    weight: np.ndarray  # 1 on average
    pace: np.ndarray  # (24, hosts): seconds per byte
    last: np.ndarray  # last visit before the beginning, in periods, below 0
    budget: float  # seconds of slots in a period
    signals: np.ndarray  # bool: its changes are signalled

    @property
    def cost(self) -> np.ndarray:
        """Seconds of a slot for each page, mean over the day."""
        found: np.ndarray = self.size * self.pace.mean(axis=0)[self.host]
        return found


def draw(kind: Kind, seed: int) -> World:
    """The same for the same seed."""
    random = np.random.default_rng(seed)
    count = _zipf(kind.pages, kind.hosts)
    host = np.repeat(np.arange(kind.hosts), count)
    n = len(host)
    size = np.ones(n) if kind.unit else random.lognormal(np.log(30_000), 1.0, n)
    base = np.ones(kind.hosts) if kind.unit else 1e-5 * random.lognormal(0.0, 0.5, kind.hosts)
    swing = np.zeros(kind.hosts) if kind.unit else random.uniform(0.2, 0.9, kind.hosts)
    phase = random.uniform(0, HOURS, kind.hosts)
    hours = np.arange(HOURS)[:, None]
    pace = base * (1 + swing * np.sin(2 * np.pi * (hours + phase) / HOURS))
    rate = random.gamma(2.0, 0.5, kind.hosts)[host] * random.gamma(0.5, 2.0, n)
    rate *= kind.changes / SWEEP / rate.mean()
    weight = np.minimum(random.pareto(1.2, n), 200.0)
    world = World(
        kind=kind,
        seed=seed,
        host=host,
        size=size,
        rate=rate,
        weight=weight / weight.mean(),
        pace=pace,
        last=-random.uniform(0, SWEEP, n),
        budget=0.0,
        signals=random.random(n) < kind.signals,
    )
    return replace(world, budget=kind.budget * n * float(world.cost.mean()) / SWEEP)


class Policy(Protocol):
    """Who chooses. Times in seconds."""

    def choose(
        self, now: float, seconds_per_byte: Any, ready: Any = None, budget: float | None = None
    ) -> np.ndarray:
        """Pages, as crawler.recheck.Recrawl does; the worlds ask all hosts each time."""

    def visited(self, pages: Any, now: float, changed: Any) -> None:
        """Likewise."""

    def signalled(self, pages: Any, now: float) -> None:
        """Likewise."""


@dataclass
class Told:
    """What came of a run: means over what is measured, and freshness day by day."""

    fresh: float = 0.0
    weighted: float = 0.0
    age: float = 0.0
    stale: float = 0.0
    spent: float = 0.0  # share of the budget
    fresh_by_day: list[float] = field(default_factory=list)
    weighted_by_day: list[float] = field(default_factory=list)
    visits: np.ndarray | None = None  # of each page, in all


def run(world: World, policy: Policy) -> Told:
    """One policy through one world."""
    return _Run(world, policy).run()


class _Run:
    """The state of one."""

    def __init__(self, world: World, policy: Policy) -> None:
        self.world, self.policy = world, policy
        self.random = np.random.default_rng(world.seed + 1_000_000)
        self.last = world.last.copy()
        # The first change since the last visit; none: infinite.
        self.missed = self.last + self._until_change(np.arange(len(self.last)))
        self.missed[self.missed > 0] = np.inf
        self.reach = np.cumsum(world.rate)
        self.spent = 0.0
        self.rest = 0.0
        self.looks: list[tuple[float, float, float, float]] = []

    def run(self) -> Told:
        kind = self.world.kind
        visits = np.zeros(len(self.last), np.int64)
        for period in range(kind.days * PERIODS_A_DAY):
            self._change(period)
            pace = self.world.pace[period // 60 % HOURS]
            pages = self.policy.choose(period * PERIOD, pace, budget=self.world.budget + max(self.rest, 0.0))
            self.policy.visited(pages, period * PERIOD, self.missed[pages] <= period)
            spent = float((self.world.size[pages] * pace[self.world.host[pages]]).sum())
            self.rest = min(self.world.budget + self.rest - spent, self.world.budget)
            self.spent += spent
            self.last[pages] = period
            self.missed[pages] = np.inf
            visits[pages] += 1
            if period % LOOK == 0:
                self._look(period)
        return self._told(visits)

    def _change(self, period: int) -> None:
        """What changes in the period before this one."""
        changes = self.random.poisson(self.reach[-1])
        pages = np.searchsorted(self.reach, self.random.random(changes) * self.reach[-1])
        when = period - self.random.random(len(pages))
        np.minimum.at(self.missed, pages, when)
        if self.world.kind.signals:
            self._signal(period, pages)

    def _signal(self, period: int, changed: np.ndarray) -> None:
        kind = self.world.kind
        true = changed[self.random.random(len(changed)) < kind.recall]
        alarms = self.random.poisson(self.reach[-1] * kind.alarms)
        false = np.searchsorted(self.reach, self.random.random(alarms) * self.reach[-1])
        pages = np.concatenate([true, false])
        pages = pages[self.world.signals[pages]]
        if len(pages):
            self.policy.signalled(pages, period * PERIOD)

    def _until_change(self, pages: np.ndarray) -> np.ndarray:
        return self.random.exponential(1.0, len(pages)) / self.world.rate[pages]

    def _look(self, period: int) -> None:
        current = self.missed > period
        age = np.where(current, 0.0, period - self.missed)
        weight = self.world.weight
        self.looks.append(
            (
                float(current.mean()),
                float(weight[current].sum() / weight.sum()),
                float(age.mean()),
                float((period - self.last).mean()),
            )
        )

    def _told(self, visits: np.ndarray) -> Told:
        kind = self.world.kind
        looks = np.array(self.looks)
        measured = looks[(kind.days - kind.measured_days) * PERIODS_A_DAY // LOOK :].mean(axis=0)
        days = looks.reshape(kind.days, -1, 4).mean(axis=1)
        return Told(
            *(float(one) for one in measured),
            spent=self.spent / (self.world.budget * kind.days * PERIODS_A_DAY),
            fresh_by_day=days[:, 0].tolist(),
            weighted_by_day=days[:, 1].tolist(),
            visits=visits,
        )


def _zipf(pages: int, hosts: int) -> np.ndarray:
    """Pages of each host, the largest first, at least one each."""
    share = 1.0 / np.arange(1, hosts + 1)
    count = np.maximum((pages * share / share.sum()).astype(int), 1)
    count[0] += pages - count.sum()
    return count
