"""The graph that rankers work on: pages grouped by block, links into each page split into own block and others.

Parallel links count once, links of a page to itself not at all. Raises ValueError for invalid arrays, FolderError for
invalid folders; validated graphs are safe for compiled code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rankers import folder as folders
from rankers.folder import FolderError

if TYPE_CHECKING:
    from rankers.in_links import InLinks
    from rankers.rows import Rows

# Kinds of blocks in a folder.
BLOCKS = ("site", "domain", "community")
_FILES = {"ptr": np.int64, "target": np.int32, "site": np.int64, "domain": np.int32, "community": np.int32}


class Blocks(NamedTuple):
    """Pages by block: block b has label[b] and the pages at places start[b] .. start[b + 1] - 1."""

    label: np.ndarray  # (blocks,), ascending, integers of the caller's type
    start: np.ndarray  # (blocks + 1,) int64; no block is empty
    order: np.ndarray | None  # (pages,) int32: page at each place; None: equal


class Arrays(NamedTuple):
    """A graph's arrays for compiled functions; described in Graph."""

    block_start: np.ndarray
    inner: InLinks
    outer: InLinks
    degree: np.ndarray
    inner_degree: np.ndarray


@dataclass(frozen=True)
class Graph:
    """n pages and their links. Arrays go by place; `to_caller` converts to page ids."""

    blocks: Blocks
    inner: InLinks  # links into each page from its own block
    outer: InLinks  # links into each page from other blocks
    degree: np.ndarray  # (n,) int32: links of a page; 0: dangling
    inner_degree: np.ndarray  # (n,) int32: those into its own block

    @classmethod
    def from_edges(cls, source: np.ndarray, target: np.ndarray, block: np.ndarray) -> Graph:
        """A graph of len(block) pages with these links; block[i]: any integer for page i's block.

        Raises ValueError for other types than integers, different lengths, and ids of missing pages.
        """
        source, target, block = _whole("source", source), _whole("target", target), _whole("block", block)
        from rankers import rows

        pages = len(block)
        if pages > rows.MOST_PAGES:
            raise ValueError(f"block has {pages} pages; expected at most {rows.MOST_PAGES}")
        if len(source) != len(target):
            raise ValueError(f"{len(source)} sources and {len(target)} targets; expected equal numbers")
        blocks = _by_block(block)
        place = _inverse(blocks.order)
        pairs = [_places(*given, pages, place) for given in (("source", source), ("target", target))]
        return cls._of(rows.from_pairs(pairs[0], pairs[1], pages), blocks)

    @classmethod
    def load(cls, folder: str | Path, block: str = "site", *, check: bool = True) -> Graph:
        """The graph in a folder of `scrapy convert` or `save`, with its page ids.

        `check`: compare digests with the manifest (0.1 s for 10 million links). Raises FolderError for incomplete or
        damaged folders, ValueError for an unknown `block`.
        """
        if block not in BLOCKS:
            raise ValueError(f"block is {block!r}; expected one of {', '.join(BLOCKS)}")
        from rankers import rows

        folder = Path(folder)
        names = [name for name in _FILES if name in ("ptr", "target", "site", block)]
        folders.read_manifest(folder)
        if check:
            folders.check(folder, [_file(name) for name in names])
        read = {name: _array(folder / _file(name), _FILES[name]) for name in names}
        links = rows.Rows(read["ptr"], read["target"])
        _check_rows(folder, links)
        _check_sites(folder, read, block)
        first = read["site"]
        blocks = _by_site(first, read[block] if block != "site" else np.arange(len(first) - 1))
        place = _inverse(blocks.order)
        if blocks.order is not None and place is not None:
            links = rows.renumbered(links, blocks.order, place)
        return cls._of(links, blocks)

    def save(
        self, folder: str | Path, domain: np.ndarray | None = None, community: np.ndarray | None = None
    ) -> None:
        """Writes a folder for `load`, with blocks as sites and places as page ids.

        `domain`, `community`: of each block, from 0; None: each block has its own. Raises FolderError or OSError.
        """
        own = np.arange(len(self.blocks.label))
        groups = {
            name: _of_blocks(name, own if given is None else given, len(own))
            for name, given in (("domain", domain), ("community", community))
        }
        ptr, target = self._rows()
        figures = {"pages": self.pages, "sites": len(own), "links": self.links}
        figures |= {f"{plural}": len(np.unique(groups[name])) for name, plural in _PLURALS.items()}
        with folders.made_whole(Path(folder)) as made:
            (made / "graph").mkdir()
            arrays = {"ptr": ptr, "target": target, "site": self.blocks.start, **groups}
            for name, kind in _FILES.items():
                np.save(made / _file(name), arrays[name].astype(kind, copy=False))
            folders.write_manifest(made, figures)

    @property
    def pages(self) -> int:
        """Number of pages."""
        return len(self.degree)

    @property
    def links(self) -> int:
        """Number of links."""
        return len(self.inner.source) + len(self.outer.source)

    @property
    def arrays(self) -> Arrays:
        """All arrays, for compiled functions."""
        return Arrays(self.blocks.start, self.inner, self.outer, self.degree, self.inner_degree)

    @cached_property
    def pieces(self) -> np.ndarray:
        """Runs of blocks with about equal work, for rankers.pieces.over."""
        from rankers import pieces

        first = self.blocks.start
        return pieces.cut(first + self.inner.start[first] + self.outer.start[first])

    def to_caller(self, by_place: np.ndarray) -> np.ndarray:
        """Converts an array from places to page ids."""
        if self.blocks.order is None:
            return by_place
        found = np.empty_like(by_place)
        found[self.blocks.order] = by_place
        return found

    def to_places(self, by_page: np.ndarray) -> np.ndarray:
        """Converts an array from page ids to places."""
        return by_page if self.blocks.order is None else by_page[self.blocks.order]

    def by_block(self, ranks: np.ndarray) -> np.ndarray:
        """Sums of ranks (by page id) per block, in the order of `blocks.label`."""
        return block_sums(self.to_places(ranks), self.blocks.start)

    @classmethod
    def _of(cls, rows: Rows, blocks: Blocks) -> Graph:
        from rankers.in_links import split

        turned = split(rows.ptr, rows.target, blocks.start)
        return cls(
            blocks, turned.inner, turned.outer, np.diff(rows.ptr).astype(np.int32), turned.inner_degree
        )

    def _rows(self) -> Rows:
        from rankers import rows

        every = np.arange(self.pages, dtype=np.int32)
        target = [np.repeat(every, np.diff(links.start)) for links in (self.inner, self.outer)]
        source = np.concatenate((self.inner.source, self.outer.source))
        return rows.from_pairs(source, np.concatenate(target), self.pages)


