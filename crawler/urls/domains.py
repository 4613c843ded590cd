"""The domain of a site: the name that somebody registered, by the public suffix list that tldextract brings along.

Nothing is looked up in the network. An address, or a host that is a public suffix itself, is a domain of its own;
where the list knows no suffix (a company's network, .localhost) the last label counts as one, as with SCOPE=domain.
"""

from __future__ import annotations

from collections.abc import Callable

from tldextract import TLDExtract

from crawler.urls.url import host_of


def domain_finder(*, private_suffixes: bool) -> Callable[[str], str]:
    """A function from a site's name to its domain, in lower case.

    With `private_suffixes` names below those under which anybody can have a site (github.io, blogspot.com) are
    domains of their own: two blogs have two owners.
    """
    extract = TLDExtract(
        suffix_list_urls=(),
        cache_dir=None,
        fallback_to_snapshot=True,
        include_psl_private_domains=private_suffixes,
    )

    def domain_of(site: str) -> str:
        found = extract(site.lower())
        if domain := found.top_domain_under_public_suffix:
            return domain
        host = host_of(site)
        known = found.suffix or found.ipv4 or ":" in host
        return host if known else ".".join(host.split(".")[-2:])

    return domain_of
