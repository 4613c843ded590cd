"""What every command of ours shares: settings checked before anything happens, and errors in one line.

Exit codes: 0 done; 1 it did not work (the last line says what and what to do); 2 the call was wrong.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import IgnoreRequest, UsageError

from crawler import options as our_options
from crawler.local import start
from crawler.printable import guard_log, printable_lines

if TYPE_CHECKING:
    import argparse

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options

start.look_rarely()

# What these libraries say at INFO at every start is of use to nobody who did not ask.
_CHATTER = (
    "scrapy.crawler",
    "scrapy.middleware",
    "scrapy.addons",
    "scrapy.utils.log",
    "alembic",
    "scrapy.extensions.logstats",
    # Says at every start that no Referer is sent, which is meant.
    "scrapy.downloadermiddlewares.redirect",
)


class CommandError(Exception):
    """The command did not work; its text is the last line that the person reads."""

    code = 1


class WrongCallError(CommandError):
    """What was named is not there, or nothing was: the call has to be another one."""

    code = 2


class LastingError(CommandError):
    """It would not work the next time either."""

    code = 3


def checked(settings: BaseSettings) -> Options:
    """The options of these settings; UsageError (exit code 2) for an unknown name or a wrong value."""
    try:
        return our_options.read_checked(settings)
    except our_options.OptionError as error:
        raise UsageError(str(error), print_help=False) from None


# As an option is written; `-` is standard input, and -1 a number.
_OPTION = re.compile(r"--?[A-Za-z]")


def refuse_unknown(parser: argparse.ArgumentParser, args: list[str]) -> None:
    """UsageError for the first word that looks like an option: Scrapy hands over as words those that it does not know.

    What stands behind `--` is taken as it is; that is taken out.
    """
    for word in args:
        if word == "--":
            args.remove(word)
            return
        if _OPTION.match(word):
            name = word.partition("=")[0]
            near = our_options.nearest(name, parser._option_string_actions)
            hint = f"; did you mean {near}?" if near else ""
            raise UsageError(f"no such option: {name}{hint}", print_help=False)


def quieten(settings: BaseSettings) -> None:
    """Keep libraries' chatter out of the log, unless LOG_LEVEL is DEBUG, and strangers' words from forging it."""
    guard_log()
    if settings["LOG_LEVEL"] != "DEBUG":
        # A filter, since configuring the log resets levels.
        for name in _CHATTER:
            logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.ERROR)


def without_queue(settings: BaseSettings) -> None:
    """For commands that fetch a page by hand: Scrapy's own scheduler, no server, no coordinator; our downloads."""
    settings.set("SCHEDULER", "scrapy.core.scheduler.Scheduler", priority="cmdline")
    for name, more in (
        ("EXTENSIONS_BASE", {"crawler.local.local.LocalServer": None}),
        ("DOWNLOADER_MIDDLEWARES_BASE", {"crawler.command.Refusals": 1}),
    ):
        settings.set(name, {**settings.getdict(name), **more}, priority="cmdline")


class Refusals:
    """A downloader middleware that says why a page is not fetched; Scrapy keeps silent about IgnoreRequest."""

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Tell it; the exception goes its way."""
        if isinstance(exception, IgnoreRequest):
            reason = str(exception) or f"{request.url}: {type(exception).__name__}"
            logging.getLogger("lowtide").error("%s", reason)


# How a crawl that went wrong may end: what a supervisor starts again (1), the call's fault (2), what would fail again
# in the same way (3). Any other reason is an end that somebody wanted: all is done, a signal, a limit (CLOSESPIDER_…),
# the spider's own CloseSpider.
_CODES = {
    "agent_failed": 1,
    "memusage_exceeded": 1,
    "no_coordinator": 1,
    "queue_lost": 1,
    "redis_away": 1,
    "start_error": 1,
    "bad_seeds": 2,
    "no_contact": 2,
    "no_seeds": 2,
    "closespider_errorcount": 3,
    "coordinator_failed": 3,
    "prefix_taken": 3,
    "queue_broken": 3,
}


def exit_code_of(crawler: Crawler) -> int:
    """The exit code for a crawl that is over; 1 for one that never began, unless it was told to end before it could.

    Never an exception, whatever became of the crawl.
    """
    reason = crawler.stats.get_value("finish_reason") if crawler._stats else None
    if reason is None:
        return 0 if _ended_in_time(crawler) else 1
    return _CODES.get(str(reason), 0)


def _ended_in_time(crawler: Crawler) -> bool:
    """Whether a signal came before anything was asked for: Scrapy then ends the process and closes no spider."""
    engine = crawler._engine
    if engine is None or engine._slot is None:  # a component refused, so that the spider could not be opened
        return False
    return not (engine.running or engine._stopping or crawler.crawling)


@contextmanager
def until_nobody_reads() -> Iterator[None]:
    """Ends the block where its output goes into a pipe whose reader has seen enough, as `| head`: no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still in the buffer goes nowhere, or Python would complain as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(figures: Any) -> None:
    """Figures for scripts: one JSON document on standard output."""
    print(json.dumps(figures, indent=2, default=str))


