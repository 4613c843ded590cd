"""What is not installed, in one line that says which command installs it.

Libraries that a crawl has no need of are extras (pyproject.toml). Whoever needs some calls `require` before any work,
so that nothing is done for nothing; what shows in passing is put into words by `missing`.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

# Module -> the extra that brings it.
EXTRA_OF = {
    "graspologic_native": "rank",
    "networkx": "rank",
    "numba": "rank",
    "pyarrow": "rank",
    "scipy": "rank",
    "pandas": "spark",
    "py4j": "spark",
    "pyspark": "spark",
    "psycopg": "postgres",
    "pymysql": "mariadb",
    "warcio": "tools",
}


class MissingExtraError(ValueError):
    """A library that this call needs is not installed; its text says which command installs it."""


def require(*modules: str) -> None:
    """MissingExtraError that names the first of these modules that is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError(text(module, EXTRA_OF[module]))


def missing(error: ImportError) -> MissingExtraError | None:
    """The same for an import that failed; None where it is no library of an extra."""
    module = (error.name or "").partition(".")[0]
    return MissingExtraError(text(module, EXTRA_OF[module])) if module in EXTRA_OF else None


def told_at_end(program: str, error: ImportError) -> int:
    """Says it on standard error; the exit code of a wrong call. Raises the error where it is no library of an extra."""
    told = missing(error)
    if told is None:
        raise error
    print(f"{program}: {told}", file=sys.stderr)
    return 2


def text(module: str, extra: str) -> str:
    """The line: what is missing, and how to install it."""
    target = "setup-rank" if extra == "rank" else "setup-all"
    return f"{module} is not installed; run: pip install 'lowtide[{extra}]' (in a checkout: make {target})"
