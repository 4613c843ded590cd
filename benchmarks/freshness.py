"""How fresh real agents keep a real copy: ten sites whose pages change at known rates, watched in several ways at once.

    python benchmarks/freshness.py [--parts modes conditional] [--days 5] [--pages 300] [--kills 3] [--json]

A shortened day is DAY seconds; in a sweep (472 of its 1440 minutes, as in paper 004's experiment) the budget of
requests asks each page once, and a site is asked once a minute at most. The crawls run side by side over one web
(changing_web.py), each with a server, a coordinator and two agents of its own, all with the same budget: the default
mode, `paper` and round robin (RECRAWL_MODE `interval`). First they load all, and the first crawl's pages are ranked;
then pages begin to change; after a day freshness is measured to the end. It is true freshness: from what the web gave
to whom, as far as the crawl's tables have it, and from the drawn changes; of all pages alike, and by importance, as who
asks for pages finds it.

On the way agents are killed (`kill -9`), those of all crawls at the same moments, and others started. At the end the
tables must have every answer that the web gave, but for those that a killed agent had in hand; and what is believed of
each page must be what follows from the web's own record.

`conditional`: the default mode with and without conditional requests, half as long; what they save in bytes and CPU.

Exit code 1: a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from functools import cached_property
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import redis

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.changing_web import PLAIN, ChangingWeb, Given, Plan, Standing, standing  # noqa: E402
from benchmarks.crawls import end_in_order  # noqa: E402
from benchmarks.goals import Goal, goals_table, goals_told  # noqa: E402
from benchmarks.meters import cpu_of  # noqa: E402
from crawler.local.server import Server  # noqa: E402
from crawler.recheck import account as accounts  # noqa: E402
from crawler.recheck import rates  # noqa: E402
from crawler.recheck.change_model import believed  # noqa: E402
from crawler.records import hash64  # noqa: E402
from crawler.store.database import open_database  # noqa: E402
from tests.crawling import Place, Run  # noqa: E402
from tests.servers import eventually  # noqa: E402

SITES: Final = 10
# Seconds for the 472 minutes of paper 004's sweep.
SWEEP: Final = 15.0
DAY: Final = SWEEP * 1440 / 472
# Of a page in a sweep, on average: as in the simulated worlds S1 and S2 of benchmarks/recrawl.py.
CHANGES: Final = 1.0
MODES: Final = ("default", "paper", "interval")
PARTS: Final = ("modes", "conditional")
PATIENCE_SECONDS: Final = 120.0
LEASE_SECONDS: Final = 2
# What an agent was given so long before its end, or after it as far as our clock goes, may be untold.
UNTOLD_SECONDS: Final = 5.0
# A record is of an answer that was given so long before: an agent on a busy machine reads it late.
LATE_SECONDS: Final = 15.0
# Changes a second that a page may have been thought to have before its first visit, in steps of 4 %.
RATES_BEFORE: Final = np.geomspace(1e-4, 1e4, 470).tolist()
# What those steps, and the times of records, which are a little later than the answers, make of a belief.
NEARLY: Final = 0.05


class Outcome(NamedTuple):
    """One crawl."""

    fresh: float
    weighted: float
    age: float  # in minutes of the shortened day
    stale: float  # likewise
    asked: int  # pages, while it was measured
    budget: float  # the same as a share of what the budget gives
    same: float  # share of answers that were 304
    size: int  # bytes of bodies, while it was measured
    agent_ms: float  # CPU of the agents for each page asked; 0 where they were killed on the way
    kills: int
    in_hand: int  # answers that killed agents did not live to tell
    lost: int  # answers that are not in the tables for no such reason
    invented: int  # rows of the tables that no answer belongs to
    odd: int  # pages of which something else is believed than follows from the answers


class Watched:
    """One crawl over a web: its place, its agents, and those that were killed. A context manager."""

    def __init__(self, web: ChangingWeb, folder: Path, name: str, **given: Any) -> None:
        folder.mkdir()
        self.web, self.name = web, name
        self._place = Place(folder)
        self._given = {**settings_of(web.plan), **given}
        self._agents: list[Run] = []
        self.killed: list[tuple[str, float]] = []  # who, and when
        self._ended = 0.0

    def __enter__(self) -> Self:
        self._place.__enter__()
        for _ in range(2):
            self._start()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        self._place.__exit__(kind, *error)

    @property
    def _alive(self) -> list[Run]:
        return [run for run in self._agents if run.process.poll() is None]

    def _start(self) -> None:
        words = ("--with", "recheck", "--when-idle", "wait", "--no-summary")
        who = self._who(len(self._agents))
        self._agents.append(
            self._place.start_crawl(self.web.seeds, *words, **{**self._given, "USER_AGENT": who})
        )

    def _who(self, number: int) -> str:
        return f"{self.name}-{number}{PLAIN if PLAIN in self.name else ''}"

    def is_ours(self, given: Given) -> bool:
        """Whether one of our agents was given this."""
        return given.who.startswith(f"{self.name}-")

    def loaded(self) -> bool:
        """Whether every page is in the tables; AssertionError where an agent has ended."""
        for run in self._agents:
            assert run.process.poll() is None, run.err[-2000:]
        try:
            return bool(
                self._place.rows("select count(*) from pages where sha256 is not null")[0][0]
                >= len(self.web.plan.site)
            )
        except Exception:
            return False

    def kill(self) -> None:
        """The oldest agent, as a power switch would; another one takes its place."""
        run = self._alive[0]
        run.end(signal.SIGKILL)
        self.killed.append((self._who(self._agents.index(run)), time.time()))
        self._start()

    def cpu(self) -> float:
        """Seconds that the agents used so far."""
        return sum(cpu_of(run.pid) for run in self._alive)

    def end(self) -> None:
        """Stop the agents; all that they told is stored then."""
        runs = self._alive
        with (
            Server(self._place.var).join("visitor") as server,
            closing(redis.Redis.from_url(server.url)) as client,
        ):
            self.account = {
                name.decode(): float(value) for name, value in client.hgetall("lt:{0}:recrawl").items()
            }
            for run in runs:
                run.process.send_signal(signal.SIGTERM)
            for run in runs:
                run.wait().succeeded()
        self._place.check_nothing_left()

    # --- what the tables say ---

    def rank(self) -> None:
        """How important each page is by its links, as a person does it."""
        self._place.run("convert").succeeded()
        self._place.run("rank").succeeded()

    def weights(self) -> np.ndarray:
        """Importance of each page by the ranking; 1 where there is none."""
        found = np.ones(len(self.web.plan.site))
        for url, importance in self._place.rows(
            "select url, importance from ranks join pages using (site_id, url_hash)"
        ):
            found[self._numbers[url]] = importance
        return found

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {self.web.url(page): page for page in range(len(self.web.plan.site))}

    def rows(self) -> list[tuple[int, float]]:
        """Page and time of every answer in the history."""
        query = (
            "select url, fetches.fetched_at from fetches join pages using (site_id, url_hash) "
            "where fetches.status in (200, 304)"
        )
        return [(self._numbers[url], at / 1000) for url, at in self._place.rows(query)]

    @property
    def mode(self) -> str:
        """RECRAWL_MODE."""
        return str(self._given.get("RECRAWL_MODE", "default"))

    def beliefs(self) -> dict[int, Belief]:
        """What is believed of each page."""
        engine = open_database(f"sqlite:///{self._place.var / 'crawl.db'}")
        found: dict[int, Belief] = {}
        try:
            for number in range(self.web.plan.sites):
                site = believed(
                    engine, hash64(self.web.site(number)), self.mode, accounts.of(self.account).mean
                )
                pages = list(site.rows)
                halves = zip(*site.recrawl.view(pages, time.time(), 1.0).belief, strict=True)
                lasts = site.recrawl.last_visits(pages)
                for one, (a, b), last in zip(pages, halves, lasts, strict=True):
                    found[self._numbers[site.rows[one].url]] = Belief(float(a), float(b), float(last))
        finally:
            engine.dispose()
        return found


def settings_of(plan: Plan) -> dict[str, Any]:
    """What all crawls have alike."""
    return {
        "RECHECK_INTERVAL_SECONDS": plan.sweep,
        "RECHECK_REQUESTS_PER_HOUR": round(len(plan.site) * 3600 / plan.sweep),
        "DOWNLOAD_DELAY": plan.sweep / 472,
        "LEASE_SECONDS": LEASE_SECONDS,
        "FIND_ALIASES": False,
        "LOG_LEVEL": "INFO",
    }


# --- what the web's record says of a crawl ------------------------------------------------------------------


class Matched(NamedTuple):
    """The web's answers against the rows of the tables."""

    told: list[Given]  # those that have a row
    untold: list[Given]
    invented: int


