"""Traps: what is one is left before a hundred pages are lost, and what is merely large is no trap."""

from __future__ import annotations

import calendar
import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html import escape
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.agent.frontier import Frontier
from crawler.content import traps
from crawler.content.traps import MOST_FAMILIES, MOST_SEEN, MOST_TEXT, MOST_TRAPS, Traps, family_of, repeats
from tests.costs import STEEP, growth
from tests.crawling import Place
from tests.small_site import Reply, SmallSite, text

PAGES = 30
MONTHS = calendar.month_name
WORDS = (
    "tide",
    "harbour",
    "lamp",
    "sail",
    "winter",
    "cargo",
    "rope",
    "gull",
    "pier",
    "bell",
    "anchor",
    "deck",
)


class Page(NamedTuple):
    """What a page says, where it leads, what it shows."""

    text: str
    links: list[str]
    shown: tuple[str, ...] = ()


def walk(page_of: Callable[[str], Page], pages: int, most: int = PAGES) -> tuple[Traps, list[str]]:
    """Breadth first from the root, as an agent does; what was found of traps, and the paths that were fetched."""
    traps, frontier, fetched = Traps(most), Frontier(), []
    frontier.add(["/"], 0)
    while len(fetched) < pages and (turn := frontier.take(0.0)) is not None:
        if not traps.holds(turn.path):
            page = page_of(turn.path)
            fetched.append(turn.path)
            if frontier.add(page.links, turn.depth + 1, traps.leads_in):
                traps.look(turn.path, page.text, page.links, lambda shown=page.shown: shown)  # type: ignore[misc]
        frontier.finish(turn)
    return traps, fetched


def sentence(seed: object, words: int = 12) -> str:
    return " ".join(random.Random(str(seed)).choices(WORDS, k=words))


# --- Traps ----------------------------------------------------------------------------------------------------


def month_of(path: str) -> tuple[int, int]:
    year, month = map(int, path.split("/")[2:4])
    return year, month


def calendar_page(path: str) -> Page:
    """A calendar that can be leafed through for ever, with events in 2024 and a page for each of their days."""
    if path == "/":
        return Page("Welcome to the harbour", ["/calendar/2025/6", "/about"])
    if not path.startswith("/calendar"):
        return Page(sentence(path), ["/"])
    year, month = month_of(path)
    days = " ".join(map(str, range(1, calendar.monthrange(year, month)[1] + 1)))
    before, after = (year - (month == 1), (month - 2) % 12 + 1), (year + (month == 12), month % 12 + 1)
    event = f" {sentence(path)}" if year == 2024 else ""
    links = ["/", *(f"/calendar/{year}/{month}" for year, month in (before, after))]
    links += [f"/event/{year}-{month:02}-07"] if event else []
    neighbours = f"{MONTHS[before[1]]} {before[0]} {MONTHS[after[1]]} {after[0]}"
    return Page(f"{MONTHS[month]} {year} {days}{event} {neighbours} Imprint", links)


def session_page(path: str) -> Page:
    """Ten pages, each reached under a new session number from each."""
    name = path.partition("?")[0]
    draw = random.Random(path)
    links = [f"/{page}?sid={draw.randbytes(8).hex()}" for page in "abcdefghij"]
    return Page(sentence(name), links)


def cookieless(letters: str, carry: str) -> Callable[[str], Page]:
    """Six pages of a site that hands each visitor without a cookie a session of these letters, in every link."""

    def page_of(path: str) -> Page:
        draw = random.Random(path)
        session = "".join(draw.choices(letters, k=26))
        links = [carry.format(page=page, session=session) for page in "abcdef"]
        name = next((page for page in "abcdef" if f"/{page}" in path), "")
        return Page(sentence(name), links, (f"/logo.png;s={session}",))

    return page_of


def slides(path: str) -> Page:
    """A slide show as office programs export it: a picture a page, the same few words, numbers counted up."""
    number = int("".join(filter(str.isdigit, path)) or 1)
    return Page("First Back Next Last", ["/img1.html", f"/img{number + 1}.html"], (f"img{number}.png",))


def beyond_the_end(path: str) -> Page:
    """A list of three pages that goes on, empty, for whoever asks for the next."""
    number = int(path.rpartition("=")[2]) if "=" in path else 1
    items = " ".join(sentence(f"{number} {item}") for item in range(5)) if number < 4 else "No entries"
    return Page(f"Page {number}: {items} Next", ["/", f"/list?page={number + 1}"])


@pytest.mark.parametrize(
    ("page_of", "families", "pages"),
    [
        (calendar_page, {"/calendar/0/0"}, 350),
        (session_page, {f"/{name}?sid=*" for name in "abcdefghij"}, 600),
        (beyond_the_end, {"/list?page=0"}, 60),
    ],
    ids=["calendar", "session", "beyond the end"],
)
def test_a_trap_ends_early(page_of: Callable[[str], Page], families: set[str], pages: int) -> None:
    traps, fetched = walk(page_of, 5_000)
    assert len(fetched) < pages
    assert all(family_of(path) in families for path in fetched[-5:])
    told = traps.why
    assert told.startswith(f"nothing new in {PAGES} pages of ")
    assert any(family in told for family in families)


