"""The site queue for tests: called without `await`, and audited by a full read that shares no code with it.

`audit` reads every record and every key of a queue and fails where they do not agree: counts and holders, holders
and places, tokens, checkpoints.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec
import redis
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from scrapy.settings import Settings

from crawler.options import Options, read
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import Delivery, Leased, Newcomer

BASE = "lt:{0}:"
CLASSES = {
    "w": "waiting",
    "s": "suspended",
    "l": "later",
    "f": "finished",
    "a": "alias",
    "b": "blocked",
}


class Address(Protocol):
    """Where a server listens, and a plain client to it: a RunningServer, or a way to one."""

    url: str
    client: redis.Redis


def queue_options(**changes: Any) -> Options:
    """The defaults, with changes that no setting's bounds are asked about."""
    settings = Settings()
    settings.setmodule("settings.base")
    return msgspec.structs.replace(read(settings), **changes)


def connect(server: Address) -> Redis:
    """A client as agents have it: bytes, and no retries of its own."""
    return Redis.from_url(server.url, retry=Retry(NoBackoff(), 0))


class Driver:
    """A SiteQueue whose methods are called plainly; `raw` is the server itself."""

    def __init__(self, server: Address, runner: asyncio.Runner, client: Redis, options: Options) -> None:
        self.raw = server.client
        self.server = server
        self.options = options
        self.queue = SiteQueue(client, options)
        self._runner = runner
        self.client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.queue, name)

        def call(*arguments: Any, **named: Any) -> Any:
            made = method(*arguments, **named)
            if inspect.isasyncgen(made):
                return self._runner.run(_collect(made))
            return self._runner.run(made)

        return call

    def wait(self, made: Coroutine[Any, Any, Any]) -> Any:
        """What something else than the queue gives that asks the server by it."""
        return self._runner.run(made)

    def but(self, **changes: Any) -> Driver:
        """The same queue under other settings."""
        return Driver(
            self.server, self._runner, self.client, msgspec.structs.replace(self.options, **changes)
        )

    def add(self, *sites: str) -> None:
        """Queue sites that are new."""
        assert self.discover([Newcomer(site, b"") for site in sites], 0) == [1] * len(sites)

    def take(self, agent: str, wanted: int = 1, work: str = "site", hour: int = 0) -> list[Leased]:
        """Lease up to `expected` sites."""
        return list(self.lease(agent, work, wanted, hour).sites)

    def take_one(self, agent: str, work: str = "site", hour: int = 0) -> Leased:
        """Lease the next site, which there must be."""
        (leased,) = self.take(agent, 1, work, hour)
        return leased

    def send(self, agent: str, *deliveries: Delivery) -> list[str]:
        """Publish; the verdicts."""
        return [one.verdict for one in self.publish(agent, deliveries)]

    def state(self, site: str) -> str:
        """The state of a site that is known; in capitals if it is paused."""
        record = self.record(site)
        assert record, f"{site} is not known"
        return record.state.upper() if record.paused else str(record.state)

    def server_ms(self) -> int:
        """The server's clock."""
        seconds, micros = self.raw.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def names(self, key: str) -> list[str]:
        """A list of the queue, by the end of its key."""
        return [name.decode() for name in self.raw.lrange(BASE + key, 0, -1)]

    def pass_time(self, ms: int) -> None:
        """Let time pass for sessions and due times, as if the server's clock had gone on."""
        pass_time(self.raw, ms)


@contextmanager
def driver(server: Address, **changes: Any) -> Iterator[Driver]:
    """A queue on this server, audited at the end."""
    with asyncio.Runner() as runner:
        client = connect(server)
        try:
            made = Driver(server, runner, client, queue_options(**changes))
            yield made
            audit(made.raw)
        finally:
            runner.run(client.aclose())


def delivery(leased: Leased, seq: int, records: int = 1, **changes: Any) -> Delivery:
    """A delivery of numbered records, with a journal entry."""
    made = Delivery(
        leased.site,
        leased.token,
        seq,
        delta=b"delta %d" % seq,
        fold=False,
        root="",
        records=[(b"record %d.%d" % (seq, number), b"") for number in range(records)],
    )
    return made._replace(**changes)


