"""Recheck by crawler.recheck, from the tables: what is believed of a site, what is chosen of it, and a crawl."""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scrapy.settings import Settings
from sqlalchemy import Engine, delete, event, func, insert, select, update

from crawler.admin import operator
from crawler.coordinator.planner_process import TableLoads
from crawler.options import LONGEST_SECONDS, Options
from crawler.queue.jobs import HELD_UP_MS
from crawler.recheck import account as accounts
from crawler.recheck import report as freshness
from crawler.recheck.account import Account, Mean
from crawler.recheck.change_model import believed
from crawler.recheck.planner import RecheckPlanner
from crawler.recheck.revisits import Look, Revisits
from crawler.records import Page, RecheckResult, Record, hash64
from crawler.reports import Crawl
from crawler.reports import freshness as report
from crawler.store.database import transaction
from crawler.store.tables import beliefs, pages, rankings, ranks
from crawler.store.write import Stored, forget, store
from crawler.urls.scope import Scope
from tests.conftest import OpenTables
from tests.crawling import Place
from tests.databases import KINDS
from tests.queue_driver import BASE, Driver, driver, queue_options
from tests.servers import RunningServer, eventually
from tests.small_site import Reply, SmallSite, links

SITE = "https://a.example"
KEY = hash64(SITE)
INTERVAL = 1000.0
MANY = 40
every_kind = pytest.mark.parametrize("kind", KINDS)
Web = Callable[..., "Told"]
HTML = {"Content-Type": "text/html"}
LIVELY = (3, 7)
HOUR = 3600.0


class Told:
    """A site whose pages change at rates of their own; recheck without agents, records go straight to the tables."""

    def __init__(self, engine: Engine, **settings: Any) -> None:
        self.engine = engine
        self.options: Options = queue_options(**{"recheck_interval_seconds": INTERVAL, **settings})
        self.revisits = Revisits(engine, self.options)
        self.random = random.Random(1)
        self.version = [0] * MANY
        self.taken = [0] * MANY
        self.visits: Counter[int] = Counter()
        self.account = Account()
        self.now = 1_795_000_000.0  # as times are: float32 would be off by a minute
        self.sequence = 0
        self.put(*(self.page(one) for one in range(MANY)))

    def page(self, one: int) -> Page:
        """As it is now."""
        self.taken[one] = self.version[one]
        text = f"{one:016x}{self.version[one]:016x}"
        return Page(
            site=SITE, path=f"/{one}", fetched_at=self.ms, status=200, outcome="stored", sha256=text * 2,
            content_hash=text, size=1000, agent="h", run="r", seq=self.next(),
        )  # fmt: skip

    def asked(self, one: int) -> Record:
        """What its answer is."""
        self.visits[one] += 1
        if self.version[one] != self.taken[one]:
            return self.page(one)
        return RecheckResult(
            site=SITE, path=f"/{one}", work="recheck", asked_at=self.ms, before="visited", answer="unchanged",
            status=304, agent="h", run="r", seq=self.next(),
        )  # fmt: skip

    @property
    def ms(self) -> int:
        return int(self.now * 1000)

    def next(self) -> int:
        self.sequence += 1
        return self.sequence

    def put(self, *records: Record) -> None:
        with transaction(self.engine) as connection:
            store(connection, [Stored(f"{self.next()}-0", one) for one in records])

    def look(self) -> Look:
        self.account = accounts.brought_up(self.account, self.now, self.revisits.window())
        return self.revisits.look(SITE, self.ms, self.ms, self.account, 1.0, 1000)

    def asked_what_was_chosen(self) -> float:
        """Seconds until it is worth looking again; as the packer, only where the account is not overdrawn."""
        self.account = accounts.brought_up(self.account, self.now, self.revisits.window())
        if self.account.saved < 0:
            return max(-self.account.saved, 1.0)
        looked = self.look()
        self.account = looked.account
        if looked.rows:
            self.put(*(self.asked(int(row.url.rpartition("/")[2])) for row in looked.rows))
        return max(looked.wake_ms / 1000 - self.now, 1.0)

    def live(self, seconds: float, rate: Callable[[int], float]) -> None:
        """Look, ask what was chosen, sleep; pages change meanwhile, `rate` times a second."""
        end = self.now + seconds
        while self.now < end:
            passed = self.asked_what_was_chosen()
            for one in range(MANY):
                if self.random.random() < min(rate(one) * passed, 1.0):
                    self.version[one] += 1
            self.now += passed


