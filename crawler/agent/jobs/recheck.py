"""Jobs recheck (loaded pages that may have changed) and revive (unreachable pages)."""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from crawler import states
from crawler.agent.fetcher import note_headers, note_times
from crawler.agent.responses import REDIRECTS
from crawler.agent.session import now_ms
from crawler.queue import batches
from crawler.queue.batches import DIGEST_BYTES, BatchError
from crawler.records import RecheckResult

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

    from crawler.agent.agent import Agent
    from crawler.agent.fetcher import PageFetcher
    from crawler.agent.frontier import Turn
    from crawler.agent.site_lease import SiteLease
    from crawler.queue.batches import BatchPage
    from crawler.records import Answer


# --- Common to recheck and revive ---


logger = logging.getLogger("agent")

# Statuses of servers that do not support HEAD.
NO_HEAD = (405, 501)
# Retry of a site whose batch is unreadable, perhaps packed by another version.
UNREADABLE_SECONDS = 60.0


class PageRecheck:
    """Requests the pages of one batch, `SiteLease.batch`, in the frontier's order."""

    packed = True

    def __init__(self, agent: Agent, visits: PageFetcher) -> None:
        self._agent = agent
        self._visits = visits

    def begin(self, lease: SiteLease, packed: bytes) -> None:
        """Load the batch; an unreadable one is skipped."""
        try:
            lease.batch = batches.unpack(packed)
        except BatchError as error:
            logger.warning("site %s: unreadable batch (%s)", lease.site, error)
            lease.next_due_ms = int((self._agent.session.server_time() + UNREADABLE_SECONDS) * 1000)
            return
        for page in lease.batch.pages:
            lease.frontier.add_page(page.path, page.asked or page.path, page.depth)
        lease.next_due_ms = lease.batch.next_due_ms

    def page(self, lease: SiteLease, turn: Turn) -> BatchPage:
        """The batch entry of a turn."""
        assert lease.batch is not None
        return lease.batch.pages[turn.number]

    def unanswered(
        self, lease: SiteLease, turn: Turn, status: int, error: str, times: dict[str, Any]
    ) -> None:
        """Our own refusals count as delayed."""
        answer: Answer = "delayed" if states.ask_event(status) == "delayed" else "silent"
        self.tell(lease, turn, answer, status, meta=times, error=error)

    def shut(self, lease: SiteLease, status: int, error: str) -> None:
        """Publish one answer for all pages."""
        answer: Answer = "silent" if status < 0 and status not in states.OUR_OWN else "delayed"
        while turn := lease.frontier.take(float("inf")):
            self.tell(lease, turn, answer, status, error=f"robots.txt: {error}")

    def next_due(self, lease: SiteLease) -> float:
        """When its first page is due again."""
        return lease.next_due_ms / 1000

    def tell(
        self,
        lease: SiteLease,
        turn: Turn,
        answer: Answer,
        status: int,
        response: Response | None = None,
        meta: dict[str, Any] | None = None,
        error: str = "",
    ) -> None:
        """End the turn with this answer."""
        page = self.page(lease, turn)
        record = RecheckResult(
            site=lease.site,
            path=turn.path,
            work=lease.leased.work,
            asked_at=now_ms(),
            before=page.state,
            answer=answer,
            status=status,
            error=error,
        )
        if response is not None:
            note_headers(record, response)
        note_times(record, (response.meta if response is not None else meta) or {})
        lease.sends_back |= answer in ("changed", "answers")
        self._agent.tell(lease, record)
        self.note_due(lease, page, answer)
        self._visits.finish(lease, turn)

    def note_due(self, lease: SiteLease, page: BatchPage, answer: Answer) -> None:
        """The site is due with its first page."""
        seconds = self.seconds_until_due(page, answer)
        if seconds is not None:
            due = int((self._agent.session.server_time() + seconds) * 1000)
            lease.next_due_ms = min(lease.next_due_ms or due, due)

    def seconds_until_due(self, page: BatchPage, answer: Answer) -> float | None:
        """Returns None when the page is not requested again."""
        raise NotImplementedError

    def again_by_get(self, lease: SiteLease, turn: Turn, request: Request | None) -> bool:
        """Whether to retry with GET, since the server does not support HEAD."""
        if request is None or request.method != "HEAD" or turn.tries > 1:
            return False
        self._visits.again(lease, turn, 0.0)
        return True


