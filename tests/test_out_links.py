"""Out-links as hashes: the same as of the URLs themselves, whether a path has a number or not, first or later."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from crawler import records
from crawler.agent.frontier import Frontier
from crawler.content.html import OutLinks

SITE = "https://example.org"
PATHS = st.lists(st.sampled_from([f"/{number}" for number in range(30)]), unique=True, max_size=12)
OUTSIDE = st.lists(st.sampled_from([f"https://other.example/{number}" for number in range(5)]), max_size=6)


@given(st.lists(st.tuples(PATHS, st.integers(0, 12), OUTSIDE), max_size=8))
@settings(max_examples=200, deadline=None)
def test_what_is_remembered_is_what_would_be_made(
    pages: list[tuple[list[str], int, list[str]]],
) -> None:
    """Of each page's links only the first so many are accepted by the frontier."""
    frontier, out_links = Frontier(), OutLinks(SITE)
    for inside, accepted, outside in pages:
        frontier.add(inside[:accepted], 1)
        packed = out_links.pack(frontier.numbers(inside), inside, outside)
        assert packed == records.pack_links([SITE + path for path in inside] + outside)


def test_a_page_without_links_has_none() -> None:
    assert OutLinks(SITE).pack([], [], []) == b""
