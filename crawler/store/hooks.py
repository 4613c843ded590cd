"""Tells of changes of sites' health: a line in the log, a command, a webhook.

A change is a row of `health_changes`, made in the transaction that stores the check that showed it; here it is told
afterwards, by a thread of one of the coordinators, so that nothing that is stored waits for it. Every hook hears of
every change at least once, in their order: one that fails is asked again, after pauses that grow to a minute, and hears
of no later change before. Killed between telling and noting it, it tells again; `id` in what is told is then the same.
"""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import redis
from sqlalchemy import select, update

from crawler.records import status_in_words
from crawler.store.database import DatabaseError, transaction
from crawler.store.tables import health_changes

if TYPE_CHECKING:
    from sqlalchemy import Engine, Row

    from crawler.options import Options

logger = logging.getLogger("coordinator")

# How often it is looked for changes, and how many are told between two looks.
LOOK_SECONDS, CHANGES_AT_A_TIME = 1.0, 100
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
# Answers of a webhook that a later try may better; any other 4xx is its last word.
_PASSING = frozenset({408, 425, 429})


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
        self._seconds = options.status_hook_timeout_seconds
        # A turn outlasts the slowest hook, so that no other coordinator begins beside it.
        self._turn_ms = int((3 * self._seconds + 10) * 1000)
        self._hooks = _hooks(options)
        self._due = dict.fromkeys(self._hooks, 0.0)  # monotonic
        self._pauses = dict.fromkeys(self._hooks, FIRST_PAUSE_SECONDS)
        self._logged: set[int] = set()  # changes whose line is written and which still wait for a hook
        self._turn = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, engine: Engine) -> None:
        """Begin to tell, in a thread."""
        self._thread = threading.Thread(target=self._run, args=(engine,), name="hooks", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Tell what there is once more, each hook once at most, and stop; what is left is the next coordinator's."""
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
        with transaction(engine) as connection:
            asked = select(health_changes).where(health_changes.c.told_at.is_(None))
            waiting = connection.execute(asked.order_by(health_changes.c.id).limit(CHANGES_AT_A_TIME)).all()
        behind: set[str] = set()  # hooks that have not heard of an earlier change
        for change in waiting:
            self._log(change)
            told = {name: self._told(name, change, behind) for name in self._hooks}
            self._note(engine, change, told)
            self._has_turn()

    def _told(self, name: str, change: Row[Any], behind: set[str]) -> bool:
        """Whether the hook has heard of the change, now or before."""
        if getattr(change, f"{name}_at") is not None:
            return True
        if name not in behind and self._try(name, change):
            return True
        behind.add(name)
        return False

    def _try(self, name: str, change: Row[Any]) -> bool:
        if time.monotonic() < self._due[name] and not self._ending.is_set():
            return False
        try:
            self._hooks[name](_told_of(change), self._seconds)
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

    def _note(self, engine: Engine, change: Row[Any], told: dict[str, bool]) -> None:
        now = time.time_ns() // 1_000_000
        values = {
            f"{name}_at": now for name, done in told.items() if done and not getattr(change, f"{name}_at")
        }
        if all(told.values()):
            values["told_at"] = now
            self._logged.discard(change.id)
        if values:
            with transaction(engine) as connection:
                connection.execute(
                    update(health_changes).where(health_changes.c.id == change.id).values(values)
                )

    def _log(self, change: Row[Any]) -> None:
        if change.id in self._logged:
            return
        self._logged.add(change.id)
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
        "why": change.error or status_in_words(change.status),
    }
    return json.dumps(told).encode()


def _hooks(options: Options) -> dict[str, Callable[[bytes, float], None]]:
    """The hooks that the settings name; each raises HookError where it is to be asked again."""
    hooks: dict[str, Callable[[bytes, float], None]] = {}
    if words := options.status_command_words:
        hooks["command"] = lambda told, seconds: _run_command(words, told, seconds)
    if options.status_webhook:
        hooks["webhook"] = lambda told, seconds: _post(options.status_webhook, told, seconds)
    return hooks


def _run_command(words: list[str], told: bytes, seconds: float) -> None:
    try:
        ended = subprocess.run(words, input=told, capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HookError(f"STATUS_COMMAND: {error}") from None
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip()[-200:]
        raise HookError(f"STATUS_COMMAND ended with code {ended.returncode}{f': {said}' if said else ''}")


def _post(url: str, told: bytes, seconds: float) -> None:
    request = urllib.request.Request(url, told, {"Content-Type": "application/json"}, method="POST")  # noqa: S310 - options allows http and https alone
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310
            answer.read(1)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= 500 or error.code < 400 or error.code in _PASSING:
            raise HookError(f"STATUS_WEBHOOK answered {error.code}") from None
        logger.warning("STATUS_WEBHOOK answered %d to a change, and is not told of it again", error.code)
    except (OSError, ValueError) as error:
        raise HookError(f"STATUS_WEBHOOK: {error}") from None
