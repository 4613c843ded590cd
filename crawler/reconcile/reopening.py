"""Reopens finished sites for new paths (seeds, links, redirects) and pages to load again (recheck, revive).

One coordinator's thread decides at a time, by a lock. A site with paths that the tables lack gets a checkpoint made
of its rows, once all earlier records are stored. After a crash it is decided again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import redis
from sqlalchemy import and_, func, select, tuple_

from crawler.agent.frontier import Known, checkpoint_of
from crawler.left_out import LeftOut, in_words, to_text, unpacked
from crawler.queue import connection
from crawler.queue.errors import BrokenRecordError, LockLostError
from crawler.queue.queue import SiteQueue
from crawler.queue.sites import read_entry
from crawler.reconcile import agreement
from crawler.reconcile.agreement import lost_pages
from crawler.reconcile.aliases import Aliases
from crawler.records import SiteEnded, encode, hash64
from crawler.store.database import DatabaseAwayError, transaction
from crawler.store.queries import by_key, counts_of
from crawler.store.tables import FINISHED, pages, sites
from crawler.urls.url import page_of, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio import Redis
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.queue.sites import SiteRecord, Undecided
    from crawler.reconcile.agreement import Owed


# --- The decision lock ------------------------------------------------------------------------------------


LOCK_SECONDS: Final = 10.0

T = TypeVar("T")


class DecisionLock:
    """A lock that expires after LOCK_SECONDS; the queue then raises LockLostError."""

    def __init__(self, queue: SiteQueue, name: str, number: int) -> None:
        self.holder = (name, number)  # argument of the queue's operations
        self._queue = queue

    @classmethod
    async def acquire(cls, queue: SiteQueue, name: str) -> DecisionLock | None:
        """Returns None when another coordinator holds the lock."""
        number = await queue.lock("opener", name, LOCK_SECONDS)
        return cls(queue, name, number) if number else None

    async def keep(self, work: Callable[[], T]) -> T:
        """Runs `work` in a thread while renewing the lock; raises LockLostError."""
        working = asyncio.create_task(asyncio.to_thread(work))
        done = False
        while not done:
            if await self._queue.lock("opener", self.holder[0], LOCK_SECONDS) != self.holder[1]:
                raise LockLostError(self.holder[0])
            done = bool((await asyncio.wait({working}, timeout=LOCK_SECONDS / 3))[0])
        return await working


# --- Finished sites at their page limit -------------------------------------------------------------------


class RefusedPages(NamedTuple):
    """A full site's new counts."""

    left_out: str  # all URLs outside the limits (crawler.left_out.to_text)
    record: bytes  # for the tables; empty: already counted


def refuse_full(engine: Engine, options: Options, site: str, paths: Collection[str]) -> RefusedPages | None:
    """Counts paths of unknown pages as left out; None: open the site for them."""
    row = _row_of_full(engine, options, site)
    if row is None:
        return None
    left = LeftOut()
    try:
        left.replay(unpacked(row.left_out_hashes or b""))
    except ValueError:
        return None  # checkpoint_from_tables resets the count, with a warning
    left.add("pages", map(page_of, paths))
    before = counts_of(row)
    # The hashes may be a sample; the row's count is exact.
    many = max(left.counts.get("pages", 0), before.get("pages", 0))
    counts = {**before, "pages": many} if many else before
    record = b"" if counts == before else encode(_ended(site, row, left, counts))
    return RefusedPages(to_text(counts), record)


def _row_of_full(engine: Engine, options: Options, site: str) -> Any:
    """The row of a finished site at its page limit; None: below it."""
    key = hash64(site)
    with transaction(engine) as db:
        row = db.execute(select(sites).where(sites.c.site_id == key, sites.c.state == FINISHED)).first()
        most = 0 if row is None else options.max_pages_per_site if row.budget is None else row.budget
        if not most:
            return None
        held = db.execute(select(func.count()).where(pages.c.site_id == key)).scalar() or 0
    return row if held >= most else None