async def _collect(made: Any) -> list[Any]:
    return [one async for one in made]


def pass_time(raw: redis.Redis, ms: int) -> None:
    """Shift everything in the queue that is compared with the server's clock."""
    raw.eval(
        """
        local base, ms = KEYS[1], tonumber(ARGV[1])
        for _, key in ipairs(redis.call('KEYS', base .. 'wake:*')) do
          for _, name in ipairs(redis.call('ZRANGE', key, 0, -1)) do redis.call('ZINCRBY', key, -ms, name) end
        end
        local key = base .. 'agents'
        local alive = redis.call('ZRANGEBYSCORE', key, '(0', '+inf')
        for _, name in ipairs(alive) do redis.call('ZINCRBY', key, -ms, name) end
        local renewed = redis.call('GET', base .. 'renewed')
        if renewed then redis.call('SET', base .. 'renewed', renewed - ms) end
        local function shift(key, pattern, made)
          local fields = redis.call('HGETALL', key)
          for i = 1, #fields, 2 do
            local value = string.gsub(fields[i + 1], pattern, made)
            redis.call('HSET', key, fields[i], value)
          end
        end
        local function earlier(time) return string.format('%d', time - ms) end
        shift(base .. 'hungry', '^%d+', earlier)
        shift(base .. 'behind', '%d+', earlier)
        for _, key in ipairs(redis.call('KEYS', base .. 'held:*')) do
          shift(key, '[1-9]%d+ %S+$', function(text)
            local time, progress = string.match(text, '(%d+) (.*)')
            return earlier(time) .. ' ' .. progress
          end)
        end
        """,
        1,
        BASE,
        ms,
    )


# --- the audit ---


class Found(NamedTuple):
    """A site's record as it stands in its bucket."""

    letter: str
    address: str
    figures: str  # done/known/hash
    token: str
    agent: str
    work: str

    @property
    def class_(self) -> str:
        if self.agent and self.work == "site":
            return "leased"
        return "paused" if self.letter.isupper() else CLASSES[self.letter]


class Whole(NamedTuple):
    """Everything a queue says."""

    sites: dict[str, Found]
    counts: dict[str, int]
    held: dict[str, dict[str, str]]  # agent -> site -> token, seq, delay, until, done/known/hash
    busy: dict[str, int]
    lists: dict[str, list[str]]
    wake: dict[str, dict[str, float]]  # work -> site -> due
    stops: dict[str, set[str]]
    suspends: dict[str, set[str]]
    given: dict[str, set[str]]
    suspended: set[str]
    checkpoints: set[str]
    crowd: dict[str, int]
    paths: dict[str, list[str]]
    offered: dict[str, list[str]]
    undecided: set[str]
    noted: set[str]  # pages of them are to be loaded again
    rootless: set[str]
    hungry: dict[str, str]  # agent -> time and number
    behind: set[str]  # held sites that another work waits for
    sessions: dict[str, float]


def places_of(site: str, address: str) -> list[str]:
    """What a held site occupies."""
    netloc = urlsplit(site).netloc
    host = netloc.partition("]")[0] + "]" if netloc.startswith("[") else netloc.partition(":")[0]
    return ["//" + host] + ([address] if address != "-" else [])


