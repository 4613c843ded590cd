"""The arithmetic of recrawling against other ways to reckon it: integration, paper 004's own sums, simulation."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from crawler.recheck import Recrawl, RecrawlError, price, rates, signals, value
from crawler.recheck.candidates import best_first
from crawler.recheck.packing import PAGE_BYTES, UnreadableError, unpack

DAY = 86_400.0
MINUTE = 60.0
shapes = st.floats(0.05, 60)
times = st.floats(1e2, 1e8)
ages = st.floats(1.0, 1e8)


# --- what a visit is worth ---


@settings(deadline=None, max_examples=40)
@given(shapes, times, ages)
def test_current_is_the_mean_over_all_rates(a: float, b: float, age: float) -> None:
    """Of exp(-rate * age), the rate Gamma."""
    belief = stats.gamma(a, scale=1 / b)
    grid = belief.ppf((np.arange(4000) + 0.5) / 4000)
    assert value.current(a, b, age) == pytest.approx(np.exp(-grid * age).mean(), abs=5e-3)


@settings(deadline=None)
@given(shapes, times, st.floats(1e-3, 1e3))
def test_a_visits_value_is_its_integral(a: float, b: float, share: float) -> None:
    age = share * b

    end = math.log1p(share)

    def more(log: float) -> float:  # of 1 + u/b, which leaves no narrow peak at 0
        return b * math.exp(log) * (math.exp(-a * log) - math.exp(-a * end))

    wanted, error = integrate.quad(more, 0, end, limit=200)
    assert value.visit_value(a, b, age) == pytest.approx(wanted, rel=1e-4, abs=10 * error + 1e-9 * age)


@settings(deadline=None)  # the first call compiles
@given(shapes, times, st.floats(1e-6, 1e-3))
def test_a_young_pages_value_is_half_its_rate_times_its_ages_square(a: float, b: float, share: float) -> None:
    age = share * b / (a + 1)
    assert value.visit_value(a, b, age) == pytest.approx(a / b * age * age / 2, rel=5e-3)


@settings(deadline=None)
@given(shapes, times, st.floats(1e-6, 1e4))
def test_a_visits_value_is_below_its_bound(a: float, b: float, share: float) -> None:
    """And at least two thirds of it while the page has likely changed less than twice."""
    worth, most = value.visit_value(a, b, share * b), value.most(a, b, share * b)
    assert worth <= most * (1 + 1e-4)
    if share * (a + 1) < 2:
        assert most <= 1.54 * worth


def test_scores_of_neighbours_are_those_of_each_alone() -> None:
    """Where they are above 0: below, those of many are bounds."""
    random = np.random.default_rng(0)
    policy = Recrawl(
        np.repeat(np.arange(20), 50), random.lognormal(10, 1, 1000), last=-random.uniform(0, 5e5, 1000)
    )
    policy.visited(np.arange(0, 1000, 3), 0.0, random.random(334) < 0.5)
    policy.failed(np.arange(0, 1000, 50), 0.0)
    for dear in (0.0, 1.0, 1e3, 1e5):
        policy.price = dear
        together = policy.mode.score(policy.view(np.arange(1000), 3e5, 1e-4))
        alone = np.array([policy.mode.score(policy.view([one], 3e5, 1e-4))[0] for one in range(1000)])
        np.testing.assert_array_equal(together > 0, alone > 0)
        np.testing.assert_array_equal(together[alone > 0], alone[alone > 0])
        assert (together[alone <= 0] >= alone[alone <= 0] - 1e-3 * abs(alone[alone <= 0])).all()


def test_of_many_hosts_the_best_are_chosen_all_the_same() -> None:
    """Each choice looks at few of 60,000 hosts, those that were worth most at their turn."""
    random = np.random.default_rng(0)
    n, picks = 60_000, 200
    policy = Recrawl(
        np.arange(n), 1.0, random.random(n) * 2, last=-random.random(n) * 1e6, longest_seconds=None
    )
    for call in range(12):  # all have had their turn
        policy.choose(call * MINUTE, 1.0, budget=1e-9)
    chosen = policy.choose(12 * MINUTE, 1.0, budget=float(picks))
    score = policy.mode.score(policy.view(np.arange(n), 12 * MINUTE, 1.0))
    assert picks - 1 <= len(chosen) <= picks  # what the first call took over its budget is missing
    assert score[chosen].min() >= np.sort(score)[-int(1.1 * picks)]
    none = policy.choose(13 * MINUTE, 1.0, ready=np.zeros(n, bool), budget=float(picks))
    assert len(none) == 0
    few = policy.choose(13 * MINUTE, 1.0, ready=np.arange(1000, 1100), budget=float(picks))
    assert len(few) and set(few) <= set(range(1000, 1100))


def test_shape_one_is_no_gap() -> None:
    around = [value.visit_value(a, 1e4, 5e4) for a in (1 - 1e-9, 1.0, 1 + 1e-9)]
    assert around == pytest.approx([around[1]] * 3, rel=1e-6)


@pytest.mark.parametrize("a", [0.5, 0.9, 1.2, 7.0, 60.0])
def test_a_value_is_the_same_on_both_sides_of_where_it_is_reckoned_otherwise(a: float) -> None:
    x = math.expm1(value.APART / abs(1 - a))
    below, at, above = (value.visit_value(a, 1e4, 1e4 * x * (1 + step)) for step in (-1e-9, 0.0, 1e-9))
    assert below < at < above
    assert above / below == pytest.approx(1.0, abs=1e-7)


def test_the_best_come_first_and_of_equal_ones_the_earlier() -> None:
    random = np.random.default_rng(1)
    scores = [random.normal(0, 1e3, 5_000).round(0), random.normal(0, 1e-30, 50), np.zeros(9), np.zeros(0)]
    scores.append(np.array([0.0, -0.0, np.inf, -np.inf, 1e18, -1e18, -0.0, 0.0]))
    for score in (one.astype(np.float32) for one in scores):
        best = np.argsort(-score, kind="stable").tolist()
        assert best_first(score).tolist() == best
        assert best_first(score.astype(np.float64)).tolist() == best, (
            "a mode of somebody's own may give these"
        )


def test_hosts_of_many_scattered_pages_are_theirs() -> None:
    random = np.random.default_rng(1)
    host = random.integers(0, 300, 5_000)
    columns = Recrawl(host, 1.0)._columns
    pages = random.permutation(5_000)
    for some in (pages, pages[:10]):
        assert (columns.host_of(columns.rows_of(some)) == host[some]).all()


def test_a_pace_that_is_another_counts_at_once() -> None:
    policy = Recrawl([0, 1], 1e3, last=[0, 0], mode="freshness")
    policy.price = 1.0
    dear = [policy.mode.score(policy.view([0, 1], DAY, pace)) for pace in (1.0, 2.0, [1.0, 2.0], 1.0)]
    assert dear[1][0] < dear[0][0] == dear[2][0] == dear[3][0]
    assert dear[2][1] == dear[1][1]


@settings(deadline=None)  # the first call compiles
@given(shapes, times, ages, st.integers(0, 255), st.floats(0, 1), st.floats(0, 1e2))
def test_signals_age_a_page_and_silence_keeps_it_young(
    a: float, b: float, age: float, told: int, recall: float, false: float
) -> None:
    effective = value.effective_age(a, b, age, told, recall, false)
    assert math.isfinite(effective)
    assert effective >= (1 - recall) * age - 1e-6 * (age + b)
    if told == 0:
        assert effective <= age * (1 + 1e-9) + 1e-9 * b
    else:
        assert effective >= value.effective_age(a, b, age, told - 1, recall, false)
    assert value.effective_age(a, b, age, told, 0.0, false) == age


# --- what a visit tells ---


@settings(deadline=None)  # the first call compiles
@given(shapes, times, ages)
def test_an_unchanged_page_is_learned_exactly(a: float, b: float, age: float) -> None:
    """Gamma times exp(-rate * age) is Gamma."""
    assert rates.learned(a, b, age, False, math.nan) == pytest.approx((a, b + age))


@settings(deadline=None)  # the first call compiles
@given(st.floats(0.05, 59), times, ages, st.floats(0, 1))
def test_a_change_of_known_time_is_learned_exactly(a: float, b: float, age: float, share: float) -> None:
    """Gamma times rate * exp(-rate * since) is Gamma."""
    assume(a + 1 <= rates.MEMORY)
    assert rates.learned(a, b, age, True, share * age) == pytest.approx((a + 1, b + share * age))


@settings(deadline=None, max_examples=60)
@given(st.floats(0.2, 40), times, st.floats(1e-3, 1e3))
def test_a_change_some_time_has_the_moments_of_the_exact_posterior(a: float, b: float, share: float) -> None:
    """Gamma times (1 - exp(-rate * age)), integrated."""
    age = share * b

    def moment(power: int) -> float:
        # In units of 1/b; log rates, so that the peak at 0 of a small shape is no trouble.
        def inside(log_rate: float) -> float:
            x = math.exp(log_rate)
            return x ** (a + power) * math.exp(-x) * -math.expm1(-x * share)

        found: float = integrate.quad(
            inside, -60 / min(a, 1), math.log(a + 60 + 12 * math.sqrt(a)), limit=500
        )[0]
        return found

    total = moment(0)
    mean = moment(1) / total
    variance = moment(2) / total - mean * mean
    new_a, new_b = rates.learned(a, b, age, True, math.nan)
    if mean * mean / variance <= rates.MEMORY:
        assert new_a == pytest.approx(mean * mean / variance, rel=1e-3)
    assert new_a / new_b * b == pytest.approx(mean, rel=1e-3)


@settings(deadline=None)  # the first call compiles
@given(shapes, times, st.floats(0, 1e9), st.booleans(), st.floats(-1e9, 1e9))
def test_a_belief_stays_one(a: float, b: float, age: float, changed: bool, since: float) -> None:
    new_a, new_b = rates.learned(a, b, age, changed, since)
    assert 0 < new_a <= rates.MEMORY
    assert 0 < new_b < math.inf


def test_a_page_whose_habits_change_is_found_out() -> None:
    """Daily for two years, then never: within three months it is thought ten times as quiet."""
    a, b = 0.5, 0.5 * DAY
    for _ in range(700):
        a, b = rates.learned(a, b, DAY, True, math.nan)
    before = a / b
    for _ in range(90):
        a, b = rates.learned(a, b, 7 * DAY, False, math.nan)
    assert a / b < before / 10


@pytest.mark.parametrize("true", [1 / (100 * DAY), 1 / DAY, 1 / 600.0])
def test_the_mean_rate_is_found_from_first_visits(true: float) -> None:
    """From a guess that is off by up to a thousand, over pages of very different rates."""
    random = np.random.default_rng(5)
    n = 20_000
    rate = random.gamma(0.5, 2 * true, n)
    policy = Recrawl(np.arange(n) % 50, 1000, last=np.zeros(n))
    age = random.uniform(0.2, 2.0, n) / true
    for page in np.array_split(np.arange(n), 400):
        now = float(age[page].mean())
        policy.visited(page, now, random.random(len(page)) > np.exp(-rate[page] * now))
    assert policy.mean_rate == pytest.approx(true, rel=0.25)


def test_a_hosts_pages_are_thought_to_be_like_those_seen_of_it() -> None:
    random = np.random.default_rng(6)
    policy = Recrawl(np.repeat([0, 1], 1000), 1000, last=np.zeros(2000), mean_rate=1 / DAY)
    for pages in np.array_split(random.permutation(np.r_[0:500, 1000:1500]), 50):
        policy.visited(pages, DAY, (pages < 1000) & (random.random(len(pages)) < 0.9))
    believed = policy.view([999, 1999], DAY, 1.0).rate
    assert believed[0] > 5 * believed[1]


# --- signals ---


@pytest.mark.parametrize(("told", "false"), [(0.8, 0.2), (0.5, 1.0), (0.0, 2.0), (0.95, 0.05)])
def test_what_signals_are_worth_is_found_out(told: float, false: float) -> None:
    """Share of changes told, and false ones per change; pages are visited when half of them have changed."""
    random = np.random.default_rng(7)
    rate = math.log(2) / DAY
    seen = np.zeros((1, 4), np.float32)
    for _ in range(6000):
        changes = random.poisson(rate * DAY)
        heard = random.binomial(changes, told) + random.poisson(false * rate * DAY)
        signals.judge(seen, 0, heard, DAY, changes > 0, 50.0, 50.0 / rate)
    # Less than it is, by what shows where there is nothing to be found; never more.
    assert max(told - 0.25, 0.0) <= signals.recall(seen[0, 0], seen[0, 1]) <= told + 0.02
    assert signals.false_share(seen[0, 2], seen[0, 3]) == pytest.approx(false, rel=0.1, abs=0.02)


def test_a_host_is_believed_nothing_at_first() -> None:
    policy = Recrawl([0, 0], 1000, last=[0, 0])
    before = policy.mode.score(policy.view([0, 1], DAY, 1e-5))
    policy.signalled([0], DAY)
    np.testing.assert_array_equal(policy.mode.score(policy.view([0, 1], DAY, 1e-5)), before)


def test_a_signal_that_came_true_before_brings_its_page_first() -> None:
    random = np.random.default_rng(8)
    policy = Recrawl(np.zeros(50, int), 1000, last=np.zeros(50), mode="freshness")
    for day in range(1, 40):
        changed = random.random(50) < 0.3
        policy.signalled(np.flatnonzero(changed), day * DAY)
        policy.visited(np.arange(50), day * DAY, changed)
    policy.signalled([17], 39.5 * DAY)
    assert policy.choose(39.6 * DAY, 1e-5, budget=1.0)[0] == 17


# --- paper 004 ---


def paper(n: int, size: Any, last: Any, horizon: int = 1000, host: Any = None) -> Recrawl:
    """Times in its periods."""
    hosts = np.arange(n) if host is None else host
    return Recrawl(hosts, size, last=last, mode="paper", period_seconds=1.0, horizon_periods=horizon)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(1, 4), st.integers(3, 40))
def test_staleness_adds_up_as_the_paper_says(seed: int, n: int, m: int, periods: int) -> None:
    """Equation 4, for m pages a period: the sum at T is that at 0, plus T(n - m), minus what was picked."""
    random = np.random.default_rng(seed)
    age = random.integers(0, 50, n).astype(float)
    policy = paper(n, 1.0, -age, horizon=periods)
    begun, picked = age.sum(), 0.0
    for t in range(periods):
        chosen = policy.choose(t, 1.0, budget=float(m))
        assert len(chosen) == min(m, n)
        picked += (age[chosen]).sum()
        policy.visited(chosen, t, False)
        age[chosen] = -1.0  # the page visited in a period is 0 in the next
        policy._columns.rows.last[policy._columns.rows_of(chosen)] += 1
        age += 1
    assert age.sum() == pytest.approx(begun + periods * (n - min(m, n)) - picked)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 8), st.integers(2, 100))
def test_the_papers_rule_takes_the_m_best(seed: int, n: int, m: int, horizon: int) -> None:
    """The m largest of (T - t) * s - p * g, several servers, several threads."""
    random = np.random.default_rng(seed)
    age = random.integers(0, 1000, n).astype(float)
    size, pace = random.uniform(0.5, 1.0, n), random.uniform(0.5, 1.0, n)
    policy = paper(n, size, -age, horizon)
    chosen = policy.choose(0.0, pace, budget=float(m))
    score = horizon * age - size * pace
    cost = (size * pace)[np.argsort(-score, kind="stable")]
    sure = int((np.cumsum(cost) <= m).cumprod().sum())
    np.testing.assert_allclose(
        np.sort(score[chosen[:sure]]), np.sort(score)[len(score) - sure :], rtol=1e-5, atol=1e-3
    )


def test_equal_sizes_take_the_oldest_and_equal_ages_the_smallest() -> None:
    """One server, one thread: the paper's two special cases."""
    one_server = np.zeros(5, int)
    oldest = paper(5, 3.0, [-4, -9, -2, -7, -1], host=one_server)
    assert oldest.choose(0.0, 0.1, budget=1.0).tolist() == [1]
    smallest = paper(5, [5, 4, 1, 3, 2], -np.full(5, 6.0), host=one_server)
    assert smallest.choose(0.0, 0.1, budget=1.0).tolist() == [2]


