"""A slot: one leased site in this agent's hand, from lease to leave.

It knows its frontier, its robots rules, when it may next be asked, and what of it still has to be published.
It talks to nobody; crawler/agent/agent.py moves it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from crawler.agent.breaker import Row
from crawler.agent.frontier import encode
from crawler.records import Visit
from crawler.sites.queue import Delivery, Ending, read_entry

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable

    from scrapy import Request

    from crawler.agent.daily import SiteDay
    from crawler.agent.frontier import Frontier, Snapshot
    from crawler.agent.load import Seen, SiteLoad
    from crawler.agent.out_links import OutLinks
    from crawler.agent.overrides import Dress
    from crawler.agent.patience import SitePatience
    from crawler.agent.robots import Rules
    from crawler.agent.site_watch import SiteWatch
    from crawler.agent.traps import Traps
    from crawler.sites.asking import Asking
    from crawler.sites.queue import Leased
    from crawler.sites.windows import Window


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
    given: int  # entries of paths from outside that the snapshot has
    sends_back: bool  # the site is to be opened again for pages of the records


@dataclass(eq=False, slots=True)
class Slot:
    """One site in hand. Times are seconds of the event loop's clock unless said otherwise."""

    leased: Leased
    frontier: Frontier
    paths_seen: int  # entries of paths from outside that the frontier has taken in and the server still keeps
    dress: Dress  # what its requests wear
    least_delay: float  # seconds from one request's start to the next, whatever robots.txt says
    connections: int = 1  # requests at a time
    rules: Rules | None = None  # None: robots.txt is still to be read
    rules_read_at: float = 0.0
    robots_hop: str = ""  # where robots.txt was redirected to, still to be read
    robots_hops: int = 0
    delay: float = 0.0  # the same, with what robots.txt says; set with the rules
    sitemaps: frozenset[str] = frozenset()  # paths of those that robots.txt names; set with the rules
    window: Window | None = None  # in which pages may be fetched; set with the rules
    patience: SitePatience | None = None  # how long it is waited for; None: as long as the settings say
    traps: Traps | None = None  # None: they are not looked for
    # Paths that redirects of this site led to, and how many one behind the other; forgotten with the lease.
    redirects: dict[str, int] = field(default_factory=dict)
    day: SiteDay | None = None  # what it may still be asked for today; None: as much as one likes
    watch: SiteWatch | None = None  # what it sees of the site's health; None: nothing yet
    load: SiteLoad | None = None  # what it sees of the site's load; None: nothing yet
    started_at: float = 0.0  # of the last request
    due: float = 0.0  # its next turn; 0: it is not among the ready
    rests_until: float = 0.0  # nothing is sent before, whatever is due; only ever raised
    rests_until_ms: int = 0  # the same by the server's clock
    free_at_ms: int = (
        0  # by the server's clock, before which nobody asks the site once it was given back; set at its end
    )
    in_flight: int = 0
    parsing: int = (
        0  # pages of which the engine has not processed all that `parse` gave: it may yet give links
    )
    lost: bool = False  # the lease is another's: results are dropped
    ending: Ending | None = None  # not None: nothing more is fetched, leave when all is published
    due_ms: int = 0  # for an ending `later` or `returned`, server's time; 0: at once
    address: str = ""  # where the site's name led at the lease; empty: nowhere, or not asked
    root: str = ""  # address and checksum of the root page, once, to find aliases
    detail: str = ""  # the address for an ending `parked`, the first site for `alias`
    reason: str = ""
    out_links: OutLinks | None = None  # None: no page's links were looked at yet
    checkpointed: bool = False  # an ending slot's whole checkpoint was sent
    own_requests: deque[Request] | None = None  # a user's, and what middlewares put in another's place
    asking: Asking | None = None  # what recheck or revive asks of it, in the order of the frontier
    next_due_ms: int = 0  # when the site is due for that again, server's time; 0: not by what is known
    # Links of its own that another work than loading found, with their depth, to be offered to loading.
    offers: dict[str, int] = field(default_factory=dict)
    sends_back: bool = False  # pages of the records not yet packed are to be loaded again
    row: Row = field(default_factory=Row)  # URLs that failed since the last success, in this lease
    silent: set[tuple[str, int]] = field(default_factory=set)  # that gave no answer since the last one
    probing: bool = False  # a page that was loaded before is asked again: does the site work?
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

    def add_found(self, paths: Iterable[str], depth: int) -> int:
        """Links of the site into its frontier, but for those that lead into a trap; how many were new.

        What another work finds is offered to loading.
        """
        if not self.loads:
            self.offers.update(dict.fromkeys(paths, depth))
            return 0
        return self.frontier.add(paths, depth, self.traps.leads_in if self.traps else None)

    def take_given(self, entries: Iterable[str]) -> list[str]:
        """Paths from outside into its frontier; the words of them that are no path."""
        bad: list[str] = []
        for entry in entries:
            given = read_entry(entry)
            self.add_found(given.paths, given.depth)
            if given.redirects:
                self.redirects.update(dict.fromkeys(given.paths, given.redirects))
            self.paths_seen += 1
            bad += given.bad
        return bad

    def visit(self, seen: Seen) -> Visit:
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
            progress = (known, self.frontier.published, self.frontier.done_hash)
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
        if self.ending == "alias" or not self.loads:
            return None, False  # its checkpoint goes with the lease, or it has none
        if self.ending == "finished":
            return self.frontier.changes(), False  # the agent may die before it has left
        if self.ending is not None or self.frontier.wants_fold():
            return self.frontier.everything(), True
        return self.frontier.changes(), False
