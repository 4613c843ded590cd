"""Registered domains: their sites, their pages, and how many pages of other domains link to them."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import func, select

from crawler.store.queries import in_stretches
from crawler.store.tables import pages
from crawler.urls.url import domain_finder
from crawler.views.drawing import Bar, Picture, bars
from crawler.views.figures import site_names
from crawler.views.words import size_word

if TYPE_CHECKING:
    from crawler.reports import Crawl

MOST_LINES = 20


def figures(crawl: Crawl) -> list[dict[str, Any]]:
    """Domains with stored pages, the largest first.

    `linked_from`: stored pages of other hosts; at most 50 hosts per page count.
    """
    find = domain_finder(private_suffixes=crawl.options.domain_private_suffixes)
    site_domain = {site_id: find(site) for site_id, site in site_names(crawl.engine)}
    many, sizes = _pages(crawl, site_domain)
    number_of_sites = Counter(site_domain.values())
    linked = _linked_from(crawl, find, set(many))
    return [
        {
            "domain": name,
            "sites": number_of_sites[name],
            "pages": number,
            "bytes": sizes[name],
            "linked_from": linked[name],
        }
        for name, number in sorted(many.items(), key=lambda one: (-one[1], one[0]))
    ]


def _pages(crawl: Crawl, site_domain: dict[int, str]) -> tuple[Counter[str], Counter[str]]:
    query = (
        select(pages.c.site_id, func.count(), func.sum(pages.c.size))
        .where(pages.c.outcome == "stored")
        .group_by(pages.c.site_id)
    )
    many: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for site_id, number, size in in_stretches(crawl.engine, pages, query):
        name = site_domain.get(site_id, "not known yet")
        many[name] += number
        sizes[name] += int(size)
    return many, sizes


def _linked_from(crawl: Crawl, find: Any, domains: set[str]) -> Counter[str]:
    query = select(pages.c.outside_hosts).where(
        pages.c.outcome == "stored", pages.c.outside_hosts.is_not(None)
    )
    hosts: Counter[str] = Counter()
    decode = msgspec.json.Decoder(list[str]).decode
    for (words,) in in_stretches(crawl.engine, pages, query):
        hosts.update(decode(words))
    linked: dict[str, int] = defaultdict(int)
    for host, number in hosts.items():
        if (name := find(f"http://{host}")) in domains:
            linked[name] += number
    return Counter(linked)


def text(found: list[dict[str, Any]]) -> str:
    """For the terminal."""
    if not found:
        return "  no page is stored yet"
    lines = [f"  {'domain':<40} {'sites':>9} {'pages':>12} {'size':>10} {'linked from':>12}"]
    lines += [
        f"  {one['domain']:<40} {one['sites']:>9,} {one['pages']:>12,} {size_word(one['bytes']):>10} "
        f"{one['linked_from']:>12,}"
        for one in found[:MOST_LINES]
    ]
    left = len(found) - MOST_LINES
    return "\n".join([*lines, f"  … and {left:,} more: --json has them"] if left > 0 else lines)


def pictures(found: list[dict[str, Any]]) -> list[Picture]:
    """For a page."""
    shown = [Bar(one["domain"], one["pages"], f"{one['pages']:,}") for one in found[:MOST_LINES]]
    return [Picture("Stored pages by registered domain", bars(shown, "pages by domain"))] if shown else []
