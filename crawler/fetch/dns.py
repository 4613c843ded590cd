"""DNS resolver with a cache, on c-ares (aiodns); slow name servers block no other look-up.

The guard checks the addresses before libcurl connects. Failures raise CannotResolveHostError and are cached too.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Final

import aiodns
import pycares
from scrapy.exceptions import CannotResolveHostError

# --- The hosts file ---


HOSTS: Final = Path("/etc/hosts")


class HostsFile:
    """Addresses by name from /etc/hosts, reread on change; a missing file counts as empty.

    Not left to c-ares, which merges the addresses of names that share one.
    """

    def __init__(self, path: Path = HOSTS) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._addresses: dict[str, list[str]] = {}

    def addresses(self, host: str) -> list[str]:
        """Addresses of a name in file order."""
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                self._addresses = read_hosts(self._path.read_text(errors="replace"))
                self._stamp = stamp
        except OSError:
            return []
        return self._addresses.get(host.lower().rstrip("."), [])


def read_hosts(text: str) -> dict[str, list[str]]:
    """Addresses by name; invalid lines are ignored."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if _is_address(address):
            for name in names:
                of_name = found.setdefault(name.lower().rstrip("."), [])
                if address not in of_name:
                    of_name.append(address)
    return found


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text


SETTING: Final = "CONNECT_TIMEOUT_SECONDS"

CACHE_NAMES: Final = 10_000
# TTLs are clamped: at least 30 s, since every page needs a look-up; at most 1 h, since sites move.
SHORTEST_SECONDS: Final = 30.0
LONGEST_SECONDS: Final = 3600.0
FAILURE_SECONDS: Final = 30.0


@dataclass(slots=True, frozen=True)
class _Answer:
    """A cached result, valid until a monotonic time."""

    addresses: tuple[str, ...]
    cause: str
    until: float

    def given(self, host: str) -> list[str]:
        if self.cause:
            raise CannotResolveHostError(f"{host}: {self.cause}")
        return list(self.addresses)


