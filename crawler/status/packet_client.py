"""Sends packets to `scrapy listen`, as a crawler of paper 002 would: a class for programs, and a command for shells.

    python -m crawler.status.packet_client [options] FILE|-

The file has one packet a line, its fields separated by spaces: `1 42 200 20261118120000 url=https://example.org/`.
Where the listener acknowledges, every packet is sent until it is answered, over as many connections as it takes: so
none is lost, and none is stored twice, since the same bytes are sent again. Without acknowledgements a packet counts as
sent when the kernel has it, and what a crash costs then nobody knows.

Blocks. OSError where nothing was answered, or nobody reached, for `seconds`.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from crawler.status.packets import PacketError, join

# Packets on their way at a time, where a connection carries several.
WINDOW = 200
PAUSE_SECONDS = 0.1
READ_BYTES = 65_536


class Client:
    """One sender. `acknowledged` and `several` say what the listener's LISTEN_ACKNOWLEDGE and LISTEN_SEVERAL are."""

    def __init__(
        self,
        address: str,
        port: int,
        *,
        acknowledged: bool = False,
        several: bool = False,
        seconds: float = 30.0,
    ) -> None:
        self._place = (address, port)
        self._acknowledged = acknowledged
        self._several = several
        self._seconds = seconds
        self._line: socket.socket | None = None

    def send(self, packets: Sequence[bytes]) -> list[str]:
        """What the listener said of each, in order: why it was refused; empty where it was taken, or says nothing."""
        answers: list[str] = []
        deadline = time.monotonic() + self._seconds
        while len(answers) < len(packets):
            most = WINDOW if self._several else 1
            try:
                answers += self._exchange(packets[len(answers) : len(answers) + most])
                deadline = time.monotonic() + self._seconds
            except OSError:
                self.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
        return answers

    def close(self) -> None:
        """Ends the connection; the next `send` makes another."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _exchange(self, packets: Sequence[bytes]) -> list[str]:
        """Answers to the first of these, one at least; to all of them where none are given."""
        if self._line is None:
            self._line = socket.create_connection(self._place, timeout=self._seconds)
        self._line.sendall(b"".join(packets))
        if not self._several:
            self._line.shutdown(socket.SHUT_WR)
        answers = self._answers(self._line, len(packets)) if self._acknowledged else [""] * len(packets)
        if not self._several or len(answers) < len(packets):
            self.close()
        return answers

    @staticmethod
    def _answers(line: socket.socket, wanted: int) -> list[str]:
        """The lines that come until there are as many, or the connection ends; OSError where none came."""
        said = b""
        while said.count(b"\n") < wanted and (more := line.recv(READ_BYTES)):
            said += more
        lines = said.decode(errors="replace").split("\n")[:-1]
        if not lines:
            raise ConnectionResetError("the listener ended the connection and answered nothing")
        return [answer.removeprefix("NO ") if answer != "OK" else "" for answer in lines]


def packets_of(lines: Iterable[str], run: str = "") -> Iterator[bytes]:
    """A packet of each line that is not blank; numbered where a `run` is named."""
    number = 0
    for line in lines:
        if fields := line.split():
            number += 1
            yield join([*fields, *([f"run={run}", f"seq={number}"] if run else [])])


def main(words: Sequence[str] | None = None) -> int:
    """The command: 0 where all was taken, or sent; 1 where anything was refused, or nobody answered."""
    given = _parser().parse_args(words)
    client = Client(
        given.address,
        given.port,
        acknowledged=given.acknowledged,
        several=given.several,
        seconds=given.seconds,
    )
    sent = refused = 0
    try:
        with ExitStack() as stack:
            stack.callback(client.close)
            file = (
                sys.stdin
                if given.file == "-"
                else stack.enter_context(Path(given.file).open(encoding="utf-8"))
            )
            packets = packets_of(file, given.run)
            while window := list(islice(packets, WINDOW)):
                answers = client.send(window)
                sent += len(answers)
                refused += sum(map(bool, answers))
                for answer in filter(None, answers):
                    print(f"refused: {answer}", file=sys.stderr)
    except (OSError, PacketError, UnicodeError) as error:
        print(f"{sent} packets sent, {refused} refused, then: {error}", file=sys.stderr)
        return 1
    print(f"{sent} packets sent, {refused} refused")
    return 1 if refused else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m crawler.status.packet_client", description="Send packets to scrapy listen."
    )
    parser.add_argument("file", metavar="FILE|-", help="one packet a line, its fields separated by spaces")
    parser.add_argument("--address", default="127.0.0.1", help="where it listens (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=7002, help="and at which port (default 7002)")
    parser.add_argument("--acknowledged", action="store_true", help="it answers (LISTEN_ACKNOWLEDGE)")
    parser.add_argument(
        "--several", action="store_true", help="a connection carries several (LISTEN_SEVERAL)"
    )
    parser.add_argument(
        "--run", default="", metavar="NAME", help="number the packets, in a series of this name"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to try (default 30)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