@pytest.fixture
def site(filled: OpenTables) -> Web:
    return lambda kind, **settings: Told(filled(kind), **settings)


def lively(one: int) -> float:
    """Every fourth page changes twice within an interval, the others once in fifty."""
    return 2 / INTERVAL if one % 4 == 0 else 0.02 / INTERVAL


@every_kind
def test_lively_pages_are_asked_more_often_within_the_budget(kind: str, site: Web) -> None:
    told = site(kind, recrawl_mode="freshness")
    told.live(15 * INTERVAL, lively)
    lots = sum(told.visits[one] for one in range(0, MANY, 4)) / (MANY / 4)
    few = sum(told.visits[one] for one in range(MANY) if one % 4) / (MANY * 3 / 4)
    assert lots > 2 * few
    assert 0.6 * 15 * MANY < told.visits.total() < 1.15 * 15 * MANY
    site_ = believed(told.engine, KEY, "default", told.account.mean)
    numbers = {int(row.url.rpartition("/")[2]): number for number, row in site_.rows.items()}
    rate = site_.recrawl.view([numbers[0], numbers[1]], told.now, 1.0).rate
    assert rate[0] > 5 * rate[1]


# By round robin all pages' waits grow alike, so that they want their visits in waves.
@pytest.mark.parametrize(("mode", "least"), [("default", 0.95), ("round_robin", 0.8)])
def test_the_budget_is_used_up(mode: str, least: float, site: Web) -> None:
    """Once the price has found its place."""
    told = site("sqlite", recrawl_mode=mode)
    told.live(5 * INTERVAL, lively)
    told.visits.clear()
    told.live(10 * INTERVAL, lively)
    assert least * 10 * MANY < told.visits.total() < 1.02 * 10 * MANY


def test_round_robin_asks_all_alike(site: Web) -> None:
    told = site("sqlite", recrawl_mode="round_robin")
    told.live(10 * INTERVAL, lively)
    assert max(told.visits.values()) <= min(told.visits.values()) + 3
    assert 0.6 * 10 * MANY < told.visits.total() < 1.15 * 10 * MANY


@pytest.mark.parametrize(
    ("settings", "most"),
    [({"recheck_requests_per_hour": 36}, 36), ({"recheck_bytes_per_hour": 36_000}, 36)],
    ids=["requests", "bytes"],
)
def test_budgets_are_kept(settings: dict[str, int], most: float, site: Web) -> None:
    told = site("sqlite", **settings)
    told.live(5 * 3600.0, lively)
    assert 0.5 * 5 * most < told.visits.total() < 1.2 * 5 * most


@pytest.mark.parametrize(
    "settings",
    [{"recheck_interval_seconds": 1e-300}, {"recheck_requests_per_hour": 10**300}],
    ids=["interval", "requests"],
)
def test_a_sweep_takes_a_millisecond_at_least(settings: dict[str, Any], site: Web) -> None:
    """Warnings of figures that are none would be errors here."""
    told = site("sqlite", **settings)
    told.live(20.0, lively)
    assert told.visits.total()
    assert told.revisits.sweep() == 0.001
    assert math.isfinite(freshness.budget(told.engine, told.options))


NO_FIGURES = (1e300, -1e30, 1e-300, math.nan, -math.inf)


@pytest.mark.parametrize(
    ("field", "value"),
    [*((field, value) for field in Account._fields for value in NO_FIGURES), ("log_rate", 1000.0)],
)
def test_what_somebody_else_wrote_as_the_account_stops_nothing(field: str, value: float, site: Web) -> None:
    told = site("sqlite")
    told.account = accounts.of({"price": 1.0, "log_rate": -7.0, "information": 5.0, field: value})
    told.live(INTERVAL, lively)
    assert told.visits.total() > 0
    assert all(map(math.isfinite, told.account))


