"""The benchmarks in short form: each runs, gives figures that can be true, and sees what must not be.

What they measure is not judged here: a test machine is busy with other things.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import numpy as np
import pytest
from lxml import etree
from w3lib.url import canonicalize_url

from benchmarks import (
    convert,
    coordinator,
    dead_links,
    freshness,
    large_site,
    meters,
    reports,
    scaling,
    stages,
    status,
    throughput,
    timeouts,
    tiny_sites,
)
from benchmarks.changing_web import PLAIN, ChangingWeb, Given, Plan, standing
from benchmarks.contenders import Host
from benchmarks.goals import at_least, at_most, goals_told
from benchmarks.meters import memory_of
from benchmarks.web import Pages, Tree, Web, links
from crawler.local.server import is_gone
from tests.servers import eventually

ROOT = Path(__file__).resolve().parents[2]
# Longest run of one benchmark: a dozen processes start, on a machine that may be busy.
RUN_SECONDS = 280
pytestmark = pytest.mark.timeout(RUN_SECONDS + 20)


def run(name: str, *arguments: str, may_be_slow: bool = False) -> Any:
    """A benchmark as a person starts it; what it prints as JSON. `may_be_slow`: it may miss goals, and say so."""
    command = [sys.executable, f"benchmarks/{name}.py", "--json", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS)
    told = json.loads(ended.stdout, parse_constant=refused) if ended.stdout else {}
    missed = may_be_slow and not all(goal["met"] for goal in told["goals"])
    assert ended.returncode == int(missed), ended.stderr[-3000:]
    return told


def refused(constant: str) -> None:
    """What Python writes for what JSON has no number for, and others cannot read."""
    raise ValueError(f"{constant} is no JSON")


def test_goals_are_told_as_strict_readers_take_them() -> None:
    told = goals_told([at_least("more", 1.0, 2.0), at_most("less", math.inf, 2.0)])
    json.dumps(told, allow_nan=False)
    assert [(one["value"], one["least"], one["most"]) for one in told] == [
        (1.0, 2.0, None),
        (None, None, 2.0),
    ]


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
    return body


def hrefs(body: bytes) -> list[str]:
    found: list[str] = etree.fromstring(body, etree.HTMLParser()).xpath("//a/@href")
    return found


# --- make bench ---


def test_a_benchmark_that_misses_its_goal_keeps_no_other_from_its_turn(tmp_path: Path) -> None:
    """Over benchmarks that say their names and end with a code."""
    shutil.copy2(ROOT / "Makefile", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    locks = ("requirements.lock", "requirements-all.lock", "pyproject.toml")
    for name in (*locks, ".venv/ready", ".venv/ready-all", "benchmarks/web.py"):
        (tmp_path / name).touch()
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    for name, code in (("a", 1), ("b", 0), ("c", 2)):
        says = f"import sys\nprint('ran', *sys.argv)\nsys.exit({code})\n"
        (tmp_path / f"benchmarks/{name}.py").write_text(says)
    code, told = make_bench(tmp_path)
    assert [line for line in told if line.startswith("ran")] == [
        f"ran benchmarks/{name}.py --json" for name in "abc"
    ]
    assert code != 0
    assert told[-1].endswith(": benchmarks/a.py benchmarks/c.py")
    for name in "ac":
        (tmp_path / f"benchmarks/{name}.py").unlink()
    assert make_bench(tmp_path) == (0, ["== benchmarks/b.py", "ran benchmarks/b.py --json"])


def make_bench(folder: Path) -> tuple[int, list[str]]:
    """Its code and lines."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    ended = subprocess.run(
        ["make", "bench", "ARGS=--json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    return ended.returncode, ended.stdout.splitlines()


# --- the web ---


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with Web(Pages(sites=2, fewest=30, most=30)) as running:
        yield running


def test_a_right_crawl_of_a_site_finds_what_is_declared(web: Web) -> None:
    web.clear()
    start = web.seeds()[0]
    seen, todo = {start}, [start]
    for url in todo:
        for href in hrefs(get(url)):
            link = canonicalize_url(urljoin(url, href))
            if link.startswith(start) and link not in seen:
                seen.add(link)
                todo.append(link)
    assert seen == web.declared(1)
    assert len(seen) == 30 + 20
    assert web.hits() == dict.fromkeys(seen, 1)
    assert web.count().requests == len(seen)


def test_a_page_is_an_ordinary_page(web: Web) -> None:
    body = get(f"{web.origin(1)}/list?sort=date&page=3")
    assert 25_000 < len(body) < 27_000
    found = hrefs(body)
    assert len(found) == 60
    outside = [href for href in found if href.startswith("http") and not href.startswith(web.origin(1))]
    assert len(outside) == 12
    different = [len(set(links(Pages(), 100, number))) for number in range(100)]
    assert 49 < statistics.mean(different) < 53


def test_other_spellings_of_a_page_count_as_that_page(web: Web) -> None:
    web.clear()
    get(f"{web.origin(0)}/list?sort=date&page=3")
    get(f"{web.origin(0)}/list?page=3&sort=date")
    assert web.hits() == {f"{web.origin(0)}/list?page=3&sort=date": 2}


def test_sites_may_differ_in_size() -> None:
    shape = Pages(sites=5, fewest=1, most=3, variants=0)
    assert [len(shape.paths(site)) for site in range(5)] == [1, 2, 3, 1, 2]


def test_a_tree_grows_by_its_fan() -> None:
    with Web(Tree(urls=1000, fan=20)) as web:
        root = web.seeds()[0]
        first = hrefs(get(root))[1:]
        second = hrefs(get(urljoin(root, first[3])))
        assert len(set(first)) == 20
        assert second[0] == "/"
        assert len(set(second[1:]) - set(first)) == 20
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(urljoin(root, first[3].replace("article-4", "article-1004")))


def test_a_web_ends_with_its_parent() -> None:
    script = "from benchmarks.web import *; web = Web(Pages(1, 1, 1)).__enter__(); print(web.pid, flush=True); input()"
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert memory_of(pid) > 10_000_000
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: is_gone(pid), "the web has ended")


