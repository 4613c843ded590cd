"""The site queue: which sites wait, who holds which, and what a holder publishes. One SiteQueue per process.

Every operation is one atomic script call (queue.lua) on the server's clock. A site has one holder, whatever the
work; its token fences off whoever lost it. Nothing here blocks the event loop, retries, or remembers more than the
number of an agent's last offer: a connection error reaches the caller (redis.exceptions.ConnectionError,
TimeoutError), who backs off and asks again. Safe to ask again: join, renew, discover, offer, publish (by its seq),
depth, held. After a lost reply to `lease` read `held`: it tells what this agent really has. A site's record that is
none (somebody else wrote there) is a BrokenRecordError of every call that needs it; `lease` meets it again and again,
`renew` and `part` do not.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha1
from importlib import resources
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
from msgspec import Meta
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from crawler.options import Options
from crawler.printable import printable
from crawler.queue import connection
from crawler.records import VERSION, WORKS, Work

# How a lease ends. `returned`: unfinished, next in line. `suspended`: unfinished, waits for the plan. `later`:
# unfinished, due at a time. `parked`: its address has no free place.
Ending = Literal["finished", "returned", "suspended", "later", "parked"]
Order = Literal["pause", "resume", "block"]
# What one process at a time does: plan the hours, and open finished sites again.
Lock = Literal["planner", "opener"]
# Lists that the planner writes for an hour: sites in their order, and sites to be probed.
Listed = Literal["hour", "probe"]
# What is known of a site that may be another one under a second name: it is to be compared with it; their pages are
# equal, and it is crawled all the same; they are not equal, or the operator says so.
Likeness = Literal["open", "same", "no"]
# What a site of a lost queue may have been; an unfinished one waits.
State = Literal["waiting", "suspended", "finished", "alias", "blocked"]
# Names one lease call looks at at most: bounds the script's time when many are not eligible.
LOOK = 64
# Such calls in a row while none gives a site: a list may begin with many names that are finished or wait for a place.
LOOKS = 50
# Sites one discover call adds: a longer call would hold up every other agent's lease.
DISCOVER_BATCH = 100
# Turns of a site that is leased for a probe: a median of fewer than three pages says nothing, and the first one is not
# timed (it pays for the connection), nor is one that is redirected.
PROBE_PAGES = 5
# Paths from outside of a site wait in entries of so many characters (one path may be longer): their number bounds them.
ENTRY_CHARACTERS = 4096
# Names one call writes into an hour's list.
FILL_BATCH = 5_000
# As in queue.lua.
HELD_UP_MS = 4_000_000_000_000
# Keys looked at by one step of a scan, and buckets of sites' records (16 sites each, of a million) read in one go: a
# millisecond or two of the server's time.
SCAN_KEYS, READ_BUCKETS = 2_000, 512
# Depth of an entry's paths, and how many redirects led to them.
_ENTRY_HEAD = re.compile(r"(\d{1,9}) (\d{1,9})")
# What `details` calls the site that another one may be.
LIKENESS: dict[Likeness, str] = {"open": "may_be_alias_of", "same": "same_pages_as", "no": "no_alias_of"}
# No process of any system has a larger number.
MOST_PID = 2**31 - 1
STATES = {
    "w": "waiting",
    "s": "suspended",
    "l": "later",
    "f": "finished",
    "a": "alias",
    "b": "blocked",
}
LETTERS = {state: letter for letter, state in STATES.items()}


class SessionGoneError(Exception):
    """The server knows no session of this agent any more: drop every lease, join again."""


class StaleLeaseError(Exception):
    """The token is not the site's: another agent may hold it now. Drop the frontier."""


class QueueOlderError(Exception):
    """The server came back as of an earlier time: it lacks offers of this agent that it had acknowledged.

    Drop every lease, `part`, and join again: what is fetched again is found again.
    """


class LockLostError(Exception):
    """Another process holds the lock."""


class BrokenRecordError(ValueError):
    """A key of the queue has what no agent wrote there, in words for the person who runs the crawl."""

    def __init__(self, key: bytes | str, found: str, wanted: str = "sites' records") -> None:
        super().__init__(f"{_shown(key)} in Redis has {found[:200]}; expected {wanted}. {connection.ANEW}")


class Leased(NamedTuple):
    """A site in hand. `address` is None until somebody has looked it up."""

    site: str
    token: str
    suspended: bool  # it has a checkpoint
    address: str | None
    more: bool = True  # there is a checkpoint, or paths given from outside: read `checkpoint`
    probe: bool = False  # a few pages are wanted of it, to learn how busy it is at this hour
    work: Work = "site"
    may_be_alias: bool = False  # it goes back after some pages, to be compared with the site that it may be


class Renewed(NamedTuple):
    """What a renewal tells: the server's clock in ms, the sites to give back, and those that were given paths."""

    server_ms: int
    stop: list[str]  # by the operator's order
    suspend: list[str]  # by the plan: others are worth more at this hour
    given: Sequence[str] = ()  # paths were given for them from outside: read `given`


class Hand(NamedTuple):
    """What a lease call gave, and what it saw before: for a fair share among the agents."""

    sites: list[Leased]
    # Sites that waited, suspended ones included; of another work than `site`: some of those left that could be had.
    ready: int
    leased: int
    agents: int
    missing: int = 0  # sites that hungry agents, this one left out, asked for in vain within the last 2 s


class Newcomer(NamedTuple):
    """A site to be queued: its record for the tables (JSON), and paths to begin with; none means `/`."""

    site: str
    record: bytes
    paths: tuple[str, ...] = ()


class Offer(NamedTuple):
    """Paths for a site from outside of it, all at one depth and behind as many redirects."""

    site: str
    paths: Sequence[str]
    depth: int = 0
    redirects: int = 0
    # For the tables (JSON) if the site is new; empty: a site that is not known is left out.
    record: bytes = b""
    with_root: bool = False  # a new site begins with its root too
    seeded: bool = False  # a seed led here: the site counts as given by the user

    @property
    def entry(self) -> str:
        """As it stands in Redis; `read_entry` reads it."""
        head = f"{self.depth} {self.redirects}\n" if self.depth or self.redirects else ""
        return head + "\n".join(self.paths)

    def parts(self) -> list[Offer]:
        """The same in several, none of which makes a long entry."""
        return [self._replace(paths=some) for some in _parts(self.paths)]


class Given(NamedTuple):
    """What an entry of paths holds; `bad` are the words in it that are no path."""

    paths: list[str]
    depth: int = 0
    redirects: int = 0
    bad: Sequence[str] = ()


