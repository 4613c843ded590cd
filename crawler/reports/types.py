"""Text and multimedia: stored pages by type, and the files they link (paper 001's share of types)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import func, select

from crawler.store.queries import in_stretches
from crawler.store.tables import pages
from crawler.views.drawing import Bar, Picture, bars
from crawler.views.words import size_word

if TYPE_CHECKING:
    from crawler.reports import Crawl

# What the paper compares with ordinary documents.
MULTIMEDIA = ("image", "audio", "video")
# Types with a line of their own; --json has all.
MOST_LINES = 15


def figures(crawl: Crawl) -> dict[str, Any]:
    """Pages by content type; files by kind (once per page), and pages with one.

    `text_share` and `multimedia_share` are of pages and files.
    """
    content = _content(crawl)
    files, having, stored = _files(crawl)
    media = sum(one["pages"] for one in content if _kind(one["type"]) in MULTIMEDIA)
    multimedia = media + sum(files[kind] for kind in MULTIMEDIA)
    words = stored - media + files["document"]
    whole = multimedia + words
    return {
        "pages": stored,
        "content": content,
        "files": [
            {
                "kind": kind,
                "files": number,
                "pages": having[kind],
                "page_share": round(having[kind] / stored, 4),
            }
            for kind, number in files.most_common()
        ],
        "text_share": round(words / whole, 4) if whole else None,
        "multimedia_share": round(multimedia / whole, 4) if whole else None,
    }


def _content(crawl: Crawl) -> list[dict[str, Any]]:
    query = (
        select(pages.c.content_type, func.count(), func.sum(pages.c.size))
        .where(pages.c.outcome == "stored")
        .group_by(pages.c.content_type)
    )
    many: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for given, number, size in in_stretches(crawl.engine, pages, query):
        name = (given or "").partition(";")[0].strip().lower() or "none"
        many[name] += number
        sizes[name] += int(size)
    return [
        {"type": name, "pages": number, "bytes": sizes[name], "share": round(number / many.total(), 4)}
        for name, number in sorted(many.items(), key=lambda one: (-one[1], one[0]))
    ]


def _files(crawl: Crawl) -> tuple[Counter[str], Counter[str], int]:
    """Files by kind, pages that have one by kind, stored pages."""
    query = select(pages.c.media, func.count()).where(pages.c.outcome == "stored").group_by(pages.c.media)
    files: Counter[str] = Counter()
    having: Counter[str] = Counter()
    stored = 0
    for media, number in in_stretches(crawl.engine, pages, query):
        stored += number
        for kind, many in msgspec.json.decode(media).items() if media else ():
            files[kind] += many * number
            having[kind] += number
    return files, having, stored


def text(found: dict[str, Any]) -> str:
    """For the terminal."""
    if not found["pages"]:
        return "  no page is stored yet"
    lines = [
        f"  {one['type']:<32} {one['pages']:>12,} pages  {one['share']:>6.1%}  {size_word(one['bytes'])}"
        for one in found["content"][:MOST_LINES]
    ]
    lines += [
        f"  {one['kind'] + ' files':<32} {one['files']:>12,} files  on {one['page_share']:.1%} of the pages"
        for one in found["files"]
    ]
    lines.append(
        f"  text {found['text_share']:.1%}, multimedia {found['multimedia_share']:.1%} of pages and files"
    )
    return "\n".join(lines)


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One table."""
    content = [
        {"what": "pages", "type": one["type"], "number": one["pages"], "bytes": one["bytes"]}
        for one in found["content"]
    ]
    return content + [
        {"what": "files", "type": one["kind"], "number": one["files"], "bytes": None}
        for one in found["files"]
    ]


def pictures(found: dict[str, Any]) -> list[Picture]:
    """For a page."""
    if not found["pages"]:
        return []
    content = [
        Bar(one["type"], one["pages"], f"{one['pages']:,}   {one['share']:.1%}") for one in found["content"]
    ]
    files = [Bar(one["kind"], one["files"], f"{one['files']:,}") for one in found["files"]]
    drawn = [Picture("Stored pages by content type", bars(content[:MOST_LINES], "pages by type"))]
    if files:
        drawn.append(Picture("Files that pages show or link to", bars(files, "files by kind")))
    return drawn


def _kind(content_type: str) -> str:
    return content_type.partition("/")[0]