def test_of_several_servers_the_quick_one_comes_first() -> None:
    """Equal ages: the least p * g. Equal sizes: the largest s - g, where the horizon is one period away."""
    equal_ages = paper(4, [2, 2, 1, 4], -np.full(4, 3.0))
    assert equal_ages.choose(0.0, [0.3, 0.2, 0.5, 0.05], budget=0.25).tolist() == [3]
    equal_sizes = paper(3, 1.0, [-5, -6, -7], horizon=1)
    assert equal_sizes.choose(0.0, [0.5, 2.6, 2.9], budget=1.0).tolist() == [0]


def test_with_a_horizon_far_away_it_is_round_robin() -> None:
    random = np.random.default_rng(3)
    size, last = random.lognormal(0, 1, 100), -random.permutation(100).astype(float) * 10
    chosen = {}
    for mode in ("paper", "round_robin"):
        policy = Recrawl(np.arange(100), size, last=last, mode=mode, period_seconds=1.0, horizon_periods=1e6)
        chosen[mode] = []
        for t in range(100):
            pages = policy.choose(t, 1e-3, budget=0.01)
            policy.visited(pages, t, False)
            chosen[mode].append(pages.tolist())
    assert chosen["paper"] == chosen["round_robin"]


@pytest.mark.parametrize("mode", ["paper", "round_robin", "staleness"])
def test_unit_costs_reach_the_papers_bound(mode: str) -> None:
    n, m = 200, 4
    policy = Recrawl(np.arange(n), 1.0, last=-np.arange(n) / m * MINUTE, mode=mode)
    last, looks = -np.arange(n) / m, []
    for t in range(400):
        pages = policy.choose(t * MINUTE, 1.0, budget=float(m))
        policy.visited(pages, t * MINUTE, False)
        last[pages] = t
        looks.append(float((t - last).mean()))
    assert np.mean(looks[200:]) == pytest.approx((n / m - 1) / 2, rel=0.01)