class Recheck(PageRecheck):
    """Paper 001's active scanner: detects changes of loaded pages.

    With a conditional GET, changed pages are processed at once; after HEAD (RECHECK_METHOD) they go back to crawling.
    """

    def request(self, lease: SiteLease, turn: Turn, request: Request) -> Request:
        """HEAD, or a conditional GET."""
        page = self.page(lease, turn)
        if self._agent.options.recheck_method == "head" and turn.tries == 1:
            return request.replace(method="HEAD")
        if page.etag:
            request.headers["If-None-Match"] = page.etag
        if page.last_modified:
            request.headers["If-Modified-Since"] = page.last_modified
        return request

    def answered(self, lease: SiteLease, turn: Turn, response: Response) -> Any:
        """Compare validators, or else the body."""
        first = self._visits.first_answer(response)
        if first is not None or (response.status in REDIRECTS and self.page(lease, turn).loaded):
            if self._visits.passes_wall(lease, turn, response):
                return None
            response = first or response
        elif lease.walls is not None:
            lease.walls.answered(turn.path)
        status, request = response.status, response.request
        if status in NO_HEAD and self.again_by_get(lease, turn, request):
            return None
        if status in REDIRECTS:
            self.note_due(lease, self.page(lease, turn), "unchanged")
            self._visits.redirected(lease, turn, response)
            return None
        by_head = request is not None and request.method == "HEAD"
        if 200 <= status < 300 and not by_head and not self._is_same(lease, turn, response):
            self.note_due(lease, self.page(lease, turn), "unchanged")
            return self._visits.take_in(lease, turn, response)
        answer: Answer = "unchanged"
        if (event := states.ask_event(status)) in ("silent", "delayed"):
            answer = event
        elif 200 <= status < 300 and by_head:
            differs = _differs(self.page(lease, turn), response)
            if differs is None and self.again_by_get(lease, turn, request):
                return None
            answer = "changed" if differs else "unchanged"
        self.tell(lease, turn, answer, status, response)
        return None

    def _is_same(self, lease: SiteLease, turn: Turn, response: Response) -> bool:
        known = self.page(lease, turn).digest
        return bool(known) and sha256(response.body).digest()[:DIGEST_BYTES] == known

    def seconds_until_due(self, page: BatchPage, answer: Answer) -> float | None:  # noqa: ARG002
        """The interval, unless the page left this job."""
        return self._agent.options.recheck_interval_seconds if answer in ("unchanged", "delayed") else None


def _differs(page: BatchPage, response: Response) -> bool | None:
    """Returns None when the headers do not say."""
    known = {
        "ETag": page.etag,
        "Last-Modified": page.last_modified,
        "Content-Length": str(page.size) if page.size else "",
    }
    received = {name: (response.headers.get(name) or b"").decode("latin-1") for name in known}
    both = [name for name, value in known.items() if value and received[name]]
    # The length of a compressed body is not comparable.
    if response.headers.get("Content-Encoding") or response.meta.get("encoded"):
        both = [name for name in both if name != "Content-Length"]
    return any(known[name] != received[name] for name in both) if both else None


# --- Revive ---


class Revive(PageRecheck):
    """Paper 001's inactive scanner: retries unreachable pages with growing delays."""

    def request(self, lease: SiteLease, turn: Turn, request: Request) -> Request:
        """HEAD for pages loaded before."""
        by_head = self.page(lease, turn).loaded and turn.tries == 1
        return request.replace(method="HEAD") if by_head else request

    def answered(self, lease: SiteLease, turn: Turn, response: Response) -> Any:
        """Process pages never loaded before."""
        page, status = self.page(lease, turn), response.status
        if status in NO_HEAD and self.again_by_get(lease, turn, response.request):
            return None
        if not page.loaded and 200 <= status < 300:
            return self._visits.take_in(lease, turn, response)
        event = states.ask_event(status)
        answer: Answer = event if event in ("silent", "delayed") else "answers"
        self.tell(lease, turn, answer, status, response)
        return None

    def seconds_until_due(self, page: BatchPage, answer: Answer) -> float | None:
        """The same delay after "delayed", the next one after "silent"."""
        delays = self._agent.options.revive_delays
        if answer == "delayed":
            return states.delay_until_next(page.state, delays)
        if answer == "silent":
            return states.delay_until_next(states.after(page.state, "silent"), delays)
        return None