def _ended(site: str, row: Any, left: LeftOut, counts: dict[str, int]) -> SiteEnded:
    """The last record with new counts of URLs left out."""
    return SiteEnded(
        site=site,
        ended_at=row.ended_at or 0,
        finished=True,
        published=row.published,
        known=row.known,
        over_budget=row.over_budget,
        left_out=counts,
        left_out_hashes=left.packed({}),
        pending=row.pending or 0,
        reason=_reason(row.reason or "", counts_of(row), counts),
    )


def _reason(reason: str, before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """The reason with new counts (crawler.agent.publisher)."""
    old, new = (f"left out: {in_words(counts)}" for counts in (before, now))
    return reason.replace(old, new) if old in reason else "; ".join(filter(None, (reason, new)))


logger = logging.getLogger("coordinator")

# A page to load again.
SENT_BACK = and_(pages.c.state == "init", pages.c.last_checked > pages.c.fetched_at)

LOOK_SECONDS: Final = 0.5
# Sites per pass, entries of offered paths per site, and the maximum duration of a pass.
SITES_AT_A_TIME: Final = 200
ENTRIES_AT_A_TIME: Final = 50
BUSY_SECONDS: Final = 0.25
# A reopened site rests for this multiple of the time that it took: storing records has priority.
REST_FACTOR: Final = 10.0
# Hashes per query.
HASHES_AT_A_TIME: Final = 500


class Reopening:
    """`start` once, `end` once."""

    def __init__(self, settings: BaseSettings, options: Options, name: str) -> None:
        self._settings = settings
        self._options = options
        self._name = name
        self._runner: asyncio.Runner | None = None
        self._client: Redis | None = None
        self._rests: dict[str, float] = {}  # site -> monotonic time before which it is not opened again
        self._warned_broken = False
        self._failure: Exception | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, engine: Engine) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, args=(engine,), name="reopening", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the error that ended the thread, if any."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """Stops the thread after the current site."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, engine: Engine) -> None:
        try:
            while not self._ending.is_set():
                began = time.monotonic()
                more = self._decide_if_there(engine)
                # Leaves as much time for storing records, which runs on the same processor.
                self._ending.wait(time.monotonic() - began if more else LOOK_SECONDS)
        except Exception as error:
            self._failure = error
        finally:
            self.close()

    def _decide_if_there(self, engine: Engine) -> bool:
        """As `decide`; False while Redis or the database is away."""
        try:
            return self.decide(engine)
        except (DatabaseAwayError, redis.RedisError):
            return False

    def decide(self, engine: Engine) -> bool:
        """Decides some sites; returns whether to continue at once."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(self._decide(engine))
        except (BrokenRecordError, redis.ResponseError) as error:
            if isinstance(error, redis.ResponseError) and connection.passes(error):
                raise
            if not self._warned_broken:
                self._warned_broken = True
                logger.error("finished sites are not reopened until this key is repaired: %s", error)
            return False

    def close(self) -> None:
        """Closes the connection to Redis."""
        if self._runner is not None:
            if self._client is not None:
                self._runner.run(self._client.aclose())
            self._runner.close()

    async def _decide(self, engine: Engine) -> bool:
        if self._client is None:
            self._client = connection.connect(self._settings)
        queue = SiteQueue(self._client, self._options)
        if not (await queue.undecided() or await queue.suspects()):
            return False
        lock = await DecisionLock.acquire(queue, self._name)
        if lock is None:
            return False
        now = time.monotonic()
        self._rests = {site: until for site, until in self._rests.items() if until > now}
        decision = _Decision(engine, queue, self._options, lock)
        aliases = Aliases(engine, queue, self._options, lock)
        try:
            compared = await aliases.look()
            return await decision.take(await self._stored(queue), self._ending) or compared
        except LockLostError:
            return False
        finally:
            now = time.monotonic()
            self._rests |= {site: now + REST_FACTOR * took for site, took in decision.took.items()}

    async def _stored(self, queue: SiteQueue) -> dict[str, int]:
        """Sites whose published records are all stored, with times; without resting ones."""
        since = await queue.to_decide(SITES_AT_A_TIME + len(self._rests))
        # Read after the sites: records of their last leases are older.
        oldest_ms = await queue.oldest_record_ms()
        stored = [one for one in since.items() if oldest_ms is None or oldest_ms > one[1]]
        return dict([one for one in stored if one[0] not in self._rests][:SITES_AT_A_TIME])


class _Decision:
    """One pass, under the lock."""

    def __init__(self, engine: Engine, queue: SiteQueue, options: Options, lock: DecisionLock) -> None:
        self._engine = engine
        self._queue = queue
        self._options = options
        self._lock = lock
        self.took: dict[str, float] = {}  # reopened sites -> seconds

    async def take(self, since_ms: Mapping[str, int], ending: threading.Event) -> bool:
        """Decides these sites; returns whether there were any."""
        if not since_ms:
            return False
        found = zip(since_ms, await self._queue.offered([*since_ms], ENTRIES_AT_A_TIME), strict=True)
        # A site finished since it was listed waits for its last pages.
        offered = {site: one for site, one in found if one.since_ms == since_ms[site]}
        finished = {
            site: one for site, one in offered.items() if one.record and one.record.state == "finished"
        }
        offers = {site: _paths(one.entries) for site, one in finished.items()}
        by_depth = self._options.max_depth > 0
        new = await self._lock.keep(lambda: unknown_of(self._engine, offers, by_depth=by_depth))
        to_open = {site: one for site, one in finished.items() if new[site] or one.noted}
        # A site finished since it was read is not compared yet.
        decided = {
            site: len(one.entries) if site in finished else 0
            for site, one in offered.items()
            if site not in to_open
        }
        await self._queue.decide(*self._lock.holder, decided)
        began = time.monotonic()
        for site, one in to_open.items():
            await self._open(site, one, new[site])
            if ending.is_set() or time.monotonic() - began > BUSY_SECONDS:
                break
        return True

    async def _open(self, site: str, undecided: Undecided, new: Collection[str]) -> None:
        began = time.monotonic()
        try:
            if undecided.noted or not await self._refuse(undecided, new):
                await self._reopen(site, undecided, len(new))
        finally:
            self.took[site] = time.monotonic() - began

    async def _refuse(self, undecided: Undecided, new: Collection[str]) -> bool:
        """Leaves paths out if the site is full; False: open it."""
        record, taken = undecided.record, len(undecided.entries)
        if record is None or record.done_hash is None:
            return False
        refused = await self._lock.keep(lambda: self._refused(record.site, new))
        if refused is None:
            return False
        await self._queue.refuse(*self._lock.holder, record, taken, refused.left_out, refused.record)
        return True

    def _refused(self, site: str, new: Collection[str]) -> RefusedPages | None:
        # Without known pages at a smaller depth.
        unknown = unknown_of(self._engine, {site: dict.fromkeys(new, 0)})[site]
        refused = refuse_full(self._engine, self._options, site, unknown)
        if refused is not None and refused.record:
            logger.info("%s is at MAX_PAGES_PER_SITE: %d URLs are left out", site, len(unknown))
        return refused

    async def _reopen(self, site: str, undecided: Undecided, many: int) -> None:
        now_ms = int(await self._queue.server_seconds() * 1000)
        made = await self._lock.keep(lambda: self._checkpoint(site, undecided.record, many, now_ms))
        checkpoint, lost = made
        taken, noted = len(undecided.entries), undecided.noted
        owed = (
            lost.and_before(agreement.read_owed((await self._queue.owed()).get(site, ""))).text
            if lost
            else ""
        )
        opened = await self._queue.reopen(*self._lock.holder, site, checkpoint, taken, noted, owed)
        if opened and checkpoint:
            logger.info("%s is reopened: %s", site, _why(many, noted))

    def _checkpoint(
        self, site: str, record: SiteRecord | None, many: int, now_ms: int
    ) -> tuple[bytes, Owed | None]:
        """The checkpoint (empty: nothing to load), and lost rows."""
        lost = self._lost(record, now_ms)
        made = checkpoint_from_tables(self._engine, site, again=lost is not None, more=many > 0)
        return made or b"", lost

    def _lost(self, record: SiteRecord | None, now_ms: int) -> Owed | None:
        """Lost rows, which a checkpoint made of the others would hide."""
        lost = lost_pages(self._engine, record, now_ms) if record is not None else None
        if record is not None and lost is not None:
            logger.warning("%s: the tables have lost pages, crawling it again", record.site)
        return lost


def _why(many: int, noted: int) -> str:
    reasons = [f"{many} new URLs"] if many else []
    return "; ".join([*reasons, "pages to load again"] if noted else reasons)


def _paths(entries: Sequence[str]) -> dict[str, int]:
    """The offered paths with their least depth."""
    least: dict[str, int] = {}
    for entry in entries:
        offer = read_entry(entry)
        least.update((path, min(offer.depth, least.get(path, offer.depth))) for path in offer.paths)
    return least


def unknown_of(
    engine: Engine, offered: Mapping[str, Mapping[str, int]], *, by_depth: bool = False
) -> dict[str, set[str]]:
    """The offered paths without a row, one for each new page.

    `offered`: path -> depth by site. `by_depth`: pages known at a greater depth count as new, since their links may
    have been left out.
    """
    wanted = {
        (hash64(site), hash64(site + page_of(path))): (site, path, depth)
        for site, some in offered.items()
        for path, depth in sorted(some.items(), key=lambda one: -one[1])
    }
    left = dict(wanted)
    keys = sorted(wanted)
    columns = (pages.c.site_id, pages.c.url_hash, pages.c.depth)
    with transaction(engine) as db:
        for start in range(0, len(keys), HASHES_AT_A_TIME):
            some = keys[start : start + HASHES_AT_A_TIME]
            found = select(*columns).where(tuple_(pages.c.site_id, pages.c.url_hash).in_(some))
            for row in db.execute(found):
                key = (row.site_id, row.url_hash)
                if not by_depth or row.depth <= wanted[key][2]:
                    left.pop(key, None)
    new: dict[str, set[str]] = {site: set() for site in offered}
    for site, path, _ in left.values():
        new[site].add(path)
    return new


def checkpoint_from_tables(
    engine: Engine, site: str, *, again: bool | Collection[int] = False, more: bool = False
) -> bytes | None:
    """A checkpoint made of the site's rows; None: nothing to load.

    To load: pages sent back, and with `again` all pages or those with these hashes. Keeps depths, checksums and
    counts of URLs left out. `more`: never None.
    """
    columns = (
        *(pages.c.url, pages.c.depth, pages.c.sha256, pages.c.duplicate_of, pages.c.asked_as),
        SENT_BACK.label("sent_back"),
    )
    query = select(*columns, pages.c.url_hash, pages.c.id).where(pages.c.site_id == hash64(site))
    # In short transactions: a site may have a million pages, and a long one lets SQLite's WAL grow.
    rows = [row for some in by_key(engine, query, pages.c.url_hash) for row in some]
    rows.sort(key=lambda row: (row.depth, row.id))
    left = select(sites.c.left_out_hashes).where(sites.c.site_id == hash64(site))
    with transaction(engine) as db:
        left_out = db.execute(left).scalar() or b""
    known = [
        Known(
            path_of(row.url),
            row.depth,
            bytes.fromhex(row.sha256) if row.sha256 and not row.duplicate_of else b"",
            bool(row.sent_back) or (again if isinstance(again, bool) else row.url_hash in again),
            path_of(row.asked_as) if row.asked_as else "",
        )
        for row in rows
    ]
    if not more and not any(page.again for page in known):
        return None
    try:
        return checkpoint_of(site, known, left_out)
    except ValueError as error:
        logger.warning("%s: invalid hashes of URLs left out (%s), counting them from 0", site, error)
        return checkpoint_of(site, known)
