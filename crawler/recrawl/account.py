"""THE ACCOUNT that all sites share: how much of the budget is saved or overdrawn, and the price that keeps it level.

A budget is had in seconds, one a second: whatever is limited, requests or bytes, a visit costs the share that it takes
of an hour's, times 3600. Sites come one after the other, each at its time; so the price is moved once a window, by what
was worth it among those that came and how late they came, since who waits wants too. Pure; times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from crawler.recrawl import price as prices

# Windows of budget that can be saved for later.
SAVED_WINDOWS = 1.0
# A site this many windows late counts no more than that.
LATEST_WINDOWS = 10.0
# Visits in an hour, where one a second is all that the budget gives.
HOUR = 3600.0


class Mean(NamedTuple):
    """The mean change rate of all pages: its logarithm (of changes a second), and the information gathered on it."""

    log_rate: float
    information: float


class Account(NamedTuple):
    """Where things stand; carried from one look to the next, and from one process to another."""

    price: float = 0.0  # 0: not found yet
    log_rate: float = 0.0  # of Mean; its information is 0 before the first visit
    information: float = 0.0
    saved: float = 0.0  # below 0: overdrawn
    wanted: float = 0.0  # in this window
    began: float = 0.0  # this window
    looked: float = 0.0  # last time that it was brought up to date

    @property
    def mean(self) -> Mean | None:
        """Of change rates; None: nothing is known."""
        return Mean(self.log_rate, self.information) if self.information else None


def of(fields: Mapping[str, float]) -> Account:
    """The account that was kept as these; what is not among them is as in a new one."""
    return Account(**{name: value for name, value in fields.items() if name in Account._fields})


def brought_up(account: Account, now: float, window: float) -> Account:
    """The account at this time; where a window is over the price has moved. A clock that jumped back costs nothing."""
    if not account.looked:
        return account._replace(saved=0.0, began=now, looked=now)
    passed = max(now - account.looked, 0.0)
    saved = min(account.saved + passed, SAVED_WINDOWS * window)
    account = account._replace(saved=saved, looked=now)
    lasted = now - account.began
    if 0 <= lasted < window:
        return account
    return account._replace(price=_moved(account, lasted, window), wanted=0.0, began=now)


def _moved(account: Account, lasted: float, window: float) -> float:
    """The price after so long; a step for each window that passed."""
    price = account.price
    if price > 0 and lasted > 0:
        for _ in range(int(min(lasted / window, LATEST_WINDOWS))):
            price = prices.moved(price, account.wanted, lasted)
    return price


def spent(account: Account, cost: float, wanted: float, late: float, window: float) -> Account:
    """After a site that came so late was given visits of that cost; `wanted`: of all that were worth it."""
    waited = min(max(late, 0.0) / window, LATEST_WINDOWS)
    return account._replace(saved=account.saved - cost, wanted=account.wanted + wanted * (1.0 + waited))


def cost_of(size: float, requests_an_hour: float, bytes_an_hour: float) -> float:
    """What a visit takes of the account; infinite budgets are `math.inf`."""
    return HOUR * max(1.0 / requests_an_hour, size / bytes_an_hour if math.isfinite(bytes_an_hour) else 0.0)