# --- what else is promised ---


def test_a_page_that_does_not_answer_waits_twice_as_long_each_time() -> None:
    policy = Recrawl([0, 0], 1000, last=[0, 0], mode="round_robin")
    for fails in range(1, 4):
        policy.failed([0], DAY)
        age = policy.view([0, 1], DAY, 1.0).age
        assert age.tolist() == [DAY / 2**fails, DAY]
    policy.visited([0], DAY, False)
    assert policy.view([0], 2 * DAY, 1.0).age[0] == DAY


def test_the_longest_interval_is_kept_whatever_a_page_is_worth() -> None:
    policy = Recrawl(
        np.zeros(20, int), 1e6, np.r_[0.0, np.ones(19) * 100], last=np.zeros(20), mode="importance"
    )
    seen = set()
    for hour in range(24 * 31):
        pages = policy.choose(hour * 3600.0, 1e-5, budget=20.0)
        policy.visited(pages, hour * 3600.0, pages > 0)
        seen |= set(pages.tolist())
        if hour < 24 * 29:
            assert 0 not in seen, "a page without importance came before its interval was over"
    assert 0 in seen


def test_pages_that_answer_conditional_requests_cost_less_when_they_are_quiet() -> None:
    policy = Recrawl([0, 1], 1e6, last=[0, 0], mode="freshness", conditional=[0.0, 1.0])
    policy.price = 1.0
    plain, cheap = policy.mode.score(policy.view([0, 1], 3600.0, 1e-3))
    assert cheap > plain
    policy.saves(0, 1.0)
    assert len(set(policy.mode.score(policy.view([0, 1], 3600.0, 1e-3)).tolist())) == 1


