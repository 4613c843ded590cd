"""A page's links: new ones of the site into its frontier, others offered to their sites, all of them as hashes."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from crawler.content.html import OutLinks, canonical_url, parts
from crawler.content.text import shown_media

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crawler.agent.page import LoadedPage

logger = logging.getLogger("pipelines")


class Links:
    """Follows links; not where robots say nofollow.

    An exact duplicate has its original's links, except relative ones in another folder: these are tried, within bounds
    (crawler.content.copies), and only by loading. For ranks a duplicate links to nothing. Where MAX_DEPTH may have left
    out links of the original, a less deep duplicate has them.
    """

    def process(self, page: LoadedPage) -> None:
        """Fill out_links and the frontier, and offer links of other sites to these."""
        agent, lease = page.agent, page.lease
        is_copy = page.record.outcome == "duplicate"
        if page.record.outcome not in ("stored", "duplicate"):
            return
        if not {"nofollow", "none"}.isdisjoint(page.directives):
            return
        found = page.links
        if is_copy and not lease.frontier.links_count(page.turn, page.record.duplicate_of):
            paths = agent.scope.pages_of(lease.site, found.inside)
            lease.add_of_copy(page.record.duplicate_of, paths, page.turn.depth + 1)
            return
        self._follow(page, found.inside)
        for site, paths in (*found.outside.items(), *found.framed.items()):
            agent.offers.add(site, paths, page.turn.depth + 1)
        if page.record.canonical:
            self._follow_canonical(page)
        _count_left_out(page)
        if is_copy:
            return
        if lease.out_links is None:
            lease.out_links = OutLinks(lease.site)
        page.out_links = lease.out_links.pack(
            lease.frontier.numbers(found.inside),
            found.inside,
            (canonical_url(site, path) for site, paths in found.outside.items() for path in paths),
        )

    @staticmethod
    def _follow(page: LoadedPage, paths: list[str]) -> None:
        """New pages of the site into its frontier, but for traps."""
        agent, lease = page.agent, page.lease
        new = lease.add_found(agent.scope.pages_of(lease.site, paths), page.turn.depth + 1)
        if lease.traps is None or not new:
            return
        trap = lease.traps.look(page.turn.path, page.raw_text, paths, partial(shown_media, page.document))
        if trap:
            logger.warning("%s: %s is a trap, left out from now on (TRAP_PAGES)", lease.site, trap)

    def _follow_canonical(self, page: LoadedPage) -> None:
        agent, lease = page.agent, page.lease
        site, path = parts(page.canonical)
        if site != lease.site:
            agent.offers.add(site, (path,), page.turn.depth + 1)
        elif agent.scope.has_page(page.canonical):
            lease.add_found((path,), page.turn.depth + 1)


def _count_left_out(page: LoadedPage) -> None:
    """What bounds leave out of the page is counted at its site; its record has it in words."""
    lease, found = page.lease, page.links
    if page.bound or found.given_up:
        lease.leave_out(page.bound or "markup", (page.turn.path,))
    for site, paths in found.beyond.items():
        lease.leave_out("links", _unknown(page, site, paths))
    for href, start in found.too_long.items():
        site, path = parts(start)
        if any(_unknown(page, site, [path])):
            lease.leave_out("length", (href,))
    if 0 < page.agent.options.max_depth <= page.turn.depth:
        for site, paths in (*found.outside.items(), *found.framed.items()):
            lease.leave_out("depth", _unknown(page, site, paths))


def _unknown(page: LoadedPage, site: str, paths: list[str]) -> Iterator[str]:
    """Of these pages those that belong to the crawl, and are not among those that the site's walk knows."""
    scope, lease = page.agent.scope, page.lease
    if site == lease.site:
        yield from (path for path in scope.pages_of(site, paths) if path not in lease.frontier)
    elif scope.has_site(site):
        yield from (site + path for path in scope.pages_of(site, paths))
