"""Loops over pages as machine code, where the compiler is installed (`pip install 'lowtide[rank]'`).

Without it functions stay as they are written, with the same results: COMPILED is False, and what goes through
many pages does so by arrays (law_arrays.py). Functions take numbers out of arrays with float(), as numpy would go on in
float32 and compiled code does not.

Hides the compiler: a function marked `compiled` is compiled once for each set of argument types and kept on disk,
beside its file or in the user's own cache folder; where neither can be written every process compiles anew, some
seconds. It checks no bounds, and 1/0 is infinite as in numpy: whoever calls it has checked the arrays.
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
    """The function, compiled when it is first called; itself where there is no compiler."""
    if not COMPILED:
        return function
    try:
        return cast("_Function", numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:  # "cannot cache function": no folder can be written
        return cast("_Function", numba.njit(nogil=True, error_model="numpy")(function))


def _forget_older() -> None:
    """What is kept of these files from before the newest of them: the compiler looks at a function's own file alone."""
    here = Path(__file__).parent
    newest = max((file.stat().st_mtime for file in here.glob("*.py")), default=0.0)
    for kept in (here / "__pycache__").glob("*.nbi"):
        with suppress(OSError):
            if kept.stat().st_mtime < newest:
                kept.unlink()


if COMPILED:
    _forget_older()
