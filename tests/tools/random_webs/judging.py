"""Crawls a web with the command and compares the servers' logs and the tables with what is true of it."""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tests import crawling
from tests.servers import eventually
from tests.small_site import SmallSite
from tests.tools.random_webs.features import NAMES, Features
from tests.tools.random_webs.html import Writer
from tests.tools.random_webs.model import Page, Place, Site, Web, spellings

COLUMNS = [
    "outcome",
    "status",
    "depth",
    "tries",
    "size",
    "sha256",
    "title",
    "redirect",
    "canonical",
    "duplicate_of",
]
MOST_SITES = 4
MOST_PAGES = 25
MOST_FEATURES = 7
# Of the webs, those that are crawled with MAX_DEPTH.
SHARE_OF_SHALLOW = 0.2


def make_web(chance: random.Random, names: list[str], features: list[str]) -> Web:
    """A web of as many sites as there are names, with features at random places."""
    sites = [Site(name, number) for number, name in enumerate(names)]
    writer = Writer(chance, names)
    adding = Features(chance, writer, sites)
    doors: dict[Place, list[Place]] = defaultdict(list)  # links that pages get beside their own
    pages = [Place(site.number, path) for site in sites for path in ("/", *_paths(chance))]
    for site in sites:
        of_site = [place for place in pages if place.site == site.number]
        for feature in chance.sample(features, min(len(features), chance.randrange(2, MOST_FEATURES))):
            for door in adding.add(feature, site):
                doors[chance.choice(of_site)].append(door)
    tree = _tree(chance, pages)
    for place in pages:
        more = chance.sample(pages, chance.choice((0, 1, 2, 3)))
        leads = [*tree[place], *doors[place], *more]
        chance.shuffle(leads)
        writer.page(sites[place.site], place.path, leads)
    seeds = sorted(chance.sample(range(len(sites)), chance.randrange(1, len(sites) + 1)))
    deepest = chance.randrange(2, 6) if chance.random() < SHARE_OF_SHALLOW else 0
    return Web(sites, seeds, scope=chance.choice(("seeds", "any")), max_depth=deepest)


def _paths(chance: random.Random) -> Iterator[str]:
    for number in range(chance.randrange(5, MOST_PAGES)):
        folder = chance.choice(("", "/docs", "/docs/more", "/blog/2024"))
        yield folder + chance.choice(
            (f"/page-{number}.html", f"/topic-{number}/", f"/view?id={number}", f"/p{number}")
        )


def _tree(chance: random.Random, pages: list[Place]) -> dict[Place, list[Place]]:
    """Links by which all pages of a site are found from its root."""
    tree: dict[Place, list[Place]] = {place: [] for place in pages}
    for number, place in enumerate(pages):
        before = [earlier for earlier in pages[:number] if earlier.site == place.site]
        if before:
            tree[chance.choice(before)].append(place)
    return tree


