"""`scrapy doctor`: checks what a crawl needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler.command import LowtideCommand, print_json

if TYPE_CHECKING:
    import argparse


class Command(LowtideCommand):
    takes_words = False

    def short_desc(self) -> str:
        return "Check server, database, machine and settings, and say what to do"

    def long_desc(self) -> str:
        return "Check everything a crawl needs. Exit code 1 if anything would stop or harm a crawl."

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")

    def work(self, args: list[str], opts: argparse.Namespace) -> int:  # noqa: ARG002
        from crawler.admin import doctor

        assert self.settings is not None
        findings = doctor.examine(self.settings, self.options)
        if opts.json:
            print_json([finding._asdict() for finding in findings])
        else:
            print(doctor.text(findings))
        return int(any(finding.grade == "bad" for finding in findings))
