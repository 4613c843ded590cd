"""How long to wait for a site: what fails at each limit, what waiting costs, and what limits that adapt are worth.

    python benchmarks/timeouts.py [--documents 150000] [--seeds 3] [--json]

Two parts, both in simulated time. The curves of paper 001 (figures 4.1 to 4.3): how many of so many documents fail in
each stage, by its limit. Then crawls: sites are walked page by page as an agent walks them (robots.txt first, MAX_TRIES
turns a page, a connection kept for some pages), with fixed limits and with those of crawler/fetch/timeouts.py, the very
object that agents have. The same times are drawn for each rule, for each try of each page. Figures: slot-seconds a URL,
and the share of the loadable pages that are loaded. Loadable is what would come within 180 s, the system's own limit.

Exit code 1: limits that adapt lose more than 0.1 % of what the fixed ones of the settings load.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crawler.agent.frontier import Frontier  # noqa: E402
from crawler.fetch.errors import BodyTimeoutError, ConnectTimeoutError, HeadTimeoutError  # noqa: E402
from crawler.fetch.timeouts import AdaptiveTimeouts, Least, Limit, Limits, SiteTimeouts, taken_in  # noqa: E402  # noqa: E402
from settings import base  # noqa: E402

STAGES = ("connect", "head", "body")
ERRORS = (ConnectTimeoutError, HeadTimeoutError, BodyTimeoutError)
ADAPTIVE = "adaptive"
PAPER = (base.CONNECT_TIMEOUT_SECONDS, base.HEAD_TIMEOUT_SECONDS, base.BODY_TIMEOUT_SECONDS)
# Limits of the curves, in seconds.
SHOWN = (1, 2, 3, 5, 7, 10, 15, 20, 30)
# A system's own limit: what takes longer is no page.
ENDLESS = 180.0
# Share of the documents that fail at 3 s and at the paper's limit, which fixes a lognormal curve. Of connecting the
# first is told (3,000 of 150,000) and the second is where the curve is flat; bodies fail twice as often as heads.
AT_3_SECONDS = (0.02, 0.007, 0.014)
AT_THE_KNEE = 0.0002
# Documents of dead servers, in every curve: the level at which it flattens.
DEAD_DOCUMENTS = 0.002
# Limits that a crawl is run with, beside those that adapt.
FIXED = ((2.0, 2.0, 4.0), (3.0, 3.0, 6.0), (5.0, 5.0, 10.0), PAPER, (30.0, 20.0, 40.0))
LEAST = Least(base.LEAST_CONNECT_SECONDS, base.LEAST_HEAD_SECONDS, base.LEAST_BODY_SECONDS)
MOST_LOSS = 0.001


@dataclass(frozen=True)
class Shape:
    """A web: how much of the spread lies between sites, how much in the page, and what is ill."""

    between: float = 0.6  # share of the variance of a stage's log time that is the site's own
    of_page: float = 0.2  # and the page's own, the same at each try; the rest is each try's
    dead: float = 0.0  # sites that never answer
    dying: float = 0.0  # sites that stop to answer half way
    hanging: float = 0.0  # pages of any site whose head never comes
    slow_hour: float = 1.0  # every fourth site takes so many times as long in its second half
    pages: int = 100  # of a site
    connects: float = 0.2  # share of requests that need a connection


SHAPES = {
    "sites differ": Shape(),
    "pages differ": Shape(between=0.2, of_page=0.6),
    "tries differ": Shape(between=0.1, of_page=0.1),
    "slow hours": Shape(slow_hour=8.0),
    "hanging pages": Shape(hanging=0.02),
    "dead sites": Shape(dead=0.2, dying=0.1, hanging=0.01),
}


class Site(NamedTuple):
    """One site's times: seconds by page, try and stage; 0.0 in the first: the connection is there."""

    robots: np.ndarray  # of stages
    pages: np.ndarray


class Walked(NamedTuple):
    """What came of a crawl."""

    urls: int
    loadable: int
    loaded: int
    requests: int
    slot_seconds: float

    @property
    def efficiency(self) -> float:
        """Share of the loadable pages that were loaded."""
        return self.loaded / self.loadable


class Row(NamedTuple):
    """One rule in one web, all seeds together."""

    web: str
    rule: str
    seconds_a_url: float
    efficiency: float
    requests_a_url: float


# --- Times ------------------------------------------------------------------------------------------------