def test_the_hand_written_crawler_finds_what_w3lib_finds() -> None:
    for number in (0, 3, 25, 99, 105):
        base = urljoin("http://127.0.1.1:80/", Pages().paths(0)[number])
        found = [href.format(origin="http://127.0.1.1:80", tag="s0") for href in links(Pages(), 100, number)]
        whole = {canonicalize_url(urljoin(base, href)) for href in found}
        inside = {url for url in whole if url.startswith("http://127.0.1.1:80/")}
        host = Host("http://127.0.1.1:80/")
        assert {host.root, *host.new(base, found)} == inside | {host.root}


# --- the benchmarks ---


def test_throughput() -> None:
    told = run("throughput", "--sites=3", "--pages=60", "--profile")
    assert list(told["crawls"]) == ["ours", "full", "scrapy", "redis", "written"]
    for name, (figures,) in told["crawls"].items():
        assert figures["exact"], (name, figures)
        assert figures["urls"] == figures["declared"] == 3 * (60 + 20)
        assert 0.1 < figures["crawler"] < 100, (name, figures)
        assert figures["pages_a_second"] > 1
        assert 30 < figures["memory_mb"] < 1000
    assert told["crawls"]["redis"][0]["server"] > 0
    assert told["crawls"]["ours"][0]["coordinator"] > 0
    notes = "\n".join(told["notes"])
    assert "script publish" in notes
    assert "xadd" in notes
    assert any(line.startswith(("parse ", "links, canonical ")) for line in told["notes"]), notes


def test_throughput_refuses_an_unknown_contender() -> None:
    with pytest.raises(SystemExit):
        throughput.main(["nobody"])