@pytest.mark.parametrize("letters", ["0123456789abcdef", "abcdefghijklmnopqrstuvwxyz", "ABCabc012-_.~", "XY"])
@pytest.mark.parametrize(
    "carry",
    [
        "/{page};jsessionid={session}",
        "/{page}?PHPSESSID={session}",
        "/(S({session}))/{page}",
        "/{page}?x=1&k={session}",
    ],
)
def test_sessions_in_links_cost_few_pages(letters: str, carry: str) -> None:
    traps, fetched = walk(cookieless(letters, carry), 5_000, most=100)
    assert len(fetched) < 100
    assert {next(page for page in "abcdef" if f"/{page}" in path) for path in fetched[1:]} == set("abcdef")
    assert traps.why


def test_the_rest_of_a_site_with_a_trap_is_fetched() -> None:
    _, fetched = walk(calendar_page, 5_000)
    events = {path for path in fetched if path.startswith("/event")}
    assert events == {f"/event/2024-{month:02}-07" for month in range(1, 13)}
    assert "/about" in fetched


@pytest.mark.parametrize(
    "path",
    [
        "/a/b/a/b/a/b",
        "/x/en/news/en/news/en/news/",
        "/a/b/c/a/b/c/a/b/c?x=1",
        "/a/b/c/d/a/b/c/d/a/b/c/d/e",
        "/img/img/img/img/img",
        "/2024/blog/2024/blog/2024/blog",
    ],
)
def test_folders_that_go_round(path: str) -> None:
    assert repeats(path)
    traps = Traps(PAGES)
    assert traps.leads_in(path)
    assert traps.why == f"folders repeat in {path}"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/a/a/a/a",
        "/a/b/a/b",
        "/tiles/7/7/7/7/7/7/7.png",
        "/0/1/0/1/0/1",
        "/a/b/c/d/e/f/g/h",
        "/x?next=/a/b/a/b/a/b/a/b",
        "/de/docs/api/de/docs/guide/de/docs",
        "/" + "/" * 20,
    ],
)
def test_folders_that_only_look_alike(path: str) -> None:
    assert not repeats(path)
    assert Traps(PAGES).why == ""


# --- What is merely large -------------------------------------------------------------------------------------


def archive(path: str) -> Page:
    """A blog with 3,000 posts: pages by number and by month, each post with the next and the one before."""
    if path.startswith("/post"):
        number = int(path.rpartition("/")[2])
        return Page(f"{sentence(path)} 12 comments", [f"/post/{number + 1}", f"/post/{number - 1}", "/"])
    number = int(path.rpartition("=")[2]) if "=" in path else 1
    shown = range(number * 10, number * 10 + 10)
    titles = " ".join(sentence(f"/post/{post}") for post in shown)
    return Page(
        f"Page {number} {titles} older newer", [f"/?page={number + 1}", *(f"/post/{post}" for post in shown)]
    )


def catalogue(path: str) -> Page:
    """Parts that differ in size and price alone, in one long row."""
    number = int(path.rpartition("/")[2] or 0)
    size, price = number * 7919 % 500, number * 104729 % 100_000
    return Page(f"Bolt, {size} mm, {price / 100:.2f} EUR. Next part", [f"/part/{number + 1}"])


def weather(path: str) -> Page:
    """A page a day of nothing but figures."""
    day = int(path.rpartition("=")[2]) if "=" in path else 1
    draw = random.Random(day)
    figures = " ".join(f"{draw.gauss(10, 8):.1f}" for _ in range(24))
    return Page(f"Day {day}: {figures}", [f"/weather?day={day + 1}", f"/weather?day={day - 1}"])


def gallery(path: str) -> Page:
    """Pictures with the same few words beside each."""
    number = int(path.rpartition("/")[2] or 1)
    return Page(
        "Home Next Previous", [f"/photo/{number + 1}"], ("/logo.png", f"/images/dsc{number * 37 + 5}.jpg")
    )


def wordless(path: str) -> Page:
    """Pages without a word, of which nothing can be said."""
    number = int(path.rpartition("/")[2] or 1)
    return Page(" \n", [f"/frame/{number + 1}"])


def forum(path: str) -> Page:
    """Threads of several pages; the quiet ones say little."""
    if path.startswith("/thread"):
        thread, page = (int(part) for part in path.removeprefix("/thread/").split("/"))
        more = [f"/thread/{thread}/{page + 1}"] if page < thread % 4 else []
        return Page(f"Thread {thread} page {page} {sentence(path, 5)}", more)
    number = int(path.rpartition("/")[2] or 0)
    return Page(
        f"Board {number} {sentence(path, 40)}",
        [f"/board/{number + 1}", *(f"/thread/{number * 20 + one}/1" for one in range(20))],
    )


