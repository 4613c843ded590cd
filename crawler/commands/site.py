"""`scrapy site`: look at single sites and give them orders."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from crawler.command import CommandError, LowtideCommand, print_json

if TYPE_CHECKING:
    import argparse

    from crawler.sites.queue import SiteQueue

ORDERS = ("pause", "resume", "block")
DONE = {"pause": "paused", "resume": "resumed", "block": "blocked"}


class Command(LowtideCommand):
    def syntax(self) -> str:
        return "list | show SITE | pause SITE | resume SITE | block SITE | forget SITE | budget SITE [PAGES]"

    def short_desc(self) -> str:
        return "List sites, show one, pause, resume, block or forget it, set its page budget"

    def long_desc(self) -> str:
        return (
            "Look at sites and give them orders. SITE is a URL or a host. A running crawl obeys within a third of "
            "LEASE_SECONDS: pause keeps what is left of a site, block drops it, forget removes its pages too."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "--state", default="", help="list: only sites in this state (waiting, later, paused, held …)"
        )
        parser.add_argument(
            "--most", type=int, default=50, metavar="N", help="list: at most N (default 50; 0 all)"
        )
        parser.add_argument("--reason", default="", help="pause, block: why; shown by `site show`")
        parser.add_argument("--json", action="store_true", help="print figures as JSON")

    def work(self, args: list[str], opts: argparse.Namespace) -> None:
        from redis.exceptions import RedisError

        from crawler.store.database import DatabaseError
        from crawler.store.joining import joined
        from crawler.store.operating import OperationError
        from crawler.store.server import ServerError

        word = args[0] if args else "list"
        if word not in ("list", "show", "forget", "budget", *ORDERS) or (word != "list" and len(args) < 2):
            raise UsageError(f"wanted {self.syntax()}", print_help=False)
        assert self.settings is not None
        try:
            with joined(self.settings, self.options):
                asyncio.run(self._do(word, args[1:], opts))
        except (OperationError, RedisError, DatabaseError, ServerError) as error:
            raise CommandError(str(error)) from None

    async def _do(self, word: str, args: list[str], opts: argparse.Namespace) -> None:
        from crawler.store import operating

        assert self.settings is not None
        async with operating.the_queue(self.settings, self.options) as queue:
            if word == "list":
                await self._list(queue, opts)
            elif word == "show":
                self._print(
                    await operating.show_site(queue, args[0], operating.the_tables(self.options)), opts
                )
            elif word == "budget":
                await self._budget(queue, args)
            elif word == "forget":
                site, gone = await operating.forget_site(queue, args[0], operating.the_tables(self.options))
                print(f"{site} is forgotten, and {gone} pages with it")
            else:
                site, before = await operating.order_site(queue, args[0], word, opts.reason)  # type: ignore[arg-type]
                print(f"{site}: {DONE[word]}; it was {before}")

    async def _list(self, queue: SiteQueue, opts: argparse.Namespace) -> None:
        from crawler.store import operating

        found = await operating.list_sites(queue, opts.state, opts.most)
        if opts.json:
            print_json([record._asdict() for record in found])
            return
        if not found:
            print(f"no site is {opts.state}" if opts.state else "no site is known yet", file=sys.stderr)
        for record in found:
            marks = " paused" if record.paused else ""
            holder = f" held by {record.agent} for {record.work}" if record.agent else ""
            print(f"{record.state:<10} {record.address or '-':<16} {record.site}{marks}{holder}")

    @staticmethod
    async def _budget(queue: SiteQueue, args: list[str]) -> None:
        from crawler.store import operating

        if len(args) > 1 and not args[1].isdigit():
            raise CommandError(
                f"PAGES is {args[1]!r}; wanted a whole number, 0 for no limit, or nothing to take it back"
            )
        pages = int(args[1]) if len(args) > 1 else None
        site = await operating.set_budget(queue, args[0], pages)
        told = "MAX_PAGES_PER_SITE again" if pages is None else f"{pages} pages" if pages else "no limit"
        print(f"{site}: {told}, from its next lease on")

    @staticmethod
    def _print(figures: dict[str, Any], opts: argparse.Namespace) -> None:
        if opts.json:
            print_json(figures)
            return
        for name, value in figures.items():
            if name == "due_ms":
                for work, due in value.items():
                    print(f"{'due for ' + work:<16} {_moment(due)}")
            elif name.endswith("_at") and value:
                print(f"{name:<16} {_moment(value)}")
            elif value not in (None, "", False):
                print(f"{name:<16} {value}")


def _moment(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))
