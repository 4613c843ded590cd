"""What crawls are measured by: CPU, memory and time of a process, from inside and from outside of it.

Inside: two Scrapy extensions. `CpuMeter` writes what one process used between spider_opened and spider_closed to
METER_FILE, as one line of JSON; `Sampler` writes to PROFILE_FILE how often each function of interest was found at
work. Outside: /proc, which knows a process by its id. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

METER_FILE, PROFILE_FILE = "METER_FILE", "PROFILE_FILE"
# CPU seconds between two samples; the kernel makes four milliseconds of it where its clock ticks that slowly.
SAMPLE_SECONDS = 0.002
# Of which a slowed process runs a part.
SLICE_SECONDS = 0.008
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


# --- from inside ---


class CpuMeter:
    """User and system seconds of one process from spider_opened to spider_closed."""

    def __init__(self, crawler: Crawler) -> None:
        from scrapy import (
            signals,
        )  # not above: the hand-written crawler is measured too, without Scrapy in it

        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> CpuMeter:
        """Built by Scrapy."""
        return cls(crawler)

    def _opened(self) -> None:
        self._began = cpu_seconds()

    def _closed(self) -> None:
        write_usage(cpu_seconds() - self._began)


class Usage(NamedTuple):
    """What one crawler process used for its pages."""

    cpu: float
    most_memory: int


def cpu_seconds() -> float:
    """User and system time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def write_usage(cpu: float) -> None:
    """Append this process's usage to METER_FILE."""
    most_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with Path(os.environ[METER_FILE]).open("a", encoding="utf-8") as out:
        out.write(json.dumps(Usage(cpu, most_memory)) + "\n")


def read_usage(file: Path) -> list[Usage]:
    """What each process wrote there."""
    return [Usage(*json.loads(line)) for line in file.read_text().splitlines()]


# --- where a crawler spends its time ---

GUARD = "guard, limits, timeouts"
# A stack counts for the first entry that its innermost matching frame has: end of the file's path, function ("" =
# any), part. What matches nothing is the event loop, which is no Python.
PARTS = (
    ("crawler/content/html.py", "document", "parse"),
    ("crawler/content/html.py", "_parsable", "parse"),
    ("crawler/content/html.py", "parsed", "parse"),
    ("crawler/content/charset.py", "", "parse"),
    ("crawler/content/html.py", "robots_directives", "meta robots"),
    ("crawler/content/html.py", "", "links, canonical"),
    ("crawler/urls/url.py", "", "links, canonical"),
    ("crawler/urls/scope.py", "", "scope"),
    ("crawler/agent/frontier.py", "add", "frontier"),
    ("crawler/agent/frontier.py", "encode", "journal"),
    ("crawler/agent/frontier.py", "changes", "journal"),
    ("crawler/agent/frontier.py", "", "frontier"),
    ("crawler/pipelines/checksum.py", "", "checksum"),
    ("crawler/archive/warc.py", "", "archive"),
    ("crawler/archive/writer.py", "", "archive"),
    ("crawler/pipelines/archive.py", "", "archive"),
    ("crawler/content/language.py", "", "language"),
    ("crawler/pipelines/language.py", "", "language"),
    ("crawler/content/text.py", "", "text and its hash"),
    ("crawler/content/text.py", "", "media, hosts, domains"),
    ("crawler/content/text.py", "", "media, hosts, domains"),
    ("crawler/pipelines/attributes.py", "", "title, description"),
    ("crawler/pipelines/links.py", "", "links, canonical"),
    ("crawler/content/html.py", "", "out-link hashes"),
    ("crawler/records.py", "pack_hashes", "out-link hashes"),
    ("crawler/records.py", "_digest", "out-link hashes"),
    ("crawler/records.py", "", "records"),
    ("crawler/robots/policy.py", "", "robots.txt"),
    ("crawler/robots/rules.py", "", "robots.txt"),
    # Head lines are counted where they are gathered, so that gathering counts too.
    ("crawler/fetch/transfer.py", "_on_open_socket", GUARD),
    ("crawler/fetch/transfer.py", "_on_header", GUARD),
    ("crawler/fetch/transfer.py", "_refused", GUARD),
    ("crawler/fetch/transfer.py", "_sent_too_often", GUARD),
    ("crawler/fetch/transfer.py", "note_times", GUARD),
    ("crawler/fetch/wire.py", "_sweep", GUARD),
    ("crawler/fetch/handler.py", "_limits", GUARD),
    ("crawler/fetch/handler.py", "_allowed", GUARD),
    ("crawler/fetch/guard.py", "", GUARD),
    ("crawler/fetch/timeouts.py", "", GUARD),
    ("crawler/fetch/timeouts.py", "", GUARD),
    ("crawler/content/traps.py", "", GUARD),
    ("crawler/agent/politeness.py", "", GUARD),
    ("crawler/fetch/transfer.py", "", "download"),
    ("crawler/fetch/wire.py", "", "download"),
    ("crawler/fetch/handler.py", "", "download"),
    ("crawler/fetch/dns.py", "", "download"),
    ("crawler/fetch/transfer.py", "", "download"),
    ("crawler/agent/publisher.py", "", "publish, lease"),
    ("crawler/agent/leasing.py", "", "publish, lease"),
    ("crawler/agent/session.py", "", "publish, lease"),
    ("crawler/agent/seeding.py", "", "publish, lease"),
    ("crawler/queue/queue.py", "", "publish, lease"),
    ("/redis/", "", "publish, lease"),
    ("/benchmarks/", "", "this measurement"),
    ("crawler/", "", "turns and answers"),
    ("scrapy/core/engine.py", "", "Scrapy: engine"),
    ("scrapy/core/scraper.py", "", "Scrapy: scraper"),
    ("scrapy/core/spidermw.py", "", "Scrapy: scraper"),
    ("scrapy/core/downloader/", "", "Scrapy: downloader"),
    ("scrapy/downloadermiddlewares/", "", "Scrapy: downloader"),
    ("scrapy/middleware.py", "", "Scrapy: downloader"),
    ("scrapy/http/", "", "Scrapy: Request, Response"),
    ("scrapy/responsetypes.py", "", "Scrapy: Request, Response"),
    ("scrapy/utils/httpobj.py", "", "Scrapy: Request, Response"),
    ("scrapy/signalmanager.py", "", "Scrapy: signals"),
    ("scrapy/utils/signal.py", "", "Scrapy: signals"),
    ("/pydispatch/", "", "Scrapy: signals"),
    ("scrapy/statscollectors.py", "", "Scrapy: statistics"),
    ("scrapy/extensions/", "", "Scrapy: statistics"),
    ("scrapy/", "", "Scrapy: rest"),
    ("/twisted/", "", "Deferreds"),
    ("/asyncio/", "", "event loop"),
)


