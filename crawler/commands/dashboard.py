"""`scrapy dashboard`: a web page of the crawl."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from crawler.command import CommandError, LowtideCommand
from crawler.local.supervisor import told_to_end

if TYPE_CHECKING:
    import argparse

    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.reports import Report
    from crawler.views.dashboard import Board
    from crawler.views.page import Section

# Reports shown on the page, if they exist.
ON_THE_PAGE = ("status", "freshness")


class Command(LowtideCommand):
    takes_words = False

    def short_desc(self) -> str:
        return "Show the crawl on a web page, and its figures to Prometheus"

    def long_desc(self) -> str:
        return (
            "Serve one web page at DASHBOARD_ADDRESS:DASHBOARD_PORT until Ctrl-C: progress, agents and coordinators, "
            "queues, loads by the hour, pages per hour, ranks, errors, a page for each site; /metrics has the figures "
            "for Prometheus. It changes nothing. Addresses other than loopback need DASHBOARD_PASSWORD."
        )

    def work(self, args: list[str], opts: argparse.Namespace) -> None:  # noqa: ARG002
        from crawler.local.local import joined
        from crawler.views.dashboard import check_address

        check_address(self.options)
        assert self.settings is not None
        with joined(self.settings, self.options):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        from crawler.views.dashboard import Dashboard

        assert self.settings is not None
        stop = asyncio.Event()
        dashboard = Dashboard(self.settings, self.options, boards(self.settings, self.options))
        with told_to_end(stop.set):
            try:
                print(f"dashboard: {await dashboard.start()}  (Ctrl-C ends it)", flush=True)
                await stop.wait()
            except OSError as error:
                raise CommandError(
                    f"the dashboard cannot listen: {error}; expected a free DASHBOARD_PORT of this machine's "
                    "DASHBOARD_ADDRESS"
                ) from None
            finally:
                await dashboard.stop()


def boards(settings: BaseSettings, options: Options) -> dict[str, Board]:
    """Existing reports of ON_THE_PAGE, as sections."""
    from crawler import reports

    there = [name for name in ON_THE_PAGE if name in reports.names()]
    return {name: _board(reports.Report(name), settings, options) for name in there}


def _board(report: Report, settings: BaseSettings, options: Options) -> Board:
    from crawler.reports import Crawl
    from crawler.views.page import Section

    def made(engine: Engine) -> Section:
        figures = report.figures(Crawl(engine, settings, options))
        return Section(report.name, report.title, report.text(figures), report.pictures(figures))

    return made
