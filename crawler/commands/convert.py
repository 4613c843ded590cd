"""`scrapy convert`: Parquet, dense ids, link graph, load files."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from crawler.command import CommandError, LowtideCommand, print_json
from crawler.convert import DATABASES

if TYPE_CHECKING:
    import argparse

    from crawler.convert.convert import Progress, Wishes

# One folder name; `.tmp` and `.old` are the endings of unfinished folders.
_RUN = re.compile(r"(?!.*\.(?:tmp|old)$)[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Command(LowtideCommand):
    takes_words = False

    def syntax(self) -> str:
        return "[options]"

    def short_desc(self) -> str:
        return "Give pages dense ids; write Parquet, links for ranking, and load files"

    def long_desc(self) -> str:
        return (
            "Read one snapshot of the tables, also during a crawl, and write VAR_DIR/convert/RUN: pages, sites, "
            "domains, communities and links with dense ids as Parquet, and the links also as arrays for ranking. "
            "The folder is written completely or not at all (docs/convert.md)."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        every = ",".join(DATABASES)
        parser.add_argument("--run", metavar="NAME", help="the folder's name (default: the time, UTC)")
        parser.add_argument(
            "--processes", metavar="N", help="number of converter processes, as -s CONVERT_PROCESSES=N"
        )
        parser.add_argument(
            "--load", metavar="NAMES", nargs="?", const=every, help=f"load files too, for some of {every}"
        )
        parser.add_argument(
            "--communities",
            metavar="FILE",
            help="read communities from a file `site,community`, do not compute them",
        )
        parser.add_argument("--json", action="store_true", help="print the figures as JSON")

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        super().process_options(args, opts)
        assert self.settings is not None
        if opts.processes is not None:
            self.settings.set("CONVERT_PROCESSES", opts.processes, priority="cmdline")
            self.options = self.read_options()
        if opts.run is not None and not _RUN.fullmatch(opts.run):
            raise UsageError(
                f"--run is {opts.run!r}; expected letters, digits, `-`, `_` and `.`", print_help=False
            )
        opts.load = tuple(word.strip() for word in (opts.load or "").split(",") if word.strip())
        unknown = [word for word in opts.load if word not in DATABASES]
        if unknown:
            raise UsageError(
                f"--load names {unknown[0]!r}; expected some of {', '.join(DATABASES)}", print_help=False
            )

        from rankers import extras

        try:
            extras.require("numba", "pyarrow", *([] if opts.communities else ["graspologic_native"]))
        except extras.MissingExtraError as error:
            raise UsageError(str(error), print_help=False) from None

    def work(self, args: list[str], opts: argparse.Namespace) -> None:  # noqa: ARG002
        folder = self.options.var / "convert" / (opts.run or time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
        if folder.exists():
            raise CommandError(f"{folder} is there already; remove it, or give another --run")
        engine = self.tables()
        from crawler.convert.convert import ConvertError, convert
        from rankers.folder import FolderError, remove_leftovers

        try:
            remove_leftovers(folder.parent)
            with _progress() as progress:
                figures = convert(engine, folder, self._wishes(opts), progress)
        except (ConvertError, FolderError) as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"{folder} cannot be written: {' '.join(str(error).split())}") from None
        except KeyboardInterrupt:
            raise CommandError(f"stopped; nothing of {folder} is left") from None
        if opts.json:
            print_json({"folder": str(folder), **figures})
        else:
            print(_text(figures, folder))

    def _wishes(self, opts: argparse.Namespace) -> Wishes:
        from crawler.convert.convert import Wishes
        from rankers.pieces import cores

        return Wishes(
            processes=self.options.convert_processes or cores(),
            private_suffixes=self.options.domain_private_suffixes,
            resolution=self.options.community_resolution,
            communities=Path(opts.communities) if opts.communities else None,
            load=opts.load,
        )


@contextmanager
def _progress() -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield lambda *_progress: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def show(doing: str, done: int, total: int) -> None:
            if doing not in tasks:
                tasks[doing] = bars.add_task(doing)
            bars.update(tasks[doing], completed=done, total=total)

        yield show


def _text(figures: dict[str, Any], folder: Path) -> str:
    counts = figures["counts"]
    lines = [
        ("folder", str(folder)),
        ("pages", _amounts(figures, "pages", "sites", "domains", "communities")),
        ("links", _amounts(figures, "links")),
        (
            "no pages",
            _amounts(counts, *(name for name in counts if name.startswith(("dupl", "redir", "rows_")))),
        ),
        (
            "no links",
            _amounts(counts, "links_unknown", "links_own", "links_parallel", "pages_with_damaged_links"),
        ),
        ("no site", _amounts(counts, "sites_without_pages")),
    ]
    if figures["log_bytes"]:
        lines.append(("database", f"its log grew by {figures['log_bytes'] / 1e6:,.0f} MB during the run"))
    return "\n".join(f"{name:<9} {text}" for name, text in lines if text)


def _amounts(counts: dict[str, Any], *names: str) -> str:
    """Counts above 0 with their names; pages and links always."""
    words = {name: re.sub(r"^(rows|links)_", "", name).replace("_", " ") for name in names}
    return ", ".join(f"{counts[n]:,} {words[n]}" for n in names if counts[n] or n in ("pages", "links"))
