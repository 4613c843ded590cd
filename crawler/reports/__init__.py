"""Reports from the tables and the queue; one module is one report.

It has `figures(crawl)`, data for JSON, and `text(figures)`, not empty; optionally `rows`, `pictures` and
`failed` (see `Report`). Reports read in short transactions (crawler.store.queries.in_stretches) and accept an
empty database. DatabaseError propagates.
"""

from __future__ import annotations

import inspect
import json
from importlib import import_module, resources
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.views.drawing import Picture


class Crawl(NamedTuple):
    """A report's input: the tables, and settings to connect to the queue."""

    engine: Engine
    settings: BaseSettings
    options: Options
    url: str = ""  # of one page, for reports on single pages


class Report:
    """A report by name. Raises ModuleNotFoundError for an unknown name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._module: ModuleType = import_module(f"{__name__}.{name}")

    @property
    def title(self) -> str:
        """The first line of the module's docstring."""
        return (inspect.getdoc(self._module) or self.name).split("\n")[0].rstrip(".")

    def figures(self, crawl: Crawl) -> Any:
        """Data for JSON."""
        return self._module.figures(crawl)

    def text(self, figures: Any) -> str:
        """For the terminal."""
        return str(self._module.text(figures))

    def rows(self, figures: Any) -> list[dict[str, Any]]:
        """One table, with the same keys in all rows. Default: the figures' list, or a row per figure."""
        own = getattr(self._module, "rows", None)
        if own:
            return list(own(figures))
        if isinstance(figures, list):
            return figures
        return [{"figure": name, "value": _cell(value)} for name, value in figures.items()]

    def pictures(self, figures: Any) -> list[Picture]:
        """Default: none."""
        own = getattr(self._module, "pictures", None)
        return list(own(figures)) if own else []

    def failed(self, figures: Any) -> bool:
        """Whether the crawl failed the report. Default: False."""
        own = getattr(self._module, "failed", None)
        return bool(own and own(figures))


def names() -> list[str]:
    """All reports."""
    files = (file.name for file in resources.files(__name__).iterdir())
    return sorted(name.removesuffix(".py") for name in files if name[0] != "_" and name.endswith(".py"))


def _cell(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, list | dict) else value