@contextmanager
def served(chance: random.Random, features: list[str]) -> Iterator[tuple[Web, list[SmallSite]]]:
    """A random web on loopback addresses."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(SmallSite({}, f"127.0.5.{number + 1}"))
            for number in range(chance.randrange(2, MOST_SITES + 1))
        ]
        web = make_web(chance, [server.site for server in servers], features)
        for server, site in zip(servers, web.sites, strict=True):
            server.routes.update(site.routes)
        yield web, servers


def differences(place: crawling.Place, seed: int, kills: int = 0, features: list[str] = NAMES) -> list[str]:
    """Crawl web `seed`, killed so many times on the way; what is not as it must be."""
    chance = random.Random(seed)
    with served(chance, features) as (web, servers):
        roots = [servers[number].root for number in web.seeds]
        settings = {"SCOPE": web.scope, "MAX_DEPTH": web.max_depth, "DOWNLOAD_DELAY": 0.02 if kills else 0}
        for number in range(kills):
            run = place.start_crawl(roots, **settings)
            eventually(
                partial(_has_asked, servers, run, 40 * number + chance.randrange(5, 60)), "some pages", 60
            )
            run.process.kill()
            run.wait()
        end = place.start_crawl(roots, **settings).wait(180)
        found = [] if end.code == 0 else [f"exit code {end.code}: {end.err[-500:]}"]
        if "balanced" not in place.run("report", "ledger").out:
            found.append("the ledger is not balanced")
        expected = web.expected()
        return found + list(_asked(web, servers, expected, kills)) + list(_told(place, web, expected, kills))


def _has_asked(servers: list[SmallSite], run: crawling.Run, many: int) -> bool:
    return sum(len(server.log) for server in servers) > many or run.process.poll() is not None


def _asked(web: Web, servers: list[SmallSite], expected: dict[Place, int], kills: int) -> Iterator[str]:
    # With MAX_DEPTH a page that is found by a shorter way is asked again, since its links count now.
    again = bool(kills or web.max_depth)
    for site, server in zip(web.sites, servers, strict=True):
        asked = server.pages
        for place in (place for place in expected if place.site == site.number):
            page = site.pages.get(place.path)
            counts = {path: asked.pop(path, 0) for path in spellings(page, place.path)}
            least, most = (page.requests, site.most_requests(page)) if page else (1, 1)
            if site.denies(place.path):
                least, most = 0, 0
            yield from _times(
                server.site + place.path, counts, least, sys.maxsize if again and most else most
            )
        yield from (f"{server.site}{path}: asked for, and nothing leads there" for path in sorted(asked))
        yield from (
            f"{server.site}{hit.path}: asked for by {hit.method}" for hit in server.log if hit.method != "GET"
        )


def _times(url: str, counts: dict[str, int], least: int, most: int) -> Iterator[str]:
    times = sum(counts.values())
    if not least <= times <= most:
        wanted = str(least) if most in (least, sys.maxsize) else f"{least} to {most}"
        yield f"{url}: asked for {times} times, expected {wanted}"
    if len([path for path, many in counts.items() if many]) > 1:
        yield f"{url}: asked for in several spellings: {counts}"


def _told(place: crawling.Place, web: Web, expected: dict[Place, int], kills: int) -> Iterator[str]:
    rows = {row[0]: dict(zip(COLUMNS, row[1:], strict=True)) for row in place.rows(_QUERY)}
    told: Counter[str] = Counter()
    for found, depth in expected.items():
        site = web.sites[found.site]
        page = site.pages.get(found.path)
        urls = [site.name + path for path in spellings(page, found.path) if site.name + path in rows]
        if not urls:
            yield f"{site.name}{found.path}: no row"
            continue
        told.update(urls)
        row = rows[urls[0]]
        if row["depth"] < depth or 0 < web.max_depth < row["depth"]:
            yield f"{urls[0]}: depth is {row['depth']}, expected {depth}"
        yield from (
            f"{urls[0]}: {column} is {row[column]!r}, expected {value!r}"
            for column, value in _row(web, site, found, page, kills, row).items()
            if row[column] != value
        )
    yield from (f"{url}: a row that nothing leads to" for url in rows.keys() - told.keys())


def _row(
    web: Web, site: Site, found: Place, page: Page | None, kills: int, row: dict[str, object]
) -> dict[str, object]:
    """What the row must say; of twins any may be the original."""
    wanted: dict[str, object] = {}
    if site.denies(found.path):
        return {**wanted, "outcome": "denied"}
    if page is None:
        return {**wanted, "outcome": "failed", "status": 404}
    wanted |= page.row
    if page.tries and not kills and not web.max_depth:
        wanted["tries"] = page.tries
    if page.twins and row["outcome"] == "duplicate":
        originals = [site.name + other.path for other in site.pages.values() if other.twins == page.twins]
        if row["duplicate_of"] in originals and row["duplicate_of"] != site.name + found.path:
            wanted = {
                key: value
                for key, value in wanted.items()
                if key in ("status", "depth", "tries", "sha256", "size")
            }
    return wanted


_QUERY = f"select coalesce(asked_as, url), {', '.join(COLUMNS)} from pages"
