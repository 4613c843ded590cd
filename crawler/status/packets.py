r"""Paper 002's packets: the status of one domain, as sent by other crawlers. Pure; raises PacketError only.

A packet is one line of fields without a line end:
    00000070||7||1042||200||20261118120000||url=https://example.org/a\|\|b

    length    8 digits: bytes of the whole packet
    crawler   number of the sending crawler, 0 to 999999999999999999
    code      number of the domain in that crawler's list, likewise
    status    100 to 599; -1 to -14 without an answer (crawler.fetch.errors)
    time      YYYYMMDDhhmmss, or YYYY-MM-DDThh:mm:ss, optionally with a fraction and an offset (Z, +09:00)
    …         further fields

UTF-8; `||` separates fields; `\|` is | and `\\` is \ within a field. Known further fields, each at most once:

    url=URL            the checked page
    run=NAME, seq=N    series and number of the packet; both or none
    latency_ms=N       time to the response headers

Other fields are kept in order. Equal bytes are the same check. Ambiguous input is refused.
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

# Why a packet is refused; the listener counts by these.
Fault = Literal[
    "length",  # the first bytes are not a length
    "short",  # length below LEAST_BYTES
    "long",  # length above the limit
    "cut",  # fewer bytes than the length
    "trailing",  # more bytes, with one packet per connection
    "text",  # not UTF-8
    "escape",
    "fields",  # fewer than five
    "crawler",
    "code",
    "status",
    "time",  # not a valid time
    "ahead",  # in the future
    "named",  # invalid value of a known further field
]

DIGITS: Final = 8
SEPARATOR: Final = "||"
# Shortest packet: one digit per number.
LEAST_BYTES: Final = len("00000000||0||0||-1||20261118120000")
# Range of limits: paper's packets must fit, and the length has eight digits.
MOST_BYTES: Final = 10**DIGITS - 1
STATUSES: Final = frozenset((*range(100, 600), *range(-14, 0)))
# How far a sender's clock may be ahead.
AHEAD_MS: Final = 5 * 60_000
# Run names are part of a key in the tables.
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
# Characters of input shown in messages.
_SHOWN = 80


class PacketError(ValueError):
    """An invalid packet: `fault` is the reason to count; the text says what is expected."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault: Fault = fault


class Refusal(NamedTuple):
    """A refused packet, and why."""

    fault: Fault
    why: str
    packet: bytes  # received bytes, up to the limit


def offset(text: str) -> timezone:
    """The UTC offset, such as `+09:00`. Raises ValueError for other text."""
    found = re.fullmatch(r"([+-])(\d\d):([0-5]\d)", text, re.ASCII)
    if not found or int(found[2]) > 14:
        raise ValueError(f"{text!r} is not an offset from UTC; expected one such as +09:00")
    span = timedelta(hours=int(found[2]), minutes=int(found[3]))
    return timezone(-span if found[1] == "-" else span)


class Frames:
    """Cuts a connection's bytes into packets.

    With `several`, a packet is returned with its last byte; otherwise at the end of the connection, after which extra
    bytes are refused. An invalid length sets `broken`.
    """

    def __init__(self, limit: int, *, several: bool) -> None:
        self.broken = False
        self._limit = limit
        self._several = several
        self._held = bytearray()

    @property
    def begun(self) -> int:
        """Bytes of the incomplete packet."""
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes | Refusal]:
        """Complete packets, then at most one refusal."""
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
        """Ends the input, for the reason `how`; returns the single packet, or a refusal of an incomplete one."""
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
        """End of the packet that begins at `start`; 0: incomplete."""
        end = start + self._length(start)
        return end if start < end <= len(self._held) else 0

    def _check_alone(self) -> None:
        length = self._length(0)
        if length and len(self._held) > length:
            many = f"{len(self._held)} bytes or more"
            raise PacketError(
                "trailing", f"{many} for a packet of {length}; expected one packet per connection"
            )

    def _length(self, start: int) -> int:
        """The packet's length field; 0: incomplete."""
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
    """The check in a whole packet; `zone` is for times without an offset. Raises PacketError."""
    fields = fields_of(packet)
    if len(fields) < len(_ANSWERED):
        missing = ", ".join(_ANSWERED[len(fields) :])
        raise PacketError("fields", f"{len(fields) + 1} fields; expected also {missing}")
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
    """A packet's fields after the length, unescaped. Raises PacketError for invalid UTF-8 and escapes."""
    try:
        text = packet[_HEAD:].decode()
    except UnicodeDecodeError as error:
        raise PacketError("text", f"byte {error.start + _HEAD} is not UTF-8 ({error.reason})") from None
    return text.split(SEPARATOR) if "\\" not in text else _unescaped(text)


