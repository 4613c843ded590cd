"""Seeds that give nothing, or one page alone: the end of a crawl and `scrapy report seeds` say why and what to do."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from crawler.fetch import errors
from crawler.records import (
    MOVED,
    STATUS_OF_ERROR,
    STATUS_WORDS,
    OperatorCommand,
    Page,
    Record,
    SiteEnded,
    SiteFound,
)
from crawler.reports import seeds
from crawler.reports.seeds import latest, text
from crawler.store.database import transaction
from crawler.store.write import Stored, store
from tests.certificates import context_of, self_signed
from tests.conftest import OpenTables
from tests.crawling import Place
from tests.databases import KINDS
from tests.small_site import Reply, SmallSite, links, moved
from tests.small_site import text as plain

HTML = {"Content-Type": "text/html"}
SITE = "https://a.example"
FAILED: dict[str, Any] = {"outcome": "failed", "status": 404}
# Errors without a code of their own.
SUBCLASSES = {kind.__name__: kind for kind in (errors.HeadTimeoutError, errors.HeaderLimitError)}
WAITS = "tries it again later, `--when-idle wait` waits"


class Tables:
    """Tables to which records are given one after the other."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._numbers = count(1)

    def put(self, *some: Record) -> None:
        numbers = [next(self._numbers) for _ in some]
        for record, number in zip(some, numbers, strict=True):
            record.agent, record.run, record.seq = "a-1", "r", number
        with transaction(self.engine) as connection:
            store(connection, [Stored(f"{number}-0", one) for one, number in zip(some, numbers, strict=True)])

    def seed(self, site: str, *its: Page, source: str = "seed", at: int = 1, **ended: Any) -> None:
        end = {"finished": True, "published": len(its), "known": max(1, len(its)), **ended}
        found = SiteFound(site=site, found_at=at, source=source)
        self.put(found, *its, SiteEnded(site=site, ended_at=at, **end))

    def told(self, most: int = 5) -> dict[str, Any]:
        return latest(self.engine, most)

    def line(self) -> str:
        """That of the one seed there is."""
        found = self.told()
        (one,) = (*found["empty"], *found["single"])
        return f"{one['why']}; {one['what_to_do']}"


@pytest.fixture
def tables(filled: OpenTables) -> Tables:
    return Tables(filled("sqlite"))


def page(path: str = "/", site: str = SITE, **given: Any) -> Page:
    stored = {
        "outcome": "stored",
        "status": 200,
        "size": 100,
        "content_type": "text/html",
        "content_hash": "0" * 32,
    }
    usual = stored if given.get("outcome", "stored") == "stored" else {}
    return Page(**{"site": site, "path": path, "fetched_at": 1, **usual, **given})


# --- What the tables say ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("CannotResolveHostError: a.example: Domain name not found", "name not found; check how its name is"),
        (
            "DownloadConnectionRefusedError: https://a.example/ (::1): Failed",
            "refused; check that a server runs",
        ),
        (
            "TlsError: https://a.example/ (1.2.3.4): SSL: self-signed certificate (18) (libcurl 60)",
            "TLS: SSL: self-signed certificate (18); its owner must fix that; DOWNLOAD_VERIFY",
        ),
        (
            "ConnectTimeoutError: https://a.example/: 10 s",
            f"connect timeout; it may be down: the same command {WAITS}",
        ),
        ("robots.txt answered 429", "robots.txt answered 429; it accepts fewer requests"),
        (
            "it answered 503; several URLs failed in a row",
            f"it answered 503; its server has an error or is overloaded: the same command {WAITS}",
        ),
        (
            "robots.txt allows visits 01:00-02:00",
            "robots.txt allows visits 01:00-02:00; the same command",
        ),
        (
            "the proxy http://p answered 407; log in",
            "the proxy http://p answered 407; log in; the same command",
        ),
        ("", "the crawl ended before it was fetched; the same command resumes it"),
    ],
)
def test_a_site_that_waits(tables: Tables, reason: str, says: str) -> None:
    tables.seed(SITE, finished=False, reason=reason)
    assert tables.line().startswith(says)


