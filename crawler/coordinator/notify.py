"""Delivers changes of sites' health to hooks: the log, a command, a webhook.

One coordinator's thread reads `health_changes`. Each hook gets each change at least once (with the same `id`) and in
order. A failing hook is retried after up to a minute and blocks only itself.
"""

from __future__ import annotations

import http.client
import json
import logging
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import redis
from sqlalchemy import and_, func, select, update

from crawler.records import status_in_words
from crawler.store.database import DatabaseError, transaction
from crawler.store.tables import health_changes

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Engine, Row

    from crawler.options import Options

    Hook = Callable[[Row[Any]], None]

logger = logging.getLogger("coordinator")

# Poll interval, and changes per hook and poll.
LOOK_SECONDS, CHANGES_AT_A_TIME = 1.0, 100
# Polls read changes after the last one that each hook got; every ALL_SECONDS all pending ones, since a transaction may
# commit after one with higher ids.
ALL_SECONDS = 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
# Webhook statuses to retry, besides 5xx; any other 4xx is final.
_PASSING = frozenset({408, 425, 429})
# The status of other errors (crawler.fetch.errors).
_OTHER = -13


def turn_key(prefix: str) -> str:
    """The delivering coordinator's lock."""
    return f"{prefix}:{{0}}:hooks"


class HookError(Exception):
    """Delivery failed; to be retried."""


class Hooks:
    """The holder of the lock delivers. `start` once, `end` once."""

    def __init__(self, client: redis.Redis, options: Options, name: str) -> None:
        self._client = client
        self._key = turn_key(options.key_prefix)
        self._name = name.encode()
        # The lock outlasts the slowest hook, so that only one coordinator delivers.
        self._turn_ms = int((3 * options.status_hook_timeout_seconds + 10) * 1000)
        self._hooks = _hooks(options)
        self._due = dict.fromkeys(self._hooks, 0.0)  # monotonic
        self._pauses = dict.fromkeys(self._hooks, FIRST_PAUSE_SECONDS)
        self._told: dict[str, int] = {}  # by hook: the last delivered change
        self._past = dict.fromkeys(self._hooks, 0)  # by hook: changes up to this one are delivered
        self._all_at = 0.0  # monotonic: time of the next full scan
        self._turn = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, engine: Engine) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, args=(engine,), name="hooks", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Delivers pending changes once more, and stops the thread."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(self._turn_ms / 1000)

    def _run(self, engine: Engine) -> None:
        last = False
        while not last:
            last = self._ending.wait(LOOK_SECONDS)
            with suppress(DatabaseError):  # logged by the coordinator, if it lasts
                if self._has_turn():
                    self._tell(engine)
        with suppress(redis.RedisError):
            if self._client.get(self._key) == self._name:
                self._client.delete(self._key)

    def _has_turn(self) -> bool:
        """Acquires or renews the lock; keeps its state during outages."""
        with suppress(redis.RedisError):
            self._turn = bool(self._client.set(self._key, self._name, nx=True, px=self._turn_ms)) or (
                self._client.get(self._key) == self._name
                and bool(self._client.pexpire(self._key, self._turn_ms))
            )
        return self._turn

    def _tell(self, engine: Engine) -> None:
        self._begin_anew(engine)
        waiting = {name: deque(self._waiting(engine, name)) for name in self._hooks}
        # Round-robin: a slow hook delays the others by one change only.
        while waiting := {name: changes for name, changes in waiting.items() if changes}:
            for name, changes in waiting.items():
                if not self._tell_one(engine, name, changes.popleft()):
                    changes.clear()
                self._has_turn()

    def _begin_anew(self, engine: Engine) -> None:
        """Every ALL_SECONDS: rescans all changes, and completes those for removed hooks only."""
        if time.monotonic() < self._all_at:
            return
        self._past = dict.fromkeys(self._hooks, 0)
        if _waiting(engine, self._done):
            _note(engine, self._done, "told_at")
        self._all_at = time.monotonic() + ALL_SECONDS

    @property
    def _done(self) -> ColumnElement[bool]:
        return and_(*(_at(name).is_not(None) for name in self._hooks))

    def _waiting(self, engine: Engine, name: str) -> Sequence[Row[Any]]:
        newest = _newest(engine)
        found = _waiting(engine, and_(_at(name).is_(None), health_changes.c.id > self._past[name]))
        if not found:
            self._past[name] = newest
        return found

    def _tell_one(self, engine: Engine, name: str, change: Row[Any]) -> bool:
        """Whether the hook got the change and this is stored."""
        # A delivered change that could not be stored as such is not delivered again by this process.
        if self._told.get(name) != change.id and not self._try(name, change):
            return False
        self._told[name] = change.id
        with suppress(DatabaseError):
            _note(engine, health_changes.c.id == change.id, f"{name}_at")
            _note(engine, and_(health_changes.c.id == change.id, self._done), "told_at")
            return True
        return False

    def _try(self, name: str, change: Row[Any]) -> bool:
        if time.monotonic() < self._due[name] and not self._ending.is_set():
            return False
        try:
            self._hooks[name](change)
        except HookError as error:
            pause = self._pauses[name]
            if pause == FIRST_PAUSE_SECONDS:
                logger.warning("the %s hook failed, retrying until it works: %s", name, error)
            self._due[name] = time.monotonic() + pause
            self._pauses[name] = min(2 * pause, LONGEST_PAUSE_SECONDS)
            return False
        if self._pauses[name] > FIRST_PAUSE_SECONDS:
            logger.info("the %s hook works again", name)
        self._pauses[name] = FIRST_PAUSE_SECONDS
        return True


