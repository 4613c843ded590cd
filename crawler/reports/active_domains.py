"""Active domains (paper 001's Find_Active_Domain), from the pages' links, mail and FTP addresses.

"national": below NATIONAL_DOMAIN; "international": others with a domestic address; "elsewhere"; "unknown": no
known address. Addresses are those of connections, or DNS with RESOLVE_DOMAINS. Domestic are
DOMESTIC_NETWORKS, else those allocated to NATIONAL_DOMAIN's country.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import func, select

from crawler.options import OptionError
from crawler.store.addresses import Addresses
from crawler.store.queries import in_stretches
from crawler.store.tables import pages
from crawler.urls.url import domain_finder, host_of
from crawler.views.drawing import Bar, Picture, bars
from crawler.views.figures import site_names

if TYPE_CHECKING:
    from crawler.options import Options
    from crawler.reports import Crawl

CLASSES = ("national", "international", "elsewhere", "unknown")
# How a domain was named: in pages or links, in mail addresses, in FTP links.
KINDS = ("web", "mail", "ftp")
MOST_LINES = 20
# Countries whose domain is not their code in ISO 3166.
COUNTRY_OF = {"uk": "GB", "ac": "SH", "eu": "EU"}

IsDomestic = Callable[[str], bool]


def figures(crawl: Crawl) -> dict[str, Any]:
    """Domains by class and kind, and all domains."""
    is_domestic = domestic(crawl.options)
    named = _named(crawl)
    addresses = _addresses(crawl)
    national = crawl.options.national_domain.lower().strip(".")
    suffix = f".{national}"
    if crawl.options.resolve_domains:
        unknown = [name for name in sorted(named) if not name.endswith(suffix) and name not in addresses]
        found = Addresses(crawl.options.var / "addresses.json").of(unknown)
        addresses |= {name: address for name, address in found.items() if address}
    domains = [
        {
            "domain": name,
            "class": _class_of(name, suffix, addresses.get(name, ""), is_domestic),
            **{kind: kind in kinds for kind in KINDS},
            "address": addresses.get(name),
        }
        for name, kinds in sorted(named.items())
    ]
    return {
        "national_domain": national,
        "domains": domains,
        "classes": {
            name: {
                "domains": sum(one["class"] == name for one in domains),
                **{kind: sum(one["class"] == name and bool(one[kind]) for one in domains) for kind in KINDS},
            }
            for name in CLASSES
        },
    }


def domestic(options: Options) -> IsDomestic:
    """Raises OptionError for an unusable file of networks."""
    if options.domestic_networks:
        return _in_networks(options.domestic_networks)
    from iptocc import country_code  # imported here: 0.6 MB of data

    national = options.national_domain.lower().strip(".")
    country = COUNTRY_OF.get(national, national.upper())

    def lies_in_country(address: str) -> bool:
        with suppress(ValueError):
            return bool(country_code(address) == country)
        return False

    return lies_in_country


def _in_networks(file: str) -> IsDomestic:
    blocks: dict[tuple[int, int], set[int]] = {}  # (version, prefix length) -> first bits
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"DOMESTIC_NETWORKS is {file!r}: {error}; expected a file with a network such as 192.0.2.0/24 a line"
        ) from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].strip()
        if not words:
            continue
        try:
            block = ipaddress.ip_network(words, strict=False)
        except ValueError as error:
            raise OptionError(
                f"DOMESTIC_NETWORKS {file!r}, line {number}: {error}; expected a network such as 192.0.2.0/24"
            ) from None
        shift = block.max_prefixlen - block.prefixlen
        blocks.setdefault((block.version, shift), set()).add(int(block.network_address) >> shift)

    def lies_in_blocks(address: str) -> bool:
        with suppress(ValueError):
            one = ipaddress.ip_address(address)
            return any(
                int(one) >> shift in firsts
                for (version, shift), firsts in blocks.items()
                if version == one.version
            )
        return False

    return lies_in_blocks


def _class_of(name: str, suffix: str, address: str, is_domestic: IsDomestic) -> str:
    if name.endswith(suffix):
        return "national"
    if not address:
        return "unknown"
    return "international" if is_domestic(address) else "elsewhere"


def _named(crawl: Crawl) -> dict[str, set[str]]:
    """Registered domains and their kinds, without addresses and single labels."""
    columns = (pages.c.outside_hosts, pages.c.mail_domains, pages.c.ftp_domains)
    query = select(*columns).where(pages.c.outcome.in_(("stored", "duplicate")))
    hosts: dict[str, set[str]] = {kind: set() for kind in KINDS}
    decode = msgspec.json.Decoder(list[str]).decode
    for row in in_stretches(crawl.engine, pages, query):
        for kind, words in zip(KINDS, row, strict=True):
            if words:
                hosts[kind].update(decode(words))
    hosts["web"].update(host_of(site) for _, site in site_names(crawl.engine))
    domain_of = domain_finder(private_suffixes=False)
    named: dict[str, set[str]] = {}
    for kind in KINDS:
        for host in _names(hosts[kind]):
            named.setdefault(domain_of(f"http://{host}"), set()).add(kind)
    return named


def _names(hosts: Iterable[str]) -> Iterable[str]:
    return (
        host for host in hosts if "." in host and ":" not in host and not host.rpartition(".")[2].isdigit()
    )


def _addresses(crawl: Crawl) -> dict[str, str]:
    """An address per domain that the crawl connected to."""
    query = select(pages.c.site_id, func.max(pages.c.address)).where(pages.c.address.is_not(None))
    met = dict(in_stretches(crawl.engine, pages, query.group_by(pages.c.site_id)))
    domain_of = domain_finder(private_suffixes=False)
    return {
        domain_of(site): str(met[site_id]) for site_id, site in site_names(crawl.engine) if site_id in met
    }


def text(found: dict[str, Any]) -> str:
    """For the terminal."""
    about = {
        "national": f"below .{found['national_domain']}",
        "international": "others on domestic addresses",
        "elsewhere": "others, ignored by the paper",
        "unknown": "others without a known address; RESOLVE_DOMAINS=True looks them up",
    }
    lines = [f"  {'':<14} {'domains':>9} {'web':>9} {'mail':>9} {'ftp':>9}"]
    for name in CLASSES:
        one = found["classes"][name]
        numbers = " ".join(f"{one[key]:>9,}" for key in ("domains", *KINDS))
        lines.append(f"  {name:<14} {numbers}   {about[name]}")
    abroad = [one for one in found["domains"] if one["class"] == "international"]
    lines += [f"  {one['domain']:<40} {one['address']}" for one in abroad[:MOST_LINES]]
    return "\n".join(lines)


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One table."""
    return list(found["domains"])


def pictures(found: dict[str, Any]) -> list[Picture]:
    """For a page."""
    many = {name: found["classes"][name]["domains"] for name in CLASSES}
    shown = [Bar(name, number, f"{number:,}") for name, number in many.items()]
    return (
        [Picture("Registered domains by class", bars(shown, "domains by class"))]
        if any(many.values())
        else []
    )
