"""The best that any policy could do where visits cost the same at all hours and nobody signals anything.

Visits at fixed intervals, one page's freshness being (1 - exp(-x))/x with x = rate * interval; the sum is concave in
the visits' rates, so prices for the budget and for each host's one visit a period lead to the optimum. Who uses a
host's cheap hours can pass it by a little.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.simulator.page_policies import interval_worth
from benchmarks.simulator.pages import World

HALVINGS = 60
PRICES = 45


def freshness(world: World, weight: np.ndarray) -> float:
    """The largest share of this weight whose copies can be current."""
    rates = visits(world, lambda price, pages: 1 / interval_worth(weight[pages], world.rate[pages], price))
    with np.errstate(divide="ignore", invalid="ignore"):
        x = world.rate / rates
        share = np.where(rates > 0, -np.expm1(-x) / x, 0.0)
    return float((weight * share).sum() / weight.sum())


def staleness(world: World) -> float:
    """The least mean number of periods since the last visit."""
    rates = visits(world, lambda price, _: 1 / np.sqrt(2 * price))
    return float((1 / rates).mean() / 2 - 0.5)


def visits(world: World, law: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Visits a period of each page, by a law from its price to them: within the budget, one a period of each host."""
    cost = world.cost
    hosts = [np.flatnonzero(world.host == h) for h in range(world.kind.hosts)]
    low, high = 1e-9, 1e9
    for _ in range(PRICES):
        price = np.sqrt(low * high)
        rates = _polite(price * cost, hosts, law)
        if (cost * rates).sum() > world.budget:
            low = price
        else:
            high = price
    return rates


def _polite(
    price: np.ndarray, hosts: list[np.ndarray], law: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """At these prices of pages; a host that would be asked more often has a price of its own on top."""
    rates = np.empty(len(price))
    for pages in hosts:
        rates[pages] = law(price[pages], pages)
        if rates[pages].sum() <= 1:
            continue
        low, high = 0.0, float(price[pages].max()) + 1e9
        for _ in range(HALVINGS):
            extra = (low + high) / 2 if low > 1e-6 else np.sqrt(max(low, 1e-9) * high)
            rates[pages] = law(price[pages] + extra, pages)
            low, high = (extra, high) if rates[pages].sum() > 1 else (low, extra)
    return rates
