"""`/metrics`: what Prometheus reads, whose page tells all of it, and the board for Grafana that shows it."""

from __future__ import annotations

import json
import re
from importlib import metadata
from itertools import combinations
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from crawler.store import queries
from crawler.store.database import open_database
from crawler.views import figures, metrics
from crawler.views.figures import Standing
from tests.reporting import fill
from tests.test_top import queue_now, seen

ROOT = Path(__file__).resolve().parent.parent
BOARD: dict[str, Any] = json.loads((ROOT / "docs/grafana.json").read_text(encoding="utf-8"))
STANDING = Standing({"normal": 7, "error": 2}, 3)


def exported() -> dict[str, list[tuple[dict[str, str], float]]]:
    """Name -> labels and value of each sample, of a look that saw everything."""
    agents = [{"agent": "host-1", "pages": 40, "joined_ms": 1}]
    text = metrics.written(seen(queue=queue_now(agents=agents)), STANDING).decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def asked_by_the_board() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def test_healths_and_dead_letters_are_told() -> None:
    found = exported()
    assert {labels["health"]: value for labels, value in found["lowtide_sites_by_health"]} == {
        "normal": 7, "delayed": 0, "disconnected": 0, "error": 2,
    }  # fmt: skip
    assert found["lowtide_dead_letters"] == [({}, 3)]


def test_what_could_not_be_asked_is_left_out() -> None:
    text = metrics.written(seen(queue=None, tail=None, progress=None)).decode()
    assert 'lowtide_up{service="redis"} 0.0' in text
    names = set(re.findall(r"^(lowtide_\w+)", text, re.MULTILINE))
    assert names == {"lowtide_up", "lowtide_pages_per_second", "lowtide_info"}
    assert f'lowtide_info{{version="{metadata.version("lowtide")}"}} 1.0' in text


def test_a_standing_is_counted_in_stretches(tmp_path: Path, monkeypatch: Any) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'crawl.db'}")
    fill(engine, 7, 2)
    with engine.begin() as db:
        db.exec_driver_sql("UPDATE sites SET health = 'normal'")
        db.exec_driver_sql("UPDATE sites SET health = 'error' WHERE site LIKE '%site1.%'")
        db.exec_driver_sql("UPDATE sites SET health = NULL WHERE site LIKE '%site2.%'")
    monkeypatch.setattr(queries, "STRETCH_ROWS", 3)
    assert figures.standing(engine) == Standing({"normal": 5, "error": 1}, 0)
    engine.dispose()


def test_the_board_asks_for_what_is_exported_and_for_all_of_it() -> None:
    asked = {name for expression in asked_by_the_board() for name in re.findall(r"lowtide_\w+", expression)}
    assert asked == set(exported())


def test_the_boards_labels_are_those_of_the_metrics() -> None:
    """Beside `job` and `instance`, which Prometheus adds."""
    found = exported()
    unknown = []
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            of_metrics = {
                label
                for name in re.findall(r"lowtide_\w+", target["expr"])
                for labels, _ in found[name]
                for label in labels
            }
            asked = re.findall(r"(\w+)!?=", target["expr"]) + re.findall(r"{{(\w+)}}", target["legendFormat"])
            unknown += [
                f"{panel['title']}: {one}" for one in asked if one not in of_metrics | {"job", "instance"}
            ]
    assert unknown == []


def test_the_boards_panels_have_places_of_their_own() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(one["x"] >= 0 and one["x"] + one["w"] <= 24 for one in places)
    assert [(one, other) for one, other in combinations(places, 2) if overlap(one, other)] == []


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    def meet(start: str, size: str) -> bool:
        return one[start] < other[start] + other[size] and other[start] < one[start] + one[size]

    return meet("x", "w") and meet("y", "h")


def test_the_page_tells_every_metric() -> None:
    page = (ROOT / "docs/monitor.md").read_text(encoding="utf-8")
    assert [name for name in exported() if f"`{name}" not in page] == []
