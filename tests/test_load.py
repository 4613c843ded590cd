"""The load estimator: what it must find in visits, and what it must not."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from crawler.planning import load
from crawler.planning.load import (
    BUSIEST,
    FULL,
    UNKNOWN,
    LoadTable,
    cell_of,
    lost_pace,
    share_of_line,
    with_profiles,
)

# 2026-11-16 00:00 UTC, a Monday.
MONDAY = int(datetime(2026, 11, 16, tzinfo=UTC).timestamp()) // 3600


def one(value: float) -> np.ndarray:
    return np.array([value])


def a_week(
    table: LoadTable, rows: np.ndarray, seconds_at: np.ndarray, *, noise: float, seed: int = 0
) -> None:
    """A visit of every site in every hour of seven days; `seconds_at` (n, 24)."""
    random = np.random.default_rng(seed)
    for hour in range(7 * 24):
        seconds = seconds_at[:, hour % 24] * np.exp(random.normal(0, noise, len(rows)))
        table.fold(MONDAY + hour, rows, seconds, np.zeros(len(rows)))


def busy_at(peaks: np.ndarray, swing: float) -> np.ndarray:
    """Seconds of a page, (n, 24): slowest at the peak."""
    hours = np.arange(24)
    return np.exp(swing * np.cos(2 * np.pi * (hours - peaks[:, None]) / 24)) * 0.2


def test_cells_tell_weekdays_from_weekends() -> None:
    for day, weekend in enumerate([False] * 5 + [True] * 2):
        assert [cell_of(MONDAY + day * 24 + hour) for hour in range(24)] == [
            hour + 24 * weekend for hour in range(24)
        ]
    assert cell_of(0) == 0  # a Thursday


def test_without_evidence_nothing_is_known() -> None:
    forecast = LoadTable(3).forecast(MONDAY)
    assert (forecast.load == UNKNOWN).all()
    assert forecast.reference == 0


def test_one_visit_makes_a_flat_day() -> None:
    table = LoadTable(2)
    table.fold(MONDAY + 5, np.array([0]), one(0.5), one(0.0))
    forecast = table.forecast(MONDAY)
    assert np.ptp(forecast.load[0].astype(int)) <= 6
    assert (forecast.load[1] == UNKNOWN).all()


def test_the_quiet_hour_of_each_site_is_found() -> None:
    rows = np.arange(40)
    peaks = np.random.default_rng(1).uniform(0, 24, 40)
    table = LoadTable(40)
    a_week(table, rows, busy_at(peaks, 0.6), noise=0.2)
    load = table.forecast(MONDAY + 7 * 24).load.astype(float)
    quiet = load.argmin(axis=1)
    off = np.abs((quiet - (peaks + 12)) % 24)
    assert np.median(np.minimum(off, 24 - off)) <= 2.0
    truth = 1 / busy_at(peaks, 0.6)
    assert np.mean([np.corrcoef(-load[row], truth[row])[0, 1] for row in rows]) > 0.9


def test_columns_begin_with_the_hour_asked_for() -> None:
    table = LoadTable(1)
    a_week(table, np.array([0]), busy_at(np.array([6.0]), 0.8), noise=0.0)
    first = table.forecast(MONDAY).load[0]
    later = table.forecast(MONDAY + 5).load[0]
    assert (later[:19] == first[5:]).all()


def test_a_site_seldom_seen_takes_the_day_of_its_group() -> None:
    """Two groups with opposite days; the last site of each was seen at one hour only."""
    many = 30
    groups = np.repeat([0, 1], many)
    peaks = np.where(groups == 0, 4.0, 16.0)
    table = LoadTable(2 * many)
    seen = np.array([row for row in range(2 * many) if row % many != many - 1])
    a_week(table, seen, busy_at(peaks, 0.7)[seen], noise=0.1)
    table.fold(MONDAY, np.array([many - 1, 2 * many - 1]), np.array([0.2, 0.2]), np.zeros(2))
    load = table.forecast(MONDAY + 7 * 24, groups).load.astype(int)
    assert load[many - 1, 4] - load[many - 1, 16] > 20
    assert load[2 * many - 1, 16] - load[2 * many - 1, 4] > 20


def test_refusals_are_load() -> None:
    table = LoadTable(2)
    rows = np.array([0, 1])
    for hour in range(48):
        refused = np.array([0.8 if hour % 24 == 10 else 0.0, 0.0])
        table.fold(MONDAY + hour, rows, np.array([0.2, 0.2]), refused)
    load = table.forecast(MONDAY).load.astype(int)
    assert load[0].argmax() == 10
    assert load[0, 10] > load[1].max() + 10


def test_a_visit_without_any_page_counts_for_its_refusals_alone() -> None:
    table = LoadTable(1)
    table.fold(MONDAY + 3, np.array([0]), one(0.2), one(0.0))
    table.fold(MONDAY + 27, np.array([0]), one(np.nan), one(1.0))
    load = table.forecast(MONDAY).load[0]
    assert np.isfinite(table.forecast(MONDAY).reference)
    assert load.max() <= BUSIEST


def test_old_visits_count_for_less() -> None:
    """A site that was slow half a year ago and is quick now."""
    table = LoadTable(2)
    rows = np.array([0, 1])
    for day in range(5):
        table.fold(MONDAY + day * 24, rows, np.array([5.0, 0.2]), np.zeros(2))
    for day in range(182, 187):
        table.fold(MONDAY + day * 24, rows, np.array([0.2, 0.2]), np.zeros(2))
    load = table.forecast(MONDAY).load.astype(int)
    assert abs(load[0, 0] - load[1, 0]) < 25


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_seconds_that_cannot_be_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        LoadTable(1).fold(MONDAY, np.array([0]), one(seconds), one(0.0))


def test_noise_is_not_taken_for_a_day() -> None:
    """Flat sites seen through noise stay nearly flat; the shrinkage is estimated from the visits."""
    rows = np.arange(60)
    table = LoadTable(60)
    a_week(table, rows, np.full((60, 24), 0.2), noise=0.4)
    assert table.shrinkage() > 8
    assert np.median(np.ptp(table.forecast(MONDAY).load.astype(int), axis=1)) < 30
    lively = LoadTable(60)
    a_week(lively, rows, busy_at(np.random.default_rng(2).uniform(0, 24, 60), 0.8), noise=0.1)
    assert lively.shrinkage() < 2


def test_a_forecast_is_the_same_in_blocks_and_among_unknown_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(40)
    seconds = busy_at(np.random.default_rng(3).uniform(0, 24, 40), 0.6)
    table, wider = LoadTable(40), LoadTable(55)
    a_week(table, rows, seconds, noise=0.2)
    a_week(wider, rows, seconds, noise=0.2)
    groups = np.arange(55) % 5
    whole = table.forecast(MONDAY, groups[:40])
    assert len(np.unique(whole.load)) > 50
    monkeypatch.setattr(load, "BLOCK_SITES", 7)
    for found in (table.forecast(MONDAY, groups[:40]), wider.forecast(MONDAY, groups)):
        assert (found.load[:40] == whole.load).all()
        assert found.reference == pytest.approx(whole.reference)
    assert (wider.forecast(MONDAY, groups).load[40:] == UNKNOWN).all()


def test_a_site_as_bytes_comes_back() -> None:
    table = LoadTable(3)
    a_week(table, np.array([1]), busy_at(np.array([3.0]), 0.5), noise=0.1)
    table.fold(MONDAY, np.array([2]), one(0.3), one(0.1))
    other = LoadTable(1)
    other.grow(3)
    for row in range(3):
        other.unpack(row, table.pack(row))
    assert (other.forecast(MONDAY).load == table.forecast(MONDAY).load).all()
    assert table.pack(0) == b""
    assert len(table.pack(2)) == 3 * 17
    for bad in (b"x", b"\xff" * 17):
        with pytest.raises(ValueError, match="not a packed site"):
            other.unpack(0, bad)


def test_a_cell_is_seen_with_a_visit_of_its_own() -> None:
    table = LoadTable(2)
    table.fold(MONDAY + 5, np.array([1]), one(0.2), one(0.0))
    assert [table.seen(MONDAY + hour).tolist() for hour in (4, 5, 6)] == [
        [False, False],
        [False, True],
        [False, False],
    ]


def test_imported_loads_become_lost_pace() -> None:
    share = np.linspace(0, 1, 11)
    assert share_of_line(lost_pace(share)) == pytest.approx(share)
    assert (lost_pace(share)[1:-1] > share[1:-1]).all()
    profile = np.full((2, 48), UNKNOWN, np.uint8)
    profile[1, :3] = (0, FULL // 2, FULL)
    profile[1, 24] = 99
    measured = np.full((2, 24), 7, np.uint8)
    load = with_profiles(measured, profile, MONDAY)
    assert (load[0] == 7).all()
    assert load[1].tolist() == [0, round((1 - 0.5**1.5) * FULL), BUSIEST, *[7] * 21]
    assert with_profiles(measured, profile, MONDAY + 23)[1, 1:4].tolist() == [0, load[1, 1], BUSIEST]
    assert with_profiles(measured, profile, MONDAY + 5 * 24)[1, 0] not in (7, 99)


@pytest.mark.parametrize("others", [False, True])
def test_a_site_that_was_refused_before_a_page_was_timed_is_no_slow_one(others: bool) -> None:
    table = LoadTable(2)
    if others:
        table.fold(MONDAY + 5, np.array([1]), one(0.05), one(0.0))
    table.fold(MONDAY + 5, np.array([0]), one(np.nan), one(0.05))
    table.fold(MONDAY + 5, np.array([0]), one(0.05), one(0.0))
    table.fold(MONDAY + 5, np.array([1]), one(0.05), one(0.0))
    load = table.forecast(MONDAY + 5).load[:, 0].astype(int)
    assert load[0] - load[1] < 20
