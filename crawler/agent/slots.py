"""A slot: one leased site in this agent's hand, from lease to leave.

It knows its frontier, its robots rules, when it may next be asked, and what of it still has to be published.
It talks to nobody; crawler/agent/agent.py moves it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crawler.sites.queue import Delivery, Ending

if TYPE_CHECKING:
    from collections import deque

    from scrapy import Request

    from crawler.agent.frontier import Frontier
    from crawler.agent.robots import Rules
    from crawler.sites.queue import Leased


@dataclass(eq=False, slots=True)
class Slot:
    """One site in hand. Times are seconds of the event loop's clock unless said otherwise."""

    leased: Leased
    frontier: Frontier
    paths_seen: int  # paths given from outside that the frontier has taken in
    delay: float  # least seconds from one request's start to the next
    rules: Rules | None = None  # None: robots.txt is still to be read
    rules_read_at: float = 0.0
    robots_hops: int = 0
    started_at: float = 0.0  # of the last request
    due: float = 0.0
    in_flight: int = 0
    lost: bool = False  # the lease is another's: results are dropped
    ending: Ending | None = None  # not None: nothing more is fetched, leave when all is published
    due_ms: int = 0  # for an ending `later`, server's time
    parked_at: str = ""  # the address whose places are taken, for an ending `parked`
    reason: str = ""
    checkpointed: bool = False  # an ending slot's whole checkpoint was sent
    own_requests: deque[Request] | None = None  # a user's requests to this site
    seq: int = 0
    records: list[tuple[bytes, bytes]] = field(default_factory=list)  # finished, not yet sent
    delivery: Delivery | None = None  # sent or being sent, not yet acknowledged

    @property
    def site(self) -> str:
        """The site's name."""
        return self.leased.site

    @property
    def live(self) -> bool:
        """Whether pages may still be fetched."""
        return not self.lost and self.ending is None

    @property
    def unpublished(self) -> int:
        """Finished pages that the stream does not have for certain."""
        return len(self.records) + (len(self.delivery.records) if self.delivery else 0)

    def pack(self) -> Delivery:
        """What is to be sent next: the same bytes again until `delivered`."""
        if self.delivery is None:
            self.seq += 1
            delta, fold = self._checkpoint()
            self.delivery = Delivery(self.site, self.leased.token, self.seq, delta, fold, self.records)
            self.records = []
        return self.delivery

    def delivered(self) -> None:
        """The stream has what `pack` gave."""
        self.delivery = None
        self.checkpointed = self.ending is not None

    def _checkpoint(self) -> tuple[bytes, bool]:
        if self.ending == "finished":
            return b"", False  # its checkpoint goes with the lease
        if self.ending is not None or self.frontier.wants_fold():
            return self.frontier.whole(), True
        return self.frontier.delta(), False
