"""Follows a page's links and stores their hashes."""

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
    """Follows links, unless robots directives say nofollow.

    Links of a duplicate are known from the original, except relative ones in another folder (crawler.content.copies)
    and those that MAX_DEPTH left out. For ranks a duplicate has no links.
    """

    def process(self, page: LoadedPage) -> None:
        """Fill out_links and the frontier, and offer links to other sites."""
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
        """Add the site's pages; detect traps."""
        agent, lease = page.agent, page.lease
        new = lease.add_found(agent.scope.pages_of(lease.site, paths), page.turn.depth + 1)
        if lease.traps is None or not new:
            return
        trap = lease.traps.look(page.turn.path, page.raw_text, paths, partial(shown_media, page.document))
        if trap:
            logger.warning("%s: %s is a trap, skipped from now on (TRAP_PAGES)", lease.site, trap)

    def _follow_canonical(self, page: LoadedPage) -> None:
        agent, lease = page.agent, page.lease
        site, path = parts(page.canonical)
        if site != lease.site:
            agent.offers.add(site, (path,), page.turn.depth + 1)
        elif agent.scope.has_page(page.canonical):
            lease.add_found((path,), page.turn.depth + 1)


def _count_left_out(page: LoadedPage) -> None:
    """Count links that limits exclude, per site."""
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
    """Pages that belong to the crawl and are not in the frontier."""
    scope, lease = page.agent.scope, page.lease
    if site == lease.site:
        yield from (path for path in scope.pages_of(site, paths) if path not in lease.frontier)
    elif scope.has_site(site):
        yield from (site + path for path in scope.pages_of(site, paths))
