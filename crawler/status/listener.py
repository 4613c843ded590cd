"""Receives paper 002's packets over TCP into the results stream (`scrapy listen`).

Valid packets become Check records, others dead letters. A packet is acknowledged once the stream has it, or with
LISTEN_ACKNOWLEDGE "disk" once it is on the server's disk; a packet sent twice is stored once. Memory is bounded by
LISTEN_SPOOL_BYTES and LISTEN_CONNECTIONS; connections above the limit wait in the kernel. Raises OptionError.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from crawler import records
from crawler.options import OptionError
from crawler.queue import connection
from crawler.queue.results import results_key
from crawler.status.packets import Fault, Frames, PacketError, Refusal, decode, offset

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from crawler.options import Options


# --- The spool: bounded buffer in front of the results stream ---
# One task sends entries in order, in pipelines. Entries wait while Redis is unreachable or the stream holds
# `most_records`. A lost reply duplicates entries in the stream. Unsent entries are lost with the process. `open` is
# cleared when the stream is too long or `most_bytes` wait, and set again at half of both.


logger = logging.getLogger("listener")

Fields = dict[bytes, bytes]

# Entries per pipeline: more gain nothing without `to_disk`, and block the server for others.
CALL_ENTRIES = 200
CALL_ENTRIES_TO_DISK = 5_000
# Timeout of WAITAOF; then the entries are sent again. Must be below the reply timeout.
DISK_SECONDS = 5
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
# How often the length of a too long stream is checked.
LOOK_SECONDS = 0.2
# Memory of an entry besides its bytes.
ENTRY_BYTES = 500


class _Waiting(NamedTuple):
    fields: Fields
    size: int
    parcel: _Parcel


class _Parcel:
    """Entries put together; `sent` is done when the stream has all of them."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def arrived(self) -> None:
        """Counts one entry as stored."""
        self.left -= 1
        if not self.left and not self.sent.done():
            self.sent.set_result(None)


