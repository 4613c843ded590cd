"""Takes paper 002's packets from TCP connections into the results stream (`scrapy listen`).

A packet that is well formed (crawler.status.packets) becomes a Check record; anything else becomes an entry for the
dead letters, with its bytes and the reason. Both wait in the spool until the stream has them, and only then is a packet
acknowledged, where that is asked for. So nothing that was acknowledged is lost when the listener is killed, nor, with
LISTEN_ACKNOWLEDGE "disk", when Redis is; a packet that is sent again is stored once, for its bytes are what a check is
known by.

Hides sockets and whoever misuses them. Memory is bounded: LISTEN_SPOOL_BYTES, and for each of LISTEN_CONNECTIONS one
packet and one read, here and in the spool. A connection has LISTEN_SECONDS for each packet; it is not read while the
spool is full or the stream too long, and that time is not counted. Nobody is refused for want of a place: who comes
when all are taken waits in the kernel.

OptionError for an address, networks, a port or an offset that cannot be used.
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


# ------------------------------------------------------------------------------------------------------------
# Entries on their way into the results stream from a process that holds no leases: bounded, patient, in order.
#
# What is put here is sent by one task, many entries to a round trip. While Redis is away, or refuses, they wait and
# are sent again; a lost reply makes an entry stand in the stream twice, so whoever puts something here must not mind
# that. While the stream holds `most_records` they wait too. `open` is clear where more must not be put, for the
# stream is too long or `most_bytes` wait here; at half of either it opens again. What is not sent yet dies with the
# process.
#
# An entry counts as sent when the stream has it, or, with `to_disk`, when the server has it on its disk: by default
# that is up to a second later, and what a server that dies loses meanwhile is not counted, but sent again.


logger = logging.getLogger("listener")

Fields = dict[bytes, bytes]

# Entries sent in one round trip: more gain nothing, and the server answers nobody else meanwhile. Where each round
# trip takes the second until the server's file is on the disk, more of them must go in one.
CALL_ENTRIES = 200
CALL_ENTRIES_TO_DISK = 5_000
# How long the disk may take; longer, and the entries are sent again. Below the time that a reply may take.
DISK_SECONDS = 5
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
# How often a stream that is too long is looked at.
LOOK_SECONDS = 0.2
# What an entry takes beside its bytes: the objects that hold it.
ENTRY_BYTES = 500


class _Waiting(NamedTuple):
    fields: Fields
    size: int
    parcel: _Parcel


class _Parcel:
    """Entries that were put together; `sent` is done when the stream has all of them."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def arrived(self) -> None:
        """One more of them is in the stream."""
        self.left -= 1
        if not self.left and not self.sent.done():
            self.sent.set_result(None)


class Spool:
    """One process's entries; `work` in a task of its own, `end` and wait for it at the end."""

    def __init__(
        self, client: Redis, prefix: str, *, most_bytes: int, most_records: int, to_disk: bool = False
    ) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.sent = 0  # entries that the stream has taken
        self._client: Any = client
        self._key = results_key(prefix)
        self._most_bytes = most_bytes
        self._most_records = most_records
        self._to_disk = to_disk
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._too_long = False  # the stream is
        self._away = False
        self._ending = False
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, entries: Sequence[Fields]) -> asyncio.Future[None]:
        """Takes entries, whether `open` or not; what comes back is done when the stream has them all."""
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
        """RedisError where the server cannot do what is asked of it."""
        if self._to_disk:
            await self._client.execute_command("WAITAOF", 1, 0, 1)
        else:
            await self._client.ping()

    async def work(self) -> None:
        """Sends until `end` was called and nothing waits any more."""
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
        """Nothing more is put."""
        self._ending = True
        self._news.set()

    async def _something_to_do(self) -> None:
        if self._too_long and not self._ending:
            await asyncio.sleep(LOOK_SECONDS)
        while not self._waiting and not self._ending and not self._too_long:
            self._news.clear()
            await self._news.wait()

    def _batch(self) -> list[_Waiting]:
        """What is sent now: nothing where the stream is too long, but at the end all."""
        if self._too_long and not self._ending:
            return []
        return list(islice(self._waiting, CALL_ENTRIES_TO_DISK if self._to_disk else CALL_ENTRIES))

    async def _send(self) -> None:
        """One round trip: entries, and how long the stream is now. RedisError where any was not taken."""
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
        """Lets go of what was taken; the rest stays in front, in its order."""
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
                "%d records wait in the results stream (STREAM_MAX_RECORDS %d): nothing is read; is a coordinator "
                "running?",
                length,
                most,
            )
        elif self._too_long and length <= most // 2:
            self._too_long = False
            logger.warning("the results stream is down to %d records: reading goes on", length)
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
            logger.warning("Redis is away (%s); waiting for it, what comes in is kept", error)

    def _say_back(self) -> None:
        if self._away:
            self._away = False
            logger.warning("Redis is back")


