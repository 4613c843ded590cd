"""The farm's server: listens on loopback addresses, answers from the sites, logs every hit.

Hides the choice of a port that is free on all addresses, the cache of ready answers and the event loop. Ends
on SIGTERM and SIGINT, and when its parent is gone; a port that is taken raises OSError.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource as limits
import signal
import socket
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

from . import behaviours
from .plan import Plan
from .resource import Resource
from .site import Site, Web
from .wire import HitLog, Request, Wire

# Answers are kept ready up to this many bytes in all; then the cache starts anew.
CACHE_BYTES = 256 << 20
PORT_TRIES = 50
PARENT_CHECK_SECONDS = 0.25
# A fixed date: conditional requests work by ETag, and equal plans give equal bytes.
LAST_MODIFIED = "Mon, 06 Jan 2025 08:00:00 GMT"
MISSING = b"<!doctype html><title>404</title><p>nothing here"


class Answers:
    """Finds the answer of a request: from a behaviour, the cache, or a site."""

    def __init__(self, web: Web) -> None:
        self._web = web
        self._ready: dict[tuple[str, str], tuple[int, bytes, str, float]] = {}
        self._bytes = 0
        self._busy_told: set[str] = set()

    def handle(self, wire: Wire, request: Request) -> None:
        """Answers, or starts to misbehave."""
        if odd := self._misbehaviour(request):
            return wire.misbehave(request, odd.status, odd.play(wire, request))
        status, data, etag, delay = self._find(request)
        if etag and request.fields.get("if-none-match") == etag:
            status, data = 304, _encode(304, (("ETag", etag),), b"", sized=False)
        elif request.method == "HEAD":
            data = data[: data.index(b"\r\n\r\n") + 4]
        if delay:
            return wire.answer_later(delay, request, status, data)
        return wire.answer(request, status, data)

    def _misbehaviour(self, request: Request) -> behaviours.Behaviour | None:
        if not self._web.plan.hostile:
            return behaviours.find(request.path)
        site = self._web.serving(request.host)
        return site.misbehaviour(request.path) if site else behaviours.find(request.path)

    def _find(self, request: Request) -> tuple[int, bytes, str, float]:
        """Status, bytes, ETag ("" = none) and delay in seconds."""
        if request.method not in ("GET", "HEAD"):
            return 405, _encode(405, (("Allow", "GET, HEAD"),), b""), "", 0.0
        return self._ready.get((request.host, request.target)) or self._make(request)

    def _make(self, request: Request) -> tuple[int, bytes, str, float]:
        site = self._web.serving(request.host)
        resource = site.resource(request.target) if site else None
        delay = site.delay_ms / 1000 if site else 0.0
        if site is None or resource is None:
            return 404, _encode(404, (("Content-Type", "text/html"),), MISSING), "", delay
        if resource.busy_first and self._first(site, resource):
            return 503, _encode(503, (("Retry-After", "1"),), b"busy"), "", delay
        return self._keep(request, resource, delay)

    def _first(self, site: Site, resource: Resource) -> bool:
        url = site.url(resource.path)
        first = url not in self._busy_told
        self._busy_told.add(url)
        return first

    def _keep(self, request: Request, resource: Resource, delay: float) -> tuple[int, bytes, str, float]:
        etag = f'"{resource.sha256[:20]}"' if resource.status == 200 else ""
        fields = [("Content-Type", resource.content_type), *resource.fields]
        fields += [("ETag", etag), ("Last-Modified", LAST_MODIFIED)] if etag else []
        data = _encode(resource.status, fields, resource.body)
        self._bytes += len(data)
        if self._bytes > CACHE_BYTES:
            self._ready.clear()
            self._bytes = len(data)
        entry = self._ready[request.host, request.target] = (resource.status, data, etag, delay)
        return entry


def listen(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """One listening socket per address, all on one port; 0 = any that is free on all of them."""
    for left in reversed(range(PORT_TRIES)):
        try:
            return _listen_at(addresses, port or _free_port(addresses[0]))
        except OSError as error:
            if port or not left or error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError("unreachable")


async def serve(plan: Plan, port: int, hits: Path | None, ready: Path | None, parent: int) -> None:
    """Serves until a signal comes or the process `parent` is no longer the parent."""
    _allow_files()
    sockets = listen(plan.addresses(), port)
    with contextlib.ExitStack() as stack:
        for sock in sockets:
            stack.enter_context(sock)
        log = stack.enter_context(hits.open("a", buffering=1)) if hits else None
        port = sockets[0].getsockname()[1]
        web = Web(plan, port)
        wires: set[Wire] = set()
        answers = Answers(web)
        loop = asyncio.get_running_loop()
        servers = [
            await loop.create_server(
                lambda: Wire(answers.handle, HitLog(log), wires), sock=sock, backlog=1024
            )
            for sock in sockets
        ]
        announce(web, ready)
        await _ended(parent)
        for server in servers:
            server.close()
        for wire in set(wires):
            wire.transport.abort()
        for server in servers:
            await server.wait_closed()


def announce(web: Web, ready: Path | None) -> None:
    """Says where the farm is: to the file, which is whole as soon as it exists, else to stdout."""
    text = json.dumps({"port": web.port, "seeds": seeds(web), "pid": os.getpid()})
    if ready is None:
        print(text, flush=True)
        return
    partial = ready.with_name(ready.name + ".partial")
    partial.write_text(text)
    partial.replace(ready)


def seeds(web: Web) -> list[str]:
    """Roots of the numbered sites; of the named ones where there are no others."""
    return [f"{web.origin(index)}/" for index in range(web.plan.sites or web.plan.total)]


async def _ended(parent: int) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    while not ended.is_set() and os.getppid() == parent:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), PARENT_CHECK_SECONDS)


def _listen_at(addresses: Sequence[str], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for address in addresses:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, port))
            sock.listen(1024)
            sock.setblocking(False)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _free_port(address: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind((address, 0))
        port: int = sock.getsockname()[1]
    return port


def _encode(status: int, fields: Sequence[tuple[str, str]], body: bytes, sized: bool = True) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in fields),
    ]
    lines += [f"Content-Length: {len(body)}"] if sized else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _allow_files() -> None:
    """Thousands of sites and their clients need more descriptors than the usual soft limit."""
    _, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
    limits.setrlimit(limits.RLIMIT_NOFILE, (hard, hard))
