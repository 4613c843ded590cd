"""A sitemap's URLs into the frontier, and what it says of when pages changed into its record.

A sitemap is a page like any other: asked in its turn, archived, stored, and asked again by recheck, which so learns how
often it changes. What robots.txt or an index names is one, whatever it is called; so is where a redirect leads from it.
Any other page is one if its first element says so: what a linked feed or sitemap names is found like a link. Where
SITEMAPS is `off` none is read.
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

# Times of one sitemap that are told, the newest: what changed before we last looked says nothing.
MOST_TOLD: Final = 5_000
# Indexes one behind the other that are followed. The protocol has one; more might have no end.
MOST_INDEXES: Final = 2


class Sitemaps:
    """Takes in pages of the sitemap's own site alone: what it says of others is not its to say."""

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
        # One that is merely linked may lead on once.
        self._follow(page, found, MOST_INDEXES if indexes is None else indexes + 1)

    @staticmethod
    def _follow(page: LoadedPage, found: Sitemap, indexes: int) -> None:
        """Its pages, and the sitemaps that it names, which are as deep as it and behind so many indexes."""
        agent, lease, depth = page.agent, page.lease, page.turn.depth
        written = [entry.url for entry in found.pages]
        own, given_up = html.places(
            [*written, *found.maps], page.response.url, lease.site, agent.max_url_length
        )
        if given_up:
            page.note(f"URLs but for {given_up:,} that take long to read")
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