def _check_disk(answer: object) -> None:
    """RedisError unless the server says that all before is on its own disk."""
    if isinstance(answer, Exception):
        raise answer
    assert isinstance(answer, list)
    if not answer[0]:
        raise RedisError(f"its file was not on the disk within {DISK_SECONDS} s")


# Bytes taken from a socket at a time.
READ_BYTES: Final = 65_536
# Connections that the kernel holds ready while all places are taken.
BACKLOG: Final = 1024
TELL_SECONDS: Final = 60.0
# Once it is to end, a connection that is between two packets is given this long to go on.
QUIET_SECONDS: Final = 0.5
# And every connection this long to end what it has begun.
ENDING_SECONDS: Final = 10.0
# How long what was read may take to reach Redis then. Both below what process managers allow (systemd 90 s).
LAST_SECONDS: Final = 20.0
# Where the machine has no descriptor left, so long until the next look.
SCARCE_SECONDS: Final = 1.0
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOOPBACK = "127.0.0.0/8,::1/128"


async def listen(settings: BaseSettings, options: Options, stop: asyncio.Event) -> dict[str, Any]:
    """Listens until `stop` is set and what was read is in the stream; the figures of it all.

    `waiting` of them is what did not reach Redis within LAST_SECONDS of the end. ServerAwayError where Redis does not
    answer at the start; later it is waited for.
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
            f"LISTEN_ACKNOWLEDGE is {options.listen_acknowledge!r}, and the server cannot tell what is on its disk: "
            f"{error}; expected one of version 7.2 or newer with appendonly yes, or 'stream'"
        ) from None


def check(options: Options) -> None:
    """OptionError where these options cannot be listened with."""
    _address_of(options)
    _Guests(options.listen_allow)
    _zone_of(options)


class Listener:
    """The door and all who came in by it. `open`, then `work`; `figures` at any time."""

    def __init__(self, options: Options, spool: Spool) -> None:
        self.options = options
        self.spool = spool
        self.zone = _zone_of(options)
        self.ending = False
        self.taken = 0  # packets that became checks
        self.refused: Counter[Fault] = Counter()
        self._address = _address_of(options)
        self._guests = _Guests(options.listen_allow)
        self._met: Counter[str] = Counter()  # connections, by what became of them
        self._talks: dict[asyncio.Task[None], _Talk] = {}
        self._door: socket.socket | None = None

    def open(self) -> None:
        """Binds the port; OptionError where that cannot be."""
        family = socket.AF_INET if self._address.version == 4 else socket.AF_INET6
        self._door = socket.socket(family, socket.SOCK_STREAM)
        self._door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._door.setblocking(False)
        try:
            self._door.bind((str(self._address), self.options.listen_port))
            self._door.listen(BACKLOG)
        except OSError as error:
            raise OptionError(
                f"LISTEN_PORT is {self.options.listen_port}: {error.strerror} at {self._address}; expected a port that "
                "is free, or 0 for any"
            ) from None
        logger.info("listening on %s port %d", *self._door.getsockname()[:2])

    def close(self) -> None:
        """Lets nobody in any more; harmless where nobody could."""
        if self._door is not None:
            asyncio.get_running_loop().remove_reader(self._door)
            self._door.close()
            self._door = None

    async def work(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, and the connections that were there have ended what they had begun."""
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
        """What came in so far."""
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

    # --- the door ---

    def _watch_door(self) -> None:
        if self._door is not None:
            asyncio.get_running_loop().add_reader(self._door, self._let_in)

    def _let_in(self) -> bool:
        """Who stands at the door, as far as there are places; whether nobody stands there any more."""
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
                    continue  # it left while it waited
                logger.warning("no connection can be taken now: %s", error.strerror)
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
            logger.error("a connection of %s ended by a bug", talk.host, exc_info=error)
        if not talk.heard:
            self._met["silent"] += 1
        if not self.ending:
            self._watch_door()

    async def _finish(self) -> None:
        """Serves who is there, then closes; packets that began to come have time to end."""
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
        else:  # who stands at the door cannot be let in now
            await asyncio.sleep(min(seconds, QUIET_SECONDS))

    # --- the log ---

    async def _tell(self) -> None:
        """A line each minute of what came in it."""
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
    """How many were refused and why, for people."""
    why = ", ".join(f"{fault} {number}" for fault, number in refused.most_common())
    return f"{refused.total()} refused" + (f" ({why})" if why else "")


