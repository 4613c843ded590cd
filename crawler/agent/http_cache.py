"""Scrapy's HTTP cache, kept below VAR_DIR like all that a run writes.

Scrapy would put a relative HTTPCACHE_DIR into a folder `.scrapy` of the project. Hides nothing else; the cache is
Scrapy's FilesystemCacheStorage, one folder per spider.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.extensions.httpcache import FilesystemCacheStorage

from crawler import options

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


class StorageBelowVar(FilesystemCacheStorage):
    """What HTTPCACHE_STORAGE names. An absolute HTTPCACHE_DIR stays where it is."""

    def __init__(self, settings: BaseSettings) -> None:
        placed = settings.copy()
        placed.frozen = False
        folder = options.read(settings).var / settings["HTTPCACHE_DIR"]
        placed.set("HTTPCACHE_DIR", str(folder), priority="cmdline")
        super().__init__(placed)
