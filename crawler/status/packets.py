r"""Paper 002's packets: what a foreign crawler sends about one domain's status, read from bytes and written to bytes.

One packet is one line of fields, without a line's end:

    00000070||7||1042||200||20261118120000||url=https://example.org/a\|\|b

    length    8 digits: bytes of the whole packet, these included
    crawler   number of the crawler that sends, 0 to 999999999999999999
    code      number of the domain in that crawler's own list, likewise
    status    what the domain answered: 100 to 599; -1 to -14 where no answer came (crawler.fetch.errors)
    time      when it did: YYYYMMDDhhmmss, or YYYY-MM-DDThh:mm:ss with or without a fraction and an offset (Z, +09:00);
              without one, of the offset that the reader was told
    …         further fields, as many as there is room for

Text is UTF-8, `||` stands between two fields. Within a field `\|` means | and `\\` means \; any other \ is refused,
a | that stands alone is itself. Of the further fields these mean something here, each once at most:

    url=URL            the page that was asked
    run=NAME, seq=N    the packet's number in a series of the sender's; both or none
    latency_ms=N       until the answer's head

and all others are kept as they came, in their order. Two packets with the same bytes are one and the same check.

Pure: no sockets, no clock. Whatever comes, nothing but PacketError is raised, and no more bytes are held than the
packet's limit and what was brought last. What is not to be understood with certainty is refused, never guessed at.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from crawler.records import Check
from crawler.urls.url import UrlError, split_page

# Why a packet is refused; counts go by these.
Fault = Literal[
    "length",  # its first bytes are no length
    "short",  # the length is below that of any packet
    "long",  # or above the limit
    "cut",  # fewer bytes came than the length says
    "trailing",  # more came, where a connection carries one packet
    "text",  # no UTF-8
    "escape",
    "fields",  # fewer than the five
    "crawler",
    "code",
    "status",
    "time",  # no time, or none that exists
    "ahead",  # a time still to come
    "named",  # a further field with a name, and a value that is not to be used
]

DIGITS: Final = 8
SEPARATOR: Final = "||"
# Of the shortest packet there is: every number one digit, a status below 0 no longer than one above.
LEAST_BYTES: Final = len("00000000||0||0||-1||20261118120000")
# A limit below this would refuse what the paper's crawlers send, one above what eight digits cannot say.
MOST_BYTES: Final = 10**DIGITS - 1
STATUSES: Final = frozenset((*range(100, 600), *range(-14, 0)))
# How far a sender's clock may be ahead of ours.
AHEAD_MS: Final = 5 * 60_000
# Names of runs stand in a key of the tables.
RUN_LETTERS: Final = 64
LONGEST_LATENCY_MS: Final = 2**31 - 1

_HEAD = DIGITS + len(SEPARATOR)
_ANSWERED = ("crawler", "code", "status", "time")
_PIECE = re.compile(r"\\(?P<escaped>.?)|(?P<end>\|\|)|(?P<plain>[^\\|]+|\|)", re.DOTALL)
_TIME = re.compile(
    r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)"
    r"|(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(Z|[+-]\d\d:\d\d)?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What came is shown in a message up to this many characters.
_SHOWN = 80


class PacketError(ValueError):
    """What is no packet: `fault` to count by; the text says what came and what is expected."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault: Fault = fault


class Refusal(NamedTuple):
    """What one connection sent that is not to be used, and why."""

    fault: Fault
    why: str
    packet: bytes  # as far as it came, up to the limit


def offset(text: str) -> timezone:
    """The offset from UTC that `+09:00` names; ValueError for what names none."""
    found = re.fullmatch(r"([+-])(\d\d):([0-5]\d)", text, re.ASCII)
    if not found or int(found[2]) > 14:
        raise ValueError(f"{text!r} is no offset from UTC; expected one as +09:00")
    span = timedelta(hours=int(found[2]), minutes=int(found[3]))
    return timezone(-span if found[1] == "-" else span)


