"""`scrapy crawl`: run one or several agents until all sites are finished."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy.commands import crawl as stock
from scrapy.exceptions import UsageError
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.misc import load_object

from crawler import engine, recheck, schedulers
from crawler.command import (
    CommandError,
    LastingError,
    checked,
    exit_code_of,
    quieten,
    refuse_unknown,
    until_nobody_reads,
)
from crawler.options import PLAIN, OptionError, nearest
from crawler.printable import printable_lines
from crawler.records import WORKS

if TYPE_CHECKING:
    from scrapy import Spider

    from crawler.local.summary import Left
    from crawler.local.supervisor import Child
    from crawler.reports import Crawl
    from crawler.views.parted import Parted

# Arguments that scrapyd passes to every spider.
_OF_SCRAPYD = ("_job", "_version")

# Settings that name the user's classes, and packages whose classes need no check.
COMPONENTS = (
    "PAGE_PIPELINES",
    "ITEM_PIPELINES",
    "DOWNLOADER_MIDDLEWARES",
    "SPIDER_MIDDLEWARES",
    "EXTENSIONS",
)
OWN = ("crawler.", "scrapy.")


class Command(stock.Command):
    def syntax(self) -> str:
        return "[options] <spider>"

    def short_desc(self) -> str:
        return "Crawl: run one or several agents until all sites are finished"

    def long_desc(self) -> str:
        return (
            "Crawl with one agent or several. Seeds come with -a seeds=FILE|URL,URL or over Redis "
            "(lpush site:start_urls URL). A second call with the same VAR_DIR resumes the crawl."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        self._parser = parser
        group = parser.add_argument_group(title="Crawl")
        group.add_argument(
            "--scheduler", metavar="NAME", help="policy that orders the sites (SITE_SCHEDULER)"
        )
        group.add_argument(
            "--agents", metavar="N", type=int, default=1, help="agents on this machine (default 1)"
        )
        group.add_argument(
            "--with", dest="with_works", metavar="WORK,…", help="jobs in addition to the spider's own"
        )
        group.add_argument(
            "--when-idle", metavar="stop|wait", help="at the end: stop (default), or wait for seeds"
        )
        group.add_argument("--no-summary", action="store_true", help="print no figures at the end")
        # Set for one of several agents: the parent process checks and summarises for all.
        group.add_argument("--one-of-several", action="store_true", help=argparse.SUPPRESS)
        group.add_argument("--again", action="store_true", help="crawl finished sites again")

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        try:
            self._take_options(args, opts)
        except UsageError as error:
            self._say_in_log(str(error))
            raise

    def _take_options(self, args: list[str], opts: argparse.Namespace) -> None:
        refuse_unknown(self._parser, args)
        super().process_options(args, opts)
        assert self.settings is not None
        given = {
            "SITE_SCHEDULER": opts.scheduler,
            "WITH_WORKS": opts.with_works,
            "WHEN_IDLE": opts.when_idle,
            "WALK_AGAIN": opts.again or None,
        }
        for name, value in given.items():
            if value is not None:
                self.settings.set(name, value, priority="cmdline")
        self.options = checked(self.settings)
        quieten(self.settings)
        self._check(opts)
        # Raise all errors here, before Scrapy creates an event loop.
        if len(args) != 1:
            raise UsageError("expected the name of one spider, as in `scrapy crawl site`", print_help=False)
        self._take_settings_of(args[0], opts.spargs)
        if opts.agents > 1:
            self._feeds_of(1, opts)
        try:
            self._check_services()
        except CommandError as error:
            print(f"lowtide: {error}", file=sys.stderr)
            self._say_in_log(str(error))
            raise SystemExit(error.code) from None
        self._apart = self._part(opts)
        # A view or a supervisor never runs Scrapy's event loop, and an unclosed loop prints a warning.
        self.requires_crawler_process = opts.agents == 1 and self._apart is None

    def _part(self, opts: argparse.Namespace) -> Parted | None:
        """None in the process that crawls."""
        assert self.settings is not None
        if not self.options.live_view or not _is_drawn_on() or self._items_go_to_output(opts):
            return None
        from crawler.local.supervisor import end_with_parent
        from crawler.views.parted import part

        child = part(partial(end_with_parent, os.getpid()))
        if child is None:
            self.settings.set("LIVE_VIEW", False, priority="cmdline")
            self.options = checked(self.settings)
        return child

    @staticmethod
    def _items_go_to_output(opts: argparse.Namespace) -> bool:
        return "-" in [uri.split(":")[0] for uri in opts.overwrite_output or opts.output or ()]

    def _say_in_log(self, text: str) -> None:
        """Scrapy opens LOG_FILE later."""
        if self.settings and self.settings["LOG_FILE"]:
            with suppress(OSError), Path(self.settings["LOG_FILE"]).open("a", encoding="utf-8") as log:
                print(f"lowtide: {text}", file=log)

    def _check_scheduler(self) -> None:
        try:
            schedulers.check_options(self.options.site_scheduler, self.options.site_scheduler_options)
            recheck.check(self.options.recrawl_mode, (PLAIN,))
        except (schedulers.SchedulerError, recheck.RecrawlError) as error:
            raise UsageError(str(error), print_help=False) from None

    def _check_components(self) -> None:
        """Raises UsageError for a path that cannot be imported."""
        assert self.settings is not None
        for name in COMPONENTS:
            for path, order in self.settings.getdict(name).items():
                if order is None or not isinstance(path, str) or path.startswith(OWN):
                    continue
                try:
                    load_object(path)
                except (ImportError, NameError, ValueError) as error:
                    raise UsageError(
                        f"{name} has {path!r}: {error}; expected a dotted path", print_help=False
                    ) from None

    def _check(self, opts: argparse.Namespace) -> None:
        self._check_scheduler()
        self._check_components()
        self._check_patterns()
        if opts.agents < 1:
            raise UsageError(f"--agents is {opts.agents}; expected 1 or more", print_help=False)
        if opts.agents > 1 and opts.spargs.get("seeds") == "-":
            raise UsageError("seeds=- goes with one agent; expected a file for several", print_help=False)

    def _check_patterns(self) -> None:
        from crawler.agent.overrides import Overrides
        from crawler.fetch.guard import AddressGuard
        from crawler.urls.scope import Scope

        try:
            Scope(self.options)
            AddressGuard(self.options.allow_private_addresses)
            Overrides(self.options.site_overrides)
        except ValueError as error:
            raise UsageError(str(error), print_help=False) from None

    def _check_slots(self) -> None:
        from crawler.agent.leasing import SlotAllocation

        given = self.options
        # Status checks have their own slots.
        named = {self._work, *given.works} - {"status"}
        try:
            SlotAllocation(given.site_slots, tuple(work for work in WORKS if work in named), given.work_slots)
        except OptionError as error:
            raise UsageError(str(error), print_help=False) from None

    def _check_seeds(self, spider: type[Spider], source: str | None) -> None:
        """Raises UsageError before agents and servers start."""
        from scrapy import Spider

        from crawler.queue import connection
        from crawler.urls import seeds

        assert self.settings is not None
        if source and source != "-":
            try:
                why = seeds.why_not(source, self.settings["USER_AGENT"])
            except OSError as error:
                why = f"seeds: {error}"
            if why:
                raise UsageError(why, print_help=False)
        # A user's spider may have its own seeds, and an earlier crawl or a shared server may have queued some.
        alone = connection.may_serve_itself(self.settings) and not connection.is_named(self.settings)
        new = alone and not (self.options.var.is_dir() and any(self.options.var.iterdir()))
        seedless = spider.start is Spider.start and not getattr(spider, "start_urls", None)
        own = seedless and spider.__module__.startswith("crawler.spiders.")
        if not source and own and new and self.options.when_idle == "stop":
            raise UsageError(
                f"no seeds: expected -a seeds=FILE or -a seeds=URL,URL, as in `scrapy crawl {spider.name} -a "
                f"seeds=https://example.org`, or `redis-cli lpush {self.options.start_urls_key} URL` with "
                "--when-idle wait",
                print_help=False,
            )

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        if self._apart is not None:
            self.exitcode = self._show(self._apart)
            return
        started_ms = int(time.time() * 1000)
        if opts.agents > 1:
            self.exitcode = self._supervise(args[0], opts)
        else:
            self.exitcode = self._crawl(args[0], opts)
        if self.exitcode != 0:
            return
        # Before the summary: it may start the bundled server again, which logs.
        self.exitcode, difference = (0, "") if opts.one_of_several else self._compare()
        if not opts.no_summary:
            with until_nobody_reads():
                self._summarise(started_ms, opts)
        if difference:
            print(f"lowtide: {difference}", file=sys.stderr)
        if not opts.one_of_several and (why := self._nothing(started_ms)):
            print(f"lowtide: {printable_lines(why)}", file=sys.stderr)
            self.exitcode = 1

    def _nothing(self, started_ms: int) -> str:
        """Empty if there are pages or that is unknown."""
        from crawler.local.local import names_tables
        from crawler.queue import connection

        assert self.settings is not None
        if self._work != "site" or not names_tables(self.settings, self.options):
            return ""
        from crawler.reports import seeds
        from crawler.store import queries
        from crawler.store.database import DatabaseError, open_database

        if connection.is_named(self.settings):
            left = self._left()
            if left is None or left.records:  # records may not be stored yet
                return ""
        try:
            tables = open_database(self.options.database)
            if queries.ends_since(tables, started_ms) != {"finished"} or queries.has_pages(tables):
                return ""
            return seeds.verdict(seeds.latest(tables, 1))
        except DatabaseError:  # the summary reports it
            return ""

    @staticmethod
    def _check_arguments(spider: type[Spider], given: dict[str, str]) -> None:
        """Only built-in spiders refuse unknown arguments."""
        unknown = sorted(set(given) - {"seeds", *_OF_SCRAPYD})
        if unknown and spider.__module__.startswith("crawler.spiders."):
            near = nearest(unknown[0], ["seeds"])
            hint = f"; did you mean {near}?" if near else ""
            raise UsageError(
                f"-a {unknown[0]}: spider {spider.name!r} has no such argument; expected -a seeds=…{hint}",
                print_help=False,
            )

    def _take_settings_of(self, name: str, given: dict[str, str]) -> None:
        """custom_settings may name server and database."""
        assert self.settings is not None
        spiders = get_spider_loader(self.settings)
        names = spiders.list()
        if name not in names:
            near = nearest(name, names)
            hint = f"; did you mean {near}?" if near else ""
            raise UsageError(
                f"no spider {name!r}; there are {', '.join(sorted(names))}{hint}", print_help=False
            )
        spider = spiders.load(name)
        self._check_arguments(spider, given)
        spider.update_settings(self.settings)
        self._work = getattr(spider, "work", "site")
        self.options = checked(self.settings)
        self._check_scheduler()
        self._check_slots()
        self._check_seeds(spider, given.get("seeds"))

    def _check_services(self) -> None:
        """Needed at the start only; a running crawl waits for them."""
        from crawler.queue import connection

        assert self.settings is not None
        try:
            connection.require(self.settings)
            if connection.is_named(self.settings):
                connection.check(self.settings)
        except connection.ServerRefusesError as error:
            raise LastingError(str(error)) from None
        except OptionError as error:
            raise UsageError(str(error), print_help=False) from None
        except connection.ServerAwayError as error:
            raise CommandError(str(error)) from None
        if connection.is_named(self.settings):
            return
        self._check_folder()
        self._check_crawl()
        if self.options.database_url:
            from crawler.store.database import (
                DatabaseError,
                MissingDriverError,
                check_version,
                open_database,
            )

            try:
                tables = open_database(self.options.database)
                check_version(tables)
                tables.dispose()
            except MissingDriverError as error:
                raise UsageError(str(error), print_help=False) from None
            except DatabaseError as error:
                raise CommandError(str(error)) from None

    def _check_crawl(self) -> None:
        from crawler.local.server import OtherCrawlError, Server, ServerError

        try:
            Server(self.options.var).refuse_other(self.options.key_prefix)
        except OtherCrawlError as error:
            raise LastingError(str(error)) from None
        except ServerError as error:
            raise CommandError(str(error)) from None

    def _check_folder(self) -> None:
        from crawler.disk import make_folder, sync_folders

        var = self.options.var
        try:
            sync_folders(*make_folder(var))
        except OSError as error:
            raise CommandError(
                f"VAR_DIR {var}: {error.strerror}; expected a folder that can be written"
            ) from None
        if not os.access(var, os.W_OK | os.X_OK):
            raise CommandError(f"VAR_DIR {var} cannot be written; expected a folder that can be")

    def _show(self, child: Parted) -> int:
        from crawler.views import live

        assert self.settings is not None
        code = live.show(child, self.settings, self.options)
        return code if code >= 0 else 128 - code

    def _crawl(self, name: str, opts: argparse.Namespace) -> int:
        assert self.crawler_process is not None
        crawler = self._create_crawler(name)
        engine.end_in_order(self.crawler_process)
        self.crawler_process.crawl(crawler, **opts.spargs)
        self.crawler_process.start()
        if self.crawler_process.bootstrap_failed:
            return 1
        code = exit_code_of(crawler)
        if code and (why := crawler.stats.get_value("finish_why")):
            # Repeat the reason, which is far up in the log.
            print(f"lowtide: {printable_lines(str(why))}", file=sys.stderr)
        return code

    def _supervise(self, name: str, opts: argparse.Namespace) -> int:
        from scrapy.utils.log import configure_logging

        from crawler.local.supervisor import Supervisor
        from crawler.queue import connection

        assert self.settings is not None
        goes_on = self._goes_on(opts)
        children = [self._child(name, opts, number, goes_on) for number in range(1, opts.agents + 1)]
        log_format = self.settings["LOG_FORMAT"].replace("[agent]", "[supervisor]")
        self.settings.set("LOG_FORMAT", log_format, priority="cmdline")
        configure_logging(self.settings)
        if connection.is_named(self.settings):
            return Supervisor(children).run()
        from crawler.local.local import Drain

        return Supervisor(children).run(after=Drain(self.settings, self.options).over)

    def _goes_on(self, opts: argparse.Namespace) -> bool:
        """Whether feeds are continued. The second agent would find the first at work."""
        from crawler.local import summary as leftover
        from crawler.local.server import Server, ServerError
        from crawler.queue import connection
        from crawler.queue.errors import BrokenRecordError

        assert self.settings is not None
        if not (opts.output or opts.overwrite_output or self.settings.getdict("FEEDS")):
            return True
        if not connection.is_named(self.settings) and not Server(self.options.var).folder.exists():
            return False
        try:
            return leftover.has_begun(self.settings, self.options)
        except (connection.ServerAwayError, BrokenRecordError, ServerError):  # the agents report it
            return True

    def _child(self, name: str, opts: argparse.Namespace, number: int, goes_on: bool) -> Child:
        from crawler.agent.feed_file import FEEDS_GO_ON
        from crawler.local.supervisor import Child, agent_command, numbered_file

        assert self.settings is not None
        log_format = self.settings["LOG_FORMAT"].replace("[agent]", f"[agent {number}]")
        arguments = ["--no-summary", "--one-of-several", "-s", f"LOG_FORMAT={log_format}"]
        for text in opts.set:
            arguments += ["-s", text]
        for key, value in opts.spargs.items():
            arguments += ["-a", f"{key}={value}"]
        for option, value in (
            ("--scheduler", opts.scheduler),
            ("--with", opts.with_works),
            ("--when-idle", opts.when_idle),
            ("--loglevel", opts.loglevel),
            ("--logfile", opts.logfile),
        ):
            if value:
                arguments += [option, value]
        # `--again` is for the first start of one agent: a restarted agent resumes and overwrites no file.
        again_once = int(self.options.walk_again and number == 1)
        first = ["-s", f"WALK_AGAIN={again_once}", "-s", f"{FEEDS_GO_ON}={int(goes_on)}"]
        again = ["-s", "WALK_AGAIN=0", "-s", f"{FEEDS_GO_ON}=1"]
        for option, files in (("-o", opts.output), ("-O", opts.overwrite_output)):
            for uri in files or ():
                first += [option, numbered_file(uri, number)]
                again += ["-o", numbered_file(uri, number)]
        first += self._feeds_of(number, opts)
        again += self._feeds_of(number, opts, overwrite=False)
        return Child(
            f"agent {number}",
            agent_command(name, arguments + first),
            again=agent_command(name, arguments + again),
        )

    def _feeds_of(self, number: int, opts: argparse.Namespace, *, overwrite: bool | None = None) -> list[str]:
        """FEEDS with one file per agent; empty if -o or -O replace FEEDS."""
        from crawler.local.supervisor import numbered_file

        assert self.settings is not None
        feeds = self.settings.getdict("FEEDS")
        if not feeds or opts.output or opts.overwrite_output:
            return []
        more = {} if overwrite is None else {"overwrite": overwrite}
        numbered = {numbered_file(str(uri), number): {**feed, **more} for uri, feed in feeds.items()}
        try:
            return ["-s", f"FEEDS={json.dumps(numbered)}"]
        except TypeError as error:
            raise UsageError(
                f"FEEDS cannot be passed to several agents: {error}; expected only texts, numbers and dotted paths",
                print_help=False,
            ) from None

    def _left(self) -> Left | None:
        """None if the queue cannot be read."""
        from crawler.local import summary as leftover
        from crawler.local.server import ServerError
        from crawler.queue.connection import ServerAwayError
        from crawler.queue.errors import BrokenRecordError

        assert self.settings is not None
        try:
            return leftover.look(self.settings, self.options)
        except (ServerAwayError, BrokenRecordError, ServerError, OptionError):
            return None

    def _found(self, crawl: Crawl, started_ms: int, left: Left | None) -> str:
        from crawler.reports import status, summary

        if self._work == "status":
            return status.text(status.figures(crawl))
        found = summary.figures(crawl, started_ms)
        if left is None and found["sites"] > found["sites_finished"]:
            left = self._left()
        return summary.text({**found, **(left._asdict() if left else {})})

    def _compare(self) -> tuple[int, str]:
        """Exit code 1 and a message if they differ."""
        from crawler.local.local import names_tables

        assert self.settings is not None
        if not names_tables(self.settings, self.options):
            return 0, ""
        from crawler.local.server import ServerError
        from crawler.queue.connection import ServerAwayError
        from crawler.queue.errors import BrokenRecordError
        from crawler.reconcile import agreement
        from crawler.store.database import DatabaseError

        try:
            wrong = agreement.differences(self.settings, self.options)
        except (ServerAwayError, BrokenRecordError, ServerError, OptionError, DatabaseError) as error:
            return 0, f"queue and tables could not be compared: {error}"
        return (1, agreement.in_words(wrong)) if wrong else (0, "")

    def _summarise(self, started_ms: int, opts: argparse.Namespace) -> None:
        """To standard error if items go to standard output."""
        from crawler.queue import connection

        assert self.settings is not None
        from crawler.local.local import names_tables

        left = self._left() if connection.is_named(self.settings) else None
        if left and left.records and not left.coordinators:
            print(
                f"lowtide: {left.records} records wait in the results stream and no coordinator is running; "
                "expected one: scrapy coordinate",
                file=sys.stderr,
            )
        if not names_tables(self.settings, self.options):
            return
        from crawler.reports import Crawl
        from crawler.store.database import DatabaseError, check_version, open_database, told

        out = sys.stderr if self._items_go_to_output(opts) else sys.stdout
        try:
            engine = open_database(self.options.database)
            if check_version(engine) is None:
                print(f"lowtide: {_no_tables(told(engine.url), left)}", file=sys.stderr)
                return
            print(self._found(Crawl(engine, self.settings, self.options), started_ms, left), file=out)
        except DatabaseError as error:
            print(f"lowtide: {error}", file=sys.stderr)
            return
        print(f"\nresults: {told(engine.url)}, tables sites and pages", file=out)
        where = (
            "" if self.options.var_dir == "var" else f" -s {shlex.quote(f'VAR_DIR={self.options.var_dir}')}"
        )
        print(
            f"next:    scrapy report{where}    scrapy site list{where}    scrapy crawl site --help", file=out
        )


def _no_tables(database: str, left: Left | None) -> str:
    if left and left.coordinators:
        how = f"{', '.join(left.coordinators)} creates them, or runs with another DATABASE_URL"
    else:
        how = (
            "`scrapy coordinate` with the same REDIS_URL and DATABASE_URL creates them and stores the records"
        )
    return f"no figures yet: DATABASE_URL {database} has no tables; {how}"


def _is_drawn_on() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
