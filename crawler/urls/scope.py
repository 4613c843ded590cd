"""What belongs to the crawl: which sites may be queued, which pages of them fetched. Pure; no look-ups outside.

The seeds' hosts are shared between agents through Redis (crawler/agent/seeding.py keeps them fresh); this file only
decides. OptionError names a pattern that is no regular expression.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from crawler.options import OptionError
from crawler.urls.url import host_of

if TYPE_CHECKING:
    from crawler.options import Options


# Before the host of a seed, among the registrable domains of all seeds: no name of a host begins so.
_SEED = "="


class Scope:
    """The limits of one crawl."""

    def __init__(self, options: Options) -> None:
        self.kind = options.scope
        self._include = _patterns("SCOPE_INCLUDE", options.scope_include)
        self._exclude = _patterns("SCOPE_EXCLUDE", options.scope_exclude)
        self._roots: set[str] = set()

    def roots_of(self, site: str) -> list[str]:
        """What a seed on this site adds to the scope; nothing where its kind needs nothing."""
        host = host_of(site)
        if self.kind == "host":
            return [host]
        return [_registrable(host), _SEED + host] if self.kind == "domain" else []

    def widen(self, roots: set[str]) -> bool:
        """Take in what seeds added; whether it was more than there was."""
        before = len(self._roots)
        self._roots |= roots
        return len(self._roots) > before

    def is_of_a_seed(self, site: str) -> bool:
        """Whether a seed names this site's host. Asked of a site in hand: with `seeds` all of those are seeds' own."""
        if self.kind in ("host", "domain"):
            host = host_of(site)
            return (host if self.kind == "host" else _SEED + host) in self._roots
        return self.kind == "seeds"

    def has_site(self, site: str) -> bool:
        """Whether a site found in a link belongs to the crawl. Not for `seeds`: there the queue knows (Offers)."""
        if self.kind == "any":
            return True
        if self.kind == "domain":
            return _registrable(host_of(site)) in self._roots
        return self.kind == "host" and any(name in self._roots for name in _above(host_of(site)))

    def pages_of(self, site: str, paths: list[str]) -> list[str]:
        """Those of a site's paths, as written, that the patterns let be fetched."""
        if not self._include and not self._exclude:
            return paths
        return [path for path in paths if self.has_page(site + path)]

    def has_page(self, url: str) -> bool:
        """Whether the patterns let this URL be fetched, in the spelling in which it would be asked for."""
        if self._include and not any(pattern.search(url) for pattern in self._include):
            return False
        return self.has_sitemap(url)

    def sitemaps_of(self, site: str, paths: list[str]) -> list[str]:
        """Those of a site's sitemaps that the patterns let be fetched."""
        return [path for path in paths if self.has_sitemap(site + path)]

    def has_sitemap(self, url: str) -> bool:
        """Whether the patterns let this sitemap be fetched: those of SCOPE_INCLUDE say what pages are expected."""
        return not any(pattern.search(url) for pattern in self._exclude)


def _patterns(setting: str, text: str) -> list[re.Pattern[str]]:
    patterns = []
    for line in filter(None, map(str.strip, text.splitlines())):
        try:
            patterns.append(re.compile(line))
        except re.error as error:
            raise OptionError(f"{setting} holds {line!r}; expected a regular expression: {error}") from None
    return patterns


def differs_in_scheme(one: str, other: str) -> bool:
    """Whether two sites are one but for http and https, or one."""
    return one.partition("://")[2] == other.partition("://")[2]


def is_variant(one: str, other: str) -> bool:
    """Whether two sites differ in no more than scheme, port and `www.`: the same pages, most likely."""
    return host_of(one).removeprefix("www.") == host_of(other).removeprefix("www.")


def _above(host: str) -> list[str]:
    """The host and every suffix of it at a dot: a.b.c, b.c, c."""
    labels = host.split(".")
    return [".".join(labels[start:]) for start in range(len(labels))]


@lru_cache(maxsize=100_000)
def _registrable(host: str) -> str:
    """The domain that somebody registered, by the bundled public suffix list; the host where there is none."""
    found = _suffixes()(host)
    if found.suffix or found.ipv4 or ":" in host:
        return found.top_domain_under_public_suffix or host
    # The list's own default rule: where it knows no suffix (a company's network, .localhost), the last label is one.
    return ".".join(host.split(".")[-2:])


def has_public_suffix(host: str) -> bool:
    """Whether the host ends as names on the web do: `a.example.org`, and neither `wiki.corp` nor `seeds.txt`."""
    return bool(_suffixes()(host).suffix)


@lru_cache(maxsize=1)
def _suffixes():  # type: ignore[no-untyped-def]
    import tldextract

    return tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None, fallback_to_snapshot=True)