class Sampler:
    """Finds out what is at work each time the process has used SAMPLE_SECONDS of CPU.

    Python looks for signals where a function begins or a loop turns: what C code did before counts for what comes
    next. The one large case: a page's tree is freed just before `Agent.settle` begins. The garbage collector runs
    inside whatever made the last object, so its time is taken apart.
    """

    def __init__(self, crawler: Crawler) -> None:
        from scrapy import signals

        self._found: Counter[CodeType | None] = Counter()
        self._known: dict[CodeType, bool] = {}
        self._collecting = 0.0
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Sampler:
        """Built by Scrapy."""
        return cls(crawler)

    def _opened(self) -> None:
        self._began = cpu_seconds()
        gc.callbacks.append(self._collect)
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)

    def _closed(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        gc.callbacks.remove(self._collect)
        samples: Counter[tuple[str, str]] = Counter()
        for code, many in self._found.items():
            samples[_part(code), _function(code)] += many
        rows = [(part, function, many) for (part, function), many in samples.items()]
        Path(os.environ[PROFILE_FILE]).write_text(
            json.dumps({"samples": rows, "collecting": self._collecting, "cpu": cpu_seconds() - self._began})
        )

    def _sample(self, _number: int, frame: FrameType | None) -> None:
        while frame is not None:
            code = frame.f_code
            known = self._known.get(code)
            if known is None:
                known = self._known[code] = bool(_entry(code))
            if known:
                self._found[code] += 1
                return
            frame = frame.f_back
        self._found[None] += 1

    def _collect(self, phase: str, _about: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            self._collecting += time.thread_time() - self._collection_began


def _entry(code: CodeType) -> str | None:
    return next(
        (
            part
            for file, function, part in PARTS
            if (code.co_filename.endswith(file) or (file.endswith("/") and file in code.co_filename))
            and function in ("", code.co_name)
        ),
        None,
    )


def _part(code: CodeType | None) -> str:
    return (_entry(code) if code else None) or "event loop"


def _function(code: CodeType | None) -> str:
    return f"{Path(code.co_filename).name}:{code.co_qualname}" if code else ""


# --- from outside ---


def cpu_of(pid: int) -> float:
    """User and system time of a process so far; 0 where it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def memory_of(pid: int) -> int:
    """Resident bytes of a process; 0 where it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
    return 0


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Processes started meanwhile stay on this processor; None, or where the system has no such call: on any."""
    if core is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def slowed(process: subprocess.Popen[Any], part: float) -> Iterator[None]:
    """A process runs for this part of the time, as if on a slower processor; the rest of each slice it is stopped."""
    if part >= 1:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_stop_and_go, args=(process, part, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _stop_and_go(process: subprocess.Popen[Any], part: float, over: threading.Event) -> None:
    while process.poll() is None and not over.is_set():
        process.send_signal(signal.SIGSTOP)
        time.sleep((1 - part) * SLICE_SECONDS)
        process.send_signal(signal.SIGCONT)
        time.sleep(part * SLICE_SECONDS)


def two_cores() -> tuple[int, int] | None:
    """Two processors to keep crawler and servers apart; None: this machine has no two, or cannot say."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else None


def move(pid: int, core: int | None) -> None:
    """Keep a running process on this processor; None: on any that this one may use."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(pid, os.sched_getaffinity(0) if core is None else {core})
