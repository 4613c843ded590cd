"""`scrapy report`: what the tables say."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from crawler.command import CommandError, LowtideCommand, print_json

if TYPE_CHECKING:
    import argparse


class Command(LowtideCommand):
    def syntax(self) -> str:
        return "[options] [NAME …]"

    def short_desc(self) -> str:
        return "Show what the tables say: " + ", ".join(_names())

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--json", action="store_true", help="print the figures as JSON")

    def work(self, args: list[str], opts: argparse.Namespace) -> int:
        from crawler.reports import Crawl
        from crawler.store.database import check_version, open_database
        from crawler.store.joining import require_tables

        names = args or ["summary"]
        unknown = [name for name in names if name not in _names()]
        if unknown:
            raise CommandError(f"no report {unknown[0]!r}; there are {', '.join(_names())}")
        assert self.settings is not None
        require_tables(self.settings, self.options)
        engine = open_database(self.options.database)
        if check_version(engine) is None:
            raise CommandError(f"nothing was crawled yet: no tables in {self.options.database}")
        crawl = Crawl(engine, self.settings, self.options)
        modules = {name: import_module(f"crawler.reports.{name}") for name in names}
        figures = {name: module.figures(crawl) for name, module in modules.items()}
        if opts.json:
            print_json(figures)
        else:
            print("\n\n".join(module.text(figures[name]) for name, module in modules.items()))
        return int(any(getattr(module, "failed", _never)(figures[name]) for name, module in modules.items()))


def _never(_figures: object) -> bool:
    return False


def _names() -> list[str]:
    from importlib import resources

    files = resources.files("crawler.reports").iterdir()
    return sorted(
        file.name.removesuffix(".py") for file in files if file.name[0] != "_" and file.name.endswith(".py")
    )
