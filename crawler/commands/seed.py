"""`scrapy seed`: add seeds to a crawl, running or not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from scrapy.exceptions import UsageError

from crawler.command import CommandError, LowtideCommand, WrongCallError

if TYPE_CHECKING:
    import argparse

    from crawler.agent.seeding import Added


class Command(LowtideCommand):
    def syntax(self) -> str:
        return "[options] FILE|URL|- … | --take-over KEY [--from REDIS_URL]"

    def short_desc(self) -> str:
        return "Add seeds to a crawl, running or not"

    def long_desc(self) -> str:
        return (
            "Add seeds from files, standard input (-), the command line, or a list, set or sorted set that another "
            "crawler keeps in Redis. On a known site, only new pages are fetched."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--again", action="store_true", help="crawl finished sites again")
        parser.add_argument(
            "--take-over", metavar="KEY", help="a Redis key with URLs; each URL is removed once it is queued"
        )
        parser.add_argument(
            "--from",
            dest="server",
            metavar="REDIS_URL",
            help="the server of that key (default: the crawl's own)",
        )
        parser.add_argument("--json", action="store_true", help="print the figures as JSON")

    def work(self, args: list[str], opts: argparse.Namespace) -> int:
        from crawler.local.local import joined

        if not args and not opts.take_over:
            raise WrongCallError("no seeds: expected files or URLs, as in `scrapy seed https://example.org`")
        if opts.server and not opts.take_over:
            raise UsageError("--from is given without --take-over; expected the key too", print_help=False)
        assert self.settings is not None
        self._check(args)
        if opts.again:
            self.settings.set("WALK_AGAIN", True, priority="cmdline")
            self.options = self.read_options()
        with joined(self.settings, self.options, changes=True):
            added = asyncio.run(self._add(args))
            if opts.take_over:
                added += asyncio.run(self._take_over(opts.take_over, opts.server))
        return self._tell(added, as_json=opts.json)

    def _check(self, sources: list[str]) -> None:
        """Raises WrongCallError before any seed is added."""
        from crawler.urls import seeds

        assert self.settings is not None
        for source in sources:
            try:
                why = "" if source == "-" else seeds.why_not(source, self.settings["USER_AGENT"])
            except OSError as error:
                why = f"seeds: {error}"
            if why:
                raise WrongCallError(f"{why}; nothing was added")

    async def _add(self, sources: list[str]) -> Added:
        from crawler.agent.seeding import Added, NoContactError, add_seeds

        total = Added()
        assert self.settings is not None
        for source in sources:
            try:
                total += await add_seeds(self.settings, self.options, source)
            except OSError as error:
                raise WrongCallError(f"seeds: {error}") from None
            except NoContactError as error:
                raise WrongCallError(str(error)) from None
        return total

    async def _take_over(self, key: str, server: str | None) -> Added:
        from redis.exceptions import RedisError

        from crawler.agent.seeding import NoContactError, take_over
        from crawler.queue import connection

        assert self.settings is not None
        theirs = self.settings.copy()
        if server:
            theirs.set("REDIS_URL", server, priority="cmdline")
            connection.check(theirs)
        try:
            return await take_over(self.settings, self.options, key, theirs)
        except NoContactError as error:
            raise WrongCallError(str(error)) from None
        except RedisError as error:
            raise CommandError(connection.explained(theirs, error)) from None

    def _tell(self, added: Added, *, as_json: bool) -> int:
        from crawler.command import print_json

        if as_json:
            print_json(added._asdict())
        else:
            known = " (their new pages are fetched; --again walks them again)" if added.known else ""
            words = [
                f"{added.new} sites added",
                f"{added.known} known before{known}",
                f"{added.again} walked again",
                f"{added.bad} lines left out",
            ]
            if added.left_out:
                words.append(f"{added.left_out} seeds left out by SCOPE_INCLUDE or SCOPE_EXCLUDE")
            if added.blocked:
                lifted = "nothing of them is fetched (`scrapy site resume SITE` lifts it)"
                words.append(f"{added.blocked} blocked by the operator: {lifted}")
            print(", ".join(words))
        if added.new + added.known + added.again:
            return 0
        # Lines that are no seeds, and seeds that may not be fetched, are errors of the call.
        return 1 if added.refused or not sum(added) else WrongCallError.code
