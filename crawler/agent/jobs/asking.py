"""What recheck and revive share: pages that come packed are asked one by one, and what they say goes out as records."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from crawler import states
from crawler.agent.fetcher import note_headers, note_times
from crawler.agent.session import now_ms
from crawler.queue import batches
from crawler.queue.batches import AskingError
from crawler.records import Asked

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response

    from crawler.agent.agent import Agent
    from crawler.agent.fetcher import Visits
    from crawler.agent.frontier import Turn
    from crawler.agent.site_lease import Slot
    from crawler.queue.batches import AskedPage
    from crawler.records import Answer

logger = logging.getLogger("agent")

# What a server says that knows no HEAD.
NO_HEAD = (405, 501)
# When a site is due again whose asking cannot be read: packed by another version, it may be.
UNREADABLE_SECONDS = 60.0


class AskingWork:
    """One lease asks the pages of one asking; `Slot.asking` has it, in the order of the frontier's numbers."""

    packed = True

    def __init__(self, agent: Agent, visits: Visits) -> None:
        self._agent = agent
        self._visits = visits

    def begin(self, slot: Slot, packed: bytes) -> None:
        """Take in what was packed; of bytes that are none nothing is asked, and the next packing replaces them."""
        try:
            slot.asking = batches.unpack(packed)
        except AskingError as error:
            logger.warning("%s: what is to be asked cannot be read (%s)", slot.site, error)
            slot.next_due_ms = int((self._agent.session.server_time() + UNREADABLE_SECONDS) * 1000)
            return
        for page in slot.asking.pages:
            slot.frontier.add_page(page.path, page.asked or page.path, page.depth)
        slot.next_due_ms = slot.asking.next_due_ms

    def page(self, slot: Slot, turn: Turn) -> AskedPage:
        """What is known of the page whose turn it is."""
        assert slot.asking is not None
        return slot.asking.pages[turn.number]

    def unanswered(self, slot: Slot, turn: Turn, status: int, error: str, times: dict[str, Any]) -> None:
        """Silence is told; what we left out ourselves is a delay."""
        said: Answer = "delayed" if states.ask_event(status) == "delayed" else "silent"
        self.tell(slot, turn, said, status, meta=times, error=error)

    def shut(self, slot: Slot, status: int, error: str) -> None:
        """Where nobody answers at all, every page is silent: one question stands for them. An error is a delay."""
        said: Answer = "silent" if status < 0 and status not in states.OUR_OWN else "delayed"
        while turn := slot.frontier.take(float("inf")):
            self.tell(slot, turn, said, status, error=f"robots.txt: {error}")

    def next_due(self, slot: Slot) -> float:
        """When the first of its pages is due again."""
        return slot.next_due_ms / 1000

    def tell(
        self,
        slot: Slot,
        turn: Turn,
        answer: Answer,
        status: int,
        response: Response | None = None,
        meta: dict[str, Any] | None = None,
        error: str = "",
    ) -> None:
        """End the turn with this answer."""
        page = self.page(slot, turn)
        record = Asked(
            site=slot.site,
            path=turn.path,
            work=slot.leased.work,
            asked_at=now_ms(),
            before=page.state,
            answer=answer,
            status=status,
            error=error,
        )
        if response is not None:
            note_headers(record, response)
        note_times(record, (response.meta if response is not None else meta) or {})
        slot.sends_back |= answer in ("changed", "answers")
        self._agent.tell(slot, record)
        self.note_due(slot, page, answer)
        self._visits.finish(slot, turn)

    def note_due(self, slot: Slot, page: AskedPage, answer: Answer) -> None:
        """The site falls due with the first of its pages; what the tables make of the records may be a little later."""
        seconds = self.seconds_until_due(page, answer)
        if seconds is not None:
            due = int((self._agent.session.server_time() + seconds) * 1000)
            slot.next_due_ms = min(slot.next_due_ms or due, due)

    def seconds_until_due(self, page: AskedPage, answer: Answer) -> float | None:
        """When this work asks the page again after that answer; None: not at all."""
        raise NotImplementedError

    def again_by_get(self, slot: Slot, turn: Turn, request: Request | None) -> bool:
        """Ask once more where the server knows no HEAD; whether that is under way."""
        if request is None or request.method != "HEAD" or turn.tries > 1:
            return False
        self._visits.again(slot, turn, 0.0)
        return True
