"""Questions to the tables whose answers others show: the figures at the end of a crawl.

Reads only; DatabaseError where the database does not answer. Large tables are read stretch by stretch: a transaction
that lasts keeps SQLite's log from being used again, and while a coordinator writes that grows by gigabytes. So figures
of a crawl that goes on are not of one moment: a page that changes meanwhile counts once, as it was or as it is, and
what comes meanwhile does not count.
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


# How many kinds of failure are told apart; the rest is rarely worth a line.
TOP_STATUSES = 10
# Rows of one stretch: some 20 ms of `pages` where they are in memory.
STRETCH_ROWS = 10_000


# Where a site stands that is another one under a second name.
_ALIAS = "alias"


class Summary(TypedDict):
    """A crawl in figures; counts are of sites or pages, times milliseconds since 1970 or None without a page."""

    sites: int
    sites_finished: int  # each site counts in one of these four, or is unfinished
    sites_paused: int
    sites_blocked: int
    sites_aliases: int
    aliases: int  # sites that are others under a second name, and left out
    aliases_not_asked: int  # URLs known of these that were not asked there
    same: int  # sites that have the pages of another one, and are crawled all the same
    stored: int
    duplicates: int
    redirected: int
    filtered: int
    failed: int
    failed_by_status: dict[int, int]  # the most frequent first; negative: no answer came
    denied: int
    bytes: int  # of stored pages' bodies, decoded
    first_fetch: int | None
    last_fetch: int | None
    dead_letters: int


class SiteCut(NamedTuple):
    """A site of which bounds leave URLs out."""

    site: str
    left_out: dict[str, int]  # by reason (crawler.left_out)
    budget: int | None  # of its own, in pages; None: the crawl's


class Cuts(NamedTuple):
    """What bounds leave out of a crawl."""

    sites: int
    by: dict[str, int]  # URLs by reason, the most first
    most: list[SiteCut]  # the sites of which most is left out


class Turns(NamedTuple):
    """Turns in the history: how many, and when the first and the last were; None: there were none."""

    many: int
    first: int | None
    last: int | None


def summary(engine: Engine) -> Summary:
    """The figures of everything in the database."""
    found = _outcomes(engine)
    with transaction(engine) as connection:
        alias = case((sites.c.alias_of.is_not(None), _ALIAS))
        # What the operator did comes first: pages of a site that is stopped may be pending, whatever its state.
        stands = func.coalesce(sites.c.stopped, alias, sites.c.state).label("stands")
        asked = select(stands, func.count()).group_by(stands)
        states: dict[str, int] = dict(connection.execute(asked).all())
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
    """Sites of seeds that redirect, each with a site that belongs to the crawl since they led there."""
    asked = (
        select(sites.c.source, sites.c.site).where(sites.c.source.startswith(MOVED)).order_by(sites.c.site)
    )
    with transaction(engine) as connection:
        return [(source.removeprefix(MOVED), site) for source, site in connection.execute(asked)]


def has_pages(engine: Engine) -> bool:
    """Whether any page is stored."""
    asked = select(pages.c.id).where(pages.c.outcome.in_(("stored", "duplicate"))).limit(1)
    with transaction(engine) as connection:
        return connection.execute(asked).first() is not None


def ends_since(engine: Engine, since_ms: int) -> set[str | None]:
    """How the runs ended that have begun since; None is among them where one has not, or was killed."""
    asked = select(runs.c.reason).where(runs.c.started_at >= since_ms).distinct()
    with transaction(engine) as connection:
        return set(connection.execute(asked).scalars())


def cuts(engine: Engine, most: int) -> Cuts:
    """What bounds leave out, and the `most` sites of which they leave out most."""
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
    """How many URLs bounds leave out, by reason, as a row of `sites` has it."""
    return dict(json.loads(row.left_out_by)) if row.left_out_by else {}


def turns_since(engine: Engine, since_ms: int) -> Turns:
    """What the history holds of fetches from this time on; pages that were denied were not fetched."""
    at = fetches.c.fetched_at
    asked = select(func.count(), func.min(at), func.max(at)).where(
        at >= since_ms, fetches.c.outcome != "denied"
    )
    parts = [row for row in in_stretches(engine, fetches, asked) if row[0]]
    return Turns(
        sum(many for many, _, _ in parts),
        min((first for _, first, _ in parts), default=None),
        max((last for _, _, last in parts), default=None),
    )


def in_stretches(engine: Engine, table: Table, asked: Select[*tuple[Any, ...]]) -> Iterator[Any]:
    """The rows that `asked` gives of each stretch of a table with an `id`, in order, a short transaction for each.

    Rows that come meanwhile are left out. Sums, counts and groups are those of a stretch: the caller adds them up.
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
    """The rows of `asked` in the order of one of its columns, which none shares; `most` at a time (0: as above).

    A short transaction for each time; none comes empty. What comes meanwhile is among them where its key is yet to
    come.
    """
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
    """Pages by how their last turn ended."""

    def __init__(self) -> None:
        self.pages: Counter[str] = Counter()
        self.failed: Counter[int] = Counter()  # by status
        self.bytes = 0  # of stored ones
        self.times: list[int] = []  # first and last fetch of each part


