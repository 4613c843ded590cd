"""`scrapy rank`: ranks a `convert` run."""

from __future__ import annotations

import fnmatch
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from crawler.command import CommandError, LowtideCommand, print_json

if TYPE_CHECKING:
    import argparse

    from sqlalchemy import Engine

    from crawler.store.ranks import Progress
    from rankers.job import Job

# A run's name is one folder name below VAR_DIR/convert.
_RUN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
# The run's tables of pages and sites; each row has its hash.
_PAGES, _SITES = "pages-*.parquet", "sites.parquet"


class Command(LowtideCommand):
    takes_words = False

    def syntax(self) -> str:
        return "[options]"

    def short_desc(self) -> str:
        return "Rank the pages that convert wrote, by the links between them"

    def long_desc(self) -> str:
        return (
            "Rank the pages of VAR_DIR/convert/RUN by the links between them. Ranks of pages, sites, domains and "
            "communities are written to the folder ranks/MODE-BLOCK there, and those of pages and sites to the tables "
            "ranks and site_ranks, where they replace the last ranking in one transaction. `python -m rankers "
            "FOLDER` does the same without tables."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        from rankers import job

        super().add_options(parser)
        parser.add_argument("--run", metavar="NAME", help="a run of convert (default: the newest)")
        job.add_options(parser, from_settings=True)
        parser.add_argument("--json", action="store_true", help="print the figures as JSON")

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        super().process_options(args, opts)
        if opts.run is not None and not _RUN.fullmatch(opts.run):
            raise UsageError(
                f"--run is {opts.run!r}; expected the name of a folder below VAR_DIR/convert",
                print_help=False,
            )
        for name in ("mode", "block", "damping"):
            if getattr(opts, name) is None:
                setattr(opts, name, getattr(self.options, f"rank_{name}"))
        self.job = self._job(opts)

    def work(self, args: list[str], opts: argparse.Namespace) -> None:  # noqa: ARG002
        from rankers import job

        if self.job is None:
            raise CommandError(
                f"no run of convert below {self.options.var / 'convert'}: `scrapy convert` first"
            )
        from crawler.store.database import migrate

        engine = self.tables()
        migrate(engine)
        try:
            # Check the files before the ranking, which may take hours.
            of_pages, of_sites = _whole_files(self.job.folder, _PAGES), _whole_files(self.job.folder, _SITES)
            figures = job.run(self.job, job.shown())
            job.end_shown()
            figures["ranking"] = _store(engine, self.job, of_pages, of_sites, _shown())
        except job.errors() as error:
            raise CommandError(job.told(error)) from None
        except KeyboardInterrupt:
            raise CommandError("stopped; the previous ranking stays in force") from None
        finally:
            job.end_shown()
        if opts.json:
            print_json(figures)
        else:
            print(f"{job.text(figures)}\nin force as ranking {figures['ranking']}")

    def _job(self, opts: argparse.Namespace) -> Job | None:
        """None if there is no run to rank."""
        from rankers import job
        from rankers.folder import newest

        below = self.options.var / "convert"
        folder = below / opts.run if opts.run else newest(below)
        try:
            found = job.job_of(opts, folder or below)
        except ValueError as error:
            raise UsageError(job.told(error), print_help=False) from None
        return found if folder else None


def _whole_files(folder: Path, name: str) -> list[Path]:
    """In the order of ids. Raises FolderError for missing or damaged files."""
    from rankers.folder import FolderError, check, read_manifest

    names = sorted(fnmatch.filter(read_manifest(folder)["files"], name))
    if not names:
        raise FolderError(
            f"{folder} has no {name} in its manifest; expected a run of convert that was written whole"
        )
    check(folder, names)
    return [folder / one for one in names]


def _store(
    engine: Engine, job: Job, of_pages: list[Path], of_sites: list[Path], progress: Progress | None
) -> int:
    """Stores the ranks in the tables. Returns the ranking's number."""
    from crawler.store.ranks import Ranked, replace
    from rankers.results import FILES, PAGES

    page, rank = (
        _columns(of_pages, "site_hash", "url_hash"),
        _columns([job.target / PAGES], "rank"),
    )
    site, of_site = _columns(of_sites, "site_hash", "pages"), _columns([job.target / FILES["site"]], "rank")
    return replace(
        engine,
        Ranked(
            job.folder.name,
            job.mode,
            job.block,
            job.damping,
            page["site_hash"],
            page["url_hash"],
            rank["rank"],
            site["site_hash"],
            of_site["rank"],
            site["pages"],
        ),
        progress,
    )


def _columns(files: list[Path], *columns: str) -> dict[str, Any]:
    """In the order of ids."""
    import pyarrow.parquet as pq

    table = pq.ParquetDataset(files).read(columns=list(columns))
    return {column: table[column].to_numpy() for column in columns}


def _shown() -> Progress | None:
    """None without a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        sys.stderr.write(f"\r\x1b[2Kinto the tables: {done:,} of {total:,} rows")
        sys.stderr.flush()

    return show