def _parts(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    """The paths in turn, as many at a time as one entry may have."""
    first, length = 0, 0
    for place, path in enumerate(paths):
        if length and length + len(path) > ENTRY_CHARACTERS:
            yield paths[first:place]
            first, length = place, 0
        length += len(path) + 1
    yield paths[first:]


def read_entry(entry: str) -> Given:
    """One entry of paths that came from outside of a site."""
    depth = redirects = 0
    words = entry.split("\n")
    if head := _ENTRY_HEAD.fullmatch(words[0]):
        depth, redirects = int(head[1]), int(head[2])
        del words[0]
    paths = [word for word in words if word.startswith("/")]
    return Given(paths, depth, redirects, [word for word in words if not word.startswith("/")])


class Delivery(NamedTuple):
    """What one site's holder publishes in one go; seq counts the deliveries of a lease from 1."""

    site: str
    token: str
    seq: int
    delta: bytes  # journal entry; the whole checkpoint if `fold`
    fold: bool
    root: str  # what an alias has in common with the site (root_marks); empty: not this time
    records: Sequence[tuple[bytes, bytes]]  # JSON, packed out-links
    # For whoever holds the site next, should this agent die:
    delay_ms: int = 0  # least pause between two requests to the site
    until_ms: int = 0  # server's time before which it must not be asked; 0: none
    # How far the site is by now; None: as it was, since the work is not loading.
    known: int | None = 0  # of its URLs
    done: int = 0  # of these, have had their turn
    done_hash: int = 0  # records.set_hash of these
    given: int = 0  # entries of paths from outside that the delta has taken in: the server forgets them
    # By its records pages are to be loaded again: the site is opened once they are stored.
    sends_back: bool = False
    left_out: str = ""  # URLs that bounds leave out (crawler.left_out.to_text)


class HandedIn(NamedTuple):
    """A site whose check is over: what is told of it, and when it is due again. Times: server's ms."""

    site: str
    token: str
    due_ms: int
    rests_until_ms: int  # nobody asks it before; 0: anybody may
    permit: str  # what is kept of its robots.txt; empty: as it was
    record: bytes  # JSON; empty: nothing is told


class Published(NamedTuple):
    """What became of a delivery; `alias_of` names the site that this one may be under a second name."""

    verdict: Literal["OK", "AGAIN", "STALE", "GAP"]
    alias_of: str = ""


class Depth(NamedTuple):
    """How much there is, in sites; `records` in the results stream, `agents` with a session.

    `coordinated` is 1 where some coordinator was alive within the last 15 s, else 0.
    """

    waiting: int
    suspended: int
    leased: int
    later: int
    paused: int
    finished: int
    alias: int
    blocked: int
    added: int
    records: int
    agents: int
    coordinated: int

    @property
    def open(self) -> int:
        """Sites that somebody has or could have right now."""
        return self.waiting + self.suspended + self.leased


class TablesWord(NamedTuple):
    """What coordinators last counted of queue and tables (crawler.reconcile.comparing.tables_key)."""

    added: int  # sites that the queue knew then
    lost: int  # unfinished sites of the tables that it did not know
    at_ms: int  # when they were counted, on the server's clock


class SiteRecord(NamedTuple):
    """A site as the queue knows it."""

    site: str
    state: str  # waiting, suspended, later, finished, alias, blocked
    paused: bool
    address: str | None
    token: str = ""
    agent: str = ""  # who holds it; empty: nobody
    work: str = ""
    known: int = 0  # its URLs when it was last given back; 0: it never was
    done: int = 0  # of these, how many had had their turn
    done_hash: int | None = None  # records.set_hash of these; None: an older version did not write it
    left_out: str = ""  # URLs that bounds leave out (crawler.left_out.to_text)
    linked: bool = False  # a link led to it, and it was not given as a seed


class Suspect(NamedTuple):
    """A site that may be another one under a second name, or is left out as such."""

    record: SiteRecord
    state: Likeness
    first: SiteRecord | None  # the other; None: it was forgotten
    name: str  # of the other
    since_ms: int  # pages that were fetched before say nothing
    looked_ms: int  # when there was something to look at, on the server's clock
    own_budget: bool  # the other has a page budget of its own


class Holding(NamedTuple):
    """A site in an agent's hand, for whatever work, and how many of its URLs are known and done by now."""

    site: str
    agent: str
    known: int
    done: int
    done_hash: int | None = None  # as in SiteRecord
    left_out: str = ""


class Restored(NamedTuple):
    """A site for a queue that was lost, with what the operator expected of it."""

    site: str
    state: State
    address: str | None = None
    paused: bool = False
    known: int = 0
    done: int = 0
    done_hash: int = 0
    budget: int | None = None  # pages; 0: no limit, None: the crawl's own
    why: str = ""  # the order's reason, or for an alias the site that came first
    left_out: str = ""  # as in SiteRecord
    linked: bool = False  # as in SiteRecord
    owed: str = ""  # what the tables lost of it (crawler.reconcile.agreement); empty: nothing


class Undecided(NamedTuple):
    """What a coordinator decides of one site."""

    record: SiteRecord | None  # None: the site was forgotten
    entries: list[str]  # the first ones of its offered paths; `read_entry` reads each
    noted: int  # how often it was noted that pages of it are to be loaded again
    since_ms: int  # as `to_decide` gives it; 0: nothing is to be decided of it any more


class SiteQueue:
    """One crawl's queue under KEY_PREFIX."""

    def __init__(self, client: Redis, options: Options) -> None:
        self._client: Any = client
        self._base = f"{options.key_prefix}:{{0}}:"
        self._lease_ms = int(options.lease_seconds * 1000)
        self._hour_seconds = options.hour_seconds
        self._places = (
            options.sites_per_address,
            options.shared_address_after,
            max(options.sites_per_address, options.sites_per_shared_address),
        )
        self._offers: dict[str, int] = {}  # agent -> the number of its last `offer` that the server answered
        self._source = resources.files("crawler.queue").joinpath("queue.lua").read_text()
        self._sha: str | None = None

    # --- agents ---

    async def join(self, agent: str, about: dict[str, object]) -> int:
        """Open or renew the session of `agent`; the server's time in ms."""
        time = int(await self._call("join", agent, self._lease_ms, json.dumps(about)))
        self._offers.pop(agent, None)
        return time

    async def renew(self, agent: str, pages: int) -> Renewed:
        """Keep all leases of `agent` for another lease time."""
        server_ms, stopped, suspended, *sites = await self._call("renew", agent, self._lease_ms, pages)
        behind = stopped + suspended
        return Renewed(
            server_ms,
            _texts(f"{self._base}stop:{agent}", sites[:stopped]),
            _texts(f"{self._base}suspend:{agent}", sites[stopped:behind]),
            _texts(f"{self._base}given:{agent}", sites[behind:]),
        )

    async def part(self, agent: str) -> None:
        """End the session; what it still holds is handed to the next."""
        await self._call("part", agent)

    async def claim_prefix(self, spider: str) -> str:
        """The spider whose crawl this prefix is: `spider`, or the one that came first.

        What an older version wrote in another form gets the form of this one.
        """
        return _text(f"{self._base}crawl", await self._call("claim", spider))

    async def lease(
        self, agent: str, work: Work, wanted: int, hour: int, *, hungry: bool = False, packed: bool = False
    ) -> Hand:
        """Up to `wanted` sites for `work`, each held by `agent` alone from now on.

        A `hungry` agent misses what it does not get, and the others hear of it (`Hand.missing`) until it gets enough,
        asks without hunger, or has not asked for 2 s. Of a `packed` work only sites are given that have a packet.
        SessionGoneError, QueueOlderError.
        """
        for _ in range(LOOKS):
            reply = await self._call(
                "lease",
                agent,
                self._lease_ms,
                work,
                wanted,
                *self._places,
                hour,
                LOOK + wanted,
                int(hungry),
                int(packed),
                self._offers.get(agent, 0),
            )
            more_to_look_at = reply[3] and len(reply) == 5
            if not more_to_look_at:
                break
        parts = _texts(f"{self._base}held:{agent}", reply[5:])
        sites = [
            Leased(
                site,
                token,
                flags[0] == "s",
                None if address == "-" else address,
                "+" in flags,
                "?" in flags,
                work,
                "~" in flags,
            )
            for site, token, flags, address in zip(*[iter(parts)] * 4, strict=True)
        ]
        ready, leased, agents, _, missing = reply[:5]
        return Hand(sites, ready, leased, agents, missing)

    async def held(self, agent: str) -> dict[str, str]:
        """What the server says this agent holds: site -> token. BrokenRecordError where that cannot be read."""
        key = f"{self._base}held:{agent}"
        fields = await self._client.hgetall(key)
        return {_text(key, site): _token(key, site, text) for site, text in fields.items()}

    async def locate(self, agent: str, leased: Leased, address: str) -> bool:
        """Take a place on the site's address; False: full, leave the site with `parked`."""
        return bool(await self._call("locate", agent, leased.site, leased.token, address, *self._places))

    async def checkpoint(self, site: str) -> tuple[list[bytes], list[str], int | None]:
        """The journal entries of a site in order, the entries of paths given for it from outside, its own page budget.

        BrokenRecordError for a budget that is none.
        """
        pipeline = self._client.pipeline(transaction=False)
        pipeline.lrange(f"{self._base}checkpoint:{site}", 0, -1)
        pipeline.lrange(f"{self._base}paths:{site}", 0, -1)
        pipeline.hget(f"{self._base}budget", site)
        entries, paths, budget = await pipeline.execute()
        # What is no path is told by whoever reads it.
        given = [path.decode(errors="replace") for path in paths]
        return entries, given, self._pages_of(site, budget)

    async def given(self, site: str, start: int) -> list[str]:
        """The entries of paths given for a site from outside, from the `start`th on: `read_entry` reads each."""
        entries = await self._client.lrange(f"{self._base}paths:{site}", start, -1)
        return [entry.decode(errors="replace") for entry in entries]

    async def publish(self, agent: str, deliveries: Sequence[Delivery]) -> list[Published]:
        """Records into the stream and the journal with them, per site all or nothing. QueueOlderError: nothing."""
        parts: list[bytes | str | int] = []
        for one in deliveries:
            parts += (one.site, one.token, one.seq, one.delta, int(one.fold), one.root)
            progress = ""
            if one.known is not None:
                progress = _progress(one.done, one.known, one.done_hash, one.left_out)
            parts += (one.delay_ms, one.until_ms, progress, one.given, int(one.sends_back), len(one.records))
            for record, links in one.records:
                parts += (record, links)
        replies = await self._call("publish", agent, self._offers.get(agent, 0), *parts)
        verdicts = _texts(f"{self._base}suspected", replies)
        return [Published(*verdict.split(" ", 1)) for verdict in verdicts]  # type: ignore[arg-type]

    async def leave(
        self,
        agent: str,
        leased: Leased,
        how: Ending,
        *,
        due_ms: int = 0,
        detail: str | int = "",
        reason: str = "",
        report: bytes = b"",
        known: int = 0,
        done: int = 0,
        done_hash: int = 0,
        left_out: str = "",
        rests_until_ms: int = 0,
        seq: int = 0,
    ) -> bool:
        """Give a site back, with a last record; False: not finished, more paths were given meanwhile.

        `detail`: for `finished` the number of paths from outside that were taken in, for `parked` the address.
        `reason` is shown for a site that is due later. The site's record keeps how many of its URLs are `known` (0:
        what it said before stays) and `done`, the hash of the latter, and what bounds leave out. Of another work
        `due_ms` is when it is due next: 0 for `finished` that it is not, else that it is at once. The site is not asked
        before `rests_until_ms`; for loading this holds for `finished` alone, the others have `due_ms`. A site that may
        be another's alias is due once a coordinator has compared the two, or after half a minute. `seq` is the number
        of the lease's last delivery: StaleLeaseError where the server has lost it.
        """
        last = detail if detail != "" else 0
        lease = (agent, leased.site, leased.token)
        more = (_progress(done, known, done_hash, left_out) if known else "", rests_until_ms, seq)
        return bool(await self._call("leave", *lease, how, due_ms, last, reason, report, *more))

    async def hand_in(self, agent: str, done: Sequence[HandedIn]) -> None:
        """Records into the stream, and the leases of their sites ended: those that still are this agent's.

        Safe to ask again: a record that is told twice is stored once.
        """
        parts: list[bytes | str | int] = []
        for one in done:
            parts += one
        await self._call("hand_in", agent, *parts)

    async def permits(self, sites: Sequence[str]) -> list[str]:
        """What `hand_in` kept of each site's robots.txt; empty: nothing."""
        key = f"{self._base}permits"
        return _texts(key, [kept or b"" for kept in await self._client.hmget(key, sites)])

    async def spend(self, day: int, spent: Mapping[str, tuple[int, int]], keep_seconds: int) -> None:
        """Add requests and bytes to what sites were asked for on a day; kept for so long from now on."""
        key = f"{self._base}spent:{day}"
        pipeline = self._client.pipeline(transaction=False)
        for site, (requests, size) in spent.items():
            pipeline.hincrby(key, f"requests {site}", requests)
            pipeline.hincrby(key, f"bytes {site}", size)
        pipeline.expire(key, keep_seconds)
        await pipeline.execute()

    async def spent(self, day: int, sites: Sequence[str]) -> list[tuple[int, int]]:
        """Requests and bytes that sites were asked for on a day, by all agents, as far as they have told."""
        fields = [f"{kind} {site}" for site in sites for kind in ("requests", "bytes")]
        key = f"{self._base}spent:{day}"
        values = await self._client.hmget(key, fields)
        found = [_whole(key, field, value or b"0") for field, value in zip(fields, values, strict=True)]
        return list(zip(found[::2], found[1::2], strict=True))

    async def monitor(self, work: Work) -> None:
        """From now on every site has a due time for this work; those that have none yet are due at once.

        Cheap where that was said before, and the queue was not lost since.
        """
        if await self._client.hget(f"{self._base}count", f"every:{work}"):
            return
        await self._client.hset(f"{self._base}count", f"every:{work}", 1)
        due = int(await self.server_seconds() * 1000)
        some: dict[str, float] = {}
        async for record in self.records():
            if record.state not in ("blocked", "alias"):
                some[record.site] = due
            if len(some) >= FILL_BATCH:
                await self.fall_due(work, some)
                some = {}
        await self.fall_due(work, some)

    async def fall_due(self, work: Work, dues: Mapping[str, float]) -> None:
        """Give these sites (known ones) a due time in ms for a work, where they have none."""
        if dues:
            await self._client.zadd(f"{self._base}wake:{work}", dict(dues), nx=True)

    async def tell(self, encoded: Sequence[bytes], links: Sequence[bytes] = ()) -> None:
        """Records that belong to no lease into the results stream, each with its packed out-links where these are."""
        pipeline = self._client.pipeline(transaction=False)
        for record, packed in itertools.zip_longest(encoded, links, fillvalue=b""):
            more = {b"l": packed} if packed else {}
            pipeline.xadd(f"{self._base}results", {b"v": VERSION, b"r": record, **more})
        await pipeline.execute()

    # --- sites ---

    async def discover(
        self, newcomers: Sequence[Newcomer], max_sites: int, *, again: bool = False
    ) -> list[int]:
        """Queue sites: per site 1 new, 0 known, 2 walked `again`, -1 refused by `max_sites`, -2 blocked.

        `max_sites` 0 means no limit. Paths given for a site that is known come to its frontier; a finished site is
        opened for those that it does not have, once a coordinator has looked (`to_decide`). Those of a blocked site go
        nowhere. What is given here is a seed: no such site is an alias, and one that was left out as such is opened.
        Idempotent but for `again`; a path that is given twice is fetched once.
        """
        verdicts: dict[int, int] = {}  # of a newcomer with several entries the first one
        entries = [
            (number, "" if paths in ((), ("/",)) else "\n".join(paths))
            for number, one in enumerate(newcomers)
            for paths in _parts(one.paths)
        ]
        for start in range(0, len(entries), DISCOVER_BATCH):
            parts: list[bytes | str] = []
            some = entries[start : start + DISCOVER_BATCH]
            for number, entry in some:
                parts += (newcomers[number].site, newcomers[number].record, entry)
            replies = await self._call("discover", max_sites, int(again), *parts)
            for (number, _), reply in zip(some, replies, strict=True):
                verdicts.setdefault(number, reply)
        return list(verdicts.values())

    async def plan_work(self, site: str, work: str, due_ms: int) -> bool:
        """Let a work fall due for a site; False: the site is not known."""
        return bool(await self._call("plan_work", site, work, due_ms))

    async def offer(self, offers: Sequence[Offer], max_sites: int = 0, *, agent: str = "") -> list[int]:
        """Paths that were found outside of their site, as `discover` takes them; those of an alias go to its original.

        Per offer 1 the site is new, 0 known, -1 refused by `max_sites`, -2 nothing of the site is loaded by now, -3 too
        many such entries wait for the site. An `agent` with a session publishes nothing once the server has lost an
        offer of it: QueueOlderError, also of `publish` and `lease`.
        """
        answers: dict[int, int] = {}  # of an offer with several entries the first one, or a refusal
        entries = [(number, part) for number, one in enumerate(offers) for part in one.parts()]
        for start in range(0, len(entries), DISCOVER_BATCH):
            parts: list[bytes | str | int] = []
            some = entries[start : start + DISCOVER_BATCH]
            for _, one in some:
                parts += (one.site, one.record, int(one.with_root), int(one.seeded), one.entry)
            call = self._offers.get(agent, 0)
            *replies, self._offers[agent] = await self._call("offer", max_sites, agent, call, *parts)
            for (number, _), reply in zip(some, replies, strict=True):
                answers[number] = reply if reply < 0 else answers.get(number, reply)
        return list(answers.values())

    async def is_older(self, agent: str) -> bool:
        """Whether the server lacks offers of this agent that it had acknowledged."""
        key = f"{self._base}agent:{agent}"
        kept = await self._client.hget(key, "offers")
        return _whole(key, "offers", kept or b"0") < self._offers.get(agent, 0)

    async def pack(self, site: str, work: Work, packet: bytes) -> bool:
        """What is to be asked of a site by whoever leases it for this work next; False: it is in hand for just that."""
        return bool(await self._call("pack", site, work, packet))

    async def packet(self, site: str, work: Work) -> bytes:
        """What was packed for a work; empty: nothing is. It goes with the lease."""
        return await self._client.hget(f"{self._base}visit:{site}", work) or b""

    async def to_pack(self, work: Work, until_ms: int, most: int) -> list[str]:
        """Sites that are due for a work until then and have nothing packed; up to `most`."""
        wake, again = f"{self._base}wake:{work}", f"{self._base}again:{work}"
        due = _texts(wake, await self._client.zrangebyscore(wake, 0, until_ms, start=0, num=most))
        due += _texts(again, await self._client.lrange(again, 0, most - 1))
        names = list(dict.fromkeys(due))
        pipeline = self._client.pipeline(transaction=False)
        for site in names:
            pipeline.hexists(f"{self._base}visit:{site}", work)
        return [site for site, there in zip(names, await pipeline.execute(), strict=True) if not there]

    async def account(self) -> dict[str, float]:
        """Recheck's account (crawler.recheck.account), as it was kept last; empty where there is none that can be read.

        A price is found anew within a sweep or two: what somebody else wrote there is no reason to stop.
        """
        try:
            key = f"{self._base}recrawl"
            fields = await self._client.hgetall(key)
            account = {_text(key, name): float(value) for name, value in fields.items()}
        except (ValueError, ResponseError) as error:
            if isinstance(error, ResponseError) and not connection.is_of_wrong_kind(error):
                raise
            return {}
        return account if all(map(math.isfinite, account.values())) else {}

    async def keep_account(self, account: Mapping[str, float]) -> None:
        """For the next look, of whichever coordinator; in the place of whatever was there."""
        await self._call("keep_account", *itertools.chain.from_iterable(account.items()))

    async def hold_up(self, site: str, work: Work) -> int:
        """Hold up a site's due time until `release`; what it was, in ms, 0: it had none."""
        return int(await self._call("hold_up", site, work))

    async def release(self, site: str, work: Work, due_ms: int) -> None:
        """Let the site be due then (0: not at all), or at the time that somebody told meanwhile, if it is sooner."""
        await self._call("release", site, work, due_ms)

    async def take_back_held(self, work: Work) -> None:
        """What a packer that was killed held up is due now."""
        key, now_ms = f"{self._base}wake:{work}", int(await self.server_seconds() * 1000)
        held = await self._client.zrangebyscore(key, HELD_UP_MS, "+inf")
        if held:
            await self._client.zadd(key, dict.fromkeys(held, now_ms), xx=True)

    async def oldest_record_ms(self) -> int | None:
        """When the oldest record came that no coordinator has stored yet, by the server's clock; None: all are."""
        oldest = await self._client.xrange(f"{self._base}results", count=1)
        return int(oldest[0][0].partition(b"-")[0]) if oldest else None

    async def to_decide(self, most: int) -> dict[str, int]:
        """The first `most` sites of which a coordinator has to decide whether something of them is to be loaded.

        With the time since when (ms): what was published before must be stored first.
        """
        key = f"{self._base}undecided"
        found = await self._client.zrange(key, 0, most - 1, withscores=True)
        return {_text(key, site): int(since) for site, since in found}

    async def undecided(self) -> int:
        """How many sites wait for a coordinator that decides whether something of them is to be loaded."""
        return int(await self._client.zcard(f"{self._base}undecided"))

    async def offered(self, sites: Sequence[str], most: int) -> list[Undecided]:
        """What is to be decided of each of these sites, with up to `most` entries of its offered paths."""
        pipeline = self._client.pipeline(transaction=False)
        for site in sites:
            pipeline.hget(self._bucket(site), site)
            pipeline.lrange(f"{self._base}offered:{site}", 0, most - 1)
            pipeline.hget(f"{self._base}reopen", site)
            pipeline.zscore(f"{self._base}undecided", site)
        replies = iter(await pipeline.execute())
        return [
            Undecided(
                None if text is None else _record(self._bucket(site), site, text),
                [entry.decode(errors="replace") for entry in entries],
                _whole(f"{self._base}reopen", site, noted or b"0"),
                int(since or 0),
            )
            for site, (text, entries, noted, since) in zip(
                sites, zip(*[replies] * 4, strict=True), strict=True
            )
        ]

    async def decide(self, opener: str, number: int, known: Mapping[str, int]) -> None:
        """Of these sites so many offered entries hold nothing new. LockLostError where the lock is another's.

        All entries of sites that are not finished go to their frontiers.
        """
        if known:
            parts = itertools.chain.from_iterable(known.items())
            await self._call("decide", opener, number, *parts)

    async def reopen(
        self,
        opener: str,
        number: int,
        site: str,
        checkpoint: bytes,
        taken: int,
        noted: int = 0,
        owed: str = "",
    ) -> bool:
        """Open a finished site again, to be gone on with from here; False: it is not finished.

        `taken`: offered entries that go to its frontier. Without a checkpoint there is nothing to load after all.
        `noted`: as `offered` said; what was noted since keeps the site there. `owed`: what the tables lost of it
        (crawler.reconcile.agreement). LockLostError as `decide`.
        """
        return bool(await self._call("reopen", opener, number, site, checkpoint, taken, noted, owed))

    async def refuse(
        self, opener: str, number: int, record: SiteRecord, taken: int, left_out: str, report: bytes
    ) -> bool:
        """Leave offered entries of a finished site out, which has all its pages; False: it is not what it was any more.

        `left_out`: what bounds leave out of it now. `report` tells the tables; empty: that is as before. LockLostError
        as `decide`.
        """
        progress = (_progress_of(record), _progress_of(record._replace(left_out=left_out)))
        return bool(await self._call("refuse", opener, number, record.site, taken, *progress, report))

    # --- aliases ---

    async def suspects(self) -> int:
        """How many sites wait for a coordinator that compares them with those that they may be."""
        return int(await self._client.zcard(f"{self._base}suspects"))

    async def to_compare(self, most: int) -> list[Suspect]:
        """The first `most` sites to be compared with those that they may be; drops those not suspected any more."""
        key, suspected = f"{self._base}suspects", f"{self._base}suspected"
        found = await self._client.zrange(key, 0, most - 1, withscores=True)
        looked = {_text(key, site): int(at) for site, at in found}
        if not looked:
            return []
        said = await self._client.hmget(suspected, [*looked])
        likeness = {
            site: _likeness(suspected, site, text) for site, text in zip(looked, said, strict=True) if text
        }
        if gone := looked.keys() - likeness.keys():
            await self._client.zrem(key, *gone)
        records = await self._records_of([*likeness, *(one[1] for one in likeness.values())])
        budgets = await self._client.hmget(
            f"{self._base}budget", [one[1] for one in likeness.values()] or [""]
        )
        return [
            Suspect(record, state, records[first], first, since, looked[site], budget is not None)
            for (site, (state, first, since)), budget in zip(likeness.items(), budgets, strict=False)
            if (record := records[site])
        ]

    async def _records_of(self, sites: Sequence[str]) -> dict[str, SiteRecord | None]:
        pipeline = self._client.pipeline(transaction=False)
        for site in sites:
            pipeline.hget(self._bucket(site), site)
        return {
            site: None if text is None else _record(self._bucket(site), site, text)
            for site, text in zip(sites, await pipeline.execute(), strict=True)
        }

    async def judge(self, coordinator: str, number: int, judged: Iterable[tuple[Suspect, Likeness]]) -> None:
        """What comparisons say; `no` opens a site that was left out as an alias. LockLostError as `decide`."""
        parts: list[str | int] = []
        for one, state in judged:
            parts += (one.record.site, one.name, state, one.looked_ms)
        if parts:
            await self._call("judge", coordinator, number, *parts)

    async def hand_on(self, coordinator: str, number: int, site: str, offers: Iterable[Offer]) -> None:
        """To a site what was found under the name of an alias of it. LockLostError as `decide`."""
        entries = [part.entry for offer in offers for part in offer.parts()]
        for start in range(0, len(entries), DISCOVER_BATCH):
            await self._call("hand_on", coordinator, number, site, *entries[start : start + DISCOVER_BATCH])

    async def give_back(self, coordinator: str, number: int, one: Suspect) -> None:
        """Have the site given back by its holder, to be left out as another's alias. LockLostError as `decide`."""
        await self._call("leave_out", coordinator, number, one.record.site, one.name, "", "", "")

    async def leave_out(
        self, coordinator: str, number: int, one: Suspect, progress: Progress, record: bytes
    ) -> bool:
        """Leave a site out as another's alias, with what is told the tables; False: it is not what it was any more.

        LockLostError as `decide`.
        """
        before = _progress_of(one.record)
        after = _progress(progress.done, progress.known, progress.done_hash or 0, progress.left_out)
        about = (one.record.site, one.name, before, after, record)
        return bool(await self._call("leave_out", coordinator, number, *about))

    async def note_moved(self, moved: Iterable[tuple[str, str, str]]) -> None:
        """Seeds of a site redirect to another site's path."""
        pipeline = self._client.pipeline(transaction=False)
        for seeds_site, site, path in moved:
            pipeline.hset(f"{self._base}moved:{seeds_site}", site + path, path)
        await pipeline.execute()

    async def moved(self, sites: Sequence[str]) -> list[tuple[str, str]]:
        """Where seeds of these sites are known to redirect to: other sites, and paths of them."""
        pipeline = self._client.pipeline(transaction=False)
        keys = [f"{self._base}moved:{site}" for site in sites]
        for key in keys:
            pipeline.hgetall(key)
        found = zip(keys, await pipeline.execute(), strict=True)
        texts = ((_text(key, url), _text(key, path)) for key, some in found for url, path in some.items())
        # Older versions kept one path of each site, under the site's name.
        return [(url.removesuffix(path), path) for url, path in texts]

    async def note_rootless(self, sites: Sequence[str]) -> None:
        """The roots of these sites were never asked for: they began with other pages."""
        if sites:
            await self._client.sadd(f"{self._base}rootless", *sites)

    async def due_now(self, work: Work, *, unpacked: bool = False) -> int:
        """How many sites a work has to do with by now, paused ones and those in another's hand among them.

        `unpacked`: also those that it found not packed yet when they were due.
        """
        return int(await self._call("due_now", work, int(unpacked)))

    async def plan_reopening(self, sites: Sequence[str]) -> None:
        """These sites have something to load again: once they are finished they are opened for it."""
        if sites:
            await self._call("plan_reopening", *sites)

    async def order(self, site: str, order: Order, reason: str = "", *, record: bytes = b"") -> str | None:
        """What the operator wants of a site; its state before, None where it is not known.

        `record` tells the tables, here as in `set_budget` and `forget`: it goes into the results stream in the same
        call, if the order is taken. Nothing is left to pause of a blocked site: it stays as it is.
        """
        before = await self._call("order", site, order, reason, record)
        return None if before is None else str(before.decode())

    async def forget(self, site: str, *, record: bytes = b"") -> Literal[1, 0, -1]:
        """Remove a site from the queue: 1 done, 0 not known, -1 held by an agent."""
        return await self._call("forget", site, record, *WORKS)  # type: ignore[no-any-return]

    async def set_budget(self, site: str, pages: int | None, *, record: bytes = b"") -> bool:
        """Give a site its own MAX_PAGES_PER_SITE from its next lease on, None takes it back; False: not known."""
        return bool(await self._call("budget", site, "" if pages is None else pages, record))

    async def known(self, sites: Sequence[str]) -> set[str]:
        """Which of these sites the queue knows."""
        pipeline = self._client.pipeline(transaction=False)
        for site in sites:
            pipeline.hexists(self._bucket(site), site)
        return set(itertools.compress(sites, await pipeline.execute()))

    async def restore(self, sites: Sequence[Restored]) -> int:
        """Sites into a queue that was lost; how many were not known, the others stay as they are.

        A suspended one needs its checkpoint first: `give_checkpoint`.
        """
        new = 0
        for start in range(0, len(sites), DISCOVER_BATCH):
            parts: list[str | int] = []
            for one in sites[start : start + DISCOVER_BATCH]:
                letter = LETTERS[one.state]
                parts += (one.site, letter.upper() if one.paused else letter, one.address or "-")
                progress = _progress(one.done, one.known, one.done_hash, one.left_out)
                parts += (progress if one.known else "",)
                parts += ("" if one.budget is None else one.budget, one.why, int(one.linked), one.owed)
            new += await self._call("restore", *parts)
        return new

    async def mend(
        self,
        record: SiteRecord,
        checkpoint: bytes,
        done: int,
        done_hash: int,
        *,
        known: int = 0,
        owed: str = "",
    ) -> bool:
        """Let a site go on from this checkpoint, without one from its root; a blocked site only gets the figures.

        `known`: its URLs, where they are more than the record says. `owed`: as in `reopen`.
        False: nothing was changed, since an agent holds the site, or it is not what `record` says any more.
        """
        before = _progress_of(record)
        # Of a walk from the root nothing is left out yet.
        left_out = record.left_out if checkpoint or record.state == "blocked" else ""
        known = max(known, record.known)
        after = _progress(done, known, done_hash, left_out) if known else ""
        return bool(await self._call("mend", record.site, before, checkpoint, after, owed))

    async def owed(self) -> dict[str, str]:
        """The sites of which the tables lost pages that are not found again yet, each with what `owing` reads."""
        key = f"{self._base}owed"
        fields = await self._client.hgetall(key)
        return {_text(key, site): _text(key, text) for site, text in fields.items()}

    async def settle(self, site: str, owed: str) -> bool:
        """Nothing is owed of a site any more; False: by now it is something else."""
        return bool(await self._call("settle", site, owed))

    async def widen_scope(self, roots: Iterable[str]) -> None:
        """What seeds add to the scope, for all agents; empty ones add nothing."""
        if kept := set(filter(None, roots)):
            await self._client.sadd(f"{self._base}scope", *kept)

    async def give_checkpoint(self, site: str, checkpoint: bytes) -> None:
        """The checkpoint of a site that the queue does not know yet; one that was given before goes."""
        await self._call("give_checkpoint", site, checkpoint)

    # --- the plan ---

    async def lock(self, lock: Lock, holder: str, seconds: float) -> int:
        """A fencing number while `holder` has this lock; 0: another one does."""
        return int(await self._call("lock", lock, holder, int(seconds * 1000)))

    async def fill(
        self, planner: str, number: int, hour: int, names: Sequence[str], *, lists: Listed = "hour"
    ) -> int:
        """Write an hour's list anew, in order; its length. LockLostError where the lock is another's."""
        length = 0
        # Kept through the next hour, so that a planner that comes late finds no slot idle.
        seconds = math.ceil(2 * self._hour_seconds) + 60
        for start in range(0, max(len(names), 1), FILL_BATCH):
            about = (planner, number, lists, hour, seconds, int(start == 0))
            length = await self._call("fill", *about, *names[start : start + FILL_BATCH])
        return length

    async def suspend(self, planner: str, number: int, sites: Sequence[str]) -> int:
        """Have these sites given back by their holders, to be gone on with when their turn comes; how many are held.

        LockLostError where the lock is another's.
        """
        told = 0
        for start in range(0, len(sites), FILL_BATCH):
            told += await self._call("suspend", planner, number, *sites[start : start + FILL_BATCH])
        return told

    async def tell_planned(self, planner: str, number: int, hour: int) -> None:
        """The hour's plan is whole, whatever becomes of its planner. LockLostError where the lock is another's."""
        await self._call("planned", planner, number, hour)

    async def planned_hour(self) -> int | None:
        """The last hour of which the plan is whole; None: there was none yet."""
        key = f"{self._base}count"
        hour = await self._client.hget(key, "planned")
        return None if hour is None else _whole(key, "planned", hour)

    async def hour_length(self, hour: int) -> int:
        """Names left in an hour's list."""
        return int(await self._client.llen(f"{self._base}hour:{hour}"))

    async def server_seconds(self) -> float:
        """Seconds since 1970 on the server's clock."""
        seconds, micros = await self._client.time()
        return float(seconds + micros / 1e6)

    async def parked(self) -> set[str]:
        """The sites that wait for a place; a few may have ceased to."""
        key = f"{self._base}parked"
        return set(_texts(key, await self._client.smembers(key)))

    async def running(self) -> dict[str, tuple[int, int]]:
        """The sites that are held, for whatever work, with how many of their URLs are known and done by now."""
        return {one.site: (one.known, one.done) for one in await self.holdings()}

    # --- to look at ---

    async def holdings(self) -> list[Holding]:
        """Who holds which site, agent by agent. BrokenRecordError where that cannot be read."""
        found = []
        for agent in await self._sessions():
            for site, text in (await self._client.hgetall(f"{self._base}held:{agent}")).items():
                found.append(_holding(f"{self._base}held:{agent}", site, agent, text))
        return found

    async def hour_line(self, hour: int, most: int) -> list[str]:
        """The first names left in an hour's list, in their order."""
        key = f"{self._base}hour:{hour}"
        return _texts(key, await self._client.lrange(key, 0, most - 1))

    async def parked_count(self) -> int:
        """How many sites wait for a place; a few may have ceased to."""
        return int(await self._client.scard(f"{self._base}parked"))

    async def depth(self) -> Depth:
        """How much of everything there is now. BrokenRecordError where it cannot be counted."""
        counted = await self._call("depth")
        if None not in counted:
            return Depth(*counted)
        key, name = f"{self._base}count", Depth._fields[counted.index(None)]
        text = await self._client.hget(key, name) or b""
        raise BrokenRecordError(key, _found(name, text), "whole numbers")

    async def tables_word(self) -> TablesWord | None:
        """What coordinators last counted; None: nothing since the queue is there, or since its reset."""
        key, names = f"{self._base}tables", ("added", "lost", "at")
        *values, reset, counted_with = await self._client.hmget(key, *names, "reset", "counted_with")
        if None in values or (reset or b"0") != (counted_with or b"0"):
            return None
        return TablesWord(*map(_whole, itertools.repeat(key), names, values))

    async def count_tables_again(self, *, owes_all: bool = False) -> None:
        """What coordinators counted holds no longer; `owes_all`: nor does what a reset gave up."""
        await self._client.hdel(
            f"{self._base}tables", "lost", *(["reset", "counted_with"] if owes_all else [])
        )

    async def has_begun(self, *, again: bool) -> bool:
        """Whether pages of some site are done and are not fetched again; `again`: finished sites are crawled again.

        BrokenRecordError where the queue cannot be read.
        """
        depth = await self.depth()
        if depth.suspended or depth.later or depth.paused:
            return True
        if not again and (depth.finished or depth.alias or depth.blocked):
            return True
        held = [f"{self._base}checkpoint:{holding.site}" for holding in await self.holdings()]
        return bool(held and await self._client.exists(*held))

    async def due(self, work: str, most: int) -> list[tuple[str, int, str]]:
        """The sites that wait for a time, soonest first: name, due time in ms, reason."""
        key = f"{self._base}wake:{work}"
        rows = await self._client.zrange(key, 0, most - 1, withscores=True)
        if not rows:
            return []
        why = await self._client.hmget(f"{self._base}why", [site for site, _ in rows])
        return [
            (_text(key, site), int(due), (reason or b"").decode(errors="replace"))
            for (site, due), reason in zip(rows, why, strict=True)
        ]

    async def later(self, most: int) -> list[tuple[str, int, str]]:
        """As `due`, of the sites that are to be loaded later. Finished ones may have a time for their pause's sake."""
        many = most
        while True:
            waiting = await self.due("site", many)
            pipeline = self._client.pipeline(transaction=False)
            for site, _, _ in waiting:
                pipeline.hget(self._bucket(site), site)
            records = await pipeline.execute(raise_on_error=False)
            found = [one for one, text in zip(waiting, records, strict=True) if _is_later(text)]
            if len(found) >= most or len(waiting) < many:
                return found[:most]
            many *= 4

    async def dues(self) -> dict[Work, dict[str, int]]:
        """Per work with any: how many `sites` wait for a time, and the soonest one (`next_ms`).

        Of loading only times to come: one that has passed keeps nobody from the site, and it may be finished.
        """
        found: dict[Work, dict[str, int]] = {}
        now_ms = int(await self.server_seconds() * 1000)
        for work in WORKS:
            key, least = f"{self._base}wake:{work}", now_ms if work == "site" else 0
            soonest = await self._client.zrangebyscore(key, least, "+inf", start=0, num=1, withscores=True)
            if soonest:
                many = int(await self._client.zcount(key, least, "+inf"))
                found[work] = {"sites": many, "next_ms": int(soonest[0][1])}
        return found

    async def record(self, site: str) -> SiteRecord | None:
        """One site's record; None where it is not known. BrokenRecordError where it is none."""
        key = self._bucket(site)
        try:
            text = await self._client.hget(key, site)
        except ResponseError as error:
            raise _of_bucket(key, error) from None
        return None if text is None else _record(key, site, text)

    async def records(self) -> AsyncIterator[SiteRecord]:
        """Every site's record, in no order; sites that come meanwhile may be missing. BrokenRecordError as `record`."""
        seen: set[bytes] = set()  # a scan may give a key twice
        waiting: list[bytes] = []
        async for key in self._client.scan_iter(match=f"{self._base}sites:*", count=SCAN_KEYS):
            if key not in seen:
                seen.add(key)
                waiting.append(key)
            if len(waiting) >= READ_BUCKETS:
                for record in await self._read_buckets(waiting):
                    yield record
                waiting = []
        for record in await self._read_buckets(waiting):
            yield record

    async def _read_buckets(self, keys: Sequence[bytes]) -> list[SiteRecord]:
        if not keys:
            return []
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.hgetall(key)
        found = []
        for key, fields in zip(keys, await pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(fields, Exception):
                raise _of_bucket(key, fields)
            found += [_record(key, site, text) for site, text in fields.items()]
        return found

    async def reasons(self, sites: Sequence[str]) -> list[str]:
        """Why each of these sites is stopped, or rests; of an alias the site that it is under a second name."""
        found = await self._client.hmget(f"{self._base}why", sites) if sites else []
        return [(why or b"").decode(errors="replace") for why in found]

    async def details(self, site: str) -> dict[str, Any]:
        """What else is known of a site: reason, budget, due times (ms) by work, journal entries, paths given.

        BrokenRecordError as `checkpoint`.
        """
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hget(f"{self._base}why", site)
        pipeline.hget(f"{self._base}budget", site)
        pipeline.llen(f"{self._base}checkpoint:{site}")
        pipeline.llen(f"{self._base}paths:{site}")
        pipeline.llen(f"{self._base}offered:{site}")
        pipeline.hget(f"{self._base}suspected", site)
        for work in WORKS:
            pipeline.zscore(f"{self._base}wake:{work}", site)
        why, budget, entries, paths, offered, likeness, *due = await pipeline.execute()
        known = _likeness(f"{self._base}suspected", site, likeness) if likeness else None
        return {
            "why": (why or b"").decode(errors="replace"),
            **({LIKENESS[known[0]]: known[1]} if known else {}),
            "budget": self._pages_of(site, budget),
            "journal_entries": entries,
            "paths_given": paths,
            "paths_offered": offered,
            "due_ms": {work: int(when) for work, when in zip(WORKS, due, strict=True) if when is not None},
        }

    async def agents(self) -> list[dict[str, Any]]:
        """The agents with a session: name, ms until it expires, sites held, and what they said of themselves.

        0 ms: it did, and its sites are being handed on. `joined_ms`: when, on the server's clock. BrokenRecordError
        where what an agent said cannot be read.
        """
        time = await self._client.time()
        now = time[0] * 1000 + time[1] // 1000
        found = []
        for name, expiry in (await self._sessions()).items():
            key = f"{self._base}agent:{name}"
            fields = await self._client.hgetall(key)
            about = _about(key, fields.get(b"about", b"{}"))
            held = await self._client.hlen(f"{self._base}held:{name}")
            pages = _whole(key, "pages", fields.get(b"pages", b"0"))
            left = int(expiry) - now if expiry else 0
            joined = _whole(key, "joined", fields.get(b"joined", b"0"))
            found.append(
                {
                    "agent": name,
                    "expires_ms": left,
                    "held": held,
                    "pages": pages,
                    "joined_ms": joined,
                    **about,
                }
            )
        return found

    async def at_work(self) -> list[str]:
        """Names of the agents whose session goes on, as a person reads them, whatever they said of themselves."""
        seconds, _ = await self._client.time()
        names = await self._client.zrangebyscore(f"{self._base}agents", f"({seconds * 1000}", "+inf")
        return [_shown(name) for name in names]

    async def works_done(self) -> set[str]:
        """The works that some agent with a session does. BrokenRecordError as `agents`."""
        pipeline = self._client.pipeline(transaction=False)
        keys = [f"{self._base}agent:{name}" for name in await self._sessions()]
        for key in keys:
            pipeline.hget(key, "about")
        told = [
            _about(key, about) for key, about in zip(keys, await pipeline.execute(), strict=True) if about
        ]
        return {work for about in told for work in about.get("works", ["site"])}

    async def _sessions(self) -> dict[str, float]:
        """The agents with a session, and when it expires."""
        key = f"{self._base}agents"
        return {
            _text(key, name): expiry
            for name, expiry in await self._client.zrange(key, 0, -1, withscores=True)
        }

    async def lists(self) -> dict[str, int]:
        """Lengths of the lists and sorted sets that sites wait in; empty ones are left out."""
        patterns = ("fresh", "again:*", "hour:*", "probe:*", "wake:*", "park:*")
        lengths: dict[str, int] = {}
        for pattern in patterns:
            async for key in self._client.scan_iter(match=self._base + pattern, count=10_000):
                measure = self._client.zcard if b":wake:" in key else self._client.llen
                lengths[_shown(key)] = int(await measure(key))
        return lengths

    async def reset(self, *, gives_up: bool = False) -> int:
        """Remove every key of this crawl, the results stream included; how many.

        `gives_up`: sites that the tables have, and an empty queue does not know, are not missed from now on.
        """
        removed = 0
        batch: list[bytes] = []
        last = {f"{self._base}{name}".encode() for name in ("count", "tables")}
        async for key in self._client.scan_iter(match=f"{self._base}*", count=10_000):
            batch += [key] if key not in last else []
            if len(batch) >= 1000:
                removed += await self._client.unlink(*batch)
                batch = []
        removed += await self._client.unlink(*batch) if batch else 0
        return removed + int(await self._call("empty", int(gives_up)))

    def _pages_of(self, site: str, budget: bytes | None) -> int | None:
        return None if budget is None else _whole(f"{self._base}budget", site, budget)

    def _bucket(self, site: str) -> str:
        return bucket_of(self._base, site)

    async def _call(self, operation: str, *arguments: Any) -> Any:
        parts: Iterable[Any] = (f"{self._base}count", operation, *arguments)
        try:
            if self._sha is not None:
                with suppress(NoScriptError):
                    return await self._client.evalsha(self._sha, 1, *parts)
            # First call, or the server was restarted since: then the script ran not at all, asking again is safe.
            self._sha = str(await self._client.script_load(self._source))
            return await self._client.evalsha(self._sha, 1, *parts)
        except ResponseError as error:
            raise await self._named(error) from None

    async def _named(self, error: ResponseError) -> Exception:
        word, _, about = str(error).partition(" ")
        if word == "BROKEN":
            key, site, *_ = about.split(" ")
            return BrokenRecordError(key, _found(site, await self._client.hget(key, site) or b""))
        kinds = {
            "GONE": SessionGoneError,
            "OLDER": QueueOlderError,
            "STALE": StaleLeaseError,
            "LOST": LockLostError,
        }
        return kinds[word](about) if word in kinds else error


def _is_later(text: object) -> bool:
    return isinstance(text, bytes) and text[:1] in (b"l", b"L")


def bucket_of(base: str, site: str) -> str:
    """The key of the hash that holds a site's record; `base` is what all keys of the crawl begin with."""
    return f"{base}sites:{sha1(site.encode(), usedforsecurity=False).hexdigest()[:4]}"


def _of_bucket(key: bytes | str, error: Exception) -> Exception:
    return BrokenRecordError(key, "no hash") if connection.is_of_wrong_kind(error) else error


def _record(key: bytes | str, site: bytes | str, text: bytes | str) -> SiteRecord:
    """The record of a site as the script writes it; BrokenRecordError for anything else."""
    try:
        letter, address, *rest = _text(key, text).split(" ")
        progress = _read_progress(rest.pop(0)) if rest and "/" in rest[0] else Progress()
        token, agent, work = rest or ("", "", "")
        state, paused = STATES[letter.lower()], letter.isupper()
        linked, address = address.endswith("*"), address.removesuffix("*")
        place = None if address == "-" else address
        record = SiteRecord(_text(key, site), state, paused, place, token, agent, work, *progress)
        return record._replace(linked=True) if linked else record
    except (ValueError, KeyError):
        raise BrokenRecordError(key, _found(site, text)) from None


def root_marks(site: str, address: str, sha256: str, robots: str) -> str:
    """What an alias has in common with its site, one a line: address, port, robots.txt and root page.

    Another port is another server, but for http and https of one name on their own ports.
    """
    scheme, _, place = site.partition("://")
    port = place.rpartition("]")[2].partition(":")[2]
    pages = f"{robots} {sha256[:16]}"
    if port:
        return f"{address} {port} {pages}"
    return f"{address} {443 if scheme == 'https' else 80} {pages}\n{address} //{place} {pages}"


def _likeness(key: str, site: str, text: bytes) -> tuple[Likeness, str, int]:
    """What is known of a site that may be an alias, the other site, and since when (ms) pages count."""
    try:
        state, first, since, _, _ = _text(key, text).split(" ")
        kinds: dict[str, Likeness] = {kind: kind for kind in LIKENESS}
        return kinds[state], first, int(since)
    except (ValueError, KeyError):
        raise BrokenRecordError(key, _found(site, text), "what is known of aliases") from None


class Progress(NamedTuple):
    """How far a site is, as its record has it."""

    known: int = 0
    done: int = 0
    done_hash: int | None = None
    left_out: str = ""


def _progress(done: int, known: int, done_hash: int, left_out: str) -> str:
    return f"{done}/{known}/{done_hash:x}{f'/{left_out}' if left_out else ''}"


def _progress_of(record: SiteRecord) -> str:
    """As it stands in the queue."""
    if not record.known:
        return ""
    if record.done_hash is None:
        return f"{record.done}/{record.known}"
    return _progress(record.done, record.known, record.done_hash, record.left_out)


def _read_progress(text: str) -> Progress:
    """`done/known`, in later versions `/hash` behind it, and `/left out` where something is."""
    done, known, *more = text.split("/")
    return Progress(int(known), int(done), int(more[0], 16) if more else None, more[1] if more[1:] else "")


def _whole(key: str, field: str, text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise BrokenRecordError(key, _found(field, text), "whole numbers") from None


class About(TypedDict, total=False):
    """What an agent says of itself as it joins."""

    host: str
    pid: Annotated[int, Meta(ge=1, le=MOST_PID)]
    spider: str
    works: list[str]
    slots: Annotated[int, Meta(ge=0)]
    scheduler: str
    scheduler_options: dict[str, Any]
    hour_seconds: Annotated[float, Meta(gt=0)]
    delay_seconds: Annotated[float, Meta(ge=0)]
    pages_per_site: Annotated[int, Meta(ge=0)]


def _about(key: str, text: bytes) -> About:
    """What an agent said of itself as it joined; BrokenRecordError for anything else."""
    try:
        return msgspec.json.decode(text, type=About)
    except (msgspec.DecodeError, ValueError):
        raise BrokenRecordError(key, _found("about", text), "what an agent said of itself") from None


def _holding(key: str, site: bytes, agent: str, text: bytes) -> Holding:
    try:
        return Holding(_text(key, site), agent, *_read_progress(_text(key, text).rpartition(" ")[2]))
    except ValueError:
        raise BrokenRecordError(key, _found(site, text), "an agent's sites") from None


def _token(key: str, site: bytes, text: bytes) -> str:
    words = _text(key, text).split()
    if not words:
        raise BrokenRecordError(key, _found(site, text), "an agent's sites")
    return words[0]


def _found(field: bytes | str, text: bytes | str) -> str:
    return f"'{_shown(text)}' for '{_shown(field)}'"


def _text(key: bytes | str, value: bytes | str) -> str:
    """What was read of this key; BrokenRecordError for bytes that no agent writes."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        raise BrokenRecordError(key, f"'{_shown(value)}'", "UTF-8") from None


def _texts(key: bytes | str, values: Iterable[bytes]) -> list[str]:
    return [_text(key, value) for value in values]


def _shown(value: bytes | str) -> str:
    """As a person reads it, whatever bytes they are."""
    return printable(value.decode(errors="backslashreplace") if isinstance(value, bytes) else value)
