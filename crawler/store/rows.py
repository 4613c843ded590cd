"""Converts records to rows: tuples in the order of *_COLUMNS, key columns first. Removes NUL and lone surrogates."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from crawler import states
from crawler.records import (
    Check,
    OperatorCommand,
    Page,
    PageOutcome,
    PageState,
    RecheckResult,
    RunEvent,
    SiteEnded,
    SiteFound,
    SiteOpened,
    Visit,
    hash64,
)
from crawler.store.tables import BLOCKED, FINISHED, PAUSED, QUEUED, UNFINISHED, WORD_LENGTH

# `sites.stopped` by command.
STOPPED = {"pause": PAUSED, "block": BLOCKED, "resume": None}

# A page's state after the first failure without a response.
NO_RESPONSE = states.SILENT[0]
# Hex digits of a content hash.
HASH_LENGTH = 32

Row = tuple[Any, ...]
site_id = lru_cache(maxsize=65_536)(hash64)
_encode = msgspec.json.Encoder().encode


# --- Texts ------------------------------------------------------------------------------------------------


def clean(words: str) -> str:
    """The text without NUL, lone surrogates replaced."""
    if is_clean(words):
        return words
    return words.replace("\0", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_clean(words: str) -> bool:
    """Whether the text has neither NUL nor lone surrogates."""
    if "\0" in words:
        return False
    if words.isascii():
        return True
    try:
        words.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean_page(page: Page) -> Page:
    """The page with clean texts; itself if they are."""
    # One check of the joined texts takes a sixth of the time of single checks.
    words = "".join(
        (
            page.path,
            page.asked_as,
            page.title,
            page.description,
            page.error,
            page.agent,
            page.run,
            page.site,
            page.sha256,
            page.duplicate_of,
            page.redirect,
            page.canonical,
            page.content_type,
            page.charset,
            page.language,
            page.content_hash,
            page.etag,
            page.last_modified,
            page.address,
            page.warc_file,
        )
    )
    if is_clean(words):
        return page
    changed = {name: _cleaned(value) for name, value in msgspec.structs.asdict(page).items()}
    return msgspec.structs.replace(page, **changed)


def clean_asked(asked: RecheckResult) -> RecheckResult:
    """The record with clean texts."""
    changed = {name: _cleaned(value) for name, value in msgspec.structs.asdict(asked).items()}
    return msgspec.structs.replace(asked, **changed)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(one) for one in value]
    if isinstance(value, dict):
        return {clean(name): _cleaned(one) for name, one in value.items()}
    return value


def _json(value: list[Any] | dict[str, Any]) -> str:
    try:
        words = _encode(value).decode()
    except UnicodeEncodeError:
        return _json(_cleaned(value))
    # PostgreSQL's JSON functions refuse \u0000.
    return _encode(_cleaned(value)).decode() if "\\u0000" in words else words


# --- Pages ------------------------------------------------------------------------------------------------

USUAL_COLUMNS = (
    *(
        "site_id",
        "url_hash",
        "url",
        "state",
        "outcome",
        "status",
        "depth",
        "tries",
        "size",
        "latency_ms",
        "sha256",
    ),
    *("content_type", "title", "description", "fetched_at", "links", "charset", "language", "content_hash"),
    *("media", "outside_hosts", "etag", "last_modified", "address", "wire_size", "warc_file", "warc_offset"),
    *("warc_length", "last_checked"),
)
# Empty for nine pages in ten: their rows omit these columns and use a shorter INSERT. A bound NULL takes 0.1 us.
RARE_COLUMNS = (
    *("error", "duplicate_of", "redirect", "canonical", "mail_domains", "ftp_domains", "robots", "keywords"),
    *("extracted_at", "fails", "last_changed", "next_check", "walked_at", "sitemap_lastmod"),
    *("asked_as", "extra"),
)
PAGE_COLUMNS = (*USUAL_COLUMNS, *RARE_COLUMNS)
# Columns of the page's life cycle, not of its last load.
LIFE_COLUMNS = (
    *("state", "fails", "last_checked", "last_changed", "next_check", "walked_at", "sitemap_lastmod"),
)


def page_row(page: Page, site: int, url_hash: int, links: bytes, revive_ms: int = 0) -> Row:
    """A row of `pages` for a new page with clean texts, without RARE_COLUMNS if all are empty.

    `revive_ms`: delay before revive retries a page without a response.
    """
    outcome, kept = page.outcome, page.warc_file
    state = first_state(outcome, page.status)
    # One value per line: unpacked tuples take 50 % longer.
    row = (
        site,
        url_hash,
        page.site + page.path,
        state,
        outcome,
        page.status,
        page.depth,
        page.tries,
        page.size,
        page.latency_ms,
        page.sha256 or None,
        page.content_type or None,
        page.title or None,
        page.description or None,
        page.fetched_at,
        links or None,
        page.charset[:WORD_LENGTH] or None,
        page.language[:WORD_LENGTH] or None,
        page.content_hash[:HASH_LENGTH] or None,
        _json(page.media) if page.media else None,
        _json(page.outside_hosts) if page.outside_hosts else None,
        page.etag or None,
        page.last_modified or None,
        page.address or None,
        page.wire_size,
        kept or None,
        page.warc_offset if kept else None,
        page.warc_length if kept else None,
        page.fetched_at,
    )
    rare = _rare_values(page, revive_ms if state == NO_RESPONSE else None)
    return (*row, *rare) if rare else row


def _rare_values(page: Page, revive_ms: int | None) -> Row | None:
    silent = revive_ms is not None
    if not (
        silent
        or page.error
        or page.duplicate_of
        or page.redirect
        or page.canonical
        or page.mail_domains
        or page.ftp_domains
        or page.robots
        or page.keywords
        or page.extracted_at
        or page.work != "site"
        or page.sitemap_lastmod
        or page.asked_as
        or page.extra
    ):
        return None
    return (
        page.error or None,
        page.site + page.duplicate_of if page.duplicate_of else None,
        page.redirect or None,
        page.canonical or None,
        _json(page.mail_domains) if page.mail_domains else None,
        _json(page.ftp_domains) if page.ftp_domains else None,
        _json(page.robots) if page.robots else None,
        _json(page.keywords) if page.keywords else None,
        page.extracted_at or None,
        1 if silent else 0,
        None,
        page.fetched_at + revive_ms if revive_ms is not None else None,
        None if page.work == "site" else 0,
        page.sitemap_lastmod or None,
        page.site + page.asked_as if page.asked_as else None,
        _json(page.extra) if page.extra else None,
    )


@lru_cache(maxsize=1024)
def first_state(outcome: PageOutcome, status: int) -> PageState:
    """A page's state after its first fetch."""
    return states.after(None, states.load_event(outcome, status))


