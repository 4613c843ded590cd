"""Figures in Prometheus format; `lowtide_up` shows missing services."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.registry import Collector

from crawler.records import SiteHealth
from crawler.release import version

if TYPE_CHECKING:
    from crawler.views.figures import QueueNow, Standing
    from crawler.views.watching import Seen

__all__ = ["CONTENT_TYPE", "written"]

STATES = ("waiting", "suspended", "leased", "later", "paused", "finished", "alias", "blocked")


def written(seen: Seen, standing: Standing | None = None) -> bytes:
    """The text of `/metrics`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Look(seen, standing))
    return bytes(generate_latest(registry))


class _Look(Collector):
    def __init__(self, seen: Seen, standing: Standing | None) -> None:
        self._seen = seen
        self._standing = standing

    def collect(self) -> Iterator[Metric]:
        seen = self._seen
        up = GaugeMetricFamily("lowtide_up", "Whether it answers.", labels=["service"])
        up.add_metric(["redis"], float(seen.queue is not None))
        up.add_metric(["tables"], float(seen.tail is not None))
        yield up
        yield GaugeMetricFamily(
            "lowtide_pages_per_second", "Pages a second, of the last half minute.", seen.pace
        )
        if seen.queue is not None:
            yield from _of_queue(seen.queue)
        if seen.progress is not None:
            yield GaugeMetricFamily("lowtide_pages_known", "URLs of all sites.", seen.progress.known)
            yield GaugeMetricFamily("lowtide_pages_done", "Of these, fetched or decided.", seen.progress.done)
        if seen.tail is not None:
            kinds = GaugeMetricFamily(
                "lowtide_recent_errors", "Failed pages among the last 5,000, by kind.", labels=["kind"]
            )
            for kind, many in seen.tail.errors().items():
                kinds.add_metric([kind], many)
            yield kinds
        if self._standing is not None:
            yield from _of_tables(self._standing)
        yield InfoMetricFamily("lowtide", "The version that shows this.", {"version": version()})


def _of_tables(standing: Standing) -> Iterator[Metric]:
    healths = GaugeMetricFamily(
        "lowtide_sites_by_health", "Sites by health at their last check.", labels=["health"]
    )
    for word in get_args(SiteHealth):
        healths.add_metric([word], standing.healths.get(word, 0))
    yield healths
    yield GaugeMetricFamily("lowtide_dead_letters", "Records refused by the tables.", standing.dead_letters)


def _of_queue(now: QueueNow) -> Iterator[Metric]:
    depth = now.depth._asdict()
    sites = GaugeMetricFamily("lowtide_sites", "Sites by state.", labels=["state"])
    for state in STATES:
        sites.add_metric([state], depth[state])
    yield sites
    if now.lost is not None:
        about = "Unfinished sites of the tables that the queue does not know."
        yield GaugeMetricFamily("lowtide_sites_lost", about, now.lost)
    yield GaugeMetricFamily("lowtide_sites_in_line", "Sites left in this hour's list.", now.line_length)
    yield GaugeMetricFamily("lowtide_agents", "Agents with a session.", now.depth.agents)
    yield GaugeMetricFamily("lowtide_stream_records", "Records that wait for the tables.", now.depth.records)
    yield CounterMetricFamily(
        "lowtide_records_published", "Records since the stream's creation.", now.ever_published
    )
    pages = CounterMetricFamily("lowtide_agent_pages", "Pages of an agent's session.", labels=["agent"])
    for agent in now.agents:
        pages.add_metric([str(agent["agent"])], float(agent["pages"]))
    yield pages
    lag = GaugeMetricFamily(
        "lowtide_coordinator_lag_seconds",
        "Age of its oldest record that is not stored yet.",
        labels=["coordinator"],
    )
    for one in now.coordinators:
        lag.add_metric([str(one["name"])], float(one.get("lag", 0)))
    yield lag
