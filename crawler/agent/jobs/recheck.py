"""Recheck (paper 001's active scanner): asks loaded pages whether they have changed.

By conditional GET: what has not changed answers 304 without a body, or with the very same one, and what has is taken in
at once, by the page pipelines. By HEAD where RECHECK_METHOD says so: a page whose ETag, Last-Modified or Content-Length
is another is sent back to loading. Where a page has none of these, GET brings it and the body decides.
"""

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


# ------------------------------------------------------------------------------------------------------------
# What recheck and revive share: pages that come packed are asked one by one, and what they say goes out as records.


logger = logging.getLogger("agent")

# What a server says that knows no HEAD.
NO_HEAD = (405, 501)
# When a site is due again whose asking cannot be read: packed by another version, it may be.
UNREADABLE_SECONDS = 60.0


class PageRecheck:
    """One lease asks the pages of one asking; `SiteLease.batch` has it, in the order of the frontier's numbers."""

    packed = True

    def __init__(self, agent: Agent, visits: PageFetcher) -> None:
        self._agent = agent
        self._visits = visits

    def begin(self, lease: SiteLease, packed: bytes) -> None:
        """Take in what was packed; of bytes that are none nothing is asked, and the next packing replaces them."""
        try:
            lease.batch = batches.unpack(packed)
        except BatchError as error:
            logger.warning("%s: what is to be asked cannot be read (%s)", lease.site, error)
            lease.next_due_ms = int((self._agent.session.server_time() + UNREADABLE_SECONDS) * 1000)
            return
        for page in lease.batch.pages:
            lease.frontier.add_page(page.path, page.asked or page.path, page.depth)
        lease.next_due_ms = lease.batch.next_due_ms

    def page(self, lease: SiteLease, turn: Turn) -> BatchPage:
        """What is known of the page whose turn it is."""
        assert lease.batch is not None
        return lease.batch.pages[turn.number]

    def unanswered(
        self, lease: SiteLease, turn: Turn, status: int, error: str, times: dict[str, Any]
    ) -> None:
        """Silence is told; what we left out ourselves is a delay."""
        said: Answer = "delayed" if states.ask_event(status) == "delayed" else "silent"
        self.tell(lease, turn, said, status, meta=times, error=error)

    def shut(self, lease: SiteLease, status: int, error: str) -> None:
        """Where nobody answers at all, every page is silent: one question stands for them. An error is a delay."""
        said: Answer = "silent" if status < 0 and status not in states.OUR_OWN else "delayed"
        while turn := lease.frontier.take(float("inf")):
            self.tell(lease, turn, said, status, error=f"robots.txt: {error}")

    def next_due(self, lease: SiteLease) -> float:
        """When the first of its pages is due again."""
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
        """The site falls due with the first of its pages; what the tables make of the records may be a little later."""
        seconds = self.seconds_until_due(page, answer)
        if seconds is not None:
            due = int((self._agent.session.server_time() + seconds) * 1000)
            lease.next_due_ms = min(lease.next_due_ms or due, due)

    def seconds_until_due(self, page: BatchPage, answer: Answer) -> float | None:
        """When this work asks the page again after that answer; None: not at all."""
        raise NotImplementedError

    def again_by_get(self, lease: SiteLease, turn: Turn, request: Request | None) -> bool:
        """Ask once more where the server knows no HEAD; whether that is under way."""
        if request is None or request.method != "HEAD" or turn.tries > 1:
            return False
        self._visits.again(lease, turn, 0.0)
        return True


class Recheck(PageRecheck):
    """Whether loaded pages are still what they were."""

    def request(self, lease: SiteLease, turn: Turn, request: Request) -> Request:
        """HEAD, or a GET that says what we have."""
        page = self.page(lease, turn)
        if self._agent.options.recheck_method == "head" and turn.tries == 1:
            return request.replace(method="HEAD")
        if page.etag:
            request.headers["If-None-Match"] = page.etag
        if page.last_modified:
            request.headers["If-Modified-Since"] = page.last_modified
        return request

    def answered(self, lease: SiteLease, turn: Turn, response: Response) -> Any:
        """Changed or not, by the validators; without any, by the body."""
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
        if (said := states.ask_event(status)) in ("silent", "delayed"):
            answer = said
        elif 200 <= status < 300 and by_head:
            differs = _differs(self.page(lease, turn), response)
            if differs is None and self.again_by_get(lease, turn, request):
                return None
            answer = "changed" if differs else "unchanged"
        self.tell(lease, turn, answer, status, response)
        return None

    def _is_same(self, lease: SiteLease, turn: Turn, response: Response) -> bool:
        """Whether the body is byte for byte the one we have."""
        known = self.page(lease, turn).digest
        return bool(known) and sha256(response.body).digest()[:DIGEST_BYTES] == known

    def seconds_until_due(self, page: BatchPage, answer: Answer) -> float | None:  # noqa: ARG002
        """After the interval, but for pages that are revive's or loading's now."""
        return self._agent.options.recheck_interval_seconds if answer in ("unchanged", "delayed") else None


def _differs(page: BatchPage, response: Response) -> bool | None:
    """Whether the head tells of another body than the one we have; None: it does not say."""
    told = {
        "ETag": page.etag,
        "Last-Modified": page.last_modified,
        "Content-Length": str(page.size) if page.size else "",
    }
    said = {name: (response.headers.get(name) or b"").decode("latin-1") for name in told}
    both = [name for name, known in told.items() if known and said[name]]
    # The length of a compressed body says nothing of ours.
    if response.headers.get("Content-Encoding") or response.meta.get("encoded"):
        both = [name for name in both if name != "Content-Length"]
    return any(told[name] != said[name] for name in both) if both else None


# ------------------------------------------------------------------------------------------------------------
# Revive (paper 001's inactive scanner): asks pages that did not answer, after growing delays; they revive or die.
#
# One that was loaded before is asked by HEAD, and by GET where the server knows no HEAD. One that never was is asked
# by GET, and what comes is taken in as by loading: so it goes through Init in one step.


class Revive(PageRecheck):
    """Whether silent pages answer again."""

    def request(self, lease: SiteLease, turn: Turn, request: Request) -> Request:
        """HEAD, where it is enough to know that the page is there."""
        by_head = self.page(lease, turn).loaded and turn.tries == 1
        return request.replace(method="HEAD") if by_head else request

    def answered(self, lease: SiteLease, turn: Turn, response: Response) -> Any:
        """A body of a page that was never loaded is taken in; else what its status says is told."""
        page, status = self.page(lease, turn), response.status
        if status in NO_HEAD and self.again_by_get(lease, turn, response.request):
            return None
        if not page.loaded and 200 <= status < 300:
            return self._visits.take_in(lease, turn, response)
        said = states.ask_event(status)
        answer: Answer = said if said in ("silent", "delayed") else "answers"
        self.tell(lease, turn, answer, status, response)
        return None

    def seconds_until_due(self, page: BatchPage, answer: Answer) -> float | None:
        """A delay is waited for as long as the last one; a second silence is followed by the longer one."""
        delays = self._agent.options.revive_delays
        if answer == "delayed":
            return states.delay_until_next(page.state, delays)
        if answer == "silent":
            return states.delay_until_next(states.after(page.state, "silent"), delays)
        return None
