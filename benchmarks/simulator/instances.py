"""Crawls to simulate: sites with sizes and loads by hour, and what a scheduler is told of them.

The reference instance: 100 sites and 4 slots; a quarter each of paper 000's four kinds of day (always idle, always
busy, swinging above and swinging down to idle); sizes 0.1 to 1.9, mean 1; a slot's pace is PACE * (1 - load) ** 1.5,
which is set so that the order of listing takes 26 hours. The paper gives kinds, number and 4 slots; what it leaves
open (law, sizes, phases) was chosen so that its three results come out. Everything of an instance follows from its
seed; cases that differ in one thing draw the rest alike, so they can be compared in pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

HOURS = 24
EXPONENT = 1.5
# Pages (in mean sizes) of a slot-hour at load 0: the order of listing then takes 26 h, the paper's figure.
PACE = 6.109
PACE_OF_SHARED_NIGHT = 5.499
FULL, LEAST_LOAD, MOST_LOAD = 254, 0.02, 0.97
NOISE = 0.02
# Least load and swing of the four kinds of day, each from .. to.
KINDS = (
    ((0.05, 0.25), (0.00, 0.05)),
    ((0.65, 0.85), (0.00, 0.05)),
    ((0.45, 0.60), (0.30, 0.38)),
    ((0.05, 0.20), (0.55, 0.75)),
)
FLAT, SWINGING = (0, 1), (2, 3)
OUTAGE_HOURS = 3.0


@dataclass(frozen=True)
class Case:
    """What an instance is drawn from; the defaults are the reference instance's."""

    sites: int = 100
    slots: int = 4
    sizes: str = "uniform"  # "equal", "exponential", "lognormal", "pareto"
    kinds: tuple[int, ...] = (0, 1, 2, 3)
    swing: float = 1.0  # share of the reference's
    phase_hours: float | None = (
        None  # spread of the busiest hours around one of them; None: anywhere in the day
    )
    noise: float = NOISE  # of each hour's load, known to schedulers
    pace: float = PACE
    cap: float = np.inf  # of the pace, as a share of the best one
    error: float = 0.0  # spread of what schedulers are told of an hour's load
    phase_error_hours: float = 0.0  # spread of when they are told it is
    harmonics: int | None = None  # what they are told is smoothed to so many waves a day; None: not
    sizes_known: bool = True
    sizes_met: bool = False  # a site's size is known from its first page on, and not before
    assumed_exponent: float = EXPONENT
    outages_per_hour: float = 0.0  # of each site
    patience_hours: float = np.inf  # after which a slot leaves a site that is out


@dataclass(frozen=True)
class Instance:
    """One crawl: what is so, and what schedulers are told."""

    case: Case
    load: np.ndarray  # (n, 24), 0 .. 1: what is so
    told: np.ndarray  # (n, 24) uint8: what schedulers see
    size: np.ndarray  # (n,)
    outages: list[list[tuple[float, float]]] = field(default_factory=list)  # per site, in order of time

    @property
    def pace(self) -> np.ndarray:
        """(n, 24): pages of a slot-hour while the site is up."""
        case = self.case
        return np.minimum(case.cap * case.pace, case.pace * (1 - self.load) ** EXPONENT)


def draw(case: Case, seed: int) -> Instance:
    """The instance of this case and seed."""
    rng = np.random.default_rng(seed)
    kind = np.array(case.kinds)[np.arange(case.sites) * len(case.kinds) // case.sites]
    rng.shuffle(kind)
    least, swing = (_between(rng, np.array([KINDS[k][part] for k in kind])) for part in (0, 1))
    peak = _peaks(rng, case)
    size = _sizes(rng, case)
    noise = rng.normal(0, 1, (case.sites, HOURS))
    error = rng.normal(0, 1, (case.sites, HOURS))
    shift = rng.normal(0, 1, case.sites) * case.phase_error_hours
    swing = swing * case.swing
    load = _day(least, swing, peak) + noise * case.noise
    seen = _day(least, swing, peak + shift) + noise * case.noise if case.phase_error_hours else load
    told = seen.clip(LEAST_LOAD, MOST_LOAD) + error * case.error
    if case.harmonics is not None:
        told = smoothed(told, case.harmonics)
    told8 = np.rint(told.clip(LEAST_LOAD, MOST_LOAD) * FULL).astype(np.uint8)
    outages = [_outages(rng, case) for _ in range(case.sites)]
    return Instance(case, load.clip(LEAST_LOAD, MOST_LOAD), told8, size, outages)


def _between(rng: np.random.Generator, bounds: np.ndarray) -> np.ndarray:
    low, high = bounds.T
    return low + (high - low) * rng.random(len(bounds))


def _peaks(rng: np.random.Generator, case: Case) -> np.ndarray:
    anywhere = rng.uniform(0, HOURS, case.sites)
    if case.phase_hours is None:
        return anywhere
    return rng.uniform(0, HOURS) + rng.normal(0, case.phase_hours, case.sites)


def _sizes(rng: np.random.Generator, case: Case) -> np.ndarray:
    """Mean 1, whatever the shape."""
    place = rng.random(case.sites)
    drawn = rng.normal(0, 1, case.sites)
    sizes = {
        "uniform": 0.1 + 1.8 * place,
        "equal": np.ones(case.sites),
        "exponential": -np.log1p(-place),
        "lognormal": np.exp(drawn - 0.5),
        "pareto": (1 - place) ** (-1 / 1.5) / 3,
    }
    return sizes[case.sizes]


def _day(least: np.ndarray, swing: np.ndarray, peak: np.ndarray) -> np.ndarray:
    turn = 2 * np.pi * (np.arange(HOURS) - peak[:, None]) / HOURS
    return least[:, None] + swing[:, None] * (1 + np.cos(turn)) / 2


def smoothed(load: np.ndarray, harmonics: int) -> np.ndarray:
    """The day's mean and its slowest waves: what is left of a forecast that trusts no single hour."""
    waves = np.fft.rfft(load, axis=1)
    waves[:, harmonics + 1 :] = 0
    return np.fft.irfft(waves, HOURS, axis=1)


def _outages(rng: np.random.Generator, case: Case) -> list[tuple[float, float]]:
    """From the start to ten days on."""
    found: list[tuple[float, float]] = []
    if not case.outages_per_hour:
        return found
    at = rng.exponential(1 / case.outages_per_hour)
    while at < 10 * HOURS:
        length = rng.exponential(OUTAGE_HOURS)
        found.append((at, at + length))
        at += length + rng.exponential(1 / case.outages_per_hour)
    return found


REFERENCE = Case()
SHARED_NIGHT = replace(REFERENCE, phase_hours=3.0, pace=PACE_OF_SHARED_NIGHT)