def test_cheap_hours_are_used() -> None:
    """The dearer a host's hour, the fewer of its pages are worth it."""
    policy = Recrawl(np.zeros(1000, int), 1e4, last=-np.arange(1000) * 600.0, mode="freshness")
    policy.price = 1.0
    worth = [len(policy.candidates(0, 0.0, 1.0, pace)[0]) for pace in (1e-4, 1e-2, 1.0)]
    assert worth[0] > worth[1] > worth[2] >= 0


def test_the_price_goes_up_with_demand_and_down_with_idle_time() -> None:
    assert price.moved(1.0, 2.0, 1.0) > 1.0 > price.moved(1.0, 0.5, 1.0)
    assert price.moved(1.0, 1e9, 1.0) == pytest.approx(math.exp(price.LARGEST))
    assert price.moved(3.0, 1.0, 0.0) == 3.0
    assert price.moved(price.LEAST, 0.0, 1.0) == price.LEAST
    assert price.stepped(price.LEAST, 1e6) == price.MOST, "a page that costs a million windows"


def test_a_choice_looks_at_a_few_pages_for_each_that_it_takes() -> None:
    """Not at all: 200,000 pages on 2,000 hosts, 100 a call."""
    random = np.random.default_rng(4)
    n = 200_000
    policy = Recrawl(
        np.repeat(np.arange(2000), 100), 1.0, last=-random.random(n) * 2000 * MINUTE, mean_rate=1e-5
    )
    taken = []
    for t in range(60):
        pages = policy.choose(t * MINUTE, 1.0, budget=100.0)
        policy.visited(pages, t * MINUTE, random.random(len(pages)) < 0.5)
        taken.append(len(pages))
    assert min(taken[5:]) >= 90
    assert policy.looks <= 60 * 6000


