"""`scrapy extract`: reprocess or check the archive."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.commands import BaseRunSpiderCommand
from scrapy.exceptions import UsageError

from crawler import engine
from crawler.command import (
    CommandError,
    LowtideCommand,
    WrongCallError,
    exit_code_of,
    print_json,
    quieten,
)
from crawler.options import nearest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from scrapy import Spider

    from crawler.archive.reader import Verdict

# How many bad rows are printed.
NAMED = 10


class Command(LowtideCommand, BaseRunSpiderCommand):
    runs_spiders = True

    def syntax(self) -> str:
        return "[options] [FILE or FOLDER …]"

    def short_desc(self) -> str:
        return "Reprocess the archive into new records or a spider's items; nothing is fetched"

    def long_desc(self) -> str:
        return (
            "Run the page pipelines on every response in the archive (VAR_DIR/archive, or the given files and folders) "
            "and publish the records again, for attributes that were added later. "
            "--spider calls its parse instead; its items go through the item pipelines and into -o and -O. "
            "--check compares every row of pages with the archive; the exit code is 1 if one differs."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--spider", metavar="NAME", help="pass the responses to this spider's parse")
        parser.add_argument("--check", action="store_true", help="compare the tables' rows with the archive")
        parser.add_argument("--json", action="store_true", help="print the figures as JSON")

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        super().process_options(args, opts)
        assert self.settings is not None
        quieten(self.settings)
        if opts.check and opts.spider:
            raise UsageError("--check and --spider are both given; expected one of them", print_help=False)
        if not opts.spider and (opts.output or opts.overwrite_output or opts.spargs):
            raise UsageError("-a, -o and -O are for a spider; expected --spider NAME too", print_help=False)
        if opts.spider:
            self._spider(opts.spider).update_settings(self.settings)
            self.options = self.read_options()
        self.requires_crawler_process = not opts.check

    def work(self, args: list[str], opts: argparse.Namespace) -> int:
        if opts.check:
            return self._check(args, opts)
        return self._read(self._files(args), opts)

    # --- reading ---

    def _read(self, files: list[Path], opts: argparse.Namespace) -> int:
        from crawler.archive import reprocess

        assert self.settings is not None
        assert self.crawler_process is not None
        given: dict[str, Any] = {reprocess.FILES: files, "ARCHIVE_CONTENT_TYPES": ""}
        if opts.spider:
            given["SCHEDULER"] = "crawler.archive.reprocess.Reparsing"
            given["DOWNLOADER"] = "crawler.archive.reprocess.StoredAnswers"
            given["EXTENSIONS_BASE"] = {
                **self.settings.getdict("EXTENSIONS_BASE"),
                "crawler.local.local.LocalServer": None,
            }
        else:
            given["SCHEDULER"] = "crawler.archive.reprocess.Republishing"
            self._check_server()
        for name, value in given.items():
            self.settings.set(name, value, priority="cmdline")
        crawler = self.crawler_process.create_crawler(opts.spider or "site")
        engine.end_in_order(self.crawler_process)
        self.crawler_process.crawl(crawler, **opts.spargs)
        self.crawler_process.start()
        if self.crawler_process.bootstrap_failed:
            return 1
        stats = crawler.stats.get_stats()
        prefix = reprocess.FIGURES
        figures = {name.removeprefix(prefix): n for name, n in stats.items() if name.startswith(prefix)}
        self._show_figures(figures, opts)
        unwell = figures.get("damaged", 0) + figures.get("missing", 0) + figures.get("failed", 0)
        return exit_code_of(crawler) or int(unwell > 0)

    def _check_server(self) -> None:
        from crawler.queue import connection

        assert self.settings is not None
        connection.require(self.settings)
        if connection.is_named(self.settings):
            connection.check(self.settings)

    def _show_figures(self, figures: dict[str, Any], opts: argparse.Namespace) -> None:
        if opts.json:
            print_json(figures)
            return
        out = sys.stderr if _goes_to_output(opts) else sys.stdout
        line = ", ".join(
            f"{value:,} {name}" for name, value in figures.items() if value or name == "captures"
        )
        print(line, file=out)

    def _files(self, args: list[str]) -> list[Path]:
        """Finishes files of ended processes first."""
        from crawler.archive import writer

        files: list[Path] = []
        writing = 0
        for path in map(Path, args or [str(self.options.archive_folder)]):
            if args and not path.is_dir():
                files.append(path)
                continue
            writer.recover(path)
            files += writer.finished(path)
            writing += len(writer.being_written(path))
        absent = [path for path in files if not path.is_file()]
        if absent:
            raise WrongCallError(f"no file {absent[0]}")
        if writing:
            print(f"lowtide: {writing} files are still being written and are skipped", file=sys.stderr)
        if not files and not writing:
            where = args[0] if args else self.options.archive_folder
            raise CommandError(f"no archive in {where}; expected the folder of a crawl, as in -s VAR_DIR=var")
        return files

    def _spider(self, name: str) -> type[Spider]:
        from scrapy.spiderloader import get_spider_loader

        assert self.settings is not None
        loader = get_spider_loader(self.settings.frozencopy())
        try:
            return loader.load(name)
        except KeyError:
            near = nearest(name, loader.list())
            hint = f"; did you mean {near}?" if near else ""
            raise UsageError(f"no spider {name!r}{hint}", print_help=False) from None

    # --- checking ---

    def _check(self, args: list[str], opts: argparse.Namespace) -> int:
        from crawler.archive import reader
        from crawler.store import queries

        if len(args) > 1 or (args and not Path(args[0]).is_dir()):
            raise UsageError("--check takes one folder; expected that with all files", print_help=False)
        engine = self.tables()
        folder = Path(args[0]) if args else self.options.archive_folder
        rows = (reader.Kept(*page) for page in queries.archived_pages(engine))
        verdicts = _with_progress(reader.check(rows, folder), lambda: queries.count_archived(engine))
        return _account(verdicts, opts)


def _account(verdicts: Iterable[Verdict], opts: argparse.Namespace) -> int:
    counts = {"ok": 0, "missing": 0, "damaged": 0}
    unwell: list[dict[str, str]] = []
    for verdict in verdicts:
        counts[verdict.word] += 1
        if verdict.why and len(unwell) < NAMED:
            unwell.append({"url": verdict.kept.url, "verdict": verdict.word, "why": verdict.why})
    if opts.json:
        print_json({**counts, "first": unwell})
    else:
        for one in unwell:
            print(f"{one['verdict']:<8} {one['url']}: {one['why']}")
        print(", ".join(f"{number:,} {word}" for word, number in counts.items()))
    return int(counts["missing"] + counts["damaged"] > 0)


def _with_progress(verdicts: Iterable[Verdict], total: Any) -> Iterator[Verdict]:
    if not sys.stderr.isatty():
        yield from verdicts
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(verdicts, "checking", total=total(), console=Console(stderr=True), transient=True)


def _goes_to_output(opts: argparse.Namespace) -> bool:
    return "-" in [uri.split(":")[0] for uri in opts.overwrite_output or opts.output or ()]
