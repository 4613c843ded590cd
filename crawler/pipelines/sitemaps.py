"""A sitemap's URLs into the frontier, and what it says of when pages changed into its record.

A sitemap is a page like any other: asked in its turn, archived, stored, and asked again by recheck, which so learns how
often it changes. Where SITEMAPS is `off` none is read.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from crawler.agent import links, sitemap_file
from crawler.records import hash64, pack_lastmods

if TYPE_CHECKING:
    from crawler.agent.pages import LoadedPage
    from crawler.agent.sitemap_file import Sitemap

logger = logging.getLogger("pipelines")

# Times of one sitemap that are told, the newest: what changed before we last looked says nothing.
MOST_TOLD = 5_000


class Sitemaps:
    """Takes in pages of the sitemap's own site alone: what it says of others is not its to say."""

    def process(self, page: LoadedPage) -> None:
        """Fill the frontier, and `lastmods` of the record."""
        agent, slot = page.agent, page.slot
        if agent.options.sitemaps == "off" or page.record.outcome != "stored":
            return
        is_named = page.turn.path in slot.sitemaps
        if not is_named and not sitemap_file.may_be(page.body[:8], page.record.content_type):
            return
        found = sitemap_file.read(page.body, agent.options.sitemap_max_bytes, is_list=is_named)
        if found is None:
            return
        page.record.error = page.record.error or found.error
        logger.debug("%s: a sitemap of %d pages", page.record.url, len(found.pages))
        self._follow(page, found, is_named=is_named)

    @staticmethod
    def _follow(page: LoadedPage, found: Sitemap, *, is_named: bool) -> None:
        """Its pages, and where it is one that robots.txt named the sitemaps that it names, which are as deep as it."""
        agent, slot = page.agent, page.slot
        written = [entry.url for entry in found.pages]
        own = links.places([*written, *found.maps], page.response.url, slot.site, agent.max_url_length)
        placed = {
            url: place[1]
            for url, place in zip(written, own, strict=False)
            if place is not None and place[0] == slot.site
        }
        maps = own[len(written) :]
        # No index is named by an index, as the protocol has it: that one might have no end.
        further = [place[1] for place in maps if place and place[0] == slot.site] if is_named else []
        for paths, depth in ((further, page.turn.depth), (placed.values(), page.turn.depth + 1)):
            slot.add_found(agent.scope.pages_of(slot.site, list(dict.fromkeys(paths))), depth)
        page.record.lastmods = pack_lastmods(
            (hash64(slot.site + placed[entry.url]), entry.changed_at)
            for entry in sitemap_file.told([one for one in found.pages if one.url in placed])[:MOST_TOLD]
        )
