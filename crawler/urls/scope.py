"""Which sites and pages belong to the crawl. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from crawler.options import OptionError
from crawler.urls.url import host_of

if TYPE_CHECKING:
    from crawler.options import Options


# Marks a seed's host among the registrable domains; no host name starts like this.
_SEED = "="


class Scope:
    """The limits of one crawl. Raises OptionError for an invalid pattern."""

    def __init__(self, options: Options) -> None:
        self.kind = options.scope
        self._include = _patterns("SCOPE_INCLUDE", options.scope_include)
        self._exclude = _patterns("SCOPE_EXCLUDE", options.scope_exclude)
        self._roots: set[str] = set()

    def roots_of(self, site: str) -> list[str]:
        """What a seed on this site adds to the scope."""
        host = host_of(site)
        if self.kind == "host":
            return [host]
        return [_registrable(host), _SEED + host] if self.kind == "domain" else []

    def widen(self, roots: set[str]) -> bool:
        """Add roots; True if any is new."""
        before = len(self._roots)
        self._roots |= roots
        return len(self._roots) > before

    def is_of_a_seed(self, site: str) -> bool:
        """Whether a seed names this leased site's host."""
        if self.kind in ("host", "domain"):
            host = host_of(site)
            return (host if self.kind == "host" else _SEED + host) in self._roots
        return self.kind == "seeds"

    def has_site(self, site: str) -> bool:
        """Whether a linked site is in scope. Not for `seeds` (Offers)."""
        if self.kind == "any":
            return True
        if self.kind == "domain":
            return _registrable(host_of(site)) in self._roots
        return self.kind == "host" and any(name in self._roots for name in _above(host_of(site)))

    def pages_of(self, site: str, paths: list[str]) -> list[str]:
        """The paths, as written, that the patterns allow."""
        if not self._include and not self._exclude:
            return paths
        return [path for path in paths if self.has_page(site + path)]

    def has_page(self, url: str) -> bool:
        """Whether the patterns allow this URL as requested."""
        if self._include and not any(pattern.search(url) for pattern in self._include):
            return False
        return self.has_sitemap(url)

    def sitemaps_of(self, site: str, paths: list[str]) -> list[str]:
        """The sitemaps that the patterns allow."""
        return [path for path in paths if self.has_sitemap(site + path)]

    def has_sitemap(self, url: str) -> bool:
        """Whether SCOPE_EXCLUDE allows this sitemap."""
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
    """Whether two sites are equal but for the scheme."""
    return one.partition("://")[2] == other.partition("://")[2]


def is_variant(one: str, other: str) -> bool:
    """Whether only scheme, port and `www.` differ."""
    return host_of(one).removeprefix("www.") == host_of(other).removeprefix("www.")


def _above(host: str) -> list[str]:
    """The host and its parents: a.b.c, b.c, c."""
    labels = host.split(".")
    return [".".join(labels[start:]) for start in range(len(labels))]


@lru_cache(maxsize=100_000)
def _registrable(host: str) -> str:
    """By the bundled public suffix list; default: the host."""
    found = _suffixes()(host)
    if found.suffix or found.ipv4 or ":" in host:
        return found.top_domain_under_public_suffix or host
    # The list's default rule: an unknown last label (a company's network, .localhost) is a suffix.
    return ".".join(host.split(".")[-2:])


def has_public_suffix(host: str) -> bool:
    """True for `a.example.org`, False for `wiki.corp` and `seeds.txt`."""
    return bool(_suffixes()(host).suffix)


@lru_cache(maxsize=1)
def _suffixes():  # type: ignore[no-untyped-def]
    import tldextract

    return tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None, fallback_to_snapshot=True)
