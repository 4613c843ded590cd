"""A slot: one leased site in this agent's hand, from lease to leave.

It knows its frontier, its robots rules, when it may next be asked, and what of it still has to be published.
It talks to nobody; crawler/agent/agent.py moves it.
"""

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

# Turns of a site that may be an alias before it is compared for the first time. Five pages that both sites have prove
# it, and among the first ones are those of its menu, which the other site has loaded first too.
COMPARED_PAGES = 20

# Redirects one behind the other that are looked through for one that was cut off.
MOST_LOOKED_BEHIND: Final = 20


class Packed(NamedTuple):
    """Finished pages and the frontier as it was when they were taken."""

    seq: int
    records: list[tuple[bytes, bytes]]
    snapshot: Snapshot | None  # None: no checkpoint goes along
    fold: bool
    whole: bool  # the snapshot is of a slot that has ended and waits for nothing: nothing comes after it
    root: str
    delay_ms: int
    rests_until_ms: int
    known: int | None  # of the site's URLs, by then; None: another work than loading does not say
    done: int  # of these, have had their turn
    done_hash: int
    left_out: str  # URLs that bounds leave out (crawler.left_out.to_text)
    given: int  # entries of paths from outside that the snapshot has
    sends_back: bool  # the site is to be opened again for pages of the records


