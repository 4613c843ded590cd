"""benchmarks/hours.py in short form, and its parts: the paced web, what a log says, the simulator as it uses it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import hours
from benchmarks.simulator.crawl import crawl
from benchmarks.simulator.instances import EXPONENT, FULL, REFERENCE, Instance
from benchmarks.simulator.web import Hit, Paced, PacedWeb, finished_at
from crawler.schedulers import SiteView

ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS = 110


def test_real_crawls_fetch_all_and_nothing_twice() -> None:
    command = [sys.executable, "benchmarks/hours.py", "--quick", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert ended.returncode == 0, ended.stderr[-3000:]
    (found,) = json.loads(ended.stdout)["rounds"]
    assert list(found) == hours.QUICK["only"]
    for figures in found.values():
        assert figures["lost"] == figures["twice"] == 0
        assert figures["leases"] >= 8
        assert 0.3 < figures["hours"] / figures["simulated"] < 5
        assert 0 < figures["optimum"] < 24


def test_lost_and_repeated_pages_are_seen() -> None:
    good = hours.Figures(9.0, 9.0, 0.1, 8.0, 9, 9, 0.1, 0.02, 0.01, 1.0, 0.5, 90, 0, 0)
    assert hours.faults_of([{"regret": good}]) == []
    assert len(hours.faults_of([{"regret": good._replace(lost=1), "early": good._replace(twice=1)}])) == 2


def test_goals_are_told_for_what_ran() -> None:
    good = hours.Figures(9.0, 9.0, 0.1, 8.0, 9, 9, 0.1, 0.02, 0.01, 1.0, 0.5, 90, 0, 0)
    found = {"random": good, "hybrid": good, "regret": good._replace(hours=8.5), "regret, no profile": good}
    goals = {goal.name: goal for goal in hours.goals_of([found])}
    assert goals["regret: real / simulated"].met
    assert not goals["regret below hybrid"].met
    assert goals["regret without a profile / random"].met
    assert "regret, no profile: real / simulated" not in goals


# --- the web ---


def test_a_page_takes_its_share_of_each_hour() -> None:
    pace = [2.0, 0.5, 1.0] + [1.0] * 21
    assert finished_at(pace, 10.0, 100, 1000.0) == pytest.approx(1005)
    # A fifth of it before 1010, half of it until 1020.
    assert finished_at(pace, 10.0, 100, 1009.0) == pytest.approx(1023)
    assert finished_at(pace, 10.0, 76, 1000.0) == pytest.approx(1005), "a day later"


def test_sites_answer_at_their_pace_and_are_found_whole() -> None:
    shape = Paced([4, 2], [[20.0] * 24, [40.0] * 24], hour_seconds=1.0)
    with PacedWeb(shape) as web:
        web.begin_with(int(time.time()))
        for path in ("/robots.txt", "/", "/1", "/2", "/3"):
            with urllib.request.urlopen(web.origin(0) + path, timeout=10) as answer:
                body = answer.read().decode()
            assert path != "/" or all(f"'/{number}'" in body for number in (1, 2, 3))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(web.origin(1) + "/2", timeout=10)
        log = web.log()
    assert [hit.path for hit in log][:5] == ["/robots.txt", "/", "/1", "/2", "/3"]
    assert log[4].answered - log[1].asked == pytest.approx(4 / 20, abs=0.15)
    assert web.declared().total() == 6


def test_a_log_tells_leases_and_what_slots_lost_between_them() -> None:
    """Two slots; the second has no site from 4 to 5, while the third site waits."""
    hits = [
        *(Hit(0, "/robots.txt", 0, 0), Hit(0, "/", 0, 8)),
        *(Hit(1, "/robots.txt", 0, 0), Hit(1, "/", 0, 2), Hit(1, "/1", 2, 4)),
        *(Hit(2, "/robots.txt", 5, 5), Hit(2, "/", 5, 6)),
    ]
    spans = hours.leases_of(hits)
    assert sorted(spans) == [(0, 4), (0, 8), (5, 6)]
    assert hours.idle_of(spans, 2) == (1, 1)


# --- the simulator, as it is used here ---


class Watching:
    """Rows in their order; keeps what it was shown."""

    def __init__(self) -> None:
        self.views: list[SiteView] = []

    def score(self, view: SiteView) -> np.ndarray:
        self.views.append(view)
        return np.where(
            view.remaining > 0, -np.arange(len(view.ready), dtype=np.float32), np.float32(-np.inf)
        )

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:
        return np.ones(len(running), bool)


def instance(load: list[float], size: list[float], **changed: object) -> Instance:
    """Sites with such loads in the first hours, and the last of them from then on."""
    days = np.array([[*load, *[load[-1]] * (24 - len(load))]] * len(size))
    case = replace(REFERENCE, sites=len(size), slots=1, pace=1.0, **changed)  # type: ignore[arg-type]
    return Instance(case, days, np.rint(days * FULL).astype(np.uint8), np.array(size), [[] for _ in size])


def test_a_simulated_crawl_may_begin_within_an_hour() -> None:
    quarter = 1 - 0.25 ** (1 / EXPONENT)
    policy = Watching()
    done = crawl(instance([0.0, 0.0, quarter], [1.0]), policy, start=1.5)
    assert done.finish == pytest.approx(0.5 + 2.0)
    assert done.pages == pytest.approx([0, 0.5, 0.25, 0.25])
    assert done.page_time == pytest.approx(0.5 * 0.25 + 0.5 * 1.5)
    assert [view.hour_left for view in policy.views] == [0.5, 1, 1]


def test_sizes_may_be_known_from_a_sites_first_page_on() -> None:
    policy = Watching()
    crawl(instance([0.0], [1.5, 0.2, 0.8], sizes_met=True), policy)
    assert policy.views[0].remaining == pytest.approx([1, 1, 1])
    assert policy.views[1].remaining == pytest.approx([0.5, 1.5, 1.5])
