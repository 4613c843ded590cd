"""One leased site: frontier, robots rules, next request time, unpublished records."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from crawler.agent.frontier import encode
from crawler.agent.politeness import FailureRow
from crawler.left_out import Reason, to_text
from crawler.queue.leases import Ending
from crawler.queue.sites import Delivery, read_entry
from crawler.records import Visit
from crawler.urls.url import page_of

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable

    from scrapy import Request

    from crawler.agent.frontier import Frontier, Snapshot, Turn
    from crawler.agent.observer import LoadSample, SiteLoad, SiteWatch
    from crawler.agent.overrides import SiteSession
    from crawler.agent.politeness import SiteDay
    from crawler.agent.responses import Walls
    from crawler.content.html import OutLinks
    from crawler.content.traps import Traps
    from crawler.fetch.timeouts import SiteTimeouts
    from crawler.queue.batches import RecheckBatch
    from crawler.queue.sites import Leased
    from crawler.robots.policy import Rules
    from crawler.robots.rules import Window


logger = logging.getLogger("agent")

# Turns before a possible alias is compared first. Five common pages prove it, and both sites load their menu's pages
# first.
COMPARED_PAGES = 20

# Redirects in a row that are searched for a truncated chain.
MOST_LOOKED_BEHIND: Final = 20


class Packed(NamedTuple):
    """Finished pages, with the frontier at that time."""

    seq: int
    records: list[tuple[bytes, bytes]]
    snapshot: Snapshot | None  # None: without a checkpoint
    fold: bool
    whole: bool  # the final snapshot of an ending lease
    root: str
    delay_ms: int
    rests_until_ms: int
    known: int | None  # known URLs of the site; None: not reported by other jobs than crawling
    done: int  # of these, turns ended
    done_hash: int
    left_out: str  # number of URLs by limit (crawler.left_out.to_text)
    given: int  # entries of paths from outside in the snapshot
    sends_back: bool  # reopen the site for pages of the records


@dataclass(eq=False, slots=True)
class SiteLease:
    """One leased site. Times are seconds of the event loop's clock unless noted."""

    leased: Leased
    frontier: Frontier
    paths_seen: int  # entries of paths from outside in the frontier that the server still has
    site_session: SiteSession  # headers and cookies of its requests
    least_delay: float  # seconds between request starts, before robots.txt
    connections: int = 1  # concurrent requests
    rules: Rules | None = None  # None: robots.txt is not yet read
    rules_read_at: float = 0.0
    robots_hop: str = ""  # redirect target of robots.txt, not yet fetched
    robots_hops: int = 0
    delay: float = 0.0  # least_delay or Crawl-delay; set with the rules
    sitemaps: frozenset[str] = frozenset()  # canonical paths from robots.txt; set with the rules
    window: Window | None = None  # when pages may be fetched; set with the rules
    timeouts: SiteTimeouts | None = None  # None: the timeouts of the settings
    traps: Traps | None = None  # None: no trap detection
    # Redirect targets of this site and the length of their chain; forgotten with the lease.
    redirects: dict[str, int] = field(default_factory=dict)
    # Paths whose redirect was not followed because the chain was too long; forgotten with the lease.
    cut_redirects: dict[str, int] = field(default_factory=dict)
    walls: Walls | None = None  # None: no page has redirected yet
    day: SiteDay | None = None  # daily budget; None: unlimited
    watch: SiteWatch | None = None  # observed health; None: nothing yet
    load: SiteLoad | None = None  # observed load; None: nothing yet
    started_at: float = 0.0  # of the last request
    due: float = 0.0  # time of the next request; 0: not scheduled
    rests_until: float = 0.0  # end of the back-off; only ever raised
    rests_until_ms: int = 0  # the same on the server's clock
    # Set when the lease ends: no agent may fetch before (server time).
    free_at_ms: int = 0
    in_flight: int = 0
    # Pages whose `parse` output is not fully processed; they may yield links.
    parsing: int = 0
    lost: bool = False  # the lease has expired: results are dropped
    ending: Ending | None = None  # set: fetch nothing more, leave once all is published
    due_ms: int = 0  # for `later` or `returned`, server time; 0: at once
    address: str = ""  # resolved at the lease; empty: unresolved
    robots: str = ""  # checksum of robots.txt, to find aliases; set with the rules
    root: str = ""  # marks of the root page (root_marks), to find aliases; sent once
    to_compare: int | None = None  # turns left until it is returned for an alias comparison
    detail: str = ""  # the address, for `parked`
    reason: str = ""
    out_links: OutLinks | None = None  # None: no links parsed yet
    checkpointed: bool = False  # the final checkpoint of an ending lease was sent
    own_requests: deque[Request] | None = None  # own requests and substitutes
    batch: RecheckBatch | None = None  # pages to recheck or revive, in frontier order
    next_due_ms: int = 0  # next due time of that job, server time; 0: unknown
    # Links to itself found by other jobs than crawling, with depth; offered to crawling.
    offers: dict[str, int] = field(default_factory=dict)
    sends_back: bool = False  # unpacked records contain pages to load again
    row: FailureRow = field(default_factory=FailureRow)  # URLs failed since the last success
    silent: set[tuple[str, int]] = field(default_factory=set)  # unanswered since the last response
    on_trial: bool = False  # a trial is under way or next
    given_up: tuple[int, str] | None = None  # status and error for all remaining pages
    probe_pages: int | None = None  # turns left, if leased for a probe
    seq: int = 0
    records: list[tuple[bytes, bytes]] = field(default_factory=list)  # finished, not yet sent
    packed: Packed | None = None  # taken from `records`, with its frontier snapshot
    delivery: Delivery | None = None  # encoded from `packed`; not yet acknowledged

    @property
    def site(self) -> str:
        """The site's URL without a path."""
        return self.leased.site

    @property
    def has_room(self) -> bool:
        """Whether another request may start; robots.txt is fetched alone."""
        alone = self.rules is None or self.robots_hop
        return self.in_flight < (1 if alone else self.connections)

    @property
    def free_at(self) -> float:
        """Earliest time of the next request."""
        return max(self.started_at + self.delay, self.rests_until)

    @property
    def busy(self) -> bool:
        """Whether a response or `parse` is outstanding."""
        return bool(self.in_flight or self.parsing)

    @property
    def live(self) -> bool:
        """Whether pages may still be fetched."""
        return not self.lost and self.ending is None

    @property
    def unpublished(self) -> int:
        """Number of unacknowledged records."""
        return len(self.records) + (len(self.packed.records) if self.packed else 0)

    @property
    def untold(self) -> bool:
        """Whether load samples are unpublished."""
        return self.load is not None and self.load.tells

    @property
    def loads(self) -> bool:
        """Whether the lease is for crawling."""
        return self.leased.work == "site"

    def add_found(self, paths: Iterable[str], depth: int, redirects: int = 0) -> int:
        """Add links as written, except into traps. Returns the number of new pages.

        `redirects` led to them in a row. Other jobs offer their links.
        """
        if not self.loads:
            for path in paths:
                self.offers[path] = min(depth, self.offers.get(path, depth))
            return 0
        if self.redirects or self.cut_redirects:
            paths = list(paths)
            # Usually the canonical spelling suffices; after a truncated chain all are compared.
            exact = redirects or self.cut_redirects
            self._shorten(list(map(page_of, paths)) if exact else paths, redirects)
        return self.frontier.add(paths, depth, self.traps.leads_in if self.traps else None)

    def _shorten(self, paths: list[str], redirects: int) -> None:
        """A shorter redirect chain may continue a truncated one."""
        for path in self.redirects.keys() & paths:
            self.redirects[path] = min(redirects, self.redirects[path])
        for path in paths if self.cut_redirects else ():
            many, following = redirects, path
            while following and following not in self.cut_redirects and many < MOST_LOOKED_BEHIND:
                many, following = many + 1, self.frontier.redirect_of(following) or ""
            if many < self.cut_redirects.get(following, 0):
                del self.cut_redirects[following]
                self.redirects[following] = many
                self.frontier.ask_again(following)

    def add_of_copy(self, original: str, paths: Iterable[str], depth: int) -> None:
        """Add links of a copy; other jobs ignore them."""
        if self.loads:
            self.frontier.add_of_copy(original, paths, depth, self.traps.leads_in if self.traps else None)

    def leave_out(self, reason: Reason, urls: Iterable[str]) -> None:
        """As `Frontier.leave_out`; other jobs ignore it."""
        if self.loads:
            self.frontier.leave_out(reason, urls)

    def add_sitemaps(self, paths: Iterable[str], depth: int, indexes: int, redirects: int = 0) -> None:
        """Add sitemaps below `indexes` sitemap indexes."""
        paths = list(paths)
        self.add_found(paths, depth, redirects)
        if self.loads:
            self.frontier.name_sitemaps(paths, indexes)

    def indexes_before(self, turn: Turn) -> int | None:
        """Sitemap indexes above the page. Returns None for other pages."""
        return 0 if turn.path in self.sitemaps else self.frontier.indexes_before(turn)

    def take_given(self, entries: Iterable[str]) -> list[str]:
        """Add paths from outside. Returns the invalid ones."""
        bad: list[str] = []
        for entry in entries:
            given = read_entry(entry)
            self.add_found(given.paths, given.depth, given.redirects)
            if given.redirects:
                self.redirects.update(dict.fromkeys(map(page_of, given.paths), given.redirects))
            self.paths_seen += 1
            bad += given.bad
        return bad

    def begin_comparison(self, first: str = "") -> None:
        """Return the site after some turns: it may be an alias of `first`.

        After as many turns as it has pages, so that large sites are rarely interrupted.
        """
        if self.to_compare is None:
            self.to_compare = max(COMPARED_PAGES, self.frontier.published)
            if first:
                logger.info("site %s: may be an alias of %s, comparing their pages", self.site, first)

    def visit(self, seen: LoadSample) -> Visit:
        """The record of an hour's load."""
        return Visit(
            site=self.site,
            hour=seen.hour,
            pages=seen.pages,
            seconds=seen.seconds,
            refused=seen.refused,
            delay_seconds=self.delay,
            hours_open=str(self.window or ""),
        )

    def pack(self) -> Packed:
        """The next delivery's content, unchanged until `delivered`."""
        if self.packed is None:
            self.seq += 1
            snapshot, fold = self._checkpoint()
            whole = fold and self.ending is not None and not self.busy
            delay_ms = int(self.delay * 1000)
            known = len(self.frontier) if self.loads else None
            left_out = to_text(self.frontier.left_out) if self.loads else ""
            progress = (known, self.frontier.published, self.frontier.done_hash, left_out)
            given = self.paths_seen if snapshot else 0
            about = (self.root, delay_ms, self.rests_until_ms, *progress, given, self.sends_back)
            self.packed = Packed(self.seq, self.records, snapshot, fold, whole, *about)
            self.records, self.sends_back = [], False
        return self.packed

    def seal(self, packed: Packed) -> Delivery:
        """Encode a delivery; pure, may run in a thread."""
        delta = encode(packed.snapshot) if packed.snapshot else b""
        leased = self.leased
        return Delivery(
            leased.site,
            leased.token,
            packed.seq,
            delta,
            packed.fold,
            packed.root,
            packed.records,
            packed.delay_ms,
            packed.rests_until_ms,
            packed.known,
            packed.done,
            packed.done_hash,
            packed.given,
            packed.sends_back,
            packed.left_out,
        )

    def delivered(self) -> None:
        """The stream acknowledged it."""
        assert self.packed is not None
        if self.packed.root:
            self.root = ""
        self.paths_seen -= self.packed.given
        self.checkpointed = self.packed.whole
        self.packed = self.delivery = None

    def _checkpoint(self) -> tuple[Snapshot | None, bool]:
        if not self.loads:
            return None, False  # other jobs have no checkpoint
        if self.ending == "finished":
            return self.frontier.changes(), False  # the agent may crash before it leaves
        if self.ending is not None or self.frontier.wants_fold():
            return self.frontier.everything(), True
        return self.frontier.changes(), False
