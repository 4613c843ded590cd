"""The archive: what stands in it is what came, whatever dies or fills up meanwhile; other tools read it too."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from scrapy import Request
from scrapy.http import Headers, Response

from crawler import records
from crawler.archive import reader, warc
from crawler.archive import writer as archive
from crawler.archive.reader import Capture, Damage, Library
from crawler.pipelines.archive import Archive
from tests.archiving import KilledInWrite, check_files, check_rows, exchange, judged, noise, writer
from tests.contracts.test_page_pipelines import Bench
from tests.crawling import ROOT, Place
from tests.drills import Fleet, moments
from tests.farm import Farm
from tests.faults import suffers
from tests.raw_server import page
from tests.servers import RunningServer, eventually
from tests.small_site import Reply, Route, SmallSite, links, text

HTML = {"Content-Type": "text/html"}


class Sent:
    """An answer byte for byte, as a route of a SmallSite."""

    seconds = 0.0
    status = 200
    wall = None

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded


def sent(encoded: bytes) -> Route:
    return lambda _times: cast("Reply", Sent(encoded))


def kept_of(place: Place, url: str) -> Any:
    """The capture of a page that its row names."""
    [where] = place.rows(f"select warc_file, warc_offset, warc_length from pages where url = '{url}'")
    return judged(place.var / "archive", *where)


# --- what a crawl keeps -------------------------------------------------------------------------------------


ODD = {
    "/": links("/zipped", "/chunked", "/empty", "/untyped", "/paper", "/one", "/two", "/odd", "/feed"),
    "/zipped": sent(page(gzip.compress(b"<p>zipped"), b"Content-Type: text/html", b"content-encoding: gzip")),
    "/chunked": sent(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n"
        b"5\r\n<p>ch\r\n5\r\nunked\r\n0\r\nX-Late: yes\r\n\r\n"
    ),
    "/empty": Reply(200, HTML, ""),
    "/untyped": Reply(200, {}, "<p>who knows"),
    "/paper": Reply(200, {"Content-Type": "application/pdf"}, "%PDF-1.4"),
    "/one": Reply(200, HTML, "<p>twin"),
    "/two": Reply(200, HTML, "<p>twin"),
    "/odd": sent(
        page(
            b"<p>odd",
            b"Content-Type: text/html",
            b"X-Caf\xe9: caf\xe9",
            b"Set-Cookie: a=b",
            b"Empty:",
            b"Two: 1",
            b"Two: 2",
        )
    ),
    "/feed": Reply(200, {"Content-Type": "application/rss+xml; charset=utf-8"}, "<rss/>"),
}


def test_what_came_is_kept_and_others_can_read_it(place: Place) -> None:
    with SmallSite(ODD) as site:
        override = {
            site.site: {"headers": {"X-Key": "secret", "Authorization": "secret"}, "cookies": {"c": "secret"}}
        }
        place.crawl([site.root], SITE_OVERRIDES=override).succeeded()
    [file] = check_files(place.var / "archive")
    assert check_rows(place) == len(ODD) - 1
    assert b"secret" not in gzip.decompress(file.read_bytes())

    zipped = kept_of(place, site.site + "/zipped")
    assert zipped.body == b"<p>zipped"
    assert zipped.head["X-Crawler-content-encoding"] == "gzip"
    assert zipped.head["Content-Length"] == "9"
    assert zipped.fields["WARC-IP-Address"] == site.host

    chunked = kept_of(place, site.site + "/chunked")
    assert chunked.body == b"<p>chunked"
    assert chunked.head == {
        "Content-Type": "text/html",
        "X-Crawler-Transfer-Encoding": "chunked",
        "Trailer": "X-Late",
        "Content-Length": "10",
    }

    assert kept_of(place, site.site + "/empty").body == b""
    assert kept_of(place, site.site + "/odd").head["Two"] == "2"
    [(where, kept)] = place.rows("select warc_file, warc_offset from pages where url like '%/paper'")
    assert (where, kept) == (None, None)


def test_a_request_is_kept_beside_its_answer(place: Place) -> None:
    with SmallSite({"/": links("/a?b=1&a=2"), "/a?b=1&a=2": text("x")}) as site:
        place.crawl([site.root], USER_AGENT="mybot").succeeded()
    [file] = check_files(place.var / "archive")
    found = [warc.read(one.data) for one in reader.whole_members(file)]
    kinds = [record.kind for record in found]
    assert kinds == ["warcinfo", "response", "request", "response", "request"]
    answer, asked = found[3], found[4]
    assert asked.field("WARC-Concurrent-To") == answer.field("WARC-Record-ID")
    assert answer.field("WARC-Concurrent-To") == asked.field("WARC-Record-ID")
    assert asked.field("WARC-Date") == answer.field("WARC-Date")
    lines = asked.block.decode().split("\r\n")
    assert lines[0] == "GET /a?b=1&a=2 HTTP/1.1"
    assert lines[1] == f"Host: {site.host}:{site.port}"
    assert "User-Agent: mybot" in lines
    assert lines[-2:] == ["", ""]
    # What was kept as sent is what the site was sent.
    names = {line.partition(":")[0] for line in lines[1:-2]}
    assert names == set(site.log[-1].fields)
    info = found[0].block.decode()
    assert "software: Lowtide" in info
    assert found[0].field("WARC-Filename") == file.name


def test_the_same_bytes_again_are_a_revisit(place: Place) -> None:
    with SmallSite(ODD) as site:
        place.crawl([site.root]).succeeded()
    [first] = place.rows("select warc_file, warc_offset, fetched_at from pages where url like '%/one'")
    again = kept_of(place, site.site + "/two")
    assert again.kind == "revisit"
    assert again.fields["WARC-Profile"] == warc.PROFILE
    assert again.fields["WARC-Refers-To-Target-URI"] == site.site + "/one"
    assert again.fields["WARC-Refers-To-Date"] == warc.date(first[2])
    assert again.fields["WARC-Refers-To-Filename"] == first[0]
    assert again.fields["WARC-Refers-To-File-Offset"] == str(first[1])
    assert again.fields["WARC-Payload-Digest"] == f"sha256:{hashlib.sha256(b'<p>twin').hexdigest()}"
    assert again.head["Content-Length"] == "7"
    assert again.body == b""
    place.run("extract", "--check").succeeded()


def test_it_can_be_off_and_costs_nothing_then(place: Place) -> None:
    with SmallSite(ODD) as site:
        place.crawl([site.root], ARCHIVE_CONTENT_TYPES="").succeeded()
    assert not (place.var / "archive").exists()
    assert place.rows(
        "select count(*) from pages where warc_file is not null or warc_offset is not null"
    ) == [(0,)]


def test_a_star_keeps_everything(place: Place) -> None:
    with SmallSite(ODD) as site:
        place.crawl([site.root], ARCHIVE_CONTENT_TYPES="*").succeeded()
    assert kept_of(place, site.site + "/paper").body == b"%PDF-1.4"
    assert check_rows(place) == len(ODD)


def test_what_a_cache_gave_is_not_kept(place: Place) -> None:
    with SmallSite(ODD) as site:
        place.crawl([site.root], HTTPCACHE_ENABLED=True).succeeded()
        before = place.rows("select url, warc_offset from pages order by url")
        place.crawl([site.root], "--again", HTTPCACHE_ENABLED=True).succeeded()
    after = place.rows("select url, warc_offset from pages order by url")
    assert sum(offset is not None for _, offset in before) == len(ODD) - 1
    assert [offset for _, offset in after] == [None] * len(ODD)


def test_another_download_handler_is_kept_too(place: Place) -> None:
    handler = {"http": "scrapy.core.downloader.handlers.http11.HTTP11DownloadHandler"}
    plain = {path: route for path, route in ODD.items() if path != "/odd"}  # Twisted refuses its head
    with SmallSite(plain) as site:
        place.crawl([site.root], DOWNLOAD_HANDLERS=handler, COMPRESSION_ENABLED=True).succeeded()
    check_files(place.var / "archive")
    assert check_rows(place) == len(plain) - 1
    zipped = kept_of(place, site.site + "/zipped")
    assert zipped.body == b"<p>zipped"
    assert zipped.status == "200 OK"
    assert zipped.head["Content-Length"] == "9"


# --- the step, page by page ---------------------------------------------------------------------------------


@pytest.fixture
def step(tmp_path: Path) -> Iterator[Archive]:
    """The step over a folder of its own, and never a crawl."""
    bench.crawler.settings.set("VAR_DIR", str(tmp_path), priority="cmdline")
    made = Archive.from_crawler(bench.crawler)
    yield made
    made.close()


bench = Bench()


def give(step: Archive, path: str, body: bytes, *, duplicate_of: str = "", **more: Any) -> records.Page:
    """A page through the step; its record."""
    made = bench.page(body, "text/html", path)
    record = made.record
    record.sha256, record.duplicate_of = hashlib.sha256(body).hexdigest(), duplicate_of
    record.outcome = "duplicate" if duplicate_of else "stored"
    for name, value in more.items():
        setattr(record, name, value)
    step.process(made)
    return record


def test_a_duplicate_of_another_agents_page_is_kept_whole(step: Archive, tmp_path: Path) -> None:
    other = give(step, "/later", b"same", duplicate_of="/theirs")
    third = give(step, "/third", b"same", duplicate_of="/theirs")
    step.flush()
    with Library(tmp_path / "archive") as library:
        whole = library.read(other.warc_file, other.warc_offset)
        assert (whole.body, whole.earlier) == (b"same", None)
        again = library.read(third.warc_file, third.warc_offset)
        assert again.earlier is not None
        assert again.earlier.url == other.url
        assert library.body(again) == b"same"


def test_what_is_filtered_is_not_kept(step: Archive) -> None:
    assert give(step, "/", b"x", outcome="filtered").warc_file == ""


def test_a_body_that_was_cut_says_so(step: Archive, tmp_path: Path) -> None:
    made = bench.page(b"half", "text/html", "/half")
    made.record.sha256 = hashlib.sha256(b"half").hexdigest()
    made.response.flags.append("dataloss")
    step.process(made)
    step.flush()
    where = made.record.warc_file, made.record.warc_offset, made.record.warc_length
    assert judged(tmp_path / "archive", *where).fields["WARC-Truncated"] == "disconnect"


def test_it_is_full_when_the_disk_takes_nothing(step: Archive) -> None:
    step._options = _with(step._options, archive_buffer_bytes=20_000)
    give(step, "/one", noise(1, 12_000))
    assert not step.full
    give(step, "/two", noise(2, 12_000))
    assert step.full
    step.flush()
    assert step.full, "what is not on the disk may have to be written again"
    step.sync()
    assert not step.full


def _with(options: Any, **more: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(options, **more)


# --- files --------------------------------------------------------------------------------------------------


def test_files_are_finished_by_size(tmp_path: Path) -> None:
    made = writer(tmp_path, most=11_000)
    places = [made.add(exchange(f"/{n}", noise(n)), "text/html", 200, None) for n in range(10)]
    made.flush()
    made.close()
    files = check_files(tmp_path)
    assert [file.name for file in files] == [f"agent-run-0000{n}.warc.gz" for n in (1, 2, 3, 4, 5)]
    assert all(file.stat().st_size < 11_000 + 6_000 for file in files)
    assert not archive.being_written(tmp_path)
    with Library(tmp_path) as library:
        for number, place in enumerate(places):
            capture = library.read(place.file, place.offset)
            assert (capture.body, capture.length) == (noise(number), place.length)


def test_files_are_finished_by_time(tmp_path: Path) -> None:
    made = writer(tmp_path, seconds=0.05)
    made.add(exchange("/1", b"one"), "text/html", 200, None)
    made.flush()

    def done() -> bool:
        made.flush()
        made.sync()
        return bool(archive.finished(tmp_path))

    eventually(done, "the file is finished")
    assert not archive.being_written(tmp_path)
    made.add(exchange("/2", b"two"), "text/html", 200, None)
    made.close()
    assert len(check_files(tmp_path)) == 2


def test_the_index_leads_to_every_capture(tmp_path: Path) -> None:
    made = writer(tmp_path)
    first = exchange("/b/", b"one")
    place = made.add(first, "text/html", 200, None)
    made.add(exchange("/a?y=1&x=2", b"two", 1_794_999_001_000), "text/plain", 203, None)
    earlier = warc.Earlier(first.url, first.fetched_at, *place[:2])
    made.add(exchange("/c", b"one"), "text/html", 200, earlier)
    made.close()
    lines = (tmp_path / "agent-run-00001.cdxj").read_bytes().splitlines()
    assert lines == sorted(lines)
    keys = [line.split(b" ")[0] for line in lines]
    assert keys == [b"example,a)/a?x=2&y=1", b"example,a)/b", b"example,a)/c"]
    told = [json.loads(line.split(b" ", 2)[2]) for line in lines]
    assert [one["mime"] for one in told] == ["text/plain", "text/html", "warc/revisit"]
    assert [one["status"] for one in told] == ["203", "200", "200"]
    assert lines[0].split(b" ")[1] == b"20261118105001"
    with Library(tmp_path) as library:
        for one in told:
            capture = library.read(one["filename"], int(one["offset"]))
            assert capture.url == one["url"]
            assert capture.length == int(one["length"])
            assert f"sha256:{hashlib.sha256(library.body(capture)).hexdigest()}" == one["digest"]


def test_a_file_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    made = writer(tmp_path)
    place = made.add(exchange("/1", b"one"), "text/html", 200, None)
    with Library(tmp_path) as library:
        with pytest.raises(reader.CaptureNotFoundError):
            library.read(place.file, place.offset)
        made.flush()
        assert library.read(place.file, place.offset).body == b"one"
        made.close()
        assert library.read(place.file, place.offset).body == b"one"


def test_an_unchanged_page_refers_to_its_earlier_capture(tmp_path: Path) -> None:
    """As a later check of the page will: where the earlier capture is may be unknown."""
    made = writer(tmp_path)
    earlier = warc.Earlier("http://a.example/1", 1_794_000_000_000)
    place = made.add(exchange("/1", b"one"), "text/html", 200, earlier)
    made.close()
    found = judged(tmp_path, *place)
    assert found.kind == "revisit"
    assert found.fields["WARC-Refers-To-Date"] == "2026-11-06T21:20:00.000Z"
    assert "WARC-Refers-To-Filename" not in found.fields


# --- a full disk --------------------------------------------------------------------------------------------


@contextmanager
def disk_of(most: int) -> Iterator[None]:
    """Meanwhile no file of this process grows beyond that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_goes_on_where_the_disk_was_full(tmp_path: Path) -> None:
    made, plain = writer(tmp_path / "full"), writer(tmp_path / "plain")
    with disk_of(10_000):
        for number in range(6):
            made.add(exchange(f"/{number}", noise(number)), "text/html", 200, None)
            with pytest.raises(OSError, match=r".*") if number > 0 else _nothing():
                made.flush()
        [open_file] = archive.being_written(tmp_path / "full")
        assert open_file.stat().st_size == 10_000
        waiting = made.waiting
    made.add(exchange("/6", noise(6)), "text/html", 200, None)
    made.flush()
    made.sync()
    assert 0 == made.waiting < waiting
    made.close()
    for number in range(7):
        plain.add(exchange(f"/{number}", noise(number)), "text/html", 200, None)
    plain.close()
    [one], [other] = check_files(tmp_path / "full"), check_files(tmp_path / "plain")
    assert [c.body for c in _captures(one)] == [c.body for c in _captures(other)]


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def _captures(path: Path) -> list[Capture]:
    found = list(reader.captures(path))
    assert not [one for one in found if isinstance(one, Damage)]
    return cast("list[Capture]", found)


