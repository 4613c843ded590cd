"""Formats of statuses, bytes and durations."""

from __future__ import annotations

from crawler.records import STATUS_WORDS


def status_word(status: int) -> str:
    """A status as text."""
    return STATUS_WORDS.get(status, str(status))


def size_word(number: float) -> str:
    """Bytes as text."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number = number / 1000
    return f"{number:.1f} TB"


def time_word(seconds: float) -> str:
    """At most two units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    units = (("d", 86_400), ("h", 3_600), ("min", 60))
    at = next(number for number, (_, size) in enumerate(units) if seconds >= size)
    name, size = units[at]
    whole, rest = divmod(int(seconds), size)
    below = units[at + 1] if at + 1 < len(units) else ("s", 1)
    return f"{whole} {name} {rest // below[1]} {below[0]}" if rest // below[1] else f"{whole} {name}"
