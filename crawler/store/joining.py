"""For commands that look in on a crawl: the server they mean, started and left again where it is the bundled one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crawler.sites import connection
from crawler.store.server import Server

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from crawler.options import Options


@contextmanager
def joined(settings: BaseSettings, options: Options) -> Iterator[str]:
    """The server's address, set as REDIS_URL meanwhile; ServerError where the bundled one cannot be started.

    OptionError where none is named and the settings keep the bundled one out.
    """
    connection.require(settings)
    if connection.is_named(settings):
        yield connection.told(settings)
        return
    with Server(options.var).join("visitor") as membership:
        settings.set("REDIS_URL", membership.url, priority="cmdline")
        try:
            yield membership.url
        finally:
            settings.set("REDIS_URL", "", priority="cmdline")
