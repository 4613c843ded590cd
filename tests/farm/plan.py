"""What a farm is asked to be: one value that the command line, the server and the truth share.

Hides how sites are numbered onto loopback addresses. Promises that two equal plans on the same port give
the same bytes on every machine; a plan that cannot be served raises ValueError naming the option.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_SITES = 2_000
SITES_PER_NET = 250
NAME_ADDRESS = "127.0.0.1"
NAMES = ("www.one.localhost", "shop.one.localhost", "two.localhost")
# Every way in which a site differs from a tidy set of pages; kinds.py has one function for each.
KINDS = (
    "nofollow",
    "private",
    "duplicate",
    "redirect",
    "away",
    "missing",
    "broken",
    "busy",
    "charset",
    "base",
    "session",
    "schemes",
    "overlong",
    "binary",
    "meta",
    "canonical",
)
# Every way in which a whole site can be hostile; hostile.py and behaviours.py have one function for each.
HOSTILITIES = (
    *("calendar", "sessions", "folders", "crowded", "attributes", "nested", "endless_rules", "no_rules"),
    *("drip-head", "drip-body", "silent", "reset", "reset-body", "short-body"),
    *("endless-body", "endless-headers", "endless-chunk", "many-fields", "long-header-line", "hundred-flood"),
    *(
        "bad-gzip",
        "gzip-bomb",
        "gzip-layers",
        "bad-status",
        "no-status",
        "bad-chunk",
        "two-lengths",
        "bad-length",
    ),
    *("redirect-loop", "redirect-private", "redirect-file", "redirect-long"),
)


@dataclass(frozen=True)
class Plan:
    """The farm's shape. Sites are numbered from 0; named sites follow the numbered ones."""

    sites: int = 10
    pages: tuple[int, int] = (20, 20)  # fewest and most ordinary pages of a site
    links: int = 12  # links of an ordinary page, about a fifth of them to other sites
    size: int = 2_000  # bytes of an ordinary page, at least; links may need more
    kinds: tuple[str, ...] = KINDS  # () = a plain farm
    names: tuple[str, ...] = NAMES  # sites told apart by the Host field, all on 127.0.0.1
    delay_ms: float = 0.0  # before each answer
    slow_ms: Mapping[int, float] = field(default_factory=dict)  # the same for one site; wins over delay_ms
    crawl_delay: float = 0.0  # seconds in every robots.txt; 0 = not stated
    crawl_delays: Mapping[int, float] = field(default_factory=dict)  # the same for one site
    down: tuple[int, ...] = ()  # numbered sites that refuse connections
    aliases: Mapping[str, str] = field(
        default_factory=dict
    )  # further names, each serving a named site's pages
    hostile: Mapping[int, str] = field(default_factory=dict)  # what numbered sites are hostile by

    def __post_init__(self) -> None:
        _check(0 <= self.sites <= MAX_SITES, "sites", self.sites, f"0 to {MAX_SITES}")
        _check(1 <= self.pages[0] <= self.pages[1], "pages", self.pages, "N or FEWEST-MOST, from 1")
        _check(self.links >= 2, "links", self.links, "2 or more")
        _check(set(self.kinds) <= set(KINDS), "kinds", self.kinds, f"some of {', '.join(KINDS)}")
        _check(all(n.endswith(".localhost") for n in self.names), "names", self.names, "names in .localhost")
        strange = {name: one for name, one in self.aliases.items() if not name.endswith(".localhost")}
        strange |= {name: one for name, one in self.aliases.items() if one not in self.names}
        _check(not strange, "aliases", strange, "names in .localhost for some of the named sites")
        for option, given in (("slow", self.slow_ms), ("crawl-delay", self.crawl_delays)):
            _check(set(given) <= set(range(self.total)), option, given, f"site numbers below {self.total}")
        for option, sites in (("down", self.down), ("hostile", self.hostile)):
            _check(set(sites) <= set(range(self.sites)), option, sites, f"numbers below {self.sites}")
        strange = {site: how for site, how in self.hostile.items() if how not in HOSTILITIES}
        _check(not strange, "hostile", strange, f"some of {', '.join(HOSTILITIES)}")

    @property
    def total(self) -> int:
        """Numbered and named sites together."""
        return self.sites + len(self.names)

    def host(self, index: int) -> str:
        """Host of a site as it stands in its URLs: an address, or a name past the numbered sites."""
        return address(index) if index < self.sites else self.names[index - self.sites]

    def addresses(self) -> list[str]:
        """Loopback addresses to listen on."""
        numbered = [address(index) for index in range(self.sites) if index not in self.down]
        return numbered + ([NAME_ADDRESS] if self.names else [])


