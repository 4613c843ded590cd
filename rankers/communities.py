"""Communities of sites: detected in the graph of sites, or read from a file.

    community = communities(sites, source, target, weight)      # or read_csv(lines, names)

Numbered from 0 by their smallest site. Equal graphs give equal results, whatever the order of links and the number of
threads; a changed graph may give very different ones. Raises ValueError for invalid input.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["by_smallest_site", "communities", "read_csv"]

# Leiden runs, each starting from the last result. On vague graphs one run reaches modularity 0.531, three 0.563
# (planted: 0.564); each takes about as long as the first.
ITERATIONS = 3
# Unknown sites listed in an error.
NAMED_IN_ERROR = 5


class _Links(NamedTuple):
    """Undirected links between different sites: each pair once, ordered by (low, high)."""

    low: np.ndarray  # int64, the smaller site
    high: np.ndarray  # int64, the larger one
    weight: np.ndarray  # float64, above 0


def communities(
    sites: int,
    source: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    *,
    resolution: float = 1.0,
    seed: int = 0,
) -> np.ndarray:
    """(sites,) int32: each site's community by the Leiden method.

    Weights of both directions and of parallel links are added. A site without links is a community of its own.
    `resolution`: above 1 smaller communities, below 1 larger. `seed`: an integer >= 0.
    """
    _check_above_zero("resolution", resolution)
    links = _links(sites, source, target, weight)
    found = np.arange(sites)
    linked, ends = np.unique(np.concatenate([links.low, links.high]), return_inverse=True)
    low, high = np.split(ends, 2)
    if len(linked):
        # Labels from `sites` on do not collide with those of unlinked sites.
        found[linked] = sites + _leiden(len(linked), _Links(low, high, links.weight), resolution, seed)
    return by_smallest_site(found)


def read_csv(lines: Iterable[str | bytes], names: Sequence[str]) -> np.ndarray:
    """(len(names),) int32: communities from a file of lines `site,community`, for these sites.

    The header and empty lines are optional. Unlisted sites are communities of their own. Raises ValueError, naming the
    line, for invalid lines, sites in two communities, and sites not among `names`.
    """
    given: dict[str, str] = {}
    for line, site, community in _pairs(lines):
        if given.setdefault(site, community) != community:
            raise ValueError(
                f"line {line}: site {site!r} is in {given[site]!r} and in {community!r}; expected one community"
            )
    _check_known(given, names)
    number = {community: len(names) + n for n, community in enumerate(dict.fromkeys(given.values()))}
    label = [number[given[name]] if name in given else own for own, name in enumerate(names)]
    return by_smallest_site(np.array(label, np.int64))


def by_smallest_site(label: np.ndarray) -> np.ndarray:
    """The same partition, int32, numbered from 0 by the smallest site."""
    _, first, of_site = np.unique(label, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int32)
    number[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return number[of_site]


# --- Detection ---


def _leiden(sites: int, links: _Links, resolution: float, seed: int) -> np.ndarray:
    import graspologic_native

    starts, ends, weight = _symmetric(sites, links)
    _, label = graspologic_native.leiden_csr(
        starts, ends, weight, sites, resolution=resolution, iterations=ITERATIONS, seed=seed
    )
    return np.fromiter((label[site] for site in range(sites)), np.int64, sites)


def _symmetric(sites: int, links: _Links) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = np.concatenate([links.low, links.high])
    target = np.concatenate([links.high, links.low])
    order = np.lexsort((target, source))
    starts = np.zeros(sites + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=sites), out=starts[1:])
    return starts, target[order].astype(np.int32), np.tile(links.weight, 2)[order]


# --- The graph ---


def _links(sites: int, source: np.ndarray, target: np.ndarray, weight: np.ndarray) -> _Links:
    source, target = _ids("source", source, sites), _ids("target", target, sites)
    weight = np.asarray(weight, np.float64)
    if not len(source) == len(target) == len(weight):
        raise ValueError(
            f"{len(source)} sources, {len(target)} targets and {len(weight)} weights; expected equal numbers"
        )
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise ValueError("a weight is negative, infinite or NaN; expected finite numbers >= 0")
    weight = np.where(source == target, 0, weight)
    # Scaling changes nothing and keeps sums and squares finite and above 0.
    weight = np.ldexp(weight, -np.frexp(weight.max(initial=0))[1])
    kept = weight > 0
    pair = (np.minimum(source, target) * sites + np.maximum(source, target))[kept]
    # Sorted by weight too: sums of floats depend on the order.
    order = np.lexsort((weight[kept], pair))
    pair, first = np.unique(pair[order], return_index=True)
    low, high = np.divmod(pair, max(sites, 1))
    return _Links(low, high, np.add.reduceat(weight[kept][order], first) if len(first) else np.zeros(0))


def _ids(name: str, ids: np.ndarray, sites: int) -> np.ndarray:
    ids = np.asarray(ids)
    if len(ids) == 0:
        return np.zeros(0, np.int64)
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"{name} holds {ids.dtype}; expected integer site ids")
    if ids.min() < 0 or ids.max() >= sites:
        raise ValueError(f"{name} holds {ids.min()} .. {ids.max()}; expected sites 0 .. {sites - 1}")
    return ids.astype(np.int64)


def _check_above_zero(name: str, value: float) -> None:
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}; expected a number above 0")


# --- The file ---


def _pairs(lines: Iterable[str | bytes]) -> Iterator[tuple[int, str, str]]:
    """(line, site, community) of each non-empty row; lines count from 1."""
    rows = csv.reader(_text(lines), strict=True)
    try:
        for fields in rows:
            pair = [field.strip() for field in fields]
            if not any(pair) or (rows.line_num == 1 and pair == ["site", "community"]):
                continue
            if len(pair) != 2 or not all(pair):
                raise ValueError(f"line {rows.line_num}: {fields!s:.200}; expected site,community")
            yield rows.line_num, pair[0], pair[1]
    except csv.Error as error:
        raise ValueError(f"line {rows.line_num}: {error}; expected site,community") from None


def _text(lines: Iterable[str | bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if isinstance(line, bytes):
            try:
                line = line.decode()
            except UnicodeDecodeError:
                raise ValueError(
                    f"line {number}: {repr(line)[:200]} is not UTF-8; expected site,community"
                ) from None
        # Spreadsheets may write a byte order mark.
        yield line.removeprefix("\ufeff") if number == 1 else line


def _check_known(given: Iterable[str], names: Sequence[str]) -> None:
    known = set(names)
    if unknown := sorted(site for site in given if site not in known):
        shown = ", ".join(repr(site[:100]) for site in unknown[:NAMED_IN_ERROR])
        more = f" and {len(unknown) - NAMED_IN_ERROR} more" if len(unknown) > NAMED_IN_ERROR else ""
        raise ValueError(
            f"unknown sites: {shown}{more}; expected some of the {len(names)} sites of this crawl"
        )
