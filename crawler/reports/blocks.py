"""The graph of blocks: the heaviest sites and their links (paper 003's block graph)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import func, select

from crawler.store.database import transaction
from crawler.store.queries import in_stretches
from crawler.store.ranks import in_force
from crawler.store.tables import pages, site_ranks, sites
from crawler.urls.url import host_of
from crawler.views.drawing import Edge, Node, Picture, graph

if TYPE_CHECKING:
    import networkx

    from crawler.reports import Crawl

MOST_BLOCKS = 50
# The strongest links are drawn; with more, the picture is unreadable.
MOST_TIES = 120
# Weak tie between any two blocks; the strongest link is 1.
HELD = 0.03
# Blocks and links with a line of their own.
MOST_LINES = 15


def figures(crawl: Crawl) -> dict[str, Any]:
    """The MOST_BLOCKS hosts by rank, or by pages before any ranking (`by`), and their links.

    A link's weight is the number of linking pages.
    """
    by, weights = _heaviest(crawl)
    links = _links(crawl, weights)
    return {
        "by": by,
        "blocks": [{"host": host, "weight": weight} for host, weight in weights.items()],
        "links": [
            {"source": source, "target": target, "pages": many}
            for (source, target), many in sorted(links.items(), key=lambda one: (-one[1], one[0]))
        ],
    }


def _heaviest(crawl: Crawl) -> tuple[str, dict[str, float]]:
    run = in_force().scalar_subquery()
    ranked = (
        select(sites.c.site, site_ranks.c.importance)
        .join(site_ranks, site_ranks.c.site_id == sites.c.site_id)
        .where(site_ranks.c.run == run)
        .order_by(site_ranks.c.importance.desc())
    )
    with transaction(crawl.engine) as db:
        found = db.execute(ranked.limit(2 * MOST_BLOCKS)).all()
    if found:
        return "importance", _by_host((site, float(weight)) for site, weight in found)
    counted = (
        select(pages.c.site_id, func.count()).where(pages.c.outcome == "stored").group_by(pages.c.site_id)
    )
    many: Counter[int] = Counter()
    for site_id, number in in_stretches(crawl.engine, pages, counted):
        many[site_id] += number
    most = dict(many.most_common(2 * MOST_BLOCKS))
    with transaction(crawl.engine) as db:
        names = db.execute(select(sites.c.site, sites.c.site_id).where(sites.c.site_id.in_(most))).all()
    by_pages = sorted(
        ((site, float(most[number])) for site, number in names), key=lambda one: (-one[1], one[0])
    )
    return "pages", _by_host(by_pages)


def _by_host(found: Any) -> dict[str, float]:
    weights: dict[str, float] = {}
    for site, weight in found:
        host = host_of(site)
        weights[host] = weights.get(host, 0.0) + weight
    return dict(sorted(weights.items(), key=lambda one: (-one[1], one[0]))[:MOST_BLOCKS])


def _links(crawl: Crawl, hosts: dict[str, float]) -> Counter[tuple[str, str]]:
    """Pages of one host that name another of these."""
    with transaction(crawl.engine) as db:
        rows = db.execute(select(sites.c.site_id, sites.c.site)).all() if len(hosts) > 1 else []
    source = {site_id: host_of(site) for site_id, site in rows if host_of(site) in hosts}
    query = select(pages.c.site_id, pages.c.outside_hosts).where(
        pages.c.outcome == "stored", pages.c.outside_hosts.is_not(None)
    )
    links: Counter[tuple[str, str]] = Counter()
    decode = msgspec.json.Decoder(list[str]).decode
    for site_id, words in in_stretches(crawl.engine, pages, query) if source else ():
        if (one := source.get(site_id)) is not None:
            links.update((one, other) for other in decode(words) if other in hosts and other != one)
    return links


def text(found: dict[str, Any]) -> str:
    """For the terminal."""
    if not found["blocks"]:
        return "  no page is stored yet"
    lines = [f"  {one['weight']:>12,.2f}  {one['host']}" for one in found["blocks"][:MOST_LINES]]
    lines[0] += f"   ({found['by']})"
    lines += [
        f"  {one['pages']:>12,}  {one['source']} -> {one['target']}" for one in found["links"][:MOST_LINES]
    ]
    return "\n".join(lines)


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One table."""
    return list(found["links"])


def pictures(found: dict[str, Any]) -> list[Picture]:
    """For a page."""
    if not found["links"]:
        return []
    title = (
        f"The {len(found['blocks'])} blocks that weigh most, by {found['by']}, and the pages that link them"
    )
    return [Picture(title, graph(*_placed(found), title), wide=True)]


def _placed(found: dict[str, Any]) -> tuple[list[Node], list[Edge]]:
    """Nodes with positions; deterministic."""
    import networkx  # imported here: it is slow, and only pictures need it

    drawn = networkx.Graph()
    drawn.add_nodes_from(one["host"] for one in found["blocks"])
    for one in found["links"]:
        before = drawn.get_edge_data(one["source"], one["target"], {"weight": 0})["weight"]
        drawn.add_edge(one["source"], one["target"], weight=before + one["pages"])
    places = _spread(drawn)
    most = max(one["weight"] for one in found["blocks"]) or 1.0
    number = {one["host"]: at for at, one in enumerate(found["blocks"])}
    nodes = [Node(one["host"], *places[one["host"]], one["weight"] / most) for one in found["blocks"]]
    ties = sorted(drawn.edges(data="weight"), key=lambda tie: (-tie[2], tie))[:MOST_TIES]
    edges = [Edge(number[one], number[other], weight / ties[0][2]) for one, other, weight in ties]
    return nodes, edges


def _spread(drawn: networkx.Graph) -> dict[str, tuple[float, float]]:
    """Positions, 0 to 1, without overlap. Weak ties keep unconnected parts together."""
    import networkx

    held = networkx.complete_graph(sorted(drawn))
    strongest = max((weight for *_, weight in drawn.edges(data="weight")), default=1)
    for one, other in held.edges:
        tie = drawn.get_edge_data(one, other, {"weight": 0})["weight"]
        held.edges[one, other]["weight"] = HELD + (tie / strongest) ** 0.5
    found = networkx.spring_layout(held, seed=1, k=2.0 / max(len(drawn), 1) ** 0.5, iterations=200)
    sides = []
    for side in range(2):
        low, high = (bound(place[side] for place in found.values()) for bound in (min, max))
        sides.append((low, (high - low) or 1.0))
    return {
        name: tuple(float((place[side] - low) / wide) for side, (low, wide) in enumerate(sides))  # type: ignore[misc]
        for name, place in found.items()
    }
