"""Read-only queries for reports, in short transactions, since long ones make SQLite's WAL grow.

So figures of a running crawl are no snapshot. Raises DatabaseError if the database does not answer.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from sqlalchemy import Column, Engine, Select, Table, bindparam, case, exists, func, or_, select, true

from crawler.records import MOVED, hash64
from crawler.store.database import transaction
from crawler.store.tables import BLOCKED, FINISHED, PAUSED, dead_letters, fetches, pages, runs, sites
from crawler.urls.url import UrlError, resolve

if TYPE_CHECKING:
    from sqlalchemy.sql import ColumnElement


# How many statuses of failures a summary lists.
TOP_STATUSES = 10
# Rows per range: about 20 ms of `pages` from memory.
STRETCH_ROWS = 10_000


# The group of sites that are aliases of others.
_ALIAS = "alias"


class Summary(TypedDict):
    """A crawl's figures; times are Unix ms, None without pages."""

    sites: int
    sites_finished: int  # each site counts in one of these four, or it is unfinished
    sites_paused: int
    sites_blocked: int
    sites_aliases: int
    aliases: int  # sites that are second names of others and not crawled
    aliases_not_asked: int  # known URLs of these that were not fetched
    same: int  # sites with the same pages as another one that are crawled anyway
    stored: int
    duplicates: int
    redirected: int
    filtered: int
    failed: int
    failed_by_status: dict[int, int]  # the most frequent first; negative: no response
    denied: int
    bytes: int  # of stored pages' bodies, decoded
    first_fetch: int | None
    last_fetch: int | None
    dead_letters: int


class SiteCut(NamedTuple):
    """A site with URLs outside the limits."""

    site: str
    left_out: dict[str, int]  # by reason (crawler.left_out)
    budget: int | None  # its own, in pages; None: the crawl's


class Cuts(NamedTuple):
    """URLs outside the limits."""

    sites: int
    by: dict[str, int]  # URLs by reason, descending
    most: list[SiteCut]  # the sites with most of these URLs


class Turns(NamedTuple):
    """Number of fetches, and the first and last one's time; None without fetches."""

    many: int
    first: int | None
    last: int | None


def summary(engine: Engine) -> Summary:
    """The figures of the whole database."""
    found = _outcomes(engine)
    with transaction(engine) as connection:
        alias = case((sites.c.alias_of.is_not(None), _ALIAS))
        # The operator's command takes precedence over the state: a stopped site may have pending pages.
        stands = func.coalesce(sites.c.stopped, alias, sites.c.state).label("stands")
        query = select(stands, func.count()).group_by(stands)
        states: dict[str, int] = dict(connection.execute(query).all())
        letters = connection.execute(select(func.count()).select_from(dead_letters)).scalar_one()
        named = select(func.count(), func.sum(sites.c.pending)).where(sites.c.alias_of.is_not(None))
        aliases, not_asked = connection.execute(named).one()
        same = connection.execute(select(func.count(sites.c.same_as))).scalar_one()
    failed = sorted(found.failed.items(), key=lambda one: (-one[1], one[0]))
    return Summary(
        sites=sum(states.values()),
        sites_finished=states.get(FINISHED, 0),
        sites_paused=states.get(PAUSED, 0),
        sites_blocked=states.get(BLOCKED, 0),
        sites_aliases=states.get(_ALIAS, 0),
        aliases=aliases,
        aliases_not_asked=int(not_asked or 0),
        same=same,
        stored=found.pages["stored"],
        duplicates=found.pages["duplicate"],
        redirected=found.pages["redirected"],
        filtered=found.pages["filtered"],
        failed=found.pages["failed"],
        failed_by_status=dict(failed[:TOP_STATUSES]),
        denied=found.pages["denied"],
        bytes=found.bytes,
        first_fetch=min(found.times, default=None),
        last_fetch=max(found.times, default=None),
        dead_letters=letters,
    )


