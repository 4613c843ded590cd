"""Runs a command in a pseudo-terminal of a given size, as a person would, and keeps what the screen was sent."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

# One order with its number and letter, or one character.
_PIECES = re.compile(r"\x1b\[(\?)?([0-9;]*)([A-Za-z])|(\x1b.)|(.)", re.DOTALL)
_ORDERS = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")


class Terminal:
    """A command in a terminal of its own; a context manager that leaves nothing running."""

    def __init__(
        self, command: Sequence[str], env: dict[str, str], cwd: Path, columns: int, lines: int = 40
    ) -> None:
        self._sent = bytearray()
        self._columns = columns
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            os.chdir(cwd)
            os.execvpe(command[0], list(command), {**env, "TERM": "xterm-256color"})
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._code: int | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        self._reader.join(10)
        os.close(self._master)

    @property
    def raw(self) -> str:
        """All that was sent, orders to the terminal with it."""
        return self._sent.decode(errors="replace")

    @property
    def text(self) -> str:
        """All that was sent, without orders."""
        return _ORDERS.sub("", self.raw).replace("\r", "")

    @property
    def frames(self) -> list[str]:
        """What was drawn from the upper left corner on, each time anew; for views that take the whole screen."""
        return [_ORDERS.sub("", part).replace("\r", "") for part in self.raw.split("\x1b[H")[1:]]

    @property
    def screen(self) -> list[str]:
        """What a person sees in the end who scrolls back to the beginning; for what does not take the whole screen."""
        return displayed(self.raw, self._columns)

    def type(self, keys: str) -> None:
        """As from the keyboard."""
        os.write(self._master, keys.encode())

    def signal(self, number: int) -> None:
        """To the command itself, not to what it has started."""
        os.kill(self._pid, number)

    def shows(self, words: str, seconds: float = 30.0) -> None:
        """Wait until these words were sent."""
        deadline = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < deadline, f"never showed {words!r}:\n{self.text[-3000:]}"
            time.sleep(0.02)

    def wait(self, seconds: float = 60.0) -> int:
        """The exit code at the end; fails after the deadline."""
        deadline = time.monotonic() + seconds
        while self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
                break
            assert time.monotonic() < deadline, f"still runs:\n{self.text[-3000:]}"
            time.sleep(0.02)
        self._reader.join(10)
        return self._code

    def _read(self) -> None:
        with suppress(OSError):  # the terminal's other end is gone
            while chunk := os.read(self._master, 65_536):
                self._sent += chunk


def displayed(sent: str, columns: int) -> list[str]:
    """The lines of a terminal without end, by the few orders that a view below a log needs."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for private, number, letter, _other, character in _PIECES.findall(sent):
        many = int(number) if number.isdigit() else 1
        if letter == "A" and not private:
            row = max(0, row - many)
        elif letter == "K":
            lines[row] = []
        elif letter == "J":
            del lines[row + 1 :]
        elif character == "\r":
            column = 0
        elif character == "\n" or (character and column == columns):
            row, column = row + 1, 0
            lines += [[] for _ in range(row + 1 - len(lines))]
        if character and character >= " ":
            lines[row] += [" "] * (column + 1 - len(lines[row]))
            lines[row][column] = character
            column += 1
    return ["".join(line).rstrip() for line in lines]
