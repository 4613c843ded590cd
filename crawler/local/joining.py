"""For commands that look in on a crawl: the server they mean, started and left again where it is the bundled one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from crawler.local.server import Server
from crawler.options import OptionError
from crawler.queue import connection

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from crawler.options import Options


@contextmanager
def joined(settings: BaseSettings, options: Options, *, changes: bool = False) -> Iterator[str]:
    """The server's address, set as REDIS_URL meanwhile; ServerError where the bundled one cannot be started.

    OptionError where none is named and the settings keep the bundled one out. What Redis raises inside becomes a
    ServerAwayError in words. `changes`: at the end of the block what was changed is on the bundled server's disk; a
    server with a name has its own rule for that (`appendfsync`).
    """
    connection.require(settings)
    if connection.is_named(settings):
        with _in_words(settings):
            yield connection.told(settings)
        return
    server = Server(options.var)
    with server.join("visitor") as membership:
        settings.set("REDIS_URL", membership.url, priority="cmdline")
        try:
            with _in_words(settings):
                yield membership.url
            if changes:
                server.sync()
        finally:
            settings.set("REDIS_URL", "", priority="cmdline")


def names_tables(settings: BaseSettings, options: Options) -> bool:
    """Whether it is certain where this crawl's tables are; not inside of `joined`.

    They are in VAR_DIR only where the server is; what lies there on a machine of a cluster is another crawl's.
    """
    local = connection.may_serve_itself(settings) and not connection.is_named(settings)
    return local or bool(options.database_url)


def require_tables(settings: BaseSettings, options: Options) -> None:
    """OptionError where this crawl's tables are asked for and nobody said where they are."""
    if not names_tables(settings, options):
        raise OptionError(
            "DATABASE_URL is empty; wanted the database of this crawl's coordinators "
            f"(one that runs here without a name for it writes to {options.database})"
        )


@contextmanager
def _in_words(settings: BaseSettings) -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise connection.ServerAwayError(connection.explained(settings, error)) from None
