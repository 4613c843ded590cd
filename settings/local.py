"""One machine: the bundled server, SQLite, everything below VAR_DIR. What `scrapy.cfg` names as default."""

from settings.base import *  # noqa: F403
