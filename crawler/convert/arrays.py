"""Arrays of one dimension as npy files, in one go or as their values come.

Written by Python's own files: numpy's writing tells of a full disk without a word of why.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def save_array(path: Path, array: np.ndarray) -> None:
    """Writes the whole array."""
    with GrowingArray(path, array.dtype) as file:
        file.append(array)


class GrowingArray:
    """A file whose length is known at its end; a context manager."""

    def __init__(self, path: Path, kind: np.dtype | type[np.generic]) -> None:
        self._file = path.open("wb")
        self._kind = np.dtype(kind)
        self.length = 0
        self._write_header()

    def __enter__(self) -> GrowingArray:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        with self._file:
            if kind is None:
                start = self._file.tell() - self.length * self._kind.itemsize
                self._file.seek(0)
                self._write_header()
                # numpy leaves room in the header for a longer length.
                assert self._file.tell() == start

    def append(self, values: np.ndarray) -> None:
        """Adds these values."""
        self._file.write(values.astype(self._kind, copy=False).data)
        self.length += len(values)

    def _write_header(self) -> None:
        header = {
            "shape": (self.length,),
            "fortran_order": False,
            "descr": np.lib.format.dtype_to_descr(self._kind),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
