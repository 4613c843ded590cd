"""The jobs of an agent other than crawling: select pages, handle responses.

Leases, robots.txt, delays and back-off work as for crawling. Input comes packed (crawler.queue.batches), output is
records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from scrapy.utils.misc import load_object

from crawler.records import Work as Name

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

    from crawler.agent.agent import Agent
    from crawler.agent.fetcher import PageFetcher
    from crawler.agent.frontier import Turn
    from crawler.agent.site_lease import SiteLease


class Work(Protocol):
    """One job of one agent. Its methods must not raise."""

    # Whether its sites come with a batch that a coordinator packs.
    packed: bool

    def __init__(self, agent: Agent, visits: PageFetcher) -> None: ...

    def begin(self, lease: SiteLease, packed: bytes) -> None:
        """Add paths to `lease.frontier`; without any, the site is returned."""

    def request(self, lease: SiteLease, turn: Turn, request: Request) -> Request:
        """Set method and headers."""

    def answered(self, lease: SiteLease, turn: Turn, response: Response) -> Any:
        """Handle a response of any status; its back-off is active.

        Call `visits.finish` or `visits.again`. The result goes to the engine, like a callback's.
        """

    def unanswered(
        self, lease: SiteLease, turn: Turn, status: int, error: str, times: dict[str, Any]
    ) -> None:
        """Handle an error (negative `status`) or a disallowed page.

        `times` is the request's meta with stage timings.
        """

    def shut(self, lease: SiteLease, status: int, error: str) -> None:
        """End every turn: the site is unavailable.

        No back-off is active if crawler.agent.politeness.shuts, or without a request.
        """

    def next_due(self, lease: SiteLease) -> float:
        """When the site is due again (server time, s); 0.0: not due."""


# A new job needs one file and one line here; its spider is a file in crawler/spiders.
CLASSES: dict[Name, str] = {
    "recheck": "crawler.agent.jobs.recheck.Recheck",
    "revive": "crawler.agent.jobs.recheck.Revive",
}


def make(name: Name, agent: Agent, visits: PageFetcher) -> Work:
    """The job of this name."""
    work: Work = load_object(CLASSES[name])(agent, visits)
    return work


def is_packed(name: Name) -> bool:
    """Whether this job's sites need a batch."""
    return name in CLASSES and bool(load_object(CLASSES[name]).packed)