def moved(engine: Engine) -> list[tuple[str, str]]:
    """Pairs of a redirecting seed site and the site that the redirect added."""
    query = (
        select(sites.c.source, sites.c.site).where(sites.c.source.startswith(MOVED)).order_by(sites.c.site)
    )
    with transaction(engine) as connection:
        return [(source.removeprefix(MOVED), site) for source, site in connection.execute(query)]


def has_pages(engine: Engine) -> bool:
    """Whether any page is stored."""
    query = select(pages.c.id).where(pages.c.outcome.in_(("stored", "duplicate"))).limit(1)
    with transaction(engine) as connection:
        return connection.execute(query).first() is not None


def ends_since(engine: Engine, since_ms: int) -> set[str | None]:
    """Reasons why runs begun since then ended; None: running or killed."""
    query = select(runs.c.reason).where(runs.c.started_at >= since_ms).distinct()
    with transaction(engine) as connection:
        return set(connection.execute(query).scalars())


def cuts(engine: Engine, most: int) -> Cuts:
    """URLs outside the limits, and the `most` most affected sites."""
    cut = select(sites.c.site_id, sites.c.site, sites.c.left_out_by, sites.c.budget).where(
        sites.c.left_out > 0
    )
    many, by = 0, Counter[str]()
    for rows in by_key(engine, cut, sites.c.site_id):
        many += len(rows)
        for row in rows:
            by.update(counts_of(row))
    if not many:
        return Cuts(0, {}, [])
    with transaction(engine) as connection:
        first = connection.execute(cut.order_by(sites.c.left_out.desc(), sites.c.site).limit(most)).all()
    return Cuts(
        many, dict(by.most_common()), [SiteCut(row.site, counts_of(row), row.budget) for row in first]
    )


def counts_of(row: Any) -> dict[str, int]:
    """URLs outside the limits by reason."""
    return dict(json.loads(row.left_out_by)) if row.left_out_by else {}


def turns_since(engine: Engine, since_ms: int) -> Turns:
    """The fetches since then, without denied pages."""
    at = fetches.c.fetched_at
    query = select(func.count(), func.min(at), func.max(at)).where(
        at >= since_ms, fetches.c.outcome != "denied"
    )
    parts = [row for row in in_stretches(engine, fetches, query) if row[0]]
    return Turns(
        sum(many for many, _, _ in parts),
        min((first for _, first, _ in parts), default=None),
        max((last for _, _, last in parts), default=None),
    )


def in_stretches(engine: Engine, table: Table, asked: Select[*tuple[Any, ...]]) -> Iterator[Any]:
    """Runs `asked` on each range of a table's `id` up to the present maximum; yields the rows in order.

    Aggregates are per range.
    """
    number = table.c.id
    with transaction(engine) as connection:
        top = connection.execute(select(func.max(number))).scalar()
    after = None if top is None else -1
    while after is not None and top is not None and after < top:
        some = (
            select(number)
            .where(number > after, number <= top)
            .order_by(number)
            .limit(STRETCH_ROWS)
            .subquery()
        )
        with transaction(engine) as connection:
            until = connection.execute(select(func.max(some.c.id))).scalar()
            rows = connection.execute(asked.where(number > after, number <= until)).all() if until else []
        yield from rows
        after = until


def by_key(
    engine: Engine, asked: Select[*tuple[Any, ...]], key: Column[int], most: int = 0
) -> Iterator[Sequence[Any]]:
    """Yields at most `most` rows (0: STRETCH_ROWS) at a time by a unique column, one transaction each."""
    most = most or STRETCH_ROWS
    after: int | None = None
    while True:
        page = asked.order_by(key).limit(most)
        with transaction(engine) as connection:
            rows = connection.execute(page if after is None else page.where(key > after)).all()
        if rows:
            yield rows
        if len(rows) < most:
            return
        after = getattr(rows[-1], key.name)


class _Outcomes:
    def __init__(self) -> None:
        self.pages: Counter[str] = Counter()
        self.failed: Counter[int] = Counter()  # by status
        self.bytes = 0  # of stored pages
        self.times: list[int] = []  # first and last fetch of each range


