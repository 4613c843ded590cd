"""Plans recheck and revive: writes batches of due pages to Redis shortly before they are due.

One planner process at a time does this. A site is planned only after its earlier stream entries are stored; a crash
leaves every site with a due time. Raises redis.RedisError and DatabaseError; `look` may be called again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, and_, false, func, select, true

from crawler import states
from crawler.queue.batches import DIGEST_BYTES, BatchPage, RecheckBatch, pack
from crawler.recheck import account as accounts
from crawler.records import Work, hash64
from crawler.store.database import check_version, open_database, transaction
from crawler.store.tables import pages
from crawler.urls.url import path_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.planning.planner import Loads
    from crawler.queue.queue import SiteQueue
    from crawler.recheck.revisits import Revisits

logger = logging.getLogger("planner")

LOOK_SECONDS: Final = 0.5
LOCK_SECONDS: Final = 5.0
# A site is planned this long before it is due.
AHEAD_SECONDS: Final = 5.0
# Sites of one job planned in one call.
SITES_AT_A_TIME: Final = 100
# Pages of one batch; if the agent crashes, the next lease checks them again.
PAGES_AT_A_TIME: Final = 1000
# Pages due within this share of their waiting time join the batch.
EARLY_SHARE: Final = 0.05
# A page of a nearly unusable site costs at most this many times its cost on an idle site.
DEAREST: Final = 20.0
PACKED: Final[tuple[Work, ...]] = ("revive", "recheck")


class RecheckPlanner:
    """Call `look` repeatedly."""

    def __init__(self, queue: SiteQueue, options: Options, name: str, loads: Loads) -> None:
        self._queue = queue
        self._options = options
        self._name = name
        self._loads = loads
        self._revisits: Revisits | None = None
        self._engine: Engine | None = None
        self._first_seen: dict[tuple[str, str], int] = {}  # (work, site) -> server's time, ms
        self._began = False

    async def look(self) -> float:
        """Plans what is due; returns seconds until the next call."""
        if not await self._queue.lock("planner", self._name, LOCK_SECONDS) or not self._opened():
            return LOOK_SECONDS
        if not self._began:
            for work in PACKED:
                await self._queue.take_back_held(work)
            self._began = True
        now_ms = int(await self._queue.server_seconds() * 1000)
        done = await self._queue.works_done()
        packed = 0
        # Batches for jobs that no agent runs would only fill Redis.
        for work in (work for work in PACKED if work in done):
            sites = await self._queue.to_pack(work, now_ms + int(AHEAD_SECONDS * 1000), SITES_AT_A_TIME)
            for site in await self._stored(work, sites):
                if work != "recheck" or not self._options.recheck_chooses:
                    packed += await self._pack(site, work, now_ms)
                elif await self._in_budget():
                    packed += await self._pack_chosen(site, now_ms)
        return 0.0 if packed else LOOK_SECONDS

    def close(self) -> None:
        """Closes the database."""
        if self._engine is not None:
            self._engine.dispose()

    def _opened(self) -> bool:
        """Whether the tables exist and are open."""
        if self._engine is None:
            engine = open_database(self._options.database)
            if check_version(engine) is None:
                engine.dispose()
                return False
            self._engine = engine
            if self._options.recheck_chooses:
                # Imports numpy and numba only for modes that need them.
                from crawler.recheck.revisits import Revisits

                self._revisits = Revisits(engine, self._options)
        return True

    async def _stored(self, what: str, sites: list[str]) -> list[str]:
        """Sites without unstored stream entries older than their first listing."""
        if not sites:
            return []
        # Taken after listing the sites: what their last holders reported is older.
        now_ms = int(await self._queue.server_seconds() * 1000)
        oldest_ms = await self._queue.oldest_record_ms()
        seen = {site: self._first_seen.get((what, site), now_ms) for site in sites}
        ready = [site for site in sites if oldest_ms is None or oldest_ms > seen[site]]
        self._first_seen = {key: at for key, at in self._first_seen.items() if key[0] != what} | {
            (what, site): at for site, at in seen.items() if site not in set(ready)
        }
        return ready

    async def _pack(self, site: str, work: Work, now_ms: int) -> bool:
        """Plans a site's due pages; returns whether there were any.

        Keeps a due time that a coordinator sets in the meantime.
        """
        due_ms = await self._queue.hold_up(site, work)
        assert self._engine is not None
        at_ms = max(due_ms, now_ms)
        asking = await asyncio.to_thread(read_asking, self._engine, site, work, self._options, at_ms)
        packed = bool(asking.pages) and await self._queue.pack(site, work, pack(asking))
        if packed:
            logger.debug("site %s: %d pages planned for %s", site, len(asking.pages), work)
        # If the site is leased for this job, what is due by now waits for the next lease.
        await self._queue.release(site, work, at_ms if asking.pages else asking.next_due_ms)
        return packed

    async def _in_budget(self) -> bool:
        assert self._revisits is not None
        now = await self._queue.server_seconds()
        account = accounts.brought_up(accounts.of(await self._queue.account()), now, self._revisits.window())
        await self._queue.keep_account(account._asdict())
        return account.saved >= 0

    async def _pack_chosen(self, site: str, now_ms: int) -> bool:
        due_ms = await self._queue.hold_up(site, "recheck")
        assert self._revisits is not None
        at_ms, account = max(due_ms, now_ms), accounts.of(await self._queue.account())
        pace = self._pace(site, at_ms / 1000)
        look = await asyncio.to_thread(
            self._revisits.look, site, at_ms, due_ms or at_ms, account, pace, PAGES_AT_A_TIME
        )
        asking = RecheckBatch([_page(row) for row in look.rows], look.wake_ms)
        packed = bool(asking.pages) and await self._queue.pack(site, "recheck", pack(asking))
        if packed or not asking.pages:
            await self._queue.keep_account(look.account._asdict())
        if packed:
            logger.debug("site %s: %d pages planned for recheck", site, len(asking.pages))
        await self._queue.release(site, "recheck", at_ms if asking.pages else asking.next_due_ms)
        return packed

    def _pace(self, site: str, now: float) -> float:
        """Cost of a page in this hour, as a multiple of its cost on an idle site."""
        from crawler.schedulers.law import FULL, UNKNOWN

        seconds = self._options.hour_seconds
        load = int(self._loads.hours([site], int(now // seconds), seconds).load[0, 0])
        return 1.0 if load == UNKNOWN else min(FULL / max(FULL - load, 1), DEAREST)


def read_asking(engine: Engine, site: str, work: Work, options: Options, at_ms: int) -> RecheckBatch:
    """A site's pages due for a job, longest wait first, and when more are due (ms)."""
    chosen, due, waited = due_pages(work, options)
    until = at_ms + int(waited * EARLY_SHARE * 1000)
    of_site = and_(pages.c.site_id == hash64(site), chosen)
    columns = (*_COLUMNS, due.label("due"))
    with transaction(engine) as db:
        rows = db.execute(
            select(*columns).where(of_site, due <= until).order_by(due).limit(PAGES_AT_A_TIME + 1)
        ).all()
        later = db.execute(select(func.min(due)).where(of_site, due > until)).scalar()
    more = rows[PAGES_AT_A_TIME].due if len(rows) > PAGES_AT_A_TIME else later
    return RecheckBatch([_page(row) for row in rows[:PAGES_AT_A_TIME]], int(more or 0))


