"""The dashboard: a read-only web page of a crawl, a page for each site, and `/metrics`.

Pages load nothing else. Without a password only loopback is served, under a loopback host name (DNS
rebinding). The crawl is read once a second at most. Figures of an unavailable service are left out, with the
reason.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiohttp import web
from redis.exceptions import RedisError

from crawler.options import OptionError
from crawler.queue.errors import BrokenRecordError
from crawler.queue.sites import Holding, SiteRecord
from crawler.records import status_in_words
from crawler.store.database import DatabaseError
from crawler.views import figures, metrics
from crawler.views.drawing import Bar, bars, load_heat, pace_columns
from crawler.views.page import Section, environment, script, style
from crawler.views.watching import Kept, Seen, Watch
from crawler.views.words import time_word

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.views.figures import QueueNow

# A report on the page, computed in a thread.
Board = Callable[["Engine"], Section]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LOOK_SECONDS = 1.0
# Threads for reads of the whole history; the loop's own are for quick reads.
SLOW_THREADS = 3
# Limits of leased sites, rows of the load picture, sites in line and top pages.
MOST_HANDS, MOST_LOADS, MOST_LINE, MOST_TOP = 12, 40, 12, 12
# Longest site name in a request.
LONGEST_NAME = 2_000
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "lowtide",
}


def check_address(options: Options) -> None:
    """Raises OptionError for an address beyond loopback without a password."""
    if not options.dashboard_password and not _is_loopback(options.dashboard_address):
        raise OptionError(
            f"DASHBOARD_ADDRESS is {options.dashboard_address!r} and DASHBOARD_PASSWORD is empty; expected a loopback "
            "address (127.0.0.1), or a password"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Dashboard:
    """Use within one event loop."""

    def __init__(self, settings: BaseSettings, options: Options, boards: Mapping[str, Board]) -> None:
        check_address(options)
        self._options = options
        self._watch = Watch(settings, options)
        self._seen: tuple[float, Seen] | None = None
        self._looking = asyncio.Lock()
        self._threads = ThreadPoolExecutor(SLOW_THREADS, "report")
        self._loads = figures.Loads()
        self._load = self._kept(lambda engine: self._loads.picture(engine, options, MOST_LOADS))
        self._hours = self._kept(
            lambda engine: figures.last_hours(engine, options.hour_seconds, time.time_ns() // 1_000_000),
            self._threads,
        )
        self._errors = self._kept(figures.recent_errors)
        self._top = self._kept(lambda engine: figures.top_pages(engine, MOST_TOP))
        self._standing = self._kept(figures.standing)
        self._boards = {name: self._kept(board, self._threads) for name, board in boards.items()}
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Returns the page's URL. Raises OSError if it cannot listen."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._page)
        app.router.add_get("/site", self._site)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/style.css", _style)
        app.router.add_get("/refresh.js", _script)
        app.on_response_prepare.append(_add_headers)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        address = self._options.dashboard_address
        await web.TCPSite(self._runner, address.strip("[]"), self._options.dashboard_port).start()
        port = self._runner.addresses[0][1]
        return f"http://{f'[{address}]' if ':' in address and '[' not in address else address}:{port}/"

    async def stop(self) -> None:
        """Stops listening and closes all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
        slow = (self._load, self._hours, self._errors, self._top, self._standing)
        for kept in (*slow, *self._boards.values()):
            kept.drop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._watch.close()

    # --- Access ---

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        password = self._options.dashboard_password
        if not password and not _is_loopback(urlsplit(f"//{request.host}").hostname or ""):
            raise web.HTTPForbidden(text="lowtide: the Host header is not a loopback name\n")
        if password and not hmac.compare_digest(_password(request), password.encode()):
            challenge = {"WWW-Authenticate": 'Basic realm="lowtide", charset="UTF-8"'}
            raise web.HTTPUnauthorized(text="lowtide: expected the password\n", headers=challenge)
        return await handler(request)

    # --- Content ---

    async def _page(self, _request: web.Request) -> web.Response:
        seen = await self._look()
        troubles = [words for words in (seen.queue_trouble, seen.tables_trouble) if words]
        kept, more = await self._slow()
        return _html("dashboard.html", {**self._fast(seen), **kept, "troubles": [*troubles, *more]})

    async def _look(self) -> Seen:
        async with self._looking:
            if self._seen is None or time.monotonic() - self._seen[0] > LOOK_SECONDS:
                self._seen = time.monotonic(), await self._watch.look()
            return self._seen[1]

    def _fast(self, seen: Seen) -> dict[str, Any]:
        now = seen.queue
        known = seen.progress.known if seen.progress else 0
        share = 100 * seen.progress.done / known if seen.progress and known else None
        hands = sorted(now.holdings, key=lambda one: (one.done - one.known, one.site)) if now else []
        return {
            "at": seen.at_ms,
            "now": now,
            "tiles": _tiles(seen),
            "share": share,
            "hands": hands[:MOST_HANDS],
            "queues": _queues(now) if now else None,
            "most_records": self._options.stream_max_records,
            "has_tables": self._watch.engine is not None,
        }

    async def _slow(self) -> tuple[dict[str, Any], list[str]]:
        """Cached values of slow figures, and errors."""
        troubles: list[str] = []

        async def value_of(kept: Kept[Any]) -> Any:
            try:
                return await kept.fresh()
            except Exception as error:  # a report may raise anything: show the error and the other figures
                troubles.append(str(error) or type(error).__name__)
            return None

        # Concurrently, so that no figure waits for a slow one.
        load, hours, top, errors, *boards = await asyncio.gather(
            *map(value_of, (self._load, self._hours, self._top, self._errors, *self._boards.values()))
        )
        pictures = [
            *([load_heat(load, MOST_LOADS)] if load and load["sites"] else []),
            *([pace_columns(hours, "Pages per hour", figures.HOURS)] if hours else []),
        ]
        found = {"pictures": pictures, "boards": [one for one in boards if one], "top": top, "errors": errors}
        return found, list(dict.fromkeys(troubles))

    async def _site(self, request: web.Request) -> web.Response:
        name = request.query.get("name", "")[:LONGEST_NAME]
        troubles: list[str] = []
        record: SiteRecord | None = None
        details: dict[str, Any] = {}
        row: dict[str, Any] | None = None
        load: dict[str, Any] | None = None
        try:
            record = await self._watch.queue.record(name)
            details = await self._watch.queue.details(name) if record else {}
        except (RedisError, OSError, BrokenRecordError) as error:
            troubles.append(str(error))
        try:
            row = await self._watch.ask_tables(lambda engine: figures.site_pages(engine, name))
            load = await self._watch.ask_tables(
                lambda engine: self._loads.picture(engine, self._options, only=name)
            )
        except DatabaseError as error:
            troubles.append(str(error))
        if record is None and row is None and not troubles:
            raise web.HTTPNotFound(text="lowtide: unknown site\n")
        given = {"site": name, "at": time.time_ns() // 1_000_000, "troubles": troubles}
        held = await self._held(name) if record and record.agent else None
        return _html("site.html", {**given, **_about(record, held, details, row, load)})

    async def _held(self, name: str) -> Holding | None:
        """None: not leased any more."""
        queue = (await self._look()).queue
        return next((one for one in queue.holdings if one.site == name), None) if queue else None

    async def _metrics(self, _request: web.Request) -> web.Response:
        seen = await self._look()
        try:
            standing = await self._standing.fresh()
        except DatabaseError:  # `lowtide_up` shows it
            standing = None
        body = metrics.written(seen, standing)
        return web.Response(body=body, headers={"Content-Type": metrics.CONTENT_TYPE})

    def _kept(
        self, question: Callable[[Engine], Any], threads: ThreadPoolExecutor | None = None
    ) -> Kept[Any]:
        return Kept(lambda: self._watch.ask_tables(question, threads))


def _about(
    record: SiteRecord | None,
    held: Holding | None,
    details: dict[str, Any],
    row: dict[str, Any] | None,
    load: dict[str, Any] | None,
) -> dict[str, Any]:
    outcomes = row["outcomes"] if row else {}
    drawn = [Bar(word, many, f"{many:,}") for word, many in sorted(outcomes.items(), key=lambda one: -one[1])]
    return {
        "facts": _facts(record, held, details, row),
        "outcomes": bars(drawn, "pages by outcome") if drawn else None,
        "load": load_heat(load, 1) if load and load["sites"] else None,
        "pages": row["pages"] if row else [],
    }


def _tiles(seen: Seen) -> list[dict[str, str]]:
    """Value, name, and class of the figures at the top."""
    tiles = []

    def tile(value: str, name: str, kind: str = "") -> None:
        tiles.append({"value": value, "name": name, "kind": kind})

    if seen.queue:
        depth = seen.queue.depth
        tile(f"{depth.finished:,}", f"of {depth.added:,} sites finished")
        tile(f"{depth.leased:,}", "sites leased")
        tile(f"{depth.waiting + depth.suspended:,}", "sites wait")
    if seen.progress:
        tile(f"{seen.progress.done:,}", f"of {seen.progress.known:,} known pages done")
    tile(f"{seen.pace:,.1f}", "pages per second", "good" if seen.pace else "")
    if seen.seconds_left is not None:
        least = "left, at least" if seen.progress and seen.progress.unseen else "left"
        tile(time_word(seen.seconds_left), least)
    if seen.tail is not None:
        failed = seen.tail.errors().total()
        tile(f"{failed:,}", f"errors in the last {len(seen.tail.turns):,} pages", "bad" if failed else "good")
    return tiles


def _queues(now: QueueNow) -> str:
    depth = now.depth
    states = {
        "waiting": depth.waiting,
        "suspended": depth.suspended,
        "leased": depth.leased,
        "later": depth.later,
        "parked": now.parked,
        "paused": depth.paused,
        "finished": depth.finished,
        "alias": depth.alias,
        "blocked": depth.blocked,
    }
    return bars([Bar(name, many, f"{many:,}") for name, many in states.items()], "sites by state")


def _facts(
    record: SiteRecord | None,
    held: Holding | None,
    details: dict[str, Any],
    row: dict[str, Any] | None,
) -> list[tuple[str, str]]:
    """Name and text; without empty ones."""
    found: dict[str, Any] = {}
    if record is not None:
        known, done = (held.known, held.done) if held and held.known else (record.known, record.done)
        state = "leased" if record.agent and record.work == "site" else record.state
        found |= {
            "state": f"{state}{', paused' if record.paused else ''}",
            "done": f"{done:,} of {known:,} URLs" if known else "not fetched yet",
            "held by": f"{record.agent} ({record.work})" if record.agent else "",
            "address": record.address,
            "why": details.get("why"),
            "budget": details.get("budget"),
            "due": ", ".join(f"{work} {_when(at)}" for work, at in details.get("due_ms", {}).items()),
        }
    if row is not None:
        found |= {"source": row["source"], "stopped": row["stopped"], "alias of": row["alias_of"]}
        if row["health"]:
            why = (
                f"{row['health']} since {_when(row['health_since'])}: {status_in_words(row['health_status'])}"
            )
            found |= {"health": why, "last checked": _when(row["health_at"])}
        found |= {"last ended": _when(row["ended_at"]) if row["ended_at"] else "", "reason": row["reason"]}
    return [(name, str(value)) for name, value in found.items() if value not in (None, "")]


def _when(at_ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms / 1000))


def _password(request: web.Request) -> bytes:
    """Of any user name; empty: none."""
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() != "basic":
        return b""
    try:
        return base64.b64decode(given, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _html(template: str, given: dict[str, Any]) -> web.Response:
    return web.Response(text=environment().get_template(template).render(given), content_type="text/html")


async def _style(_request: web.Request) -> web.Response:
    return web.Response(text=style(), content_type="text/css")


async def _script(_request: web.Request) -> web.Response:
    return web.Response(text=script(), content_type="text/javascript")


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
