"""CPU per page: ours against stock Scrapy, stock scrapy-redis and a hand-written crawler.

    python benchmarks/throughput.py [--rounds 3] [--pages 100] [--sites 100] [--json] [ours scrapy redis written]

All do the same work over the same local farm: GET, SHA-256, title, description, links, URL dedupe, a record out.
CPU is each process's own, from its first to its last page, servers apart; contenders take turns, so that what else
the machine does hits all alike. Pages/s on loopback follow from it: one core is busy all the time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.farm import Farm  # noqa: E402
from tests.servers import start_valkey  # noqa: E402

# The shape of an ordinary page: 26 kB with about 60 links.
PAGE_BYTES, PAGE_LINKS = 26_000, 60
CONTENDERS = ("ours", "scrapy", "redis", "written")
NAMES = {
    "ours": "Lowtide, one agent",
    "scrapy": "stock Scrapy, CrawlSpider",
    "redis": "stock scrapy-redis",
    "written": "hand-written aiohttp + lxml",
}


def command(contender: str, seeds: Path, folder: Path, redis_url: str) -> list[str]:
    """The command line that crawls the farm with one contender."""
    if contender == "ours":
        settings = {
            "VAR_DIR": folder / "var",
            "ALLOW_PRIVATE_ADDRESSES": "127.0.0.0/8",
            "DOWNLOAD_DELAY": 0,
            "LOG_LEVEL": "WARNING",
            "EXTENSIONS": json.dumps({"crawler.store.local.LocalServer": 0, "benchmarks.meters.CpuMeter": 0}),
        }
        given = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
        return [
            sys.executable,
            "-m",
            "scrapy",
            "crawl",
            "site",
            "-a",
            f"seeds={seeds}",
            "--no-summary",
            *given,
        ]
    script = str(ROOT / "benchmarks" / "contenders.py")
    return [sys.executable, script, contender, str(seeds), redis_url]


def run(contender: str, farm: Farm, redis_url: str) -> dict[str, float]:
    """One crawl: CPU-ms per page, pages/s, pages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seeds, meter = folder / "seeds.txt", folder / "meter"
        seeds.write_text("\n".join(farm.seeds))
        environment = {**os.environ, "METER_FILE": str(meter), "PYTHONPATH": str(ROOT)}
        subprocess.run(
            command(contender, seeds, folder, redis_url), check=True, cwd=ROOT, env=environment, timeout=1800
        )
        figures = json.loads(meter.read_text().splitlines()[-1])
    pages = figures["pages"]
    return {"cpu_ms": figures["cpu"] / pages * 1000, "pages_s": pages / figures["wall"], "pages": pages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("contenders", nargs="*", default=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, list[dict[str, float]]] = {name: [] for name in options.contenders}
    with tempfile.TemporaryDirectory() as name:
        valkey = start_valkey(Path(name))
        try:
            for _ in range(options.rounds):
                for contender in options.contenders:
                    valkey.client.flushall()
                    with Farm(
                        sites=options.sites, pages=options.pages, size=PAGE_BYTES, links=PAGE_LINKS, kinds=()
                    ) as farm:
                        results[contender].append(run(contender, farm, valkey.url))
        finally:
            valkey.stop()
    print(json.dumps(results) if options.json else table(results))


def table(results: dict[str, list[dict[str, float]]]) -> str:
    """Medians with their spread, and how many times ours each is."""
    lines = [f"{'crawler':<30} {'CPU-ms/page':>12} {'spread':>13} {'pages/s':>8} {'pages':>7} {'x ours':>7}"]
    base = statistics.median(one["cpu_ms"] for one in results["ours"]) if "ours" in results else None
    for contender, runs in results.items():
        costs = sorted(one["cpu_ms"] for one in runs)
        middle = statistics.median(costs)
        rate = statistics.median(one["pages_s"] for one in runs)
        times = f"{middle / base:.2f}" if base else "-"
        spread = f"{costs[0]:.2f}..{costs[-1]:.2f}"
        lines.append(
            f"{NAMES[contender]:<30} {middle:>12.2f} {spread:>13} {rate:>8.0f} {runs[0]['pages']:>7.0f} {times:>7}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
