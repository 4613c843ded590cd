"""The planner: what a policy is shown, what is made of its answer, and one planner over a real queue."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from crawler import schedulers
from crawler.planning import planner as planning
from crawler.planning import site_view
from crawler.planning.planner import Planner, best_first, choose, probes_of, worth_probing
from crawler.planning.site_view import Hours
from crawler.queue.sites import SiteRecord
from crawler.schedulers import SiteView
from crawler.schedulers.law import FULL, HOURS, UNKNOWN
from tests.queue_driver import BASE, Driver, delivery, driver
from tests.servers import RunningServer

# Long enough that no test meets its change, unless it lets it come.
HOUR_SECONDS = 1e9


def hours_of(n: int, **changes: object) -> Hours:
    """Hours of n sites of which nothing is known."""
    made = Hours(
        np.full((n, HOURS), UNKNOWN, np.uint8),
        0.0,
        np.full(n, np.nan, np.float32),
        np.ones((n, HOURS), bool),
        np.zeros(n, bool),
        np.arange(n),
    )
    return made._replace(**changes)  # type: ignore[arg-type]


def record(site: str, state: str = "waiting", **changes: object) -> SiteRecord:
    return SiteRecord(site, state, False, None)._replace(**changes)


def open_of(*records: SiteRecord, **progress: tuple[int, int]) -> site_view.Prospects:
    return site_view.open_sites(records, progress)


def view_of(n: int, hours: Hours | None = None, **changes: object) -> SiteView:
    given = {"slots": 4, "hour_left": 1.0, "hour_seconds": 3600.0, "delay": 0.0, **changes}
    return site_view.view(
        open_of(*(record(f"s{i}") for i in range(n))),
        hours or hours_of(n),
        **given,  # type: ignore[arg-type]
    )


# --- what a policy is shown ---


def test_only_sites_that_may_be_worked_on_are_open() -> None:
    found = open_of(
        record("waits"),
        record("suspended", "suspended", known=9, done=4),
        record("runs", agent="one", work="site", known=2, done=1),
        record("rests", "later"),
        record("ended", "finished", known=7, done=7),
        record("never answered", "finished"),
        record("blocked", "blocked"),
        record("paused", paused=True),
        record("rechecked", agent="one", work="recheck"),
        runs=(20, 15),
    )
    assert found.names == ["waits", "suspended", "runs"]
    assert found.known.tolist() == [0, 9, 20]
    assert found.done.tolist() == [0, 4, 15]
    assert found.running.tolist() == [False, False, True]
    assert found.ended == (1, 7)


def test_sizes_are_drawn_to_the_mean_of_all_while_little_is_done() -> None:
    known = np.array([0, 1000, 100, 100], np.float32)
    done = np.array([0, 0, 0, 100], np.float32)
    left = site_view.remaining(known, done)
    assert left[0] == 400, "the mean of those that were looked into"
    assert left[1] == 1000, "never less than what the frontier has"
    assert left[2] == 400, "nothing is done of it yet"
    assert 60 < left[3] < 80, "most of what is known of it is done"
    assert site_view.remaining(known, done, most=50).max() == 50
    none = np.zeros(2, np.float32)
    assert site_view.remaining(none, none).tolist() == [100, 100]
    assert site_view.remaining(none, none, ended=site_view.Ended(4, 120)).tolist() == [30, 30]
    assert site_view.remaining(known, done, ended=site_view.Ended(1, 0))[0] == 300, "one more, without any"


def test_a_view_without_evidence_is_flat_and_means_something() -> None:
    view = view_of(3, delay=2.0)
    paces = schedulers.pace(view)
    assert np.ptp(paces) == 0
    assert paces[0, 0] == 1800, "by DOWNLOAD_DELAY"
    assert np.isfinite(schedulers.get("regret").score(view)).all()


def test_hours_outside_of_the_visiting_time_have_no_pace() -> None:
    is_open = np.ones((2, HOURS), bool)
    is_open[0, [0, 5]] = False
    view = view_of(2, hours_of(2, is_open=is_open, load=np.full((2, HOURS), 127, np.uint8), pace=100.0))
    assert view.ready.tolist() == [False, True]
    assert (schedulers.pace(view)[0] == 0).nonzero()[0].tolist() == [0, 5]
    coming = site_view.next_hour(view, is_open)
    assert coming.ready.tolist() == [True, True]
    assert (coming.load[0] == FULL).nonzero()[0].tolist() == [4, 23]


def test_a_site_whose_load_nobody_knows_has_the_mean_pace_of_the_others() -> None:
    load = np.full((3, HOURS), UNKNOWN, np.uint8)
    load[0], load[1] = 0, 127
    view = view_of(3, hours_of(3, load=load, pace=100.0))
    assert schedulers.pace(view)[:, 0] == pytest.approx([100, 50, 75], rel=0.01)


def test_a_shortened_hour_has_its_share_of_the_pages() -> None:
    view = view_of(
        1, hours_of(1, load=np.zeros((1, HOURS), np.uint8), pace=3600.0), hour_seconds=36.0, delay=2.0
    )
    assert schedulers.pace(view)[0, 0] == 18
    assert view.pages_per_hour[0] == 36


# --- what is made of its answer ---


class Fixed:
    """A policy that says what it is told to."""

    def __init__(self, score: Sequence[float], keep: Sequence[bool] = ()) -> None:
        self._score = np.array(score, np.float32)
        self._keep = dict(enumerate(keep))

    def score(self, view: SiteView) -> np.ndarray:
        return self._score

    def keep(self, view: SiteView, running: np.ndarray) -> np.ndarray:
        return np.array([self._keep.get(row, True) for row in running.tolist()], bool)


def chosen(
    score: Sequence[float], running: Sequence[bool], keep: Sequence[bool], slots: int
) -> tuple[list[int], list[int]]:
    found = choose(Fixed(score, keep), view_of(len(score), slots=slots), np.array(running))
    return found.line.tolist(), found.suspended.tolist()


def test_best_first_leaves_out_what_is_not_for_this_hour() -> None:
    assert best_first(np.array([1, -np.inf, 3, 3], np.float32)).tolist() == [2, 3, 0]


def test_who_gives_way_is_replaced_by_somebody_better() -> None:
    assert chosen([1, 5, 9, 7], [True, True, False, False], [False, True, True, True], 2) == ([2, 3, 0], [0])
    assert chosen([8, 5, 9, 7], [True, True, False, False], [False, False, True, True], 2) == ([2, 3, 1], [1])


def test_a_list_that_is_only_filled_up_suspends_nobody() -> None:
    policy = Fixed([1, 5, 9], [False, False, True])
    found = choose(policy, view_of(3, slots=2), np.array([True, True, False]), suspends=False)
    assert (found.line.tolist(), found.suspended.tolist()) == ([2], [])


def test_nobody_is_suspended_for_a_slot_that_would_stay_empty() -> None:
    assert chosen([1, 2, 3], [True, True, False], [False, False, True], 3) == ([2], [])
    assert chosen([1, 2], [True, True], [False, False], 2) == ([], [])


def test_what_runs_and_is_not_for_this_hour_is_left_to_its_agent() -> None:
    assert chosen([-np.inf, 2, 3], [True, False, False], [False, True, True], 2) == ([2, 1], [])


def test_only_large_sites_without_evidence_are_probed() -> None:
    seen = np.array([False, True, False, False])
    known = [
        record("a", known=9000),
        record("b", known=9000),
        record("c", known=50_000),
        record("d", known=9000),
    ]
    view = site_view.view(
        open_of(*known), hours_of(4), slots=50, hour_left=1.0, hour_seconds=3600.0, delay=1.0
    )
    assert worth_probing(view, np.array([False, False, False, True]), seen).tolist() == [2, 0]
    assert probes_of(view) == 360, "a hundredth of 50 slots at 3,600 pages, five pages each"


# --- over a real queue ---


@dataclass
class Known:
    """Loads that a test gives: site -> load of each of the 24 hours from the hour that is asked for."""

    load: dict[str, list[int]] = field(default_factory=dict)
    many_visits: int = 0

    def visits(self) -> int:
        return self.many_visits

    def hours(self, sites: Sequence[str], hour: int, hour_seconds: float) -> Hours:
        made = hours_of(len(sites))
        for row, site in enumerate(sites):
            made.load[row] = self.load.get(site, [UNKNOWN] * HOURS)
        return made._replace(listed=np.array([int(site.split("s")[-1].split(".")[0]) for site in sites]))


SITES = [f"https://s{number}.example" for number in range(8)]


def about(**changes: object) -> dict[str, object]:
    """What an agent says of itself."""
    return {
        "slots": 2,
        "scheduler": "sorted",
        "scheduler_options": {},
        "hour_seconds": HOUR_SECONDS,
        "delay_seconds": 0.0,
        **changes,
    }


class Hall:
    """A queue with agents, and planners over it."""

    def __init__(self, queue: Driver, loads: Known) -> None:
        self.queue = queue
        self.loads = loads
        self.planners: dict[str, Planner] = {}

    def look(self, name: str = "sun") -> float:
        """One look of a planner."""

        async def once() -> float:
            return await self.planners[name].look()

        if name not in self.planners:
            self.planners[name] = Planner(self.queue.queue, self.queue.options, self.loads, name)
        return float(self.queue._runner.run(once()))

    @property
    def hour(self) -> int:
        return int(self.queue.server_ms() / 1000 // HOUR_SECONDS)

    def line(self, ahead: int = 0) -> list[str]:
        return self.queue.names(f"hour:{self.hour + ahead}")


@pytest.fixture
def queue(valkey: RunningServer) -> Iterator[Driver]:
    with driver(valkey, site_scheduler="random") as made:
        yield made


@pytest.fixture
def hall(queue: Driver) -> Hall:
    """Eight sites, the later the idler now, the earlier the idler in the next hour; one agent."""
    now = {site: [80 - 10 * number, 10 + 10 * number] + [50] * 22 for number, site in enumerate(SITES)}
    queue.add(*SITES)
    queue.join("one", about())
    return Hall(queue, Known(now))


def test_the_hour_and_the_next_are_written_by_the_agents_policy(hall: Hall) -> None:
    assert hall.look() <= planning.LOOK_SECONDS
    assert hall.line() == SITES[::-1]
    assert hall.line(1) == SITES
    assert [one.site for one in hall.queue.take("one", 2, hour=hall.hour)] == [SITES[7], SITES[6]]


def test_nothing_is_planned_where_all_agents_do_other_works(hall: Hall) -> None:
    hall.queue.join("one", about(slots=0))
    assert hall.look() <= planning.LOOK_SECONDS
    assert hall.line() == []
    hall.queue.join("two", about())
    hall.look()
    assert hall.line() == SITES[::-1]


def test_the_last_agent_to_join_is_followed(hall: Hall) -> None:
    hall.look()
    hall.queue.join("two", about(scheduler="random"))
    hall.look()
    assert hall.line() == SITES


def test_a_policy_that_is_not_here_is_told_and_replaced(hall: Hall, caplog: pytest.LogCaptureFixture) -> None:
    hall.queue.join("two", about(scheduler="somewhere.else.Policy"))
    hall.look()
    assert hall.line() == SITES, "by the planner's own setting"
    assert "somewhere.else.Policy" in caplog.text


def test_what_runs_gives_way_at_the_change_of_the_hour(hall: Hall) -> None:
    """Hybrid's step 5: the next hour is busier for it than some later one."""
    queue = hall.queue
    queue.join("one", about(scheduler="hybrid"))
    hall.look()
    held = queue.take("one", 2, hour=hall.hour)
    for one in held:
        queue.send("one", delivery(one, 1))
    hall.planners.clear()  # as if its hour had changed
    queue.raw.hdel(BASE + "count", "planned")
    for one in held:
        hall.loads.load[one.site] = [200, 1] + [50] * 22
    hall.look()
    assert sorted(queue.renew("one", 0).suspend) == sorted(one.site for one in held)
    for one in held:
        queue.leave("one", one, "suspended")
    assert {one.site for one in queue.take("one", 2, hour=hall.hour)} == set(SITES[4:6])


