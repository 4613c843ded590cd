"""Finished sites that are opened again: for pages that were offered to them, or sent back to loading.

Seeds, links and redirects offer paths to finished sites; recheck and revive send pages back. An agent knows no tables,
so a coordinator compares: a path that the tables have changes nothing, any other opens its site, with a checkpoint of
its pages in the tables, in which these alone are still to be fetched. Nothing is decided by what the tables do not have
yet: a site waits until all is stored that was in the stream when it was first seen here. Of several coordinators one
decides, by a lock. Killed at any moment it loses nothing: what is not decided is looked at again.

Raises redis.RedisError and DatabaseError as they come; `look` may be called again after either.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from sqlalchemy import and_, func, select, tuple_

from crawler.agent.frontier import Known, checkpoint_of
from crawler.records import hash64
from crawler.sites import connection
from crawler.sites.canonical import path_of
from crawler.sites.queue import BrokenRecordError, LockLostError, SiteQueue, read_entry
from crawler.store.agreement import lacks_pages
from crawler.store.database import transaction
from crawler.store.tables import pages, sites

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from redis.asyncio import Redis
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options

logger = logging.getLogger("coordinator")

# A page that loading is to load again.
SENT_BACK = and_(pages.c.state == "init", pages.c.last_checked > pages.c.fetched_at)

LOOK_SECONDS: Final = 0.5
LOCK_SECONDS: Final = 10.0
# Sites decided of at one look, and the time after which a look ends: records wait meanwhile.
SITES_AT_A_TIME: Final = 200
BUSY_SECONDS: Final = 0.25
# A site whose opening took long is left alone for so many times as long: the agents' records come first.
REST_FACTOR: Final = 10.0
# Hashes in one question to the tables.
HASHES_AT_A_TIME: Final = 500


class Reopening:
    """One coordinator's decisions; call `look` again and again, from one thread."""

    def __init__(self, settings: BaseSettings, options: Options, name: str) -> None:
        self._settings = settings
        self._options = options
        self._name = name
        self._runner: asyncio.Runner | None = None
        self._client: Redis | None = None
        self._next_look = 0.0
        self._first_seen: dict[str, int] = {}  # site -> server's time, ms
        self._rests: dict[str, float] = {}  # site -> monotonic time before which it is not opened again
        self._told_broken = False

    def look(self, engine: Engine) -> None:
        """Decide of some sites, where it is time to look and there are any."""
        if time.monotonic() < self._next_look:
            return
        if self._runner is None:
            self._runner = asyncio.Runner()
        more = False
        try:
            more = self._runner.run(self._look(engine))
        except BrokenRecordError as error:
            if not self._told_broken:
                self._told_broken = True
                logger.error("finished sites cannot be opened again: %s", error)
        self._next_look = 0.0 if more else time.monotonic() + LOOK_SECONDS

    def close(self) -> None:
        """Let go of the server."""
        if self._runner is not None:
            if self._client is not None:
                self._runner.run(self._client.aclose())
            self._runner.close()

    async def _look(self, engine: Engine) -> bool:
        """Whether there is more to decide at once."""
        if self._client is None:
            self._client = connection.connect(self._settings)
        queue = SiteQueue(self._client, self._options)
        if not await queue.undecided():
            self._first_seen.clear()
            return False
        number = await queue.lock("opener", self._name, LOCK_SECONDS)
        if not number:
            return False
        sent_back, offered_to = await queue.to_reopen(SITES_AT_A_TIME), await queue.to_decide(SITES_AT_A_TIME)
        now = time.monotonic()
        self._rests = {site: until for site, until in self._rests.items() if until > now}
        names = [site for site in dict.fromkeys([*sent_back, *offered_to]) if site not in self._rests]
        decision = _Decision(engine, queue, self._options, self._name, number)
        try:
            return await decision.take(await self._stored(queue, names), sent_back)
        except LockLostError:
            return False
        finally:
            self._rests |= {site: now + REST_FACTOR * took for site, took in decision.took.items()}

    async def _stored(self, queue: SiteQueue, names: Collection[str]) -> list[str]:
        """Those of the sites of which the tables have all that was published before they were first seen here."""
        # The time after they were listed: what a site's last holder published is older than that.
        now_ms = int(await queue.server_seconds() * 1000)
        oldest_ms = await queue.oldest_record_ms()
        self._first_seen = {site: self._first_seen.get(site, now_ms) for site in names}
        return [site for site in names if oldest_ms is None or oldest_ms > self._first_seen[site]]