def test_throughput_sees_a_page_too_few_and_one_too_often() -> None:
    good = throughput.Figures(1.0, 0.1, 0.1, 900.0, 10, 10, 10, True, 100.0, 0.02)
    assert throughput.faults_of({"ours": [good], "scrapy": [good._replace(requests=11)]}) == []
    few, often = good._replace(exact=False, urls=9, requests=9), good._replace(requests=11)
    assert len(throughput.faults_of({"ours": [few, often], "redis": [few]})) == 3


def test_scaling() -> None:
    one, two = run("scaling", "--pairs=1", "--sites=30", "--pages=30")
    assert (one["agents"], two["agents"]) == (1, 2)
    for figures in (one, two):
        assert sum(figures["pages"]) == 30 * 50
        assert sum(figures["sites"]) == 30
        assert figures["lost"] == figures["twice"] == 0
        assert 0.1 < figures["agent_cpu"] < 100
    assert len(two["pages"]) == 2


def test_scaling_sees_what_was_lost_or_done_twice() -> None:
    good = scaling.Figures(2, 900.0, 1.0, 0.02, 0.03, 0.5, [3, 3], [60, 60], 0, 0)
    assert scaling.faults_of([good]) == []
    assert len(scaling.faults_of([good._replace(lost=1), good._replace(twice=1)])) == 2


def test_tiny_sites() -> None:
    (figures,) = run("tiny_sites", "--rounds=1", "--sites=120")
    assert figures["tiny"]["sites"] == 120
    assert figures["tiny"]["pages"] == 40 * (1 + 2 + 3)
    assert figures["tiny"]["exact"]
    assert figures["large"]["exact"]
    assert -5 < figures["agent"] < 50


def test_a_sites_cost_is_what_its_pages_leave() -> None:
    """100 sites of 2 pages took 2 s, 10 sites of 30 took 2.2 s: two equations."""
    tiny = tiny_sites.Used(2.0, 0.0, 0.0, 100, 200, 1.0, True, 100.0)
    large = tiny_sites.Used(2.2, 0.0, 0.0, 10, 300, 1.0, True, 100.0)
    cost = tiny_sites.site_cost(tiny, large)
    assert cost.agent * 100 + cost.page * 200 == pytest.approx(2000)
    assert cost.agent * 10 + cost.page * 300 == pytest.approx(2200)


def test_tiny_sites_see_a_page_too_few() -> None:
    tiny = tiny_sites.Used(2.0, 0.0, 0.0, 100, 200, 1.0, True, 100.0)
    assert tiny_sites.faults_of([(tiny, tiny)]) == []
    assert len(tiny_sites.faults_of([(tiny, tiny._replace(exact=False))])) == 1


def test_status() -> None:
    told = run("status", "--rounds=1", "--sites=40", "--rate-sites=0", "--agents=2", may_be_slow=True)
    ((read, known),) = told["rounds"]
    assert (read["agents"], read["known"], known["agents"], known["known"]) == (1, False, 2, True)
    for figures in (read, known):
        assert figures["sites"] == 40
        assert figures["lost"] == figures["extra"] == 0
        assert 0.05 < figures["agent_ms"] < 200
        assert 0 <= figures["seconds"] < 60, "so few may answer within the same millisecond"
    assert (told["hanging"]["healthy"], told["hanging"]["hanging"]) == (32, 8)


