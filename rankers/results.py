"""The folder of a ranking, as Parquet files. Complete or missing; equal input gives equal bytes.

    pages.parquet         page_id, rank: ordered by page_id; ranks sum to 1
    sites.parquet         site_id, rank: sum over the site's pages; likewise domains.parquet, communities.parquet
    manifest.json         mode, block, damping …, sweeps, and the files' digests

The blocks' file also has block_rank, if the mode ranks blocks.
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
    """Raises FolderError if the folder has something other than ranks."""
    check_gives_way(folder, "mode")


def write(
    folder: Path, graph: Graph, groups: Groups, found: Ranking, block: str, figures: Mapping[str, Any]
) -> None:
    """Writes or replaces the folder. Raises FolderError or OSError."""
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
    """Ranks by page_id. Raises FolderError if the folder is not complete."""
    read_manifest(folder)
    return np.asarray(pq.read_table(folder / PAGES, columns=["rank"])["rank"].to_numpy())


def _write(path: Path, key: str, columns: Mapping[str, np.ndarray]) -> None:
    many = len(next(iter(columns.values())))
    table = pa.table({key: np.arange(many, dtype=np.int32), **columns})
    # Ranks rarely repeat: a dictionary would be larger.
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
