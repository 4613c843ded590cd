"""Strangers' words made fit to be shown: titles, URLs, header values and what servers say in errors.

In a log or a terminal they could make lines of their own, order the terminal about, or turn the text around. What does
so is written as its escape. Databases, JSON and the results stream carry the words as they are: who shows them calls
this. Takes any text.
"""

from __future__ import annotations

import logging
import re
from typing import Any

# Controls, line ends and orders of direction that no text on one line needs; halves of characters cannot be printed.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
# The same where several lines are meant, as in a traceback.
_UNFIT_IN_LINES = re.compile(rf"(?![\n\t]){_UNFIT.pattern}")


def printable(words: str) -> str:
    """The words on one line, with nothing in them that a terminal would obey."""
    return words if words.isprintable() else _UNFIT.sub(_escape, words)


def printable_lines(words: str) -> str:
    """The same for a text of several lines."""
    return words if words.isprintable() else _UNFIT_IN_LINES.sub(_escape, words)


def guard_log() -> None:
    """Make every log record of this process printable from now on, whoever makes it."""
    logging.setLogRecordFactory(_Record)


class _Record(logging.LogRecord):
    """What is filled into a message begins no line; only who wrote the message does."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if self.exc_info and self.exc_info[0]:
            self.exc_text = printable_lines(logging.Formatter().formatException(self.exc_info))

    def getMessage(self) -> str:  # noqa: N802  # the library's name
        """The message as handlers get it."""
        words = super().getMessage()
        return printable_lines(words) if "\n" in str(self.msg) else printable(words)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")