def test_one_planner_plans_and_another_takes_over(hall: Hall) -> None:
    hall.look("sun")
    queue = hall.queue
    queue.raw.delete(BASE + f"hour:{hall.hour}")
    hall.look("moon")
    assert hall.line() == [], "sun plans"
    queue.raw.pexpire(BASE + "planner", 0)
    hall.look("moon")
    assert hall.line() == SITES[::-1]
    hall.look("sun")
    assert queue.raw.get(BASE + "planner").startswith(b"moon")


def test_who_takes_over_within_an_hour_suspends_and_probes_nothing_again(
    hall: Hall, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hall.look("sun")
    hall.queue.raw.pexpire(BASE + "planner", 0)
    hall.look("moon")
    assert "another planner made its plan" in caplog.text
    assert caplog.text.count("a new hour") == 1


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("low", "its list runs low"),
        ("found", "sites were found"),
        ("errors", "backed off"),
        ("grown", "pages to go"),
        ("learned", "twice as many visits are known"),
        ("learned little", ""),
        ("nothing", ""),
    ],
)
def test_the_plan_is_made_anew_where_it_no_longer_fits(
    hall: Hall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str, why: str
) -> None:
    monkeypatch.setattr(planning, "LOW_WATER", 0)
    monkeypatch.setattr(planning, "BUSY_SHARE", 1e9)
    caplog.set_level("INFO")
    queue = hall.queue
    first = queue.take_one("one")
    hall.look()
    caplog.clear()
    if what == "low":
        monkeypatch.setattr(planning, "LOW_WATER", 1)
        queue.raw.ltrim(BASE + f"hour:{hall.hour}", 0, 0)
    elif what == "found":
        queue.add("https://s8.example", "https://s9.example")
    elif what == "errors":
        queue.leave("one", first, "later", due_ms=queue.server_ms() + 60_000)
    elif what == "grown":
        queue.send("one", delivery(first, 1, known=5000, done=1))
    elif what == "learned":
        hall.loads.many_visits = 2
    elif what == "learned little":
        hall.loads.many_visits = 1
    hall.look()
    assert (why in caplog.text) if why else not caplog.text


