"""`scrapy seed`: add seeds to a crawl, running or not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from crawler.command import CommandError, LowtideCommand

if TYPE_CHECKING:
    import argparse

    from crawler.agent.seeding import Added


class Command(LowtideCommand):
    def syntax(self) -> str:
        return "[options] FILE|URL|- …"

    def short_desc(self) -> str:
        return "Add seeds to a crawl, running or not"

    def long_desc(self) -> str:
        return "Add seeds from files, standard input (-) or the command line. Sites that are known stay as they are."

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--again", action="store_true", help="walk finished sites anew")
        parser.add_argument("--json", action="store_true", help="print the figures as JSON")

    def work(self, args: list[str], opts: argparse.Namespace) -> int:
        from crawler.store.joining import joined

        if not args:
            raise CommandError("no seeds: wanted files or URLs, as in `scrapy seed https://example.org`")
        assert self.settings is not None
        if opts.again:
            self.settings.set("WALK_AGAIN", True, priority="cmdline")
            self.options = self.read_options()
        with joined(self.settings, self.options):
            added = asyncio.run(self._add(args))
        return self._tell(added, as_json=opts.json)

    async def _add(self, sources: list[str]) -> Added:
        from redis.exceptions import RedisError

        from crawler.agent.seeding import Added, NoContactError, add_seeds
        from crawler.sites import connection

        total = Added()
        assert self.settings is not None
        for source in sources:
            try:
                total += await add_seeds(self.settings, self.options, source)
            except OSError as error:
                raise CommandError(f"seeds: {error}") from None
            except NoContactError as error:
                raise CommandError(str(error)) from None
            except RedisError as error:
                raise CommandError(f"REDIS_URL {connection.told(self.settings)}: {error}") from None
        return total

    def _tell(self, added: Added, *, as_json: bool) -> int:
        from crawler.command import print_json

        if as_json:
            print_json(added._asdict())
        else:
            print(
                f"{added.new} sites added, {added.known} known before, {added.again} walked again, "
                f"{added.bad} lines left out"
            )
        return 0 if added.new + added.known + added.again else 1