def _outcomes(engine: Engine) -> _Outcomes:
    at, outcome, status = pages.c.fetched_at, pages.c.outcome, pages.c.status
    query = select(outcome, status, func.count(), func.sum(pages.c.size), func.min(at), func.max(at))
    found = _Outcomes()
    for name, code, many, size, first, last in in_stretches(engine, pages, query.group_by(outcome, status)):
        found.pages[name] += many
        found.times += (first, last)
        if name == "failed":
            found.failed[code] += many
        elif name == "stored":
            found.bytes += int(size)
    return found


# --- Archived pages ---------------------------------------------------------------------------------------


# Rows read at a time.
ARCHIVED_RANGE = 1000


class ArchivedPage(NamedTuple):
    """A page's capture, as its row names it."""

    url: str  # as requested
    sha256: str
    file: str
    offset: int
    length: int


def count_archived(engine: Engine) -> int:
    """The number of pages with a capture."""
    query = select(func.count()).select_from(pages).where(pages.c.warc_file.is_not(None))
    with transaction(engine) as connection:
        return int(connection.execute(query).scalar_one())


def archived_pages(engine: Engine) -> Iterator[ArchivedPage]:
    """All pages with a capture, by id."""
    last = 0
    while True:
        with transaction(engine) as connection:
            rows = connection.execute(_range, {"after": last}).all()
        if not rows:
            return
        last = rows[-1].id
        for _, url, sha256, *place in rows:
            yield ArchivedPage(url, sha256 or "", *place)


_range = (
    select(
        pages.c.id,
        func.coalesce(pages.c.asked_as, pages.c.url).label("asked_as"),
        pages.c.sha256,
        pages.c.warc_file,
        pages.c.warc_offset,
        pages.c.warc_length,
    )
    .where(pages.c.id > bindparam("after"), pages.c.warc_file.is_not(None))
    .order_by(pages.c.id)
    .limit(ARCHIVED_RANGE)
)


# --- Poor seeds -------------------------------------------------------------------------------------------


# All pages of sites with at most this number are read: the seed, and the pages it redirects to.
FEW = 3
# Sites per query: databases limit the number of parameters.
CHUNK = 500
STORED = ("stored", "duplicate")


class PoorPage(NamedTuple):
    """A site's first page that is not a redirect, else its first page."""

    url: str
    outcome: str
    status: int
    error: str
    size: int
    content_type: str
    has_text: bool
    outside_hosts: str  # JSON, a list; empty: it links to no other site
    redirect: str  # its target; empty: it is no redirect


class PoorSeed(NamedTuple):
    """A seed site, or its redirect target, without stored pages or with one without links."""

    site: str
    found_at: int  # ms since 1970
    asked_as: str  # the seed's site that redirects to it; empty: it is the seed
    state: str
    stopped: str  # paused or blocked; empty: neither
    reason: str  # why it ended early, or waits; empty: no reason
    stored: int  # pages: 0 or 1
    page: PoorPage | None  # None: no fetch of any page has ended
    redirect: str  # target of one of its pages; empty: no page redirects


def count_poor_seeds(engine: Engine) -> int:
    """The number of seed sites, without redirect targets."""
    with transaction(engine) as connection:
        query = select(func.count()).select_from(sites).where(sites.c.source == "seed")
        return int(connection.execute(query).scalar_one())


def poor_seeds(engine: Engine) -> Iterator[PoorSeed]:
    """All poor seeds, unordered."""
    led_on = {seed for seed, _ in moved(engine)}
    for rows in by_key(engine, _candidates(), sites.c.site_id):
        for first in range(0, len(rows), CHUNK):
            some = [row for row in rows[first : first + CHUNK] if row.site not in led_on]
            yield from _of_chunk(engine, some)


def _is_seed() -> ColumnElement[bool]:
    named = or_(sites.c.source == "seed", sites.c.source.startswith(MOVED))
    return named & sites.c.alias_of.is_(None)


