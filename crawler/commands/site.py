"""`scrapy site`: show sites, send commands to them."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from crawler.command import LowtideCommand, print_json
from crawler.printable import printable

if TYPE_CHECKING:
    import argparse

    from crawler.queue.queue import SiteQueue

ORDERS = ("pause", "resume", "block")
DONE = {"pause": "paused", "resume": "resumed", "block": "blocked"}
# Names of the states in `scrapy queue show`.
STATE_NAMES = ("waiting", "suspended", "leased", "later", "paused", "finished", "alias", "blocked")


class Command(LowtideCommand):
    def syntax(self) -> str:
        return (
            "list | show SITE … | pause SITE … | resume SITE … | block SITE … | forget SITE … | "
            "budget SITE PAGES|default"
        )

    def short_desc(self) -> str:
        return "List sites, show one, pause, resume, block or forget it, set its page budget"

    def long_desc(self) -> str:
        return (
            "Show sites and send commands to them. SITE is a URL or a host. Commands take effect within "
            "LEASE_SECONDS / 3. pause keeps the site's queue, block drops it, forget also deletes its pages. resume "
            "undoes pause and block and ends a back-off. budget sets the site's page limit (0: no limit; default: "
            "MAX_PAGES_PER_SITE)."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "--state",
            default="",
            metavar="STATE",
            help=f"list: only sites in this state ({', '.join(STATE_NAMES)})",
        )
        parser.add_argument(
            "--most", type=int, default=50, metavar="N", help="list: at most N (default 50; 0 all)"
        )
        parser.add_argument("--reason", default="", help="pause, block: the reason; shown by `site show`")
        parser.add_argument("--json", action="store_true", help="print the result as JSON")

    def work(self, args: list[str], opts: argparse.Namespace) -> None:
        from crawler.local.local import joined, names_tables

        word, names = (args[0], args[1:]) if args else ("list", [])
        self._check(word, names, opts)
        assert self.settings is not None
        self._has_tables = names_tables(self.settings, self.options)
        with joined(self.settings, self.options, changes=word not in ("list", "show")):
            asyncio.run(self._do(word, names, opts))

    def _check(self, word: str, names: list[str], opts: argparse.Namespace) -> None:
        counts = {"list": range(1), "budget": range(2, 3)}.get(word, range(1, sys.maxsize))
        if word not in ("list", "show", "forget", "budget", *ORDERS) or len(names) not in counts:
            raise UsageError(f"expected {self.syntax()}", print_help=False)
        if opts.state and opts.state not in STATE_NAMES:
            raise UsageError(
                f"--state is {opts.state!r}; expected one of {', '.join(STATE_NAMES)}", print_help=False
            )
        if opts.most < 0:
            raise UsageError(f"--most is {opts.most}; expected a number, 0 for all", print_help=False)
        if word == "budget" and names[1] != "default" and not (names[1].isascii() and names[1].isdigit()):
            raise UsageError(
                f"PAGES is {names[1]!r}; expected a whole number, 0 for no limit, or default",
                print_help=False,
            )

    async def _do(self, word: str, names: list[str], opts: argparse.Namespace) -> None:
        from crawler.admin import operator

        assert self.settings is not None
        async with operator.the_queue(self.settings, self.options) as queue:
            if word == "list":
                await self._list(queue, opts)
            elif word == "budget":
                await self._budget(queue, *names, as_json=opts.json)
            else:
                # Check all names before changing any site.
                sites = [(await operator.known_site(queue, name)).site for name in names]
                if word == "show":
                    await self._show(queue, sites, opts)
                elif word == "forget":
                    await self._forget(queue, sites, as_json=opts.json)
                else:
                    await self._order(queue, sites, word, opts)

    async def _show(self, queue: SiteQueue, sites: list[str], opts: argparse.Namespace) -> None:
        from crawler.admin import operator

        if not self._has_tables:
            print("DATABASE_URL is empty: figures of the tables are left out", file=sys.stderr)
        engine = operator.the_tables(self.options) if self._has_tables else None
        found = [await operator.show_site(queue, site, engine) for site in sites]
        if opts.json:
            print_json(found[0] if len(found) == 1 else found)
            return
        for number, figures in enumerate(found):
            if number:
                print()
            self._print(figures)

    async def _order(self, queue: SiteQueue, sites: list[str], word: str, opts: argparse.Namespace) -> None:
        from crawler.admin import operator

        results = []
        for site in sites:
            _, before = await operator.order_site(queue, site, word, opts.reason)  # type: ignore[arg-type]
            done = DONE[word]
            record = await queue.record(site)
            if word == "resume" and record is not None and record.state == "later" and not record.agent:
                await queue.plan_work(site, "site", int(time.time() * 1000))
                done += ", due now"
            results.append({"site": site, "done": done, "before": before})
            if not opts.json:
                print(f"{site}: {done}; it was {before}")
        if opts.json:
            print_json(results)

    async def _forget(self, queue: SiteQueue, sites: list[str], *, as_json: bool) -> None:
        from crawler.admin import operator

        engine = operator.the_tables(self.options) if self._has_tables else None
        results = []
        for site in sites:
            _, deleted = await operator.forget_site(queue, site, engine)
            pages = (
                f", and {deleted} pages with it"
                if self._has_tables
                else "; DATABASE_URL is empty, so its pages go when a coordinator has stored the order"
            )
            results.append(
                {"site": site, "done": "forgotten", "pages": deleted if self._has_tables else None}
            )
            if not as_json:
                print(f"{site} is forgotten{pages}")
        if as_json:
            print_json(results)

    async def _list(self, queue: SiteQueue, opts: argparse.Namespace) -> None:
        from crawler.admin import operator

        found = await operator.list_sites(queue, opts.state, opts.most)
        aliases = await operator.aliases(queue, found)
        if opts.json:
            print_json([record._asdict() | {"alias_of": aliases.get(record.site, "")} for record in found])
            return
        if not found:
            print(f"no site is {opts.state}" if opts.state else "no site is known yet", file=sys.stderr)
        for record in found:
            marks = " paused" if record.paused else ""
            holder = f" held by {record.agent} for {record.work}" if record.agent else ""
            figures = f"{record.done}/{record.known}" if record.known else "-"
            state = "leased" if record.agent else record.state
            if record.site in aliases:
                marks += f" is {aliases[record.site]}; {record.known - record.done} URLs not fetched"
            print(f"{state:<10} {record.address or '-':<16} {figures:>11} {record.site}{marks}{holder}")

    @staticmethod
    async def _budget(queue: SiteQueue, name: str, most: str, *, as_json: bool) -> None:
        from crawler.admin import operator

        pages = None if most == "default" else int(most)
        site = await operator.set_budget(queue, name, pages)
        if as_json:
            print_json({"site": site, "budget": pages})
            return
        limit = "MAX_PAGES_PER_SITE again" if pages is None else f"{pages} pages" if pages else "no limit"
        print(f"{site}: {limit}, from its next lease on")

    @staticmethod
    def _print(figures: dict[str, Any]) -> None:
        if figures["agent"]:
            figures = {**figures, "state": "leased"}
        for name, value in figures.items():
            if name == "due_ms":
                for work, due in value.items():
                    print(f"{'due for ' + work:<16} {_moment(due)}")
            elif name.endswith("_at") and value:
                print(f"{name:<16} {_moment(value)}")
            elif value not in (None, "", False):
                print(f"{name:<16} {printable(str(value))}")


def _moment(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms / 1000))
