"""Loops over arrays as machine code.

Hides the compiler: a function marked `compiled` is compiled once for each set of argument types and kept on disk,
beside its file, or where that cannot be written (an installation of somebody else's) in the user's own cache folder, or
in NUMBA_CACHE_DIR. Where none can be written it works all the same, and every process compiles anew, some seconds.

A compiled function holds no lock of the interpreter, so threads run it side by side. It checks no bounds: whoever
calls it has checked the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """The function, compiled when it is first called."""
    try:
        return cast("_Function", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # "cannot cache function": no folder can be written
        return cast("_Function", numba.njit(nogil=True)(function))