def _candidates() -> Select[Any]:
    stored = exists().where(pages.c.site_id == sites.c.site_id, pages.c.outcome.in_(STORED))
    names = (
        "site_id",
        "site",
        "source",
        "found_at",
        "state",
        "stopped",
        "reason",
        "published",
        "known",
        "left_out",
    )
    columns = [sites.c[name] for name in names]
    return select(*columns).where(_is_seed(), or_(sites.c.published <= FEW, ~stored))


def _of_chunk(engine: Engine, rows: Sequence[Any]) -> Iterator[PoorSeed]:
    found = _pages(engine, rows)
    for row in rows:
        mine = found[row.site_id]
        stored = [page for page in mine if page.outcome in STORED]
        if stored and not _is_single(row, mine, stored):
            continue
        seed = _seed(row, mine, stored)
        if stored or not _leads_to_stored(engine, seed):
            yield seed


def _is_single(row: Any, mine: Sequence[Any], stored: Sequence[Any]) -> bool:
    """Whether the site has one known page, besides redirects."""
    others = sum(page.outcome != "redirected" for page in mine) - 1
    return (
        row.state == FINISHED
        and len(stored) == 1
        and not others
        and row.known <= len(mine)
        and not row.left_out
    )


def _pages(engine: Engine, rows: Iterable[Any]) -> dict[int, list[Any]]:
    """All pages of small sites; of others the first, the first non-redirect, the first failed redirect."""
    found: dict[int, list[Any]] = defaultdict(list)
    small = [row.site_id for row in rows if row.published <= FEW]
    large = [row.site_id for row in rows if row.published > FEW]
    with transaction(engine) as connection:
        numbers: list[int] = []
        redirected = pages.c.outcome == "redirected"
        for kind in (true(), ~redirected, redirected & (pages.c.error != "")) if large else ():
            first = select(func.min(pages.c.id)).where(pages.c.site_id.in_(large), kind)
            numbers += connection.execute(first.group_by(pages.c.site_id)).scalars()
        for which in (pages.c.site_id.in_(small), pages.c.id.in_(numbers)):
            for page in connection.execute(select(*_PAGE).where(which).order_by(pages.c.id)):
                found[page.site_id].append(page)
    return found


_PAGE = (
    pages.c.site_id,
    pages.c.url,
    pages.c.outcome,
    pages.c.status,
    pages.c.error,
    pages.c.size,
    pages.c.content_type,
    pages.c.content_hash,
    pages.c.outside_hosts,
    pages.c.redirect,
)


def _seed(row: Any, mine: Sequence[Any], stored: Sequence[Any]) -> PoorSeed:
    others = [page for page in mine if page.outcome != "redirected"]
    shown = next(iter(stored or others or [page for page in mine if page.error] or mine), None)
    # Pages of one batch are not in the order of their fetches; any redirect of a chain will do.
    led = next((page for page in mine if page.outcome == "redirected"), None)
    return PoorSeed(
        site=row.site,
        found_at=row.found_at or 0,
        asked_as=row.source.removeprefix(MOVED) if row.source.startswith(MOVED) else "",
        state=row.state,
        stopped=row.stopped or "",
        reason=row.reason or "",
        stored=len(stored),
        page=_page(shown) if shown is not None else None,
        redirect=(led.redirect or "") if led is not None else "",
    )


def _page(row: Any) -> PoorPage:
    return PoorPage(
        url=row.url,
        outcome=row.outcome,
        status=row.status,
        error=row.error or "",
        size=row.size,
        content_type=row.content_type or "",
        has_text=row.content_hash is not None,
        outside_hosts=row.outside_hosts or "",
        redirect=row.redirect or "",
    )


def _leads_to_stored(engine: Engine, seed: PoorSeed) -> bool:
    """Whether it redirects to another known site with pages."""
    if seed.page is None or not seed.page.redirect:
        return False
    try:
        site, _ = resolve(seed.page.redirect)
    except UrlError:
        return False
    query = select(pages.c.id).where(pages.c.site_id == hash64(site), pages.c.outcome.in_(STORED)).limit(1)
    with transaction(engine) as connection:
        return connection.execute(query).first() is not None