def curve(stage: int) -> tuple[float, float]:
    """Mean and deviation of a stage's log time, by the two points of its curve."""
    at = NormalDist().inv_cdf
    low, high = at(1 - AT_3_SECONDS[stage]), at(1 - AT_THE_KNEE)
    deviation = log(PAPER[stage] / 3.0) / (high - low)
    return log(3.0) - low * deviation, deviation


def failures(documents: int, seed: int) -> dict[str, dict[int, int]]:
    """Documents that fail by stage and limit, each asked for once."""
    random = np.random.default_rng(seed)
    found = {}
    for stage, name in enumerate(STAGES):
        times = random.lognormal(*curve(stage), documents)
        times[random.random(documents) < DEAD_DOCUMENTS] = ENDLESS
        found[name] = {limit: int((times > limit).sum()) for limit in SHOWN}
    return found


def draw(shape: Shape, sites: int, seed: int) -> Iterator[Site]:
    """The sites of a web, one after the other."""
    random = np.random.default_rng(seed)
    means, deviations = np.array([curve(stage) for stage in range(len(STAGES))]).T
    rest = 1 - shape.between - shape.of_page
    size = (shape.pages + 1, base.MAX_TRIES, len(STAGES))
    for number in range(sites):
        logs = sqrt(shape.between) * random.standard_normal(len(STAGES))
        logs = logs + sqrt(shape.of_page) * random.standard_normal((size[0], 1, size[2]))
        logs = logs + sqrt(rest) * random.standard_normal(size)
        times = np.exp(means + deviations * logs)
        times[1:, :, 0][random.random(size[:2])[1:] >= shape.connects] = 0.0
        _make_ill(times, shape, number, random)
        yield Site(times[0, 0], times[1:])


def _make_ill(times: np.ndarray, shape: Shape, number: int, random: np.random.Generator) -> None:
    half = len(times) // 2
    fate = random.random()
    times[1:][random.random(len(times) - 1) < shape.hanging, :, 1] = ENDLESS
    if number % 4 == 0:
        times[half:] *= shape.slow_hour
    if fate < shape.dead:
        times[:, :, 0] = ENDLESS
    elif fate < shape.dead + shape.dying:
        times[half:, :, 0] = ENDLESS


# --- Crawls -----------------------------------------------------------------------------------------------


def limits_of(seconds: tuple[float, ...]) -> Limits:
    """Fixed limits."""
    connect, head, body = (Limit(one, stage) for one, stage in zip(seconds, STAGES, strict=True))
    return Limits(connect, head, body, header_bytes=1, header_fields=1, size=1)


def exchange(seconds: np.ndarray, limits: Limits, site: SiteTimeouts | None) -> tuple[bool, float]:
    """One request: whether it came, and for how long it held its slot; the patience hears of it as in an agent."""
    told = {"connect_s": None, "tls_s": 0.0, "reused": not seconds[0], "head_s": None, "body_s": None}
    held = 0.0
    late: Exception | None = None
    for stage, took, error in zip(STAGES, seconds.tolist(), ERRORS, strict=True):
        limit: float = getattr(limits, stage).seconds
        held += min(took, limit)
        if took > limit:
            late = error()
            break
        told[f"{stage}_s"] = took
    if site is not None:
        if late is not None:
            site.was_late(late)
        site.take_in(told)
    return late is None, held


def walk(site: Site, limits: Limits, timeouts: AdaptiveTimeouts | None) -> Walked:
    """One site from robots.txt on: without that it rests, and nothing of it is asked for."""
    own = None if timeouts is None else SiteTimeouts(timeouts)
    loadable = int((site.pages.max(axis=2).min(axis=1) < ENDLESS).sum())
    came, held = exchange(site.robots, limits, own)
    frontier, requests, loaded, now = Frontier(), 1, 0, 0.0
    frontier.add(map(str, range(len(site.pages) if came else 0)), 0)
    while (due := frontier.next_due(now)) is not None:
        now = due
        turn = frontier.take(now)
        assert turn is not None
        narrowed = limits if own is None else own.narrow(limits, turn.tries)
        came, seconds = exchange(site.pages[turn.number, turn.tries - 1], narrowed, own)
        requests, held, now = requests + 1, held + seconds, now + max(seconds, base.DOWNLOAD_DELAY)
        loaded += came
        if came or turn.tries == base.MAX_TRIES:
            frontier.finish(turn)
        else:
            frontier.set_back(turn, now + base.RETRY_DELAY_SECONDS * 2 ** (turn.tries - 1))
    return Walked(len(site.pages), loadable, loaded, requests, held)


