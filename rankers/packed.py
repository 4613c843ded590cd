"""rankers.parts over Arrow batches, for Spark workers.

Each function maps batches of COLUMNS to batches of SCHEMA. A part and a message are one row each; arrays are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankers import parts
from rankers.parts import Far, Flow, Part

# Rows per batch of the answer.
ANSWER_ROWS = 100_000

_Batches = Iterable[pa.RecordBatch]

PARTS = pa.schema(
    [("part", pa.int32()), ("page", pa.binary()), *((name, pa.binary()) for name in parts.TYPES)]
)
STATE = pa.schema(
    [
        ("part", pa.int32()),
        *((name, pa.binary()) for name in ("rank", *Flow._fields)),
        *((name, pa.float64()) for name in ("moved", "passed")),
    ]
)
TOLD = pa.schema([("part", pa.int32()), ("origin", pa.int32()), ("row", pa.binary()), ("value", pa.binary())])
ANSWER = pa.schema([("page", pa.int64()), ("block", pa.int64()), ("rank", pa.float64())])
_DDL = {pa.int32(): "int", pa.int64(): "bigint", pa.float64(): "double", pa.binary(): "binary"}


def ddl(schema: pa.Schema) -> str:
    """The schema in Spark's DDL."""
    return ", ".join(f"{field.name} {_DDL[field.type]}" for field in schema)


def array(row: dict[str, Any], name: str) -> np.ndarray:
    """One array of a part."""
    return np.frombuffer(row[name], parts.TYPES[name])


def _rows(batches: _Batches) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _row(schema: pa.Schema, **values: Any) -> pa.RecordBatch:
    packed = {name: v.tobytes() if isinstance(v, np.ndarray) else v for name, v in values.items()}
    return pa.RecordBatch.from_pylist([packed], schema)


def build(batches: _Batches) -> Iterator[pa.RecordBatch]:
    """Rows ordered by part -> PARTS. Pages: part, row, page, block; links: part, row, to_part, to_row, block."""
    for number, table in _by_number(batches):
        linked = pc.is_valid(table["to_part"])
        pages = table.filter(pc.invert(linked)).sort_by("row")
        row, to_part, to_row, block = (
            table.filter(linked)[name].to_numpy() for name in ("row", "to_part", "to_row", "block")
        )
        near = to_part == number
        far = Far(*(column[~near] for column in (row, to_part, to_row, block)))
        part = Part.build(pages["block"].to_numpy(), row[near], to_row[near], far)
        yield _row(PARTS, part=number, page=pages["page"].to_numpy(), **part.pack())


def _by_number(batches: _Batches) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each part, which may span batches."""
    begun: list[pa.RecordBatch] = []
    number = -1
    for batch in batches:
        part = batch["part"].to_numpy()
        bounds = np.append(np.flatnonzero(np.diff(part, prepend=-1)), len(part)).tolist()
        for begin, end in pairwise(bounds):
            if part[begin] != number and begun:
                yield number, pa.Table.from_batches(begun)
                begun = []
            number = int(part[begin])
            begun.append(batch.slice(begin, end - begin))
    if begun:
        yield number, pa.Table.from_batches(begun)


def rank_within(batches: _Batches, mode: str, damping: float, tolerance: float) -> Iterator[pa.RecordBatch]:
    """PARTS -> STATE: ranks within blocks, and weighted links of blocks."""
    for row in _rows(batches):
        part = Part.unpack(row)
        ranks = parts.ranks_within(part, damping, tolerance)
        flow = parts.counted(part) if mode == "seed" else parts.weighed(part, ranks)
        yield _row(STATE, part=row["part"], rank=ranks, **flow._asdict(), moved=0.0, passed=0.0)


def tell(batches: _Batches) -> Iterator[pa.RecordBatch]:
    """PARTS with rank and factor -> TOLD: messages to other parts; to itself, the ranks times factors."""
    for row in _rows(batches):
        part, number = Part.unpack(row), row["part"]
        ranks = parts.scaled(part, np.frombuffer(row["rank"]), np.frombuffer(row["factor"]))
        yield _row(TOLD, part=number, origin=number, row=b"", value=ranks)
        for message in parts.tell(part, ranks):
            yield _row(TOLD, part=message.part, origin=number, row=message.row, value=message.value)


def sweep(batches: _Batches, pages: int, damping: float) -> Iterator[pa.RecordBatch]:
    """PARTS with a list `heard` of TOLD -> STATE: one round of sweeps."""
    for row in _rows(batches):
        part, number = Part.unpack(row), row["part"]
        # Sum messages in a fixed order.
        messages = sorted(row["heard"], key=lambda one: one["origin"])
        own = next(np.frombuffer(one["value"]) for one in messages if one["origin"] == number)
        heard = [
            (np.frombuffer(one["row"], np.int32), np.frombuffer(one["value"]))
            for one in messages
            if one["origin"] != number
        ]
        swept = parts.sweep(part, own, heard, pages, damping)
        flow = parts.weighed(part, swept.rank)
        yield _row(STATE, part=number, **flow._asdict(), **swept._asdict())


def spread(batches: _Batches) -> Iterator[pa.RecordBatch]:
    """PARTS (page, label, block_start) with rank and factor -> ANSWER: one row per page."""
    for row in _rows(batches):
        size = np.diff(array(row, "block_start"))
        columns = [
            np.frombuffer(row["page"], np.int64),
            np.repeat(array(row, "label"), size),
            np.frombuffer(row["rank"]) * np.repeat(np.frombuffer(row["factor"]), size),
        ]
        yield from pa.table(columns, schema=ANSWER).to_batches(ANSWER_ROWS)