def test_an_end_on_a_full_disk_is_mended_by_the_next_start(tmp_path: Path) -> None:
    made = writer(tmp_path)
    with disk_of(10_000):
        for number in range(4):
            made.add(exchange(f"/{number}", noise(number)), "text/html", 200, None)
        made.close()
    assert len(archive.recover(tmp_path)) == 1
    [file] = check_files(tmp_path)
    assert [one.url for one in _captures(file)] == ["http://a.example/0"]


def quiet_since(farm: Farm, seconds: float) -> None:
    """Wait until nobody has asked for anything for so long."""
    eventually(lambda: time.monotonic() - farm.hits()[-1].monotonic > seconds, "nothing is fetched", 30)


def test_nothing_is_lost_while_the_disk_is_full(place: Place, valkey: RunningServer) -> None:
    """What is in the tables meanwhile is in the archive, and all of it is when there is room again."""
    with (
        Farm(sites=6, pages=40, kinds=("duplicate",), names=(), size=4_000, delay_ms=5) as farm,
        Fleet(place, farm, valkey) as fleet,
    ):
        run = fleet.agent(ARCHIVE_BUFFER_BYTES=30_000)
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
        run.says("publishing is paused until the archive is writable", 30)
        quiet_since(farm, 1.0)  # fetching pauses
        assert run.process.poll() is None
        published = check_rows(place)
        assert 0 < published < 240
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        fleet.wait()
        fleet.check_exact()
    assert fleet.fetched_again() == 0
    check_files(place.var / "archive")
    assert check_rows(place) == sum(map(len, place.stored().values()))


