"""Whether HTTP/2 pays, and what a hostile server can do through it.

    python benchmarks/http2.py [--requests 480] [--rounds 5] [--scenes NAME …] [--json]

First the CPU of one request of 26 kB over kept-alive TLS through the download handler, HTTP/1.1 and HTTP/2 in turn,
one at a time and eight at a time; the least of all rounds. Then each flood of tests/http2_server.py, client and server
in processes of their own, head and body limited to 3 seconds: the CPU it cost the client, the most memory, and the
longest time in which its event loop did nothing else; the worst of three. A flood that goes on after 20 seconds is
ended by ending its server. The first flood is the worst one of HTTP/1.1, to compare with.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import uvloop  # noqa: E402
from scrapy import Request  # noqa: E402
from scrapy.utils.test import get_crawler  # noqa: E402

from benchmarks.meters import cpu_seconds, memory_of  # noqa: E402
from crawler import options  # noqa: E402
from crawler.fetch.handler import CurlDownloadHandler  # noqa: E402
from settings import base  # noqa: E402
from tests.certificates import self_signed  # noqa: E402
from tests.http2_server import PLAIN_SCENES, SCENES, in_process  # noqa: E402

FLOODS = [name for name in (*PLAIN_SCENES, *SCENES) if name != "page"]
AT_ONCE = (1, 8)
FLOOD_ROUNDS = 3
STAGE_SECONDS = 3.0
PATIENCE_SECONDS = 20.0
# How often the client's loop is asked whether it is free.
LOOK_SECONDS = 0.005


class Hit(NamedTuple):
    """What one flood did to its client."""

    scene: str
    ended: str  # as what the handler raised, or "page"
    seconds: float
    cpu: float
    pause: float
    memory_mb: float


def handler(**settings: Any) -> CurlDownloadHandler:
    """The download handler as the project sets it, but for these."""
    given = {name: getattr(base, name) for name in options.NAMES}
    given |= {"ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8", "DOWNLOAD_MAXSIZE": base.DOWNLOAD_MAXSIZE}
    given |= {"DOWNLOAD_VERIFY_CERTIFICATES": True} | settings
    return CurlDownloadHandler.from_crawler(get_crawler(settings_dict=given))


@contextmanager
def certificate() -> Iterator[Path]:
    """A certificate that this process and its children trust."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SSL_CERT_FILE"] = str(Path(folder) / "certificate.pem")
        yield self_signed(Path(os.environ["SSL_CERT_FILE"]))


# --- what a request costs ---------------------------------------------------------------------------------


async def cost(port: int, requests: int, rounds: int) -> dict[str, dict[int, float]]:
    """CPU-ms of a request, by protocol and by how many go at a time."""
    least: dict[str, dict[int, float]] = {"HTTP/1.1": {}, "HTTP/2": {}}
    for _ in range(rounds):
        for protocol, figures in least.items():
            for at_once in AT_ONCE:
                used = await _round(port, protocol, requests // at_once, at_once)
                figures[at_once] = min(used, figures.get(at_once, used))
    return least


async def _round(port: int, protocol: str, turns: int, at_once: int) -> float:
    downloads = handler(HTTP2_ENABLED=protocol == "HTTP/2")

    async def visit(times: int) -> None:
        for _ in range(times):
            response = await downloads.download_request(Request(f"https://localhost:{port}/"))
            assert response.protocol == protocol

    await visit(10)
    await asyncio.gather(*(visit(2) for _ in range(at_once)))
    before = cpu_seconds()
    await asyncio.gather(*(visit(turns) for _ in range(at_once)))
    used = cpu_seconds() - before
    await downloads.close()
    return used / (turns * at_once) * 1000


# --- what a flood does ------------------------------------------------------------------------------------


def worst(file: Path, scene: str) -> Hit:
    """The worst that this flood did in some tries."""
    hits = [_suffer_apart(file, scene) for _ in range(FLOOD_ROUNDS)]
    most = [max(getattr(hit, name) for hit in hits) for name in ("seconds", "cpu", "pause", "memory_mb")]
    return Hit(scene, max(hits, key=lambda hit: hit.pause).ended, *most)


def _suffer_apart(file: Path, scene: str) -> Hit:
    """One try, in a process whose memory is its own."""
    with in_process(file, scene) as port:
        command = [sys.executable, __file__, "--port", str(port), "--scenes", scene]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        with suppress(subprocess.TimeoutExpired):
            client.wait(PATIENCE_SECONDS)
    return Hit(*json.loads(client.communicate(timeout=PATIENCE_SECONDS)[0]))


async def suffer(port: int, scene: str) -> Hit:
    """Ask such a server for one page."""
    downloads = handler(
        HTTP2_ENABLED=True, HEAD_TIMEOUT_SECONDS=STAGE_SECONDS, BODY_TIMEOUT_SECONDS=STAGE_SECONDS
    )
    longest, most, before = 0.0, 0, memory_of(os.getpid())

    async def watch() -> None:
        nonlocal longest, most
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(LOOK_SECONDS)
            longest = max(longest, time.monotonic() - asleep - LOOK_SECONDS)
            most = max(most, memory_of(os.getpid()))

    # What a first download loads is not the flood's.
    await asyncio.gather(downloads.download_request(Request("https://localhost:1/")), return_exceptions=True)
    watcher = asyncio.ensure_future(watch())
    await asyncio.sleep(4 * LOOK_SECONDS)
    longest, cpu, started = 0.0, cpu_seconds(), time.monotonic()
    (end,) = await asyncio.gather(
        downloads.download_request(Request(f"https://localhost:{port}/")), return_exceptions=True
    )
    seconds = time.monotonic() - started
    await asyncio.sleep(2 * LOOK_SECONDS)
    watcher.cancel()
    hit = Hit(
        scene,
        type(end).__name__ if isinstance(end, Exception) else "page",
        round(seconds, 2),
        round(cpu_seconds() - cpu, 2),
        round(longest, 3),
        round((most - before) / 1e6, 1),
    )
    await downloads.close()
    return hit


# --- the command ------------------------------------------------------------------------------------------


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=480)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scenes", nargs="*", choices=FLOODS, default=FLOODS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if given.port:
            print(json.dumps(runner.run(suffer(given.port, given.scenes[0]))))
            return 0
        with certificate() as file:
            with in_process(file, "page") as port:
                costs = runner.run(cost(port, given.requests, given.rounds))
            hits = [worst(file, scene) for scene in given.scenes]
    if given.json:
        print(json.dumps({"cpu_ms": costs, "floods": [hit._asdict() for hit in hits]}))
    else:
        _show(costs, hits)
    return 0


def _show(costs: dict[str, dict[int, float]], hits: list[Hit]) -> None:
    for protocol, figures in costs.items():
        told = ", ".join(
            f"{used:.3f} ms of CPU a request at {at_once} at a time" for at_once, used in figures.items()
        )
        print(f"{protocol:<9} {told}")
    print(f"\n{'flood':<32} {'ended as':<22} {'s':>6} {'CPU s':>6} {'pause s':>8} {'MB':>6}")
    for hit in hits:
        print(
            f"{hit.scene:<32} {hit.ended:<22} {hit.seconds:6.2f} {hit.cpu:6.2f} {hit.pause:8.3f} {hit.memory_mb:6.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
