"""`scrapy report`: reports from the tables."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from crawler.command import CommandError, LowtideCommand, print_json
from crawler.options import nearest

if TYPE_CHECKING:
    import argparse

    from crawler.reports import Crawl, Report
    from crawler.views.drawing import Picture


class Command(LowtideCommand):
    def syntax(self) -> str:
        return "[options] [NAME …]"

    def short_desc(self) -> str:
        from crawler import reports

        return "Show reports from the tables: " + ", ".join(reports.names())

    def long_desc(self) -> str:
        return (
            "Show reports from the tables; `summary` by default. --html writes the pictures of all reports, or of the "
            "named ones, into one self-contained file. Exit code 1 if a report finds an error, as `ledger` does if a "
            "URL is missing."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--json", action="store_true", help="print the figures as JSON")
        parser.add_argument("--csv", action="store_true", help="print one report as a table for spreadsheets")
        parser.add_argument(
            "--url", default="", help="show this page only (`freshness`: when it is fetched, and why)"
        )
        parser.add_argument("--html", metavar="FILE", help="write a page with figures and pictures")

    def work(self, args: list[str], opts: argparse.Namespace) -> int:
        from crawler import reports

        known = reports.names()
        names = args or (known if opts.html else ["summary"])
        self._check(names, known, opts)
        if opts.url and names != ["freshness"]:
            raise UsageError("--url is given; expected the report `freshness` only", print_help=False)
        crawl = self._crawl()._replace(url=opts.url)
        found = [(report, report.figures(crawl)) for report in map(reports.Report, names)]
        if opts.html:
            self._write_page(opts.html, found)
        if opts.json:
            print_json({report.name: figures for report, figures in found})
        elif opts.csv:
            _print_csv(found[0][0].rows(found[0][1]))
        elif not opts.html:
            print("\n\n".join(report.text(figures) for report, figures in found))
        return int(any(report.failed(figures) for report, figures in found))

    def _check(self, names: list[str], known: list[str], opts: argparse.Namespace) -> None:
        unknown = [name for name in names if name not in known]
        if unknown:
            near = nearest(unknown[0], known)
            hint = f"; did you mean {near}?" if near else ""
            raise UsageError(
                f"no report {unknown[0]!r}; there are {', '.join(known)}{hint}", print_help=False
            )
        if opts.csv and (opts.json or len(names) > 1):
            raise UsageError("--csv prints one table; expected one report, and no --json", print_help=False)

    def _crawl(self) -> Crawl:
        from crawler.reports import Crawl

        assert self.settings is not None
        return Crawl(self.tables(), self.settings, self.options)

    def _write_page(self, file: str, found: list[tuple[Report, Any]]) -> None:
        from crawler.views.page import Section, written

        page = written(
            [
                Section(report.name, report.title, report.text(figures), _pictures(report, figures))
                for report, figures in found
            ]
        )
        try:
            Path(file).write_text(page, encoding="utf-8")
        except OSError as error:
            raise CommandError(
                f"--html {file}: {error.strerror or error}; expected a file to write to"
            ) from None
        print(f"{file}: {len(found)} reports", file=sys.stderr)


def _pictures(report: Report, figures: Any) -> list[Picture]:
    """Empty, and a line is printed, without the extra that draws them."""
    try:
        return report.pictures(figures)
    except ImportError as error:
        from rankers import extras

        missing = extras.missing(error)
        if missing is None:
            raise
        print(f"{report.name}: its picture is left out: {missing}", file=sys.stderr)
        return []


def _print_csv(rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(names)
    out.writerows([[_tame(row.get(name)) for name in names] for row in rows])


def _tame(value: Any) -> Any:
    """Quotes text that a spreadsheet would run as a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