class _Decision:
    """One look, under the lock's fencing number."""

    def __init__(self, engine: Engine, queue: SiteQueue, options: Options, opener: str, number: int) -> None:
        self._engine = engine
        self._queue = queue
        self._options = options
        self._opener = opener
        self._number = number
        self.took: dict[str, float] = {}  # sites that were opened -> seconds

    async def take(self, names: Sequence[str], sent_back: Mapping[str, int]) -> bool:
        """Decide of these sites; whether something was decided, so that it is worth looking at once again."""
        entries = dict(zip(names, await self._queue.offered(names), strict=True)) if names else {}
        new = unknown_of(self._engine, {site: _paths(found) for site, found in entries.items()})
        known = {
            site: len(found) for site, found in entries.items() if not new[site] and site not in sent_back
        }
        await self._queue.decide(self._opener, self._number, known)
        began = time.monotonic()
        for site in [site for site in names if site not in known]:
            before = time.monotonic()
            if await self._open(site, len(entries[site]), len(new[site]), sent_back.get(site, 0)):
                self.took[site] = time.monotonic() - before
            if time.monotonic() - began > BUSY_SECONDS:
                break
        return bool(known or self.took)

    async def _open(self, site: str, taken: int, many: int, noted: int) -> bool:
        checkpoint = None
        if self._has_room(site, many) or noted:
            lost = await self._lacks_pages(site)
            checkpoint = checkpoint_from_tables(self._engine, site, again=lost, more=many > 0)
        opened = await self._queue.reopen(self._opener, self._number, site, checkpoint or b"", taken, noted)
        if opened and checkpoint:
            logger.info("%s is opened again: %s", site, _why(many, noted))
        return opened

    async def _lacks_pages(self, site: str) -> bool:
        """Whether pages of the finished site are gone from the tables: a checkpoint made of these would hide that."""
        record = await self._queue.record(site)
        if record is None or record.state != "finished" or not lacks_pages(self._engine, record):
            return False
        logger.warning("%s: pages of it are gone from the tables; it is walked again", site)
        return True

    def _has_room(self, site: str, many: int) -> bool:
        """Whether more pages of the site may be fetched; says so where they may not."""
        key = hash64(site)
        with transaction(self._engine) as db:
            budget = db.execute(select(sites.c.budget).where(sites.c.site_id == key)).scalar()
            most = self._options.max_pages_per_site if budget is None else budget
            if not most or not many:
                return True
            held = db.execute(select(func.count()).where(pages.c.site_id == key)).scalar() or 0
        if held < most:
            return True
        logger.warning(
            "%s: %d URLs offered to it are left out: %d of %d pages are there (MAX_PAGES_PER_SITE)",
            *(site, many, held, most),
        )
        return False


def _why(many: int, noted: int) -> str:
    reasons = [f"{many} URLs that others name are new"] if many else []
    return "; ".join([*reasons, "pages are to be loaded again"] if noted else reasons)


def _paths(entries: Sequence[str]) -> set[str]:
    return {path for entry in entries for path in read_entry(entry).paths}


def unknown_of(engine: Engine, offered: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Of the paths of each site those that the tables have no page of."""
    wanted = {
        (hash64(site), hash64(site + path)): (site, path) for site, some in offered.items() for path in some
    }
    left = dict(wanted)
    keys = sorted(wanted)
    with transaction(engine) as db:
        for start in range(0, len(keys), HASHES_AT_A_TIME):
            some = keys[start : start + HASHES_AT_A_TIME]
            found = select(pages.c.site_id, pages.c.url_hash).where(
                tuple_(pages.c.site_id, pages.c.url_hash).in_(some)
            )
            for row in db.execute(found):
                left.pop((row.site_id, row.url_hash), None)
    new: dict[str, set[str]] = {site: set() for site in offered}
    for site, path in left.values():
        new[site].add(path)
    return new


def checkpoint_from_tables(
    engine: Engine, site: str, *, again: bool = False, more: bool = False
) -> bytes | None:
    """The whole checkpoint of a site by its pages in the tables; None: nothing of the site is to be loaded.

    Its known pages remain known, with their depths and checksums. To be loaded are those that recheck sent back, which
    the tables hold as Init with a check later than their load; with `again` all of them, for a site whose own
    checkpoint is lost: the tables have its links as hashes, and what they led to must be found once more. `more`: there
    are new pages to load too, so that a checkpoint is made in any case.
    """
    columns = (
        *(pages.c.url, pages.c.depth, pages.c.sha256, pages.c.duplicate_of),
        SENT_BACK.label("sent_back"),
    )
    asked = select(*columns).where(pages.c.site_id == hash64(site)).order_by(pages.c.depth, pages.c.id)
    with transaction(engine) as db:
        rows = db.execute(asked).all()
    known = [
        Known(
            path_of(row.url),
            row.depth,
            bytes.fromhex(row.sha256) if row.sha256 and not row.duplicate_of else b"",
            again or bool(row.sent_back),
        )
        for row in rows
    ]
    if not more and not any(page.again for page in known):
        return None
    return checkpoint_of(site, known)
