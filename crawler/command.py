"""Base of all commands: checked settings, one-line errors.

Exit codes: 0 done; 1 failed; 2 wrong call.
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

# Libraries that log at INFO at every start.
_CHATTER = (
    "scrapy.crawler",
    "scrapy.middleware",
    "scrapy.addons",
    "scrapy.utils.log",
    "alembic",
    "scrapy.extensions.logstats",
    # Logs at every start that no Referer is sent, which is intended.
    "scrapy.downloadermiddlewares.redirect",
)


class CommandError(Exception):
    """The text is the last line of output."""

    code = 1


class WrongCallError(CommandError):
    """A named object does not exist, or none was named."""

    code = 2


class LastingError(CommandError):
    """A failure that a restart does not fix."""

    code = 3


def checked(settings: BaseSettings) -> Options:
    """Raises UsageError (exit code 2) for an unknown name or wrong value."""
    try:
        return our_options.read_checked(settings)
    except our_options.OptionError as error:
        raise UsageError(str(error), print_help=False) from None


# An option's form; `-` is standard input, and -1 a number.
_OPTION = re.compile(r"--?[A-Za-z]")


def refuse_unknown(parser: argparse.ArgumentParser, args: list[str]) -> None:
    """Raises UsageError for an unknown option, which Scrapy passes on as an argument.

    Removes `--`; arguments after it are not checked.
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
    """Drop libraries' INFO logs, unless LOG_LEVEL is DEBUG; make records printable."""
    guard_log()
    if settings["LOG_LEVEL"] != "DEBUG":
        # A filter, since configuring the log resets levels.
        for name in _CHATTER:
            logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.ERROR)


def without_queue(settings: BaseSettings) -> None:
    """Scrapy's scheduler, no server, no coordinator; the crawler's downloads."""
    settings.set("SCHEDULER", "scrapy.core.scheduler.Scheduler", priority="cmdline")
    for name, more in (
        ("EXTENSIONS_BASE", {"crawler.local.local.LocalServer": None}),
        ("DOWNLOADER_MIDDLEWARES_BASE", {"crawler.command.Refusals": 1}),
    ):
        settings.set(name, {**settings.getdict(name), **more}, priority="cmdline")


class Refusals:
    """Logs why a page is not fetched; Scrapy drops IgnoreRequest silently."""

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Log the reason; the exception propagates."""
        if isinstance(exception, IgnoreRequest):
            reason = str(exception) or f"{request.url}: {type(exception).__name__}"
            logging.getLogger("lowtide").error("%s", reason)


# Finish reasons of failed crawls: a supervisor restarts (1), wrong call (2), would fail again (3). All other
# reasons are intended: finished, a signal, a limit (CLOSESPIDER_…), the spider's CloseSpider.
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
    """The exit code of an ended crawl. Never raises.

    1 if it never began, unless a signal ended it before.
    """
    reason = crawler.stats.get_value("finish_reason") if crawler._stats else None
    if reason is None:
        return 0 if _ended_in_time(crawler) else 1
    return _CODES.get(str(reason), 0)


def _ended_in_time(crawler: Crawler) -> bool:
    """Whether a signal came before the first request: Scrapy then closes no spider."""
    engine = crawler._engine
    if engine is None or engine._slot is None:  # a component raised, so the spider was not opened
        return False
    return not (engine.running or engine._stopping or crawler.crawling)


@contextmanager
def until_nobody_reads() -> Iterator[None]:
    """Ends the block without an error when its output's reader closes the pipe, as `| head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Discard the buffer, or Python prints an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(figures: Any) -> None:
    """Print one JSON document for scripts."""
    print(json.dumps(figures, indent=2, default=str))


def _foreseen() -> tuple[type[Exception], ...]:
    """Errors whose text is for the user. The imports take time."""
    from crawler.admin.operator import OperationError
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
    """2 for a missing driver, otherwise 1."""
    from crawler.store.database import MissingDriverError

    if isinstance(error, CommandError):
        return error.code
    return 2 if isinstance(error, MissingDriverError) else 1


class LowtideCommand(ScrapyCommand):
    """`work` runs the command and raises CommandError on failure."""

    requires_project = True
    requires_crawler_process = False
    # Whether it runs users' spiders and pipelines.
    runs_spiders = False
    # Whether it accepts arguments besides options.
    takes_words = True

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Options of all commands; a subclass adds its own."""
        super().add_options(parser)
        self._parser = parser

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Apply and check the settings of the command line."""
        self.check_words(args)
        super().process_options(args, opts)
        assert self.settings is not None
        self.options = self.read_options()

    def check_words(self, args: list[str]) -> None:
        """Raises UsageError for unknown options and arguments."""
        refuse_unknown(self._parser, args)
        if args and not self.takes_words:
            name = type(self).__module__.rpartition(".")[2]
            raise UsageError(f"{name} takes no {args[0]!r}; expected options only", print_help=False)

    def read_options(self) -> Options:
        """The checked options; call again after changing a setting."""
        assert self.settings is not None
        return checked(self.settings)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Runs `work`. A known error is one line and exit code 1 or 2."""
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
        """The command; returns its exit code, None for 0."""
        raise NotImplementedError

    def tables(self) -> Engine:
        """Raises CommandError if they do not exist, OptionError if they are not named."""
        from crawler.admin import operator
        from crawler.local.local import require_tables
        from crawler.store.database import told

        assert self.settings is not None
        require_tables(self.settings, self.options)
        engine = operator.the_tables(self.options)
        if engine is None:
            where = told(self.options.database)
            raise CommandError(
                f"no tables in DATABASE_URL {where} yet: a coordinator creates them (scrapy coordinate)"
                if self.options.database_url
                else f"nothing was crawled yet: no tables in {where}"
            )
        return engine

    def fail(self, message: str, code: int = 1) -> None:
        """Print the error and set the exit code."""
        print(f"lowtide: {printable_lines(message)}", file=sys.stderr)
        self.exitcode = code
