"""A figure as a person reads it: a status, bytes, a span of time. Pure, and quick to import at a crawl's end."""

from __future__ import annotations

from crawler.records import STATUS_WORDS


def status_word(status: int) -> str:
    """A status as a person reads it."""
    return STATUS_WORDS.get(status, str(status))


def size_word(number: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number = number / 1000
    return f"{number:.1f} TB"


def time_word(seconds: float) -> str:
    """A span as a person reads it: two units at most."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    units = (("d", 86_400), ("h", 3_600), ("min", 60))
    at = next(number for number, (_, size) in enumerate(units) if seconds >= size)
    name, size = units[at]
    whole, rest = divmod(int(seconds), size)
    below = units[at + 1] if at + 1 < len(units) else ("s", 1)
    return f"{whole} {name} {rest // below[1]} {below[0]}" if rest // below[1] else f"{whole} {name}"