def matched(given: list[Given], rows: list[tuple[int, float]]) -> Matched:
    """Each row is of the last answer before it that has none yet."""
    waiting: dict[int, list[Given]] = {}
    for one in sorted(given):
        waiting.setdefault(one.page, []).append(one)
    told, invented = [], 0
    for page, at in sorted(rows, key=lambda row: row[1], reverse=True):
        own = [one for one in waiting.get(page, []) if -0.01 <= at - one.at < LATE_SECONDS]
        if own:
            told.append(own[-1])
            waiting[page].remove(own[-1])
        else:
            invented += 1
    return Matched(sorted(told), [one for some in waiting.values() for one in some], invented)


def in_hand(one: Given, killed: list[tuple[str, float]]) -> bool:
    """Whether its agent was killed before it could tell."""
    return any(one.who == who and abs(one.at - at) < UNTOLD_SECONDS for who, at in killed)


class Belief(NamedTuple):
    """What is believed of a page: the two halves of its change rate's distribution, and when it was last visited."""

    shape: float
    time: float
    last: float


def follows(own: list[Given], before: float) -> Belief:
    """What the same rules make of the web's own record of a page, which was thought to change so often before."""
    a, b = rates.PRIOR_SHAPE, rates.PRIOR_SHAPE / before
    for earlier, one in pairwise(own):
        a, b = rates.learned(a, b, one.at - earlier.at, one.version != earlier.version, math.nan)
    return Belief(a, b, own[-1].at)