def whole(raw: redis.Redis) -> Whole:
    """A full read."""
    found = Whole(
        {}, {}, {}, {}, {}, {}, {}, {}, {}, set(), set(), {}, {}, {}, set(), set(), set(), {}, set(), {}
    )
    for name in raw.scan_iter(match="*", count=10_000):
        key = name.decode()
        if not key.startswith(BASE):
            continue
        kind, _, rest = key.removeprefix(BASE).partition(":")
        if kind == "sites":
            found.sites.update({site: Found(*_six(text)) for site, text in _hash(raw, key).items()})
        elif kind in ("count", "busy", "crowd"):
            getattr(found, "counts" if kind == "count" else kind).update(
                {field: int(value) for field, value in _hash(raw, key).items()}
            )
        elif kind == "held":
            found.held[rest] = _hash(raw, key)
        elif kind in ("again", "hour", "probe", "fresh", "park"):
            found.lists[key.removeprefix(BASE)] = [one.decode() for one in raw.lrange(key, 0, -1)]
        elif kind == "wake":
            found.wake[rest] = {one.decode(): due for one, due in raw.zrange(key, 0, -1, withscores=True)}
        elif kind in ("stop", "suspend", "given"):
            notes = {"stop": found.stops, "suspend": found.suspends, "given": found.given}[kind]
            notes[rest] = {one.decode() for one in raw.smembers(key)}
        elif kind in ("undecided", "reopen"):
            names = raw.zrange(key, 0, -1) if kind == "undecided" else raw.hkeys(key)
            (found.undecided if kind == "undecided" else found.noted).update(one.decode() for one in names)
        elif kind in ("suspended", "rootless"):
            getattr(found, kind).update(one.decode() for one in raw.smembers(key))
        elif kind == "checkpoint":
            found.checkpoints.add(rest)
        elif kind in ("paths", "offered"):
            getattr(found, kind)[rest] = [one.decode() for one in raw.lrange(key, 0, -1)]
        elif kind == "behind":
            found.behind.update(_hash(raw, key))
        elif kind == "hungry":
            found.hungry.update(_hash(raw, key))
        elif kind == "agents":
            found.sessions.update({one.decode(): due for one, due in raw.zrange(key, 0, -1, withscores=True)})
    return found


def audit(raw: redis.Redis) -> Whole:
    """Fails where the queue's parts do not agree; what it read otherwise."""
    found = whole(raw)
    holders = {site: one for site, one in found.sites.items() if one.agent}
    classes = Counter(one.class_ for one in found.sites.values())
    for name in (*CLASSES.values(), "leased", "paused"):
        assert found.counts.get(name, 0) == classes[name], f"count of {name}: {found.counts} != {classes}"
    assert found.counts.get("added", 0) == len(found.sites)
    held = {
        (agent, site): text.split()[0] for agent, sites in found.held.items() for site, text in sites.items()
    }
    assert held == {(one.agent, site): one.token for site, one in holders.items()}
    assert len(set(held.values())) == len(held), "a token was given twice"
    assert found.busy == Counter(
        place for site, one in holders.items() for place in places_of(site, one.address)
    )
    assert all(many == 1 for place, many in found.busy.items() if place.startswith("//"))
    for agent, sites in (*found.stops.items(), *found.suspends.items(), *found.given.items()):
        assert sites <= found.held.get(agent, {}).keys(), f"{agent} hears of what it does not hold"
    assert found.suspended == {site for site, one in found.sites.items() if one.class_ == "suspended"}
    for site, one in found.sites.items():
        if not (one.agent and (one.work == "site" or one.letter == "b")):
            wanted = (
                one.letter in "sS"
                or (one.letter in "aA" and site in found.checkpoints)
                or (one.letter in "lL" and site in found.checkpoints)
            )
            assert (site in found.checkpoints) == wanted, (
                f"{site} is {one} and its checkpoint tells otherwise"
            )
    assert found.checkpoints <= found.sites.keys()
    for site in found.paths.keys() & found.sites.keys():
        one = found.sites[site]
        assert one.letter.lower() in "wsla" or one.agent, f"{site} is {one} and has paths to walk"
    finished = {site for site, one in found.sites.items() if one.letter in "fF"}
    waiting = found.offered.keys() | (found.noted & finished)
    assert found.undecided == waiting, "what was offered or noted is decided, or waits for it"
    assert found.undecided | found.rootless | found.noted <= found.sites.keys()
    assert found.hungry.keys() <= found.sessions.keys()
    assert found.behind <= holders.keys(), "nobody is there who would wake those that wait"
    return found


def _hash(raw: redis.Redis, key: str) -> dict[str, str]:
    return {field.decode(): value.decode() for field, value in raw.hgetall(key).items()}


def _six(text: str) -> list[str]:
    parts = text.split(" ")
    if len(parts) in (2, 5):
        parts.insert(2, "")
    assert len(parts) in (3, 6), f"no record: {text!r}"
    parts[1] = parts[1].removesuffix("*")  # a link led to it
    assert "/" in parts[2] or not parts[2], f"no figures: {text!r}"
    return parts + [""] * (6 - len(parts))