FETCH_COLUMNS = (
    *("agent", "run", "seq", "site_id", "url_hash", "fetched_at", "status", "outcome", "size", "latency_ms"),
    *("wire_size", "connect_ms", "head_ms", "body_ms", "content_hash"),
)


def asked_row(asked: RecheckResult, site: int, url_hash: int) -> Row:
    """A row of `fetches`, of a recheck with clean texts."""
    return (
        *(asked.agent, asked.run, asked.seq, site, url_hash, asked.asked_at, asked.status, asked.answer, 0),
        *(asked.latency_ms, 0, asked.connect_ms, asked.head_ms, asked.body_ms, None),
    )


def fetch_row(page: Page, site: int, url_hash: int) -> Row:
    """A row of `fetches`, of a page with clean texts."""
    return (
        page.agent,
        page.run,
        page.seq,
        site,
        url_hash,
        page.fetched_at,
        page.status,
        page.outcome,
        page.size,
        page.latency_ms,
        page.wire_size,
        page.connect_ms,
        page.head_ms,
        page.body_ms,
        page.content_hash[:HASH_LENGTH] or None,
    )


# --- Sites, runs, checks, visits --------------------------------------------------------------------------

NAMED_COLUMNS = ("site_id", "site", "state", "published", "known", "over_budget")
FOUND_COLUMNS = ("site_id", "site", "found_at", "source", *NAMED_COLUMNS[2:], "found_entry")
LEFT_OUT_COLUMNS = ("left_out", "left_out_by", "left_out_hashes")
ENDED_COLUMNS = (
    *(*NAMED_COLUMNS, "ended_at", "reason", "ended_entry", "alias_of", "pending"),
    *LEFT_OUT_COLUMNS,
    "same_as",
)
OPENED_COLUMNS = (*NAMED_COLUMNS, "ended_entry", "alias_of", "pending")
STOP_COLUMNS = (*NAMED_COLUMNS, "stopped", "stopped_reason", "stopped_entry")
BUDGET_COLUMNS = (*NAMED_COLUMNS, "budget", "budget_entry")
RUN_COLUMNS = ("agent", "run", "spider", "scheduler", "started_at", "ended_at", "reason")
CHECK_COLUMNS = (
    *("crawler", "run", "seq", "code", "checked_at", "status", "latency_ms", "site_id", "url_hash", "url"),
    *("more", "digest"),
)
VISIT_COLUMNS = (
    *("agent", "run", "seq", "site_id", "hour", "seconds", "refused", "pages", "delay_seconds"),
    "hours_open",
)


