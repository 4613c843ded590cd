"""An attribute of a page that one file adds: bounded, stored, kept by recheck, shown and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from crawler.content.extra import DEEPEST, bounded
from crawler.queue.batches import BatchPage
from crawler.records import MOST_EXTRA_BYTES
from crawler.store.database import open_database
from crawler.views.figures import site_pages
from tests.crawling import Place
from tests.small_site import Reply, SmallSite, links
from tests.test_dashboard import ask, dashboard
from tests.test_works import HTML, give

PIPELINES = {
    "crawler.pipelines.checksum.Checksum": 100,
    "crawler.pipelines.attributes.Attributes": 200,
    "crawler.pipelines.links.Links": 300,
    "tests.contracts.outsider.Scripts": 400,
    "tests.test_extra.Greedy": 500,
}


class Greedy:
    """Wants too much of one page, and says what a page or a terminal would obey of another."""

    def process(self, page: Any) -> None:
        if page.record.path == "/greedy":
            page.record.extra["all of it"] = "x" * MOST_EXTRA_BYTES
        if page.record.path == "/hostile":
            page.record.extra["<b>said"] = "<script>\x1b[31m\u202e"


@pytest.mark.timeout(120)
def test_a_new_attribute_from_the_page_to_the_eye(tmp_path: Path) -> None:
    body = "<p>{}</p><script></script>"
    with SmallSite({"/": links("/same", "/other", "/greedy", "/hostile")}) as web, Place(tmp_path) as place:
        names = ("same", "other", "greedy", "hostile")
        web.routes |= {f"/{name}": Reply(200, {**HTML, "ETag": '"1"'}, body.format(name)) for name in names}
        run = place.crawl([web.root], PAGE_PIPELINES=PIPELINES).succeeded()
        stored = "select url, extra, error from pages order by url"
        left_out = (
            f"left out: extra['all of it'] ({MOST_EXTRA_BYTES + 15:,} bytes of JSON; expected 16,384 in all)"
        )
        assert place.rows(stored) == [
            (web.root, '{"scripts":{"many":0}}', None),
            (f"{web.root}greedy", '{"scripts":{"many":1}}', left_out),
            (f"{web.root}hostile", '{"scripts":{"many":1},"<b>said":"<script>\\u001b[31m\u202e"}', None),
            (f"{web.root}other", '{"scripts":{"many":1}}', None),
            (f"{web.root}same", '{"scripts":{"many":1}}', None),
        ]
        assert f"{web.root}greedy: {left_out}" in run.err

        web.routes["/same"] = Reply(304, {"ETag": '"1"'})
        web.routes["/other"] = Reply(200, {**HTML, "ETag": '"2"'}, body.format("new") * 2)
        give(
            place, web.site, "recheck", *(BatchPage(f"/{name}", "visited", etag='"1"') for name in names[:2])
        )
        place.crawl([], spider="recheck", PAGE_PIPELINES=PIPELINES).succeeded()
        assert [extra for _, extra, _ in place.rows(stored)[-2:]] == [
            '{"scripts":{"many":2}}',
            '{"scripts":{"many":1}}',
        ]

        engine = open_database(f"sqlite:///{place.var / 'crawl.db'}")
        shown = site_pages(engine, web.site)
        engine.dispose()
        assert shown is not None
        assert {one["url"]: one["extra"] for one in shown["pages"]}[f"{web.root}other"] == [
            ("scripts", '{"many": 2}')
        ]
        with dashboard(place) as url:
            seen = ask(url, f"/site?name={quote(web.site)}").body  # type: ignore[attr-defined]
        assert '<span class="dim">scripts: {&#34;many&#34;: 2}</span>' in seen
        assert "&lt;b&gt;said: &#34;&lt;script&gt;" in seen
        assert "<script>\x1b" not in seen
        assert not {"\x1b", "\u202e"} & set(seen)

        place.run("convert").succeeded()
        (parquet,) = place.var.glob("convert/*/pages-*.parquet")
        rows = pq.read_table(parquet).to_pylist()
        assert {row["url"]: row["extra"] for row in rows}[f"{web.root}other"] == '{"scripts":{"many":2}}'


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"words": 3, "share": 0.5, "is": True, "none": None, "list": [1, [2]], "dict": {"서울": "é🌊\n\0"}},
        {"": -(2**63), "large": 2**70, "deep": nested(DEEPEST - 1)},
        {"x": "y" * (MOST_EXTRA_BYTES - 9)},
    ],
)
def test_what_json_can_say_is_kept(extra: dict[str, Any]) -> None:
    assert bounded(extra) == (extra, "")


def test_it_is_kept_as_it_will_be_read() -> None:
    assert bounded({"pair": (1, 2), "by number": {1: "a"}}) == ({"pair": [1, 2], "by number": {"1": "a"}}, "")


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({1, 2}, "set is not JSON serializable"),
        (b"x", "bytes is not JSON serializable"),
        (object(), "object is not JSON serializable"),
        (float("nan"), "not JSON compliant"),
        ([float("inf")], "not JSON compliant"),
        ("\ud800", "surrogates not allowed"),
        (CIRCLE, "Circular reference"),
        (nested(DEEPEST), "nested more than 20 deep"),
        (nested(100_000), "recursion"),
    ],
)
def test_what_json_cannot_say_is_left_out_and_told(value: Any, why: str) -> None:
    kept, words = bounded({"a": 1, "odd": value, "b": 2})
    assert kept == {"a": 1, "b": 2}
    assert words.startswith("left out: extra['odd'] (")
    assert why.lower() in words.lower()


@pytest.mark.parametrize("given", [None, [], [1], "words", 3])
def test_what_is_no_dictionary_is_left_out_and_told(given: Any) -> None:
    kind = type(given).__name__
    assert bounded(given) == ({}, f"extra is left out: it is {kind}; expected a dictionary")


def test_a_name_that_is_no_text_is_left_out_and_told() -> None:
    assert bounded({1: 2, "a": 3}) == ({"a": 3}, "left out: extra['1'] (the name is int; expected a text)")


def test_of_too_much_the_largest_is_left_out() -> None:
    given = {f"n{number}": "x" * number * 500 for number in range(12)}
    kept, words = bounded(given)
    assert list(kept) == [f"n{number}" for number in range(8)]
    assert len(json.dumps(kept).encode()) <= MOST_EXTRA_BYTES
    assert words.startswith(
        "left out: extra['n11'] (5,509 bytes of JSON; expected 16,384 in all), extra['n10']"
    )
    assert words.endswith(" and 1 more")
    assert bounded(kept) == (kept, "")