def crawl(shape: Shape, sites: int, seed: int, seconds: tuple[float, ...], *, adaptive: bool) -> Walked:
    """All sites of a web by one agent."""
    timeouts = AdaptiveTimeouts(LEAST, base.TIMEOUT_PROBE_SHARE, base.MAX_TRIES) if adaptive else None
    limits = limits_of(seconds)
    walks = [walk(site, limits, timeouts) for site in draw(shape, sites, seed)]
    return Walked(*map(sum, zip(*walks, strict=True)))


def rows_of(web: str, sites: int, seeds: int) -> list[Row]:
    """Every rule in one web."""
    rules = {_told(seconds): (seconds, False) for seconds in FIXED} | {ADAPTIVE: (PAPER, True)}
    rows = []
    for rule, (seconds, adaptive) in rules.items():
        crawls = [crawl(SHAPES[web], sites, seed, seconds, adaptive=adaptive) for seed in range(seeds)]
        total = Walked(*map(sum, zip(*crawls, strict=True)))
        urls = total.urls
        rows.append(Row(web, rule, total.slot_seconds / urls, total.efficiency, total.requests / urls))
    return rows


def faults_of(rows: list[Row]) -> list[str]:
    """Webs in which limits that adapt lose what the settings' fixed ones load."""
    found = {(row.web, row.rule): row.efficiency for row in rows}
    losses = {web: found[web, _told(PAPER)] - found[web, ADAPTIVE] for web, rule in found if rule == ADAPTIVE}
    return [
        f"{web}: {loss:.3%} of the loadable pages are lost by limits that adapt; goal {MOST_LOSS:.1%}"
        for web, loss in losses.items()
        if loss > MOST_LOSS
    ]


def cost_of_a_page(pages: int = 20_000) -> float:
    """CPU-ms that limits and times take of a page, on sites of a hundred."""
    timeouts, limits, site = (
        AdaptiveTimeouts(LEAST, base.TIMEOUT_PROBE_SHARE, base.MAX_TRIES),
        limits_of(PAPER),
        None,
    )
    times = {"connect_s": 0.0, "tls_s": 0.0, "reused": True, "head_s": 0.1, "body_s": 0.01}
    started = time.process_time()
    for number in range(pages):
        if number % 100 == 0 or site is None:
            site = SiteTimeouts(timeouts)
        site.narrow(limits, 1)
        with taken_in(site, times):
            pass
    return (time.process_time() - started) / pages * 1000


# --- Told -------------------------------------------------------------------------------------------------


def _told(seconds: tuple[float, ...]) -> str:
    return " / ".join(f"{one:g}" for one in seconds)


def failures_table(found: dict[str, dict[int, int]]) -> str:
    """Failures by stage, as the paper's figures 4.1 to 4.3 have them."""
    lines = [f"{'failed at a limit of':<22}" + "".join(f"{limit:>8} s" for limit in SHOWN)]
    lines += [
        f"{stage:<22}" + "".join(f"{many:>10,}" for many in row.values()) for stage, row in found.items()
    ]
    return "\n".join(lines)


def rows_table(rows: list[Row]) -> str:
    """Slot-seconds against efficiency, web by web."""
    lines = [f"{'web':<16}{'limits, s':<16}{'lease-s a URL':>14}{'loaded':>10}{'requests':>10}"]
    lines += [
        f"{row.web:<16}{row.rule:<16}{row.seconds_a_url:>14.3f}{row.efficiency:>10.3%}{row.requests_a_url:>10.3f}"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Parse, simulate, print; 1 where pages are lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=150_000, help="of the curves (default 150,000)")
    parser.add_argument("--sites", type=int, default=500, help="of each web (default 500, of 100 pages each)")
    parser.add_argument("--seeds", type=int, default=3, help="worlds of each web (default 3)")
    parser.add_argument("--json", action="store_true", help="every figure, as JSON")
    given = parser.parse_args(arguments)
    failed = failures(given.documents, seed=0)
    rows = []
    for web in SHAPES:
        print(f"web: {web}", file=sys.stderr)
        rows += rows_of(web, given.sites, given.seeds)
    cost = cost_of_a_page()
    if given.json:
        figures = {"failures": failed, "rows": [row._asdict() for row in rows], "cpu_ms_a_page": cost}
        print(json.dumps(figures, indent=1))
    else:
        print(failures_table(failed), rows_table(rows), f"CPU: {cost:.4f} ms a page", sep="\n\n")
    faults = faults_of(rows)
    print("".join(f"{fault}\n" for fault in faults), file=sys.stderr, end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
