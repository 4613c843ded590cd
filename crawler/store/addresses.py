"""Parallel DNS lookups for reports, cached for KEPT_SECONDS in a JSON file (failed ones too). Never raises."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

KEPT_SECONDS = 30 * 86_400.0
AT_A_TIME = 32
# Most lookups per call; more would delay a report too long.
MOST_NAMES = 20_000

Resolve = Callable[[str], str]


def resolved(host: str) -> str:
    """The first address of a host; empty if the lookup fails."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return ""


class Addresses:
    """The cached addresses of hosts."""

    def __init__(self, file: Path, resolve: Resolve = resolved) -> None:
        self._file = file
        self._resolve = resolve
        self._known = _read(file)

    def of(self, hosts: Iterable[str]) -> dict[str, str]:
        """The hosts' addresses, empty for failed lookups; looks up at most MOST_NAMES uncached hosts."""
        wanted = list(hosts)
        oldest = time.time() - KEPT_SECONDS
        new = [host for host in wanted if self._known.get(host, ("", 0.0))[1] < oldest][:MOST_NAMES]
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for host, address in zip(new, pool.map(self._resolve, new), strict=True):
                self._known[host] = (address, time.time())
        if new:
            self._write()
        return {host: self._known[host][0] for host in wanted if host in self._known}

    def _write(self) -> None:
        with suppress(OSError):
            temporary = self._file.with_suffix(".new")
            temporary.write_text(json.dumps(self._known), encoding="utf-8")
            temporary.replace(self._file)


def _read(file: Path) -> dict[str, tuple[str, float]]:
    with suppress(OSError, ValueError, TypeError, AttributeError):
        kept = json.loads(file.read_text(encoding="utf-8"))
        return {str(host): (str(address), float(at)) for host, (address, at) in kept.items()}
    return {}
