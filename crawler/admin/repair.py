"""`scrapy queue repair`: schedules missing pages for the next crawl; idempotent.

Unknown sites are restored. Unfinished sites fetch missing pages; finished ones are crawled again, with pages of other
sites that may link to lost ones. Leased and just changed sites are skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from crawler import records
from crawler.admin.operator import rebuild
from crawler.reconcile import agreement
from crawler.reconcile.agreement import UNFINISHED
from crawler.reconcile.naming import Again, naming_pages
from crawler.reconcile.reopening import checkpoint_from_tables
from crawler.records import OperatorCommand, SiteEnded

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.queue.queue import SiteQueue
    from crawler.queue.sites import SiteRecord
    from crawler.reconcile.agreement import Account
    from crawler.records import OrderWord, Record
    from crawler.urls.scope import Scope


class Repaired(TypedDict):
    """Sites by what was done with them."""

    restored: list[str]  # added to the queue
    pages: dict[str, int]  # unfinished: number of pages to fetch again
    walked: list[str]  # crawled again from their stored pages
    from_root: list[str]  # crawled again from their root, without stored pages
    named: dict[str, int]  # other sites: number of pages to fetch again, which may link to lost ones
    lost: list[str]  # crawled again before, with pages still missing
    rewritten: list[str]  # their row of `sites` is in the results stream
    given_up: list[str]  # blocked, or named by the user: missing pages are not owed any more
    left: list[str]  # leased, or changed since


class Repair:
    """One run on a crawl's queue and tables."""

    def __init__(
        self,
        queue: SiteQueue,
        client: Any,
        engine: Engine,
        scope: Scope,
        settings: BaseSettings,
        options: Options,
    ) -> None:
        self._queue = queue
        self._client = client
        self._engine = engine
        self._scope = scope
        self._settings = settings
        self._options = options
        self._now_ms = 0  # start of the repair, by the Redis clock
        self._done = Repaired(
            restored=[],
            pages={},
            walked=[],
            from_root=[],
            named={},
            lost=[],
            rewritten=[],
            given_up=[],
            left=[],
        )
        self._since_ms: dict[str, int] = {}  # sites with missing pages, and when these were detected

    async def give_up(self, names: Collection[str]) -> Repaired:
        """Settles these sites' debts."""
        for site, text in (await self._queue.owed()).items():
            if site in names and await self._queue.settle(site, text):
                self._done["given_up"].append(site)
        return self._done

    async def run(self) -> Repaired:
        """Repairs all differences."""
        self._now_ms = int(await self._queue.server_seconds() * 1000)
        seen = await agreement.read_server(self._queue, self._client, self._options.key_prefix)
        accounts = await agreement.compare(self._queue, self._engine, seen, self._settings, self._options)
        unknown = [one.site for one in accounts if one.record is None]
        if unknown:
            await rebuild(self._queue, self._engine, self._scope, self._options, set(unknown))
            self._done["restored"] = unknown
        for account in accounts:
            if account.record is not None:
                await self._mend(account, account.record)
        await self._fetch_naming()
        return self._done

    async def _fetch_naming(self) -> None:
        """Schedules other sites' pages that may link to lost ones."""
        again = Again(self._queue, self._engine, self._options)
        for site, hashes in naming_pages(self._engine, self._since_ms).items():
            many = await again.fetch(site, hashes)
            if many is None:
                self._done["left"].append(site)
            elif many:
                self._done["named"][site] = many

    async def _mend(self, account: Account, record: SiteRecord) -> None:
        if account.row is None:
            await self._send_orders(record)
        if not account.pages_differ and account.lost is not None:
            self._since_ms[record.site] = account.lost.since_ms
            self._done["lost"].append(record.site)
        elif not account.pages_differ:
            await self._send_end(account, record)
        elif record.state in UNFINISHED:
            await self._fetch_missing(account, record)
        elif record.state == "blocked":
            mended = await self._queue.mend(record, b"", account.places.total(), account.hash)
            self._done["given_up" if mended else "left"].append(record.site)
        else:
            await self._walk_again(account, record)

    async def _fetch_missing(self, account: Account, record: SiteRecord) -> None:
        frontier = await agreement.frontier_of(self._queue, record.site, self._options)
        undone = frontier.undo(account.missing)
        if await self._queue.mend(record, frontier.whole(), frontier.published, frontier.done_hash):
            self._done["pages"][record.site] = undone
        else:
            self._done["left"].append(record.site)

    async def _walk_again(self, account: Account, record: SiteRecord) -> None:
        lost = agreement.lost_of(account, self._now_ms).and_before(account.lost)
        checkpoint = checkpoint_from_tables(self._engine, record.site, again=True)
        if not await self._queue.mend(record, checkpoint or b"", 0, 0, owed=lost.text):
            self._done["left"].append(record.site)
            return
        self._since_ms[record.site] = self._now_ms
        self._done["walked" if checkpoint else "from_root"].append(record.site)

    async def _send_end(self, account: Account, record: SiteRecord) -> None:
        """Sends the site's end or alias for its row."""
        alias = (await self._queue.details(record.site))["why"] if record.state == "alias" else ""
        if record.state in ("finished", "alias"):
            owed = account.owed
            end = SiteEnded(
                site=record.site,
                ended_at=self._now_ms,
                finished=True,
                published=owed.done,
                known=owed.accepted,
                over_budget=owed.over_budget,
                left_out=dict(owed.left_out),
                alias_of=alias,
            )
            await self._send(end)
        self._done["rewritten"].append(record.site)

    async def _send_orders(self, record: SiteRecord) -> None:
        """Sends the operator's commands for the site."""
        details = await self._queue.details(record.site)
        commands: dict[OrderWord, bool] = {"block": record.state == "blocked", "pause": record.paused}
        for command in (command for command, is_given in commands.items() if is_given):
            await self._send(
                OperatorCommand(
                    site=record.site, ordered_at=self._now_ms, order=command, reason=details["why"]
                )
            )
        if (budget := details["budget"]) is not None:
            await self._send(
                OperatorCommand(site=record.site, ordered_at=self._now_ms, order="budget", pages=budget)
            )

    async def _send(self, record: Record) -> None:
        await self._queue.tell([records.encode(record)])


_LOST = (
    "were crawled again, and lost pages are still missing. Unless other sites link to them (above), add their URLs "
    "as seeds, or give them up: scrapy queue repair --give-up SITE"
)


def in_words(done: Repaired) -> list[str]:
    """A line for each kind of repair; empty if queue and tables agree."""
    pages = sum(done["pages"].values())
    found = [
        ("are restored to the queue from the tables", done["restored"]),
        (f"get {pages:,} missing pages fetched again", list(done["pages"])),
        ("are crawled again from their stored pages", done["walked"]),
        ("are crawled again from their root, without stored pages", done["from_root"]),
        (
            f"have {sum(done['named'].values()):,} pages that may link to lost pages and are fetched again",
            list(done["named"]),
        ),
        (_LOST, done["lost"]),
        ("had no row in table sites, or an older one; it is sent to the coordinators", done["rewritten"]),
        ("have missing pages that are given up", done["given_up"]),
        ("are skipped, since they are leased or have just changed; run the repair again later", done["left"]),
    ]
    return [f"{_named(names)} {what}" for what, names in found if names]


def _named(names: list[str]) -> str:
    shown = ", ".join(names[: agreement.NAMED])
    more = len(names) - agreement.NAMED
    return f"{len(names):,} sites ({shown}{f' and {more:,} more' if more > 0 else ''})"