@pytest.mark.parametrize("page_of", [archive, catalogue, weather, gallery, slides, wordless, forum])
def test_a_large_site_is_no_trap(page_of: Callable[[str], Page]) -> None:
    traps, fetched = walk(page_of, 3_000)
    assert len(fetched) == 3_000
    assert traps.why == ""


def test_a_lull_is_no_trap() -> None:
    """Pages that repeat, but for one now and then, never make a hundred in a row."""

    def page_of(path: str) -> Page:
        number = int(path.rpartition("/")[2] or 1)
        return Page(sentence(path) if number % PAGES == 0 else "Nothing today", [f"/day/{number + 1}"])

    assert walk(page_of, 2_000)[0].why == ""


def test_what_is_kept_of_a_site_has_an_end() -> None:
    traps = Traps(PAGES)
    for number in range(4 * MOST_FAMILIES):
        for page in range(2 * MOST_SEEN // (number + 1)):
            traps.look(f"/{'x' * number}/{page}", f"{sentence(page)} {number}", [], tuple)
    assert len(traps._families) <= MOST_FAMILIES
    assert all(len(family._seen) <= MOST_SEEN for family in traps._families.values())
    assert "//0" in traps._families, "the most frequent one stays"
    for number in range(MOST_TRAPS + 5):
        for page in range(PAGES + 3):
            traps.look(f"/{'y-' * number}/{page}", "the same", [], tuple)
    assert len(traps._known) == MOST_TRAPS


def test_of_a_text_without_end_the_beginning_tells() -> None:
    traps = Traps(PAGES)
    same = "tide " * (MOST_TEXT // 5 + 1)
    trap = ""
    for page in range(PAGES + 5):
        trap = trap or traps.look(f"/day/{page}", same + sentence(page), [], tuple)
    assert trap == "/day/0"


@given(st.text(st.sampled_from("ab0Z9 -é٣ª\n"), max_size=30))
def test_the_fast_way_finds_the_same_words(text: str) -> None:
    assert list(traps._words_of_text(text)) == traps._words(text)


@pytest.mark.parametrize(
    "path",
    [
        "/" + "a" * 2_000,
        "/" + "a1" * 1_000,
        "/a/b" * 500,
        "/" * 2_000,
        "/" + "a-" * 1_000,
        "/?" + "1&" * 1_000,
    ],
)
def test_no_path_takes_long(path: str) -> None:
    def looked_at(path: str) -> None:
        for _ in range(100):
            family_of(path), repeats(path)

    assert growth(looked_at, path, path[: len(path) // 4]) < STEEP


# --- In a crawl -----------------------------------------------------------------------------------------------


def html(page: Page) -> Reply:
    links = "".join(f'<a href="{escape(link)}"></a>' for link in page.links)
    return Reply(200, {"Content-Type": "text/html"}, f"<body>{page.text}{links}")


class Endless(SmallSite):
    """A site whose pages are made of their paths."""

    def __init__(self, page_of: Callable[[str], Page], host: str = "127.0.1.1") -> None:
        super().__init__({"/robots.txt": text("")}, host)
        self._page_of = page_of

    def _reply(self, path: str, name: str) -> Reply:
        return super()._reply(path, name) if path in self.routes else html(self._page_of(path))


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Place(tmp_path_factory.mktemp("traps")) as found:
        yield found


def test_a_crawl_leaves_traps_and_accounts_for_all(place: Place) -> None:
    """Both traps end, the site beside them is whole, and no URL is missing from the ledger."""
    with ExitStack() as stack:
        leafed = stack.enter_context(Endless(calendar_page))
        numbered = stack.enter_context(Endless(session_page, "127.0.1.2"))
        honest = stack.enter_context(Endless(archive, "127.0.1.3"))
        sites = (leafed, numbered, honest)
        given: dict[str, Any] = {"TRAP_PAGES": 20, "MAX_PAGES_PER_SITE": 450}
        run = place.crawl([one.root for one in sites], **given).succeeded()
        assert len(leafed.log) < 350
        assert len(numbered.log) < 400
        assert len(honest.pages) == 450
        assert f"{leafed.site}: /calendar/0/0 is a trap, skipped from now on (TRAP_PAGES)" in run.err
        told = json.loads(place.run("site", "show", leafed.site, "--json").succeeded().out)
        assert told["state"] == "finished"
        assert re.match(
            r"left out: [\d,]+ pages as traps by TRAP_PAGES; nothing new in 20 pages of /calendar/0/0",
            told["reason"],
        )
        ledger = json.loads(place.run("report", "ledger", "--json").succeeded().out)["ledger"]
        assert ledger["balanced"]
        assert ledger["sites"][numbered.site]["denied"] > 0
        rows = place.rows("select distinct outcome, error from pages where status = -15")
        assert rows == [("denied", "left out: part of a crawler trap (TRAP_PAGES)")]


def test_traps_may_be_followed(place: Place) -> None:
    with Endless(session_page) as site:
        run = place.crawl([site.root], TRAP_PAGES=0, MAX_PAGES_PER_SITE=300).succeeded()
        assert len(site.pages) == 300
        assert "is a trap" not in run.err
