"""What does it cost to read from a page what it says? CPU-microseconds per page, part by part.

    python benchmarks/attributes.py                    # a minute

Three pages: the local web's own of 26 kB (60 links, English words), the same with 28 pictures, 27 scripts and two mail
addresses in it, and one with the same links and Korean text. The tree is parsed and the links are placed before; both
are shown apart. Each part is repeated for a while, several times in turn with all others; the least disturbed counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scrapy.http import Headers, Response

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import web  # noqa: E402
from crawler import records  # noqa: E402
from crawler.agent.page import LoadedPage  # noqa: E402
from crawler.content import html, keywords, language, text  # noqa: E402
from crawler.pipelines.attributes import Attributes  # noqa: E402

SITE = "http://127.0.0.1"
KIND = "text/html; charset=utf-8"
SIZE = 26_000
KEYWORDS = 10
SCRIPT = "<script>window.data = window.data || []; function send() { data.push(arguments); }</script>"
PICTURE = "<img src='/pictures/{0}.jpg' alt='Picture'><img src='/pictures/{0}-small.jpg' alt=''>"
ADDRESS = "<a href='mailto:office@example.org?subject=tide'>Write</a> or to desk@example.com"
KOREAN = (
    "<p>이번 주말에는 강풍으로 두 섬 사이의 여객선이 운항하지 않습니다. <b>표</b>를 산 승객은 사무소에서 환불받을 수 "
    "있습니다.</p>\n"
)


def pages() -> dict[str, str]:
    """The pages by name."""
    shape = web.Pages()
    hrefs = [href.format(origin=SITE, tag="s1") for href in web.links(shape, 100, 3)]
    head = web.document("Page 3", hrefs)
    plain = head + web.filler(SIZE - len(head)) + web.END.decode()
    full = plain
    for number in range(14):
        full = full.replace("\n<p class", f"\n{SCRIPT}{PICTURE.format(number)}<p  class", 1)
    full = full.replace("</ul>", f"</ul>{SCRIPT}<noscript>{SCRIPT}</noscript>").replace(
        "\n<p class", ADDRESS, 2
    )
    return {
        "plain": plain,
        "full": full,
        "Korean": head + KOREAN * ((SIZE - len(head)) // len(KOREAN.encode())),
    }


def loaded(body: bytes) -> LoadedPage:
    """A page of an agent of which there is only what its attributes ask for."""
    agent: Any = SimpleNamespace(
        max_url_length=2083, options=SimpleNamespace(max_links_per_page=5000, max_html_bytes=1_000_000)
    )
    lease: Any = SimpleNamespace(site=SITE, site_session=SimpleNamespace(user_agent="lowtide"))
    turn: Any = None
    record = records.Page(site=SITE, path="/", fetched_at=1, outcome="stored", status=200, content_type=KIND)
    response = Response(f"{SITE}/", headers=Headers({"Content-Type": KIND}), body=body)
    return LoadedPage(agent, lease, turn, response, record)


def parts(body: bytes) -> dict[str, Callable[[], object]]:
    """What is measured, by name, on a page whose tree and links are there."""
    page = loaded(body)
    root, found, seen = page.document, page.links, page.raw_text
    step = Attributes()

    def attributes() -> None:
        for name in ("raw_text", "directives", "charset"):
            page.__dict__.pop(name, None)
        step.process(page)

    def spoken() -> str:
        return language.language(text.collapsed(seen, language.LOOKED_AT), language.declared(root))

    def best() -> list[str]:
        return keywords.keywords(
            "Page 3", keywords.headings(root), text.collapsed(seen), spoken_there, KEYWORDS
        )

    spoken_there = spoken()
    return {
        "parse": lambda: html.document(body, KIND),
        "links": lambda: html.links(root, f"{SITE}/", SITE, 5000, 2083),
        "Attributes, all of it": attributes,
        "- visible text": lambda: text.visible(root),
        "- content hash": lambda: text.content_hash(seen),
        "- media": lambda: text.media_of(root, found),
        "- outside hosts": lambda: text.outside_hosts(found, SITE),
        "- mail and FTP domains": lambda: text.mail_and_ftp(page.written.hrefs, seen),
        "Language": spoken,
        "Keywords": best,
        "page.text, where a step asks for it": lambda: text.collapsed(seen),
    }


def once(part: Callable[[], object], seconds: float) -> float:
    """CPU-microseconds of one call, over as many as fit."""
    calls, began = 0, time.process_time()
    while (spent := time.process_time() - began) < seconds or not calls:
        part()
        calls += 1
    return spent / calls * 1e6


def measure(rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Name of the page -> part -> CPU-us."""
    told: dict[str, dict[str, float]] = {}
    for name, page in pages().items():
        of_page = parts(page.encode())
        for _ in range(rounds):
            for part, call in of_page.items():
                cost = once(call, seconds)
                before = told.setdefault(name, {}).get(part, cost)
                told[name][part] = min(before, cost)
    return told


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each part")
    parser.add_argument("--seconds", type=float, default=0.2, help="that each takes")
    given = parser.parse_args()
    figures = measure(given.rounds, given.seconds)
    if given.json:
        print(json.dumps(figures))
        return 0
    print(f"{'CPU-us a page':36}" + "".join(f"{name:>9}" for name in figures))
    for part in figures["plain"]:
        print(f"{part:36}" + "".join(f"{of_page[part]:9.1f}" for of_page in figures.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