def test_status_sees_what_is_lost_late_or_too_slow() -> None:
    one = status.Figures(1, 1000, True, 1.0, 1.0, 1000.0, 0.5, 0.1, 0.1, 0, 0)
    two, beside = one._replace(agents=2, rate=1800.0), status.Hanging(1.0, 1.1, 800, 200)
    parts = [figures._replace(part=0.25, rate=figures.rate / 4) for figures in (one, two)]
    assert all(goal.met for goal in status.goals([[one, two, *parts]], beside))
    assert status.faults_of([[one, two]], beside, 1000) == []
    slow = [
        [
            one._replace(rate=500.0, agent_ms=2.0),
            two._replace(rate=800.0),
            parts[0],
            parts[0]._replace(agents=2),
        ]
    ]
    assert [goal.met for goal in status.goals(slow, beside._replace(beside=2.0))] == [False] * 5
    assert len(status.faults_of([[one._replace(lost=1), two._replace(extra=1)]], beside, 1001)) == 3
    nothing = [[figures._replace(rate=0.0) for figures in (one, two, *parts)]]
    assert "two agents" in status.table(nothing, beside)
    assert [goal.met for goal in status.goals(nothing, beside)] == [False, True, False, False, True]


def test_status_takes_rates_from_the_time_in_which_all_are_at_work() -> None:
    early, late = [("a", 0.1 * n) for n in range(31)], [("b", 2.0 + 0.1 * n) for n in range(21)]
    assert status.rate_of(early) == pytest.approx(31 / 3.0)
    assert status.rate_of([*early, *late]) == 0.0, "hardly side by side"
    beside = [("b", 0.5 + 0.1 * n) for n in range(21)]
    assert status.rate_of([*early, *beside]) == pytest.approx(42 / 2.0)
    assert status.rate_of([]) == status.rate_of([("a", 1.0)]) == 0.0


def test_a_slowed_process_runs_for_its_part_of_the_time() -> None:
    counts = (
        "import time; began = time.monotonic()\n"
        "while time.process_time() < 0.5: pass\n"
        "print(time.monotonic() - began)"
    )
    process = subprocess.Popen([sys.executable, "-c", counts], stdout=subprocess.PIPE)
    with meters.slowed(process, 0.25):
        said, _ = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 0
    assert float(said) > 1.2, "half a second of work, in a quarter of the time"


def test_first_page() -> None:
    told = run("first_page", "--rounds", "1", "--delay", "0.2", may_be_slow=True)
    (waited,) = told["found"]["this one"]
    assert 0 < waited["robots"] < waited["page"] < waited["screen"]
    assert waited["page"] - waited["robots"] > 0.19, "the site's pause is kept"
    assert waited["cpu"] > 0.1


def test_dead_links() -> None:
    words = (
        "--shares=30",
        "--shapes",
        "mixed",
        "--sites=5",
        "--pages=3",
        "--slots=3",
        "--robots",
        "separated",
    )
    told = run("dead_links", *words, "--delays", "1", "1", "--no-outages")
    robots = told["webs"]["mixed 30"]
    assert set(robots) == {"sequential", "separated"}
    for figures in robots.values():
        assert len(figures["times"]) == 11
        assert figures["missing"] == figures["false_deaths"] == 0
        assert figures["times"] == sorted(figures["times"])
        assert 0 < figures["verdicts"] < RUN_SECONDS
        assert 0.1 < figures["slot_seconds"] < 10
        assert figures["by_kind"]["refused"] == 0
        assert 1 < figures["by_kind"]["head"] < 30
    assert robots["separated"]["by_hours"][-1] == 11
    assert [goal["met"] for goal in told["goals"]] == [True]


def test_dead_links_see_what_dies_is_lost_or_late() -> None:
    slow = dead_links.Outcome(10.0, 90.0, 100.0, 3.0, 2, 0, 0, {}, [9.0, 90.0])
    good = dead_links.Outcome(30.0, 30.0, 140.0, 1.5, 0, 0, 0, {}, [3.0, 30.0])
    robots = {"sequential": slow, "separated": good, "shared": good, "shared, outages": good}
    goals = dead_links.goals_of({"mixed 25": robots})
    assert len(goals) == 7
    assert all(goal.met for goal in goals)
    assert dead_links.by_hours(robots)["sequential"] == [0, 1, 1, 1, 1, 1]
    robots["shared, outages"] = good._replace(false_deaths=1)
    robots["separated"] = good._replace(pages_a_second=23.0, verdicts=151.0, missing=1)
    robots["shared"] = good._replace(pages_a_second=24.0, undecided=1)
    assert sum(not goal.met for goal in dead_links.goals_of({"mixed 25": robots})) == 6
    assert sum(not goal.met for goal in dead_links.goals_of({"pages 25": robots})) == 4


