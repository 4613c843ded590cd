"""Converts the tables to a folder.

Equal rows give equal bytes, whatever the database and the number of converters. Raises ConvertError, FolderError (one
line each), DatabaseError and OSError; nothing is left behind then.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crawler.convert import ConvertError, graph, numbering, pages, reading, writing
from crawler.convert.reading import in_order
from crawler.convert.spill import REDIRECTED, Spill
from crawler.urls.url import domain_finder
from rankers.communities import by_smallest_site, communities, read_csv
from rankers.folder import made_whole, write_manifest

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

__all__ = ["ConvertError", "Progress", "Wishes", "convert"]

# Called with the current step, units done, units in total.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Wishes:
    """Options of a conversion; `processes` does not affect the result."""

    processes: int = 1
    private_suffixes: bool = True  # names below github.io and similar count as domains
    resolution: float = 1.0  # of communities; above 1: smaller communities
    communities: Path | None = None  # a file `site,community`; None: detect communities from the links
    load: tuple[str, ...] = ()  # of crawler.convert.DATABASES


def convert(engine: Engine, folder: Path, wishes: Wishes, progress: Progress) -> dict[str, Any]:
    """Writes or replaces the folder; returns its manifest without `files`, plus `log_bytes`.

    `log_bytes`: growth of SQLite's WAL during the conversion.
    """
    log = reading.log_bytes(engine)
    with made_whole(folder) as made:
        figures = _write(engine, made, wishes, progress)
        write_manifest(made, figures)
    grown = max(0, reading.log_bytes(engine) - log)
    reading.give_log_back(engine)
    return {**figures, "log_bytes": grown}


def _write(engine: Engine, made: Path, wishes: Wishes, progress: Progress) -> dict[str, Any]:
    put_down = made / "spill"
    put_down.mkdir()
    read = _read(engine, put_down, wishes, progress)
    progress("numbering pages", 0, 1)
    with closing(Spill(put_down, read.ranges)) as spill:
        figures = _write_read(made, spill, read, wishes, progress)
    shutil.rmtree(put_down)
    _write_load_files(made, figures["pages"] + figures["links"], wishes, progress)
    return figures


def _write_read(made: Path, spill: Spill, read: _Read, wishes: Wishes, progress: Progress) -> dict[str, Any]:
    which = pages.find(spill)
    spill.forget_copies()
    numbered = numbering.number(read.sites, spill.rows, which)
    progress("numbering pages", 1, 1)
    pairs, of_links = graph.write_links(made, _links(spill, which, wishes, progress), numbered, read.ranges)
    progress("finding communities", 0, 1)
    if read.given is None:
        community = communities(numbered.many, *pairs.edges(), resolution=wishes.resolution)
    else:
        community = by_smallest_site(read.given[numbered.place])
    progress("finding communities", 1, 1)
    graph.write_blocks(made, numbered, community)
    _write_pages(made, spill, read.sites, which, numbered, community, wishes, progress)
    return {
        "pages": which.many,
        "sites": numbered.many,
        "domains": len(numbered.domains),
        "communities": int(community.max(initial=-1)) + 1,
        "links": of_links["links"],
        "counts": {**_row_counts(read, spill, which, numbered), **_link_counts(read, of_links)},
        "options": _told(wishes),
    }


# --- Reading ---


class _Read(NamedTuple):
    sites: numbering.Sites
    ranges: int
    rows: int
    without_site: int  # rows whose site is not in `sites`
    left_out: Counter[str]  # rows by outcome, and reading.DAMAGED
    known_sites: int
    given: np.ndarray | None  # communities from the file, by place


def _read(engine: Engine, put_down: Path, wishes: Wishes, progress: Progress) -> _Read:
    many = min(wishes.processes, _worth(engine))
    with ExitStack() as stack:
        others = stack.enter_context(reading.started(engine, many)) if many > 1 else None
        connection = stack.enter_context(reading.held(engine, others.begin if others else None))
        counted = numbering.count(connection)
        known = numbering.known(connection)
        given = _given(wishes.communities, connection)
        found = numbering.ordered(counted, domain_finder(private_suffixes=wishes.private_suffixes))
        plan = numbering.plan_of(found)
        numbering.save(plan, put_down)
        ranges = range(len(plan.bounds) - 1)
        if others:
            parts = others.read(put_down, ranges)
        else:
            parts = (reading.read_range(connection, plan, put_down, number) for number in ranges)
        left_out: Counter[str] = Counter()
        done = np.concatenate(([0], np.cumsum(plan.rows)))[plan.bounds]
        for part, rows_done in zip(parts, done[1:].tolist(), strict=True):
            left_out.update(part)
            progress("reading pages", rows_done, int(done[-1]))
    rows = sum(one.rows for one in counted)
    by_place = None if given is None else np.array([given[name] for name in found.names], np.int32)
    return _Read(found, len(ranges), rows, rows - int(done[-1]), left_out, known, by_place)


def _worth(engine: Engine) -> int:
    """Number of converters that repay their start of a second each."""
    if not reading.can_be_shared(engine):
        return 1
    return max(1, reading.rows_about(engine) // numbering.RANGE_ROWS)


def _given(file: Path | None, connection: Connection) -> dict[str, int] | None:
    """Community of every site by name; None without a file."""
    if file is None:
        return None
    names = numbering.names(connection)
    try:
        with file.open("rb") as lines:
            return dict(zip(names, read_csv(lines, names).tolist(), strict=True))
    except (OSError, ValueError) as error:
        raise ConvertError(f"communities of {file}: {error}") from None


# --- Writing ---


def _links(spill: Spill, which: pages.Pages, wishes: Wishes, progress: Progress) -> Iterator[graph.Piece]:
    for piece in graph.found(spill, which, wishes.processes):
        progress("resolving links", piece.first + len(piece.counts), which.many)
        yield piece


def _write_pages(
    made: Path,
    spill: Spill,
    found: numbering.Sites,
    which: pages.Pages,
    numbered: numbering.Numbering,
    community: np.ndarray,
    wishes: Wishes,
    progress: Progress,
) -> None:
    files = writing.PageFiles(made, spill, found, which, numbered, community)
    indexes: dict[int, writing.Texts] = {}
    for number, part in enumerate(in_order(files.write, range(spill.ranges), wishes.processes)):
        indexes |= part
        progress("writing pages", int(spill.first[number + 1]), spill.rows.many)
    writing.write_sites(made, found, numbered, community, indexes)


def _write_load_files(made: Path, rows: int, wishes: Wishes, progress: Progress) -> None:
    if wishes.load:
        done = 0
        for more in writing.write_load_files(made, wishes.load, wishes.processes):
            done += more
            progress("writing load files", min(done, rows), rows)


# --- Figures of the manifest ---


def _row_counts(
    read: _Read, spill: Spill, which: pages.Pages, numbered: numbering.Numbering
) -> dict[str, int]:
    """`rows` is the sum of pages, duplicates, redirects and all `rows_…`."""
    redirects = spill.rows.kind == REDIRECTED
    outcomes = sorted({"denied", "failed", "filtered", *read.left_out} - {reading.DAMAGED})
    return {
        "rows": read.rows,
        "duplicates": spill.rows.many - int(redirects.sum()) - which.many,
        "redirects": int(redirects.sum()),
        "redirects_to_no_page": int((which.content[redirects] == pages.NOWHERE).sum()),
        "redirects_without_end": int((which.content[redirects] == pages.ENDLESS).sum()),
        **{f"rows_{outcome}": read.left_out[outcome] for outcome in outcomes},
        "rows_without_site": read.without_site,
        "sites_without_pages": read.known_sites - numbered.many,
    }


def _link_counts(read: _Read, found: Counter[str]) -> dict[str, int]:
    """`links_read` is the sum of links and the three counts after it."""
    counts = {f"links_{name}": found[name] for name in ("read", "unknown", "own", "parallel")}
    return {**counts, "pages_with_damaged_links": read.left_out[reading.DAMAGED]}


def _told(wishes: Wishes) -> dict[str, Any]:
    return {
        "private_suffixes": wishes.private_suffixes,
        "communities": "given" if wishes.communities else "found",
        "resolution": None if wishes.communities else wishes.resolution,
        "load": sorted(wishes.load),
    }