def _foreseen() -> tuple[type[Exception], ...]:
    """Errors whose text is meant for the person. Asked for only when there is one: the imports take time."""
    from crawler.admin.sites import OperationError
    from crawler.local.server import ServerError
    from crawler.queue.connection import ServerAwayError
    from crawler.queue.errors import BrokenRecordError
    from crawler.store.database import DatabaseError

    return (
        CommandError,
        ServerAwayError,
        BrokenRecordError,
        OperationError,
        ServerError,
        DatabaseError,
    )


def _code_of(error: Exception) -> int:
    """A driver that is not installed is a wrong use: another try would end in the same way."""
    from crawler.store.database import MissingDriverError

    if isinstance(error, CommandError):
        return error.code
    return 2 if isinstance(error, MissingDriverError) else 1


class LowtideCommand(ScrapyCommand):
    """A command of this project; `work` does it and raises CommandError where it cannot be done."""

    requires_project = True
    requires_crawler_process = False
    # Whether it calls a user's spiders and pipelines.
    runs_spiders = False
    # Whether words stand behind it; otherwise options alone.
    takes_words = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Those of all commands; a command adds its own."""
        super().add_options(parser)
        self._parser = parser

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Take over the command line's settings and check them all."""
        self.check_words(args)
        super().process_options(args, opts)
        assert self.settings is not None
        self.options = self.read_options()

    def check_words(self, args: list[str]) -> None:
        """UsageError for an option that the command does not know, or for words where it takes none."""
        refuse_unknown(self._parser, args)
        if args and not self.takes_words:
            name = type(self).__module__.rpartition(".")[2]
            raise UsageError(f"{name} takes no {args[0]!r}; expected options alone", print_help=False)

    def read_options(self) -> Options:
        """The options, checked; again after a command changed a setting."""
        assert self.settings is not None
        return checked(self.settings)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Do the work; a foreseen error becomes one line and exit code 1; a setting's or a missing extra's 2."""
        if not self.runs_spiders:
            start.end_quickly()
        try:
            with until_nobody_reads():
                self.exitcode = self.work(args, opts) or 0
        except our_options.OptionError as error:
            raise UsageError(str(error), print_help=False) from None
        except ImportError as error:
            from rankers import extras

            missing = extras.missing(error)
            if missing is None:
                raise
            raise UsageError(str(missing), print_help=False) from None
        except _foreseen() as error:
            self.fail(str(error), _code_of(error))

    def work(self, args: list[str], opts: argparse.Namespace) -> int | None:
        """The command itself; an exit code, or None for 0."""
        raise NotImplementedError

    def tables(self) -> Engine:
        """The tables of this crawl; CommandError where there are none yet, OptionError where they were not named."""
        from crawler.admin import sites
        from crawler.local.local import require_tables
        from crawler.store.database import told

        assert self.settings is not None
        require_tables(self.settings, self.options)
        engine = sites.the_tables(self.options)
        if engine is None:
            where = told(self.options.database)
            raise CommandError(
                f"no tables in DATABASE_URL {where} yet: a coordinator makes them (scrapy coordinate)"
                if self.options.database_url
                else f"nothing was crawled yet: no tables in {where}"
            )
        return engine

    def fail(self, message: str, code: int = 1) -> None:
        """Say what went wrong, and end with this exit code."""
        print(f"lowtide: {printable_lines(message)}", file=sys.stderr)
        self.exitcode = code
