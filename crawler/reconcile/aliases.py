"""Decides by stored pages whether a suspected site is another one's alias, under the decision lock.

A proven alias found by a link is left out: its pending URLs go to the other site, its checkpoint is kept. Seeds and
finished sites are crawled anyway (`same_as`). After a crash undecided sites are compared again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import func, select, tuple_, update

from crawler.left_out import to_text
from crawler.queue.sites import Likeness, Offer, Progress
from crawler.reconcile.agreement import UNFINISHED, frontier_of
from crawler.records import GIVEN_UP, SiteEnded, encode, hash64
from crawler.store.database import transaction
from crawler.store.tables import pages, sites
from crawler.urls.scope import Scope
from crawler.urls.url import path_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from crawler.agent.frontier import Frontier
    from crawler.options import Options
    from crawler.queue.queue import SiteQueue
    from crawler.queue.sites import Suspect
    from crawler.reconcile.reopening import DecisionLock

logger = logging.getLogger("coordinator")

# Equal pages required, without the root, and different contents among them: some servers return the same few pages for
# each path.
ENOUGH_PAGES: Final = 5
ENOUGH_CONTENTS: Final = 3
# At most this number of a site's first pages is compared. Sites per pass.
MOST_COMPARED: Final = 500
SITES_AT_A_TIME: Final = 50

ROOT: Final = "/"


class Loaded(NamedTuple):
    """A page's response, as far as it distinguishes sites."""

    status: int
    sha256: str = ""
    content_hash: str = ""
    redirect: str = ""  # without its site, where that is the page's own

    @property
    def is_page(self) -> bool:
        """Whether the response is a page."""
        return 200 <= self.status < 300 and bool(self.sha256)

    @property
    def is_final(self) -> bool:
        """False for temporary failures."""
        return self.is_page or (300 <= self.status < 500 and self.status != 429)


def compared(mine: Mapping[str, Loaded], theirs: Mapping[str, Loaded], *, whole: bool) -> Likeness:
    """Compares pages at the same paths; `whole`: these are all pages of both."""
    both = [(path, page, theirs[path]) for path, page in mine.items() if path in theirs]
    if any(_differ(page, other) for _, page, other in both):
        return "no"
    equal = [page for path, page, other in both if path != ROOT and page.is_page and other.is_page]
    contents = {page.content_hash or page.sha256 for page in equal} - _contents(mine.get(ROOT))
    if len(equal) >= ENOUGH_PAGES and len(contents) >= ENOUGH_CONTENTS:
        return "same"
    return "same" if whole and equal and len(both) == len(mine) == len(theirs) else "open"


def _contents(page: Loaded | None) -> set[str]:
    return {page.content_hash, page.sha256} if page else set()


def _differ(one: Loaded, other: Loaded) -> bool:
    if not (one.is_final and other.is_final):
        return False
    if one.is_page and other.is_page:
        same_text = one.content_hash != "" and one.content_hash == other.content_hash
        return one.sha256 != other.sha256 and not same_text
    return (one.status, one.redirect) != (other.status, other.redirect)


