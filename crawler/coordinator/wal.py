"""SQLite's write-ahead log, kept from growing without end while others read.

The log can begin anew only at a moment when nobody reads from it. Readers that come and go leave no such moment where
one begins before the other has ended, and the log grows for as long as they do; a single long one does the same. Who
writes can make that moment: it keeps the next write back until those who read now have ended. The readers of this
project read in short stretches (reading.in_stretches), so that is soon; for others it is not waited long.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from crawler.store.database import LOCK_SECONDS, transaction

if TYPE_CHECKING:
    from sqlalchemy import Engine

logger = logging.getLogger("coordinator")

# Twice what it has where nobody reads (wal_autocheckpoint).
MOST_BYTES = 2 * 10_000 * 8_192
# How long writing may be held up for it; how soon again, and where readers keep it from that, how soon at last.
WAIT_SECONDS = 0.2
AGAIN_SECONDS, LONGEST_AGAIN_SECONDS = 1.0, 60.0
# SQLite waits for the readers in steps that soon are longer than a reader reads, and so meets the next one. Asked anew
# after so many ms it makes short ones: then each try of 150 succeeded, and before half of them.
TRY_MS = 15
# A log that was kept from beginning anew and has so many times its measure is told.
TOLD_FACTOR = 10


class LogKeeper:
    """Of one writer; on other databases it does nothing."""

    def __init__(self, engine: Engine, most_bytes: int = MOST_BYTES) -> None:
        self._engine = engine
        self._most = most_bytes
        self._log = Path(f"{engine.url.database}-wal") if engine.dialect.name == "sqlite" else None
        self._again = 0.0  # monotonic
        self._kept = 0  # times in a row
        self._told = False

    def look(self) -> None:
        """Called after a commit: begins the log anew where it is too long and can be. DatabaseError passes."""
        if self._log is None or not self._log.exists():
            return
        size = self._log.stat().st_size
        if size <= self._most or time.monotonic() < self._again:
            return
        self._kept = self._kept + 1 if self._is_kept() else 0
        self._again = time.monotonic() + min(AGAIN_SECONDS * 2**self._kept, LONGEST_AGAIN_SECONDS)
        if not self._kept:
            self._told = False
        elif size > TOLD_FACTOR * self._most and not self._told:
            self._told = True
            logger.warning(
                "%s has %.1f GB, since somebody reads the database for long", self._log, size / 1e9
            )

    def _is_kept(self) -> bool:
        """Begins it anew; whether readers keep it from that."""
        until = time.monotonic() + WAIT_SECONDS
        with transaction(self._engine) as connection:
            connection.exec_driver_sql(f"PRAGMA busy_timeout={TRY_MS}")
            try:
                while connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar():
                    if time.monotonic() > until:
                        return True
                return False
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={LOCK_SECONDS * 1000}")
