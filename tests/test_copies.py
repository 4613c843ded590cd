"""Copies lead to what is new, and never on and on: by a frontier that a made-up site is fetched through."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from hashlib import sha256
from urllib.parse import urljoin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler.agent.frontier import Frontier, Turn
from crawler.content.copies import EARNED_PAGES, FIRST_PAGES, SITE_PAGES

SITE = "https://a.example"
# A page's content, and its links as they are written.
Page = tuple[str, list[str]]


def walk(
    page_of: Callable[[str], Page | None],
    most: int = 5_000,
    *,
    every: int = 0,
    folded: bool = False,
    **limits: int,
) -> tuple[Frontier, list[str]]:
    """Fetch a site from its root; every so many pages another agent goes on from the checkpoint."""
    frontier = Frontier(**limits, site=SITE)
    frontier.add(["/"], 0)
    journal: list[bytes] = []
    asked: list[str] = []
    while turn := frontier.take(math.inf):
        asked.append(turn.path)
        assert len(asked) <= most, asked[-5:]
        page = page_of(turn.path)
        if page is not None:
            first = frontier.first_with(turn, sha256(page[0].encode()).digest())
            paths = [urljoin(turn.path, href) for href in page[1]]
            if first is None:
                frontier.add(paths, turn.depth + 1)
            else:
                frontier.add_of_copy(first, paths, turn.depth + 1)
        frontier.finish(turn)
        if every and len(asked) % every == 0:
            folds = folded or frontier.wants_fold()
            journal = [frontier.whole()] if folds else [*journal, frontier.delta()]
            frontier = Frontier(**limits, site=SITE)
            frontier.restore(journal)
    assert frontier.pending == 0
    return frontier, asked


def folders(many: int, pages: int = 1) -> Callable[[str], Page | None]:
    """Talks whose index has the same bytes, and pages of their own."""

    def page_of(path: str) -> Page | None:
        if path == "/":
            return "root", [f"{number}/index.html" for number in range(many)]
        if path.endswith("index.html"):
            return "index", [f"p{number}.html" for number in range(pages)] + ["/", "../style.html"]
        return path, []

    return page_of


@pytest.fixture(params=[(0, False), (29, False), (31, True)], ids=["one", "deltas", "wholes"])
def handed_over(request: pytest.FixtureRequest) -> dict[str, int]:
    every, folded = request.param
    return {"every": every, "folded": folded}


@pytest.mark.parametrize(("many", "pages"), [(2, 1), (2, 300), (500, 1), (60, 30)])
def test_every_page_of_every_folder_is_found(many: int, pages: int, handed_over: dict[str, int]) -> None:
    frontier, asked = walk(folders(many, pages), 20_000, **handed_over)
    # The root, /style.html, and the folders' own.
    assert len(asked) == len(set(asked)) == 2 + many + many * pages
    assert frontier.left_out == {}


@pytest.mark.parametrize(
    "hrefs", [["a/"], ["a/", "b/"], [f"{number}/" for number in range(100)], ["a/", "/known", "?x"]]
)
def test_copies_without_end_end(hrefs: list[str], handed_over: dict[str, int]) -> None:
    """At every depth the same page with relative links."""
    frontier, asked = walk(lambda _: ("same", hrefs), **handed_over)
    assert len(asked) == 1 + len(hrefs) + FIRST_PAGES
    assert frontier.left_out["copy"] >= 1


@pytest.mark.parametrize("every", [0, 1, 2, 3])
def test_what_is_given_up_is_counted_once(every: int) -> None:
    """Of the links of copies those that are not asked for, whoever goes on with the site."""
    frontier, asked = walk(lambda path: ("same", ["a/"]), every=every)
    assert len(asked) == 2 + FIRST_PAGES
    assert frontier.left_out == {"copy": 1}


@pytest.mark.parametrize("kinds", [7, 100])
def test_few_contents_in_turn_end_as_well(kinds: int, handed_over: dict[str, int]) -> None:
    """A calendar that shows the days of a week, or a hundred pages, under ever longer paths."""

    def page_of(path: str) -> Page:
        return str(sum(path.encode()) % kinds), [f"{number}/" for number in range(10)]

    _, asked = walk(page_of, **handed_over)
    originals = 10 * kinds + 1
    assert len(asked) <= originals + min(
        kinds * (FIRST_PAGES + EARNED_PAGES), SITE_PAGES + kinds * (EARNED_PAGES + 2)
    )


def tree(folder: str) -> Page | None:
    """A site of 400 pages that is there under each `/sN/`, and leads to the next of these."""
    prefix, _, rest = folder[1:].partition("/")
    if not prefix.startswith("s"):
        return "root", ["s0/"]
    if rest.startswith("s"):
        return None
    depth = rest.count("/")
    below = [f"{number}/" for number in range(20)] if depth < 2 else []
    return rest, [*below, "../" * (depth + 1) + f"s{int(prefix[1:] or 0) + 1}/"]


def test_a_whole_site_under_other_paths_is_sampled(handed_over: dict[str, int]) -> None:
    frontier, asked = walk(tree, **handed_over)
    contents = 1 + 1 + 20 + 400
    assert len({path for path in asked if path.startswith("/s0/")}) == contents - 1
    assert contents < len(asked) <= contents + SITE_PAGES + contents // 10 + 2
    assert frontier.left_out["copy"] > 0


def test_good_ones_are_found_beside_endless_ones(handed_over: dict[str, int]) -> None:
    good = folders(100, 2)

    def page_of(path: str) -> Page | None:
        if path.startswith("/x/"):
            return "endless", ["a/", "b/"]
        content, hrefs = good(path) or ("", [])
        return content, ["x/", *hrefs] if path == "/" else hrefs

    _, asked = walk(page_of, **handed_over)
    assert sum(path.endswith(".html") for path in asked) == 1 + 100 * 3
    assert sum(path.startswith("/x/") for path in asked) == 1 + 2 + FIRST_PAGES


def test_links_that_are_known_cost_nothing() -> None:
    def page_of(path: str) -> Page:
        if path == "/":
            return "root", [f"{number}/" for number in range(300)] + ["about", "news"]
        return ("copy", ["../about", "../news", "/", "."]) if path.endswith("/") else (path, [])

    frontier, asked = walk(page_of)
    assert len(asked) == 303
    assert frontier._copies.is_empty
    frontier.whole()
    assert len(frontier.delta()) < 60


def test_pages_that_fail_earn_nothing() -> None:
    def page_of(path: str) -> Page | None:
        if path == "/":
            return "root", [f"{number}/" for number in range(90)]
        return ("index", [f"p{number}" for number in range(9)]) if path.endswith("/") else None

    _, asked = walk(page_of)
    assert len(asked) == 1 + 90 + 9 + FIRST_PAGES


def _with_a_copy() -> tuple[Frontier, Turn, Turn]:
    """A frontier in which /a says the same as /; the turns of both are not finished."""
    frontier = Frontier(site=SITE)
    frontier.add(["/", "/a"], 0)
    original, copy = frontier.take(0.0), frontier.take(0.0)
    assert original and copy
    body = sha256(b"x").digest()
    assert (frontier.first_with(original, body), frontier.first_with(copy, body)) == (None, "/")
    return frontier, original, copy


def test_the_place_of_a_page_that_is_not_asked_for_is_free_again() -> None:
    frontier, original, copy = _with_a_copy()
    frontier.finish(original)
    frontier.add_of_copy("/", [f"/{number}" for number in range(3 * FIRST_PAGES)], 1)
    frontier.finish(copy)
    asked = 0
    while turn := frontier.take(0.0):
        denied = turn.number % 2 == 0
        frontier.finish(turn, counts=not denied)
        asked += not denied
    assert asked == FIRST_PAGES


def test_a_redirect_is_tried_by_where_it_leads() -> None:
    frontier, original, copy = _with_a_copy()
    frontier.add_of_copy("/", ["/old"], 1)
    old = frontier.take(0.0)
    assert old and frontier.add(["/new"], 1)
    frontier.hand_on(old, "/new")
    for turn in (original, copy, old):
        frontier.finish(turn)
    frontier.add_of_copy("/", [f"/{number}" for number in range(FIRST_PAGES)], 1)
    assert len(frontier) == 4 + FIRST_PAGES - 1
    new = frontier.take(0.0)
    assert new and new.path == "/new"
    assert frontier.first_with(new, sha256(b"new").digest()) is None
    assert len(frontier) == 4 + FIRST_PAGES


def test_no_more_is_held_than_may_be_known() -> None:
    """Each copy has thousands of links, in a site of which little is fetched."""
    hrefs = [f"{number}/" for number in range(3_000)]
    frontier, asked = walk(lambda _: ("same", hrefs), max_pages=50)
    assert len(asked) == 50
    assert len(frontier) + frontier._copies.held <= 10_000
    assert frontier.left_out["copy"] > 100_000


def test_depth_is_limited_for_copies_too() -> None:
    _, asked = walk(lambda _: ("same", ["a/"]), max_depth=5)
    assert len(asked) == 6


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_damaged_state_is_refused(place: int) -> None:
    import msgspec

    from crawler.agent.frontier import CheckpointError

    frontier = Frontier(site=SITE)
    frontier.add(["/", "/a"], 0)
    original, copy = frontier.take(0.0), frontier.take(0.0)
    assert original and copy
    for turn in (original, copy):
        frontier.first_with(turn, b"012345")
    frontier.add_of_copy("/", [f"/{number}" for number in range(FIRST_PAGES + 5)], 1)
    parts = msgspec.msgpack.decode(frontier.whole())
    told = parts[20]
    assert [bool(part) for part in told] == [True] * 5
    told[place] = [["x"], [[999, 0]], [[999, 0]], [[0, 1, 9]], b"no"][place]
    with pytest.raises(CheckpointError):
        Frontier().restore([msgspec.msgpack.encode(parts)])


@given(seed=st.integers(0, 10**6), new=st.integers(0, 60), every=st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_it_makes_no_difference_who_goes_on(seed: int, new: int, every: int) -> None:
    """Sites of random contents, one of which comes again and again: the same pages, in the same order."""

    def page_of(path: str) -> Page:
        chance = random.Random(f"{seed} {path}")
        hrefs = [href for href in ("a/", "b/", "c", "../d", "/e", "?f") if chance.random() < 0.5]
        return path if chance.randrange(100) < new else "the same", hrefs

    whole = walk(page_of, max_pages=300)
    for folded in (False, True):
        parted = walk(page_of, every=every, folded=folded, max_pages=300)
        assert parted[1] == whole[1]
        assert parted[0].left_out == whole[0].left_out
