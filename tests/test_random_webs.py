"""Random webs are crawled to the page, and each row is true: `python -m tests.tools.random_webs` tries many more."""

from __future__ import annotations

import random

import pytest

from tests.crawling import Place
from tests.tools.random_webs.features import NAMES
from tests.tools.random_webs.judging import differences, make_web

GROUPS = 4


@pytest.mark.parametrize(("group", "kills"), [(0, 0), (1, 0), (2, 0), (3, 2)])
def test_a_web_is_asked_and_told_as_it_is(place: Place, group: int, kills: int) -> None:
    assert differences(place, group, kills, NAMES[group::GROUPS]) == []


def test_the_same_number_is_the_same_web() -> None:
    names = ["http://127.0.5.1:1", "http://127.0.5.2:1"]
    one, other = (make_web(random.Random(5), names, NAMES) for _ in range(2))
    assert one.expected() == other.expected()
    assert all(a.pages.keys() == b.pages.keys() for a, b in zip(one.sites, other.sites, strict=True))
