"""Many machines: what the deployed egg uses. Nothing is started by itself.

Each process needs its own address: agents REDIS_URL (or REDIS_HOST, REDIS_PARAMS), coordinators DATABASE_URL
too. They are given in the environment (LOWTIDE_REDIS_URL=…), per job, or here. One that is missing is refused
at start.
"""

from settings.base import *  # noqa: F403

# Never start a server of our own: two machines would crawl two different crawls.
EXTENSIONS_BASE = {**EXTENSIONS_BASE, "crawler.local.local.LocalServer": None}  # noqa: F405
