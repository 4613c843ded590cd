"""Tells of changes of sites' health: a line in the log, a command, a webhook.

A change is a row of `health_changes`, made in the transaction that stores the check that showed it; here it is told
afterwards, by a thread of one of the coordinators, so that nothing that is stored waits for it. Each hook, the log
being one, hears of every change at least once and in their order, whatever becomes of the others: one that fails is
asked again, after pauses that grow to a minute, and hears of no later change before; one that is slow keeps the others
waiting for one change at a time. Killed between telling and noting it, it tells again; `id` in what is told is then the
same.
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

# How often it is looked for changes, and how many each hook is told between two looks.
LOOK_SECONDS, CHANGES_AT_A_TIME = 1.0, 100
# A hook that waits for nothing is looked for newer changes only, else each look would go through all that waits for one
# that is dead. Now and then through all, since a transaction may end after one that began later.
ALL_SECONDS = 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
# Answers of a webhook that a later try may better; any other 4xx is its last word.
_PASSING = frozenset({408, 425, 429})
# The status of whatever has no words of its own (crawler.fetch.errors).
_OTHER = -13


def turn_key(prefix: str) -> str:
    """Held by the coordinator that tells."""
    return f"{prefix}:{{0}}:hooks"


class HookError(Exception):
    """A hook could not be told just now."""


class Hooks:
    """One coordinator's part: the one that has the turn tells. `start` once, `end` once."""

    def __init__(self, client: redis.Redis, options: Options, name: str) -> None:
        self._client = client
        self._key = turn_key(options.key_prefix)
        self._name = name.encode()
        # A turn outlasts the slowest hook, so that no other coordinator begins beside it.
        self._turn_ms = int((3 * options.status_hook_timeout_seconds + 10) * 1000)
        self._hooks = _hooks(options)
        self._due = dict.fromkeys(self._hooks, 0.0)  # monotonic
        self._pauses = dict.fromkeys(self._hooks, FIRST_PAUSE_SECONDS)
        self._told: dict[str, int] = {}  # by hook: the last change that it was told of
        self._past = dict.fromkeys(self._hooks, 0)  # no change up to this one waits for the hook
        self._all_at = 0.0  # monotonic: when all changes are to be looked through
        self._turn = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, engine: Engine) -> None:
        """Begin to tell, in a thread."""
        self._thread = threading.Thread(target=self._run, args=(engine,), name="hooks", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Tell what there is once more, no hook again that fails, and stop; what is left is the next coordinator's."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(self._turn_ms / 1000)

    def _run(self, engine: Engine) -> None:
        last = False
        while not last:
            last = self._ending.wait(LOOK_SECONDS)
            with suppress(DatabaseError):  # said where writing waits for it, if it lasts
                if self._has_turn():
                    self._tell(engine)
        with suppress(redis.RedisError):
            if self._client.get(self._key) == self._name:
                self._client.delete(self._key)

    def _has_turn(self) -> bool:
        """Takes the turn, or keeps it; while the server is away it stays where it was."""
        with suppress(redis.RedisError):
            self._turn = bool(self._client.set(self._key, self._name, nx=True, px=self._turn_ms)) or (
                self._client.get(self._key) == self._name
                and bool(self._client.pexpire(self._key, self._turn_ms))
            )
        return self._turn

    def _tell(self, engine: Engine) -> None:
        self._begin_anew(engine)
        waiting = {name: deque(self._waiting(engine, name)) for name in self._hooks}
        # One change each, round by round: a slow hook keeps the others waiting for one change only.
        while waiting := {name: changes for name, changes in waiting.items() if changes}:
            for name, changes in waiting.items():
                if not self._tell_one(engine, name, changes.popleft()):
                    changes.clear()
                self._has_turn()

    def _begin_anew(self, engine: Engine) -> None:
        """Now and then: look through all, and let go of what waits for hooks alone that are named no longer."""
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
        """Whether the hook was told, and it is noted."""
        # What was told and could not be noted is not told again, as long as this coordinator lives.
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
                logger.warning("the %s hook failed and is asked again until it works: %s", name, error)
            self._due[name] = time.monotonic() + pause
            self._pauses[name] = min(2 * pause, LONGEST_PAUSE_SECONDS)
            return False
        if self._pauses[name] > FIRST_PAUSE_SECONDS:
            logger.info("the %s hook works again", name)
        self._pauses[name] = FIRST_PAUSE_SECONDS
        return True


def _at(name: str) -> ColumnElement[int]:
    """When a hook was told of a change."""
    return health_changes.c[f"{name}_at"]


def _newest(engine: Engine) -> int:
    """Of all changes; 0: there is none."""
    with transaction(engine) as connection:
        return connection.execute(select(func.max(health_changes.c.id))).scalar() or 0


def _waiting(engine: Engine, which: ColumnElement[bool]) -> Sequence[Row[Any]]:
    """Changes that are still to be told, and which of them, in their order."""
    asked = select(health_changes).where(health_changes.c.told_at.is_(None), which)
    with transaction(engine) as connection:
        return connection.execute(asked.order_by(health_changes.c.id).limit(CHANGES_AT_A_TIME)).all()


def _note(engine: Engine, which: ColumnElement[bool], column: str) -> None:
    """That changes which are still to be told, and which of them, were told just now."""
    now = time.time_ns() // 1_000_000
    told = update(health_changes).where(health_changes.c.told_at.is_(None), which).values({column: now})
    with transaction(engine) as connection:
        connection.execute(told)


def _log(change: Row[Any]) -> None:
    level = logging.INFO if change.now == "normal" else logging.WARNING
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change.since / 1000))
    logger.log(
        level,
        "%s is %s since %s (%s), was %s",
        *(change.site, change.now, since, status_in_words(change.status), change.was),
    )


