"""Cookie walls: sites that let nobody in without the cookie that they set on the way. Real crawls of small sites."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from crawler.queue.batches import DIGEST_BYTES, BatchPage
from tests.crawling import Place
from tests.servers import eventually
from tests.small_site import RESET, Reply, SmallSite, links, text
from tests.test_works import asks, give

pytestmark = pytest.mark.timeout(120)

HTML = {"Content-Type": "text/html"}
PAGES = [f"/p{number}" for number in range(1, 6)]


def page(name: str) -> Reply:
    return Reply(200, HTML, f"<title>{name}</title>" + "".join(f"<a href={path}>x</a>" for path in PAGES))


def to(target: str, *cookies: str, status: int = 302) -> Reply:
    fields = {"Location": target} | ({"Set-Cookie": cookies[0]} if cookies else {})
    return Reply(status, fields)


class Wall(SmallSite):
    """A site of a root and PAGES; `answer` says what comes for a path, by the cookies that were sent."""

    def __init__(
        self, answer: Callable[[Wall, str, dict[str, str]], Reply | None], host: str = "127.0.1.1"
    ) -> None:
        super().__init__({"/robots.txt": text("")}, host)
        self._answer = answer
        self.slow = ""  # a path that is answered late

    def _reply(self, path: str, name: str) -> Reply:
        if path in self.routes:
            return super()._reply(path, name)
        said = self.log[-1].fields.get("Cookie", "")
        cookies = dict(part.split("=", 1) for part in said.split("; ") if part)
        reply = self._answer(self, path, cookies)
        known = path in ("/", *PAGES)
        reply = reply or (page(path) if known else Reply(404))
        return reply._replace(seconds=60.0 if path.partition("?")[0] == self.slow else 0.0)


def back(path: str) -> str:
    """The page that a check was asked for on behalf of."""
    return parse_qs(urlsplit(path).query).get("to", ["/"])[0]


def to_itself(_wall: Wall, path: str, cookies: dict[str, str]) -> Reply | None:
    return None if "seen" in cookies else to(path, "seen=1; Path=/")


def by_a_consent_page(_wall: Wall, path: str, cookies: dict[str, str]) -> Reply | None:
    if path.startswith("/consent"):
        return to(back(path), "ok=1; Path=/")
    return None if "ok" in cookies else to(f"/consent?to={path}")


def by_one_consent_page(_wall: Wall, path: str, cookies: dict[str, str]) -> Reply | None:
    """It leads to the first page, whoever asks."""
    if path == "/consent":
        return to("/", "ok=1; Path=/")
    return None if "ok" in cookies else to("/consent")


def by_a_chosen_language(_wall: Wall, path: str, cookies: dict[str, str]) -> Reply | None:
    """A page of its own asks for the language; a link on it sets that and leads back."""
    if path == "/language":
        return links("/set?language=en")
    if path.startswith("/set"):
        return to("/", "language=en")
    return None if "language" in cookies else to("/language")


def root_is_free(wall: Wall, path: str, cookies: dict[str, str]) -> Reply | None:
    return None if path == "/" else by_a_consent_page(wall, path, cookies)


def by_two_checks(_wall: Wall, path: str, cookies: dict[str, str]) -> Reply | None:
    """The check wants the cookie that the page has set."""
    if path.startswith("/check"):
        return to(back(path), "b=2; Path=/") if "a" in cookies else to(back(path))
    return None if {"a", "b"} <= cookies.keys() else to(f"/check?to={path}", "a=1; Path=/")


def by_the_last_cookie(wall: Wall, path: str, cookies: dict[str, str]) -> Reply | None:
    """Each answer sets another one, and the next request must have it."""
    last, wall.routes["last"] = wall.routes.get("last"), text(str(len(wall.log)))
    fields = {"Set-Cookie": f"n={len(wall.log)}; Path=/"}
    if last == text(cookies.get("n", "")):
        return page(path)._replace(fields={**HTML, **fields}) if path in ("/", *PAGES) else Reply(404, fields)
    return Reply(302, {"Location": path, **fields})


WALLS = [
    *(to_itself, by_a_consent_page, by_one_consent_page, by_a_chosen_language, root_is_free, by_two_checks),
    by_the_last_cookie,
]


def stored(place: Place, site: str) -> set[str]:
    rows = place.rows("select url from pages where outcome = 'stored' and title like '/%'")
    return {url.removeprefix(site) for (url,) in rows}


@pytest.mark.parametrize("answer", WALLS)
def test_pages_behind_a_wall_are_loaded(tmp_path: Path, answer: Callable[..., Reply | None]) -> None:
    with Wall(answer) as wall, Place(tmp_path) as place:
        place.crawl([wall.root]).succeeded()
        assert stored(place, wall.site) == {"/", *PAGES}
        assert place.rows("select url, error from pages where error is not null") == []
        # A page that was met before the wall was passed costs three requests; each check may itself be checked.
        assert len(wall.log) <= 3 * (1 + len(PAGES)) + 3
        place.run("report", "ledger").succeeded()


@pytest.mark.parametrize("answer", [to_itself, by_a_consent_page])
@pytest.mark.parametrize("cookies", [{}, {"given": "1"}])
def test_so_they_are_with_cookies_of_the_settings(
    tmp_path: Path, answer: Callable[..., Reply | None], cookies: dict[str, str]
) -> None:
    with Wall(answer) as wall, Place(tmp_path) as place:
        place.crawl([wall.root], SITE_OVERRIDES={wall.site: {"cookies": cookies}}).succeeded()
        assert stored(place, wall.site) == {"/", *PAGES}
        assert all("given=1" in asked.fields.get("Cookie", "") for asked in wall.log) == bool(cookies)


def test_each_request_of_a_wall_keeps_the_pause(tmp_path: Path) -> None:
    with Wall(by_a_consent_page) as wall, Place(tmp_path) as place:
        place.crawl([wall.root], DOWNLOAD_DELAY=0.2).succeeded()
        times = [asked.at for asked in wall.log]
        # All of them together, since a busy machine notes single ones late; one without a pause would be seen.
        assert times[-1] - times[0] > 0.2 * (len(times) - 1.5)


def never(_wall: Wall, path: str, _cookies: dict[str, str]) -> Reply | None:
    return to(path, "seen=1; Path=/")


def another_each_time(wall: Wall, path: str, _cookies: dict[str, str]) -> Reply | None:
    if path.startswith("/check"):
        return to(back(path), f"n={len(wall.log)}; Path=/")
    return to(f"/check?to={path}", f"m={len(wall.log)}; Path=/")


@pytest.mark.parametrize("answer", [never, another_each_time])
def test_a_wall_that_stays_ends_and_says_so(tmp_path: Path, answer: Callable[..., Reply | None]) -> None:
    with Wall(answer) as wall, Place(tmp_path) as place:
        place.crawl([wall.site + path for path in ("/", *PAGES)]).stored_nothing()
        said = place.rows("select error from pages where error is not null")
        assert len(said) >= len(PAGES)
        assert all("with and without its cookies: " in words for (words,) in said)
        assert len(wall.log) <= 4 * (1 + len(PAGES)) + 12


def test_redirects_in_a_circle_say_so(tmp_path: Path) -> None:
    routes = {"/": links("/self", "/a", "/1"), "/self": to("/self"), "/a": to("/b"), "/b": to("/a")}
    routes |= {"/1": to("/2"), "/2": to("/3"), "/3": to("/1")}
    with SmallSite(routes) as site, Place(tmp_path) as place:
        place.crawl([site.root]).succeeded()
        said = dict(place.rows("select substr(url, -2), error from pages where error is not null"))
        assert said == {
            "lf": "redirects to itself: /self -> /self",
            "/b": "redirects in a circle: /b -> /a -> /b",
            "/3": "redirects in a circle: /3 -> /1 -> /2 -> /3",
        }
        assert set(site.pages.values()) == {1}


def test_the_next_agent_earns_the_cookie_again(tmp_path: Path) -> None:
    """One dies while the check is under way, and one between the check and the page."""
    with Wall(by_a_consent_page) as wall, Place(tmp_path) as place:

        def told() -> bool:
            with suppress(sqlite3.Error):
                return bool(place.rows("select 1 from pages where outcome = 'redirected'"))
            return False

        wall.slow = "/consent"
        run = place.start_crawl([wall.root], LEASE_SECONDS=3)
        eventually(lambda: len(wall.pages) == 2 and told(), "the check is asked for", 30)
        run.end(signal.SIGKILL)
        wall.slow = "/"
        run = place.start_crawl([], LEASE_SECONDS=3)
        eventually(lambda: wall.pages["/"] == 2, "the page is asked for again", 30)
        run.end(signal.SIGKILL)
        wall.slow = ""
        place.crawl([], LEASE_SECONDS=3).succeeded()
        assert stored(place, wall.site) == {"/", *PAGES}


def test_two_agents_pass_walls_of_several_sites(tmp_path: Path) -> None:
    with Wall(to_itself) as one, Wall(root_is_free, "127.0.1.2") as other, Place(tmp_path) as place:
        place.crawl([one.root, other.root], "--agents", "2", SITE_SLOTS=1).succeeded()
        assert len(place.rows("select 1 from pages where title like '/%'")) == 2 * (1 + len(PAGES))


def rechecked(place: Place, wall: Wall) -> None:
    """Asks all pages whether they have changed."""
    known = [BatchPage(path, "visited", digest=DIGESTS[path]) for path in (*PAGES, "/")]
    give(place, wall.site, "recheck", *known)
    wall.log.clear()
    place.crawl([], spider="recheck").succeeded()


DIGESTS = {path: sha256(page(path).body.encode()).digest()[:DIGEST_BYTES] for path in ("/", *PAGES)}


@pytest.mark.parametrize("answer", [to_itself, by_a_consent_page, by_one_consent_page, by_the_last_cookie])
def test_recheck_passes_the_wall_and_leaves_pages_as_they_are(
    tmp_path: Path, answer: Callable[..., Reply | None]
) -> None:
    with Wall(answer) as wall, Place(tmp_path) as place:
        place.crawl([wall.root]).succeeded()
        rechecked(place, wall)
        assert stored(place, wall.site) == {"/", *PAGES}
        answers = {path: said for path, said, _ in asks(place)}
        assert answers == {path.removeprefix("/"): "unchanged" for path in ("/", *PAGES)}
        assert len(wall.log) <= 1 + (1 + len(PAGES)) + 6


def test_recheck_of_pages_that_have_moved_asks_few_targets(tmp_path: Path) -> None:
    """They are redirects now, as without walls; where one leads nowhere, and where an answer does not come, too."""
    with Wall(lambda _wall, _path, _cookies: None) as wall, Place(tmp_path) as place:
        place.crawl([wall.root]).succeeded()
        wall.routes |= {path: to(f"/new{path}", "s=1") for path in PAGES} | {"/new/p1": RESET}
        rechecked(place, wall)
        moved_pages = place.rows("select url, redirect from pages where outcome = 'redirected'")
        assert {url.removeprefix(wall.site): to.removeprefix(wall.site) for url, to in moved_pages} == {
            path: f"/new{path}" for path in PAGES
        }
        assert len([path for path in wall.paths if path.startswith("/new")]) <= 6