_PLURALS = {"domain": "domains", "community": "communities"}


class Groups(NamedTuple):
    """Sites, domains and communities of a folder."""

    site: np.ndarray  # (sites + 1,) int64: first page of each site, then the end
    domain: np.ndarray  # (sites,) int32
    community: np.ndarray  # (sites,) int32

    def sums(self, ranks: np.ndarray) -> dict[str, np.ndarray]:
        """Ranks by page summed per site, domain and community."""
        sites = len(self.domain)
        of_page = np.repeat(np.arange(sites, dtype=np.int32), np.diff(self.site))
        by_site = np.bincount(of_page, ranks, sites)
        return {
            "site": by_site,
            "domain": np.bincount(self.domain, by_site),
            "community": np.bincount(self.community, by_site),
        }


def load_groups(folder: str | Path) -> Groups:
    """The groups of a folder that `Graph.load` reads. Raises FolderError if they are invalid."""
    folder = Path(folder)
    folders.check(folder, [_file(block) for block in BLOCKS])
    read = {name: _array(folder / _file(name), _FILES[name]) for name in _FILES if name != "target"}
    for block in BLOCKS:
        _check_sites(folder, read, block)
    return Groups(*(read[block] for block in BLOCKS))


def block_sums(by_place: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Sums per block; blocks start at `start` and are not empty."""
    return np.asarray(np.add.reduceat(by_place, start[:-1])) if len(start) > 1 else np.zeros(0)


# --- Pages by block ---


def _by_block(block: np.ndarray) -> Blocks:
    order = None
    if len(block) > 1 and (block[1:] < block[:-1]).any():
        order = np.argsort(block, kind="stable").astype(np.int32)
        block = block[order]
    first = np.flatnonzero(np.concatenate((np.ones(min(1, len(block)), bool), block[1:] != block[:-1])))
    return Blocks(block[first], np.append(first, len(block)).astype(np.int64), order)


def _by_site(first: np.ndarray, block: np.ndarray) -> Blocks:
    """Groups whole sites by block; site s has pages first[s] .. first[s + 1] - 1."""
    size = np.diff(first)
    sites = _by_block(block.astype(np.int64))
    some = np.arange(len(size)) if sites.order is None else sites.order
    ends = np.concatenate(([0], np.cumsum(size[some])))
    start = ends[sites.start]
    filled = np.flatnonzero(np.diff(start))
    order = None
    if sites.order is not None:
        order = (np.arange(ends[-1]) + np.repeat(first[some] - ends[:-1], size[some])).astype(np.int32)
    return Blocks(sites.label[filled], np.append(start[filled], ends[-1]), order)


def _inverse(order: np.ndarray | None) -> np.ndarray | None:
    if order is None:
        return None
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place


# --- Validation of arguments ---


def _whole(name: str, given: Any) -> np.ndarray:
    found = np.asarray(given)
    if found.ndim != 1:
        raise ValueError(f"{name} has shape {found.shape}; expected one dimension")
    if found.dtype.kind == "f":
        wrong = np.flatnonzero(~np.isfinite(found) | (found != np.trunc(found)))
        if len(wrong):
            raise ValueError(f"{name}[{wrong[0]}] is {found[wrong[0]]}; expected integers")
        return found.astype(np.int64)
    if found.dtype.kind not in "iu":
        raise ValueError(f"{name} is an array of {found.dtype}; expected integers")
    return found


def _places(name: str, pages_of: np.ndarray, pages: int, place: np.ndarray | None) -> np.ndarray:
    if len(pages_of) and not (pages_of.min() >= 0 and pages_of.max() < pages):
        wrong = np.flatnonzero((pages_of < 0) | (pages_of >= pages))[0]
        raise ValueError(
            f"{name}[{wrong}] is {pages_of[wrong]}, a page outside 0 .. {pages - 1}; expected one of the {pages} pages"
        )
    if place is not None:
        return np.asarray(place[pages_of])
    return np.ascontiguousarray(pages_of, np.int32)


def _of_blocks(name: str, given: Any, blocks: int) -> np.ndarray:
    found = _whole(name, given)
    if len(found) != blocks or (blocks and (found.min() < 0 or found.max() >= blocks)):
        raise ValueError(f"{name} has {len(found)} numbers; expected one per block ({blocks}), from 0")
    return found


# --- Files of a folder ---


def _file(name: str) -> str:
    return f"graph/{name}.npy"


def _array(path: Path, kind: type) -> np.ndarray:
    try:
        found = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise FolderError(f"{path} cannot be read: {error}; expected an array written by convert") from None
    if found.ndim != 1 or found.dtype != kind or not found.flags.c_contiguous:
        raise FolderError(
            f"{path} holds {found.dtype} of shape {found.shape}; expected one dimension of {np.dtype(kind)}"
        )
    return found


def _check_rows(folder: Path, links: Rows) -> None:
    from rankers import rows

    _check_bounds(folder / _file("ptr"), links.ptr, len(links.target), "links")
    if len(links.ptr) - 1 > rows.MOST_PAGES:
        raise FolderError(f"{folder} has {len(links.ptr) - 1} pages; expected at most {rows.MOST_PAGES}")
    fault = rows.first_fault(links)
    if fault is not None:
        raise FolderError(
            f"{folder / _file('target')}: the links of page {fault} are not ascending ids of other pages"
        )


def _check_sites(folder: Path, read: dict[str, np.ndarray], block: str) -> None:
    first = read["site"]
    _check_bounds(folder / _file("site"), first, len(read["ptr"]) - 1, "pages")
    sites = len(first) - 1
    if block == "site":
        return
    if len(read[block]) != sites:
        raise FolderError(
            f"{folder / _file(block)} has {len(read[block])} numbers; expected one per site ({sites})"
        )
    if sites and not (read[block].min() >= 0 and read[block].max() < sites):
        raise FolderError(
            f"{folder / _file(block)} has numbers outside 0 .. {sites - 1}; expected ids from 0"
        )


def _check_bounds(path: Path, bounds: np.ndarray, end: int, what: str) -> None:
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != end or (bounds[1:] < bounds[:-1]).any():
        raise FolderError(
            f"{path} is invalid; expected numbers ascending from 0 to {end}, the number of {what}"
        )