def test_what_will_likely_answer_with_a_head_alone_costs_less(site: Web) -> None:
    """Of pages that never changed, those that have a validator; but of bytes, not of requests."""
    told = site("sqlite", recheck_bytes_per_hour=3_600)
    told.live(3 * INTERVAL, lambda one: 0.0)
    with transaction(told.engine) as connection:
        connection.execute(update(pages).where(pages.c.url == f"{SITE}/0").values(etag='"x"'))
    found = believed(told.engine, KEY, "default", told.account.mean)
    numbers = {int(row.url.rpartition("/")[2]): number for number, row in found.rows.items()}
    asked = [numbers[0], numbers[1]]
    named, plain = told.revisits.costs(found, asked, told.now)
    assert plain == 1000 and 500 < named < 800
    requests = Revisits(told.engine, msgspec.structs.replace(told.options, recheck_bytes_per_hour=0))
    assert len(set(requests.costs(found, asked, told.now))) == 1


@pytest.mark.parametrize("torn", [b"", b"x" * 7, b"x" * 8])
def test_what_is_kept_and_cannot_be_read_begins_anew(
    torn: bytes, site: Web, caplog: pytest.LogCaptureFixture
) -> None:
    told = site("sqlite")
    told.live(3 * INTERVAL, lively)
    with transaction(told.engine) as connection:
        connection.execute(update(beliefs).values(url_hashes=torn))
    told.live(3 * INTERVAL, lively)
    assert f"site {KEY}: stored change estimates are unusable" in caplog.text
    assert len(believed(told.engine, KEY, "default", told.account.mean).rows) == MANY


def test_a_look_that_came_to_nothing_is_the_same_again(site: Web) -> None:
    """A packer that dies keeps no secret; the next one finds what it found, and visits count once."""
    told = site("sqlite")
    told.live(3 * INTERVAL, lively)
    first, second = told.look(), told.look()
    assert [row.url for row in first.rows] == [row.url for row in second.rows]
    assert first.wake_ms == pytest.approx(second.wake_ms, abs=5000)
    assert first.account.price == second.account.price