def address(index: int) -> str:
    """Loopback address of a numbered site: 127.0.1.1, 127.0.1.2 … 127.0.1.250, 127.0.2.1 …."""
    return f"127.0.{1 + index // SITES_PER_NET}.{1 + index % SITES_PER_NET}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that `from_options` reads and `to_arguments` writes."""
    parser.add_argument("--sites", type=int, default=10, help=f"numbered sites, up to {MAX_SITES}")
    parser.add_argument("--pages", type=_span, default=(20, 20), help="ordinary pages per site: 20, or 1-3")
    parser.add_argument("--links", type=int, default=12, help="links per page")
    parser.add_argument("--size", type=int, default=2_000, help="bytes per page, at least")
    parser.add_argument("--kinds", type=_words, default=KINDS, help="misbehaving pages, comma-separated")
    parser.add_argument("--names", type=_words, default=NAMES, help="sites on 127.0.0.1 by name")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="wait before each answer")
    parser.add_argument("--slow", type=_pair, action="append", default=[], metavar="SITE=MS")
    parser.add_argument("--crawl-delay", type=float, default=0.0, help="seconds in every robots.txt")
    parser.add_argument("--crawl-delay-of", type=_pair, action="append", default=[], metavar="SITE=SECONDS")
    parser.add_argument("--down", type=int, action="append", default=[], metavar="SITE")
    parser.add_argument("--hostile", type=_hostile, action="append", default=[], metavar="SITE=HOW")
    parser.add_argument("--alias", type=_names, action="append", default=[], metavar="NAME=NAME")


def from_options(options: argparse.Namespace) -> Plan:
    """The plan that the command line asks for."""
    return Plan(
        sites=options.sites,
        pages=options.pages,
        links=options.links,
        size=options.size,
        kinds=options.kinds,
        names=options.names,
        delay_ms=options.delay_ms,
        slow_ms=dict(options.slow),
        crawl_delay=options.crawl_delay,
        crawl_delays=dict(options.crawl_delay_of),
        down=tuple(options.down),
        aliases=dict(options.alias),
        hostile=dict(options.hostile),
    )


def to_arguments(plan: Plan) -> list[str]:
    """The command line that asks for this plan."""
    single: dict[str, object] = {
        "sites": plan.sites,
        "pages": f"{plan.pages[0]}-{plan.pages[1]}",
        "links": plan.links,
        "size": plan.size,
        "kinds": ",".join(plan.kinds),
        "names": ",".join(plan.names),
        "delay-ms": plan.delay_ms,
        "crawl-delay": plan.crawl_delay,
    }
    repeated = [f"--slow={site}={ms}" for site, ms in plan.slow_ms.items()]
    repeated += [f"--crawl-delay-of={site}={delay}" for site, delay in plan.crawl_delays.items()]
    repeated += [f"--down={site}" for site in plan.down]
    repeated += [f"--hostile={site}={how}" for site, how in plan.hostile.items()]
    repeated += [f"--alias={name}={site}" for name, site in plan.aliases.items()]
    return [f"--{name}={value}" for name, value in single.items()] + repeated


def _span(text: str) -> tuple[int, int]:
    fewest, _, most = text.partition("-")
    return int(fewest), int(most or fewest)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _pair(text: str) -> tuple[int, float]:
    site, _, value = text.partition("=")
    return int(site), float(value)


def _hostile(text: str) -> tuple[int, str]:
    site, _, how = text.partition("=")
    return int(site), how


def _names(text: str) -> tuple[str, str]:
    name, _, site = text.partition("=")
    return name, site


def _check(fine: bool, option: str, came: object, wanted: str) -> None:
    if not fine:
        raise ValueError(f"farm option {option}: {came!r} came, {wanted} is expected")