def test_dead_links_count_what_is_called_dead_and_what_is_not() -> None:
    kinds = {"http://a/": "live", "http://a/1": "live", "http://a/2": "head", "http://a/3": "reset"}
    hits = [dead_links.Hit(1.0, url, "GET", 0.5) for url in ("http://a/", "http://a/1")]
    seen = dead_links.outcome(
        kinds, hits, 0.0, 1.0, {"head": 1.0, "reset": 0.0}, {"http://a/1", "http://a/2"}
    )
    assert (seen.false_deaths, seen.missing, seen.undecided) == (1, 0, 1)
    assert seen.times == [1.5, 1.5]


def test_large_site() -> None:
    figures = run("large_site", "--urls=150000")
    assert 140_000 < figures["known"] < 170_000
    assert 20 < figures["bytes_a_url"] < 2_000
    assert figures["memory_at_stop"] > figures["memory_before"]
    assert 0 < figures["stop_seconds"] < 60
    assert 0 < figures["resume_seconds"] < 60
    assert figures["fetched_again"] <= 1


def test_large_site_sees_pages_that_are_fetched_again() -> None:
    figures = large_site.Figures(1, 1, 2, 1.0, 1.0, 1.0, 1.0, 1, 1.0, 1.0, 2)
    assert len(large_site.faults_of(figures)) == 1
    assert large_site.faults_of(figures._replace(fetched_again=1)) == []


def test_offers() -> None:
    goals = run("offers", "--pages=300", may_be_slow=True)["goals"]
    assert len(goals) == 6
    assert all(goal["value"] > 0 for goal in goals)


def test_convert() -> None:
    told = run("convert", "--pages=3000", "--processes=1,2")
    assert told["rows"] == 3_000
    for one in told["conversions"]:
        assert 0.8 * 3_000 < one["pages"] < 0.9 * 3_000
        assert 5 * one["pages"] < one["links"] < 10 * one["pages"]
        assert all(one[rate] > 1_000 for rate in ("rows_s", "pages_s", "link_rows_s", "load_pages_s"))
        assert 50 < one["coordinator_mib"] < 2_000
    assert [goal["name"] for goal in told["goals"]] == ["different outputs for the same rows"]


def test_convert_sees_goals_that_are_missed() -> None:
    good = {
        "processes": 2,
        "pages_s": 1e5,
        "link_rows_s": 15e6,
        "load_pages_s": 2e5,
        "coordinator_mib": 2_500,
        "reading_mib": 1_100,
        "converter_mib": 700,
        "digest": "a",
    }
    told = {"rows": 1_000_000, "conversions": [good, good]}
    assert all(goal.met for goal in convert.goals_of(told))
    slow = {**good, "pages_s": 9e4, "link_rows_s": 14e6, "load_pages_s": 1e5}
    hungry = {**good, "converter_mib": 800, "digest": "b"}
    assert sum(not goal.met for goal in convert.goals_of({**told, "conversions": [slow]})) == 3
    assert sum(not goal.met for goal in convert.goals_of({**told, "conversions": [good, hungry]})) == 2
    large = {"rows": convert.LARGE, "conversions": [{**good, "pages_s": 8e4}]}
    assert all(goal.met for goal in convert.goals_of(large))


def test_stages() -> None:
    (figures,) = run("stages", "--pages=100", "--agents=2")
    assert figures["pages"] == figures["converted"] == figures["ranked"] == 100
    assert figures["links"] > 1000
    assert figures["seconds"] == pytest.approx(sum(figures[stage] for stage in stages.STAGES))


