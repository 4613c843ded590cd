"""How slots are divided among works: what each may have, and what loading gives up."""

from __future__ import annotations

import pytest

from crawler.agent.leasing import SlotAllocation
from crawler.options import OptionError
from crawler.records import Work

WORKS: tuple[Work, ...] = ("recheck", "revive", "site")


def division(slots: int, fixed: dict[Work, int] | None = None, *, waits: bool = True) -> SlotAllocation:
    made = SlotAllocation(slots, WORKS, fixed or {})
    made.loading_waits = waits
    return made


def test_slots_that_nobody_needs_are_anybodys() -> None:
    idle = division(10, waits=False)
    assert idle.room("revive", {}) == 10
    assert idle.room("revive", {"recheck": 4}) == 6
    assert idle.room("site", {"recheck": 4, "revive": 6}) == 0


@pytest.mark.parametrize(("slots", "beside"), [(1, 0), (2, 1), (3, 1), (4, 1), (8, 2), (10, 2), (64, 16)])
def test_loading_keeps_three_quarters_while_it_has_sites(slots: int, beside: int) -> None:
    busy = division(slots)
    assert busy.room("revive", {}) == beside
    assert busy.room("revive", {"recheck": beside}) == 0
    assert busy.room("site", {"recheck": beside}) == slots - beside
    assert busy.to_give_up("revive", {"site": slots}, 99) == beside
    assert busy.to_give_up("revive", {"site": slots}, 1) == min(1, beside)


def test_what_a_setting_gives_is_that_works_alone() -> None:
    fixed = division(10, {"revive": 3})
    assert fixed.room("revive", {}) == 3
    assert fixed.room("site", {}) == 7
    assert fixed.room("recheck", {}) == 1
    assert fixed.to_give_up("revive", {"site": 7}, 5) == 0


@pytest.mark.parametrize(
    ("slots", "works", "fixed"),
    [
        (4, WORKS, {"revive": 3}),
        (4, ("recheck",), {"recheck": 4}),
        (4, ("site",), {"revive": 9}),
        (4, (), {"revive": 9}),
    ],
)
def test_slots_that_are_enough(slots: int, works: tuple[Work, ...], fixed: dict[Work, int]) -> None:
    made = SlotAllocation(slots, works, fixed)
    assert all(made.room(work, {}) > 0 for work in works)


@pytest.mark.parametrize(
    ("slots", "works", "fixed", "wanted"),
    [
        (4, WORKS, {"revive": 3, "recheck": 2}, 6),
        (4, WORKS, {"revive": 4}, 5),
        (4, WORKS, {"revive": 2, "recheck": 2}, 5),
        (4, ("revive",), {"revive": 5}, 5),
        (1, ("recheck", "site"), {"site": 1}, 2),
    ],
)
def test_slots_that_are_too_few(
    slots: int, works: tuple[Work, ...], fixed: dict[Work, int], wanted: int
) -> None:
    with pytest.raises(OptionError) as caught:
        SlotAllocation(slots, works, fixed)
    said = str(caught.value)
    assert said.startswith(
        f"WORK_SLOTS is {fixed!r} and SITE_SLOTS is {slots}; expected SITE_SLOTS of {wanted} or more"
    )
    SlotAllocation(wanted, works, fixed)
