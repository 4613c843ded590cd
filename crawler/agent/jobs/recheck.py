"""Recheck (paper 001's active scanner): asks loaded pages whether they have changed.

By conditional GET: what has not changed answers 304 without a body, or with the very same one, and what has is taken in
at once, by the page pipelines. By HEAD where RECHECK_METHOD says so: a page whose ETag, Last-Modified or Content-Length
is another is sent back to loading. Where a page has none of these, GET brings it and the body decides.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

from crawler import states
from crawler.agent.jobs.asking import NO_HEAD, AskingWork
from crawler.agent.responses import REDIRECTS
from crawler.queue.batches import DIGEST_BYTES

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

    from crawler.agent.frontier import Turn
    from crawler.agent.site_lease import Slot
    from crawler.queue.batches import AskedPage
    from crawler.records import Answer


class Recheck(AskingWork):
    """Whether loaded pages are still what they were."""

    def request(self, slot: Slot, turn: Turn, request: Request) -> Request:
        """HEAD, or a GET that says what we have."""
        page = self.page(slot, turn)
        if self._agent.options.recheck_method == "head" and turn.tries == 1:
            return request.replace(method="HEAD")
        if page.etag:
            request.headers["If-None-Match"] = page.etag
        if page.last_modified:
            request.headers["If-Modified-Since"] = page.last_modified
        return request

    def answered(self, slot: Slot, turn: Turn, response: Response) -> Any:
        """Changed or not, by the validators; without any, by the body."""
        first = self._visits.first_answer(response)
        if first is not None or (response.status in REDIRECTS and self.page(slot, turn).loaded):
            if self._visits.passes_wall(slot, turn, response):
                return None
            response = first or response
        elif slot.walls is not None:
            slot.walls.answered(turn.path)
        status, request = response.status, response.request
        if status in NO_HEAD and self.again_by_get(slot, turn, request):
            return None
        if status in REDIRECTS:
            self.note_due(slot, self.page(slot, turn), "unchanged")
            self._visits.redirected(slot, turn, response)
            return None
        by_head = request is not None and request.method == "HEAD"
        if 200 <= status < 300 and not by_head and not self._is_same(slot, turn, response):
            self.note_due(slot, self.page(slot, turn), "unchanged")
            return self._visits.take_in(slot, turn, response)
        answer: Answer = "unchanged"
        if (said := states.ask_event(status)) in ("silent", "delayed"):
            answer = said
        elif 200 <= status < 300 and by_head:
            differs = _differs(self.page(slot, turn), response)
            if differs is None and self.again_by_get(slot, turn, request):
                return None
            answer = "changed" if differs else "unchanged"
        self.tell(slot, turn, answer, status, response)
        return None

    def _is_same(self, slot: Slot, turn: Turn, response: Response) -> bool:
        """Whether the body is byte for byte the one we have."""
        known = self.page(slot, turn).digest
        return bool(known) and sha256(response.body).digest()[:DIGEST_BYTES] == known

    def seconds_until_due(self, page: AskedPage, answer: Answer) -> float | None:  # noqa: ARG002
        """After the interval, but for pages that are revive's or loading's now."""
        return self._agent.options.recheck_interval_seconds if answer in ("unchanged", "delayed") else None


def _differs(page: AskedPage, response: Response) -> bool | None:
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
