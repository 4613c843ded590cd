"""The policies one by one, against the plainest form of what each is said to do.

What all promise is in contracts/test_schedulers.py; what they make of a crawl is in tools/test_simulator.py.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crawler import schedulers
from crawler.schedulers import SchedulerError, SiteView, ahead, law
from tests.contracts.test_schedulers import UNKNOWN, frozen, view
from tests.costs import STEEP, growth, ratio

FULL = 254
# A score's cost in those of sorting the hours of every site; a loop over the sites in Python takes many times more.
TIMES_SORTED = 10


def day(*loads: int, rest: int = 100) -> list[int]:
    """24 loads that begin with these."""
    return [*loads, *[rest] * (24 - len(loads))]


def sites(*days: list[int], **changed: Any) -> SiteView:
    """All alike but for their days: 100 pages left, 100 pages an hour at load 0."""
    n = len(days)
    made = SiteView(
        load=np.array(days, np.uint8).reshape(n, 24),
        pages_per_hour=np.full(n, 100, np.float32),
        pace_cap=np.full(n, np.inf, np.float32),
        remaining=np.full(n, 100, np.float32),
        ready=np.ones(n, bool),
        sequence=np.arange(n, dtype=np.int64),
        slots=1,
        hour_left=1.0,
    )
    return frozen(replace(made, **changed))


def ranked(score: np.ndarray) -> list[int]:
    """Rows that have a score, best first."""
    order = np.argsort(-score, kind="stable")
    return [int(row) for row in order if np.isfinite(score[row])]


def known_loads(shown: SiteView, row: int, none_known: float) -> list[float]:
    """A site's day with its unknown hours filled, by hand."""
    known = [int(load) for load in shown.load[row] if load != UNKNOWN]
    mean = sum(known) / len(known) if known else none_known
    return [mean if load == UNKNOWN else float(load) for load in shown.load[row]]


# --- a view checks itself, so that no policy has to ---


@pytest.mark.parametrize("field", ["pages_per_hour", "pace_cap", "remaining"])
@pytest.mark.parametrize("value", [np.nan, -1, np.inf])
def test_a_view_refuses_a_number_that_means_nothing(field: str, value: float) -> None:
    numbers = np.ones(50, np.float32)
    numbers[7] = value
    if field == "pace_cap" and value == np.inf:
        assert view(50, **{field: numbers}).pace_cap[7] == np.inf, "no delay at all is a cap without end"
        return
    with pytest.raises(schedulers.SchedulerError, match=rf"SiteView\.{field} is -?(nan|inf|1\.0) at row 7"):
        view(50, **{field: numbers})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "load",
            np.zeros((50, 23), np.uint8),
            r"uint8 of shape \(50, 23\); expected an array of uint8 of shape",
        ),
        ("load", np.zeros((50, 24), np.float32), r"float32 of shape \(50, 24\)"),
        ("load", [[0] * 24] * 50, "list; expected an array of uint8"),
        ("pages_per_hour", np.ones(50), r"float64 of shape \(50,\); expected an array of float32"),
        ("pace_cap", np.ones((50, 1), np.float32), r"float32 of shape \(50, 1\)"),
        (
            "remaining",
            np.ones(49, np.float32),
            r"uint8 of shape \(50, 24\); expected .* \(49, 24\), for as many",
        ),
        ("remaining", np.float32(1), r"uint8 of shape \(50, 24\)"),
        ("remaining", None, r"uint8 of shape \(50, 24\)"),
        ("ready", np.ones(49, bool), r"bool of shape \(49,\); expected an array of bool of shape \(50,\)"),
        ("ready", np.ones(50, np.uint8), "uint8 of shape"),
        ("sequence", np.arange(50, dtype=np.float32), "float32 of shape .*; expected an array of int64"),
        ("hour_left", np.nan, "nan; expected a share of an hour"),
        ("hour_left", 1.5, "1.5; expected a share of an hour"),
        ("hour_left", "1", "'1'; expected a share of an hour"),
        ("slots", -1, "-1; expected an integer"),
        ("slots", 1.5, "1.5; expected an integer"),
        ("exponent", np.nan, "nan; expected a number above 0"),
        ("exponent", 0.0, "0.0; expected a number above 0"),
        ("exponent", np.inf, "inf; expected a number above 0"),
    ],
)
def test_a_view_refuses_what_is_not_of_its_kind(field: str, value: Any, words: str) -> None:
    wrong = "load" if field == "remaining" else field  # the others are as many as `remaining` has
    with pytest.raises(schedulers.SchedulerError, match=rf"SiteView\.{wrong} is {words}"):
        view(50, **{field: value})


