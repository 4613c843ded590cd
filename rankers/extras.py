"""Optional libraries: errors that name the command that installs them."""

from __future__ import annotations

import sys
from importlib.util import find_spec

# Module -> its extra (pyproject.toml).
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
    """A library is not installed; the message says how to install it."""


def require(*modules: str) -> None:
    """Raises MissingExtraError for the first module that is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtraError(text(module, EXTRA_OF[module]))


def missing(error: ImportError) -> MissingExtraError | None:
    """The error for a failed import; None if no extra has the module."""
    module = (error.name or "").partition(".")[0]
    return MissingExtraError(text(module, EXTRA_OF[module])) if module in EXTRA_OF else None


def told_at_end(program: str, error: ImportError) -> int:
    """Prints the error and returns exit code 2; raises it if no extra has the module."""
    problem = missing(error)
    if problem is None:
        raise error
    print(f"{program}: {problem}", file=sys.stderr)
    return 2


def text(module: str, extra: str) -> str:
    """Message: what is missing, and how to install it."""
    target = "setup-rank" if extra == "rank" else "setup-all"
    return f"{module} is not installed; run: pip install 'lowtide[{extra}]' (in a checkout: make {target})"