def test_numbers_hold_when_pages_come_ungrouped() -> None:
    """Columns are sorted by host inside; nobody sees it."""
    policy = Recrawl(
        [2, 0, 2, 1, 0], [1, 2, 3, 4, 5], [1, 1, 1, 1, 1], last=[-10, -20, -30, -40, -50], mode="round_robin"
    )
    assert policy.view([0, 1, 2, 3, 4], 0.0, 1.0).age.tolist() == [10, 20, 30, 40, 50]
    assert policy.choose(0.0, 1.0, budget=100.0).tolist() == [4, 3, 2]
    assert sorted(policy.pages(2).tolist()) == [0, 2]


def test_times_stay_true_over_years() -> None:
    """Kept in 4 bytes; the base that they count from moves along."""
    begin = 1.8e9
    policy = Recrawl([0, 0], 1000, last=[begin, begin])
    for day in range(0, 3 * 365, 5):
        policy.visited([0], begin + day * DAY, False)
    assert policy.view([0, 1], begin + 3 * 365 * DAY, 1.0).age == pytest.approx(
        [5 * DAY, 3 * 365 * DAY], abs=20
    )


def test_a_packed_page_takes_22_bytes() -> None:
    policy = Recrawl(np.zeros(1000, int), 1000)
    assert PAGE_BYTES == 22
    assert len(policy.pack(0)) == 22_000 + 56


