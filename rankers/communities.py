"""Which sites belong together: communities of the graph of sites, found in it or given by hand.

    community = communities(sites, source, target, weight)      # or read_csv(lines, names)

Hides which library finds them and all that an answer could depend on besides the graph: the order in which links
come, the number of threads, PYTHONHASHSEED. Communities are numbered from 0 in the order of their smallest site, so
that equal partitions have equal numbers. A changed graph may give wholly other communities; only the same one does not.
Whatever is no graph, or no list of sites, is a ValueError that says what came and what is expected.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["by_smallest_site", "communities", "read_csv"]

# Each runs over the whole graph from what the last one found. On vague graphs the first alone stays below the planted
# communities (modularity 0.531 where these have 0.564), three come to 0.563; each takes about as long as the first.
ITERATIONS = 3
# How many unknown sites an error names; a list for another crawl has thousands.
NAMED_IN_ERROR = 5


class _Links(NamedTuple):
    """Links between different sites without direction: each pair once, in order of (low, high)."""

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
    """(sites,) int32: the community of each site, by the Leiden method, for links from `source` to `target`.

    Weights of both directions and of parallel links are added up; a site's links to itself say nothing and are left
    out, as is weight 0. A site that nobody links with is a community of its own. `resolution`: above 1 smaller
    communities, below 1 larger ones. `seed`: of the random numbers by which the method chooses, a whole number of 0 or
    more; where communities are vague, another seed gives others.
    """
    _check_above_zero("resolution", resolution)
    links = _links(sites, source, target, weight)
    found = np.arange(sites)
    linked, ends = np.unique(np.concatenate([links.low, links.high]), return_inverse=True)
    low, high = np.split(ends, 2)
    if len(linked):
        # Numbers from `sites` on: no label of a linked site is that of one that stands alone.
        found[linked] = sites + _leiden(len(linked), _Links(low, high, links.weight), resolution, seed)
    return by_smallest_site(found)


def read_csv(lines: Iterable[str | bytes], names: Sequence[str]) -> np.ndarray:
    """(len(names),) int32: the communities of a file `site,community`, for the sites of these names.

    A first row `site,community` and empty lines are passed over, blanks around a field are taken off. A community is
    any text; a site that is not listed is one of its own. ValueError names the line that is no such pair or not UTF-8,
    the site in two communities, and sites that are not among `names`.
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
    """The same partition, int32: its communities numbered from 0 in the order of their smallest site."""
    _, first, of_site = np.unique(label, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int32)
    number[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return number[of_site]


# --- the engine ---


def _leiden(sites: int, links: _Links, resolution: float, seed: int) -> np.ndarray:
    """A label per site; every site has a link."""
    import graspologic_native

    starts, ends, weight = _symmetric(sites, links)
    _, label = graspologic_native.leiden_csr(
        starts, ends, weight, sites, resolution=resolution, iterations=ITERATIONS, seed=seed
    )
    return np.fromiter((label[site] for site in range(sites)), np.int64, sites)


def _symmetric(sites: int, links: _Links) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both directions of each link by their source: where a site's begin (int64), their targets (int32) and weights."""
    source = np.concatenate([links.low, links.high])
    target = np.concatenate([links.high, links.low])
    order = np.lexsort((target, source))
    starts = np.zeros(sites + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=sites), out=starts[1:])
    return starts, target[order].astype(np.int32), np.tile(links.weight, 2)[order]


# --- the graph ---


def _links(sites: int, source: np.ndarray, target: np.ndarray, weight: np.ndarray) -> _Links:
    source, target = _ids("source", source, sites), _ids("target", target, sites)
    weight = np.asarray(weight, np.float64)
    if not len(source) == len(target) == len(weight):
        raise ValueError(
            f"{len(source)} sources, {len(target)} targets and {len(weight)} weights; expected as many of each"
        )
    if not (np.isfinite(weight).all() and (weight >= 0).all()):
        raise ValueError("a weight is below 0, infinite or not a number; expected 0 or more")
    weight = np.where(source == target, 0, weight)
    # Nothing depends on their scale, and so no sum of them or of their squares is infinite or 0.
    weight = np.ldexp(weight, -np.frexp(weight.max(initial=0))[1])
    kept = weight > 0
    pair = (np.minimum(source, target) * sites + np.maximum(source, target))[kept]
    # Sorted by weight as well: sums of floats depend on the order in which they are added up.
    order = np.lexsort((weight[kept], pair))
    pair, first = np.unique(pair[order], return_index=True)
    low, high = np.divmod(pair, max(sites, 1))
    return _Links(low, high, np.add.reduceat(weight[kept][order], first) if len(first) else np.zeros(0))


def _ids(name: str, ids: np.ndarray, sites: int) -> np.ndarray:
    ids = np.asarray(ids)
    if len(ids) == 0:
        return np.zeros(0, np.int64)
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"{name} holds {ids.dtype}; expected ids of sites, whole numbers")
    if ids.min() < 0 or ids.max() >= sites:
        raise ValueError(f"{name} holds {ids.min()} .. {ids.max()}; expected sites 0 .. {sites - 1}")
    return ids.astype(np.int64)


def _check_above_zero(name: str, value: float) -> None:
    if not (np.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}; expected a number above 0")


# --- the file by hand ---


def _pairs(lines: Iterable[str | bytes]) -> Iterator[tuple[int, str, str]]:
    """(line, site, community) of each row that is not empty; lines count from 1."""
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
        # Spreadsheets begin a file with a byte order mark.
        yield line.removeprefix("\ufeff") if number == 1 else line


def _check_known(given: Iterable[str], names: Sequence[str]) -> None:
    known = set(names)
    if unknown := sorted(site for site in given if site not in known):
        shown = ", ".join(repr(site[:100]) for site in unknown[:NAMED_IN_ERROR])
        more = f" and {len(unknown) - NAMED_IN_ERROR} more" if len(unknown) > NAMED_IN_ERROR else ""
        raise ValueError(f"no such site: {shown}{more}; expected the {len(names)} sites of this crawl")