@pytest.mark.parametrize("signalled", [False, True])
@pytest.mark.parametrize("days", [1, 30, 90, 120, 400])
def test_a_visit_is_learned_once_however_often_and_late_it_is_looked_at(
    days: int, signalled: bool, site: Web
) -> None:
    """Also where what is kept of its time is coarse, and where the times' base moves between or within two looks."""
    told = site("sqlite", recheck_longest_seconds=1e9)
    told.look()
    told.version[: MANY // 2] = [1] * (MANY // 2)
    told.now += days * 86_400 / 2
    for one in range(MANY):
        told.now += 3600.3
        told.put(told.asked(one))
    told.look()
    learned = _learned(told)
    for turn in range(4):
        told.now += days * 86_400 + 0.7
        if signalled:
            with transaction(told.engine) as connection:
                one = pages.c.url == f"{SITE}/{turn}"
                connection.execute(update(pages).where(one).values(signalled_at=told.ms))
        told.look()
        told.look()
        assert _learned(told) == learned


def test_a_page_that_changed_once_is_not_thought_to_change_at_each_visit(site: Web) -> None:
    told = site("sqlite")
    told.look()
    shapes = []
    for version in (1, 1, 1):
        told.now += INTERVAL
        told.version[0] = version
        told.put(told.asked(0))
        told.look()
        found = believed(told.engine, KEY, "default", told.account.mean)
        number = next(n for n, row in found.rows.items() if row.url == f"{SITE}/0")
        shapes.append(float(found.recrawl.view([number], told.now, 1.0).belief[0][0]))
    assert shapes[0] > 1.0
    assert shapes[1:] == [shapes[0]] * 2, "unchanged since: its shape stays"


def _learned(told: Told) -> list[tuple[float, float]]:
    """What is believed of each page's rate."""
    found = believed(told.engine, KEY, "default", told.account.mean).recrawl
    a, b = found.view(found.pages(0), told.now, 1.0).belief
    return list(zip(a.tolist(), b.tolist(), strict=True))


@pytest.mark.parametrize("lost", ["gone", "broken"])
def test_beliefs_that_are_lost_begin_anew_and_go_on(lost: str, site: Web) -> None:
    told = site("sqlite")
    told.live(2 * INTERVAL, lively)
    with transaction(told.engine) as connection:
        if lost == "gone":
            connection.execute(delete(beliefs))
        else:
            connection.execute(update(beliefs).values(packed=b"no such thing"))
    before = told.visits.total()
    told.live(5 * INTERVAL, lively)
    assert told.visits.total() > before + 2 * MANY
    with told.engine.connect() as connection:
        assert connection.execute(select(beliefs.c.pages)).scalar() == MANY


def test_pages_come_go_and_are_silent(site: Web) -> None:
    told = site("sqlite")
    told.live(2 * INTERVAL, lively)
    with transaction(told.engine) as connection:
        connection.execute(update(pages).where(pages.c.url == f"{SITE}/0").values(state="dead"))
        connection.execute(update(pages).where(pages.c.url == f"{SITE}/1").values(state="no_response_1"))
    asked = told.visits[0], told.visits[1]
    told.live(3 * INTERVAL, lively)
    assert (told.visits[0], told.visits[1]) == asked
    found = believed(told.engine, KEY, "default", None)
    assert {row.url for row in found.rows.values()} == {f"{SITE}/{one}" for one in range(1, MANY)}


def test_a_forgotten_site_is_believed_nothing(site: Web) -> None:
    told = site("sqlite")
    told.live(INTERVAL, lively)
    with transaction(told.engine) as connection:
        forget(connection, SITE)
        assert connection.execute(select(beliefs.c.site_id)).all() == []
    assert told.look()[:2] == ([], 0)


@every_kind
def test_how_fresh_many_sites_are_is_read_some_sites_at_a_time(
    kind: str, site: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each site once and whole, three of 40 pages with each reading; one that nobody can read is left out."""
    told = site(kind)
    told.look()
    with transaction(told.engine) as connection:
        kept = dict(connection.execute(select(beliefs)).mappings().one())
        others = [{**kept, "site_id": number} for number in (-(2**63), -5, 0, 7, 8, 2**63 - 1)]
        connection.execute(insert(beliefs), [*others, {**kept, "site_id": 9, "packed": b"torn"}])
    monkeypatch.setattr(freshness, "PAGES_AT_A_TIME", 3 * MANY)
    monkeypatch.setattr(freshness, "FEWEST_PAGES", 1)
    asked: list[str] = []
    event.listen(told.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    found = freshness.standing(told.engine, told.options, None)
    assert [len(one.current) for one in found] == [MANY] * 7
    assert len([words for words in asked if "packed" in words]) == 3


def test_importance_comes_from_the_ranking_in_force(site: Web) -> None:
    told = site("sqlite", recrawl_mode="importance")
    with transaction(told.engine) as connection:
        values = {
            "source": "r",
            "mode": "exact",
            "block": "site",
            "damping": 0.85,
            "pages": MANY,
            "began_at": 1,
        }
        run = connection.execute(rankings.insert().values(**values, finished_at=2)).inserted_primary_key[0]  # type: ignore[index]
        connection.execute(
            ranks.insert(),
            [
                {"run": run, "site_id": KEY, "url_hash": hash64(f"{SITE}/{one}"), "rank": 1 / MANY,
                 "importance": 20.0 if one == 3 else 0.5} for one in range(MANY)
            ],
        )  # fmt: skip
    told.live(10 * INTERVAL, lambda one: 0.5 / INTERVAL)
    others = [told.visits[one] for one in range(MANY) if one != 3]
    assert told.visits[3] > 2 * sum(others) / len(others)


def test_a_busy_hour_puts_visits_off(site: Web) -> None:
    told = site("sqlite")
    told.live(3 * INTERVAL, lively)
    told.account = accounts.brought_up(told.account, told.now, told.revisits.window())
    idle, busy = (
        len(told.revisits.look(SITE, told.ms + 300_000, told.ms, told.account, pace, 1000).rows)
        for pace in (1.0, 20.0)
    )
    assert busy < idle


def test_a_rebuilt_queue_knows_when_recheck_wanted_to_look(site: Web, valkey: RunningServer) -> None:
    told = site("sqlite")
    with driver(valkey, **msgspec.structs.asdict(told.options)) as queue:
        assert _rebuilt(queue, told) == pytest.approx(told.ms + told.options.first_recheck_seconds * 1000)
        told.live(INTERVAL, lively)
        with transaction(told.engine) as connection:
            wake = connection.execute(select(beliefs.c.wake_at)).scalar_one()
        assert _rebuilt(queue, told) == wake
        plain = msgspec.structs.replace(told.options, recrawl_mode="interval")
        with transaction(told.engine) as connection:
            asked_at = func.coalesce(pages.c.last_checked, pages.c.fetched_at)
            first = connection.execute(select(func.min(asked_at))).scalar_one()
        assert _rebuilt(queue, told, plain) == first + INTERVAL * 1000


def _rebuilt(queue: Driver, told: Told, options: Options | None = None) -> float:
    """When recheck is due for the site, in a queue that was lost."""
    queue.raw.flushall()
    given = options or told.options
    queue.wait(operator.rebuild(queue.queue, told.engine, Scope(given), given))
    return float(queue.raw.zscore(f"{BASE}wake:recheck", SITE) or 0)


def test_recheck_that_is_never_to_ask_lets_go_of_what_was_due(site: Web, valkey: RunningServer) -> None:
    told = site("sqlite")
    where = told.engine.url.render_as_string(hide_password=False)
    given = msgspec.structs.replace(told.options, recheck_interval_seconds=0.0, database_url=where)
    with driver(valkey, **msgspec.structs.asdict(given)) as queue:
        queue.join("one", {"works": ["site", "recheck"]})
        queue.add(SITE)
        queue.leave("one", queue.take_one("one"), "finished", known=MANY, done=MANY)
        queue.fall_due("recheck", {SITE: 1})
        packer = RecheckPlanner(queue.queue, given, "packer", TableLoads(given))
        with closing(packer):
            while queue.due("recheck", 9):
                queue.wait(packer.look())
        assert queue.take("one", 1, "recheck") == []


# --- the report ---


def test_a_page_is_told_of_by_any_spelling_of_its_url(site: Web) -> None:
    told = site("sqlite")
    told.put(msgspec.structs.replace(told.page(0), path="/"))
    told.look()
    for url in (SITE, f"{SITE}:443/#top", "HTTPS://A.example"):
        assert freshness.explained(told.engine, told.options, told.account, url)["url"] == f"{SITE}/"
    with pytest.raises(
        freshness.PageUnknownError, match=r"expected http or https, so it is not among the pages"
    ):
        freshness.explained(told.engine, told.options, told.account, "a.example/0")


@every_kind
def test_the_report_says_how_much_was_not_looked_at(kind: str, site: Web, valkey: RunningServer) -> None:
    told = site(kind)
    told.look()
    others = [msgspec.structs.replace(told.page(one), site="https://b.example") for one in range(5)]
    told.put(
        *others, msgspec.structs.replace(others[0], path="/gone", outcome="failed", status=404, sha256="")
    )
    with transaction(told.engine) as connection:
        connection.execute(update(pages).where(pages.c.url == f"{SITE}/0").values(state="dead"))
    found = report.figures(Crawl(told.engine, Settings({"REDIS_URL": valkey.url}), told.options, ""))
    assert (found["pages"], found["pages_in_all"]) == (MANY, MANY + 4)
    assert (found["sites"], found["sites_in_all"]) == (1, 2)
    assert report.text(found).startswith(f"{MANY} of {MANY + 4} pages, on 1 of 2 sites, considered so far")
    assert found["budget_per_hour"] == pytest.approx(MANY * HOUR / INTERVAL), "of what was looked at"


@pytest.mark.parametrize("longest", [0.001, LONGEST_SECONDS])
@pytest.mark.parametrize("interval", [0.001, LONGEST_SECONDS])
def test_the_shortest_and_the_longest_times_can_be_told_of(
    interval: float, longest: float, site: Web
) -> None:
    told = site("sqlite", recheck_longest_seconds=longest)
    told.options = msgspec.structs.replace(told.options, recheck_interval_seconds=interval)
    told.revisits = Revisits(told.engine, told.options)
    looked = told.look()
    assert told.ms < looked.wake_ms < HELD_UP_MS
    for price in (1e-300, looked.account.price, 1e300):
        account = looked.account._replace(price=price)
        found = freshness.explained(told.engine, told.options, account, f"{SITE}/1")
        assert f"at a price of {price:.3g}" in report.text(found)


def test_pages_that_are_due_soon_are_weighed_against_those_of_all_sites(site: Web) -> None:
    """A site's pages are due at the price that all sites pay, however many others there are."""
    told = site("sqlite")
    told.live(3 * INTERVAL, lively)
    account = told.account._replace(price=20 * told.account.price)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: told.now)
        (alone,) = freshness.standing(told.engine, told.options, account)
        with transaction(told.engine) as connection:
            row = connection.execute(select(beliefs)).mappings().one()
            # Nine more sites like this one: each has a tenth of the budget.
            copies = [{**row, "site_id": number} for number in range(1, 10)]
            connection.execute(beliefs.insert(), copies)
        ten = freshness.standing(told.engine, told.options, account)
        rate = int(MANY * 10 * HOUR / INTERVAL)
        given = msgspec.structs.replace(told.options, recheck_requests_per_hour=rate)
        assert [one.due for one in ten] == [
            one.due for one in freshness.standing(told.engine, given, account)
        ]
    assert sum(ten[0].due.values()) > sum(alone.due.values()), "a visit costs a tenth"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"recrawl_mode": "interval"},
            "RECRAWL_MODE is 'interval': recheck fetches all pages at the same interval",
        ),
        ({"recheck_interval_seconds": 0.0}, "RECHECK_INTERVAL_SECONDS is 0: recheck fetches no page"),
    ],
    ids=["interval", "never"],
)
def test_the_report_says_why_nothing_is_believed(settings: dict[str, Any], words: str, site: Web) -> None:
    told = site("sqlite")
    options = msgspec.structs.replace(told.options, **settings)
    for url in ("", f"{SITE}/1"):
        found = report.figures(Crawl(told.engine, Settings(), options, url))
        assert found["pages"] == 0
        assert report.text(found).startswith(words)
        assert report.pictures(found) == []


