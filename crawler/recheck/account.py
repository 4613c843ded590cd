"""The recheck budget shared by all sites, in seconds, and the price that keeps it level. Pure.

It accrues one second per second. A visit costs its share of an hour's requests or bytes, times 3600.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from crawler.recheck import price as prices

if TYPE_CHECKING:
    import numpy as np

# The balance is capped at this many windows, or at SAVED_SECONDS if that is more. One window lost 5 to 14 % of the
# budget, four lose 2.5 % at most. SAVED_SECONDS covers the time in which all sites are leased or being stored.
SAVED_WINDOWS = 4.0
SAVED_SECONDS = 5.0
# How far one window's budget moves the price (logarithm of a factor): it settles within a sweep or two and changes
# little between two sites.
STEP = 0.04
# A longer pause moves it no further.
LONGEST_WINDOWS = 10.0
# Lateness up to this many windows does not raise the price.
TIMELY_WINDOWS = 2.0
# Stored figures beyond these are invalid: one change in millions of years or 10^21 a second, a debt of thirty years.
MOST_LOG_RATE = 50.0
MOST_INFORMATION = 1e15
MOST_SECONDS = 1e9
# The budget accrues one second per second: 3600 an hour.
HOUR = 3600.0


class Mean(NamedTuple):
    """Mean change rate of all pages: logarithm of changes per second, and the information about it."""

    log_rate: float
    information: float


class Account(NamedTuple):
    """The budget's state, stored in Redis."""

    price: float = 0.0  # 0: unknown
    log_rate: float = 0.0  # of Mean; its information is 0 before the first visit
    information: float = 0.0
    saved: float = 0.0  # below 0: overdrawn
    looked: float = 0.0  # time of the last accrual

    @property
    def mean(self) -> Mean | None:
        """Mean change rate; None before the first visit."""
        return Mean(self.log_rate, self.information) if self.information else None


def of(fields: Mapping[str, float]) -> Account:
    """The account stored as these fields; a new one if a figure is invalid."""
    account = Account(**{name: value for name, value in fields.items() if name in Account._fields})
    return account if _is_one(account) else Account()


def _is_one(account: Account) -> bool:
    return (
        (account.price == 0.0 or prices.LEAST <= account.price <= prices.MOST)
        and abs(account.log_rate) <= MOST_LOG_RATE
        and 0.0 <= account.information <= MOST_INFORMATION
        and abs(account.saved) <= MOST_SECONDS
        and 0.0 <= account.looked < math.inf
    )


def brought_up(account: Account, now: float, window: float) -> Account:
    """Accrues the budget until `now` and lowers the price. A clock that goes back changes nothing."""
    if not account.looked:
        return account._replace(saved=0.0, looked=now)
    passed = max(now - account.looked, 0.0)
    saved = min(account.saved + passed, max(SAVED_WINDOWS * window, SAVED_SECONDS))
    down = STEP * min(passed / window, LONGEST_WINDOWS)
    return account._replace(price=prices.stepped(account.price, -down), saved=saved, looked=now)


def spent(account: Account, cost: float, wanted: float, late: float, window: float) -> Account:
    """After visits of `cost` on a site; `wanted`: cost of all its visits worth it; `late`: seconds it was overdue."""
    waited = min(max(late / window - TIMELY_WINDOWS, 0.0), 1.0)
    up = STEP * (cost * (1.0 + waited) + min(wanted - cost, window)) / window
    return account._replace(price=prices.stepped(account.price, up), saved=account.saved - cost)


def cost_of(size: Any, requests_an_hour: float, bytes_an_hour: float) -> np.ndarray:
    """Seconds of the account per visit; an unlimited budget is `math.inf`."""
    import numpy as np  # deferred: every command that shows a site imports this module

    found: np.ndarray = HOUR * np.maximum(
        1.0 / requests_an_hour, np.asarray(size, np.float64) / bytes_an_hour
    )
    return found