# --- the law from load to pace ---


@pytest.mark.parametrize("exponent", [1.0, 1.5, 0.5, 2])
def test_pace_is_the_law(exponent: float) -> None:
    shown = view(300, exponent=exponent)
    found = schedulers.pace(shown)
    assert found.dtype == np.float32
    assert found.shape == (300, 24)
    for row in range(300):
        loads = np.array(known_loads(shown, row, none_known=0))
        wanted = np.minimum(
            shown.pace_cap[row], shown.pages_per_hour[row] * (1 - loads / FULL) ** float(exponent)
        )
        np.testing.assert_allclose(found[row], wanted, rtol=2e-5, atol=1e-3)


def test_a_site_nothing_is_known_of_is_flat() -> None:
    shown = sites([UNKNOWN] * 24, day(UNKNOWN, 0, rest=UNKNOWN), day(UNKNOWN, 0, rest=254))
    found = schedulers.pace(shown)
    np.testing.assert_array_equal(found[0], 100)
    np.testing.assert_array_equal(found[1], 100)
    assert found[2][0] == pytest.approx(100 / 23, rel=1e-4)


@pytest.mark.parametrize(
    "rows", [slice(3, 9), np.array([5, 1, 5]), slice(0, 0)], ids=["slice", "rows", "none"]
)
def test_pace_of_some_rows_is_that_part_of_all(rows: slice | np.ndarray) -> None:
    shown = view(30)
    np.testing.assert_array_equal(schedulers.pace(shown, rows), schedulers.pace(shown)[rows])


# --- random and sorted ---


def test_random_is_the_order_of_listing() -> None:
    shown = view(500)
    wanted = [row for row in np.argsort(shown.sequence) if shown.ready[row] and shown.remaining[row] > 0]
    assert ranked(schedulers.get("random").score(shown)) == wanted


def test_a_shuffled_site_keeps_its_place_when_others_come() -> None:
    shown = view(400)
    some = np.arange(0, 400, 3)
    part = SiteView(**{k: v[some] if isinstance(v, np.ndarray) else v for k, v in vars(shown).items()})
    policy = schedulers.get("random", seed=5)
    np.testing.assert_array_equal(policy.score(shown)[some], policy.score(part))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**70])