# --- the account ---


def test_an_account_saves_some_windows_and_moves_its_price_by_what_was_wanted() -> None:
    account = accounts.brought_up(Account(price=1.0), 100.0, 10.0)
    assert (account.saved, account.price) == (0.0, 1.0)
    dearer = accounts.spent(account, 30.0, 30.0, 0.0, 10.0)
    assert dearer.saved == -30.0
    assert dearer.price > 1.0
    level = accounts.brought_up(dearer, 130.0, 10.0)
    assert level.saved == 0.0
    assert level.price == pytest.approx(1.0), "as much was had as was expected, in however many looks"
    cheaper = accounts.brought_up(level, 200.0, 10.0)
    assert cheaper.price < 1.0
    assert cheaper.saved == 40.0, "no more than four windows'"
    assert accounts.brought_up(level, 200.0, 0.5).saved == 5.0, "nor what passes while all sites are in hand"
    back = accounts.brought_up(cheaper, 50.0, 10.0)
    assert (back.saved, back.price) == (cheaper.saved, cheaper.price), "a clock that jumped back"
    assert accounts.brought_up(level, 1e9, 10.0).price > 0.5, "a long pause is no reason to give all away"
    late = accounts.spent(account, 1.0, 1.0, 100.0, 10.0)
    assert late.price > accounts.spent(account, 1.0, 1.0, 10.0, 10.0).price, "who waits wants too"
    crowd = accounts.spent(account, 1.0, 1e9, 0.0, 10.0).price
    assert late.price < crowd < 1.1, "what there is no budget for counts a window at most"
    assert accounts.spent(Account(), 1.0, 1.0, 0.0, 10.0).price == 0.0, "not found yet"