def due_pages(work: Work, options: Options) -> tuple[ColumnElement[bool], ColumnElement[int], float]:
    """SQL condition of a job's pages, their due time (SQL, ms), and the least waiting time in seconds."""
    return _revived(options) if work == "revive" else _rechecked(options)


def _revived(options: Options) -> tuple[ColumnElement[bool], ColumnElement[int], float]:
    due = func.coalesce(pages.c.next_check, pages.c.fetched_at)
    return pages.c.state.in_(states.SILENT), due, min(options.revive_delays)


def _rechecked(options: Options) -> tuple[ColumnElement[bool], ColumnElement[int], float]:
    seconds = options.recheck_interval_seconds
    due = func.coalesce(pages.c.last_checked, pages.c.fetched_at) + int(seconds * 1000)
    return and_(pages.c.state == "visited", true() if seconds else false()), due, seconds


_COLUMNS = (
    *(pages.c.url, pages.c.state, pages.c.depth, pages.c.sha256, pages.c.size, pages.c.etag),
    *(pages.c.last_modified, pages.c.asked_as),
)


def _page(row: Any) -> BatchPage:
    loaded = row.sha256 is not None
    return BatchPage(
        path_of(row.url),
        row.state,
        row.depth,
        loaded,
        row.size if loaded else 0,
        row.etag or "",
        row.last_modified or "",
        bytes.fromhex(row.sha256)[:DIGEST_BYTES] if loaded else b"",
        path_of(row.asked_as) if row.asked_as else "",
    )
