"""The whole site queue: one SiteQueue per process, over one script."""

from __future__ import annotations

from crawler.queue.admin import Admin
from crawler.queue.decisions import Decisions
from crawler.queue.jobs import Jobs
from crawler.queue.leases import Leases
from crawler.queue.plan import Plan


class SiteQueue(Leases, Jobs, Plan, Decisions, Admin):
    """One crawl's queue under KEY_PREFIX, with all of its operations."""
