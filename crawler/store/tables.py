"""The tables in SQLAlchemy Core, the same on SQLite, PostgreSQL and MariaDB.

Texts compare byte by byte, no value is truncated, times are Unix ms, NULL means "none". Changes need a revision in
migrations/versions (a test compares them).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

metadata = MetaData()

# SQLite autoincrements keys only if their type is exactly INTEGER.
_Key = BigInteger().with_variant(Integer(), "sqlite")
# MariaDB's TEXT and BLOB end at 65,535 bytes; a title or a page's links may be longer.
_Words: TypeEngine[str] = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_Long: TypeEngine[str] = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_Bytes: TypeEngine[bytes] = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
# Names of agents and runs are parts of keys, which have a maximum length on MariaDB.
_Name = String(191)
WORD_LENGTH = 32
_Word = String(WORD_LENGTH)


def _table(name: str, *parts: Any, **more: Any) -> Table:
    # Binary collation: /A and /a are different pages, and so are e and é.
    options: dict[str, Any] = {
        f"{dialect}_{option}": value
        for dialect in ("mysql", "mariadb")
        for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"), ("engine", "InnoDB"))
    }
    return Table(name, metadata, *parts, **options, **more)


def _filled(name: str, kind: Any, **more: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **more)


sites = _table(
    "sites",
    # records.hash64 of the site's name: the same on each agent and in each database.
    Column("site_id", BigInteger, primary_key=True, autoincrement=False),
    _filled("site", _Words),
    Column("found_at", BigInteger),  # NULL: its site record is not stored yet
    Column("source", _Words),  # "seed", "link", or "redirect of SITE": a seed of that site redirected to it
    _filled("state", _Word),  # queued (never released), unfinished, finished
    _filled("published", BigInteger),  # page records of all leases: expected number of rows in `pages`
    _filled("known", BigInteger),  # URLs ever accepted
    _filled("over_budget", BigInteger),  # of these, not crawled because a limit was reached
    Column("ended_at", BigInteger),  # when an agent last released it, on the agent's clock; NULL: never
    Column("reason", _Words),  # why it ended early; NULL: all done, or never ended
    # Stream position of the record that set state, published and known: agents' clocks differ, so the stream's
    # order counts.
    Column("ended_entry", BigInteger),
    # Stream position of its last site record: an older forget command that is delivered again is ignored.
    Column("found_entry", BigInteger),
    Column("alias_of", _Words),  # the site of which this one is a second name and not crawled; NULL: none
    Column("stopped", _Word),  # paused or blocked by the operator; NULL: neither
    Column("stopped_reason", _Words),  # NULL: none
    Column("stopped_entry", BigInteger),  # stream position of that command
    Column("budget", BigInteger),  # pages, set by the operator, 0: no limit; NULL: the crawl's setting
    Column("budget_entry", BigInteger),
    Column("pending", BigInteger),  # of known, to fetch when it was last released; NULL: not reported
    Column("health", _Word),  # at the last check (crawler.status.health); NULL: never checked
    Column("health_since", BigInteger),  # time of the first check with this health
    Column("health_status", Integer),  # of the last check: HTTP status; negative: no response
    Column("health_told", _Word),  # last reported health; differs from `health` while it flaps
    Column("health_penalty", Double),  # penalty for changes at the last check; halves with time
    Column("health_damped", Integer),  # 1: changes are not reported until the penalty is low
    Column("health_at", BigInteger),  # of the last check; replaced by newer checks only
    Column("left_out", BigInteger),  # URLs outside the limits, over_budget included; NULL: never released
    Column("left_out_by", _Words),  # JSON, reason (crawler.left_out) -> number of URLs; NULL: none
    Column("left_out_hashes", _Bytes),  # of these URLs (crawler.left_out.LeftOut.packed); NULL: none
    # The site with the same pages, if this one is crawled anyway (a seed, or already finished); compared when it was
    # last released. NULL: none, or it is not crawled (`alias_of`).
    Column("same_as", _Words),
)

pages = _table(
    "pages",
    # Sequential: with a hash as the key, each row would dirty another B-tree leaf.
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("site_id", BigInteger),
    _filled("url_hash", BigInteger),  # records.hash64 of url
    _filled("url", _Words),  # canonical; begins with the site's name, the rest is the path
    _filled("state", _Word),  # paper 001's life-cycle: init, visited, no_response_1, no_response_2, dead
    _filled("outcome", _Word),  # of the last fetch: records.PageOutcome
    _filled("status", Integer),  # HTTP status; negative: no response (crawler.fetch.errors)
    _filled("depth", Integer),  # links from the site's first page
    _filled("tries", Integer),
    Column("error", _Words),  # one line, human-readable
    _filled("size", BigInteger),  # bytes of the body, decoded
    _filled("latency_ms", Integer),
    Column("sha256", String(64)),  # hex, of the body
    Column("duplicate_of", _Words),  # canonical URL of a page of this site with the same body
    Column("redirect", _Words),  # canonical URL of the redirect's target
    Column("content_type", _Words),
    Column("title", _Words),
    Column("description", _Words),
    _filled("fetched_at", BigInteger),  # on the agent's clock; replaced by newer fetches only
    # Sorted little-endian 64-bit hashes of the out-links. After the columns that most queries read, so that they do
    # not read its bytes.
    Column("links", _Bytes),
    Column("canonical", _Words),  # the page's canonical link; NULL: none, or itself
    Column("charset", _Word),  # used for decoding
    Column("language", _Word),  # ISO 639-1; NULL: too little text to detect it
    Column("content_hash", String(32)),  # hex, of the extracted text; NULL: no text
    # JSON: an object kind -> count, then arrays of strings.
    Column("media", _Words),
    Column("outside_hosts", _Words),
    Column("mail_domains", _Words),
    Column("ftp_domains", _Words),
    Column("robots", _Words),
    Column("keywords", _Words),
    Column("etag", _Words),
    Column("last_modified", _Words),  # as sent by the server
    Column("address", _Words),  # of the server that answered
    Column("wire_size", BigInteger),  # bytes of the body before decoding
    # The response's place in the archive: file below VAR_DIR/archive, first byte, bytes. NULL: not archived.
    Column("warc_file", _Words),
    Column("warc_offset", BigInteger),
    Column("warc_length", BigInteger),
    Column("extracted_at", BigInteger),  # when it was extracted again from the archive; NULL: never
    # Its life cycle (crawler.states) with `state`: consecutive failures, last response or timeout, last change of its
    # content (NULL: never), and when revive retries it (NULL: it does not).
    _filled("fails", Integer, server_default="0"),
    Column("last_checked", BigInteger),
    Column("last_changed", BigInteger),
    Column("next_check", BigInteger),
    # The sitemap's lastmod, and when that was last a signal for recheck; NULL: no lastmod, or never a signal.
    Column("sitemap_lastmod", BigInteger),
    Column("signalled_at", BigInteger),
    # When the job `site` last loaded it, if recheck or revive loaded it later; NULL: at fetched_at.
    Column("walked_at", BigInteger),
    # The requested URL, as spelled where the page was first linked; NULL: `url`.
    Column("asked_as", _Words),
    Column("extra", _Words),  # JSON object with fields of custom page pipelines (records.Page); NULL: none
    UniqueConstraint("site_id", "url_hash", name="pages_site_url"),
)

# Each fetch and each recheck of each page (`outcome` of a recheck is a records.Answer), never overwritten.
fetches = _table(
    "fetches",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("agent", _Name),
    _filled("run", _Name),
    _filled("seq", BigInteger),  # the record's number in its run, shared by all kinds of records
    _filled("site_id", BigInteger),
    _filled("url_hash", BigInteger),
    _filled("fetched_at", BigInteger),
    _filled("status", Integer),
    _filled("outcome", _Word),
    _filled("size", BigInteger),
    _filled("latency_ms", Integer),
    Column("wire_size", BigInteger),
    Column("connect_ms", Integer),  # NULL: reused connection, or no connection
    Column("head_ms", Integer),  # from the end of the request to the end of the headers; NULL: no headers
    Column("body_ms", Integer),  # from the end of the headers to the end of the body; NULL: incomplete
    Column("content_hash", String(32)),  # NULL: no text
    UniqueConstraint("agent", "run", "seq", name="fetches_record"),
)

runs = _table(
    "runs",
    Column("agent", _Name, primary_key=True),
    Column("run", _Name, primary_key=True),
    _filled("spider", _Words),
    _filled("scheduler", _Words),
    _filled("started_at", BigInteger),
    Column("ended_at", BigInteger),  # NULL: running, or killed
    Column("reason", _Words),
)

# Status checks by external crawlers (crawler.status.packets). They load no page and change no row of `pages`; a packet
# may name its domain by a code only.
checks = _table(
    "checks",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("crawler", BigInteger),
    Column("run", _Name),  # the sender's packet number, with seq; NULL: not numbered
    Column("seq", BigInteger),
    _filled("code", BigInteger),  # of the domain, in that crawler's list
    _filled("checked_at", BigInteger),  # on the sender's clock
    _filled("status", Integer),  # HTTP status; negative: no response
    Column("latency_ms", Integer),  # NULL: not sent
    Column("site_id", BigInteger),  # as in pages, for unknown sites too; NULL: no URL sent
    Column("url_hash", BigInteger),
    Column("url", _Words),
    Column("more", _Words),  # JSON array of the packet's further fields, as received; NULL: none
    _filled("digest", String(32)),  # hex, of the packet: equal packets are one check
    UniqueConstraint("digest", name="checks_packet"),
)

# Load of sites: a row for each site and hour with enough samples (records.Visit), never overwritten.
# `load` is a reserved word of MariaDB.
visits = _table(
    "visits",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("agent", _Name),
    _filled("run", _Name),
    _filled("seq", BigInteger),
    _filled("site_id", BigInteger),
    _filled("hour", BigInteger),  # hours (HOUR_SECONDS) since 1970
    Column("seconds", Double),  # median latency of a page; NULL: none was timed
    _filled("refused", Double),  # share of the requests, 0 to 1
    _filled("pages", Integer),  # timed pages
    _filled("delay_seconds", Double),  # least delay between two requests
    Column("hours_open", _Word),  # robots.txt's Visit-time, HHMM-HHMM, UTC; NULL: none
    UniqueConstraint("agent", "run", "seq", name="visits_record"),
)

# History of sites' health: a row for each check (records.Health), never overwritten.
health = _table(
    "health",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("agent", _Name),
    _filled("run", _Name),
    _filled("seq", BigInteger),
    _filled("site_id", BigInteger),
    _filled("checked_at", BigInteger),  # on the agent's clock, at the response
    _filled("health", _Word),
    _filled("status", Integer),  # HTTP status; negative: no response
    _filled("path", _Words),  # of the page with the worst result
    _filled("pages", Integer),
    _filled("tries", Integer),
    _filled("seen_by", _Word),  # check: a status check; traffic: derived from crawling
    Column("latency_ms", Integer),  # to the end of the headers, with DNS and connection; NULL: no response
    Column("connect_ms", Integer),
    Column("head_ms", Integer),
    Column("body_ms", Integer),
    Column("address", _Words),
    Column("error", _Words),
    UniqueConstraint("agent", "run", "seq", name="health_record"),
    Index("health_of_site", "site_id", "checked_at"),
)

# Changes of sites' health: inserted with the check, then delivered at least once to each hook
# (crawler.coordinator.notify).
health_changes = _table(
    "health_changes",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("agent", _Name),  # of the check that found it
    _filled("run", _Name),
    _filled("seq", BigInteger),
    _filled("site_id", BigInteger),
    _filled("site", _Words),
    _filled("was", _Word),
    _filled("now", _Word),
    _filled("since", BigInteger),
    _filled("seen_at", BigInteger),  # of that check
    _filled("status", Integer),
    Column("error", _Words),
    Column("told_at", BigInteger),  # when all hooks had it; NULL: pending
    Column("command_at", BigInteger),  # when the command succeeded; NULL: pending, or no command
    Column("webhook_at", BigInteger),
    Column("log_at", BigInteger),  # when it was logged
    UniqueConstraint("agent", "run", "seq", name="health_changes_record"),
    Index("health_changes_to_tell", "told_at"),
)

# Imported load profiles (`scrapy load import`), for unknown sites too.
profiles = _table(
    "profiles",
    Column("site_id", BigInteger, primary_key=True, autoincrement=False),
    _filled("site", _Words),
    # A byte for each hour, UTC, 24 of weekdays and 24 of weekends: 0 idle to 254 full, 255 unknown.
    _filled("loads", _Bytes),
    _filled("imported_at", BigInteger),
)

# Runs of `scrapy rank`. The ranks of the newest finished run are in force.
rankings = _table(
    "rankings",
    Column("run", _Key, primary_key=True, autoincrement=True),
    _filled("source", _Words),  # the run of convert whose pages were ranked
    _filled("mode", _Words),
    _filled("block", _Word),
    _filled("damping", Double),
    _filled("pages", BigInteger),
    _filled("began_at", BigInteger),
    Column("finished_at", BigInteger),  # NULL: still writing, or killed
)

# Clustered by the key, without a second index.
ranks = _table(
    "ranks",
    Column("run", BigInteger, primary_key=True, autoincrement=False),
    Column("site_id", BigInteger, primary_key=True, autoincrement=False),
    Column("url_hash", BigInteger, primary_key=True, autoincrement=False),
    _filled("rank", Double),  # sums to 1 over the run
    _filled("importance", Double),  # rank times pages: 1 on average
    sqlite_with_rowid=False,
)

site_ranks = _table(
    "site_ranks",
    Column("run", BigInteger, primary_key=True, autoincrement=False),
    Column("site_id", BigInteger, primary_key=True, autoincrement=False),
    _filled("rank", Double),  # the sum over its pages
    _filled("importance", Double),  # rank times sites: 1 on average
    _filled("pages", BigInteger),  # ranked pages
    sqlite_with_rowid=False,
)

# The change model of a site's pages (crawler.recheck.change_model), as of recheck's last plan.
beliefs = _table(
    "beliefs",
    Column("site_id", BigInteger, primary_key=True, autoincrement=False),
    _filled("pages", BigInteger),
    _filled("looked_at", BigInteger),
    _filled("wake_at", BigInteger),  # when the next page is worth a visit at the last plan's price
    # In the same order: 64-bit hashes of the URLs, little-endian, and crawler.recheck's columns.
    _filled("url_hashes", _Bytes),
    _filled("packed", _Bytes),
)

# Stream entries that could not be stored, complete, so that they can be requeued.
dead_letters = _table(
    "dead_letters",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("stream_id", String(64)),
    _filled("received_at", BigInteger),
    _filled("reason", _Words),
    # JSON object of the entry's fields; values that are not UTF-8 as {"base64": "…"}.
    _filled("fields", _Long),
    UniqueConstraint("stream_id", name="dead_letters_entry"),
)

QUEUED, UNFINISHED, FINISHED = SITE_STATES = ("queued", "unfinished", "finished")
PAUSED, BLOCKED = STOPS = ("paused", "blocked")