def _outcomes(engine: Engine) -> _Outcomes:
    at, outcome, status = pages.c.fetched_at, pages.c.outcome, pages.c.status
    asked = select(outcome, status, func.count(), func.sum(pages.c.size), func.min(at), func.max(at))
    found = _Outcomes()
    for name, code, many, size, first, last in in_stretches(engine, pages, asked.group_by(outcome, status)):
        found.pages[name] += many
        found.times += (first, last)
        if name == "failed":
            found.failed[code] += many
        elif name == "stored":
            found.bytes += int(size)
    return found


# ------------------------------------------------------------------------------------------------------------
# Which pages say that the archive has them: their rows' own words, for whoever compares the two.
#
# Reads in short ranges, so that no transaction stays open while files are read, and memory stays small. DatabaseError
# where the database does not answer.


# Rows read at a time.
ARCHIVED_RANGE = 1000


class ArchivedPage(NamedTuple):
    """What a row says of its capture."""

    url: str  # that was asked for
    sha256: str
    file: str
    offset: int
    length: int


def count_archived(engine: Engine) -> int:
    """How many pages say so."""
    asked = select(func.count()).select_from(pages).where(pages.c.warc_file.is_not(None))
    with transaction(engine) as connection:
        return int(connection.execute(asked).scalar_one())


def archived_pages(engine: Engine) -> Iterator[ArchivedPage]:
    """All of them, in order of arrival, which is nearly that of the files."""
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


# ------------------------------------------------------------------------------------------------------------
# Seeds of which no page is stored, or a single one that leads nowhere: what the tables know of each.
#
# A seed is a site that somebody named, or the one to which such a site redirects: that stands in its place. Reads
# only, in short stretches; DatabaseError where the database does not answer.


# A site with no more pages than these is looked at page by page: the seed, and where it redirects to.
FEW = 3
# Sites whose pages are asked for at a time: databases bound what one question may name.
CHUNK = 500
STORED = ("stored", "duplicate")


class PoorPage(NamedTuple):
    """The page that tells most of its site: the first that is no redirect, else the first."""

    url: str
    outcome: str
    status: int
    error: str
    size: int
    content_type: str
    has_text: bool
    outside_hosts: str  # JSON, a list; empty: it links to no other site
    redirect: str  # where it leads to; empty: it is no redirect


class PoorSeed(NamedTuple):
    """A seed without pages, or with one that leads to no other."""

    site: str
    found_at: int  # ms since 1970
    asked_as: str  # the site that redirects to it; empty: it was named itself
    state: str
    stopped: str  # paused or blocked; empty: neither
    reason: str  # why it ended early, or waits; empty: nothing is said
    stored: int  # pages: 0 or 1
    page: PoorPage | None  # None: no turn of any page has ended
    redirect: str  # where a page of it leads to; empty: none redirects


def count_poor_seeds(engine: Engine) -> int:
    """Seeds that were named; the sites to which they redirect are none more."""
    with transaction(engine) as connection:
        asked = select(func.count()).select_from(sites).where(sites.c.source == "seed")
        return int(connection.execute(asked).scalar_one())


def poor_seeds(engine: Engine) -> Iterator[PoorSeed]:
    """Those that are poor, in no order."""
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
    """Whether all that is known of the site is one page, and redirects to it."""
    others = sum(page.outcome != "redirected" for page in mine) - 1
    return (
        row.state == FINISHED
        and len(stored) == 1
        and not others
        and row.known <= len(mine)
        and not row.left_out
    )


def _pages(engine: Engine, rows: Iterable[Any]) -> dict[int, list[Any]]:
    """Pages by site: all of a small one; of others the first, the first no redirect, the first one not followed."""
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
    told = next(iter(stored or others or [page for page in mine if page.error] or mine), None)
    # The order is not that of the fetches where pages came in one batch; of a chain any link will do.
    led = next((page for page in mine if page.outcome == "redirected"), None)
    return PoorSeed(
        site=row.site,
        found_at=row.found_at or 0,
        asked_as=row.source.removeprefix(MOVED) if row.source.startswith(MOVED) else "",
        state=row.state,
        stopped=row.stopped or "",
        reason=row.reason or "",
        stored=len(stored),
        page=_page(told) if told is not None else None,
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
    """Whether it redirects to a site that was known before, so that this is no seed, and has pages."""
    if seed.page is None or not seed.page.redirect:
        return False
    try:
        site, _ = resolve(seed.page.redirect)
    except UrlError:
        return False
    asked = select(pages.c.id).where(pages.c.site_id == hash64(site), pages.c.outcome.in_(STORED)).limit(1)
    with transaction(engine) as connection:
        return connection.execute(asked).first() is not None
