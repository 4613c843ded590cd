"""A random walk over all operations of the site queue, beside a plain model of what each must do.

Five agents, an operator and a planner act on 400 sites, some of which share hosts and addresses; agents fall silent,
die, come back under their old tokens. Every answer is compared with the model's, and every so often all that the
server has. No clock is waited for: time passes by shifting what is compared with the server's, in steps of a seventh of
the lease time, so that no comparison is ever close. The same seed walks the same way, but for the order of names
that the server keeps in no order.

LOWTIDE_WALK_SEED=n in the environment walks another way; LOWTIDE_WALK_STEPS=n another length.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from redis.asyncio import Redis

from crawler.queue.errors import LockLostError, SessionGoneError, StaleLeaseError
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Delivery, Hand, Leased, Newcomer, Offer, Restored
from crawler.records import WORKS
from tests.queue_driver import BASE, Whole, audit, connect, pass_time, places_of, queue_options
from tests.servers import RunningServer

# Taken out of the environment, where every other LOWTIDE_ name is a setting of the crawl.
SEED = int(os.environ.pop("LOWTIDE_WALK_SEED", "1118"))
STEPS = int(os.environ.pop("LOWTIDE_WALK_STEPS", "0"))

UNIT_MS = 100_000_000
LEASE_UNITS = 7
AGENTS = ("ant", "bee", "cat", "dog", "elk")
SITES = 400
PER_ADDRESS, CROWD, PER_SHARED = 3, 12, 6
AUDIT_EVERY = 250
MOST_HELD = 40
HOUR = 7
HELD_WORKS = WORKS[1:]
STATES = {"w": "waiting", "s": "suspended", "l": "later", "f": "finished", "a": "alias", "b": "blocked"}


def world() -> tuple[list[str], dict[str, str]]:
    """The sites, and where their names lead: most alone, many on small servers, eighty on one shared front end."""
    sites = [f"https://s{number}.example" for number in range(SITES - 60)]
    for number in range(20):
        sites += [f"{start}{number}.example" for start in ("http://h", "https://h")]
        sites.append(f"http://h{number}.example:8080")
    address = {}
    for number, site in enumerate(sites):
        if number < 80:
            address[site] = "192.0.2.1"
        elif number < 200:
            address[site] = f"192.0.2.{10 + number % 12}"
        else:
            address[site] = f"198.51.100.{number % 200}"
    return sites, address


@dataclass
class Site:
    """What the model knows of a site that is queued."""

    state: str = "w"
    paused: bool = False
    address: str = "-"
    token: str = ""
    agent: str = ""
    work: str = ""
    seq: int = 0
    progress: str = ""  # done/known/hash of the last delivery
    suspend: bool = False  # the plan wants it back
    checkpoint: bool = False
    paths: list[str] = field(default_factory=list)  # as they were given
    budget: int | None = None
    figures: str = ""  # done/known/hash
    delay: float = 0.0  # as its holder last said, in units
    until: float = 0.0
    due: float = 0.0  # of a state `later`, in units
    rests: float = 0.0  # not asked before
    stop: bool = False
    planned: bool = False  # in no list: waits for the plan
    offered: list[str] = field(default_factory=list)  # entries that nothing was decided of
    rootless: bool = False  # it began with other pages than its root
    given: bool = False  # its holder will hear of paths
    linked: bool = False  # it was found by a link, and not given since

    def undo(self) -> None:
        if self.figures:
            self.figures = f"0/{self.figures.split('/')[1]}/0"

    def unfinished(self) -> str:
        return "s" if self.checkpoint else "w"

    def letter(self) -> str:
        return self.state.upper() if self.paused else self.state


@dataclass
class Actor:
    """An agent as it sees itself: it may be wrong about what it still holds."""

    name: str
    joined: bool = False
    silent: int = 0  # turns it will miss
    mine: dict[str, tuple[Leased, str, int]] = field(default_factory=dict)  # site -> lease, work, last seq


class Walk:
    """The model, and the steps that are taken on both."""

    def __init__(self, server: RunningServer, client: Redis, seed: int) -> None:
        options = queue_options(
            lease_seconds=LEASE_UNITS * UNIT_MS / 1000,
            sites_per_address=PER_ADDRESS,
            shared_address_after=CROWD,
            sites_per_shared_address=PER_SHARED,
        )
        self.queue = SiteQueue(client, options)
        self.client = client
        self.raw = server.client
        self.random = random.Random(seed)
        self.universe, self.address = world()
        self.sites: dict[str, Site] = {}
        self.actors = [Actor(name) for name in AGENTS]
        self.expiry: dict[str, int] = {}  # sessions, in units
        self.renewed: int | None = None
        self.now = 0  # in units
        self.start_ms = int(self.raw.time()[0]) * 1000
        self.last_token = 0
        self.records = 0
        self.hungry: dict[str, int] = {}  # agent -> sites it asked for in vain
        self.most_sites = SITES - 20
        self.planner = ("", 0)
        self.done: Counter[str] = Counter()

    # --- the walk ---

    async def step(self) -> None:
        """One operation of somebody."""
        acts: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (12, self.lease_sites),
            (3, self.lease_work),
            (10, self.publish),
            (10, self.leave),
            (5, self.locate),
            (5, self.renew),
            (0.3, self.part),
            (0.4, self.fall_silent),
            (4, self.discover),
            (2, self.offer),
            (0.6, self.decide),
            (0.6, self.reopen),
            (1.5, self.order),
            (0.3, self.forget),
            (0.4, self.give_paths),
            (0.4, self.set_budget),
            (2, self.plan_work),
            (0.6, self.plan),
            (0.2, self.restore),
            (1.0, self.pass_time),
        ]
        weights = [weight for weight, _ in acts]
        act = self.random.choices([act for _, act in acts], weights)[0]
        self.done[act.__name__] += 1
        await act()

    def actor(self) -> Actor | None:
        """Somebody whose turn it is; None if that one is silent."""
        actor = self.random.choice(self.actors)
        if actor.silent:
            actor.silent -= 1
            return None
        return actor

    async def joined(self) -> Actor | None:
        """Somebody with a session, as it believes."""
        actor = self.actor()
        if actor and not actor.joined:
            await self.queue.join(actor.name, {})
            self._forgive()
            self.expiry[actor.name] = self.now + LEASE_UNITS
            self.renewed = self.now
            actor.joined = True
            await self._adopt(actor)
            for name in sorted(actor.mine):
                await self._leave(actor, name, "returned")
        return actor

    async def _adopt(self, actor: Actor) -> None:
        """Take up what its forerunner of the same name left."""
        for name, token in (await self.queue.held(actor.name)).items():
            if name not in actor.mine:
                site = self.sites[name]
                actor.mine[name] = (Leased(name, token, site.checkpoint, site.address), site.work, site.seq)

    def _forgive(self) -> None:
        if self.renewed is not None and self.now - self.renewed > LEASE_UNITS / 2:
            self.expiry = dict.fromkeys(self.expiry, self.now + LEASE_UNITS)
            self.renewed = self.now

    def _gone(self, actor: Actor) -> None:
        assert actor.name not in self.expiry, f"{actor.name} has a session and was told that it is gone"
        actor.joined, actor.mine = False, {}

    # --- agents ---

    async def lease_sites(self) -> None:
        actor = await self.joined()
        if actor and len(actor.mine) < MOST_HELD:
            await self.lease(actor, "site", self.random.choice((1, 1, 2, 5, 16)))

    async def lease_work(self) -> None:
        actor = await self.joined()
        if actor and len(actor.mine) < MOST_HELD:
            await self.lease(actor, self.random.choice(HELD_WORKS), self.random.choice((1, 3)))

    async def lease(self, actor: Actor, work: str, wanted: int) -> list[Leased]:
        before = Counter(self.class_of(site) for site in self.sites.values())
        self._forgive()
        expired = sorted(name for name, due in self.expiry.items() if due <= self.now)
        hungry = self.random.random() < 0.6
        asked_ms = self.server_ms()
        try:
            hand = await self.queue.lease(actor.name, work, wanted, HOUR, hungry=hungry)
        except SessionGoneError:
            await self._sweep(expired)
            self._gone(actor)
            return []
        await self._sweep(expired)
        assert actor.name in self.expiry, f"{actor.name} leased without a session"
        assert len(hand.sites) <= wanted
        if not expired:
            assert hand.leased == before["leased"]
            woken = sum(site.state == "l" and site.due <= self.now for site in self.sites.values())
            waited = before["waiting"] + before["suspended"] if work == "site" else 0
            assert 0 <= hand.ready - waited <= (woken if work == "site" else len(self.sites))
        if work == "site":
            self._check_hunger(actor, hand, wanted if hungry else 0, asked_ms)
        else:
            assert hand.missing == 0
        for leased in hand.sites:
            self._take(actor, leased, work)
        return hand.sites

    def _check_hunger(self, actor: Actor, hand: Hand, wanted: int, asked_ms: int) -> None:
        """An agent's note is what it asked for in vain; it is told of the others' notes of the last two seconds."""
        notes = {
            name.decode(): tuple(map(int, value.split()))
            for name, value in self.raw.hgetall(BASE + "hungry").items()
        }
        others = [note for name, note in notes.items() if name != actor.name]
        least, most = (
            sum(many for at, many in others if time - at <= 2000) for time in (self.server_ms(), asked_ms)
        )
        assert least <= hand.missing <= most
        missing = max(0, wanted - len(hand.sites))
        if missing and hand.sites and actor.name not in notes:
            missing = 0  # it looked at as many names as a call may: there may be more
        self.hungry.pop(actor.name, None)
        if missing:
            self.hungry[actor.name] = missing
        assert {name: many for name, (_, many) in notes.items()} == self.hungry

    def server_ms(self) -> int:
        """The server's clock."""
        seconds, micros = self.raw.time()
        return int(seconds) * 1000 + int(micros) // 1000

    async def _sweep(self, expired: list[str]) -> None:
        """Take in which of the dead the server has emptied: one per lease call, and nobody who lives."""
        there = {name.decode() for name in await self.client.zrange(BASE + "agents", 0, -1)}
        swept = self.expiry.keys() - there
        assert swept <= set(expired), f"{swept} were swept; expired were {expired}"
        assert bool(swept) == bool(expired), f"{expired} expired and {swept} were swept"
        for name in swept:
            del self.expiry[name]
            self.hungry.pop(name, None)
            for site in self.held_by(name).values():
                self._hand_back(site)

    def _take(self, actor: Actor, leased: Leased, work: str) -> None:
        site = self.sites[leased.site]
        if site.state == "l" and site.due <= self.now and (work == "site" or leased.suspended):
            site.state = site.unfinished()
        assert not site.agent, f"{leased.site} is {site} and was leased again"
        assert not site.paused, f"{leased.site} is paused and was leased"
        assert site.state in ("ws" if work == "site" else "wslf"), (
            f"{leased.site} is {site}: leased for {work}"
        )
        assert int(leased.token) > self.last_token, "tokens rise"
        assert site.rests <= self.now, f"{leased.site} rests until {site.rests}, now {self.now}"
        assert leased.suspended == (site.state == "s")
        assert (leased.address or "-") == site.address
        assert leased.more == (site.state == "s" or bool(site.paths) or site.budget is not None)
        self.last_token = int(leased.token)
        site.token, site.agent, site.work, site.seq = leased.token, actor.name, work, 0
        site.delay = site.until = 0.0
        site.progress = site.figures
        site.planned = site.planned and work != "site"
        actor.mine[leased.site] = (leased, work, 0)
        self.check_places(leased.site, site.address)

    def check_places(self, name: str, address: str) -> None:
        held = Counter(
            place
            for other, site in self.sites.items()
            if site.agent
            for place in places_of(other, site.address)
        )
        host = places_of(name, "-")[0]
        assert held[host] == 1, f"{host} is held {held[host]} times"
        if address != "-":
            crowd = int(self.raw.hget(BASE + "crowd", address) or 0)
            limit = PER_SHARED if crowd >= CROWD else PER_ADDRESS
            assert held[address] <= limit, f"{address} has {held[address]} of {limit}"

    def _one_of_mine(self, actor: Actor) -> tuple[Leased, str, int] | None:
        return actor.mine[self.random.choice(sorted(actor.mine))] if actor.mine else None

    def _owns(self, actor: Actor, leased: Leased) -> bool:
        site = self.sites.get(leased.site)
        return site is not None and (site.agent, site.token) == (actor.name, leased.token)

    async def publish(self) -> None:
        actor = self.actor()
        if not actor or not actor.mine:
            return
        chosen = self.random.sample(sorted(actor.mine), min(len(actor.mine), self.random.randint(1, 4)))
        deliveries, wanted = [], []
        for name in chosen:
            made = self._delivery(*actor.mine[name])
            deliveries.append(made)
            wanted.append(self._published(actor, made))
        got = await self.queue.publish(actor.name, deliveries)
        assert [tuple(one) for one in got] == wanted
        for made, (verdict, _) in zip(deliveries, wanted, strict=True):
            if verdict == "STALE":
                del actor.mine[made.site]
            elif verdict != "GAP":
                leased, work, _ = actor.mine[made.site]
                actor.mine[made.site] = (leased, work, made.seq)

    def _delivery(self, leased: Leased, work: str, seq: int) -> Delivery:
        number = self.random.choices((seq + 1, seq, seq + 2, seq - 1), (20, 3, 1, 1))[0]
        loads = work == "site"  # other works have no journal
        return Delivery(
            leased.site,
            leased.token,
            max(0, number),
            delta=self.random.choice((b"", b"delta", b"delta")) if loads else b"",
            fold=loads and self.random.random() < 0.1,
            root="",
            records=[(b"record", self.random.choice((b"", b"12345678")))] * self.random.randint(0, 3),
            delay_ms=self.random.choice((0, UNIT_MS // 2, 2 * UNIT_MS + UNIT_MS // 2)),
            until_ms=self.random.choice((0, self.due_ms(-2), self.due_ms(self.random.randint(1, 5)))),
            known=12,
            done=self.random.randint(0, 12),
            done_hash=self.random.getrandbits(64),
            given=self.random.choice((0, 0, 1, 2)) if loads else 0,
        )

    def _published(self, actor: Actor, made: Delivery) -> tuple[str, str]:
        """What the model says, and does."""
        site = self.sites.get(made.site)
        if not site or (site.agent, site.token) != (actor.name, made.token):
            return "STALE", ""
        verdict = "OK"
        if made.seq == site.seq:
            verdict = "AGAIN"
        elif made.seq != site.seq + 1:
            return "GAP", ""
        else:
            site.seq = made.seq
            site.progress = f"{made.done}/{made.known}/{made.done_hash:x}"
            site.delay = made.delay_ms / UNIT_MS
            site.until = self.now + (made.until_ms - self.start_ms) / UNIT_MS if made.until_ms else 0.0
            self.records += len(made.records)
            site.checkpoint = bool(made.delta) or (site.checkpoint and not made.fold)
            del site.paths[: made.given]
        return verdict, ""

    async def locate(self) -> None:
        actor = self.actor()
        mine = self._one_of_mine(actor) if actor else None
        if actor and mine:
            address = self.address[mine[0].site]
            if self.random.random() < 0.1:  # the name leads elsewhere today
                address = f"203.0.113.{self.random.randrange(20)}"
            await self.locate_at(actor, mine[0], address)

    async def locate_at(self, actor: Actor, leased: Leased, address: str) -> bool | None:
        """Whether the site has its place; None: it is another's, or waits for a place now."""
        try:
            free = await self.queue.locate(actor.name, leased, address)
        except StaleLeaseError:
            assert not self._owns(actor, leased)
            del actor.mine[leased.site]
            return None
        assert self._owns(actor, leased)
        site = self.sites[leased.site]
        taken = sum(other.agent != "" and other.address == address for other in self.sites.values())
        assert free or (site.address != address and taken >= PER_ADDRESS)
        site.address = address if free else "-"
        if free:
            self.check_places(leased.site, address)
            return True
        await self._leave(actor, leased.site, "parked", address)
        return None

    async def leave(self) -> None:
        actor = self.actor()
        if actor and (mine := self._one_of_mine(actor)):
            how = self.random.choices(("finished", "returned", "suspended", "later"), (4, 4, 3, 3))[0]
            await self._leave(actor, mine[0].site, how)

    async def _leave(
        self, actor: Actor, name: str, how: str, detail: str | int = "", *, last: bool = False
    ) -> None:
        leased, work, _ = actor.mine[name]
        owns = self._owns(actor, leased)
        site = self.sites.get(name)
        if how == "finished" and work == "site" and site:
            detail = len(site.paths) if self.random.random() < 0.8 else max(0, len(site.paths) - 1)
        units = self.random.randint(0, 9)
        due = 0
        if how == "later" or (
            self.random.random() < 0.5 and (how == "returned" or (work != "site" and not last))
        ):
            due = self.due_ms(units)
        report = self.random.choice((b"", b"ended"))
        known = self.random.choice((0, 3, 12))
        done, done_hash = self.random.randint(0, known), self.random.choice((0, 5, 2**64 - 1))
        try:
            left = await self.queue.leave(
                actor.name,
                leased,
                how,  # type: ignore[arg-type]
                due_ms=due,
                detail=detail,
                reason="rests",
                report=report,
                known=known,
                done=done,
                done_hash=done_hash,
            )
        except StaleLeaseError:
            assert not owns
            del actor.mine[name]
            return
        assert owns, f"{actor.name} left {name} without a lease"
        assert site
        if work == "site" and how == "finished" and len(site.paths) > int(detail):
            assert not left, "more paths were given"
            return
        assert left
        del actor.mine[name]
        self.records += report != b""
        if work == "site" and known:
            site.figures = f"{done}/{known}/{done_hash:x}"
        self._left(site, how, self.now + units + 0.5 if due else 0.0, str(detail))

    def _left(self, site: Site, how: str, due: float, detail: str) -> None:
        work = site.work
        site.agent, site.token, site.work, site.stop, site.suspend = "", "", "", False, False
        site.given = False
        if site.state == "b" or (work == "site" and how == "finished"):
            site.checkpoint, site.paths = False, []
        if work != "site":
            return
        if how == "parked":
            site.address = detail
        if site.state != "b":
            site.state = {"finished": "f", "later": "l"}.get(how, site.unfinished())
        site.due = due
        site.rests = due if how in ("later", "returned") and site.state in "wsl" else 0.0
        site.planned = how == "suspended"

    def _hand_back(self, site: Site) -> None:
        """Its holder is dead or gone, and may have asked it a moment ago."""
        due = max(site.until, self.now + site.delay)
        rests = max(site.rests, due if due > self.now and site.state != "b" else 0.0)
        if site.work == "site":
            site.figures = site.progress
        self._left(site, "returned", 0, "")
        site.rests = rests

    async def renew(self) -> None:
        actor = await self.joined()
        if not actor:
            return
        try:
            told = await self.queue.renew(actor.name, 1)
        except SessionGoneError:
            self._gone(actor)
            return
        self._forgive()
        assert actor.name in self.expiry
        self.expiry[actor.name] = self.now + LEASE_UNITS
        self.renewed = self.now
        held = self.held_by(actor.name)
        assert set(told.stop) == {name for name, site in held.items() if site.stop}
        assert set(told.suspend) == {name for name, site in held.items() if site.suspend}
        assert set(told.given) == {name for name, site in held.items() if site.given}
        for site in held.values():
            site.given = False
        assert self.start_ms <= told.server_ms <= self.server_ms()
        assert await self.queue.held(actor.name) == {name: site.token for name, site in held.items()}
        for name in sorted(told.stop):
            if name in actor.mine and self.random.random() < 0.7:
                await self._leave(actor, name, "returned")
        for name in sorted(told.suspend):
            if name in actor.mine and self.random.random() < 0.7:
                await self._leave(actor, name, "suspended")

    async def part(self) -> None:
        actor = await self.joined()
        if not actor:
            return
        await self.queue.part(actor.name)
        self.expiry.pop(actor.name, None)
        self.hungry.pop(actor.name, None)
        for site in self.held_by(actor.name).values():
            self._hand_back(site)
        actor.joined, actor.mine = False, {}

    async def fall_silent(self) -> None:
        """Killed (its successor knows nothing), or stopped for a while and sure of its leases when it wakes."""
        actor = self.actor()
        if actor:
            actor.silent = self.random.randint(20, 120)
            if self.random.random() < 0.5:
                actor.joined, actor.mine = False, {}

    # --- sites ---

    async def discover(self) -> None:
        sites = self.random.sample(self.universe, self.random.randint(1, 12))
        newcomers = [
            Newcomer(
                site,
                self.random.choice((b"", b"record")),
                self.random.choice(((), ("/",), ("/x", "/y"), ("/z", "/"))),
            )
            for site in sites
        ]
        anew = self.random.random() < 0.3
        wanted = [self._discovered(one, anew) for one in newcomers]
        assert await self.queue.discover(newcomers, self.most_sites, again=anew) == wanted

    def _discovered(self, one: Newcomer, anew: bool) -> int:
        site = self.sites.get(one.site)
        if site is None:
            if len(self.sites) >= self.most_sites:
                return -1
            self.sites[one.site] = site = Site()
            self.records += one.record != b""
            self._begin(site, "" if one.paths in ((), ("/",)) else "\n".join(one.paths))
            return 1
        entry = "" if one.paths in ((), ("/",)) else "\n".join(one.paths)
        self.records += site.linked and one.record != b""
        site.linked = False
        if site.state in "fa" and anew:
            site.state, site.checkpoint = "w", False
            site.undo()
            if entry:
                self._begin(site, entry)
            return 2
        if site.state == "a":
            site.state = site.unfinished()
        return min(self._receive(one.site, entry), 0)

    def _begin(self, site: Site, entry: str) -> None:
        if entry:
            site.rootless |= "/" not in entry.split("\n")
            self._give(site, entry, begins=True)

    def _receive(self, name: str, entry: str) -> int:
        """An entry for a site that is known: what the server answers."""
        site = self.sites.get(name)
        if site and site.state == "a":
            if entry.strip("02 \n") in ("", "/"):
                return 0
            self._give(site, entry)
        if not site or site.state in "ab":
            return -2
        if not site.rootless and entry.strip("02 \n") in ("", "/"):
            return 0
        entry = entry or "/"
        if "/" in entry.split("\n"):
            site.rootless = False
        if site.state == "f":
            site.offered.append(entry)
        else:
            self._give(site, entry)
        return 0

    @staticmethod
    def _give(site: Site, entry: str, *, begins: bool = False) -> None:
        """A site without a list of paths begins with its root; one that has such a list, with what stands there."""
        site.given |= bool(site.agent) and site.work == "site"
        if not (site.paths or begins or site.checkpoint or "/" in entry.split("\n")):
            site.paths.append("/")
        site.paths.append(entry)

    async def offer(self) -> None:
        offers = [
            Offer(
                site,
                self.random.choice((["/"], ["/x", "/y"], ["/z", "/"])),
                self.random.choice((0, 0, 2)),
                record=self.random.choice((b"", b"record")),
                with_root=self.random.random() < 0.5,
            )
            for site in self.random.sample(self.universe, self.random.randint(1, 12))
        ]
        wanted = [self._offered(one) for one in offers]
        assert await self.queue.offer(offers, self.most_sites) == wanted

    def _offered(self, one: Offer) -> int:
        if one.site in self.sites:
            return self._receive(one.site, one.entry)
        if not one.record:
            return -2
        if len(self.sites) >= self.most_sites:
            return -1
        self.sites[one.site] = site = Site(linked=True)
        self.records += 1
        self._begin(site, one.entry)
        if one.with_root and site.rootless:
            site.rootless = False
            site.paths.insert(0, "/")
        return 1

    async def decide(self) -> None:
        number = await self.queue.lock("opener", "star", 1e6)
        with pytest.raises(LockLostError):
            await self.queue.decide("comet", number, {self.universe[0]: 1})
        known = {}
        for name in await self.queue.to_decide(3):
            site = self.sites[name]
            known[name] = self.random.randint(0, len(site.offered))
            taken = known[name] if site.state == "f" else len(site.offered)
            self._hand_over(site, taken, opens=False)
        await self.queue.decide("star", number, known)

    async def reopen(self) -> None:
        number = await self.queue.lock("opener", "star", 1e6)
        for name in await self.queue.to_decide(2):
            site = self.sites[name]
            taken = self.random.randint(1, len(site.offered))
            checkpoint = self.random.choice((b"", b"checkpoint"))
            opened = site.state not in "wsl"
            assert await self.queue.reopen("star", number, name, checkpoint, taken) == opened
            self._hand_over(site, taken, opens=bool(checkpoint))

    def _hand_over(self, site: Site, taken: int, *, opens: bool) -> None:
        """What was offered goes to the frontier, or was known before."""
        if site.state == "f" and opens:
            site.state, site.checkpoint = "s", True
        some, site.offered = site.offered[:taken], site.offered[taken:]
        if site.state in "wsl":
            for entry in some:
                self._give(site, entry)
        elif site.state != "f":
            site.offered = []

    async def order(self) -> None:
        name = self.random.choice(self.universe)
        order = self.random.choices(("pause", "resume", "block"), (2, 3, 0.3))[0]
        site = self.sites.get(name)
        wanted = self.class_of(site) if site else None
        if site and site.state == "l" and site.due <= self.now:
            record = await self.queue.record(name)  # it may have been woken
            assert record
            if record.state != "later":
                site.state = site.unfinished()
                wanted = self.class_of(site)
        record = self.random.choice((b"", b"order"))
        assert await self.queue.order(name, order, "why", record=record) == wanted  # type: ignore[arg-type]
        if site and not (site.state == "b" and order == "pause"):
            self.records += record != b""
            self._ordered(site, order)

    def _ordered(self, site: Site, order: str) -> None:
        if order == "resume":
            site.paused, site.stop = False, False
            if site.state in "ab":
                site.state = site.unfinished()
                if site.state == "w":
                    site.undo()
            return
        if order == "pause":
            site.paused = True
        else:
            site.state, site.paused, site.rests = "b", False, 0.0
        site.stop = bool(site.agent)
        if order == "block" and not site.agent:
            site.checkpoint, site.paths = False, []

    async def forget(self) -> None:
        name = self.random.choice(self.universe)
        site = self.sites.get(name)
        wanted = -1 if site and site.agent else int(site is not None)
        assert await self.queue.forget(name, record=b"order") == wanted
        if wanted == 1:
            del self.sites[name]
            self.records += 1

    async def give_paths(self) -> None:
        name = self.random.choice(self.universe)
        if name in self.sites and self.sites[name].state not in "fab":
            self.raw.rpush(f"{BASE}paths:{name}", "/given")
            self.sites[name].paths.append("/given")

    async def set_budget(self) -> None:
        name = self.random.choice(self.universe)
        pages = self.random.choice((None, 5))
        assert await self.queue.set_budget(name, pages, record=b"order") == (name in self.sites)
        if name in self.sites:
            self.sites[name].budget = pages
            self.records += 1

    async def plan_work(self) -> None:
        name = self.random.choice(self.universe)
        due = self.due_ms(self.random.randint(-3, 5))
        known = await self.queue.plan_work(name, self.random.choice(HELD_WORKS), due)
        assert known == (name in self.sites)

    async def restore(self) -> None:
        rows = []
        for name in self.random.sample(self.universe, 3):
            known = self.random.choice((0, 4))
            rows.append(
                Restored(
                    name,
                    self.random.choice(("waiting", "waiting", "finished", "finished", "alias", "blocked")),
                    self.random.choice((None, self.address[name])),
                    paused=self.random.random() < 0.2,
                    known=known,
                    done=known // 2,
                    done_hash=known,
                    budget=self.random.choice((None, 0)),
                )
            )
        assert await self.queue.restore(rows) == sum(one.site not in self.sites for one in rows)
        for one in rows:
            figures = f"{one.done}/{one.known}/{one.done_hash:x}" if one.known else ""
            letter, address = one.state[0], one.address or "-"
            site = Site(letter, one.paused, address, budget=one.budget, figures=figures)
            self.sites.setdefault(one.site, site)

    # --- the plan and time ---

    async def plan(self) -> None:
        planner = self.random.choice(("sun", "moon"))
        number = await self.queue.lock("planner", planner, LEASE_UNITS * UNIT_MS / 1000)
        assert bool(number) == (self.planner[0] in ("", planner))
        if not number:
            with pytest.raises(LockLostError):
                await self.queue.fill(planner, 1, HOUR, self.universe[:1])
            with pytest.raises(LockLostError):
                await self.queue.suspend(planner, 1, self.universe[:1])
            return
        assert number >= self.planner[1]
        self.planner = (planner, number)
        before: set[str] = set()
        for kind in ("hour", "probe"):
            before |= {name.decode() for name in await self.client.lrange(f"{BASE}{kind}:{HOUR}", 0, -1)}
        for name in before & self.sites.keys():
            self.sites[name].planned = True  # it may stand nowhere else
        names = [name for name, site in self.sites.items() if site.state in "ws" and not site.paused]
        names = self.random.sample(names, self.random.randint(0, len(names)))
        assert await self.queue.fill(planner, number, HOUR, names) == len(names)
        probed = self.random.sample(names, min(len(names), 3))
        await self.queue.fill(planner, number, HOUR, probed, lists="probe")
        await self._suspend(planner, number)
        if self.random.random() < 0.2:  # it dies
            await self.client.delete(BASE + "planner")
            self.planner = ("", number)

    async def _suspend(self, planner: str, number: int) -> None:
        names = self.random.sample(self.universe, 20)
        held = [name for name in names if name in self.sites and self.class_of(self.sites[name]) == "leased"]
        assert await self.queue.suspend(planner, number, names) == len(held)
        for name in held:
            self.sites[name].suspend = True

    async def pass_time(self) -> None:
        units = self.random.choice((1, 1, 1, 1, 2, 2, 4, 9))
        await asyncio.to_thread(pass_time, self.raw, units * UNIT_MS)
        self.now += units

    def due_ms(self, units: int) -> int:
        """A time on the server's clock, so many units and a half from now."""
        return self.start_ms + units * UNIT_MS + UNIT_MS // 2

    # --- compared ---

    def held_by(self, agent: str) -> dict[str, Site]:
        return {name: site for name, site in self.sites.items() if site.agent == agent}

    def class_of(self, site: Site) -> str:
        if site.agent and site.work == "site":
            return "leased"
        return "paused" if site.paused else STATES[site.state]

    async def compare(self) -> Whole:
        """All that the server has, with itself and with the model."""
        found = audit(self.raw)
        assert found.sites.keys() == self.sites.keys()
        for name, record in found.sites.items():
            site = self.sites[name]
            if site.state == "l" and site.due <= self.now and record.letter not in "lL":
                site.state = site.unfinished()
            mine = (site.letter(), site.address, site.figures, site.token, site.agent, site.work)
            assert tuple(record) == mine, f"{name}: the server has {record}, the model {site}"
            assert (name in found.checkpoints) == site.checkpoint, f"checkpoint of {name}: {site}"
            assert found.paths.get(name, []) == site.paths, f"paths of {name}: {site}"
            assert found.offered.get(name, []) == site.offered, f"offered to {name}: {site}"
            assert (name in found.rootless) == site.rootless, f"root of {name}: {site}"
        entries = self.raw.xrange(BASE + "results")
        # What the script itself tells of sites that it opens comes beside what it was given.
        assert sum(b'"opened"' not in fields[b"r"] for _, fields in entries) == self.records
        self.check_reachable(found)
        return found

    def check_reachable(self, found: Whole) -> None:
        """Every site that could be worked on stands somewhere, or waits for the plan."""
        listed = {name for names in found.lists.values() for name in names} | found.wake.get(
            "site", {}
        ).keys()
        for name, site in self.sites.items():
            if site.state in "wsl" and not site.paused and (not site.agent or site.work != "site"):
                assert name in listed or (site.planned and site.state != "l"), f"{name} is lost: {site}"

    async def check_parked(self) -> None:
        """After an agent asked for everything, whoever is still parked has a reason."""
        actor = await self.joined()
        if not actor:
            return
        got = await self.lease(actor, "site", 1000)
        if not actor.joined:
            return
        found = await self.compare()
        crowd = found.crowd
        for key, names in found.lists.items():
            assert not key.startswith(("again:site", "hour", "probe", "fresh")), (
                f"{len(names)} left in {key} after {got}"
            )
            if not key.startswith("park:"):
                continue
            place = key.removeprefix("park:")
            limit = PER_SHARED if crowd.get(place, 0) >= CROWD else PER_ADDRESS
            limit = 1 if place.startswith("//") else limit
            for name in names:
                site = self.sites.get(name)
                if site and site.state in "ws" and not site.agent and not site.paused:
                    assert found.busy.get(place, 0) >= limit, f"{name} waits for {place}, which has room"
        for name in sorted(actor.mine):
            if len(actor.mine) > MOST_HELD:
                await self._leave(actor, name, "suspended")

    # --- the end ---

    async def drain(self) -> None:
        """Everybody comes back, everything is resumed, and the crawl runs to its end."""
        for actor in self.actors:
            actor.silent = 0
        for name, site in self.sites.items():
            if site.paused:
                await self.queue.order(name, "resume")
                self._ordered(site, "resume")
        for _ in range(2000):
            for actor in self.actors:
                await self._work_off(actor)
            await self._plan_all()
            depth = await self.queue.depth()
            due = sum([len(await self.queue.due(work, 1)) for work in WORKS])
            if not (depth.open or depth.later or due or any(actor.mine for actor in self.actors)):
                return
            pass_time(self.raw, UNIT_MS)
            self.now += 1
        raise AssertionError(f"not finished: {await self.queue.depth()} {await self.queue.lists()}")

    async def _work_off(self, actor: Actor) -> None:
        if not actor.joined:
            await self.queue.join(actor.name, {})
            self._forgive()
            actor.joined = True
        else:
            try:
                await self.queue.renew(actor.name, 1)
            except SessionGoneError:
                self._gone(actor)
                return
            self._forgive()
        self.expiry[actor.name], self.renewed = self.now + LEASE_UNITS, self.now
        await self._adopt(actor)
        for work in WORKS:
            await self.lease(actor, work, 16)
        for name, (leased, work, _) in sorted(actor.mine.items()):
            if work == "site" and await self.locate_at(actor, leased, self.address[name]) is None:
                continue
            while name in actor.mine:
                await self._leave(actor, name, "finished", last=True)

    async def _plan_all(self) -> None:
        planner = self.planner[0] or "sun"
        number = await self.queue.lock("planner", planner, 1e6)
        self.planner = (planner, number)
        names = [name for name, site in self.sites.items() if site.state in "ws"]
        await self.queue.fill(planner, number, HOUR, names)

    def check_end(self, found: Whole) -> None:
        assert {site.state for site in self.sites.values()} <= {"f", "a", "b"}
        assert not found.held
        assert not found.busy
        assert not found.stops
        parked = {key: names for key, names in found.lists.items() if key.startswith("park:")}
        assert not parked
        assert not found.checkpoints


async def walk(server: RunningServer, seed: int, steps: int) -> Counter[str]:
    """Walks `steps` steps and to the end; how often each operation was taken."""
    client = connect(server)
    made = Walk(server, client, seed)
    number = 0
    try:
        for number in range(steps):
            await made.step()
            if number % AUDIT_EVERY == 0:
                await made.compare()
            if number % (4 * AUDIT_EVERY) == 0:
                await made.check_parked()
        number = steps
        await made.drain()
        made.check_end(await made.compare())
    except BaseException as error:
        error.add_note(f"step {number} of LOWTIDE_WALK_SEED={seed} LOWTIDE_WALK_STEPS={steps}")
        raise
    finally:
        await client.aclose()
    return made.done


def check_walk(server: RunningServer, seed: int, steps: int) -> None:
    done = asyncio.run(walk(server, seed, STEPS or steps))
    if not STEPS:
        assert min(done.values()) > steps / 2000, f"an operation was hardly taken: {done}"


def test_three_thousand_steps(valkey: RunningServer) -> None:
    check_walk(valkey, SEED, 3_000)


@pytest.mark.drill
@pytest.mark.parametrize("more", range(4))
def test_two_hundred_thousand_steps(valkey: RunningServer, more: int) -> None:
    check_walk(valkey, SEED + 1 + more, 50_000)
