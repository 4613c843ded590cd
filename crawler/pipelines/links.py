"""A page's links: new ones of the site into its frontier, others offered to their sites, all of them as hashes."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from crawler.agent.links import parts
from crawler.agent.media import shown
from crawler.agent.out_links import OutLinks

if TYPE_CHECKING:
    from crawler.agent.pages import LoadedPage

logger = logging.getLogger("pipelines")


class Links:
    """Follows links; not where robots say nofollow, nor those of exact duplicates: their original has them.

    Relative links of a duplicate in another folder are lost by this; without it a trap that gives the same page under
    every path would never end.

    What the page names as canonical (Attributes has read it) is followed like a link, and like a link not where robots
    say nofollow, which asks that nothing be found by way of this page. It is none of its out-links: nobody clicks it.
    """

    def process(self, page: LoadedPage) -> None:
        """Fill out_links and the frontier, and offer links of other sites to these."""
        if page.record.outcome != "stored" or not {"nofollow", "none"}.isdisjoint(page.directives):
            return
        agent, slot = page.agent, page.slot
        found = page.links
        self._follow(page, found.inside)
        for site, paths in found.outside.items():
            agent.offers.add(site, paths, page.turn.depth + 1)
        if page.record.canonical:
            self._follow_canonical(page)
        if slot.out_links is None:
            slot.out_links = OutLinks(slot.site)
        page.out_links = slot.out_links.pack(
            slot.frontier.numbers(found.inside),
            found.inside,
            (site + path for site, paths in found.outside.items() for path in paths),
        )

    @staticmethod
    def _follow(page: LoadedPage, paths: list[str]) -> None:
        """New pages of the site into its frontier, but for traps."""
        agent, slot = page.agent, page.slot
        new = slot.add_found(agent.scope.pages_of(slot.site, paths), page.turn.depth + 1)
        if slot.traps is None or not new:
            return
        trap = slot.traps.look(page.turn.path, page.raw_text, paths, partial(shown, page.document))
        if trap:
            logger.warning("%s: %s is a trap, left out from now on (TRAP_PAGES)", slot.site, trap)

    def _follow_canonical(self, page: LoadedPage) -> None:
        agent, slot = page.agent, page.slot
        site, path = parts(page.record.canonical)
        if site != slot.site:
            agent.offers.add(site, (path,), page.turn.depth + 1)
        elif agent.scope.has_page(page.record.canonical):
            slot.add_found((path,), page.turn.depth + 1)