class Names:
    """Resolver with a cache, for one event loop; a look-up takes at most `limit_s` seconds.

    `nameservers` ("127.0.0.1:5353") replace the system's; `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        limit_s: float,
        nameservers: Sequence[str] = (),
        clock: Callable[[], float] = monotonic,
        hosts: Path = HOSTS,
    ) -> None:
        self._limit_s = limit_s
        self._nameservers = list(nameservers)
        self._clock = clock
        self._hosts = HostsFile(hosts)
        self._cache: dict[str, _Answer] = {}
        self._flights: dict[str, asyncio.Task[_Answer]] = {}
        self._resolver: aiodns.DNSResolver | None = None
        self._closed = False

    async def resolve(self, host: str) -> list[str]:
        """Addresses of a host: IPv4 first, the last working one before all. Raises CannotResolveHostError."""
        known = self._cache.get(host)
        if known is not None and known.until > self._clock():
            return known.given(host)
        literal = _without_look_up(host)
        if literal is not None:
            return [literal]
        return (await self._shared_look_up(host)).given(host)

    def worked(self, host: str, address: str) -> None:
        """Prefer this address of the host from now on."""
        known = self._cache.get(host)
        if known is not None and address in known.addresses:
            self._cache[host] = _Answer(_first(address, known.addresses), "", known.until)

    async def close(self) -> None:
        """Cancel all look-ups; their callers get CannotResolveHostError. May be called twice."""
        self._closed = True
        for flight in self._flights.values():
            flight.cancel()
        if self._flights:
            await asyncio.wait(self._flights.values())
        if self._resolver is not None:
            await self._resolver.close()
            self._resolver = None

    async def _shared_look_up(self, host: str) -> _Answer:
        """One look-up per name at a time; cancelling one caller does not affect others."""
        if self._closed:
            return self._failure("the resolver is closed")
        flight = self._flights.get(host)
        if flight is None:
            flight = asyncio.get_running_loop().create_task(self._look_up(host))
            self._flights[host] = flight
            flight.add_done_callback(partial(self._landed, host))
        return await asyncio.shield(flight)

    def _landed(self, host: str, flight: asyncio.Task[_Answer]) -> None:
        del self._flights[host]
        if self._closed or flight.cancelled():
            return
        # Remove the old entry first, so the new one becomes the youngest of the dictionary.
        self._cache.pop(host, None)
        if len(self._cache) >= CACHE_NAMES:
            del self._cache[next(iter(self._cache))]
        self._cache[host] = flight.result()

    async def _look_up(self, host: str) -> _Answer:
        if named := self._hosts.addresses(host):
            return _keeping_order(self._answer(named, SHORTEST_SECONDS), self._cache.get(host))
        try:
            async with asyncio.timeout(self._limit_s):
                found = await self._ask(host)
        except TimeoutError:
            return self._failure(f"no answer within {self._limit_s:g} s ({SETTING})")
        except aiodns.error.DNSError as error:
            return self._failure(str(error.args[-1]))
        except ValueError as error:
            return self._failure(f"not a host name ({error})")
        except asyncio.CancelledError:
            if not self._closed:
                raise
            return self._failure("the resolver was closed during the look-up")
        return _keeping_order(self._success(found), self._cache.get(host))

    def _ask(self, host: str) -> asyncio.Future[pycares.AddrInfoResult]:
        if self._resolver is None:
            # No search domains: c-ares would retry each unresolvable name under every one of them.
            self._resolver = aiodns.DNSResolver(
                self._nameservers or None, asyncio.get_running_loop(), flags=pycares.ARES_FLAG_NOSEARCH
            )
        return self._resolver.getaddrinfo(host, family=socket.AF_UNSPEC, type=socket.SOCK_STREAM)

    def _success(self, found: pycares.AddrInfoResult) -> _Answer:
        if not found.nodes:
            return self._failure("the name has no address")
        addresses = [node.addr[0].decode("ascii") for node in found.nodes]
        return self._answer(addresses, min(node.ttl for node in found.nodes))

    def _answer(self, addresses: Sequence[str], ttl: float) -> _Answer:
        best_first = tuple(dict.fromkeys(sorted(addresses, key=lambda address: ":" in address)))
        return _Answer(best_first, "", self._clock() + min(max(ttl, SHORTEST_SECONDS), LONGEST_SECONDS))

    def _failure(self, cause: str) -> _Answer:
        return _Answer((), cause, self._clock() + FAILURE_SECONDS)


def _keeping_order(answer: _Answer, previous: _Answer | None) -> _Answer:
    """Name servers rotate answers; keep the preferred address so connections are reused."""
    if previous is None or not previous.addresses or previous.addresses[0] not in answer.addresses:
        return answer
    return _Answer(_first(previous.addresses[0], answer.addresses), "", answer.until)


def _first(address: str, addresses: tuple[str, ...]) -> tuple[str, ...]:
    return (address, *(other for other in addresses if other != address))


def _without_look_up(host: str) -> str | None:
    """The address of a literal host or localhost; None for a name."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        # RFC 6761: never send localhost to a name server.
        return "127.0.0.1"
    if ":" in name or name.startswith("["):
        return _parsed(host, lambda: str(ip_address(name.strip("[]"))))
    last = name.rpartition(".")[2]
    if last.isdecimal() or last.startswith("0x"):
        # No top-level domain is numeric: this is an IPv4 notation (127.1, 0x7f000001, 0177.1).
        return _parsed(host, lambda: socket.inet_ntoa(socket.inet_aton(name)))
    return None


def _parsed(host: str, parse: Callable[[], str]) -> str:
    try:
        return parse()
    except (ValueError, OSError) as error:
        raise CannotResolveHostError(f"{host}: neither a name nor an address ({error})") from error