def failed(status: int, error: str = "", outcome: str = "failed", **more: str) -> dict[str, Any]:
    return {"status": status, "outcome": outcome, "error": error, **more}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (failed(-9, "robots.txt forbids it", "denied"), "robots.txt forbids it to this crawler; its owner"),
        (
            failed(-10, "AddressRefusedError: 10.0.0.1 is private"),
            "address refused: 10.0.0.1 is private; ALLOW_",
        ),
        (failed(-10, "AddressRefusedError: http://10.0.0.1/: private"), "address refused: private; ALLOW_"),
        (failed(-1, "no answer: CannotResolveHostError: x"), "name not found; check how"),
        (failed(401), "it answered 401; it requires a login: SITE_OVERRIDES"),
        (failed(403), "it answered 403; it refuses this crawler: check that USER_AGENT"),
        (failed(404), "it answered 404; check the path"),
        (failed(418), "it answered 418; "),
        (failed(500), "it answered 500; its server has an error or is overloaded: `--again` tries"),
        (
            failed(301, outcome="redirected", redirect="https://b.example/"),
            "it redirects to https://b.example/; seed that",
        ),
        (
            failed(302, outcome="redirected", redirect=f"{SITE}/2"),
            f"it redirects to {SITE}/2; open it in a browser: it may require a cookie",
        ),
        (
            failed(
                302,
                outcome="redirected",
                redirect=f"{SITE}/2",
                error="not followed: 20 redirects in a row (REDIRECT_MAX_TIMES)",
            ),
            f"it redirects to {SITE}/2, not followed: 20 redirects in a row (REDIRECT_MAX_TIMES); open it in a "
            "browser and seed the page where it ends",
        ),
        (
            failed(
                301,
                outcome="redirected",
                redirect="https://b.example/",
                error="not followed: USER_AGENT names no contact",
            ),
            "it redirects to https://b.example/, not followed: USER_AGENT names no contact; USER_AGENT must name you",
        ),
        (
            failed(
                301,
                outcome="redirected",
                redirect="https://b.example/",
                error="not followed: SCOPE_INCLUDE or SCOPE_EXCLUDE",
            ),
            "it redirects to https://b.example/, not followed: SCOPE_INCLUDE or SCOPE_EXCLUDE; SCOPE_INCLUDE and "
            "SCOPE_EXCLUDE exclude it",
        ),
        (failed(200, outcome="filtered"), f"{SITE}/ has a content type that is not kept; "),
        ({"size": 0}, f"{SITE}/ is empty; open it in a browser"),
        ({"content_type": "application/pdf"}, f"{SITE}/ is application/pdf, which is not searched"),
        (
            {"content_hash": ""},
            f"{SITE}/ has neither text nor links; if a browser shows more, scripts create it",
        ),
        (
            {"outside_hosts": [f"{letter}.example" for letter in "bcde"]},
            "all its links lead to other sites (b.example, c.example, d.example and 1 more); seed",
        ),
        ({}, f"{SITE}/ links to no other page; if a browser shows more, scripts create it"),
    ],
    ids=str,
)
def test_a_site_of_one_page(tables: Tables, given: dict[str, Any], says: str) -> None:
    tables.seed(SITE, page(**given))
    assert tables.line().startswith(says)


def test_what_is_no_poor_seed(tables: Tables) -> None:
    tables.seed("https://two.example", *(page(path, "https://two.example") for path in ("/", "/a")))
    tables.seed("https://link.example", source="link", finished=False)
    tables.seed("https://more.example", page("/", "https://more.example"), known=9, left_out={"depth": 8})
    tables.seed("https://open.example", page("/", "https://open.example"), finished=False, known=3, pending=2)
    broken = [page(f"/{number}", "https://half.example", **FAILED) for number in range(8)]
    tables.seed("https://half.example", *broken, page("/", "https://half.example"))
    found = tables.told()
    assert (found["seeds"], found["without_a_page"], found["with_one_page"]) == (4, 0, 0)
    assert text(found) == "  all 4 seeds gave more than one page"


def test_a_large_site_of_which_all_failed(tables: Tables) -> None:
    led = page("/", outcome="redirected", status=301, redirect=f"{SITE}/0")
    tables.seed(SITE, led, *(page(f"/{number}", **FAILED) for number in range(9)))
    assert tables.line().startswith("it answered 404; ")


def test_a_login_behind_a_redirect(tables: Tables) -> None:
    led = page("/", outcome="redirected", status=302, redirect=f"{SITE}/login")
    tables.seed(SITE, led, page("/login"))
    assert tables.line().startswith(
        f"it redirects to {SITE}/login, which links to no other page; if that is a login"
    )


def test_the_site_to_which_a_seed_redirects_stands_in_its_place(tables: Tables) -> None:
    old, new = "https://old.example", "https://new.example"
    tables.seed(old, page("/", old, outcome="redirected", status=301, redirect=f"{new}/"))
    tables.seed(new, page("/", new, **FAILED), source=f"{MOVED}{old}")
    found = tables.told()
    assert (found["seeds"], found["without_a_page"]) == (1, 1)
    assert f"{new} ({old} redirects there): it answered 404" in text(found)


