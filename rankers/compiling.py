"""Compiles loops over arrays to machine code, with numba.

Code is cached next to the file, in the user's cache folder or in NUMBA_CACHE_DIR; without a writable folder every
process compiles again, which takes seconds. Compiled functions release the GIL and check no bounds: callers validate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """The function, compiled at its first call."""
    try:
        return cast("_Function", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # "cannot cache function": no folder is writable
        return cast("_Function", numba.njit(nogil=True)(function))
