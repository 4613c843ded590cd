"""The terminal's view: what it says at 80 and at 160 columns, where there is no terminal, and below a crawl's log."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from crawler.queue.sites import Depth, Holding
from crawler.views.figures import Progress, QueueNow, Tail, Turn
from crawler.views.top import drawn
from crawler.views.watching import Seen
from crawler.views.words import time_word
from tests.crawling import QUICK, ROOT, SCRAPY, Place
from tests.farm import Farm
from tests.servers import RunningServer, eventually
from tests.terminals import Terminal, displayed
from tests.test_reports import crawl_of

NOW_MS = 1_795_000_000_000


def queue_now(**given: Any) -> QueueNow:
    depth = Depth(700, 24, 2, 3, 1, 270, 0, 0, 1_000, 120, 2, 1)
    site = "https://a-site-with-a-name-that-is-longer-than-any-column-could-ever-hope-to-be.example"
    return QueueNow(
        depth=depth,
        agents=[],
        coordinators=[{"name": "c", "lag": 0.25, "waits_for": "", "why": ""}],
        holdings=[Holding(site, "host-1-abcd", 400, 120), Holding("http://b.example", "host-1-abcd", 9, 3)],
        hour=14,
        hour_seconds=3600.0,
        scheduler="regret",
        line=["https://next.example"],
        line_length=724,
        parked=2,
        ever_published=5_000,
        pending=0,
        lost=0,
    )._replace(**given)


def seen(**given: Any) -> Seen:
    turns = [
        Turn(NOW_MS - 100 * n, 404 if n % 10 == 0 else 200, "failed" if n % 10 == 0 else "stored")
        for n in range(400)
    ]
    whole = Seen(NOW_MS, queue_now(), "", Tail(turns), "", Progress(40_000, 10_000, 12), 10.0)
    return whole._replace(**given)


def shown(what: Seen, width: int, folder: Path) -> list[str]:
    console = Console(width=width, record=True, file=(folder / "out").open("w"))
    console.print(drawn(what, crawl_of_nothing(folder), width), highlight=False)
    console.file.close()
    return console.export_text().splitlines()


def crawl_of_nothing(folder: Path) -> Any:
    return crawl_of(None, "", "", folder).options  # type: ignore[arg-type]


# --- what is drawn ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 160])
def test_everything_has_its_place_at_any_width(width: int, tmp_path: Path) -> None:
    lines = shown(seen(), width, tmp_path)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for words in (
        "hour 14", "regret", "2 agents", "1 coordinator", "270 of 1,000", "2 leased", "724 wait", "3 later",
        "10,000 of 40,000", "12 sites not fetched yet", "10.0 pages/s", "at least 50 min", "120 of 500,000 records",
        "0.2 s behind", "404: 40", "a-site-with-a-name", "120/400", "3/9",
    ):  # fmt: skip
        assert words in text, f"{words!r} is not in:\n{text}"
    assert ("next.example" in text) is (width >= 100)


def test_what_is_away_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    away = seen(
        queue=None, queue_trouble="Redis at unix:/x: refused\x1b[2J", tables_trouble="locked", tail=None
    )
    text = "\n".join(shown(away, 80, tmp_path))
    assert "refused\\x1b[2J" in text
    assert "locked" in text
    assert "10.0 pages/s" in text


def test_a_full_stream_and_no_coordinator_are_told(tmp_path: Path) -> None:
    full = queue_now(depth=queue_now().depth._replace(records=500_000))
    assert "agents pause" in "\n".join(shown(seen(queue=full), 80, tmp_path))
    alone = queue_now(coordinators=[])
    assert "no coordinator stores them" in "\n".join(shown(seen(queue=alone), 80, tmp_path))
    waits = queue_now(coordinators=[{"name": "c", "lag": 0, "waits_for": "the database", "why": "disk full"}])
    assert "waits for the database: disk full" in "\n".join(shown(seen(queue=waits), 80, tmp_path))


def test_the_pace_is_of_the_last_half_minute() -> None:
    def tail(*ages: float) -> Tail:
        return Tail([Turn(int(NOW_MS - age * 1000), 200, "stored") for age in ages])

    assert tail(100, *[29 - n / 10 for n in range(290)]).pace(NOW_MS) == pytest.approx(290 / 30)
    assert tail(10, 8, 6, 4, 2).pace(NOW_MS) == pytest.approx(0.5), "a crawl that began ten seconds ago"
    assert tail(400, 300).pace(NOW_MS) == 0
    assert tail().pace(NOW_MS) == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (95, "1 min 35 s"), (7_260, "2 h 1 min"), (90_000, "1 d 1 h")],
)
def test_spans_of_time(seconds: float, words: str) -> None:
    assert time_word(seconds) == words


def test_a_terminal_shows_what_it_is_sent() -> None:
    view = "one\r\ntwo"
    away = "\r\x1b[2K\x1b[1A\x1b[2K"
    assert displayed(f"log\r\n{view}{away}more\r\n{view}", 80) == ["log", "more", "one", "two"]
    assert displayed("\x1b[31mabcde\x1b[0m\r\nx", 3) == ["abc", "de", "x"]


# --- in a terminal ----------------------------------------------------------------------------------------


def test_a_crawl_shows_itself_and_top_shows_it_too(place: Place) -> None:
    """One crawl, watched by its own view, by `scrapy top` at two widths, and by a script."""
    with Farm(sites=6, pages=150, kinds=("missing",), names=()) as farm:
        settings = [word for n, v in {**QUICK, "DOWNLOAD_DELAY": 0.5}.items() for word in ("-s", f"{n}={v}")]
        seeds = ["-a", f"seeds={','.join(farm.seeds)}"]
        command = [str(SCRAPY), "crawl", "site", *seeds, *settings]
        with Terminal(command, place.environment(), ROOT, 80) as crawl:
            crawl.shows("pages/s")
            crawl.shows("leased")
            for columns in (80, 160):
                with Terminal(
                    [str(SCRAPY), "top", "--every", "0.2"], place.environment(), ROOT, columns
                ) as top:
                    eventually(
                        lambda top=top: sum("of the last" in one for one in top.frames) > 1, "two looks", 30
                    )  # type: ignore[misc]
                    top.type("\x03")
                    assert top.wait() == 0
                whole = top.frames[:-1]  # ^C is echoed into the last one
                last = next(frame for frame in reversed(whole) if "of the last" in frame)
                assert max(map(len, last.splitlines())) <= columns
                assert "0 of 6  6 leased" in last
                assert "404: " in last
            told = json.loads(place.run("top", "--json").succeeded().out)
            assert told["queue"]["depth"]["leased"] == 6
            assert told["pages_done"] > 0
            once = place.run("top", "--once").succeeded().out
            assert "6 leased" in once
            assert max(map(len, once.splitlines())) <= 80
            assert place.run("top").succeeded().out == "", "silent where there is no terminal"
            crawl.type("\x03")
            assert crawl.wait() == 0
    judge_log(crawl)


def test_who_ends_the_view_ends_the_crawl(place: Place) -> None:
    """SIGTERM, as a process manager sends it, drains two agents and their supervisor; the log is whole to the end."""
    given = [word for n, v in QUICK.items() for word in ("-s", f"{n}={v}")]
    with Farm(sites=2, pages=3, kinds=(), names=()) as farm:
        words = [
            "crawl",
            "site",
            "--agents",
            "2",
            "--when-idle",
            "wait",
            "-a",
            f"seeds={','.join(farm.seeds)}",
        ]
        with Terminal([str(SCRAPY), *words, *given], place.environment(), ROOT, 120) as crawl:
            crawl.shows("2 agents", 90)
            crawl.signal(signal.SIGTERM)
            assert crawl.wait(90) == 0
    judge_log(crawl)


def judge_log(crawl: Terminal) -> None:
    """Every line of the log stands alone and whole, above the view; the summary comes last."""
    lines = [line for line in crawl.screen if line]
    logged = [line for line in lines if "INFO" in line]
    assert any("Spider opened" in line for line in logged)
    assert any("[coordinator]" in line for line in logged), "children's lines come through too"
    wrong = [line for line in logged if not re.match(r"\d\d:\d\d:\d\d INFO +\[[\w ]+\] ", line)]
    assert wrong == []
    assert [line for line in lines if line.startswith(" lowtide")] == [], "some of the view is still there"
    assert "next:    scrapy report" in "\n".join(lines[-4:]), lines[-6:]


def test_the_view_can_be_off_and_codes_pass_through(place: Place) -> None:
    """Wrong seeds end with code 2, whoever looks on; LIVE_VIEW=False leaves the terminal alone."""
    seeds = ["-a", "seeds=https://example.invalid/"]
    for more in ([], ["-s", "LIVE_VIEW=False"]):
        with Terminal([str(SCRAPY), "crawl", "site", *seeds, *more], place.environment(), ROOT, 80) as crawl:
            assert crawl.wait() == 2
        assert "USER_AGENT" in crawl.text
    assert "\x1b[" not in crawl.raw


def test_nothing_is_begun_by_looking(place: Place, valkey: RunningServer) -> None:
    place.run("top", "--once").refused("nothing was crawled yet", code=1)
    assert not place.var.exists()
    place.run("top", "--every", "0").refused("--every is 0.0", code=2)
    told = json.loads(place.run("top", "--json", REDIS_URL=valkey.url).succeeded().out)
    assert told["queue"]["depth"]["added"] == 0
    assert told["errors"] is None