def test_no_slot_idles_where_nobody_plans(hall: Hall) -> None:
    hall.look()
    queue = hall.queue
    queue.raw.delete(BASE + "planner", BASE + f"hour:{hall.hour}", BASE + f"hour:{hall.hour + 1}")
    first = queue.take("one", 8, hour=hall.hour)
    assert len(first) == 8
    queue.send("one", delivery(first[0], 1))
    queue.leave("one", first[0], "suspended")
    assert queue.take_one("one").site == first[0].site


def test_large_sites_without_evidence_are_probed_once_an_hour(hall: Hall) -> None:
    queue = hall.queue
    queue.join("one", about(slots=100, hour_seconds=3600.0))
    large = queue.take_one("one")
    queue.send("one", delivery(large, 1, known=90_000, done=1))
    queue.leave("one", large, "suspended", known=90_000, done=1)
    hour = int(queue.server_ms() / 1000 // 3600)
    hall.look()
    assert large.site in queue.names(f"probe:{hour}")
    (probed,) = [one for one in queue.take("one", 8, hour=hour) if one.probe and one.site == large.site]
    assert probed.suspended


def test_parked_sites_are_in_no_list_and_make_none_run_low(
    hall: Hall, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have their turn when a place comes free; listed, they would be parked again and again."""
    monkeypatch.setattr(planning, "BUSY_SHARE", 1e9)
    caplog.set_level("INFO")
    queue = hall.queue
    for one in queue.take("one", 8):
        queue.locate("one", one, "192.0.2.1")
        queue.leave("one", one, "parked", detail="192.0.2.1")
    taken = queue.take("one", 8)
    assert len(taken) == 4, "SITES_PER_ADDRESS"
    assert len(queue.parked()) == 4
    hall.look()
    assert hall.line() == []
    caplog.clear()
    hall.look()
    assert caplog.text == ""


def test_the_lock_outlasts_a_plan_that_takes_longer(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "LOCK_SECONDS", 1.0)
    known = hall.loads.hours

    def slow(sites: Sequence[str], hour: int, hour_seconds: float) -> Hours:
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            assert hall.queue.raw.get(BASE + "planner").startswith(b"sun")
        return known(sites, hour, hour_seconds)

    monkeypatch.setattr(hall.loads, "hours", slow)
    hall.look("sun")
    assert hall.line() == SITES[::-1]