def test_a_seed_that_redirects_to_a_known_site_with_pages(tables: Tables) -> None:
    old, new = "https://old.example", "https://new.example"
    tables.seed(old, page("/", old, outcome="redirected", status=301, redirect=f"{new}/"))
    tables.seed(new, *(page(path, new) for path in ("/", "/a")))
    assert tables.told()["without_a_page"] == 0


def test_a_site_that_is_stopped(tables: Tables) -> None:
    tables.seed(SITE, finished=False)
    tables.put(OperatorCommand(site=SITE, ordered_at=2, order="pause"))
    assert tables.line() == f"paused by the operator; `scrapy site resume {SITE}` resumes it"


def test_many_seeds_are_bounded_and_the_latest_are_named(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeds, "HELD", 4)  # so that those that are held are cut down on the way
    for number in range(1, 13):
        site = f"https://s{number}.example"
        tables.seed(site, page("/", site, **FAILED), at=number)
    lines = text(tables.told(3)).split("\n")
    assert lines[0] == "  12 of 12 seeds gave no page:"
    assert [line.split()[0] for line in lines[1:4]] == [
        f"https://s{number}.example:" for number in (12, 11, 10)
    ]
    assert lines[4] == "    … and 9 more: `scrapy report seeds` lists them"


@pytest.mark.parametrize("kind", KINDS)
def test_in_every_database(filled: OpenTables, kind: str) -> None:
    tables = Tables(filled(kind))
    tables.seed(SITE, finished=False, reason="robots.txt answered 503")
    tables.seed("https://b.example", page("/", "https://b.example", content_hash=""))
    found = tables.told()
    assert (found["seeds"], found["without_a_page"], found["with_one_page"]) == (2, 1, 1)


def test_every_error_of_a_download_has_its_status() -> None:
    """The names stand in `records`, where reports may see them; the classes and their codes in `errors`."""
    assert {kind.__name__: code for kind, code in errors.STATUS_CODES} == {
        name: status for name, status in STATUS_OF_ERROR.items() if name not in SUBCLASSES
    }
    assert {kind.__name__: errors.status_code_of(kind()) for kind in SUBCLASSES.values()} == {
        name: STATUS_OF_ERROR[name] for name in SUBCLASSES
    }
    assert set(STATUS_OF_ERROR.values()) <= STATUS_WORDS.keys()


# --- At the end of a crawl --------------------------------------------------------------------------------

AGENT = {"USER_AGENT": "test (+https://example.org/)"}
SHELL = Reply(
    200,
    HTML,
    "<title>App</title><noscript>Enable scripts</noscript><div id=root></div><script src=/m.js></script>",
)


@pytest.fixture
def refusing() -> Iterator[str]:
    """A port at which nobody listens, kept by a socket that does not."""
    with socket.socket() as held:
        held.bind(("127.0.1.9", 0))
        yield f"http://127.0.1.9:{held.getsockname()[1]}"


@pytest.fixture
def badly_certified(tmp_path: Path) -> Iterator[dict[str, str]]:
    """By what is wrong with its certificate: a site; and as `bundle` the file of those that are trusted."""
    files = {
        "self-signed": self_signed(tmp_path / "self.pem"),
        "expired": self_signed(tmp_path / "old.pem", ends_in_days=-1),
        "name": self_signed(tmp_path / "other.pem", "other.example"),
    }
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(files["expired"].read_bytes() + files["name"].read_bytes())
    with ExitStack() as stack:
        ports = {
            what: stack.enter_context(SmallSite({}, "127.0.0.1", context_of(file))).port
            for what, file in files.items()
        }
        yield {"bundle": str(bundle), **{what: f"https://localhost:{port}" for what, port in ports.items()}}


def test_a_crawl_ends_with_redirects_that_were_not_followed(place: Place) -> None:
    routes = {"//long.localhost/": moved("/1"), "//out.localhost/": moved("/private/")}
    routes |= {f"//long.localhost/{number}": moved(f"/{number + 1}") for number in range(1, 9)}
    with SmallSite(routes, "127.0.0.1") as web:
        long, out = (f"http://{name}.localhost:{web.port}" for name in ("long", "out"))
        away = f"http://away.localhost:{web.port}"
        web.routes["//away.localhost/"] = moved(f"{out}/private/")
        given = {"REDIRECT_MAX_TIMES": 3, "SCOPE_EXCLUDE": "/private/"}
        run = place.crawl([long, away], **AGENT, **given).stored_nothing()
    assert "/4, not followed: 3 redirects in a row (REDIRECT_MAX_TIMES); open it in a browser" in run.out
    assert f"{out}/private/, not followed: SCOPE_INCLUDE or SCOPE_EXCLUDE; SCOPE_INCLUDE and" in run.out
    assert "cookie" not in next(line for line in run.out.splitlines() if away in line)


