"""THE ACCOUNT that all sites share: how much of the budget is saved or overdrawn, and the price that keeps it level.

A budget is had in seconds, one a second: whatever is limited, requests or bytes, a visit costs the share that it takes
of an hour's, times 3600. Sites come one after the other, each at its time, and one may want what many windows give; so
each second that is had makes the price fall, and each second that was worth it makes it rise by as much. Sites that
come late want more, since who waits wants too. Pure; times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from crawler.recheck import price as prices

if TYPE_CHECKING:
    import numpy as np

# Windows of budget that can be saved for later, or seconds of it where those are more: with one window a twentieth to a
# seventh of the budget was lost, with four a fortieth at most; and what passes while all sites are in hand, or their
# answers on the way into the tables, is theirs when they can be looked at again.
SAVED_WINDOWS = 4.0
SAVED_SECONDS = 5.0
# By how much, as a factor's logarithm, a window's budget moves the price: it finds its place within a sweep or two, and
# moves little from one site to the next.
STEP = 0.04
# A pause of more windows moves it no further.
LONGEST_WINDOWS = 10.0
# To be so many windows late is no sign of want.
TIMELY_WINDOWS = 2.0
# Figures beyond these are no account's: one change in millions of years or 10^21 a second, a debt of thirty years.
MOST_LOG_RATE = 50.0
MOST_INFORMATION = 1e15
MOST_SECONDS = 1e9
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
    looked: float = 0.0  # last time that it was brought up to date

    @property
    def mean(self) -> Mean | None:
        """Of change rates; None: nothing is known."""
        return Mean(self.log_rate, self.information) if self.information else None


def of(fields: Mapping[str, float]) -> Account:
    """The account that was kept as these; what is not among them is as in a new one.

    Where one of them is no account's figure, somebody else wrote it: then all begins anew.
    """
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
    """The account at this time: what was had since, and a lower price. A clock that jumped back costs nothing."""
    if not account.looked:
        return account._replace(saved=0.0, looked=now)
    passed = max(now - account.looked, 0.0)
    saved = min(account.saved + passed, max(SAVED_WINDOWS * window, SAVED_SECONDS))
    down = STEP * min(passed / window, LONGEST_WINDOWS)
    return account._replace(price=prices.stepped(account.price, -down), saved=saved, looked=now)


def spent(account: Account, cost: float, wanted: float, late: float, window: float) -> Account:
    """After a site that came so late was given visits of that cost; `wanted`: of all that were worth it.

    What is given counts as it is, up to twice where the site was late; of what was left out a window at most, since
    pages that were loaded together want their visits together.
    """
    waited = min(max(late / window - TIMELY_WINDOWS, 0.0), 1.0)
    up = STEP * (cost * (1.0 + waited) + min(wanted - cost, window)) / window
    return account._replace(price=prices.stepped(account.price, up), saved=account.saved - cost)


def cost_of(size: Any, requests_an_hour: float, bytes_an_hour: float) -> np.ndarray:
    """What visits of these bytes take of the account, each; infinite budgets are `math.inf`."""
    import numpy as np  # here, since every command that looks at a site imports the account

    found: np.ndarray = HOUR * np.maximum(
        1.0 / requests_an_hour, np.asarray(size, np.float64) / bytes_an_hour
    )
    return found
