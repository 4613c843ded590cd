"""Which IP addresses the crawler may connect to (SSRF protection).

A name may resolve differently at connection time, so check the very address that is connected to.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

SETTING: Final = "ALLOW_PRIVATE_ADDRESSES"

# From IANA's special-purpose address registries. Not `ipaddress.is_private`: its result differs between Python's
# patch releases.
_REFUSED: Final[tuple[tuple[Network, str], ...]] = tuple(
    (ip_network(network), word)
    for network, word in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved for documentation"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "reserved for benchmarks"),
        ("198.51.100.0/24", "reserved for documentation"),
        ("203.0.113.0/24", "reserved for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fc00::/7", "private (unique local)"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private (site-local)"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "reserved for documentation"),
        ("3fff::/20", "reserved for documentation"),
    )
)
# IPv6 outside this network is not allocated.
_GLOBAL_V6: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")

# Few addresses are checked very often.
_CACHE_SIZE: Final = 10_000


class AddressGuard:
    """Forbids special networks but `allowed_networks` ("127.0.0.0/8,::1/128"). Raises ValueError for invalid ones."""

    def __init__(self, allowed_networks: str | Iterable[str] = "") -> None:
        parts = allowed_networks.split(",") if isinstance(allowed_networks, str) else allowed_networks
        self._allowed = tuple(_network(part) for part in parts if part.strip())
        self._answers: dict[str, str | None] = {}

    def refusal(self, address: str) -> str | None:
        """Why connecting to this address is forbidden; None if it is allowed."""
        try:
            return self._answers[address]
        except KeyError:
            return self._remember(address, self._judge_text(address))

    def _remember(self, address: str, answer: str | None) -> str | None:
        if len(self._answers) >= _CACHE_SIZE:
            self._answers.clear()
        self._answers[address] = answer
        return answer

    def _judge_text(self, text: str) -> str | None:
        try:
            address = ip_address(text)
        except ValueError:
            return "not an IP address"
        return self._judge(address)

    def _judge(self, address: Address) -> str | None:
        if any(address in network for network in self._allowed):
            return None
        inner = _embedded(address)
        if inner is not None:
            reason = self._judge(inner)
            return f"{inner} in IPv6 form, {reason}" if reason else None
        return _special(address)


def _special(address: Address) -> str | None:
    for network, word in _REFUSED:
        if address in network:
            return f"{word} ({network})"
    if address.version == 6 and address not in _GLOBAL_V6:
        return f"reserved (outside {_GLOBAL_V6})"
    return None


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address in a NAT64, mapped or 6to4 address, or None."""
    if isinstance(address, IPv4Address):
        return None
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _network(text: str) -> Network:
    try:
        return ip_network(text.strip())
    except ValueError as error:
        raise ValueError(
            f"{SETTING} holds {text.strip()!r} ({error}); expected networks with commas between, "
            "like 127.0.0.0/8,::1/128"
        ) from error
