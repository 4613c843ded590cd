"""Chooses a site's pages for recheck, and when to look at the site again. Raises DatabaseError.

A site is looked at every LOOK_SHARE of a sweep, the time in which the budget visits all pages once, or later.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from crawler.recheck import account as accounts
from crawler.recheck import change_model
from crawler.recheck.law_arrays import HEAD_BYTES
from crawler.records import hash64

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.recheck import Recrawl
    from crawler.recheck.account import Account

# Each look visits a page at most once, so this bounds the visits of a page per sweep. More looks cost more than they
# gain (docs/decisions/0008-recheck.md).
LOOK_SHARE: Final = 0.02
SHORTEST_WINDOW_SECONDS: Final = 0.5
# Resolution of times in the tables; a shorter sweep would give infinite figures.
SHORTEST_SWEEP_SECONDS: Final = 0.001
# Longest sleep of a site, in windows: the price changes in the meantime.
LONGEST_SLEEP: Final = 10.0
# When the account could not pay for everything worth it, look again after this share of a window.
SOONER: Final = 0.25
# Interval of counting all pages.
COUNT_SECONDS: Final = 30.0
# The first price is this quantile of the first site's scores after a wait of one sweep.
FIRST_QUANTILE: Final = 0.5


class Look(NamedTuple):
    """The result of looking at a site."""

    rows: list[Any]  # rows of the tables for the pages to visit, best first
    wake_ms: int  # when to look again
    account: Account
    site: change_model.Believed


class Revisits:
    """Chooses pages, one site at a time."""

    def __init__(self, engine: Engine, options: Options) -> None:
        self._engine = engine
        self._options = options
        self._pages = 0
        self._counted = -math.inf

    @property
    def mode(self) -> str:
        """RECRAWL_MODE."""
        return self._options.recrawl_mode

    def costs(self, found: change_model.Believed, numbers: list[int], now: float) -> np.ndarray:
        """Expected cost of each visit, in seconds of the account."""
        requests, volume = self._budget()
        size = np.array([found.rows[one].size for one in numbers], np.float64)
        if math.isfinite(volume) and numbers:
            size = self._foreseen(found, numbers, size, now)
        return accounts.cost_of(size, requests, volume)

    @staticmethod
    def _foreseen(
        found: change_model.Believed, numbers: list[int], size: np.ndarray, now: float
    ) -> np.ndarray:
        """Expected bytes; an unchanged page with a validator costs headers alone."""
        view = found.recrawl.view(numbers, now, 1.0)
        a, b = view.belief
        same = np.exp(-a * np.log1p(view.age / b))
        named = np.array([bool(found.rows[one].etag or found.rows[one].last_modified) for one in numbers])
        saved = np.where(named, same * np.maximum(size - HEAD_BYTES, 0.0), 0.0)
        left: np.ndarray = size - saved
        return left

    def window(self) -> float:
        """Seconds between two looks at a site."""
        return max(LOOK_SHARE * self.sweep(), SHORTEST_WINDOW_SECONDS)

    def sweep(self) -> float:
        """Seconds in which the budget visits all pages once; at least 0.001."""
        rate = self._options.recheck_requests_per_hour
        found = (
            max(self._count(), 1) * accounts.HOUR / rate if rate else self._options.recheck_interval_seconds
        )
        return max(found, SHORTEST_SWEEP_SECONDS)

    def look(self, name: str, now_ms: int, due_ms: int, account: Account, pace: float, most: int) -> Look:
        """Chooses at most `most` pages; `pace`: cost factor of this hour, 1 for an idle site."""
        now, key = now_ms / 1000, hash64(name)
        found = change_model.believed(
            self._engine,
            key,
            self._options.recrawl_mode,
            account.mean,
            mean_rate=1 / self.sweep(),
            longest_seconds=self._options.recheck_longest_seconds,
        )
        if not found.rows:
            return Look([], 0, account, found)
        self._count(at_least=len(found.rows))
        picked, wake, account = self._worth_it(found, now, account, pace)
        chosen = self._affordable(self.costs(found, picked[:most], now), picked, account)
        cost, all_cost = (float(self.costs(found, some, now).sum()) for some in (chosen, picked))
        if len(chosen) < len(picked):
            wake = now + SOONER * self.window()
        # The rest is wanted again at the next look, SOONER of a window later.
        wanted = cost + SOONER * (all_cost - cost)
        account = accounts.spent(account, cost, wanted, now - due_ms / 1000, self.window())
        mean = found.recrawl.mean
        account = account._replace(log_rate=mean.log_rate, information=mean.information)
        looked = Look([found.rows[number] for number in chosen], int(wake * 1000), account, found)
        change_model.keep(self._engine, key, found, now_ms, looked.wake_ms)
        return looked

    def _worth_it(
        self, found: change_model.Believed, now: float, account: Account, pace: float
    ) -> tuple[list[int], float, Account]:
        """Page numbers, best first; the time to look again; the account with a price."""
        recrawl, window = found.recrawl, self.window()
        numbers = list(found.rows)
        sizes = [found.rows[number].size for number in numbers]
        recrawl.note(numbers, size=self.costs(found, numbers, now))
        if account.price <= 0:
            account = account._replace(price=self._first_price(recrawl, numbers, now))
        recrawl.price = account.price
        candidates, wake = recrawl.candidates(0, now, now + window, pace)
        recrawl.note(numbers, size=sizes)
        picked = [int(one) for one in candidates if found.rows[int(one)].state == "visited"]
        return picked, min(max(wake, now + window), now + LONGEST_SLEEP * window), account

    def _affordable(self, costs: np.ndarray, picked: list[int], account: Account) -> list[int]:
        """The account may be overdrawn by one window and one page."""
        within = np.searchsorted(np.cumsum(costs), max(account.saved, 0.0) + self.window())
        return picked[: min(int(within) + 1, len(costs))]

    def _budget(self) -> tuple[float, float]:
        """Requests and bytes an hour."""
        volume = self._options.recheck_bytes_per_hour or math.inf
        return max(self._count(), 1) * accounts.HOUR / self.sweep(), volume

    def _first_price(self, recrawl: Recrawl, numbers: list[int], now: float) -> float:
        recrawl.price = 0.0
        view = recrawl.view(numbers, now + min(self.sweep(), self._options.recheck_longest_seconds / 2), 1.0)
        worth = recrawl.mode.score(view)
        if recrawl.mode.priced:
            worth = worth / view.cost
        return max(float(np.quantile(worth, FIRST_QUANTILE)), 1e-9)

    def _count(self, at_least: int = 0) -> int:
        # Counts planned sites only: counting all pages takes long.
        if time.monotonic() - self._counted > COUNT_SECONDS or at_least > self._pages:
            self._pages, self._counted = change_model.many(self._engine), time.monotonic()
        self._pages = max(self._pages, at_least)
        return self._pages
