"""Adds a sitemap's URLs to the frontier and its change times to its record.

Files named in robots.txt or an index are sitemaps, redirects included; other pages by their root element.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from crawler.content import html, sitemaps
from crawler.records import hash64, pack_lastmods

if TYPE_CHECKING:
    from crawler.agent.page import LoadedPage
    from crawler.content.sitemaps import Sitemap

logger = logging.getLogger("pipelines")

# Maximum change times stored per sitemap, newest first.
MOST_TOLD: Final = 5_000
# Maximum nested indexes. The protocol allows one; more may be endless.
MOST_INDEXES: Final = 2


class Sitemaps:
    """Uses URLs of the sitemap's own site only."""

    def process(self, page: LoadedPage) -> None:
        """Fill the frontier, and `lastmods` of the record."""
        agent, outcome = page.agent, page.record.outcome
        if agent.options.sitemaps == "off":
            return
        indexes = page.lease.indexes_before(page.turn)
        is_read = outcome in ("stored", "duplicate") if indexes is not None else outcome == "stored"
        if not is_read or (indexes is None and not sitemaps.may_be(page.body)):
            return
        found = sitemaps.read(page.body, agent.options.sitemap_max_bytes, is_list=indexes is not None)
        if found is None:
            return
        page.note(found.error)
        logger.debug("%s: a sitemap of %d pages", page.record.url, len(found.pages))
        # A sitemap that is only linked may name further ones once.
        self._follow(page, found, MOST_INDEXES if indexes is None else indexes + 1)

    @staticmethod
    def _follow(page: LoadedPage, found: Sitemap, indexes: int) -> None:
        """`indexes` counts the indexes before a named sitemap."""
        agent, lease, depth = page.agent, page.lease, page.turn.depth
        written = [entry.url for entry in found.pages]
        own, given_up = html.places(
            [*written, *found.maps], page.response.url, lease.site, agent.max_url_length
        )
        if given_up:
            page.note(f"{given_up:,} URLs left out: too slow to resolve")
            lease.leave_out("markup", (page.turn.path,))
        placed = {
            url: place[1]
            for url, place in zip(written, own, strict=False)
            if place is not None and place[0] == lease.site
        }
        maps = dict.fromkeys(place[1] for place in own[len(written) :] if place and place[0] == lease.site)
        if indexes <= MOST_INDEXES:
            lease.add_sitemaps(agent.scope.sitemaps_of(lease.site, list(maps)), depth, indexes)
        lease.add_found(agent.scope.pages_of(lease.site, list(dict.fromkeys(placed.values()))), depth + 1)
        changed = [
            (placed[entry.url], entry.changed_at)
            for entry in sitemaps.told([one for one in found.pages if one.url in placed])
        ]
        if lease.loads:
            lease.frontier.note_changes(changed)
        page.record.lastmods = pack_lastmods(
            (hash64(html.canonical_url(lease.site, path)), changed_at)
            for path, changed_at in changed[:MOST_TOLD]
        )
