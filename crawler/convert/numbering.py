"""Ids of sites and domains, ordered by (domain, name), so that a domain's sites and a site's pages are contiguous."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, func, select

from crawler.convert import arrays
from crawler.convert.pages import Pages
from crawler.convert.spill import Rows
from crawler.store import tables

# --- Sites with rows, their order, and ranges for reading ---
# Order and ranges depend on names and rows alone, not on the number of converters.


# Minimum rows of a range: one row group of Parquet, about 10 MB of pages.
RANGE_ROWS = 131_072


class Sites(NamedTuple):
    """Sites ordered by (domain, name)."""

    names: list[str]
    domains: list[str]
    hashes: np.ndarray  # int64, sites.site_id
    rows: np.ndarray  # int64, of the table `pages`


class Counted(NamedTuple):
    """A site as the database returns it."""

    site_id: int
    name: str | None  # None: missing in `sites`
    rows: int


def count(connection: Connection) -> list[Counted]:
    """Every site with rows, unordered."""
    site, pages = tables.sites, tables.pages
    rows = select(pages.c.site_id, func.count().label("rows")).group_by(pages.c.site_id).subquery()
    named = rows.outerjoin(site, site.c.site_id == rows.c.site_id)
    query = select(rows.c.site_id, site.c.site, rows.c.rows).select_from(named)
    return [Counted(*row) for row in connection.execute(query)]


def ordered(counted: Iterable[Counted], domain_of: Callable[[str], str]) -> Sites:
    """The sites with names, in order."""
    found = sorted(
        (domain_of(name), name, site_id, rows) for site_id, name, rows in counted if name is not None
    )
    return Sites(
        [name for _, name, _, _ in found],
        [domain for domain, _, _, _ in found],
        np.array([site_id for _, _, site_id, _ in found], np.int64),
        np.array([rows for _, _, _, rows in found], np.int64),
    )


def known(connection: Connection) -> int:
    """Number of sites, including those without rows."""
    return int(connection.execute(select(func.count()).select_from(tables.sites)).scalar_one())


def names(connection: Connection) -> list[str]:
    """Names of all sites, sorted."""
    return sorted(connection.execute(select(tables.sites.c.site)).scalars())


def cut(rows: Sequence[int] | np.ndarray, most: int) -> list[int]:
    """Boundaries of runs of sites; each run but the last has at least `most` rows. At least one run."""
    bounds, held = [0], 0
    for site, more in enumerate(rows):
        held += int(more)
        if held >= most:
            bounds.append(site + 1)
            held = 0
    if bounds[-1] < len(rows) or len(bounds) == 1:
        bounds.append(len(rows))
    return bounds


# --- For converters ---


class Plan(NamedTuple):
    """What converters need to know of the sites, in their order."""

    hashes: np.ndarray  # int64
    rows: np.ndarray  # int64
    bounds: np.ndarray  # int64: range k has the sites bounds[k] .. bounds[k + 1] - 1


def plan_of(found: Sites) -> Plan:
    """The plan with the ranges of these sites."""
    return Plan(found.hashes, found.rows, np.array(cut(found.rows, RANGE_ROWS), np.int64))


def save(plan: Plan, folder: Path) -> None:
    """Writes the plan."""
    for name, array in plan._asdict().items():
        arrays.save_array(folder / f"plan-{name}.npy", array)


def load(folder: Path) -> Plan:
    """Reads the plan, memory-mapped."""
    return Plan(*(np.load(folder / f"plan-{name}.npy", mmap_mode="r") for name in Plan._fields))


class Numbering(NamedTuple):
    """Ids of sites and domains."""

    place: np.ndarray  # int64 of each site: its place in `Sites`
    first_page: np.ndarray  # (sites + 1,) int64, then the number of pages
    domain: np.ndarray  # int32 of each site
    domains: list[str]  # their names
    site: np.ndarray  # int32 of each page
    index_row: np.ndarray  # int64 of each site: the row with its index page, -1: none

    @property
    def many(self) -> int:
        """Number of sites."""
        return len(self.place)


def number(found: Sites, rows: Rows, pages: Pages) -> Numbering:
    """Numbers sites with pages, and their domains."""
    counts = np.bincount(rows.site[pages.row], minlength=len(found.names))
    place = np.flatnonzero(counts)
    first_page = np.concatenate(([0], np.cumsum(counts[place]))).astype(np.int64)
    names = [found.domains[at] for at in place]
    begins = np.array([at == 0 or names[at] != names[at - 1] for at in range(len(names))], np.bool_)
    return Numbering(
        place=place,
        first_page=first_page,
        domain=(np.cumsum(begins) - 1).astype(np.int32),
        domains=[name for name, new in zip(names, begins, strict=True) if new],
        site=np.repeat(np.arange(len(place), dtype=np.int32), counts[place]),
        index_row=_index_rows(found, rows, pages)[place],
    )


def _index_rows(found: Sites, rows: Rows, pages: Pages) -> np.ndarray:
    """By place: the row with the content of `/`, unless it redirects to another site."""
    lengths = np.array([len(name.encode()) for name in found.names], np.int64)
    index = np.full(len(found.names), -1, np.int64)
    # A URL is the site's name and a path: one byte is left for the path `/`.
    roots = np.flatnonzero((rows.url_length == lengths[rows.site] + 1) & (pages.content >= 0))
    content = pages.content[roots]
    kept = rows.site[content] == rows.site[roots]
    index[rows.site[roots[kept]]] = content[kept]
    return index