def named_row(site: str) -> Row:
    """A site known by name only."""
    return (site_id(site), clean(site), QUEUED, 0, 0, 0)


def found_row(record: SiteFound, entry: int) -> Row:
    """The row of a SiteFound."""
    number, name, *rest = named_row(record.site)
    return (number, name, record.found_at, clean(record.source), *rest, entry)


def ended_row(record: SiteEnded, entry: int) -> Row:
    """The row of a SiteEnded."""
    return (
        *(site_id(record.site), clean(record.site), FINISHED if record.finished else UNFINISHED),
        *(record.published, record.known, record.over_budget, record.ended_at, clean(record.reason) or None),
        *(entry, clean(record.alias_of) or None, record.pending),
        *_left_out(record),
        None,  # same_as: a coordinator compares the pages again
    )


def opened_row(record: SiteOpened, entry: int) -> Row:
    """The row of a SiteOpened."""
    return (
        *(site_id(record.site), clean(record.site), UNFINISHED, record.published, record.known),
        *(record.over_budget, entry, None, record.pending),
    )


def _left_out(record: SiteEnded) -> Row:
    counts = {clean(reason)[:WORD_LENGTH]: many for reason, many in record.left_out.items() if many > 0}
    return (sum(counts.values()), _json(counts) if counts else None, record.left_out_hashes or None)


def stop_row(record: OperatorCommand, entry: int) -> Row:
    """The row of pause, block or resume."""
    stopped = STOPPED[record.order]
    reason = clean(record.reason) if stopped else ""
    return (*named_row(record.site), stopped, reason or None, entry)


def budget_row(record: OperatorCommand, entry: int) -> Row:
    """The row of the command budget."""
    return (*named_row(record.site), record.pages, entry)


def run_row(record: RunEvent) -> Row:
    """The row of a RunEvent."""
    return (
        *(clean(record.agent), clean(record.run), clean(record.spider), clean(record.scheduler)),
        *(record.started_at, record.ended_at or None, clean(record.reason) or None),
    )


def check_row(record: Check) -> Row:
    """The row of a Check."""
    named = bool(record.site)
    return (
        *(record.crawler, clean(record.run) or None, record.seq if record.run else None, record.code),
        *(record.checked_at, record.status, record.latency_ms),
        *((site_id(record.site), hash64(record.url)) if named else (None, None)),
        *(clean(record.url) or None, _json(record.more) if record.more else None, clean(record.digest)),
    )


def visit_row(record: Visit) -> Row:
    """The row of a Visit."""
    return (
        *(clean(record.agent), clean(record.run), record.seq, site_id(record.site), record.hour),
        *(record.seconds or None, record.refused, record.pages, record.delay_seconds),
        clean(record.hours_open)[:WORD_LENGTH] or None,
    )