class Frames:
    """Cuts what one connection sends into packets.

    Where it carries `several`, each is given as soon as its last byte is there. Where it carries one, that is given at
    the connection's end, for bytes may follow that do not belong there. A length that is none ends all: `broken`.
    """

    def __init__(self, limit: int, *, several: bool) -> None:
        self.broken = False
        self._limit = limit
        self._several = several
        self._held = bytearray()

    @property
    def begun(self) -> int:
        """Bytes of a packet that is not given yet."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes | Refusal]:
        """What is whole now, and at most one refusal behind it."""
        if self.broken:
            return []
        self._held += data
        found: list[bytes | Refusal] = []
        start = 0
        try:
            while self._several and (end := self._end_of_packet(start)):
                found.append(bytes(self._held[start:end]))
                start = end
            if not self._several:
                self._check_alone()
        except PacketError as error:
            found.append(self._break(error, start))
        else:
            del self._held[:start]
        return found

    def end(self, how: str = "the connection ended") -> list[bytes | Refusal]:
        """The connection brings no more, for the reason that `how` tells: the one packet, or what is cut short."""
        if self.broken or not self._held:
            return []
        length = self._length(0)
        if length == len(self._held):
            packet = bytes(self._held)
            self._held.clear()
            return [packet]
        wanted = f"{length} bytes" if length else f"a length of {DIGITS} digits"
        error = PacketError("cut", f"{how} after {len(self._held)} bytes; expected {wanted}")
        return [self._break(error, 0)]

    def _end_of_packet(self, start: int) -> int:
        """Where the packet ends that begins at `start`; 0: not here yet."""
        end = start + self._length(start)
        return end if start < end <= len(self._held) else 0

    def _check_alone(self) -> None:
        length = self._length(0)
        if length and len(self._held) > length:
            came = f"{len(self._held)} bytes or more"
            raise PacketError(
                "trailing", f"{came} came in a packet of {length}; expected one packet a connection"
            )

    def _length(self, start: int) -> int:
        """What the packet's first field says; 0: it is not whole yet."""
        head = bytes(self._held[start : start + _HEAD])
        digits, rest = head[:DIGITS], head[DIGITS:]
        if (digits and not digits.isdigit()) or rest != b"||"[: len(rest)]:
            raise PacketError("length", f"a packet begins with {head!r}; expected {DIGITS} digits and ||")
        if len(head) < _HEAD:
            return 0
        length = int(digits)
        if length < LEAST_BYTES:
            raise PacketError("short", f"length is {length}; expected {LEAST_BYTES} bytes or more")
        if length > self._limit:
            raise PacketError("long", f"length is {length}; expected {self._limit} bytes at most")
        return length

    def _break(self, error: PacketError, start: int) -> Refusal:
        packet = bytes(self._held[start : start + self._limit])
        self.broken = True
        self._held.clear()
        return Refusal(error.fault, str(error), packet)


def decode(packet: bytes, now_ms: int, zone: timezone) -> Check:
    """The check that a whole packet tells of; PacketError where it is none. `zone` is that of times without one."""
    fields = fields_of(packet)
    if len(fields) < len(_ANSWERED):
        missing = ", ".join(_ANSWERED[len(fields) :])
        raise PacketError("fields", f"{len(fields) + 1} fields came; expected {missing} behind them")
    check = Check(
        crawler=_whole(fields[0], "crawler"),
        code=_whole(fields[1], "code"),
        status=_status(fields[2]),
        checked_at=_time(fields[3], now_ms, zone),
        digest=blake2b(packet, digest_size=16).hexdigest(),
    )
    check.agent = f"packets-{check.crawler}"
    _take_further(check, fields[len(_ANSWERED) :])
    return check


def fields_of(packet: bytes) -> list[str]:
    """A packet's fields behind the length, unescaped; PacketError where it is no text, or has an unknown escape."""
    try:
        text = packet[_HEAD:].decode()
    except UnicodeDecodeError as error:
        raise PacketError("text", f"byte {error.start + _HEAD} is no UTF-8 ({error.reason})") from None
    return text.split(SEPARATOR) if "\\" not in text else _unescaped(text)


def join(fields: Iterable[str]) -> bytes:
    """The packet with these fields behind the length; the inverse of `fields_of`. ValueError for one too long."""
    text = SEPARATOR.join(field.replace("\\", "\\\\").replace("|", "\\|") for field in fields)
    behind = (SEPARATOR + text).encode()
    length = DIGITS + len(behind)
    if length > MOST_BYTES:
        raise ValueError(f"a packet of {length} bytes; expected {MOST_BYTES} at most")
    return b"%0*d" % (DIGITS, length) + behind


def _unescaped(text: str) -> list[str]:
    fields: list[list[str]] = [[]]
    for piece in _PIECE.finditer(text):
        if piece.lastgroup == "end":
            fields.append([])
        elif piece.lastgroup == "plain":
            fields[-1].append(piece["plain"])
        elif piece["escaped"] in ("\\", "|"):
            fields[-1].append(piece["escaped"])
        else:
            raise PacketError(
                "escape", f"{piece[0]!r} in {_shown(text[piece.start() :])}; expected \\| or \\\\"
            )
    return ["".join(pieces) for pieces in fields]


