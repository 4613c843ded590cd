"""What the tables and the queue say. One file is one report, found by its name.

A file has `figures(crawl)`, plain data that JSON can take, and `text(figures)`, the same for a person and never
empty. It may have more; where it has not, what stands in is told in `Report`:

    rows(figures)      -> list[dict[str, …]]   the figures as one table, for CSV and pages; each row has the same keys
    pictures(figures)  -> list[Picture]        crawler.views.drawing has bars, columns, heat maps, curves and graphs
    failed(figures)    -> bool                 whether they judge the crawl as bad: the command's exit code 1

Reports read in short stretches (crawler.store.queries.in_stretches) and take an empty database; DatabaseError passes
through.
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
    """Whose figures are asked for: its tables, and its settings where the queue is to be asked too."""

    engine: Engine
    settings: BaseSettings
    options: Options
    url: str = ""  # of one page that is asked about, where a report can tell of one


class Report:
    """A report by its name; ModuleNotFoundError where there is none."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._module: ModuleType = import_module(f"{__name__}.{name}")

    @property
    def title(self) -> str:
        """The first line of its file."""
        return (inspect.getdoc(self._module) or self.name).split("\n")[0].rstrip(".")

    def figures(self, crawl: Crawl) -> Any:
        """What it found; JSON can take it."""
        return self._module.figures(crawl)

    def text(self, figures: Any) -> str:
        """The same for a person at a terminal."""
        return str(self._module.text(figures))

    def rows(self, figures: Any) -> list[dict[str, Any]]:
        """As one table. A report without: its list of rows, or a row for each figure, lists in it as JSON."""
        own = getattr(self._module, "rows", None)
        if own:
            return list(own(figures))
        if isinstance(figures, list):
            return figures
        return [{"figure": name, "value": _cell(value)} for name, value in figures.items()]

    def pictures(self, figures: Any) -> list[Picture]:
        """For a page; a report without has none."""
        own = getattr(self._module, "pictures", None)
        return list(own(figures)) if own else []

    def failed(self, figures: Any) -> bool:
        """Whether the figures judge the crawl as bad; a report without never does."""
        own = getattr(self._module, "failed", None)
        return bool(own and own(figures))


def names() -> list[str]:
    """All reports that there are."""
    files = (file.name for file in resources.files(__name__).iterdir())
    return sorted(name.removesuffix(".py") for name in files if name[0] != "_" and name.endswith(".py"))


def _cell(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, list | dict) else value