def test_an_account_is_carried_as_figures() -> None:
    account = Account(price=2.0, log_rate=-3.0, information=5.0, saved=-1.0, looked=8.0)
    assert accounts.of(account._asdict()) == account
    assert accounts.of({**account._asdict(), "expected": 1.0}) == account, "one that an older version kept"
    assert accounts.of({}) == Account()
    assert account.mean == Mean(-3.0, 5.0) and Account().mean is None


@pytest.mark.parametrize(
    "harm",
    [("hset", "price", "abc"), ("hset", "saved", "nan"), ("hset", b"\xff", "1"), ("set", "abc")],
    ids=["no number", "nan", "no name", "no hash"],
)
def test_an_account_that_cannot_be_read_is_none_and_is_replaced(
    harm: tuple[str | bytes, ...], valkey: RunningServer
) -> None:
    account = Account(price=2.0, looked=8.0)._asdict()
    with driver(valkey) as queue:
        queue.keep_account(account)
        if harm[0] == "set":
            valkey.client.delete(f"{BASE}recrawl")
        valkey.client.execute_command(harm[0], f"{BASE}recrawl", *harm[1:])
        assert queue.account() == {}
        queue.keep_account(account)
        assert queue.account() == account


def test_a_visit_costs_the_larger_share_of_its_budgets() -> None:
    assert accounts.cost_of(1e6, 3600.0, float("inf")) == 1.0
    assert accounts.cost_of(1e6, 3600.0, 3.6e8) == 10.0
    assert accounts.cost_of(1e3, 3600.0, 3.6e8) == 1.0


