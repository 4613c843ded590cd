"""One-dimensional npy files, written at once or in parts.

Uses Python's files: numpy's own writing hides the reason when the disk is full.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def save_array(path: Path, array: np.ndarray) -> None:
    """Writes the whole array."""
    with GrowingArray(path, array.dtype) as file:
        file.append(array)


class GrowingArray:
    """An npy file that grows; the header gets its length on closing. A context manager."""

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
                # numpy pads the header so that a longer length fits.
                assert self._file.tell() == start

    def append(self, values: np.ndarray) -> None:
        """Appends these values."""
        self._file.write(values.astype(self._kind, copy=False).data)
        self.length += len(values)

    def _write_header(self) -> None:
        header = {
            "shape": (self.length,),
            "fortran_order": False,
            "descr": np.lib.format.dtype_to_descr(self._kind),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