def join(fields: Iterable[str]) -> bytes:
    """A packet of these fields; the inverse of `fields_of`. Raises ValueError if it is too long."""
    text = SEPARATOR.join(field.replace("\\", "\\\\").replace("|", "\\|") for field in fields)
    behind = (SEPARATOR + text).encode()
    length = DIGITS + len(behind)
    if length > MOST_BYTES:
        raise ValueError(f"a packet of {length} bytes; expected at most {MOST_BYTES}")
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
        raise PacketError(name, f"{name} is {_shown(text)}; expected an integer of at most 18 digits")
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
            "ahead", f"time is {_shown(text)}, {ahead} s ahead; expected at most {AHEAD_MS // 1000} s"
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
    """Known fields go to the check's attributes, others to `more`."""
    seen: set[str] = set()
    for field in fields:
        name, named, value = field.partition("=")
        if not named or name not in _NAMED:
            check.more.append(field)
            continue
        if name in seen:
            raise PacketError("named", f"{name} is given twice; expected once")
        seen.add(name)
        for part, read in _NAMED[name](value).items():
            setattr(check, part, read)
    if len(seen & {"run", "seq"}) == 1:
        raise PacketError(
            "named", f"{(seen & {'run', 'seq'}).pop()} is given alone; expected run and seq together"
        )


def _url(text: str) -> dict[str, str]:
    try:
        site, path = split_page(text)
    except UrlError as error:
        raise PacketError("named", f"url is not a web URL: {error}") from None
    return {"site": site, "path": path}


def _run(text: str) -> dict[str, str]:
    if not 1 <= len(text) <= RUN_LETTERS or not text.isprintable():
        raise PacketError("named", f"run is {_shown(text)}; expected 1 to {RUN_LETTERS} letters")
    return {"run": text}


def _number(name: str, most: int) -> Callable[[str], dict[str, int]]:
    def read(text: str) -> dict[str, int]:
        if not re.fullmatch("[0-9]{1,19}", text) or int(text) > most:
            raise PacketError("named", f"{name} is {_shown(text)}; expected an integer up to {most}")
        return {name: int(text)}

    return read


# Name of a further field -> its attributes in a check.
_NAMED: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    "url": _url,
    "run": _run,
    "seq": _number("seq", 2**63 - 1),
    "latency_ms": _number("latency_ms", LONGEST_LATENCY_MS),
}


def _shown(text: str) -> str:
    return repr(text[:_SHOWN])


# --- Client: sends packets to `scrapy listen` ---
# python -m crawler.status.packets [options] FILE|-
# FILE has one packet a line, fields separated by spaces: `1 42 200 20261118120000 url=https://example.org/`. With
# acknowledgements each packet is sent until it is answered, and stored once; otherwise it counts as sent once the
# kernel has it. Blocking. Raises OSError after `seconds` without an answer or connection.


# Unanswered packets on a connection.
WINDOW = 200
PAUSE_SECONDS = 0.1
READ_BYTES = 65_536


class Client:
    """A sender. `acknowledged`, `several`: as the listener's LISTEN_ACKNOWLEDGE and LISTEN_SEVERAL."""

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
        """Sends all packets; returns the refusal of each, empty if it was stored or replies are off."""
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
        """Closes the connection; `send` opens a new one."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _exchange(self, packets: Sequence[bytes]) -> list[str]:
        """Replies to at least the first packet; to all of them if replies are off."""
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
        """Reply lines until there are enough or the connection ends. Raises OSError if there are none."""
        reply = b""
        while reply.count(b"\n") < wanted and (more := line.recv(READ_BYTES)):
            reply += more
        lines = reply.decode(errors="replace").split("\n")[:-1]
        if not lines:
            raise ConnectionResetError("the listener closed the connection without a reply")
        return [answer.removeprefix("NO ") if answer != "OK" else "" for answer in lines]


def packets_of(lines: Iterable[str], run: str = "") -> Iterator[bytes]:
    """A packet for each non-blank line; numbered if `run` is given."""
    number = 0
    for line in lines:
        if fields := line.split():
            number += 1
            yield join([*fields, *([f"run={run}", f"seq={number}"] if run else [])])


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 0: all stored or sent; 1: a packet was refused or the listener did not answer."""
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
    parser.add_argument("file", metavar="FILE|-", help="one packet a line, fields separated by spaces")
    parser.add_argument("--address", default="127.0.0.1", help="address of the listener (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=7002, help="port of the listener (default 7002)")
    parser.add_argument(
        "--acknowledged", action="store_true", help="the listener acknowledges (LISTEN_ACKNOWLEDGE)"
    )
    parser.add_argument(
        "--several", action="store_true", help="several packets per connection (LISTEN_SEVERAL)"
    )
    parser.add_argument(
        "--run", default="", metavar="NAME", help="number the packets, as a series of this name"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to try (default 30)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