def is_odd(ours: Belief, own: list[Given]) -> bool:
    """Whether no rate that it may have been thought to have before makes of the record what is believed.

    That rate hangs on the order of all pages' first visits; but it is one figure, and what is believed has two.
    """
    found = [follows(own, before) for before in RATES_BEFORE]
    far = min(max(abs(ours.shape / one.shape - 1), abs(ours.time / one.time - 1)) for one in found)
    return far > NEARLY or not -0.1 <= ours.last - own[-1].at < LATE_SECONDS


def odd_beliefs(ours: dict[int, Belief], told: list[Given]) -> int:
    """Pages of which something else is believed than follows from what the web gave."""
    visits: dict[int, list[Given]] = {}
    for one in told:
        visits.setdefault(one.page, []).append(one)
    return sum(page not in ours or is_odd(ours[page], own) for page, own in visits.items())


# --- a watch ------------------------------------------------------------------------------------------------


def watch(
    plan: Plan, crawls: dict[str, dict[str, Any]], since: float, kills: int, *, ranked: bool
) -> dict[str, Outcome]:
    """Crawls (name -> settings) over one web; measured from `since` seconds after its beginning to its end.

    Agents are killed `kills` times; before the beginning the first crawl's pages are ranked, if they are to be.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lt-")))
        web = stack.enter_context(ChangingWeb(plan))
        watched = [
            stack.enter_context(Watched(web, folder / str(place), name, **given))
            for place, (name, given) in enumerate(crawls.items())
        ]
        eventually(lambda: all(crawl.loaded() for crawl in watched), "everything is loaded", PATIENCE_SECONDS)
        if ranked:
            watched[0].rank()
        began = web.begin()
        used = lived_through(watched, began, plan.seconds, since, kills)
        for crawl in watched:
            crawl.end()
        given, weights = web.given(), watched[0].weights()
        return {
            crawl.name: outcome(crawl, given, weights, (began, began + since, began + plan.seconds), cpu)
            for crawl, cpu in zip(watched, used, strict=True)
        }


def lived_through(
    crawls: list[Watched], began: float, seconds: float, since: float, kills: int
) -> list[float]:
    """Wait for the end, and kill on the way; CPU seconds of each crawl's agents from `since` on, 0 where any died."""
    moments = [(seconds * (place + 0.5) / kills, True) for place in range(kills)]
    before = [0.0] * len(crawls)
    for moment, deadly in sorted([*moments, (since, False)]):
        time.sleep(max(began + moment - time.time(), 0.0))
        if deadly:
            for crawl in crawls:
                crawl.kill()
        else:
            before = [crawl.cpu() for crawl in crawls]
    time.sleep(max(began + seconds - time.time(), 0.0))
    return [0.0 if kills else crawl.cpu() - used for crawl, used in zip(crawls, before, strict=True)]