# --- a killed agent -----------------------------------------------------------------------------------------


def test_every_torn_tail_is_cut_to_the_last_whole_member(tmp_path: Path) -> None:
    made = writer(tmp_path / "whole")
    ends = [0]
    for number in range(3):
        place = made.add(exchange(f"/{number}", noise(number, 300)), "text/html", 200, None)
        ends.append(place.offset + place.length)
    made.close()
    [whole] = archive.finished(tmp_path / "whole")
    data = whole.read_bytes()
    for size in range(1, len(data), 7):
        folder = tmp_path / f"cut-{size}"
        folder.mkdir()
        (folder / "x.warc.gz.open").write_bytes(data[:size])
        (folder / "x.cdxj.open").write_bytes(b"torn li")
        archive.recover(folder)
        left = sum(end <= size for end in ends[1:])
        files = archive.finished(folder)
        assert len(files) == (left > 0), size
        assert not list(folder.glob("*.open")), size
        if left:
            assert [one.url for one in _captures(files[0])] == [f"http://a.example/{n}" for n in range(left)]
            assert len((folder / "x.cdxj").read_bytes().splitlines()) == left


def test_a_torn_file_within_a_file_is_no_capture(tmp_path: Path) -> None:
    """A page may itself be an archive, whose members gzip leaves as they are."""
    made = writer(tmp_path / "inner")
    made.add(exchange("/inner", noise(1)), "text/html", 200, None)
    made.close()
    [inner] = archive.finished(tmp_path / "inner")
    outer = writer(tmp_path)
    outer.add(exchange("/0", b"zero"), "text/html", 200, None)
    outer.add(exchange("/outer", noise(2) + inner.read_bytes() + noise(3)), "application/gzip", 200, None)
    outer.flush()
    [file] = archive.being_written(tmp_path)
    torn = file.read_bytes()[:-1_500]
    outer.close()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "x.warc.gz.open").write_bytes(torn)
    archive.recover(tmp_path / "torn")
    [mended] = check_files(tmp_path / "torn")
    assert [one.url for one in _captures(mended)] == ["http://a.example/0"]


