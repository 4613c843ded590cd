"""Figures for `scrapy report freshness`, from the stored estimates.

Without Redis, figures that depend on the price are left out. Raises DatabaseError, PageUnknownError.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from sqlalchemy import select

from crawler.recheck import Recrawl, value
from crawler.recheck import account as accounts
from crawler.recheck.change_model import Believed, believed, many
from crawler.recheck.packing import UnreadableError
from crawler.recheck.revisits import Revisits
from crawler.records import hash64
from crawler.store.database import DatabaseError, transaction
from crawler.store.tables import beliefs, pages, sites
from crawler.urls.url import UrlError, split_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sqlalchemy import Engine

    from crawler.options import Options
    from crawler.recheck.account import Account

HOUR: Final = 3600.0
DAY: Final = 86_400.0
# Bounds of the staleness distribution, seconds.
STALE_BOUNDS: Final = (HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY)
# Read sites until they have this many pages of 22 bytes; a site counts as at least FEWEST_PAGES.
PAGES_AT_A_TIME, FEWEST_PAGES = 100_000, 100
# Hours ahead in the report.
AHEAD: Final = (1, 2, 3, 6, 12, 24)


def account_of(fields: Mapping[str, float]) -> Account | None:
    """The account stored in Redis; None: missing."""
    return accounts.of(fields) if fields else None


class PageUnknownError(DatabaseError):
    """No page under recheck has this URL."""


class Site(NamedTuple):
    """One site's figures."""

    current: np.ndarray  # probability that each page's copy is current
    age: np.ndarray  # seconds since each page's last visit
    weight: np.ndarray
    due: dict[int, int]  # hours ahead -> pages that are worth a visit by then; empty without a price


def standing(engine: Engine, options: Options, account: Account | None) -> list[Site]:
    """Every site planned so far."""
    now = time.time()
    # Cost of a visit in budget seconds, as for a budget of requests alone.
    cost = HOUR / max(budget(engine, options), 1e-9)
    found = (_site(packed, options, account, now, cost) for packed in _packed(engine))
    return [site for site in found if site is not None]


def budget(engine: Engine, options: Options) -> float:
    """Visits an hour within the budget."""
    seconds = Revisits(engine, options).sweep()
    return many(engine) * HOUR / seconds


def explained(engine: Engine, options: Options, account: Account | None, url: str) -> dict[str, Any]:
    """The parts of one page's score."""
    url = _canonical(url)
    with transaction(engine) as connection:
        row = connection.execute(
            select(pages.c.site_id, pages.c.url_hash, sites.c.site)
            .join(sites, sites.c.site_id == pages.c.site_id)
            .where(pages.c.url_hash == hash64(url), pages.c.url == url)
        ).first()
    if row is None:
        raise PageUnknownError(f"{url} is not among the pages; expected the URL of a loaded page")
    mean = account.mean if account else None
    found = believed(
        engine, row.site_id, options.recrawl_mode, mean, longest_seconds=options.recheck_longest_seconds
    )
    number = next((n for n, page in found.rows.items() if page.url_hash == row.url_hash), None)
    if number is None:
        raise PageUnknownError(f"{url} was never loaded or is dead, so recheck does not visit it")
    return _parts(found, number, Revisits(engine, options), account)


def _canonical(url: str) -> str:
    try:
        return "".join(split_page(url))
    except UrlError as error:
        raise PageUnknownError(f"{error}, so it is not among the pages") from None


def _packed(engine: Engine) -> Iterator[bytes]:
    with transaction(engine) as connection:
        query = select(beliefs.c.site_id, beliefs.c.pages).order_by(beliefs.c.site_id)
        known = connection.execute(query).all()
    for first, last in _stretches(known):
        some = select(beliefs.c.packed).where(beliefs.c.site_id.between(first, last))
        with transaction(engine) as connection:
            kept = connection.execute(some).scalars().all()
        yield from kept


def _stretches(known: Sequence[Any]) -> Iterator[tuple[int, int]]:
    held, first = 0, None
    for place, (site_id, pages_there) in enumerate(known, 1):
        first = site_id if first is None else first
        held += max(pages_there, FEWEST_PAGES)
        if held >= PAGES_AT_A_TIME or place == len(known):
            yield first, site_id
            held, first = 0, None


def _site(packed: bytes, options: Options, account: Account | None, now: float, cost: float) -> Site | None:
    recrawl = Recrawl([], [], mode=options.recrawl_mode, longest_seconds=options.recheck_longest_seconds)
    if account and account.mean:
        recrawl.mean = account.mean
    try:
        numbers = recrawl.unpack(0, packed)
    except UnreadableError:
        return None
    view = recrawl.view(numbers, now, 1.0)
    a, b = view.belief
    current = np.exp(-a * np.log1p(view.age / b))
    return Site(
        current,
        now - recrawl.last_visits(numbers),
        view.weight,
        _due(recrawl, numbers, account, now, cost),
    )


def _due(
    recrawl: Recrawl, numbers: np.ndarray, account: Account | None, now: float, cost: float
) -> dict[int, int]:
    """Hours ahead -> pages due by then; `cost`: budget seconds of a visit."""
    if account is None or account.price <= 0:
        return {}
    recrawl.price = account.price
    recrawl.note(numbers, size=cost)
    floor = 0.0 if recrawl.mode.priced else account.price
    return {
        hours: int((recrawl.mode.score(recrawl.view(numbers, now + hours * HOUR, 1.0)) > floor).sum())
        for hours in AHEAD
    }


def _parts(found: Believed, number: int, revisits: Revisits, account: Account | None) -> dict[str, Any]:
    now, recrawl, row = time.time(), found.recrawl, found.rows[number]
    cost = float(revisits.costs(found, [number], now)[0])
    recrawl.note([number], size=cost)
    view = recrawl.view([number], now, 1.0)
    a, b = (float(one[0]) for one in view.belief)
    age = float(view.age[0])
    parts: dict[str, Any] = {
        "url": row.url,
        "state": row.state,
        "mode": revisits.mode,
        "age_seconds": now - float(recrawl.last_visits([number])[0]),
        "changes_a_day": a / b * DAY,
        "changes_seen": a - 0.5 if a > 0.5 else 0.0,
        "current": value.current(a, b, age),
        "importance": float(view.weight[0]),
        "value_seconds": value.visit_value(a, b, age),
        "cost_seconds": cost,
        "price": account.price if account else None,
    }
    if account and account.price > 0:
        recrawl.price = account.price
        parts["floor"] = 0.0 if recrawl.mode.priced else account.price
        parts["score"] = float(recrawl.mode.score(recrawl.view([number], now, 1.0))[0])
        parts["worth_it_in_seconds"] = _worth_it_in(recrawl, number, now, account.price)
    return parts


def _worth_it_in(recrawl: Recrawl, number: int, now: float, price: float) -> float | None:
    """Seconds until the page is worth its price; None: not within a year."""
    floor = 0.0 if recrawl.mode.priced else price
    waits = np.concatenate([[0.0], np.geomspace(1.0, 365 * DAY, 200)])
    for wait in waits:
        if recrawl.mode.score(recrawl.view([number], now + float(wait), 1.0))[0] > floor:
            return float(wait)
    return None
