"""Makes foreign text (titles, URLs, headers, server errors) safe for logs and terminals.

Escapes control characters and direction marks. Stored values keep the original: call this on output.
"""

from __future__ import annotations

import logging
import re
from typing import Any

# Controls, line ends and direction marks, which one line does not need, and surrogates, which cannot be printed.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
# The same for texts of several lines, such as tracebacks.
_UNFIT_IN_LINES = re.compile(rf"(?![\n\t]){_UNFIT.pattern}")


def printable(words: str) -> str:
    """As one line."""
    return words if words.isprintable() else _UNFIT.sub(_escape, words)


def printable_lines(words: str) -> str:
    """As several lines."""
    return words if words.isprintable() else _UNFIT_IN_LINES.sub(_escape, words)


def guard_log() -> None:
    """Make every later log record of this process printable."""
    logging.setLogRecordFactory(_Record)


class _Record(logging.LogRecord):
    """Escapes line ends in arguments; those of the message stay."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if self.exc_info and self.exc_info[0]:
            self.exc_text = printable_lines(logging.Formatter().formatException(self.exc_info))

    def getMessage(self) -> str:  # noqa: N802  # the library's name
        """The message for handlers."""
        words = super().getMessage()
        return printable_lines(words) if "\n" in str(self.msg) else printable(words)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")