def test_the_file_of_a_living_agent_is_left_alone(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.add(exchange("/1", b"one"), "text/html", 200, None)
    made.flush()
    assert archive.recover(tmp_path) == []
    assert len(archive.being_written(tmp_path)) == 1
    made.add(exchange("/2", b"two"), "text/html", 200, None)
    made.close()
    [file] = check_files(tmp_path)
    assert [one.body for one in _captures(file)] == [b"one", b"two"]


def test_an_agent_killed_in_mid_write_costs_no_published_page(place: Place, valkey: RunningServer) -> None:
    with (
        Farm(sites=5, pages=20, kinds=("duplicate", "missing"), names=(), delay_ms=5) as farm,
        Fleet(place, farm, valkey) as fleet,
    ):
        env = {"PYTHONPATH": str(ROOT), "FAULT_AFTER": "3"}
        extensions = suffers(KilledInWrite)
        run = place.start_crawl(
            farm.seeds, "--no-summary", env=env, REDIS_URL=valkey.url, LEASE_SECONDS=2, EXTENSIONS=extensions
        )
        run.wait()
        assert run.process.returncode == -signal.SIGKILL, run.err[-2000:]
        assert "in mid-write" in run.err
        [torn] = archive.being_written(place.var / "archive")
        whole = sum(one.length for one in reader.whole_members(torn))
        assert 0 < whole < torn.stat().st_size
        fleet.agent()
        fleet.wait()
        fleet.check_exact()
    assert not archive.being_written(place.var / "archive")
    assert len(check_files(place.var / "archive")) == 2
    assert check_rows(place) == sum(map(len, place.stored().values()))


@pytest.mark.drill
def test_agents_killed_at_any_moment(place: Place, valkey: RunningServer) -> None:
    rng = random.Random()
    with (
        Farm(sites=30, pages=160, kinds=("duplicate",), names=(), delay_ms=20) as farm,
        Fleet(place, farm, valkey, FLUSH_SECONDS=0.02, ARCHIVE_FILE_BYTES=100_000, SITE_SLOTS=6) as fleet,
    ):
        fleet.agents_at_work(2)
        for _ in moments(rng, 8, 0.1, 1.0):
            at_work = [run for run in fleet.alive if fleet.held(run)]
            assert at_work, "the crawl was too short for this drill"
            fleet.kill(rng.choice(at_work))
            fleet.until_joined(fleet.agent())
        fleet.wait(120)
        fleet.check_exact()
    archive.recover(place.var / "archive")
    assert len(check_files(place.var / "archive")) > 8
    assert check_rows(place) == sum(map(len, place.stored().values()))


# --- reading what is damaged --------------------------------------------------------------------------------


def test_damage_costs_what_stands_in_it_alone(tmp_path: Path) -> None:
    made = writer(tmp_path)
    places = [made.add(exchange(f"/{n}", noise(n)), "text/html", 200, None) for n in range(4)]
    made.close()
    [file] = archive.finished(tmp_path)
    data = bytearray(file.read_bytes())
    data[places[1].offset + 2_000] ^= 1
    file.write_bytes(data)
    found = list(reader.captures(file))
    kinds = [type(one) for one in found]
    assert kinds == [Capture, Damage, Capture, Capture]
    damage = found[1]
    assert isinstance(damage, Damage)
    assert damage.offset == places[1].offset
    with Library(tmp_path) as library:
        with pytest.raises(reader.DamagedCaptureError, match="no valid member"):
            library.read(places[1].file, places[1].offset)
        with pytest.raises(reader.DamagedCaptureError, match="expected a response record"):
            library.read(places[0].file, 0)
        with pytest.raises(reader.CaptureNotFoundError, match="ends at"):
            library.read(places[0].file, len(data))
        with pytest.raises(reader.CaptureNotFoundError, match="no file nowhere"):
            library.read("nowhere", 0)


def test_a_body_that_is_another_is_told(tmp_path: Path) -> None:
    made = writer(tmp_path)
    lie = exchange("/1", b"one")._replace(sha256="0" * 64)
    place = made.add(lie, "text/html", 200, None)
    made.close()
    with Library(tmp_path) as library:
        capture = library.read(place.file, place.offset)
        with pytest.raises(reader.DamagedCaptureError, match="SHA-256"):
            library.body(capture)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"WARC/1.1",
        b"WARC/1.1\r\n\r\n",
        b"WARC/1.1\r\nContent-Length: 5\r\n\r\n1234",
        b"WARC/1.1\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(warc.WarcError):
        warc.read(data)


# --- the format ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "size", "head"),
    [
        (
            [b"HTTP/1.1 200 OK\r\n", b"Content-Length: 3\r\n"],
            3,
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
        ),
        (
            [b"HTTP/1.0 200\n", b"content-length:3\n", b"Content-Length: 3\n", b"A: b\n"],
            3,
            b"HTTP/1.0 200\r\ncontent-length:3\r\nX-Crawler-Content-Length: 3\r\nA: b\r\n\r\n",
        ),
        (
            [b"HTTP/1.1 200 OK\r\n", b"Content-Length: 9\r\n", b"CONTENT-ENCODING: br\r\n"],
            3,
            b"HTTP/1.1 200 OK\r\nX-Crawler-Content-Length: 9\r\nX-Crawler-CONTENT-ENCODING: br\r\n"
            b"Content-Length: 3\r\n\r\n",
        ),
        (
            [b"HTTP/2 200 \r\n", b"content-type: text/html\r\n"],
            0,
            b"HTTP/1.1 200 \r\ncontent-type: text/html\r\nContent-Length: 0\r\n\r\n",
        ),
        ([], 0, b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n"),
    ],
)
def test_a_head_fits_the_body_that_is_kept(lines: list[bytes], size: int, head: bytes) -> None:
    assert warc.stored_head(lines, size) == head


def test_a_head_is_read_with_the_names_that_it_came_with() -> None:
    lines = [
        b"HTTP/1.1 201 Made\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Encoding: gzip\r\n",
        b"A: 1\r\n",
        b"A: 2\r\n",
    ]
    status, fields, body = warc.http_parts(warc.stored_head(lines, 4) + b"body")
    assert (status, body) == (201, b"body")
    assert dict.__eq__(
        fields, Headers({"Transfer-Encoding": "chunked", "A": ["1", "2"], "Content-Length": "4"})
    )


def test_a_request_says_nothing_that_may_be_secret() -> None:
    fields = {
        "Authorization": "x",
        "Cookie": "x",
        "X-Key": "x",
        "Accept": "a",
        "accept-language": "ko\r\nX-Key: x",
    }
    asked = Request("http://a.example:8080?q#part", headers=fields)
    assert warc.request_head("http://a.example/", asked, "gzip") == (
        b"GET /?q HTTP/1.1\r\nHost: a.example:8080\r\nAccept-Encoding: gzip\r\nAccept: a\r\n"
        b"Accept-Language: koX-Key: x\r\n\r\n"
    )


def test_an_answer_of_http2_is_told_so() -> None:
    assert warc.protocol_of(Response("http://a.example/", protocol="HTTP/2")) == "h2"
    assert warc.protocol_of(Response("http://a.example/", protocol="HTTP/1.1")) == ""


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://example.org/", "org,example)/"),
        ("https://www.Example.org/A/b.HTML?z=1&A=2", "org,example)/a/b.html?a=2&z=1"),
        ("http://www2.sub.example.co.uk:8080/x/", "uk,co,example,sub:8080)/x"),
        ("http://127.0.0.1:80/x?", "1,0,0,127:80)/x"),
        ("http://[2001:db8::1]/", "[2001:db8::1])/"),
        ("http://localhost", "localhost)/"),
        ("http://www/", "www)/"),
        ("http://example.org/a b\n?c d", "org,example)/a%20b%0a?c%20d"),
    ],
)
def test_the_key_of_an_index(url: str, key: str) -> None:
    assert warc.surt(url).decode() == key


@pytest.mark.parametrize("milliseconds", [0, 1, 999, 1_794_999_000_123, 4_102_444_800_000])
def test_a_time_is_read_as_it_was_written(milliseconds: int) -> None:
    assert warc.milliseconds(warc.date(milliseconds)) == milliseconds


def test_a_date_of_another_tool_is_read() -> None:
    assert warc.milliseconds("2026-11-18T12:00:00Z") == warc.milliseconds("2026-11-18T12:00:00")
    with pytest.raises(warc.WarcError, match="yesterday"):
        warc.milliseconds("yesterday")


def test_no_memory_stays_behind_after_a_sync(tmp_path: Path) -> None:
    made = writer(tmp_path)
    for number in range(50):
        made.add(exchange(f"/{number}", noise(number)), "text/html", 200, None)
    assert made.waiting > 250_000
    made.flush()
    made.sync()
    assert made.waiting == 0
    assert len(list(tmp_path.iterdir())) == 2
    made.close()