def test_shuffling_is_even(seed: int) -> None:
    """Each tenth of the order holds about a tenth of any stretch of the listing."""
    n = 20_000
    shown = view(
        n, ready=np.ones(n, bool), remaining=np.ones(n, np.float32), sequence=np.arange(n, dtype=np.int64)
    )
    order = np.argsort(-schedulers.get("random", seed=seed).score(shown))
    counts = np.bincount(order[: n // 10] // (n // 10), minlength=10)
    assert counts.sum() == n // 10
    assert np.abs(counts - n / 100).max() < 60


def test_sorted_is_ascending_load_of_this_hour() -> None:
    shown = view(500)
    rows = [row for row in range(500) if shown.ready[row] and shown.remaining[row] > 0]
    now = {row: round(known_loads(shown, row, none_known=127)[0]) for row in rows}
    wanted = sorted(rows, key=lambda row: (now[row], shown.sequence[row]))
    assert ranked(schedulers.get("sorted").score(shown)) == wanted


# --- hybrid ---


def test_hybrid_is_the_papers_column() -> None:
    """Step 2: sites whose least load is in this hour, by load. Step 3: all others behind them, by load."""
    shown = view(800)
    rows = [row for row in range(800) if shown.ready[row] and shown.remaining[row] > 0]
    days = {row: known_loads(shown, row, none_known=127) for row in rows}
    best = {row for row in rows if days[row][0] == min(days[row]) < max(days[row])}
    assert 10 < len(best) < 200
    wanted = sorted(rows, key=lambda row: (row not in best, round(days[row][0]), shown.sequence[row]))
    assert ranked(schedulers.get("hybrid").score(shown)) == wanted


def test_a_site_to_which_all_hours_are_alike_has_no_best_one() -> None:
    flat, best, unknown, worse = day(20, rest=20), day(60), [UNKNOWN] * 24, day(120)
    shown = sites(flat, best, unknown, worse, day(30, UNKNOWN, rest=30))
    assert ranked(schedulers.get("hybrid").score(shown)) == [1, 0, 4, 3, 2]


@pytest.mark.parametrize("reading", ["none", "next", "min", "mean"])
def test_hybrid_suspends_as_step_5_is_read(reading: str) -> None:
    shown = view(400)
    kept = schedulers.get("hybrid", keep=reading).keep(shown, np.arange(400))
    compared = {"none": lambda later: np.inf, "next": lambda later: later[0], "min": min, "mean": np.mean}
    for row in range(400):
        loads = known_loads(shown, row, none_known=127)
        wanted = shown.ready[row] and shown.remaining[row] > 0
        wanted &= bool(loads[0] <= compared[reading](loads[1:]) + 1e-4)
        assert kept[row] == wanted, (row, loads)


def test_hybrid_reads_step_5_as_min_unless_told() -> None:
    shown, running = view(400), np.arange(400)
    default = schedulers.get("hybrid").keep(shown, running)
    np.testing.assert_array_equal(default, schedulers.get("hybrid", keep="min").keep(shown, running))
    assert (default != schedulers.get("hybrid", keep="next").keep(shown, running)).any()


# --- regret ---


def plain_index(shown: SiteView, row: int, horizon: float, trust: float) -> float:
    """The index of one site, hour by hour: pages into the cheapest hours after this one, until the horizon."""
    pace = schedulers.pace(shown)[row].astype(float)
    pace[1:] = trust * pace[1:] + (1 - trust) * pace.mean()
    hours = []
    at, hour = 0.0, 1
    while at < horizon:
        part = min(1.0, horizon - at)
        hours.append((pace[hour % 24], pace[hour % 24] * part))
        at, hour = at + part, hour + 1
    left = float(shown.remaining[row])
    total = sum(pages for _, pages in hours)
    if left > total:
        return float(ahead.CRITICAL) + min(left / total, float(ahead.CRITICAL))
    for speed, pages in sorted(hours, reverse=True):
        left -= pages
        if left <= 0:
            return float(pace[0] / speed) + float(ahead.TIE) * float(shown.remaining[row]) / total
    raise AssertionError("all fits, so it ends before")


@pytest.mark.parametrize("horizon", [0.5, 7.25, 23.0, 24.0, 40.5, 500.0])
@pytest.mark.parametrize("trust", [1.0, 0.5])
def test_regret_is_the_cost_of_waiting_over_the_cost_of_now(horizon: float, trust: float) -> None:
    n = 300
    rng = np.random.default_rng(3)
    shown = view(
        n,
        load=np.where(rng.random((n, 24)) < 0.1, UNKNOWN, rng.integers(0, 240, (n, 24))).astype(np.uint8),
        remaining=(rng.pareto(0.7, n) * 1000 + 1).astype(np.float32),
        ready=np.ones(n, bool),
    )
    policy = schedulers.get("regret", horizon_hours=horizon + shown.hour_left, trust=trust)
    found = policy.score(shown)
    wanted = np.array([plain_index(shown, row, horizon, trust) for row in range(n)])
    critical = wanted >= ahead.CRITICAL
    assert 0 < critical.sum() < n
    np.testing.assert_array_equal(found >= ahead.CRITICAL, critical)
    # Halving finds the cost to a thousandth of its range, and takes two hours that are nearer than that for one.
    np.testing.assert_allclose(found[~critical], wanted[~critical], rtol=0.02)
    np.testing.assert_allclose(found[critical], wanted[critical], rtol=1e-5)


def test_regret_takes_whose_good_hours_end_before_whose_come() -> None:
    ending, flat, coming = day(20, rest=200), day(20, rest=20), day(200, 20, 20, rest=200)
    shown = sites(coming, flat, ending)
    assert ranked(schedulers.get("regret", horizon_hours=12).score(shown)) == [2, 1, 0]


def test_what_cannot_wait_comes_first_the_tightest_before_others() -> None:
    days = [day(100)] * 3
    shown = sites(*days, remaining=np.array([100, 2000, 5000], np.float32))
    score = schedulers.get("regret", horizon_hours=10).score(shown)
    assert ranked(score) == [2, 1, 0]
    assert score[1] >= ahead.CRITICAL > score[0]


@pytest.mark.parametrize("name", ["regret", "early"])
def test_a_site_that_brings_nothing_comes_last(name: str) -> None:
    shown = sites(
        day(10),
        day(100),
        day(200),
        pages_per_hour=np.array([0, 100, 100], np.float32),
        remaining=np.array([1e9, 10, 10], np.float32),
    )
    assert ranked(schedulers.get(name).score(shown))[-1] == 0


@pytest.mark.parametrize("name", ["regret", "early"])
def test_a_running_site_goes_on_until_it_is_clearly_worse(name: str) -> None:
    shown = view(100, ready=np.ones(100, bool), remaining=np.full(100, 500, np.float32))
    running = np.arange(100)
    score = schedulers.get(name).score(shown)
    last = np.sort(score)[-shown.slots]
    for hysteresis in (0.0, 0.1, 0.5, 1.0):
        kept = schedulers.get(name, hysteresis=hysteresis).keep(shown, running)
        np.testing.assert_array_equal(kept, score >= last * (1 - hysteresis))


def test_all_go_on_where_there_are_slots_for_all() -> None:
    shown = view(20, ready=np.ones(20, bool), remaining=np.ones(20, np.float32), slots=20)
    assert schedulers.get("regret").keep(shown, np.arange(20)).all()


# --- the horizon and the prices ---


def test_the_horizon_is_when_all_can_be_done() -> None:
    """Flat sites: all slots busy until the end, or the longest one alone."""
    flat = [day(127, rest=127)] * 8
    for slots, remaining, wanted in ((2, 100, 8), (4, 100, 4), (100, 100, 2), (4, 10_000, 400), (8, 5, 0.1)):
        left = np.full(8, remaining, np.float32)
        assert horizon(sites(*flat, slots=slots, hour_left=0.0, remaining=left)) == about(wanted)
    left = np.array([100] * 7 + [1000], np.float32)
    assert horizon(sites(*flat, slots=4, hour_left=0.0, remaining=left)) == about(20)


def test_what_is_left_of_this_hour_counts() -> None:
    flat = [day(127, rest=127)] * 8
    for left in (0.0, 0.25, 1.0):
        assert horizon(sites(*flat, slots=2, hour_left=left)) == about(8 - left)


def about(hours: float) -> Any:
    """As exactly as a horizon is found."""
    return pytest.approx(hours, rel=0.01, abs=1 / 16)


def horizon(shown: SiteView) -> float:
    """Of these sites, all hours priced alike."""
    drawn = ahead.sample(shown, law.open_sites(shown), trust=1.0)
    return ahead.horizon_of(shown, drawn, np.ones(24, np.float32))


@pytest.mark.parametrize("spread", [1.0, 10.0])
def test_the_dearest_hour_used_is_found_by_halving_as_by_sorting(spread: float) -> None:
    """Costs that differ by some ten thousand times, and by a factor of three."""
    rng = np.random.default_rng(0)
    cost = np.exp(rng.uniform(0, spread, (24, 500))).astype(np.float32)
    room = rng.uniform(1, 10, (24, 500)).astype(np.float32)
    remaining = rng.uniform(0, room.sum(axis=0)).astype(np.float32)
    found = ahead.dearest_used(cost, room, remaining)
    for site in range(500):
        order = np.argsort(cost[:, site])
        used = np.searchsorted(np.cumsum(room[order, site]), remaining[site])
        assert found[site] == pytest.approx(cost[order[min(used, 23)], site], rel=0.012)


def test_lateness_is_told_from_now_to_the_horizon() -> None:
    np.testing.assert_allclose(ahead.delays(10)[:4], [0, 0.1, 0.2, 0.3], rtol=1e-6)
    np.testing.assert_allclose(ahead.delays(48)[:3], [12 / 48, 13 / 48, 14 / 48], rtol=1e-6)


def test_a_sample_stands_for_all() -> None:
    """Sizes with a heavy tail: the horizon of a twentieth of the sites is near that of all."""
    n = 20 * ahead.SAMPLE
    rng = np.random.default_rng(0)
    shown = view(
        n,
        ready=np.ones(n, bool),
        remaining=(100 * (rng.pareto(1.5, n) + 1)).astype(np.float32),
        pages_per_hour=rng.uniform(200, 1000, n).astype(np.float32),
        slots=n // 50,
    )
    everyone = np.ones(n, bool)
    price = np.ones(24, np.float32)
    drawn = ahead.sample(shown, everyone, trust=1.0)
    assert drawn.weight.sum() == pytest.approx(n, rel=0.05)
    pace, remaining = ahead._bounded(shown, np.arange(n), 1.0)
    whole = ahead.Sample(pace, remaining, np.ones(n, np.float32))
    sampled, exact = (ahead.horizon_of(shown, one, price) for one in (drawn, whole))
    assert sampled == pytest.approx(exact, rel=0.03)
    assert ahead.mean_cost(drawn) == pytest.approx(ahead.mean_cost(whole), rel=0.03)


def test_an_hour_that_all_want_is_dear() -> None:
    """Everybody's night is in three hours."""
    nights = [day(200, 200, 200, 10, 10, rest=200)] * 50
    shown = sites(*nights, slots=5, remaining=np.full(50, 60, np.float32))
    drawn, hours = ahead.sample(shown, law.open_sites(shown), trust=1.0), horizon(shown)
    price = ahead.prices_of(shown, drawn, hours, np.zeros(24, np.float32), scaled=True)
    assert price[3:5].min() > 1.5 * price[[0, 1, 2, 5]].max()
    times = ahead.times_until(hours) + np.eye(24)[0]
    assert price @ times == pytest.approx(times.sum(), rel=0.01)


def test_what_never_ends_does_not_put_off_the_others() -> None:
    """A site too large for a year, and one without any pace, leave the horizon to those that end."""
    shown = sites(
        *[day(127, rest=127)] * 4,
        remaining=np.array([1e12, 1e12, 100, 100], np.float32),
        pages_per_hour=np.array([100, 0, 100, 100], np.float32),
    )
    assert horizon(shown) < 10


# --- early ---


def test_early_takes_the_fast_pages_among_sites_to_which_all_hours_are_alike() -> None:
    flat = [day(50, rest=50)] * 3
    shown = sites(*flat, pages_per_hour=np.array([50, 400, 100], np.float32))
    assert ranked(schedulers.get("early").score(shown)) == [1, 2, 0]


def test_the_more_lateness_counts_the_more_of_the_fast_come_first() -> None:
    """The mean pace of the first ten, with rising weight."""
    n = 400
    shown = view(
        n,
        ready=np.ones(n, bool),
        remaining=np.full(n, 300, np.float32),
        pages_per_hour=np.linspace(50, 2000, n).astype(np.float32),
        load=np.full((n, 24), 100, np.uint8) + np.random.default_rng(0).integers(0, 60, (n, 24), np.uint8),
    )
    pace = schedulers.pace(shown)[:, 0]
    first = [
        pace[ranked(schedulers.get("early", weight=weight).score(shown))[:40]].mean()
        for weight in (0, 0.5, 5)
    ]
    assert first[0] < first[1] < first[2]


# --- options, the hour table, memory and time ---


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("hybrid", {"keep": "always"}, "keep is 'always'; expected one of none, next, min, mean"),
        ("regret", {"horizon_hours": -1}, "horizon_hours is -1; expected a number from 0 to 8784"),
        ("regret", {"trust": 1.5}, "trust is 1.5; expected a number from 0 to 1"),
        ("regret", {"hysteresis": float("nan")}, "hysteresis is nan; expected a number from 0 to 1"),
        ("early", {"weight": -2}, "weight is -2; expected a number from 0 to 1000"),
    ],
)
def test_a_wrong_option_is_told(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(SchedulerError, match=f"^{told}$"):
        schedulers.get(name, **options)


@pytest.mark.parametrize("name", schedulers.NAMES)
def test_the_hour_table_says_what_the_policy_says_in_each_hour(name: str) -> None:
    shown = view(120, hour_left=1.0)
    table = schedulers.hours(shown, name)
    assert len(table) == 24
    for hour, column in enumerate(table):
        then = replace(shown, load=np.roll(shown.load, -hour, axis=1))
        assert column == ranked(schedulers.get(name).score(then))


def test_the_hour_table_is_the_papers_and_may_be_cut() -> None:
    """Three servers, each in its best hour at the head of that column; plain numbers throughout."""
    shown = sites(day(90, 10), day(80, 90, 5), day(70, 60, 90, rest=95))
    table = schedulers.hours(shown, top=2)
    assert table[:3] == [[2, 1], [0, 2], [1, 2]]
    assert {type(row) for column in table for row in column} == {int}
    assert schedulers.hours(shown, keep="none") == schedulers.hours(shown)


@pytest.mark.parametrize("name", schedulers.NAMES)
def test_a_score_takes_little_memory_and_time(name: str) -> None:
    """A tenth of the goal's sites. What it takes on a machine of its own is in benchmarks/README.md."""
    n = 100_000
    shown, fewer, policy = view(n, slots=100), view(n // 4, slots=25), schedulers.get(name)
    assert growth(policy.score, shown, fewer) < STEEP
    assert (
        ratio(lambda: policy.score(shown), lambda: np.sort(shown.load, axis=1), TIMES_SORTED) < TIMES_SORTED
    )
    tracemalloc.start()
    policy.score(shown)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 48 * n + 25_000_000
