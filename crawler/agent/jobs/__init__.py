"""The works beside loading: one file says what a work asks of a leased site, and what it makes of the answers.

All that holds for loading holds for them: lease and token, robots.txt, the pause between two requests, rests, the
address guard, the outbox with its spool. A work fills a slot's frontier with the pages it wants asked, dresses each
request, and is given the answer or the error; it ends each turn, or sets it back for another try. It opens no database:
what it must know of pages comes packed (crawler.queue.batches), and what it learns goes out as records.
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
    """One work of one agent. Whatever it is called with belongs to a slot of its own; nothing here may raise."""

    # Whether its sites come with an asking: then none is leased before a coordinator has packed one.
    packed: bool

    def __init__(self, agent: Agent, visits: PageFetcher) -> None: ...

    def begin(self, lease: SiteLease, packed: bytes) -> None:
        """A site was leased: put the paths to ask into `lease.frontier`; none, and it goes back at once."""

    def request(self, lease: SiteLease, turn: Turn, request: Request) -> Request:
        """The page's request as this work wants it sent: method, headers."""

    def answered(self, lease: SiteLease, turn: Turn, response: Response) -> Any:
        """An answer of any status came; where it asks for a rest, the site rests already.

        Ends the turn (`visits.finish`) or gives it another (`visits.again`). What it returns goes to the engine, as
        from a spider's callback.
        """

    def unanswered(
        self, lease: SiteLease, turn: Turn, status: int, error: str, times: dict[str, Any]
    ) -> None:
        """No answer came (`status` is negative: crawler.fetch.errors), or robots.txt forbids the page.

        `times` is the meta of the request, with the times of the stages it came through. Ends the turn as above.
        """

    def shut(self, lease: SiteLease, status: int, error: str) -> None:
        """robots.txt could not be had, so no page may be asked, or nobody answers there any more: ends every turn.

        The site's rest has begun already, but where the site gave no answer, or no whole one
        (crawler.agent.politeness.shuts), or no request can be made: there is none then.
        """

    def next_due(self, lease: SiteLease) -> float:
        """When the site is due for this work again, by the server's clock in seconds; 0.0: not by this lease."""


# A new work is one file and one line; its spider is a file in crawler/spiders.
CLASSES: dict[Name, str] = {
    "recheck": "crawler.agent.jobs.recheck.Recheck",
    "revive": "crawler.agent.jobs.recheck.Revive",
}


def make(name: Name, agent: Agent, visits: PageFetcher) -> Work:
    """The work of this name for one agent."""
    work: Work = load_object(CLASSES[name])(agent, visits)
    return work


def is_packed(name: Name) -> bool:
    """Whether sites are leased for this work only with an asking."""
    return name in CLASSES and bool(load_object(CLASSES[name]).packed)
