"""Compiles loops over pages to machine code if numba is installed (`pip install 'lowtide[rank]'`).

Without it COMPILED is False and law_arrays.py computes the same results. Code is cached on disk if possible. It checks
no bounds; 1/0 is infinite. Read array elements with float(), since numpy would stay in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

try:
    import numba
except ImportError:
    COMPILED = False
else:
    COMPILED = True

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """The function, compiled at its first call if numba is installed."""
    if not COMPILED:
        return function
    try:
        return cast("_Function", numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:  # "cannot cache function": no folder is writable
        return cast("_Function", numba.njit(nogil=True, error_model="numpy")(function))


def _forget_older() -> None:
    # numba checks only a function's own file.
    here = Path(__file__).parent
    newest = max((file.stat().st_mtime for file in here.glob("*.py")), default=0.0)
    for kept in (here / "__pycache__").glob("*.nbi"):
        with suppress(OSError):
            if kept.stat().st_mtime < newest:
                kept.unlink()


if COMPILED:
    _forget_older()