def _whole(text: str, name: Literal["crawler", "code"]) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise PacketError(name, f"{name} is {_shown(text)}; expected a whole number of 18 digits at most")
    return int(text)


def _status(text: str) -> int:
    if not re.fullmatch("-?[0-9]{1,3}", text) or int(text) not in STATUSES:
        raise PacketError("status", f"status is {_shown(text)}; expected 100 to 599, or -14 to -1")
    return int(text)


def _time(text: str, now_ms: int, zone: timezone) -> int:
    """Milliseconds since 1970."""
    found = _TIME.fullmatch(text)
    try:
        at = (_moment(found.groups(), zone) - _EPOCH) // timedelta(milliseconds=1) if found else None
    except ValueError:
        at = None
    if at is None:
        raise PacketError("time", f"time is {_shown(text)}; expected YYYYMMDDhhmmss or YYYY-MM-DDThh:mm:ssZ")
    if at > now_ms + AHEAD_MS:
        ahead = (at - now_ms) // 1000
        raise PacketError(
            "ahead", f"time is {_shown(text)}, {ahead} s ahead; expected {AHEAD_MS // 1000} s at most"
        )
    return at


def _moment(parts: tuple[str | None, ...], zone: timezone) -> datetime:
    compact, (*written, fraction, zone_text) = parts[:6], parts[6:]
    numbers = [int(part) for part in (compact if compact[0] else written) if part]
    micro = int((fraction or "").ljust(6, "0"))
    if zone_text:
        zone = UTC if zone_text == "Z" else offset(zone_text)
    year, month, day, hour, minute, second = numbers
    return datetime(year, month, day, hour, minute, second, micro, zone)


def _take_further(check: Check, fields: list[str]) -> None:
    """The named fields into the check, the others into its `more`."""
    seen: set[str] = set()
    for field in fields:
        name, named, value = field.partition("=")
        if not named or name not in _NAMED:
            check.more.append(field)
            continue
        if name in seen:
            raise PacketError("named", f"{name} came twice; expected it once")
        seen.add(name)
        for part, read in _NAMED[name](value).items():
            setattr(check, part, read)
    if len(seen & {"run", "seq"}) == 1:
        raise PacketError(
            "named", f"{(seen & {'run', 'seq'}).pop()} came alone; expected run and seq together"
        )


def _url(text: str) -> dict[str, str]:
    try:
        site, path = split_page(text)
    except UrlError as error:
        raise PacketError("named", f"url is no URL of the web: {error}") from None
    return {"site": site, "path": path}


def _run(text: str) -> dict[str, str]:
    if not 1 <= len(text) <= RUN_LETTERS or not text.isprintable():
        raise PacketError("named", f"run is {_shown(text)}; expected 1 to {RUN_LETTERS} letters")
    return {"run": text}


def _number(name: str, most: int) -> Callable[[str], dict[str, int]]:
    def read(text: str) -> dict[str, int]:
        if not re.fullmatch("[0-9]{1,19}", text) or int(text) > most:
            raise PacketError("named", f"{name} is {_shown(text)}; expected a whole number up to {most}")
        return {name: int(text)}

    return read


# Name of a further field -> what it is in a check.
_NAMED: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "url": _url,
    "run": _run,
    "seq": _number("seq", 2**63 - 1),
    "latency_ms": _number("latency_ms", LONGEST_LATENCY_MS),
}


def _shown(text: str) -> str:
    return repr(text[:_SHOWN])


# ------------------------------------------------------------------------------------------------------------
# Sends packets to `scrapy listen`, as a crawler of paper 002 would: a class for programs, and a command for shells.
#
# python -m crawler.status.packets [options] FILE|-
#
# The file has one packet a line, its fields separated by spaces: `1 42 200 20261118120000 url=https://example.org/`.
# Where the listener acknowledges, every packet is sent until it is answered, over as many connections as it takes: so
# none is lost, and none is stored twice, since the same bytes are sent again. Without acknowledgements a packet
# counts as sent when the kernel has it, and what a crash costs then nobody knows.
#
# Blocks. OSError where nothing was answered, or nobody reached, for `seconds`.


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
        prog="python -m crawler.status.packets", description="Send packets to scrapy listen."
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