def test_stages_see_a_page_that_is_not_ranked() -> None:
    good = stages.Figures(100, 1, 1.0, 1.0, 1.0, 100, 3_000, 100)
    assert stages.faults_of([good]) == []
    assert len(stages.faults_of([good._replace(converted=99), good._replace(ranked=99)])) == 2


def test_reports_see_a_slow_one() -> None:
    quick = [reports.Taken("summary", 9.0, 1.0, 100.0)]
    found = {"database": "sqlite", "reports": quick, "looks": [reports.Taken("a site", 1.0, 1.0, 0.0)]}
    assert all(goal.met for goal in reports.goals_of([found]))
    slow = [*quick, reports.Taken("status", 10.5, 1.0, 100.0)]
    missed = [goal for goal in reports.goals_of([{**found, "reports": slow}]) if not goal.met]
    assert [goal.name for goal in missed] == ["sqlite: slowest of reports, status, seconds"]


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_reports() -> None:
    told = run("reports", "--sites=20", "--pages=50")
    assert [goal["met"] for goal in told["goals"]] == [True, True]
    assert {taken["name"] for taken in told["databases"][0]["reports"]} >= {"status", "freshness"}
    assert {taken["name"] for taken in told["databases"][0]["looks"]} >= {
        *("pages per hour", "sites by health", "report status", "report freshness")
    }


# Every process takes a second to start; on all three databases there are fifty.
SOME_DATABASES = [
    pytest.param("sqlite"),
    pytest.param(
        "postgres,mariadb",
        marks=[pytest.mark.drill, pytest.mark.needs("postgres", "mariadb"), pytest.mark.timeout(300)],
    ),
]


@pytest.mark.parametrize("databases", SOME_DATABASES)
def test_coordinator(databases: str) -> None:
    told = run("coordinator", "--rounds=1", "--share=0.02", f"--databases={databases}")
    ways = {(row["database"], row["way"]): row for row in told["ways"]}
    if {kind for kind, _ in ways} != set(databases.split(",")):
        pytest.skip("not all databases are on this machine")
    for row in ways.values():
        assert row["stored"] == row["records"] >= 400
        assert 10 < row["per_second"] < 1_000_000
    assert all(row["coordinator"] > 0 for (_, way), row in ways.items() if way.startswith("stream"))
    assert told["backlog"]["stored"] == told["backlog"]["records"]
    assert told["backlog"]["record_bytes"] < told["backlog"]["memory_bytes"] < 2_000
    assert told["wrong"] == []


def test_coordinator_sees_what_is_not_stored() -> None:
    good = coordinator.Figures("sqlite", "stream", 10, 100.0, 0.1, 0.1, 0.1, 0.0, 10)
    waited = coordinator.Backlog(10, 1_400.0, 1_450.0, 100.0, 10)
    assert coordinator.faults_of([good], waited) == []
    assert len(coordinator.faults_of([good._replace(stored=9)], waited._replace(stored=-1))) == 2


