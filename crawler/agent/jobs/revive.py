"""Revive (paper 001's inactive scanner): asks pages that did not answer, after growing delays; they revive or die.

One that was loaded before is asked by HEAD, and by GET where the server knows no HEAD. One that never was is asked by
GET, and what comes is taken in as by loading: so it goes through Init in one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crawler import states
from crawler.agent.jobs.asking import NO_HEAD, AskingWork

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

    from crawler.agent.frontier import Turn
    from crawler.agent.site_lease import Slot
    from crawler.queue.batches import AskedPage
    from crawler.records import Answer


class Revive(AskingWork):
    """Whether silent pages answer again."""

    def request(self, slot: Slot, turn: Turn, request: Request) -> Request:
        """HEAD, where it is enough to know that the page is there."""
        by_head = self.page(slot, turn).loaded and turn.tries == 1
        return request.replace(method="HEAD") if by_head else request

    def answered(self, slot: Slot, turn: Turn, response: Response) -> Any:
        """A body of a page that was never loaded is taken in; else what its status says is told."""
        page, status = self.page(slot, turn), response.status
        if status in NO_HEAD and self.again_by_get(slot, turn, response.request):
            return None
        if not page.loaded and 200 <= status < 300:
            return self._visits.take_in(slot, turn, response)
        said = states.ask_event(status)
        answer: Answer = said if said in ("silent", "delayed") else "answers"
        self.tell(slot, turn, answer, status, response)
        return None

    def seconds_until_due(self, page: AskedPage, answer: Answer) -> float | None:
        """A delay is waited for as long as the last one; a second silence is followed by the longer one."""
        delays = self._agent.options.revive_delays
        if answer == "delayed":
            return states.delay_until_next(page.state, delays)
        if answer == "silent":
            return states.delay_until_next(states.after(page.state, "silent"), delays)
        return None
