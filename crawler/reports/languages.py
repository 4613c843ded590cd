"""Languages of the stored pages (paper 001's share of languages)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from crawler.store.queries import in_stretches
from crawler.store.tables import pages
from crawler.views.drawing import Bar, Picture, bars

if TYPE_CHECKING:
    from crawler.reports import Crawl

# Languages with a line and a bar of their own; --json has all.
MOST_LINES = 20
NAMES = {
    "ar": "Arabic",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "he": "Hebrew",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "nl": "Dutch",
    "no": "Norwegian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "vi": "Vietnamese",
    "zh": "Chinese",
}


def figures(crawl: Crawl) -> list[dict[str, Any]]:
    """Pages and bytes by language, most frequent first; None: too little text.

    Shares are of pages with a language.
    """
    query = (
        select(pages.c.language, func.count(), func.sum(pages.c.size))
        .where(pages.c.outcome == "stored")
        .group_by(pages.c.language)
    )
    many: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for language, number, size in in_stretches(crawl.engine, pages, query):
        many[language or ""] += number
        sizes[language or ""] += int(size)
    known = many.total() - many[""]
    return [
        {
            "language": language or None,
            "pages": number,
            "bytes": sizes[language],
            "share": round(number / known, 4) if language else None,
        }
        for language, number in sorted(many.items(), key=lambda one: (-one[1], one[0]))
        if number
    ]


def text(found: list[dict[str, Any]]) -> str:
    """For the terminal."""
    if not found:
        return "  no page is stored yet"
    lines = [
        f"  {_name(one['language']):<20} {one['pages']:>12,}  {_share(one['share'])}"
        for one in found[:MOST_LINES]
    ]
    if len(found) > MOST_LINES:
        lines.append(f"  … and {len(found) - MOST_LINES} languages more: --json has them")
    return "\n".join(lines)


def pictures(found: list[dict[str, Any]]) -> list[Picture]:
    """For a page."""
    shown = [
        Bar(_name(one["language"]), one["pages"], f"{one['pages']:,}   {_share(one['share'])}")
        for one in found[:MOST_LINES]
    ]
    return [Picture("Stored pages by language", bars(shown, "pages by language"))] if shown else []


def _name(language: str | None) -> str:
    return "unknown" if language is None else NAMES.get(language, language)


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