@pytest.mark.parametrize("databases", SOME_DATABASES)
def test_direct_inserts_lose_and_ours_do_not(databases: str) -> None:
    words = ("--json", "--only=inserts", "--repeats=1", "--results=60", f"--databases={databases}")
    command = [sys.executable, "benchmarks/loss.py", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert ended.returncode == 0, ended.stderr[-3000:]
    lost = {}
    for line in ended.stdout.splitlines():
        row = json.loads(line)
        assert row["of"] == 4 * 60
        lost[row["database"], row["key"]] = row["lost"]
    if {kind for kind, _ in lost} != set(databases.split(",")):
        pytest.skip("not all databases are on this machine")
    assert all(many > 0 for (_, key), many in lost.items() if key == "milliseconds")
    assert {many for (_, key), many in lost.items() if key == "Lowtide"} == {0}


def test_timeouts() -> None:
    told = run("timeouts", "--documents=20000", "--sites=15", "--seeds=1")
    for stage, knee in zip(timeouts.STAGES, (15, 10, 20), strict=True):
        curve = {int(limit): many for limit, many in told["failures"][stage].items()}
        assert list(curve.values()) == sorted(curve.values(), reverse=True)
        assert curve[3] > 3 * curve[knee]
        assert curve[knee] < 2 * curve[30]
    assert 300 < told["failures"]["connect"]["3"] < 600, "3,000 of 150,000, and the dead"
    rows = {(row["web"], row["rule"]): row for row in told["rows"]}
    assert {web for web, _ in rows} == set(timeouts.SHAPES)
    assert all(0.5 < row["efficiency"] <= 1 for row in rows.values())
    hanging = {rule: row["seconds_a_url"] for (web, rule), row in rows.items() if web == "hanging pages"}
    assert hanging["2 / 2 / 4"] < hanging["adaptive"] < hanging["15 / 10 / 20"] < hanging["30 / 20 / 40"]


def test_timeouts_see_pages_that_are_lost() -> None:
    paper = timeouts.Row("web", "15 / 10 / 20", 1.0, 0.999, 1.0)
    good = timeouts.Row("web", timeouts.ADAPTIVE, 1.0, 0.9985, 1.0)
    assert timeouts.faults_of([paper, good]) == []
    assert len(timeouts.faults_of([paper, good._replace(efficiency=0.997)])) == 1


def test_a_benchmark_that_is_ended_leaves_nothing_running(tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("b")  # short: the server's socket is to lie below it
    command = [sys.executable, "benchmarks/large_site.py"]
    # Everything that it starts inherits the name of this folder.
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.DEVNULL) as benchmark:
        eventually(lambda: len(processes_of(tmp_path)) >= 5, "web, server, coordinator and agent run", 60)
        benchmark.send_signal(signal.SIGTERM)
    assert processes_of(tmp_path) == []


def processes_of(folder: Path) -> list[int]:
    """Living processes whose environment or command line names the folder; a server writes over the former."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it ended meanwhile
                if (
                    str(folder).encode()
                    in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
    return found


# --- the changing web ---


def test_how_fresh_a_copy_was_is_reckoned_from_what_was_given() -> None:
    """One page of four, changed at 10 and 60; seen at 0 and at 30, so it was another from 10 to 30 and from 60 on."""
    plan = Plan(sites=2, pages=4, sweep=10.0, changes=1.0, seconds=100.0)
    plan.__dict__["changed"] = [[10.0, 60.0], [], [], []]
    given = [Given(1000.0, "a", page, 0, 200, 1) for page in range(4)] + [Given(1030.0, "a", 0, 1, 200, 1)]
    found = standing(plan, given, np.array([4.0, 0, 0, 0]), 1000.0, 1000.0, 1100.0)
    assert found.fresh == pytest.approx((0.4 + 3) / 4)
    assert found.weighted == pytest.approx(0.4)
    assert found.age == pytest.approx((20**2 / 2 + 40**2 / 2) / 100 / 4)
    assert found.stale == pytest.approx((30**2 / 2 + 70**2 / 2 + 3 * 100**2 / 2) / 100 / 4)
    late = standing(plan, given, np.ones(4), 1000.0, 1020.0, 1030.0)
    assert (late.fresh, late.age) == (pytest.approx(3 / 4), pytest.approx(15 / 4))


def test_the_changing_web_changes_as_drawn_and_knows_whom_it_gave_what() -> None:
    plan = Plan(sites=2, pages=4, sweep=0.01, changes=20.0, seconds=0.2)
    page = max(range(4), key=lambda one: len(plan.changed[one]))
    assert plan.changed[page]

    def ask(who: str, **fields: str) -> Any:
        wanted = urllib.request.Request(web.url(page), headers={"User-Agent": who, **fields})
        with contextlib.suppress(urllib.error.HTTPError):
            return urllib.request.urlopen(wanted, timeout=10)
        return None

    with ChangingWeb(plan) as web:
        first = ask("a")
        assert first.read() == plan.body(page, 0)
        assert ask("a", **{"If-None-Match": first.headers["ETag"]}) is None
        began = web.begin()
        eventually(lambda: time.time() > began + plan.seconds, "all has changed")
        assert ask("a", **{"If-None-Match": first.headers["ETag"]}).read() == plan.body(
            page, len(plan.changed[page])
        )
        assert ask(f"b{PLAIN}").headers["ETag"] is None
        given = web.given()
    assert [(one.who, one.page, one.version, one.status) for one in given] == [
        ("a", page, 0, 200),
        ("a", page, 0, 304),
        ("a", page, len(plan.changed[page]), 200),
        (f"b{PLAIN}", page, len(plan.changed[page]), 200),
    ]


def test_freshness_sees_what_is_lost_and_what_is_made_up() -> None:
    given = [Given(at, "a-0", 0, 0, 200, 1) for at in (100.0, 110.0, 120.0)]
    told = freshness.matched(given, [(0, 100.1), (0, 120.2)])
    assert (told.told, told.untold, told.invented) == ([given[0], given[2]], [given[1]], 0)
    assert freshness.in_hand(given[1], [("a-0", 110.4)])
    assert not freshness.in_hand(given[1], [("a-1", 110.4)])
    assert freshness.matched(given, [(0, 136.0), (1, 100.0)]).invented == 2


def test_freshness_sees_beliefs_that_are_not_what_was_seen() -> None:
    """One page was another at each of twenty visits, the other never."""
    told = [Given(9.0 * n, "a", page, n if page == 0 else 0, 200, 1) for n in range(20) for page in range(2)]
    own = [[one for one in told if one.page == page] for page in range(2)]
    for before in (0.01, 1.0):
        right = {page: freshness.follows(own[page], before) for page in range(2)}
        assert right[0].shape / right[0].time > 5 * right[1].shape / right[1].time
        assert freshness.odd_beliefs(right, told) == 0
        assert freshness.odd_beliefs({0: right[0]}, told) == 1
        missed = freshness.follows([*own[0][:5], *own[0][8:]], before)
        assert freshness.odd_beliefs({**right, 0: missed}, told) == 1, "three of twenty visits"
        early = right[1]._replace(last=right[1].last - 5)
        assert freshness.odd_beliefs({**right, 1: early}, told) == 1


def test_freshness_sees_goals_that_are_missed() -> None:
    other = freshness.Outcome(0.7, 0.7, 1.0, 1.0, 100, 1.0, 0.5, 1, 0.0, 1, 0, 0, 0, 0)
    ours = other._replace(fresh=0.71, weighted=0.75)
    good = {"default": ours, "paper": other, "interval": other}
    assert all(goal.met for goal in freshness.goals_of(good))
    for worse in ({"weighted": 0.73}, {"fresh": 0.69}, {"asked": 110}):
        missed = freshness.goals_of({**good, "default": ours._replace(**worse)})
        assert sum(not goal.met for goal in missed) == 2
    for worse in ({"lost": 1}, {"invented": 1}, {"odd": 1}):
        missed = freshness.goals_of({**good, "paper": other._replace(**worse)})
        assert sum(not goal.met for goal in missed) == 1


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_agents_that_are_killed_lose_no_history() -> None:
    """A day and a half of it, with four kills of each crawl's agents; freshness is not judged."""
    words = ("--json", "--parts", "modes", "--days=1.5", "--pages=120", "--kills=4")
    command = [sys.executable, "benchmarks/freshness.py", *words]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert ended.stdout, ended.stderr[-3000:]
    for name, one in json.loads(ended.stdout)["parts"]["modes"].items():
        assert one["kills"] == 4, name
        assert (one["lost"], one["invented"], one["odd"]) == (0, 0, 0), (name, one)
