"""Finished sites that have all the pages that MAX_PAGES_PER_SITE, or a budget of their own, allows.

What is offered to such a site is not fetched, so the site is not opened for it: its new URLs are counted as left out,
in the queue and in the tables, with those that its own pages name. A URL that is offered twice counts once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, select

from crawler.left_out import LeftOut, in_words, to_text, unpacked
from crawler.records import SiteEnded, encode, hash64
from crawler.store.database import transaction
from crawler.store.queries import counts_of
from crawler.store.tables import FINISHED, pages, sites
from crawler.urls.url import page_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from crawler.options import Options


class Refused(NamedTuple):
    """What is said of a full site once more URLs are left out of it."""

    left_out: str  # all URLs that bounds leave out (crawler.left_out.to_text)
    record: bytes  # for the tables; empty: these URLs were counted before


def refuse(engine: Engine, options: Options, site: str, paths: Collection[str]) -> Refused | None:
    """Count paths (as written, of pages that the tables do not have); None: the site is to be opened for them."""
    row = _row_of_full(engine, options, site)
    if row is None:
        return None
    left = LeftOut()
    try:
        left.replay(unpacked(row.left_out_hashes or b""))
    except ValueError:
        return None  # who opens the site counts anew, and says so
    left.add("pages", map(page_of, paths))
    before = counts_of(row)
    # The hashes may be a sample; of known URLs the row has the exact number.
    many = max(left.counts.get("pages", 0), before.get("pages", 0))
    counts = {**before, "pages": many} if many else before
    record = b"" if counts == before else encode(_ended(site, row, left, counts))
    return Refused(to_text(counts), record)


def _row_of_full(engine: Engine, options: Options, site: str) -> Any:
    """The row of a finished site that has all its pages; None: it may have more."""
    key = hash64(site)
    with transaction(engine) as db:
        row = db.execute(select(sites).where(sites.c.site_id == key, sites.c.state == FINISHED)).first()
        most = 0 if row is None else options.max_pages_per_site if row.budget is None else row.budget
        if not most:
            return None
        held = db.execute(select(func.count()).where(pages.c.site_id == key)).scalar() or 0
    return row if held >= most else None


def _ended(site: str, row: Any, left: LeftOut, counts: dict[str, int]) -> SiteEnded:
    """The site's last record, with more that is left out."""
    return SiteEnded(
        site=site,
        ended_at=row.ended_at or 0,
        finished=True,
        published=row.published,
        known=row.known,
        over_budget=row.over_budget,
        left_out=counts,
        left_out_hashes=left.packed({}),
        pending=row.pending or 0,
        reason=_reason(row.reason or "", counts_of(row), counts),
    )


def _reason(reason: str, before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """The site's reason, which says what is left out (crawler.agent.publisher)."""
    old, new = (f"left out: {in_words(counts)}" for counts in (before, now))
    return reason.replace(old, new) if old in reason else "; ".join(filter(None, (reason, new)))
