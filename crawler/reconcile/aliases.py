"""Sites that are another site under a second name: suspected by an agent, judged here by the pages that both have.

An address, a robots.txt and a root page in common make a suspicion, no more: both sites are crawled. What the tables
hold of both proves it, or ends it for good. A site that a link led to is left out once it is proven. What is still to
fetch of it is handed to the site that it is, so nothing is lost that only its pages name, and its checkpoint is kept,
so that it goes on where it was if the proof does not hold. A seed is never left out, nor is a site that was finished by
then: the tables say of them that their pages are another's (`same_as`).

Part of a coordinator's decisions (crawler.reconcile.reopening), under their lock and in their thread. Killed at any
moment it loses nothing: what was not judged is looked at again, and a path that is handed over twice is fetched once.
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

# Pages beside the root that must be equal, and how many contents they must have: a server that answers every path with
# the same few pages proves nothing.
ENOUGH_PAGES: Final = 5
ENOUGH_CONTENTS: Final = 3
# Pages of a site that are compared at most, the first ones. Sites judged at one look.
MOST_COMPARED: Final = 500
SITES_AT_A_TIME: Final = 50

ROOT: Final = "/"


class Loaded(NamedTuple):
    """What the tables have of a page, as far as it tells one site from another."""

    status: int
    sha256: str = ""
    content_hash: str = ""
    redirect: str = ""  # without its site, where that is the page's own

    @property
    def is_page(self) -> bool:
        """Whether its site answered with a page."""
        return 200 <= self.status < 300 and bool(self.sha256)

    @property
    def is_final(self) -> bool:
        """Whether its site would answer the same again: not where it did not answer, or not for now."""
        return self.is_page or (300 <= self.status < 500 and self.status != 429)


def compared(mine: Mapping[str, Loaded], theirs: Mapping[str, Loaded], *, whole: bool) -> Likeness:
    """What two sites' pages at the same paths say; `whole`: these are all pages of both, and none is to come."""
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
    """One look at suspected sites, under the decisions' lock."""

    def __init__(self, engine: Engine, queue: SiteQueue, options: Options, lock: DecisionLock) -> None:
        self._engine = engine
        self._queue = queue
        self._options = options
        self._lock = lock

    async def look(self) -> bool:
        """Judge those of which the tables have all that was published; whether something was judged."""
        suspects = await self._queue.to_compare(SITES_AT_A_TIME)
        # Asked after they were listed: what they published before is older than that.
        oldest_ms = await self._queue.oldest_record_ms() if suspects else None
        stored = [one for one in suspects if oldest_ms is None or oldest_ms > one.looked_ms]
        judged = [(one, await self._judge(one)) for one in stored]
        await self._queue.judge(*self._lock.holder, [(one, state) for one, state in judged if state])
        return bool(stored)

    async def _judge(self, one: Suspect) -> Likeness | None:
        """What is known of it now; None: it was left out."""
        if not self._may_stand(one):
            return self._part(one, "it is not crawled under that name")
        if one.record.state == "alias" and one.state == "same":
            return "same"
        state = await self._lock.keep(lambda: self._compare(one))
        if state == "no":
            return self._part(one, "their pages differ")
        if one.record.state == "alias":
            # Pages that came to be known since were compared too; what changes from now on is no difference of theirs.
            settled = one.first is not None and one.first.state == "finished"
            return "same" if settled else "open"
        if state == "same" and one.record.linked and one.record.state in UNFINISHED:
            return await self._leave_out(one)
        if state == "same":
            self._tell_same(one.record.site, one.name)
        return state

    def _may_stand(self, one: Suspect) -> bool:
        """Whether the other is crawled as this site would be, so that it may stand for it."""
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
            logger.info("%s is no alias of %s after all, and is crawled: %s", one.record.site, one.name, why)
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
        asked = _asked().where(*chosen).order_by(pages.c.id).limit(MOST_COMPARED)
        with transaction(self._engine) as db:
            return dict(_loaded(site, row) for row in db.execute(asked))

    def _pages_at(self, site: str, paths: list[str], since_ms: int) -> dict[str, Loaded]:
        key = hash64(site)
        wanted = sorted((key, hash64(site + path)) for path in paths)
        asked = _asked().where(tuple_(pages.c.site_id, pages.c.url_hash).in_(wanted))
        with transaction(self._engine) as db:
            found = db.execute(asked.where(pages.c.fetched_at >= since_ms))
            return dict(_loaded(site, row) for row in found)

    def _many(self, site: str) -> int:
        asked = select(func.count()).where(pages.c.site_id == hash64(site))
        with transaction(self._engine) as db:
            return int(db.execute(asked).scalar() or 0)

    def _tell_same(self, site: str, name: str | None) -> None:
        """The tables say whose pages the site has; None: nobody else's."""
        here = (sites.c.site_id == hash64(site), sites.c.same_as.is_distinct_from(name))
        with transaction(self._engine) as db:
            changed = db.execute(update(sites).where(*here).values(same_as=name)).rowcount
        if changed and name:
            logger.info("%s has the pages of %s, and is crawled all the same", site, name)

    async def _leave_out(self, one: Suspect) -> Likeness | None:
        """Hand what is left of the site to the one that it is; None: done, else what is known of it."""
        site = one.record.site
        if one.record.agent:
            await self._queue.give_back(*self._lock.holder, one)
            return "open"
        frontier = await frontier_of(self._queue, site, self._options)
        offers = _offers(frontier, one.name)
        if not self._same_scope(site, one.name, offers):
            return self._part(one, "SCOPE_INCLUDE or SCOPE_EXCLUDE tells their pages apart")
        await self._queue.hand_on(*self._lock.holder, one.name, offers)
        left_out = _left_out(frontier)
        progress = Progress(len(frontier), frontier.published, frontier.done_hash, to_text(left_out))
        record = encode(_ended(site, one.name, frontier, left_out))
        if not await self._queue.leave_out(*self._lock.holder, one, progress, record):
            return "open"
        logger.info(
            "%s is %s under a second name: left out, with %d URLs that are asked there",
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
    """What is to be fetched of a frontier, for the site of this name."""
    by_depth: dict[int, list[str]] = {}
    for path, depth in frontier.to_fetch():
        by_depth.setdefault(depth, []).append(path)
    return [Offer(name, paths, depth) for depth, paths in by_depth.items()]


def _left_out(frontier: Frontier) -> dict[str, int]:
    """What of a site is left out as soon as the site is, by reason."""
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
