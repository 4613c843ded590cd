"""Home pages: roots of hosts, and of people's `~name` folders (paper 001's Homepage_Stat)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from crawler.store.queries import in_stretches
from crawler.store.tables import pages
from crawler.views.drawing import Bar, Picture, bars

if TYPE_CHECKING:
    from crawler.reports import Crawl

# A host's root or a first folder with a tilde, with or without its index page.
_HOME = re.compile(
    r"https?://(?P<host>[^/?#]+)(?:/(?:(?:~|%7[Ee])(?P<name>[^/?#]+)/?)?(?:(?:index|default|main)\.\w+)?)?"
)


def figures(crawl: Crawl) -> dict[str, Any]:
    """Distinct home pages; http and https, `/` and `/index.html` are equal."""
    query = select(pages.c.url).where(pages.c.outcome.in_(("stored", "duplicate")))
    hosts: set[str] = set()
    people: set[str] = set()
    many = 0
    for (url,) in in_stretches(crawl.engine, pages, query):
        many += 1
        if home := home_of(url):
            (people if "~" in home else hosts).add(home)
    return {
        "pages": many,
        "home_pages": len(hosts) + len(people),
        "of_hosts": len(hosts),
        "of_people": len(people),
        "pages_per_home_page": round(many / (len(hosts) + len(people)), 2) if hosts or people else None,
    }


def home_of(url: str) -> str:
    """`host` or `host/~name`; empty: not a home page."""
    found = _HOME.fullmatch(url)
    if found is None:
        return ""
    return f"{found['host']}/~{found['name']}" if found["name"] else found["host"]


def text(found: dict[str, Any]) -> str:
    """For the terminal."""
    lines = [
        f"  {'home pages':<20} {found['home_pages']:>12,}",
        f"  {'of hosts':<20} {found['of_hosts']:>12,}   http://host/",
        f"  {'of people':<20} {found['of_people']:>12,}   http://host/~name",
    ]
    if found["pages_per_home_page"]:
        lines.append(f"  {'pages for each':<20} {found['pages_per_home_page']:>12,}")
    return "\n".join(lines)


def pictures(found: dict[str, Any]) -> list[Picture]:
    """For a page."""
    forms = [(name, found[key]) for name, key in (("of hosts", "of_hosts"), ("of people", "of_people"))]
    shown = [Bar(name, many, f"{many:,}") for name, many in forms]
    return [Picture("Home pages by form", bars(shown, "home pages"))] if found["home_pages"] else []