class _Talk:
    """One connection, from its first byte to its last."""

    def __init__(self, house: Listener, near: socket.socket, host: str) -> None:
        self.near = near
        self.host = host
        self.heard = False
        self._house = house
        self._options = house.options
        self._answers = house.options.listen_acknowledge != "never"
        self._loop = asyncio.get_running_loop()
        self._frames = Frames(house.options.listen_packet_bytes, several=house.options.listen_several)
        self._left = house.options.listen_seconds  # for the packet that is coming
        self._limit: asyncio.Timeout | None = None  # of the read under way

    async def run(self) -> None:
        """Reads until the connection ends, its time is over, or it cannot be made sense of."""
        with suppress(OSError, TimeoutError):
            while await self._step():
                pass
            if self._answers and self._frames.broken:
                await self._part_kindly()

    def hurry(self) -> None:
        """The listener ends: wait for no packet that has not begun."""
        if self._limit is not None and not self._frames.begun:
            with suppress(RuntimeError):  # its time is over already
                self._limit.reschedule(self._loop.time() + self._patience())

    async def _step(self) -> bool:
        """One read and what comes of it; False at the end."""
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
        """The next bytes; none at the connection's end, None where its time is over."""
        await self._house.spool.open.wait()
        began = self._loop.time()
        try:
            async with asyncio.timeout(self._patience()) as self._limit:
                return await self._read()
        except TimeoutError:
            return None
        except OSError:  # cut off: what came before counts
            return b""
        finally:
            self._limit = None
            self._left -= self._loop.time() - began

    async def _read(self) -> bytes:
        await asyncio.sleep(0)  # a read of what is there already would let nobody else have a turn
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
        """The entry for the stream, and the line for the sender."""
        if isinstance(found, bytes):
            try:
                checked = decode(found, time.time_ns() // 1_000_000, self._house.zone)
            except PacketError as error:
                found = Refusal(error.fault, str(error), found)
            else:
                self._house.taken += 1
                return {b"v": records.VERSION, b"r": records.encode(checked)}, b"OK\n"
        self._house.refused[found.fault] += 1
        logger.debug("a packet of %s is refused: %s", self.host, found.why)
        entry = records.refused(f"packet of {self.host}: {found.why}", packet=found.packet)
        return entry, f"NO {found.why}\n".encode(errors="replace")

    async def _part_kindly(self) -> None:
        """Closed while bytes come, a socket takes its last answer back: read on for a moment."""
        self.near.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(QUIET_SECONDS):
            while await self._read():
                pass


class _Guests:
    """Who may send: those of the networks, without any those of this machine."""

    def __init__(self, networks: str) -> None:
        try:
            self._networks = [
                ip_network(text.strip(), strict=False)
                for text in (networks.strip() or _LOOPBACK).split(",")
                if text.strip()
            ]
        except ValueError as error:
            raise OptionError(
                f"LISTEN_ALLOW is {networks!r}: {error}; expected networks as 192.0.2.0/24, comma-separated"
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
            f"LISTEN_ADDRESS is {text!r}; expected an address of this machine, as 127.0.0.1"
        ) from None
    if not address.is_loopback and not options.listen_allow.strip():
        raise OptionError(
            f"LISTEN_ADDRESS is {text!r}, which other machines reach, and LISTEN_ALLOW is empty; expected there the "
            "networks of those who may send, as 192.0.2.0/24"
        )
    return address


def _zone_of(options: Options) -> Any:
    try:
        return offset(options.listen_utc_offset)
    except ValueError as error:
        raise OptionError(f"LISTEN_UTC_OFFSET: {error}") from None
