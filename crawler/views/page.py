"""The self-contained HTML file of `scrapy report --html`, without scripts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from crawler.printable import printable_lines
from crawler.views.drawing import Picture, host
from crawler.views.words import size_word, status_word

if TYPE_CHECKING:
    from jinja2 import Environment


# Longest line, in characters, that fits half of a large screen.
HALF_LINE = 84


class Section(NamedTuple):
    """One report."""

    name: str
    title: str
    text: str
    pictures: Sequence[Picture]

    @property
    def width(self) -> str:
        """CSS class: "half" of a large screen if it fits."""
        longest = max(map(len, self.text.splitlines()), default=0)
        return "half" if longest <= HALF_LINE and not any(one.wide for one in self.pictures) else "whole"


def written(sections: Sequence[Section]) -> str:
    """The whole page."""
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return environment().get_template("report.html").render(sections=sections, at=at, style=style())


@cache
def environment() -> Environment:
    """Jinja with autoescape; pictures escape their own texts."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(loader=PackageLoader("crawler.views"), autoescape=True, undefined=StrictUndefined)
    made.trim_blocks = made.lstrip_blocks = True
    made.filters |= {
        "svg": _svg,
        "clean": _clean,
        "clock": _clock,
        "status": status_word,
        "size": size_word,
        "host": host,
    }
    return made


@cache
def style() -> Markup:
    """The style of report and dashboard."""
    return Markup(_asset("style.css"))  # noqa: S704  # ours


def script() -> str:
    """The dashboard's script: it reloads the figures every two seconds."""
    return _asset("refresh.js")


def _asset(name: str) -> str:
    return resources.files("crawler.views").joinpath("templates", name).read_text(encoding="utf-8")


def _clean(words: object) -> str:
    return printable_lines(str(words))


def _clock(at_ms: int) -> str:
    """UTC, with the date if it is not today."""
    at = time.gmtime(at_ms / 1000)
    today = at[:3] == time.gmtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", at)


def _svg(picture: Picture | str) -> Markup:
    if isinstance(picture, str):
        return Markup(picture)  # noqa: S704  # as below
    return Markup(picture.svg)  # noqa: S704  # crawler.views.drawing escapes foreign text