@pytest.mark.parametrize("broken", [b"", b"x" * 30, b"\0" * 100])
def test_bytes_that_are_no_site_are_refused(broken: bytes) -> None:
    with pytest.raises(UnreadableError):
        unpack(broken)


def test_a_cut_site_is_refused() -> None:
    packed = Recrawl(np.zeros(10, int), 1000).pack(0)
    with pytest.raises(UnreadableError, match="expected 276 for 10 pages"):
        unpack(packed[:-1])
    with pytest.raises(UnreadableError, match="version 9"):
        unpack(packed[:4] + struct.pack("<I", 9) + packed[8:])


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ({"speed": 1}, "unknown option 'speed'; expected some of longest_seconds"),
        ({"size": [1, 2, 3]}, "size is of shape"),
        ({"size": -1.0}, "size is -1.0"),
        ({"weight": np.inf}, "weight is inf"),
        ({"host": [-1, 0]}, "minimum -1"),
        ({"host": [0.5, 1]}, "hosts are float64"),
        ({"mean_rate": 0}, "mean_rate is 0; expected a number above 0"),
        ({"longest_seconds": "x"}, "longest_seconds is 'x'"),
        ({"conditional": 2.0}, "conditional is 2.0"),
        (
            {"mode": "fresh"},
            "RECRAWL_MODE is 'fresh'; expected one of default, importance, .*, or a dotted path",
        ),
        ({"mode": "crawler.recheck.modes.NONE"}, "RECRAWL_MODE is 'crawler.recheck.modes.NONE'"),
        ({"mode": "math.pi"}, "RECRAWL_MODE is 'math.pi'"),
    ],
)
def test_what_means_nothing_is_refused(given_: dict[str, Any], told: str) -> None:
    arguments: dict[str, Any] = {"host": [0, 0], "size": 1000, **given_}
    with pytest.raises(RecrawlError, match=told):
        Recrawl(arguments.pop("host"), arguments.pop("size"), arguments.pop("weight", None), **arguments)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda policy: policy.visited([5], 0.0, True), "page 5 does not exist"),
        (lambda policy: policy.choose(math.nan, 1.0), "now is nan"),
        (lambda policy: policy.choose(0.0, 1.0, budget=-1.0), "budget is -1.0"),
        (lambda policy: policy.choose(0.0, 1.0, ready=[True]), "ready is of shape"),
        (lambda policy: policy.choose(0.0, 1.0, ready=[7]), "ready names hosts"),
        (lambda policy: policy.candidates(4, 0.0, 1.0, 1.0), "host 4 does not exist"),
        (lambda policy: policy.pack(-1), "host -1 does not exist"),
    ],
)
def test_who_is_not_there_is_refused(call: Any, told: str) -> None:
    with pytest.raises(RecrawlError, match=told):
        call(Recrawl([0, 1], 1000))