class Aliases:
    """One pass over suspected sites."""

    def __init__(self, engine: Engine, queue: SiteQueue, options: Options, lock: DecisionLock) -> None:
        self._engine = engine
        self._queue = queue
        self._options = options
        self._lock = lock

    async def look(self) -> bool:
        """Judges suspects whose pages are all stored; returns whether there were any."""
        suspects = await self._queue.to_compare(SITES_AT_A_TIME)
        # Read after the suspects: records that they published before are older.
        oldest_ms = await self._queue.oldest_record_ms() if suspects else None
        stored = [one for one in suspects if oldest_ms is None or oldest_ms > one.looked_ms]
        judged = [(one, await self._judge(one)) for one in stored]
        await self._queue.judge(*self._lock.holder, [(one, state) for one, state in judged if state])
        return bool(stored)

    async def _judge(self, one: Suspect) -> Likeness | None:
        """The new verdict; None: the site was left out."""
        if not self._may_stand(one):
            return self._part(one, "it is not crawled under that name")
        if one.record.state == "alias" and one.state == "same":
            return "same"
        state = await self._lock.keep(lambda: self._compare(one))
        if state == "no":
            return self._part(one, "their pages differ")
        if one.record.state == "alias":
            # Pages found since then are compared too; later changes of content are no difference between the sites.
            settled = one.first is not None and one.first.state == "finished"
            return "same" if settled else "open"
        if state == "same" and one.record.linked and one.record.state in UNFINISHED:
            return await self._leave_out(one)
        if state == "same":
            self._tell_same(one.record.site, one.name)
        return state

    def _may_stand(self, one: Suspect) -> bool:
        """Whether the other site is crawled likewise."""
        first = one.first
        if one.record.state == "blocked" or first is None or first.paused or one.own_budget:
            return False
        if first.state in ("blocked", "alias"):
            return False
        with transaction(self._engine) as db:
            reason = db.execute(select(sites.c.reason).where(sites.c.site_id == hash64(first.site))).scalar()
        return not (reason or "").startswith(GIVEN_UP)

    def _part(self, one: Suspect, why: str) -> Likeness:
        if one.record.state == "alias":
            logger.info("%s is not an alias of %s, crawling it: %s", one.record.site, one.name, why)
        self._tell_same(one.record.site, None)
        return "no"

    def _compare(self, one: Suspect) -> Likeness:
        mine = self._first_pages(one.record.site, one.since_ms)
        theirs = self._pages_at(one.name, list(mine), one.since_ms)
        ended = one.first is not None and one.first.state == one.record.state == "finished"
        whole = ended and len(mine) < MOST_COMPARED and self._many(one.name) == len(theirs)
        return compared(mine, theirs, whole=whole)

    def _first_pages(self, site: str, since_ms: int) -> dict[str, Loaded]:
        chosen = (pages.c.site_id == hash64(site), pages.c.fetched_at >= since_ms)
        query = _asked().where(*chosen).order_by(pages.c.id).limit(MOST_COMPARED)
        with transaction(self._engine) as db:
            return dict(_loaded(site, row) for row in db.execute(query))

    def _pages_at(self, site: str, paths: list[str], since_ms: int) -> dict[str, Loaded]:
        key = hash64(site)
        wanted = sorted((key, hash64(site + path)) for path in paths)
        query = _asked().where(tuple_(pages.c.site_id, pages.c.url_hash).in_(wanted))
        with transaction(self._engine) as db:
            found = db.execute(query.where(pages.c.fetched_at >= since_ms))
            return dict(_loaded(site, row) for row in found)

    def _many(self, site: str) -> int:
        query = select(func.count()).where(pages.c.site_id == hash64(site))
        with transaction(self._engine) as db:
            return int(db.execute(query).scalar() or 0)

    def _tell_same(self, site: str, name: str | None) -> None:
        """Stores `same_as`."""
        here = (sites.c.site_id == hash64(site), sites.c.same_as.is_distinct_from(name))
        with transaction(self._engine) as db:
            changed = db.execute(update(sites).where(*here).values(same_as=name)).rowcount
        if changed and name:
            logger.info("%s has the same pages as %s and is crawled anyway", site, name)

    async def _leave_out(self, one: Suspect) -> Likeness | None:
        """Leaves the site out; None: done, else the verdict."""
        site = one.record.site
        if one.record.agent:
            await self._queue.give_back(*self._lock.holder, one)
            return "open"
        frontier = await frontier_of(self._queue, site, self._options)
        offers = _offers(frontier, one.name)
        if not self._same_scope(site, one.name, offers):
            return self._part(one, "SCOPE_INCLUDE or SCOPE_EXCLUDE differs for their pages")
        await self._queue.hand_on(*self._lock.holder, one.name, offers)
        left_out = _left_out(frontier)
        progress = Progress(len(frontier), frontier.published, frontier.done_hash, to_text(left_out))
        record = encode(_ended(site, one.name, frontier, left_out))
        if not await self._queue.leave_out(*self._lock.holder, one, progress, record):
            return "open"
        logger.info(
            "%s is an alias of %s: left out, %d pending URLs are fetched there",
            site,
            one.name,
            frontier.pending,
        )
        return None

    def _same_scope(self, site: str, name: str, offers: list[Offer]) -> bool:
        scope = Scope(self._options)
        paths = (path for offer in offers for path in offer.paths)
        return all(scope.has_page(site + path) == scope.has_page(name + path) for path in paths)


def _asked() -> Any:
    return select(
        pages.c.url,
        pages.c.status,
        pages.c.sha256,
        pages.c.content_hash,
        pages.c.redirect,
        pages.c.fetched_at,
    )


def _loaded(site: str, row: Any) -> tuple[str, Loaded]:
    redirect = (row.redirect or "").removeprefix(site)
    return path_of(row.url), Loaded(row.status, row.sha256 or "", row.content_hash or "", redirect)


def _offers(frontier: Frontier, name: str) -> list[Offer]:
    """The pending URLs, for the other site."""
    by_depth: dict[int, list[str]] = {}
    for path, depth in frontier.to_fetch():
        by_depth.setdefault(depth, []).append(path)
    return [Offer(name, paths, depth) for depth, paths in by_depth.items()]


def _left_out(frontier: Frontier) -> dict[str, int]:
    """URLs left out with the site, by reason."""
    more = {"alias": frontier.pending} if frontier.pending else {}
    return {**frontier.left_out, **more}


def _ended(site: str, name: str, frontier: Frontier, left_out: dict[str, int]) -> SiteEnded:
    return SiteEnded(
        site=site,
        ended_at=time.time_ns() // 1_000_000,
        finished=True,
        published=frontier.published,
        known=len(frontier),
        over_budget=frontier.over_budget,
        left_out=left_out,
        left_out_hashes=frontier.pack_left_out(),
        pending=frontier.pending,
        alias_of=name,
        reason=f"alias of {name}",
    )
