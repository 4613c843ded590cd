"""The machine's hosts file, name by name as getaddrinfo reads it.

c-ares gives a name the addresses of all names that share one with it, and so would fetch one's pages from another.

A file that is missing, or cannot be read, names nobody; lines that are none are left. It is read again when it changes.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Final

HOSTS: Final = Path("/etc/hosts")


class HostsFile:
    """The addresses that one file gives to names."""

    def __init__(self, path: Path = HOSTS) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._addresses: dict[str, list[str]] = {}

    def addresses(self, host: str) -> list[str]:
        """Those of a name, in the order of the file; none: it is not in there."""
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp != self._stamp:
                self._addresses = read(self._path.read_text(errors="replace"))
                self._stamp = stamp
        except OSError:
            return []
        return self._addresses.get(host.lower().rstrip("."), [])


def read(text: str) -> dict[str, list[str]]:
    """The addresses of each name, by the lines of a file."""
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