def test_a_crawl_ends_with_each_seed_that_gave_nothing(
    place: Place, refusing: str, badly_certified: dict[str, str]
) -> None:
    routes = {"//good.localhost/": links("/a", "/b"), "//good.localhost/a": links(), "//js.localhost/": SHELL}
    routes["//closed.localhost/robots.txt"] = plain("User-agent: *\nDisallow: /")
    routes |= {f"//s{status}.localhost/": Reply(status, HTML, "no") for status in (401, 403, 404, 429, 503)}
    routes["//login.localhost/"], routes["//login.localhost/in"] = (
        moved("/in"),
        Reply(200, HTML, "<form>sign in"),
    )
    routes["//empty.localhost/"] = Reply(200, HTML, "")
    routes["//out.localhost/"] = links("http://elsewhere.invalid/")
    routes["//paper.localhost/x"] = Reply(200, {"Content-Type": "application/pdf"}, "%PDF-1.4")
    with SmallSite(routes, "127.0.0.1") as web:

        def named(name: str) -> str:
            return f"http://{name}.localhost:{web.port}"

        empty = {
            "http://nosuch.invalid": "name not found; check how its name is spelt",
            refusing: "refused; check that a server runs there",
            badly_certified["self-signed"]: "TLS: ",
            badly_certified["expired"]: "has expired",
            badly_certified["name"]: "matches target hostname",
            named("closed"): "robots.txt forbids it to this crawler; its owner",
            **{named(f"s{status}"): f"it answered {status}; " for status in (401, 403, 404, 429, 503)},
        }
        single = {
            named("js"): "has neither text nor links; if a browser shows more, scripts create it",
            named("login"): "/in, which links to no other page; if that is a login: SITE_OVERRIDES",
            named("empty"): "is empty; open it",
            named("out"): "all its links lead to other sites (elsewhere.invalid)",
            named("paper"): "is application/pdf, which is not searched for links",
        }
        wanted = [
            *empty,
            *(site for site in single if "paper" not in site),
            f"{named('paper')}/x",
            named("good"),
        ]
        run = place.crawl(wanted, env={"SSL_CERT_FILE": badly_certified["bundle"]}, **AGENT).succeeded()
    assert "  11 of 17 seeds gave no page:\n" in run.out
    assert "  5 of 17 seeds gave one page and no more:\n" in run.out
    assert run.out.count("    … and 6 more: `scrapy report seeds` lists them\n") == 1
    found = json.loads(place.run("report", "seeds", "summary", "--json").succeeded().out)
    for kind, sites in (("empty", empty), ("single", single)):
        lines = {one["site"]: f"{one['why']}; {one['what_to_do']}" for one in found["seeds"][kind]}
        assert lines.keys() == sites.keys()
        for site, says in sites.items():
            assert says in lines[site]
            assert lines[site].isprintable()
    short = found["summary"]["poor_seeds"]
    assert (short["without_a_page"], short["with_one_page"], len(short["empty"])) == (11, 5, 5)
    assert all(one in found["seeds"]["empty"] for one in short["empty"])


@pytest.mark.parametrize("words", [(), ("--agents", "2", "--no-summary")], ids=" ".join)
def test_a_crawl_that_stores_no_page_has_not_worked(place: Place, words: tuple[str, ...]) -> None:
    with SmallSite({"/robots.txt": plain("User-agent: *\nDisallow: /")}) as web:
        run = place.crawl([web.root], *words)
    said = f"lowtide: no page was stored: {web.site}: robots.txt forbids it to this crawler; its owner"
    assert run.refused(code=1).err.splitlines()[-1].startswith(said)


def test_a_crawl_that_finds_nothing_to_do_but_has_pages_has_worked(place: Place) -> None:
    with SmallSite({"/": links("/a"), "/a": links()}) as web:
        place.crawl([web.root]).succeeded()
        place.crawl([web.root]).succeeded()
        place.crawl(["http://nosuch.invalid"], **AGENT).succeeded()