@dataclass(eq=False, slots=True)
class SiteLease:
    """One site in hand. Times are seconds of the event loop's clock unless said otherwise."""

    leased: Leased
    frontier: Frontier
    paths_seen: int  # entries of paths from outside that the frontier has taken in and the server still keeps
    site_session: SiteSession  # what its requests wear
    least_delay: float  # seconds from one request's start to the next, whatever robots.txt says
    connections: int = 1  # requests at a time
    rules: Rules | None = None  # None: robots.txt is still to be read
    rules_read_at: float = 0.0
    robots_hop: str = ""  # where robots.txt was redirected to, still to be read
    robots_hops: int = 0
    delay: float = 0.0  # the same, with what robots.txt says; set with the rules
    sitemaps: frozenset[str] = (
        frozenset()
    )  # canonical paths of those that robots.txt names; set with the rules
    window: Window | None = None  # in which pages may be fetched; set with the rules
    timeouts: SiteTimeouts | None = None  # how long it is waited for; None: as long as the settings say
    traps: Traps | None = None  # None: they are not looked for
    # Paths that redirects of this site led to, and how many one behind the other; forgotten with the lease.
    redirects: dict[str, int] = field(default_factory=dict)
    # Paths whose own redirect was not followed, since so many came before; forgotten with the lease too.
    cut_redirects: dict[str, int] = field(default_factory=dict)
    walls: Walls | None = None  # None: no page of it has redirected yet
    day: SiteDay | None = None  # what it may still be asked for today; None: as much as one likes
    watch: SiteWatch | None = None  # what it sees of the site's health; None: nothing yet
    load: SiteLoad | None = None  # what it sees of the site's load; None: nothing yet
    started_at: float = 0.0  # of the last request
    due: float = 0.0  # its next turn; 0: it is not among the ready
    rests_until: float = 0.0  # nothing is sent before, whatever is due; only ever raised
    rests_until_ms: int = 0  # the same by the server's clock
    # Set at its end, by the server's clock: no agent asks the site before, once it was given back.
    free_at_ms: int = 0
    in_flight: int = 0
    # Pages of which the engine has not processed all that `parse` gave: it may yet give links.
    parsing: int = 0
    lost: bool = False  # the lease is another's: results are dropped
    ending: Ending | None = None  # not None: nothing more is fetched, leave when all is published
    due_ms: int = 0  # for an ending `later` or `returned`, server's time; 0: at once
    address: str = ""  # where the site's name led at the lease; empty: nowhere, or not asked
    robots: str = ""  # checksum of robots.txt, to find aliases; set with the rules
    root: str = ""  # what an alias has in common with the site (root_marks), once
    to_compare: int | None = (
        None  # turns until it goes back to be compared with the site that it may be an alias of
    )
    detail: str = ""  # the address for an ending `parked`
    reason: str = ""
    out_links: OutLinks | None = None  # None: no page's links were looked at yet
    checkpointed: bool = False  # an ending slot's whole checkpoint was sent
    own_requests: deque[Request] | None = None  # a user's, and what middlewares put in another's place
    batch: RecheckBatch | None = None  # what recheck or revive asks of it, in the order of the frontier
    next_due_ms: int = 0  # when the site is due for that again, server's time; 0: not by what is known
    # Links of its own that another work than loading found, with their depth, to be offered to loading.
    offers: dict[str, int] = field(default_factory=dict)
    sends_back: bool = False  # pages of the records not yet packed are to be loaded again
    row: FailureRow = field(
        default_factory=FailureRow
    )  # URLs that failed since the last success, in this lease
    silent: set[tuple[str, int]] = field(default_factory=set)  # that gave no answer since the last one
    on_trial: bool = False  # a trial is under way, or next
    given_up: tuple[int, str] | None = None  # status and error that each page left has failed with
    probe_pages: int | None = None  # turns until it goes back, where it was leased for a probe only
    seq: int = 0
    records: list[tuple[bytes, bytes]] = field(default_factory=list)  # finished, not yet sent
    packed: Packed | None = None  # taken from `records`, with the frontier as it was then
    delivery: Delivery | None = None  # made of it; sent or being sent, not yet acknowledged

    @property
    def site(self) -> str:
        """The site's name."""
        return self.leased.site

    @property
    def has_room(self) -> bool:
        """Whether one more request may be under way; robots.txt is read alone."""
        alone = self.rules is None or self.robots_hop
        return self.in_flight < (1 if alone else self.connections)

    @property
    def free_at(self) -> float:
        """When the site may be asked again."""
        return max(self.started_at + self.delay, self.rests_until)

    @property
    def busy(self) -> bool:
        """Whether an answer, or the end of a `parse`, is still to come."""
        return bool(self.in_flight or self.parsing)

    @property
    def live(self) -> bool:
        """Whether pages may still be fetched."""
        return not self.lost and self.ending is None

    @property
    def unpublished(self) -> int:
        """Records that the stream does not have for certain: of finished pages, and of the site's load."""
        return len(self.records) + (len(self.packed.records) if self.packed else 0)

    @property
    def untold(self) -> bool:
        """Whether it saw something of the site's load that is to be told before it goes."""
        return self.load is not None and self.load.tells

    @property
    def loads(self) -> bool:
        """Whether it was leased to be loaded, and not for another work."""
        return self.leased.work == "site"

    def add_found(self, paths: Iterable[str], depth: int, redirects: int = 0) -> int:
        """Links of the site, as written, into its frontier, but for those into a trap; how many new pages there were.

        `redirects` lead to them one behind the other. What another work finds is offered to loading.
        """
        if not self.loads:
            for path in paths:
                self.offers[path] = min(depth, self.offers.get(path, depth))
            return 0
        if self.redirects or self.cut_redirects:
            paths = list(paths)
            # Of a page's many links those in their canonical spelling will do, until something was cut off.
            exact = redirects or self.cut_redirects
            self._shorten(list(map(page_of, paths)) if exact else paths, redirects)
        return self.frontier.add(paths, depth, self.traps.leads_in if self.traps else None)

    def _shorten(self, paths: list[str], redirects: int) -> None:
        """No more redirects than these lead to the paths: what is behind them and was cut off goes on."""
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
        """Links of a copy of a page, which are tried. Of another work than loading none is followed."""
        if self.loads:
            self.frontier.add_of_copy(original, paths, depth, self.traps.leads_in if self.traps else None)

    def leave_out(self, reason: Reason, urls: Iterable[str]) -> None:
        """A bound leaves these URLs out: as `Frontier.leave_out`. Of another work than loading nothing is counted."""
        if self.loads:
            self.frontier.leave_out(reason, urls)

    def add_sitemaps(self, paths: Iterable[str], depth: int, indexes: int, redirects: int = 0) -> None:
        """Sitemaps of the site into its frontier, named behind so many indexes; known as such until they are loaded."""
        paths = list(paths)
        self.add_found(paths, depth, redirects)
        if self.loads:
            self.frontier.name_sitemaps(paths, indexes)

    def indexes_before(self, turn: Turn) -> int | None:
        """Behind how many indexes the page was named as a sitemap; None: it was not."""
        return 0 if turn.path in self.sitemaps else self.frontier.indexes_before(turn)

    def take_given(self, entries: Iterable[str]) -> list[str]:
        """Paths from outside into its frontier; the words of them that are no path."""
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
        """It may be another site, `first`, under a second name: it goes back after some pages, to be compared.

        After as many as it has by now, and some at least: a large site is not held up all the time.
        """
        if self.to_compare is None:
            self.to_compare = max(COMPARED_PAGES, self.frontier.published)
            if first:
                logger.info("%s may be %s under a second name: their pages are compared", self.site, first)

    def visit(self, seen: LoadSample) -> Visit:
        """The record of what it saw of the site's load in an hour."""
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
        """What is to be sent next: the same until `delivered`."""
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
        """The delivery of what `pack` gave; takes time for a large site, and touches nothing but its argument."""
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
        """The stream has what `pack` gave."""
        assert self.packed is not None
        if self.packed.root:
            self.root = ""
        self.paths_seen -= self.packed.given
        self.checkpointed = self.packed.whole
        self.packed = self.delivery = None

    def _checkpoint(self) -> tuple[Snapshot | None, bool]:
        if not self.loads:
            return None, False  # it has none
        if self.ending == "finished":
            return self.frontier.changes(), False  # the agent may die before it has left
        if self.ending is not None or self.frontier.wants_fold():
            return self.frontier.everything(), True
        return self.frontier.changes(), False
