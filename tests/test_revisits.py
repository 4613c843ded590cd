"""Recheck by crawler.recrawl, from the tables: what is believed of a site, what is chosen of it, and a crawl."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Engine, delete, select, update

from crawler.options import Options
from crawler.records import Asked, Page, Record, hash64
from crawler.recrawl import account as accounts
from crawler.recrawl.account import Account, Mean
from crawler.store.beliefs import believed
from crawler.store.database import migrate, open_database, transaction
from crawler.store.revisits import Look, Revisits
from crawler.store.tables import beliefs, pages, rankings, ranks
from crawler.store.writing import Stored, forget, store
from tests.conftest import MakeDatabase
from tests.crawling import Place
from tests.databases import KINDS
from tests.queue_driver import queue_options
from tests.servers import eventually
from tests.small_site import Reply, SmallSite, links

SITE = "https://a.example"
KEY = hash64(SITE)
INTERVAL = 1000.0
MANY = 40
every_kind = pytest.mark.parametrize("kind", KINDS)
Web = Callable[..., "Told"]
HTML = {"Content-Type": "text/html"}
LIVELY = (3, 7)


class Told:
    """A site whose pages change at rates of their own; recheck without agents, records go straight to the tables."""

    def __init__(self, engine: Engine, **settings: Any) -> None:
        self.engine = engine
        self.options: Options = queue_options(recheck_interval_seconds=INTERVAL, **settings)
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
        return Asked(
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
            return -self.account.saved
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
def site(make_database: MakeDatabase) -> Iterator[Web]:
    engines: list[Engine] = []

    def made(kind: str, **settings: Any) -> Told:
        engines.append(open_database(make_database(kind)))
        migrate(engines[-1])
        return Told(engines[-1], **settings)

    yield made
    for engine in engines:
        engine.dispose()


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


def test_a_look_that_came_to_nothing_is_the_same_again(site: Web) -> None:
    """A packer that dies keeps no secret; the next one finds what it found, and visits count once."""
    told = site("sqlite")
    told.live(3 * INTERVAL, lively)
    first, second = told.look(), told.look()
    assert [row.url for row in first.rows] == [row.url for row in second.rows]
    assert first.wake_ms == pytest.approx(second.wake_ms, abs=5000)
    assert first.account.price == second.account.price


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
    assert told.look() == Look([], 0, told.account, told.look().site) or told.look().rows == []


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


# --- the account ---


def test_an_account_saves_a_window_and_moves_its_price_by_what_was_wanted() -> None:
    account = accounts.brought_up(Account(price=1.0), 100.0, 10.0)
    assert (account.saved, account.price) == (0.0, 1.0)
    dearer = accounts.spent(account, 30.0, 30.0, 0.0, 10.0)
    assert dearer.saved == -30.0
    assert dearer.price > 1.0
    level = accounts.brought_up(dearer, 130.0, 10.0)
    assert level.saved == 0.0
    assert level.price == pytest.approx(1.0), "as much was had as was wanted, in however many looks"
    cheaper = accounts.brought_up(level, 200.0, 10.0)
    assert cheaper.price < 1.0
    assert cheaper.saved == 10.0, "no more than a window's"
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
    assert accounts.of({**account._asdict(), "wanted": 1.0}) == account, "one that an older version kept"
    assert accounts.of({}) == Account()
    assert account.mean == Mean(-3.0, 5.0) and Account().mean is None


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
            "RECRAWL_MODE is 'fresh'; wanted one of default, importance, ", ", interval, or a dotted path"
        )


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