def _at(name: str) -> ColumnElement[int]:
    """When a hook got a change."""
    return health_changes.c[f"{name}_at"]


def _newest(engine: Engine) -> int:
    """The highest id, or 0."""
    with transaction(engine) as connection:
        return connection.execute(select(func.max(health_changes.c.id))).scalar() or 0


def _waiting(engine: Engine, which: ColumnElement[bool]) -> Sequence[Row[Any]]:
    """Pending changes under this condition, in order."""
    query = select(health_changes).where(health_changes.c.told_at.is_(None), which)
    with transaction(engine) as connection:
        return connection.execute(query.order_by(health_changes.c.id).limit(CHANGES_AT_A_TIME)).all()


def _note(engine: Engine, which: ColumnElement[bool], column: str) -> None:
    """Sets the column to now for these pending changes."""
    now = time.time_ns() // 1_000_000
    statement = update(health_changes).where(health_changes.c.told_at.is_(None), which).values({column: now})
    with transaction(engine) as connection:
        connection.execute(statement)


def _log(change: Row[Any]) -> None:
    level = logging.INFO if change.now == "normal" else logging.WARNING
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change.since / 1000))
    logger.log(
        level,
        "%s is %s since %s (%s), was %s",
        *(change.site, change.now, since, status_in_words(change.status), change.was),
    )


def _told_of(change: Row[Any]) -> bytes:
    """JSON for command and webhook; times are Unix ms."""
    content = {
        "id": f"{change.agent}/{change.run}/{change.seq}",
        "site": change.site,
        "was": change.was,
        "now": change.now,
        "since": change.since,
        "seen_at": change.seen_at,
        "status": change.status,
        "why": _why(change),
    }
    return json.dumps(content).encode()


def _why(change: Row[Any]) -> str:
    """The status in words, or the error if that says more."""
    words = status_in_words(change.status)
    vague = change.status > 0 or change.status == _OTHER
    return change.error or words if vague else words


def _hooks(options: Options) -> dict[str, Hook]:
    """The log and the configured hooks; they raise HookError to be called again."""
    hooks: dict[str, Hook] = {"log": _log}
    seconds = options.status_hook_timeout_seconds
    if words := options.status_command_words:
        hooks["command"] = lambda change: _run_command(words, _told_of(change), seconds)
    if options.webhook:
        hooks["webhook"] = lambda change: _post(options.webhook, _told_of(change), seconds)
    return hooks


def _run_command(words: list[str], content: bytes, seconds: float) -> None:
    try:
        ended = subprocess.run(words, input=content, capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HookError(f"STATUS_COMMAND: {error}") from None
    if ended.returncode:
        output = ended.stderr.decode(errors="replace").strip()[-200:]
        raise HookError(f"STATUS_COMMAND ended with code {ended.returncode}{f': {output}' if output else ''}")


class _Unfollowed(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects, which would drop the body."""

    def redirect_request(self, *_: Any) -> None:
        """None: raises HTTPError."""


_open = urllib.request.build_opener(_Unfollowed).open


def _post(url: str, content: bytes, seconds: float) -> None:
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"}, method="POST")  # noqa: S310 - options allows http and https alone
    try:
        with _open(request, timeout=seconds) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= 500 or error.code < 400 or error.code in _PASSING:
            raise HookError(f"STATUS_WEBHOOK answered {error.code}{_pointing(error)}") from None
        logger.warning("STATUS_WEBHOOK answered %d to a change, which is not sent again", error.code)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise HookError(f"STATUS_WEBHOOK {_without_answer(error)}") from None


def _pointing(error: urllib.error.HTTPError) -> str:
    where = error.headers.get("Location")
    return f" and points at {where}, which is not followed" if where and error.code < 400 else ""


def _without_answer(error: Exception) -> str:
    # RemoteDisconnected is both: its text names the closed connection.
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
        return "sent no valid HTTP response"
    return f"did not respond: {error}"
