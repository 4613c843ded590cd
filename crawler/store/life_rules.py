"""The lives of pages in the tables (crawler.states): what a load makes of a row, and what a question makes of it.

Both are guarded. A load's rules are part of the upsert of its row: one that is older than what was last heard of the
page gives its content and leaves the life alone. A question's answer changes a row that is still in the state in which
the question was packed, and of which nothing newer was heard; so the same record twice, a late one and one of two
agents that asked the same change nothing. What a database refuses passes to the caller.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    String,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    update,
)

from crawler import states
from crawler.store.tables import pages

if TYPE_CHECKING:
    from sqlalchemy.sql.dml import Update

    from crawler.records import Asked
    from crawler.store.upsert import Rule


def _word(text: str) -> Any:
    """Spelt out: in an upsert there are no places for values but those of the row."""
    return literal_column(f"'{text}'", String)


_INIT, _VISITED = _word("init"), _word("visited")
# In these a load that fails is no step.
_STAYS = [_word(state) for state in (*states.SILENT, "dead")]
_NONE: Any = literal_column("NULL", BigInteger)


def _is_stale(new: Any, old: Any) -> Any:
    return old.last_checked > new.fetched_at


def _last_changed(new: Any, old: Any) -> Any:
    """By the text, or the bytes where there is none; a page that had neither has not changed."""
    content = func.coalesce(new.content_hash, new.sha256)
    differs = content != func.coalesce(old.content_hash, old.sha256)
    return case((differs, new.fetched_at), else_=old.last_changed)


def _next_check(new: Any, old: Any) -> Any:
    return case(
        (_is_stale(new, old), old.next_check),
        (new.state == _VISITED, _NONE),
        (or_(new.state == _INIT, old.state.in_(_STAYS)), old.next_check),
        else_=new.next_check,
    )


def _fails(new: Any, old: Any) -> Any:
    return case(
        (_is_stale(new, old), old.fails),
        (new.state == _VISITED, new.fails),
        (or_(new.state == _INIT, old.state.in_(_STAYS)), old.fails),
        else_=old.fails + new.fails,
    )


def _state(new: Any, old: Any) -> Any:
    return case(
        (_is_stale(new, old), old.state),
        (new.state == _VISITED, new.state),
        (or_(new.state == _INIT, old.state.in_(_STAYS)), old.state),
        else_=new.state,
    )


def _last_checked(new: Any, old: Any) -> Any:
    return case((_is_stale(new, old), old.last_checked), else_=new.fetched_at)


def _walked_at(new: Any, old: Any) -> Any:
    """Only a load by another job than `site` has a value, 0: the time of the walk's own load stays."""
    return case((new.walked_at.is_(None), _NONE), else_=func.coalesce(old.walked_at, old.fetched_at))


def _sitemap_lastmod(new: Any, old: Any) -> Any:
    """What was said before the load stays, if it is later."""
    known = old.sitemap_lastmod
    return case((or_(known.is_(None), known < new.sitemap_lastmod), new.sitemap_lastmod), else_=known)


# What a load makes of a row that is there; each reads what those behind it are about to change.
OF_A_LOAD: tuple[tuple[str, Rule], ...] = (
    ("last_changed", _last_changed),
    ("next_check", _next_check),
    ("fails", _fails),
    ("state", _state),
    ("last_checked", _last_checked),
    ("walked_at", _walked_at),
    ("sitemap_lastmod", _sitemap_lastmod),
)


class Step(NamedTuple):
    """What a question's answer does to its page, if the page is where the question found it."""

    site_id: int
    url_hash: int
    asked_at: int
    before: str
    after: str
    unloaded: str  # the state instead, where its content was never taken in
    failed: int  # 1: another straight failure; 0: none; -1: those before count no more
    next_check: int | None


def step(asked: Asked, site_id: int, url_hash: int, delays: tuple[float, float]) -> Step:
    """The step that a record tells of; IllegalTransition where there is none."""
    state = states.after(asked.before, asked.answer)
    brings_content = asked.answer == "answers" and 200 <= asked.status < 300
    unloaded = states.after(asked.before, asked.answer, has_body=not brings_content)
    seconds = states.delay_until_next(state, delays)
    moved = -1 if asked.answer in ("answers", "unchanged", "changed") else int(asked.answer == "silent")
    due = None if seconds is None else asked.asked_at + int(seconds * 1000)
    return Step(site_id, url_hash, asked.asked_at, asked.before, state, unloaded, moved, due)


def write(connection: Connection, steps: list[Step]) -> int:
    """Takes the steps, of one page in the order of time; how many there were."""
    if not steps:
        return 0
    ordered = sorted(steps)
    taken: int = connection.execute(_statement(), [_values(one) for one in ordered]).rowcount
    return taken


def _values(one: Step) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in one._asdict().items()}


@cache
def _statement() -> Update:
    def new(name: str, kind: Any = BigInteger) -> Any:
        return bindparam(f"new_{name}", type_=kind() if isinstance(kind, type) else kind)

    found = and_(
        pages.c.site_id == new("site_id"),
        pages.c.url_hash == new("url_hash"),
        pages.c.state == new("before", pages.c.state.type),
        or_(pages.c.last_checked.is_(None), pages.c.last_checked < new("asked_at")),
    )
    unloaded = pages.c.sha256.is_(None)
    word = pages.c.state.type
    return (
        update(pages)
        .where(found)
        .ordered_values(
            ("fails", case((new("failed") < 0, 0), else_=pages.c.fails + new("failed"))),
            ("next_check", new("next_check")),
            ("last_checked", new("asked_at")),
            ("state", case((unloaded, new("unloaded", word)), else_=new("after", word))),
        )
    )