def _told_of(change: Row[Any]) -> bytes:
    """What command and webhook are given: one JSON object; times are milliseconds since 1970."""
    told = {
        "id": f"{change.agent}/{change.run}/{change.seq}",
        "site": change.site,
        "was": change.was,
        "now": change.now,
        "since": change.since,
        "seen_at": change.seen_at,
        "status": change.status,
        "why": _why(change),
    }
    return json.dumps(told).encode()


def _why(change: Row[Any]) -> str:
    """In a few words; as it was seen, at length, where these say nothing of it: an error page comes with any code."""
    words = status_in_words(change.status)
    vague = change.status > 0 or change.status == _OTHER
    return change.error or words if vague else words


def _hooks(options: Options) -> dict[str, Hook]:
    """The log, and the hooks that the settings name; each raises HookError where it is to be asked again."""
    hooks: dict[str, Hook] = {"log": _log}
    seconds = options.status_hook_timeout_seconds
    if words := options.status_command_words:
        hooks["command"] = lambda change: _run_command(words, _told_of(change), seconds)
    if options.webhook:
        hooks["webhook"] = lambda change: _post(options.webhook, _told_of(change), seconds)
    return hooks


def _run_command(words: list[str], told: bytes, seconds: float) -> None:
    try:
        ended = subprocess.run(words, input=told, capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HookError(f"STATUS_COMMAND: {error}") from None
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip()[-200:]
        raise HookError(f"STATUS_COMMAND ended with code {ended.returncode}{f': {said}' if said else ''}")


class _Unfollowed(urllib.request.HTTPRedirectHandler):
    """A redirect would be asked without what is told."""

    def redirect_request(self, *_: Any) -> None:
        """Nowhere: it comes as HTTPError."""


_open = urllib.request.build_opener(_Unfollowed).open


def _post(url: str, told: bytes, seconds: float) -> None:
    request = urllib.request.Request(url, told, {"Content-Type": "application/json"}, method="POST")  # noqa: S310 - options allows http and https alone
    try:
        with _open(request, timeout=seconds) as answer:
            answer.read(1)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= 500 or error.code < 400 or error.code in _PASSING:
            raise HookError(f"STATUS_WEBHOOK answered {error.code}{_pointing(error)}") from None
        logger.warning("STATUS_WEBHOOK answered %d to a change, and is not told of it again", error.code)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise HookError(f"STATUS_WEBHOOK {_without_answer(error)}") from None


def _pointing(error: urllib.error.HTTPError) -> str:
    where = error.headers.get("Location")
    return f" and points at {where}, which is not followed" if where and error.code < 400 else ""


def _without_answer(error: Exception) -> str:
    # A connection that was closed before any answer is one of these as well, and says so itself.
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, OSError):
        return "answered with what is not HTTP"
    return f"gave no answer: {error}"