class Spool:
    """One process's entries. Run `work` as a task; at the end call `end` and await it."""

    def __init__(
        self, client: Redis, prefix: str, *, most_bytes: int, most_records: int, to_disk: bool = False
    ) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.sent = 0  # entries in the stream
        self._client: Any = client
        self._key = results_key(prefix)
        self._most_bytes = most_bytes
        self._most_records = most_records
        self._to_disk = to_disk
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._too_long = False  # the stream is too long
        self._away = False
        self._ending = False
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, entries: Sequence[Fields]) -> asyncio.Future[None]:
        """Adds entries, even if not `open`; the future is done when the stream has them all."""
        parcel = _Parcel(len(entries))
        if not entries:
            parcel.sent.set_result(None)
        for fields in entries:
            size = ENTRY_BYTES + sum(map(len, fields.values()))
            self._waiting.append(_Waiting(fields, size, parcel))
            self._bytes += size
        self._news.set()
        self._judge()
        return parcel.sent

    async def check(self) -> None:
        """Raises RedisError if the server cannot do what is needed."""
        if self._to_disk:
            await self._client.execute_command("WAITAOF", 1, 0, 1)
        else:
            await self._client.ping()

    async def work(self) -> None:
        """Sends until `end` was called and nothing is waiting."""
        pause = FIRST_PAUSE_SECONDS
        while not self._ending or self._waiting:
            await self._something_to_do()
            try:
                await self._send()
            except (RedisError, OSError) as error:
                self._say_away(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                self._say_back()
                pause = FIRST_PAUSE_SECONDS

    def end(self) -> None:
        """No more entries follow."""
        self._ending = True
        self._news.set()

    async def _something_to_do(self) -> None:
        if self._too_long and not self._ending:
            await asyncio.sleep(LOOK_SECONDS)
        while not self._waiting and not self._ending and not self._too_long:
            self._news.clear()
            await self._news.wait()

    def _batch(self) -> list[_Waiting]:
        if self._too_long and not self._ending:
            return []
        return list(islice(self._waiting, CALL_ENTRIES_TO_DISK if self._to_disk else CALL_ENTRIES))

    async def _send(self) -> None:
        """Sends one pipeline and reads the stream's length. Raises RedisError if an entry was not stored."""
        batch = self._batch()
        pipe = self._client.pipeline(transaction=False)
        for waiting in batch:
            pipe.xadd(self._key, waiting.fields)
        pipe.xlen(self._key)
        if self._to_disk:
            pipe.execute_command("WAITAOF", 1, 0, DISK_SECONDS * 1000)
        answers = await pipe.execute(raise_on_error=False)
        disk = answers.pop() if self._to_disk else [1]
        length = answers.pop()
        if isinstance(length, int):
            self._watch(length)
        _check_disk(disk)
        self._settle(batch, answers)
        for answer in (*answers, length):
            if isinstance(answer, Exception):
                raise answer

    def _settle(self, batch: list[_Waiting], answers: list[object]) -> None:
        # Unsent entries stay in front, in order.
        for _ in batch:
            self._waiting.popleft()
        kept = []
        for waiting, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                kept.append(waiting)
                continue
            self._bytes -= waiting.size
            self.sent += 1
            waiting.parcel.arrived()
        self._waiting.extendleft(reversed(kept))
        self._judge()

    def _watch(self, length: int) -> None:
        most = self._most_records
        if length >= most and not self._too_long:
            self._too_long = True
            logger.warning(
                "%d records wait in the results stream (STREAM_MAX_RECORDS %d): reading paused; is a coordinator "
                "running?",
                length,
                most,
            )
        elif self._too_long and length <= most // 2:
            self._too_long = False
            logger.warning("the results stream is down to %d records: reading resumes", length)
        self._judge()

    def _judge(self) -> None:
        full = self._most_bytes if self.open.is_set() else self._most_bytes // 2
        if self._too_long or self._bytes >= max(1, full):
            self.open.clear()
        else:
            self.open.set()

    def _say_away(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            logger.warning("Redis is away (%s); incoming packets are kept until it is back", error)

    def _say_back(self) -> None:
        if self._away:
            self._away = False
            logger.warning("Redis is back")


def _check_disk(answer: object) -> None:
    """Raises RedisError unless the server has synced all earlier writes to its own disk."""
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, list)
    if not answer[0]:
        raise RedisError(f"the append-only file was not synced within {DISK_SECONDS} s")


# Bytes per socket read.
READ_BYTES: Final = 65_536
# Connections waiting in the kernel.
BACKLOG: Final = 1024
TELL_SECONDS: Final = 60.0
# On shutdown: time for a connection between two packets to continue.
QUIET_SECONDS: Final = 0.5
# On shutdown: time for a connection to finish what it has begun.
ENDING_SECONDS: Final = 10.0
# On shutdown: time for entries to reach Redis. The sum is below systemd's 90 s.
LAST_SECONDS: Final = 20.0
# Pause when the machine has no file descriptors left.
SCARCE_SECONDS: Final = 1.0
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOOPBACK = "127.0.0.0/8,::1/128"


async def listen(settings: BaseSettings, options: Options, stop: asyncio.Event) -> dict[str, Any]:
    """Listens until `stop` is set, then drains the spool; returns the figures.

    `waiting`: entries that did not reach Redis within LAST_SECONDS. Raises ServerAwayError if Redis does not answer at
    the start.
    """
    client = connection.connect(settings)
    spool = Spool(
        client,
        options.key_prefix,
        most_bytes=options.listen_spool_bytes,
        most_records=options.stream_max_records,
        to_disk=options.listen_acknowledge == "disk",
    )
    listener = Listener(options, spool)
    try:
        await _check_server(settings, options, spool)
        listener.open()
        sending = asyncio.create_task(spool.work())
        sending.add_done_callback(lambda _: stop.set())
        await listener.work(stop)
        spool.end()
        await asyncio.wait({sending}, timeout=LAST_SECONDS)
        if sending.done():
            sending.result()
        figures = listener.figures()
        sending.cancel()
        return figures
    finally:
        listener.close()
        await client.aclose()


async def _check_server(settings: BaseSettings, options: Options, spool: Spool) -> None:
    try:
        await spool.check()
    except RedisError as error:
        if connection.refused(error) or not isinstance(error, ResponseError):
            raise connection.ServerAwayError(connection.explained(settings, error)) from None
        raise OptionError(
            f"LISTEN_ACKNOWLEDGE is {options.listen_acknowledge!r}, but the server cannot confirm writes to disk: "
            f"{error}; expected version 7.2 or newer with appendonly yes, or 'stream'"
        ) from None


def check(options: Options) -> None:
    """Raises OptionError for invalid options."""
    _address_of(options)
    _Guests(options.listen_allow)
    _zone_of(options)


class Listener:
    """The listening socket and its connections. Call `open`, then `work`; `figures` at any time."""

    def __init__(self, options: Options, spool: Spool) -> None:
        self.options = options
        self.spool = spool
        self.zone = _zone_of(options)
        self.ending = False
        self.taken = 0  # packets stored as checks
        self.refused: Counter[Fault] = Counter()
        self._address = _address_of(options)
        self._guests = _Guests(options.listen_allow)
        self._met: Counter[str] = Counter()  # connections, by outcome
        self._talks: dict[asyncio.Task[None], _Talk] = {}
        self._door: socket.socket | None = None

    def open(self) -> None:
        """Binds the port. Raises OptionError if that fails."""
        family = socket.AF_INET if self._address.version == 4 else socket.AF_INET6
        self._door = socket.socket(family, socket.SOCK_STREAM)
        self._door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._door.setblocking(False)
        try:
            self._door.bind((str(self._address), self.options.listen_port))
            self._door.listen(BACKLOG)
        except OSError as error:
            raise OptionError(
                f"LISTEN_PORT is {self.options.listen_port}: {error.strerror} at {self._address}; expected a free "
                "port, or 0 for any"
            ) from None
        logger.info("listening on %s port %d", *self._door.getsockname()[:2])

    def close(self) -> None:
        """Stops listening."""
        if self._door is not None:
            asyncio.get_running_loop().remove_reader(self._door)
            self._door.close()
            self._door = None

    async def work(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set and connections have finished what they had begun."""
        self._watch_door()
        telling = asyncio.create_task(self._tell())
        try:
            await stop.wait()
            await self._finish()
        finally:
            telling.cancel()
            for task in self._talks:
                task.cancel()
            await asyncio.gather(*self._talks, telling, return_exceptions=True)

    def figures(self) -> dict[str, Any]:
        """Counts so far."""
        return {
            "connections": self._met["served"],
            "turned_away": self._met["turned_away"],
            "silent": self._met["silent"],
            "taken": self.taken,
            "refused": self.refused.total(),
            "refused_by": dict(self.refused.most_common()),
            "sent": self.spool.sent,
            "waiting": len(self.spool),
        }

    # --- Accepting ---

    def _watch_door(self) -> None:
        if self._door is not None:
            asyncio.get_running_loop().add_reader(self._door, self._let_in)

    def _let_in(self) -> bool:
        assert self._door is not None
        for _ in range(BACKLOG):
            if len(self._talks) >= self.options.listen_connections:
                break
            try:
                near, peer = self._door.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno not in _SCARCE:
                    continue  # the client disconnected before accept
                logger.warning("cannot accept connections now: %s", error.strerror)
                asyncio.get_running_loop().call_later(SCARCE_SECONDS, self._watch_door)
                break
            self._greet(near, str(peer[0]))
        else:
            return False
        asyncio.get_running_loop().remove_reader(self._door)
        return False

    def _greet(self, near: socket.socket, host: str) -> None:
        if not self._guests.welcome(host):
            self._met["turned_away"] += 1
            near.close()
            return
        self._met["served"] += 1
        near.setblocking(False)
        talk = _Talk(self, near, host)
        task = asyncio.create_task(talk.run())
        self._talks[task] = talk
        task.add_done_callback(self._part)

    def _part(self, task: asyncio.Task[None]) -> None:
        talk = self._talks.pop(task)
        talk.near.close()
        if not task.cancelled() and (error := task.exception()):
            logger.error("connection of %s failed: internal error", talk.host, exc_info=error)
        if not talk.heard:
            self._met["silent"] += 1
        if not self.ending:
            self._watch_door()

    async def _finish(self) -> None:
        self.ending = True
        deadline = time.monotonic() + ENDING_SECONDS
        while self._door is not None and not self._let_in() and (left := deadline - time.monotonic()) > 0:
            await self._some_ended(left)
        self.close()
        for talk in self._talks.values():
            talk.hurry()
        while self._talks and (left := deadline - time.monotonic()) > 0:
            await self._some_ended(left)

    async def _some_ended(self, seconds: float) -> None:
        if self._talks:
            await asyncio.wait(self._talks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:  # new connections cannot be accepted now
            await asyncio.sleep(min(seconds, QUIET_SECONDS))

    # --- The log ---

    async def _tell(self) -> None:
        while True:
            taken, refused = self.taken, Counter(self.refused)
            await asyncio.sleep(TELL_SECONDS)
            logger.info(
                "%d packets taken, %s in %.0f s; %d connections, %d records wait for Redis",
                self.taken - taken,
                told(self.refused - refused),
                TELL_SECONDS,
                len(self._talks),
                len(self.spool),
            )


def told(refused: Counter[Fault]) -> str:
    """The refused packets by reason, for people."""
    why = ", ".join(f"{fault} {number}" for fault, number in refused.most_common())
    return f"{refused.total()} refused" + (f" ({why})" if why else "")


class _Talk:
    """One connection."""

    def __init__(self, house: Listener, near: socket.socket, host: str) -> None:
        self.near = near
        self.host = host
        self.heard = False
        self._house = house
        self._options = house.options
        self._answers = house.options.listen_acknowledge != "never"
        self._loop = asyncio.get_running_loop()
        self._frames = Frames(house.options.listen_packet_bytes, several=house.options.listen_several)
        self._left = house.options.listen_seconds  # time left for the next packet
        self._limit: asyncio.Timeout | None = None  # of the current read

    async def run(self) -> None:
        """Reads until the connection ends, times out, or sends an invalid length."""
        with suppress(OSError, TimeoutError):
            while await self._step():
                pass
            if self._answers and self._frames.broken:
                await self._part_kindly()

    def hurry(self) -> None:
        """Shutdown: stops waiting for packets that have not begun."""
        if self._limit is not None and not self._frames.begun:
            with suppress(RuntimeError):  # already timed out
                self._limit.reschedule(self._loop.time() + self._patience())

    async def _step(self) -> bool:
        """Reads once and handles the result; False at the end."""
        data = await self._receive()
        if data:
            self.heard = True
            found = self._frames.feed(data)
        else:
            seconds = f"{self._options.listen_seconds:g} s"
            found = self._frames.end("the connection ended" if data is not None else f"{seconds} were over")
        if found:
            self._left = self._options.listen_seconds
            await self._hand_on(found)
        return bool(data) and not self._frames.broken

    async def _receive(self) -> bytes | None:
        """The next bytes; empty at the end of the connection, None on timeout."""
        await self._house.spool.open.wait()
        began = self._loop.time()
        try:
            async with asyncio.timeout(self._patience()) as self._limit:
                return await self._read()
        except TimeoutError:
            return None
        except OSError:  # cut off: earlier bytes count
            return b""
        finally:
            self._limit = None
            self._left -= self._loop.time() - began

    async def _read(self) -> bytes:
        await asyncio.sleep(0)  # a read of buffered data would not let other tasks run
        return await self._loop.sock_recv(self.near, READ_BYTES)

    def _patience(self) -> float:
        if self._house.ending and not self._frames.begun:
            return min(self._left, QUIET_SECONDS)
        return self._left

    async def _hand_on(self, found: list[bytes | Refusal]) -> None:
        entries, answers = zip(*map(self._judge, found), strict=True)
        sent = self._house.spool.put(entries)
        if self._answers:
            await sent
            async with asyncio.timeout(self._options.listen_seconds):
                await self._loop.sock_sendall(self.near, b"".join(answers))

    def _judge(self, found: bytes | Refusal) -> tuple[Fields, bytes]:
        if isinstance(found, bytes):
            try:
                checked = decode(found, time.time_ns() // 1_000_000, self._house.zone)
            except PacketError as error:
                found = Refusal(error.fault, str(error), found)
            else:
                self._house.taken += 1
                return {b"v": records.VERSION, b"r": records.encode(checked)}, b"OK\n"
        self._house.refused[found.fault] += 1
        logger.debug("packet from %s refused: %s", self.host, found.why)
        entry = records.refused(f"packet of {self.host}: {found.why}", packet=found.packet)
        return entry, f"NO {found.why}\n".encode(errors="replace")

    async def _part_kindly(self) -> None:
        # Closing with unread bytes would discard the last reply: read on for a moment.
        self.near.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(QUIET_SECONDS):
            while await self._read():
                pass


class _Guests:
    """Allowed senders: LISTEN_ALLOW, or this machine only."""

    def __init__(self, networks: str) -> None:
        try:
            self._networks = [
                ip_network(text.strip(), strict=False)
                for text in (networks.strip() or _LOOPBACK).split(",")
                if text.strip()
            ]
        except ValueError as error:
            raise OptionError(
                f"LISTEN_ALLOW is {networks!r}: {error}; expected networks such as 192.0.2.0/24, separated by commas"
            ) from None

    def welcome(self, host: str) -> bool:
        """Whether this address may send."""
        address = ip_address(host.partition("%")[0])
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


def _address_of(options: Options) -> IPv4Address | IPv6Address:
    text = options.listen_address
    try:
        address = ip_address(text)
    except ValueError:
        raise OptionError(
            f"LISTEN_ADDRESS is {text!r}; expected an IP address of this machine, such as 127.0.0.1"
        ) from None
    if not address.is_loopback and not options.listen_allow.strip():
        raise OptionError(
            f"LISTEN_ADDRESS is {text!r}, which other machines reach, and LISTEN_ALLOW is empty; expected LISTEN_ALLOW "
            "with the networks of all senders, such as 192.0.2.0/24"
        )
    return address


def _zone_of(options: Options) -> Any:
    try:
        return offset(options.listen_utc_offset)
    except ValueError as error:
        raise OptionError(f"LISTEN_UTC_OFFSET: {error}") from None
