"""`scrapy queue`: show, repair, rebuild, reset; redis-cli."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from crawler.command import CommandError, LowtideCommand, print_json

if TYPE_CHECKING:
    import argparse

    from sqlalchemy import Engine

    from crawler.admin.operator import Rebuilt
    from crawler.admin.repair import Repaired
    from crawler.queue.queue import SiteQueue


class Command(LowtideCommand):
    def syntax(self) -> str:
        return "show | repair [--give-up SITE] | rebuild | reset --yes [--force] | cli [COMMAND …]"

    def short_desc(self) -> str:
        return "Show the site queue, repair or rebuild it from the tables, reset it, or open its redis-cli"

    def long_desc(self) -> str:
        return (
            "show: how many sites wait, and what each agent holds. repair: where queue and tables differ, as `scrapy "
            "report ledger` shows, the next crawl fetches what is missing. It may run while agents work. What cannot "
            "be found again stays missing until it is given up. rebuild: restore a lost queue from the tables, with "
            "pauses, blocks and budgets. It needs the SCOPE of the crawl; add seeds that were not fetched yet again. "
            "reset: delete every key of this crawl from Redis, if no agent works on it; the tables stay. "
            "cli: a redis-cli on the crawl's server, also the bundled one."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "--json", action="store_true", help="show, repair, rebuild: print figures as JSON"
        )
        parser.add_argument(
            "--give-up",
            action="append",
            default=[],
            metavar="SITE",
            help="repair: give up what SITE lost (all: what any site lost); nothing else is repaired",
        )
        parser.add_argument("--yes", action="store_true", help="reset: do it")
        parser.add_argument("--force", action="store_true", help="reset: also while agents work on it")

    def check_words(self, args: list[str]) -> None:
        """Arguments after `cli` belong to redis-cli."""
        if args[:1] != ["cli"]:
            super().check_words(args)

    def work(self, args: list[str], opts: argparse.Namespace) -> int:
        from crawler.local.local import joined, require_tables

        word = args[0] if args else "show"
        doings = {
            "show": self._show,
            "repair": self._repair,
            "rebuild": self._rebuild,
            "reset": self._reset,
            "cli": self._cli,
        }
        if word not in doings:
            raise UsageError(f"expected {self.syntax()}", print_help=False)
        if word == "reset" and not opts.yes:
            raise CommandError("reset removes the queue and all results not yet stored; expected --yes")
        assert self.settings is not None
        if word in ("repair", "rebuild"):
            require_tables(self.settings, self.options)
        with joined(self.settings, self.options, changes=word in ("repair", "rebuild", "reset")):
            return doings[word](args[1:], opts) or 0

    def _show(self, _args: list[str], opts: argparse.Namespace) -> None:
        asyncio.run(self._show_now(opts))

    async def _show_now(self, opts: argparse.Namespace) -> None:
        from crawler.admin import operator

        assert self.settings is not None
        async with operator.the_queue(self.settings, self.options) as queue:
            depth = (await queue.depth())._asdict()
            more = {
                "undecided": await queue.undecided(),
                "by_agent": await queue.agents(),
                "due": await queue.dues(),
                "lists": await queue.lists(),
            }
            figures: dict[str, Any] = {**depth, **more}
        if opts.json:
            print_json(figures)
            return
        for name, value in depth.items():
            print(f"{name:<12} {value:>10,}")
        if figures["undecided"]:
            print(f"{'undecided':<12} {figures['undecided']:>10,}   finished sites that may have new pages")
        for agent in figures["by_agent"]:
            left = agent["expires_ms"] / 1000
            lease = f"lease for {left:.0f} s more" if left > 0 else "gone, its sites are handed on"
            print(f"agent {agent['agent']}: {agent['held']} sites, {agent['pages']} pages, {lease}")
        for work, due in figures["due"].items():
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(due["next_ms"] / 1000))
            many = "1 site" if due["sites"] == 1 else f"{due['sites']:,} sites, the first"
            print(f"due   {work}: {many} at {at}")
        for name, length in figures["lists"].items():
            print(f"list  {name}: {length:,}")

    def _tables(self, doing: str) -> Engine:
        from crawler.admin import operator
        from crawler.store.database import told

        engine = operator.the_tables(self.options)
        if engine is None:
            raise CommandError(
                f"no tables in {told(self.options.database)}: there is nothing to {doing} from"
            )
        return engine

    def _repair(self, _args: list[str], opts: argparse.Namespace) -> None:
        from crawler.admin import repair as repairing

        done = asyncio.run(self._repair_now(self._tables("repair"), opts.give_up))
        if opts.json:
            print_json(done)
            return
        lines = repairing.in_words(done)
        nothing = "nothing to give up" if opts.give_up else "queue and tables agree: nothing to repair"
        print("\n".join(lines) or nothing)
        if any(many for word, many in done.items() if word not in ("lost", "given_up")):
            print("next: scrapy crawl site")

    async def _repair_now(self, engine: Engine, give_up: list[str]) -> Repaired:
        from crawler.admin.repair import Repair
        from crawler.queue import connection
        from crawler.queue.queue import SiteQueue
        from crawler.urls.scope import Scope

        assert self.settings is not None
        client = connection.connect(self.settings)
        try:
            queue = SiteQueue(client, self.options)
            repair = Repair(queue, client, engine, Scope(self.options), self.settings, self.options)
            if give_up:
                return await repair.give_up(await _named(queue, give_up))
            done = await repair.run()
            await queue.count_tables_again()
            return done
        finally:
            await client.aclose()

    def _rebuild(self, _args: list[str], opts: argparse.Namespace) -> None:
        engine = self._tables("rebuild")
        counts = asyncio.run(self._rebuild_now(engine))
        if opts.json:
            print_json(counts)
        else:
            print(
                f"{counts['finished']} finished and {counts['unfinished']} unfinished sites restored, "
                f"{counts['alias']} aliases, {counts['blocked']} blocked; {counts['paused']} of them are paused, "
                f"{counts['known']} others were known"
            )
            if counts["held"]:
                print(
                    f"{counts['held']} of these are held by agents: lost sites that only their pages link to "
                    "are found by `scrapy crawl site --again`"
                )

    async def _rebuild_now(self, engine: Engine) -> Rebuilt:
        from crawler.admin import operator
        from crawler.urls.scope import Scope

        assert self.settings is not None
        async with operator.the_queue(self.settings, self.options) as queue:
            return await operator.rebuild(queue, engine, Scope(self.options), self.options)

    def _reset(self, _args: list[str], opts: argparse.Namespace) -> None:
        print(f"{asyncio.run(self._reset_now(force=opts.force))} keys removed")

    async def _reset_now(self, *, force: bool) -> int:
        from crawler.admin import operator

        assert self.settings is not None
        async with operator.the_queue(self.settings, self.options) as queue:
            # With --force, skip the reads that a broken key would make fail.
            working = [] if force else await self._at_work(queue)
            if working:
                raise CommandError(
                    f"agents work on this crawl: {', '.join(working)}; stop them first (one that was killed counts "
                    "for LEASE_SECONDS more), or add --force"
                )
            return await queue.reset(gives_up=True)

    async def _at_work(self, queue: SiteQueue) -> list[str]:
        """Raises CommandError if the agents cannot be read."""
        from redis.exceptions import ResponseError

        from crawler.queue import connection

        try:
            return await queue.at_work()
        except ResponseError as error:
            if not connection.is_of_wrong_kind(error):
                raise
            # The usual advice for a key of the wrong type is to reset the queue, which is this command.
            raise CommandError(
                f"whether agents work on this crawl is unknown: {error}; expected --yes --force, once they have ended"
            ) from None

    def _cli(self, args: list[str], _opts: argparse.Namespace) -> int:
        from crawler.local import console

        assert self.settings is not None
        return console.talk(self.settings, args, sys.stdin)


async def _named(queue: SiteQueue, given: list[str]) -> set[str]:
    from crawler.admin import operator

    if "all" in given:
        return set(await queue.owed())
    try:
        return {(await operator.known_site(queue, name)).site for name in given}
    except operator.OperationError as error:
        raise CommandError(str(error)) from None
