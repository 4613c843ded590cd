"""The folder of a ranking: ranks of pages, sites, domains and communities as Parquet files.

    pages.parquet         page_id, rank: in the order of page_id; they sum to 1
    sites.parquet         site_id, rank: the sum over the site's pages. domains.parquet, communities.parquet: likewise
    manifest.json         mode, block, damping …, how many sweeps it took, and the files' digests

The file of what were the blocks has a column more, block_rank: the rank of the block itself, where the mode has one.
The folder is there whole or not at all; the same graph and options give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankers import Graph, Ranking
from rankers.folder import check_gives_way, made_whole, read_manifest, write_manifest
from rankers.graph import BLOCKS, Groups

FILES = {"site": "sites.parquet", "domain": "domains.parquet", "community": "communities.parquet"}
PAGES = "pages.parquet"


def check_place(folder: Path) -> None:
    """FolderError where something else than ranks lies in this place, such as the run that is ranked."""
    check_gives_way(folder, "mode")


def write(
    folder: Path, graph: Graph, groups: Groups, found: Ranking, block: str, figures: Mapping[str, Any]
) -> None:
    """Writes the folder, in place of ranks that have its name; FolderError or OSError where that cannot be done."""
    check_place(folder)
    sums = groups.sums(found.pages)
    columns = {name: {"rank": sums[name]} for name in BLOCKS}
    if found.blocks is not None:
        own = np.zeros(len(sums[block]))
        own[graph.blocks.label] = found.blocks
        columns[block]["block_rank"] = own
    with made_whole(folder) as made:
        _write(made / PAGES, "page_id", {"rank": found.pages})
        for name, filled in columns.items():
            _write(made / FILES[name], f"{name}_id", filled)
        write_manifest(made, figures)


def read_pages(folder: Path) -> np.ndarray:
    """Ranks by page_id, of a whole folder; FolderError where there is none."""
    read_manifest(folder)
    return np.asarray(pq.read_table(folder / PAGES, columns=["rank"])["rank"].to_numpy())


def _write(path: Path, key: str, columns: Mapping[str, np.ndarray]) -> None:
    many = len(next(iter(columns.values())))
    table = pa.table({key: np.arange(many, dtype=np.int32), **columns})
    # Ranks hardly repeat: a dictionary of them is larger than they are.
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