def outcome(
    crawl: Watched, answers: list[Given], weights: np.ndarray, times: tuple[float, float, float], cpu: float
) -> Outcome:
    """One crawl's figures; `times`: when pages began to change, from when on and until when it is measured."""
    plan, (_, since, until) = crawl.web.plan, times
    given = [one for one in answers if crawl.is_ours(one)]
    found = matched(given, crawl.rows())
    stands: Standing = standing(plan, found.told, weights, *times)
    measured = [one for one in given if since <= one.at < until]
    lost = [one for one in found.untold if not in_hand(one, crawl.killed)]
    believes = crawl.mode != "interval"
    many = max(len(measured), 1)
    return Outcome(
        fresh=stands.fresh,
        weighted=stands.weighted,
        age=stands.age * 1440 / DAY,
        stale=stands.stale * 1440 / DAY,
        asked=len(measured),
        budget=len(measured) * plan.sweep / (len(plan.site) * (until - since)),
        same=sum(one.status == 304 for one in measured) / many,
        size=sum(one.size for one in measured),
        agent_ms=1000 * cpu / many,
        kills=len(crawl.killed),
        in_hand=len(found.untold) - len(lost),
        lost=len(lost),
        invented=found.invented,
        odd=odd_beliefs(crawl.beliefs(), found.told) if believes else 0,
    )


# --- what is run, and what must hold ------------------------------------------------------------------------


def modes_part(pages: int, days: float, kills: int) -> tuple[dict[str, Outcome], list[Goal]]:
    """The default mode against the paper's rule and round robin; the first day is left out."""
    plan = Plan(SITES, pages, SWEEP, CHANGES, days * DAY)
    found = watch(plan, {mode: {"RECRAWL_MODE": mode} for mode in MODES}, DAY, kills, ranked=True)
    return found, goals_of(found)


def goals_of(found: dict[str, Outcome]) -> list[Goal]:
    """What the figures of the modes must be."""
    ours = found[MODES[0]]
    goals = []
    for name in MODES[1:]:
        other = found[name]
        goals += [
            Goal(
                f"default: fresh, by importance, over {name}, points",
                100 * (ours.weighted - other.weighted),
                4,
                inf,
            ),
            Goal(f"default: fresh over {name}, points", 100 * (ours.fresh - other.fresh), 0, inf),
            Goal(f"default: requests, as a multiple of {name}'s", ours.asked / max(other.asked, 1), 0, 1.03),
        ]
    for name, one in found.items():
        goals += [
            Goal(f"{name}: answers lost, or made up", one.lost + one.invented, 0, 0),
            Goal(f"{name}: pages believed otherwise than seen", one.odd, 0, 0),
        ]
    return goals


def conditional_part(pages: int, days: float) -> tuple[dict[str, Outcome], list[Goal]]:
    """The default mode, with validators and without; nobody is killed."""
    plan = Plan(SITES, pages, SWEEP, CHANGES, days * DAY)
    found = watch(plan, {"conditional": {}, f"whole{PLAIN}": {}}, days * DAY / 3, 0, ranked=False)
    saved = 1 - found["conditional"].size / max(found[f"whole{PLAIN}"].size, 1)
    return found, [
        Goal("conditional requests: share of bytes saved", saved, 0.2, 1),
        Goal(
            "conditional requests: CPU, as a multiple of whole ones",
            found["conditional"].agent_ms / found[f"whole{PLAIN}"].agent_ms,
            0,
            1,
        ),
    ]


def show(found: dict[str, Outcome]) -> None:
    """A table."""
    heads = (
        "fresh",
        "weighted",
        "age",
        "stale",
        "asked",
        "budget",
        "304",
        "MB",
        "CPU ms",
        "in hand",
        "lost",
        "odd",
    )
    print(f"\n{'':<14}" + "".join(f"{head:>10}" for head in heads))
    for name, one in found.items():
        print(
            f"{name:<14}{one.fresh:>10.3f}{one.weighted:>10.3f}{one.age:>10.1f}{one.stale:>10.1f}{one.asked:>10}"
            f"{one.budget:>10.3f}{one.same:>10.3f}{one.size / 1e6:>10.1f}{one.agent_ms:>10.2f}{one.in_hand:>10}"
            f"{one.lost + one.invented:>10}{one.odd:>10}"
        )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--days", type=float, default=5.0, help="shortened ones")
    parser.add_argument("--pages", type=int, default=300, help="of all sites")
    parser.add_argument("--kills", type=int, default=3, help="of an agent of each crawl")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    """Run, print, judge."""
    given = parsed()
    end_in_order()
    found: dict[str, dict[str, Outcome]] = {}
    goals: list[Goal] = []
    for part in given.parts:
        if part == "modes":
            found[part], judged = modes_part(given.pages, given.days, given.kills)
        else:
            found[part], judged = conditional_part(given.pages, given.days / 2)
        goals += judged
        if not given.json:
            show(found[part])
    if given.json:
        told = {part: {name: one._asdict() for name, one in some.items()} for part, some in found.items()}
        print(json.dumps({"parts": told, "goals": goals_told(goals)}))
    else:
        print(f"\n{goals_table(goals)}")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
