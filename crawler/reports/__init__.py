"""What the tables and the queue say. One file is one report: `figures(crawl)`, and `text` of them for a person.

One that judges has `failed(figures)` too: the command's exit code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options


class Crawl(NamedTuple):
    """Whose figures are asked for: its tables, and its settings where the queue is to be asked too."""

    engine: Engine
    settings: BaseSettings
    options: Options