# --- a crawl ---


@pytest.mark.parametrize("words", [("coordinate",), ("crawl", "recheck")])
def test_a_mode_that_is_none_is_refused_with_those_there_are(words: tuple[str, ...], tmp_path: Path) -> None:
    with Place(tmp_path) as place:
        run = place.run(*words, RECRAWL_MODE="fresh")
        run.refused(
            "RECRAWL_MODE is 'fresh'; expected one of default, importance, ", ", interval, or a dotted path"
        )


@pytest.mark.drill
@pytest.mark.timeout(240)
def test_agents_ask_the_lively_pages_more_often(tmp_path: Path) -> None:
    """Two of twelve pages are another each few seconds; a coordinator's packer finds out which."""
    routes: dict[str, Any] = {"/": links(*(f"/{one}" for one in range(11)))}
    for one in range(11):
        routes[f"/{one}"] = Reply(200, HTML, f"<title>{one}</title>text of {one}")
    with SmallSite(routes) as web, Place(tmp_path) as place:
        for one in LIVELY:
            web.routes[f"/{one}"] = lambda _: Reply(200, HTML, f"version {time.monotonic() // 6}")
        given = {"RECRAWL_MODE": "freshness", "RECHECK_INTERVAL_SECONDS": 5, "DOWNLOAD_DELAY": 0}
        run = place.start_crawl([web.root], "--with", "recheck", "--when-idle", "wait", **given)

        def found_out() -> bool:
            lots = sum(web.pages[f"/{one}"] for one in LIVELY) / 2
            few = sum(web.pages[f"/{one}"] for one in range(11) if one not in LIVELY) / 9
            return lots >= 8 and lots > 1.3 * few

        eventually(found_out, "lively pages to be asked more often", 200)
        report = ("report", "freshness")
        said = json.loads(place.run(*report, "--json", **given).succeeded().out)["freshness"]
        assert said["pages"] == 12
        assert 0 < said["believed_fresh"] < 1
        assert said["due_within_hours"]["24"] == 12
        url = f"{web.root.rstrip('/')}/3"
        why = json.loads(place.run(*report, "--url", url, "--json", **given).succeeded().out)["freshness"]
        assert why["changes_a_day"] > 1000
        assert why["price"] > 0
        told = place.run(*report, "--url", url, **given).succeeded().out
        assert "times a day" in told and "at a price of" in told
        place.run(*report, "--url", url + "/no", **given).refused("is not among the pages")
        run.end().succeeded()
        assert place.rows("select count(*) from beliefs") == [(1,)]
