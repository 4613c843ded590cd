"""Numbers of sites and domains, once it is known which rows are pages. Pure.

Sites that have a page are numbered from 0 in the order of (domain, name), domains by name; so the pages of a site are
neighbours, and the sites of a domain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from crawler.convert.pages import Pages
from crawler.convert.sites import Sites
from crawler.convert.spill import Rows


class Numbering(NamedTuple):
    """Sites and domains by their numbers."""

    place: np.ndarray  # int64 of each site: its place in `Sites`
    first_page: np.ndarray  # (sites + 1,) int64, the number of pages at the end
    domain: np.ndarray  # int32 of each site
    domains: list[str]  # their names
    site: np.ndarray  # int32 of each page
    index_row: np.ndarray  # int64 of each site: the row with its index page, -1: there is none on this site

    @property
    def many(self) -> int:
        """How many sites."""
        return len(self.place)


def number(found: Sites, rows: Rows, pages: Pages) -> Numbering:
    """The numbers of these sites and their domains."""
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
    """By place: the row with the content that `/` leads to, as long as it does not lead away from the site."""
    lengths = np.array([len(name.encode()) for name in found.names], np.int64)
    index = np.full(len(found.names), -1, np.int64)
    # A URL is the site's name and a path, so the path is `/` where one byte is left for it.
    roots = np.flatnonzero((rows.url_length == lengths[rows.site] + 1) & (pages.content >= 0))
    content = pages.content[roots]
    kept = rows.site[content] == rows.site[roots]
    index[rows.site[roots[kept]]] = content[kept]
    return index
