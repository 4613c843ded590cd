"""SVG pictures for reports and dashboard, without scripts or loaded files.

Widths are per cent, heights pixels: text keeps its size. Colours are classes of style.css. Foreign text is
escaped here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from crawler.printable import printable

# Pixels of a row, and of a line of text.
ROW, LINE = 20, 18
# Per cent of the width for names, and where the content starts.
NAMES, BEHIND = 28.0, 30.0
# Positions of a heat map's legend, which fit a phone.
MARKS = (0.2, 62.0, 82.0)
# Steps of the load scale; number of distinct series colours.
STEPS, SERIES = 9, 6


class Picture(NamedTuple):
    """`about` in one line, the SVG, and whether it needs the full width."""

    title: str
    svg: str
    wide: bool = False


class Bar(NamedTuple):
    """Name, length, label, and a class of style.css."""

    name: str
    value: float
    label: str
    kind: str = "s0"


class HeatRow(NamedTuple):
    """Shares 0 to 1, None unknown; cells that are not open are crossed out."""

    name: str
    cells: Sequence[float | None]
    is_open: Sequence[bool] = ()


class Column(NamedTuple):
    """Label (may be empty), and stacked series, bottom first."""

    name: str
    parts: Sequence[float]


class Node(NamedTuple):
    """Name, position and size, 0 to 1."""

    name: str
    x: float
    y: float
    size: float


class Edge(NamedTuple):
    """Indexes of two nodes; strength 0 to 1."""

    source: int
    target: int
    weight: float


def bars(rows: Sequence[Bar], about: str) -> str:
    """Horizontal bars, scaled to the longest."""
    most = max((row.value for row in rows), default=0) or 1
    parts = []
    for number, row in enumerate(rows):
        top = number * ROW
        long = max(0.4 if row.value else 0, 50 * row.value / most)
        parts.append(_clipped(0, top, NAMES, row.name))
        parts.append(_rect(BEHIND, top + 4, long, ROW - 8, row.kind, f"{row.name}: {row.label}"))
        parts.append(_text(BEHIND + long + 1, top + 14, row.label, "dim"))
    return _svg(len(rows) * ROW, parts, about)


def heat(
    rows: Sequence[HeatRow],
    hours: Sequence[str],
    about: str,
    present: int | None = 0,
    crossed: tuple[str, str] = ("closed", "closed by robots.txt"),
) -> str:
    """A cell for each row and hour, coloured by value.

    `present`: the hour to mark, or None. `crossed`: why cells are not open.
    """
    width = (100 - BEHIND) / max(len(hours), 1)
    parts = [
        _text(BEHIND + (at + 0.5) * width, 12, name, "dim", "middle")
        for at, name in enumerate(hours)
        if at % 3 == 0
    ]
    for number, row in enumerate(rows):
        top = LINE + number * ROW
        parts.append(_clipped(0, top, NAMES, row.name))
        parts += [
            _cell(BEHIND + at * width, top, width, row, at, hours[at], crossed[1])
            for at in range(len(row.cells))
        ]
    height = LINE + len(rows) * ROW
    if present is not None and rows:
        parts.append(_rect(BEHIND + present * width, LINE - 1, width, height - LINE + 1, "now", "this hour"))
    marks = [
        *([("here", "this hour")] if present is not None and rows else []),
        *([("unknown", "unknown")] if any(None in row.cells for row in rows) else []),
        *([("closed", crossed[0])] if any(not all(row.is_open) for row in rows) else []),
    ]
    return _svg(height + 2 * LINE, [*parts, *_scale(height + LINE // 2, marks)], about)


def columns(given: Sequence[Column], series: Sequence[str], about: str, height: int = 180) -> str:
    """Vertical columns with stacked series."""
    most = max((sum(one.parts) for one in given), default=0) or 1
    width = 100 / max(len(given), 1)
    parts = [_text(0, 12, f"{most:,.0f}", "dim"), *_legend(series)]
    for number, one in enumerate(given):
        ground = float(LINE + height)
        for kind, part in enumerate(one.parts):
            tall = height * part / most
            ground -= tall
            tip = f"{one.name} {series[kind]}: {part:,.0f}"
            parts.append(
                _rect(number * width + width * 0.1, ground, width * 0.8, tall, f"s{kind % SERIES}", tip)
            )
    parts.append(_line((0, LINE + height), (100, LINE + height), "axis"))
    every = max(1, math.ceil(len(given) / 8))
    parts += [
        _text((at + 0.5) * width, LINE + height + 14, given[at].name, "dim", "middle")
        for at in range(0, len(given), every)
    ]
    return _svg(height + 2 * LINE, parts, about)


def curve(points: Sequence[tuple[float, float]], x_name: str, y_name: str, about: str) -> str:
    """Points above zero, ordered by x, on logarithmic scales."""
    height = 260
    left, right = _decades(x for x, _ in points)
    low, high = _decades(y for _, y in points)
    places = [
        (
            8 + 90 * (math.log10(x) - left) / (right - left),
            LINE + height * (high - math.log10(y)) / (high - low),
        )
        for x, y in points
    ]
    parts = _scales((left, right), (low, high), height)
    parts += [_line(one, other, "trace") for one, other in itertools.pairwise(places)]
    parts += [
        _circle(*place, 2.5, "s0", f"{x_name} {x:.3g}, {y_name} {y:,.0f}")
        for place, (x, y) in zip(places, points, strict=True)
    ]
    parts.append(_text(0, 12, y_name, "dim"))
    parts.append(_text(100, height + 2 * LINE + 14, x_name, "dim", "end"))
    return _svg(height + 3 * LINE, parts, about)


def graph(nodes: Sequence[Node], edges: Sequence[Edge], about: str, height: int = 420) -> str:
    """Nodes sized by weight, and their links."""

    def place(node: Node) -> tuple[float, float]:
        return 8 + 84 * node.x, 14 + (height - 34) * node.y

    parts = [
        _line(place(nodes[edge.source]), place(nodes[edge.target]), f"edge w{min(4, int(edge.weight * 5))}")
        for edge in edges
    ]
    for node in nodes:
        x, y = place(node)
        parts.append(_circle(x, y, 4 + 10 * node.size, "s0 node", node.name))
        parts.append(_text(x, y + 16 + 10 * node.size, node.name, "small", "middle"))
    return _svg(height, parts, about)


# --- Parts ---


def _decades(values: Iterable[float]) -> tuple[int, int]:
    """The enclosing powers of ten; at least one apart."""
    logs = [math.log10(value) for value in values] or [0.0]
    low = math.floor(min(logs))
    return low, max(low + 1, math.ceil(max(logs)))


def _scales(across: tuple[int, int], up: tuple[int, int], height: int) -> list[str]:
    parts = []
    for power in range(across[0], across[1] + 1):
        x = 8 + 90 * (power - across[0]) / (across[1] - across[0])
        parts += [
            _line((x, LINE), (x, LINE + height), "grid"),
            _text(x, LINE + height + 14, _power(power), "dim", "middle"),
        ]
    for power in range(up[0], up[1] + 1):
        y = LINE + height * (up[1] - power) / (up[1] - up[0])
        parts += [_line((8, y), (98, y), "grid"), _text(7, y + 4, _power(power), "dim", "end")]
    return parts


def _scale(top: float, marks: Sequence[tuple[str, str]]) -> list[str]:
    """The legend of a heat map."""
    squares = [_rect(BEHIND + 5 + step * 1.6, top, 1.5, 12, f"h{step}", "load") for step in range(STEPS)]
    end = BEHIND + 5 + STEPS * 1.6
    return [
        _text(BEHIND + 4.5, top + 11, "idle", "dim", "end"),
        *squares,
        _text(end + 0.5, top + 11, "busy", "dim"),
        *(
            part
            for x, (kind, words) in zip(MARKS, marks, strict=False)
            for part in (_rect(x, top, 1.5, 12, kind, words), _text(x + 2.5, top + 11, words, "dim"))
        ),
    ]


def _power(power: int) -> str:
    return f"{10**power:,}" if 0 <= power <= 4 else f"1e{power}"


def _legend(series: Sequence[str]) -> list[str]:
    """Right to left; empty for a single unnamed series."""
    parts, x = [], 100.0
    for kind in reversed(range(len(series))):
        if series[kind]:
            x -= 14
            parts.append(_rect(x, 3, 1.5, 10, f"s{kind % SERIES}", series[kind]))
            parts.append(_text(x + 2, 12, series[kind], "dim"))
    return parts


def _cell(x: float, top: float, width: float, row: HeatRow, at: int, hour: str, crossed: str) -> str:
    share = row.cells[at]
    if row.is_open and not row.is_open[at]:
        kind, tip = "closed", crossed
    elif share is None:
        kind, tip = "unknown", "unknown"
    else:
        kind, tip = f"h{min(STEPS - 1, int(share * STEPS))}", f"{share:.0%}"
    return _rect(x, top, width - 0.15, ROW - 2, f"cell {kind}", f"{row.name}, {hour}: {tip}")


def _svg(height: float, parts: Iterable[str], about: str) -> str:
    label = _safe(about)
    return (
        f'<svg class="picture" role="img" aria-label="{label}" width="100%" height="{height:g}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )


def _rect(x: float, y: float, width: float, height: float, kind: str, tip: str) -> str:
    place = f'x="{x:.2f}%" y="{y:.1f}" width="{max(width, 0):.2f}%" height="{max(height, 0):.1f}"'
    return f'<rect class="{kind}" {place} rx="2"><title>{_safe(tip)}</title></rect>'


def _circle(x: float, y: float, radius: float, kind: str, tip: str) -> str:
    return f'<circle class="{kind}" cx="{x:.2f}%" cy="{y:.1f}" r="{radius:.1f}"><title>{_safe(tip)}</title></circle>'


def _line(one: tuple[float, float], other: tuple[float, float], kind: str) -> str:
    return f'<line class="{kind}" x1="{one[0]:.2f}%" y1="{one[1]:.1f}" x2="{other[0]:.2f}%" y2="{other[1]:.1f}"/>'


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}">{_safe(words)}</text>'


def _clipped(x: float, top: float, width: float, words: str) -> str:
    """Cut to its width; complete in the tooltip."""
    return (
        f'<svg x="{x:.2f}%" y="{top:.1f}" width="{width:.2f}%" height="{ROW}">'
        f'<text x="0" y="14">{_safe(words)}</text><title>{_safe(words)}</title></svg>'
    )


def _safe(words: str) -> str:
    return escape(printable(words))


# --- Pictures of several views, drawn from crawler.views.figures ---


HOURS_OF_DAY = 24


def load_heat(found: dict[str, Any], most: int) -> Picture:
    """Sites by the next 24 hours, from figures.Loads."""
    shown = found["sites"][:most]
    hours = [f"{(found['hour'] + step) % HOURS_OF_DAY:02}h" for step in range(HOURS_OF_DAY)]
    rows = [HeatRow(host(one["site"]), one["load"], one["open"]) for one in shown]
    left = found["known"] - len(shown) if len(shown) > 1 else 0
    more = f", {left:,} less busy ones left out" if left else ""
    what = "Load" if len(shown) == 1 else f"Load of {len(shown):,} sites"
    title = f"{what} in the next 24 hours (UTC){more}"
    return Picture(title, heat(rows, hours, title), wide=True)


def pace_columns(found: Sequence[dict[str, Any]], title: str, most: int = 48) -> Picture:
    """The last `most` hours of figures.pages_per_hour, not empty."""
    schedulers = sorted({one["scheduler"] for one in found})
    by_hour: dict[int, dict[str, int]] = {}
    for one in found:
        by_hour.setdefault(one["hour"], {})[one["scheduler"]] = one["pages"]
    first, last = min(by_hour), max(by_hour)
    given = [
        Column(f"{hour % HOURS_OF_DAY:02}h", [by_hour.get(hour, {}).get(name, 0) for name in schedulers])
        for hour in range(max(min(first, last - HOURS_OF_DAY + 1), last - most + 1), last + 1)
    ]
    return Picture(title, columns(given, schedulers, title))


def host(site: str) -> str:
    """A site's name without its scheme."""
    return site.partition("://")[2] or site
