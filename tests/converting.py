"""Tables for convert, and what must come of them: told in plain Python from the records, with no arrays and no hashes.

`Rule` is the whole of what convert promises about pages, numbers and links, written a second time the slow way.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine

from crawler.convert import graph, numbering, reading
from crawler.convert.convert import Wishes, convert
from crawler.records import Page, PageOutcome, SiteFound, pack_links
from crawler.store.database import migrate, open_database, transaction
from crawler.store.write import Stored, store

CONTENT = ("stored", "duplicate")


class Given(NamedTuple):
    """One row of `pages`, and the URLs that it links to."""

    site: str
    path: str
    outcome: PageOutcome = "stored"
    text: str | None = None  # what its checksum is over: None: its own URL, "": an empty body
    to: str = ""  # path that a duplicate names, URL that a redirect names
    links: tuple[str, ...] = ()
    title: str = ""

    @property
    def url(self) -> str:
        return self.site + self.path

    @property
    def body(self) -> str:
        return self.url if self.text is None else self.text

    @property
    def named(self) -> str:
        """The URL that it names."""
        return self.site + self.to if self.to and self.outcome == "duplicate" else self.to

    def record(self, number: int = 0) -> Page:
        fetched = self.outcome in CONTENT
        return Page(
            site=self.site,
            path=self.path,
            fetched_at=1_000 + number,
            outcome=self.outcome,
            status=200 if fetched else 302 if self.outcome == "redirected" else 404,
            sha256=hashlib.sha256(self.body.encode()).hexdigest() if fetched else "",
            size=len(self.body) if fetched else 0,
            title=self.title,
            description=f"about {self.title}" if self.title else "",
            duplicate_of=self.to if self.outcome == "duplicate" else "",
            redirect=self.to if self.outcome == "redirected" else "",
            content_type="text/html" if fetched else "",
            language="en" if self.title else "",
        )


def make_bounds_small(patch: pytest.MonkeyPatch) -> None:
    """Bounds that a few rows reach: batches, ranges and pieces of two or three."""
    patch.setattr(reading, "BATCH_ROWS", 3)
    patch.setattr(reading, "BATCH_SITES", 2)
    patch.setattr(numbering, "RANGE_ROWS", 8)
    patch.setattr(graph, "PIECE_LINKS", 2)


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    """The database of this URL, for the block."""
    engine = open_database(url)
    try:
        yield engine
    finally:
        engine.dispose()


def put(url: str, rows: Sequence[Given]) -> str:
    """Fills the database of this URL, and gives the URL."""
    with opened(url) as engine:
        fill(engine, rows)
    return url


def fill(engine: Engine, rows: Sequence[Given], batch: int = 1_000) -> None:
    """Migrates, and writes the rows as a coordinator does, in this order."""
    migrate(engine)
    for start in range(0, len(rows), batch):
        records = [Stored("1-0", row.record(), pack_links(row.links)) for row in rows[start : start + batch]]
        with transaction(engine) as connection:
            store(connection, records)


def find_sites(engine: Engine, names: Iterable[str]) -> None:
    """Sites that are known, and have no page."""
    with transaction(engine) as connection:
        store(connection, [Stored("1-0", SiteFound(site=name, found_at=1)) for name in names])


def converted(url: str, folder: Path, **wishes: Any) -> dict[str, Any]:
    """Converts the database of this URL; the figures."""
    with opened(url) as engine:
        return convert(engine, folder, Wishes(**wishes), lambda *_: None)


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of one of the folder's tables."""
    files = sorted(folder.glob(f"{name}-*.parquet")) or [folder / f"{name}.parquet"]
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def links_of(folder: Path) -> dict[str, set[str]]:
    """Whom each page links to, by URL, from the arrays that ranking reads."""
    urls = [page["url"] for page in table(folder, "pages")]
    ptr, target = np.load(folder / "graph/ptr.npy"), np.load(folder / "graph/target.npy")
    return {url: {urls[to] for to in target[ptr[i] : ptr[i + 1]]} for i, url in enumerate(urls)}


def files_of(folder: Path) -> dict[str, bytes]:
    """All that the folder holds."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@dataclass
class Rule:
    """What these rows come to."""

    rows: Sequence[Given]
    leads_to: dict[str, str] = field(init=False)  # URL of a row -> URL of the page that one ends up on
    pages: set[str] = field(init=False)
    links: dict[str, set[str]] = field(init=False)
    counts: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._row = {row.url: row for row in self.rows}
        self._copies = self._groups()
        ended = {url: self._followed(url) for url in self._row}
        standing = {
            url: min(group, key=lambda one: (len(one.encode()), one)) for url, group in self._copies.items()
        }
        self.leads_to = {url: standing[end] for url, end in ended.items() if end}
        self.pages = set(standing.values())
        self._resolve()

    def _groups(self) -> dict[str, set[str]]:
        """Of each URL with content all its copies, itself among them."""
        group = {row.url: {row.url} for row in self.rows if row.outcome in CONTENT}

        def unite(one: str, other: str) -> None:
            both = group[one] | group[other]
            for url in both:
                group[url] = both

        by_body: dict[str, str] = {}
        for url in group:
            row = self._row[url]
            if row.body:
                unite(url, by_body.setdefault(row.body, url))
            if row.outcome == "duplicate" and row.named in group:
                unite(url, row.named)
        return group

    def _followed(self, url: str, hops: int = 10) -> str:
        """The URL with content that this one leads to; empty: none."""
        row = self._row.get(url)
        if row is None or (row.outcome not in CONTENT and row.outcome != "redirected"):
            return ""
        if row.outcome in CONTENT:
            return url
        return self._followed(row.to, hops - 1) if hops and row.to else ""

    def _resolve(self) -> None:
        self.links = {url: set() for url in self.pages}
        counts: dict[str, int] = defaultdict(int)
        for row in self.rows:
            if row.outcome not in CONTENT:
                continue
            source = self.leads_to[row.url]
            for url in set(row.links):
                counts["read"] += 1
                target = self.leads_to.get(url)
                if target is None:
                    counts["unknown"] += 1
                elif target == source:
                    counts["own"] += 1
                elif target in self.links[source]:
                    counts["parallel"] += 1
                else:
                    self.links[source].add(target)
        self.counts = {f"links_{name}": counts[name] for name in ("read", "unknown", "own", "parallel")}
