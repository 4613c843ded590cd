"""The tables of record, as SQLAlchemy Core sees them; the one place that knows their columns.

Hides the differences of type between SQLite, PostgreSQL and MariaDB: texts compare byte by byte everywhere, no
column cuts a value short. Nothing here talks to a database: crawler.store.database opens and migrates, writing
fills, reading asks. A change here needs a new revision in migrations/versions (a test compares the two).

All times are milliseconds since 1970, UTC. NULL means "there is none", never "unknown to us".
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

# SQLite numbers rows by itself only where the key is exactly INTEGER.
_Key = BigInteger().with_variant(Integer(), "sqlite")
# MariaDB's TEXT ends at 65,535 bytes, its BLOB too; a title or a page's links may be longer.
_Words: TypeEngine[str] = Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
_Long: TypeEngine[str] = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_Bytes: TypeEngine[bytes] = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
# Names of agents and runs stand in keys, where MariaDB wants a bound.
_Name = String(191)
WORD_LENGTH = 32
_Word = String(WORD_LENGTH)


def _table(name: str, *parts: Any, **more: Any) -> Table:
    # Binary collation: /A and /a are two pages, and so are e and é.
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
    # records.hash64 of the site's name: every agent can compute it, and two databases can be merged.
    Column("site_id", BigInteger, primary_key=True, autoincrement=False),
    _filled("site", _Words),
    Column("found_at", BigInteger),  # NULL: its site record has not come yet
    Column("source", _Words),  # "seed", "link", or "redirect of SITE": a seed of that site led here
    _filled("state", _Word),  # queued (never given back), unfinished, finished
    _filled("published", BigInteger),  # page records over all leases: what `pages` must hold
    _filled("known", BigInteger),  # URLs ever accepted
    _filled("over_budget", BigInteger),  # of these, left out since a limit was reached
    Column("ended_at", BigInteger),  # when an agent last gave it back, on the agent's clock; NULL: never
    Column("reason", _Words),  # why it ended early; NULL: all done, or never ended
    # Place in the stream of the record that set state, published, known: agents' clocks do not agree, the
    # stream's order is the true one.
    Column("ended_entry", BigInteger),
    # Place in the stream of its last site record: an older order to forget the site, come again, is not for this one.
    Column("found_entry", BigInteger),
    Column("alias_of", _Words),  # the site that this one is, and is left out for; NULL: none
    Column("stopped", _Word),  # paused or blocked by the operator; NULL: neither
    Column("stopped_reason", _Words),  # NULL: none was given
    Column("stopped_entry", BigInteger),  # place in the stream of the order that said so
    Column("budget", BigInteger),  # pages by the operator's order, 0: no limit; NULL: the crawl's own
    Column("budget_entry", BigInteger),
    Column("pending", BigInteger),  # of known, still to fetch when it was last given back; NULL: not told
    Column("health", _Word),  # how it was when last checked (crawler.status.health); NULL: it never was
    Column("health_since", BigInteger),  # when it was first seen so
    Column("health_status", Integer),  # of the last check: HTTP status, or why no answer came
    Column("health_told", _Word),  # what was last told of it; another word than `health`: it flaps
    Column("health_penalty", Double),  # for changes, halving with time, as of the last check
    Column("health_damped", Integer),  # 1: changes are not told until the penalty is low
    Column("health_at", BigInteger),  # of the last check; a row gives way to a younger one only
    Column("left_out", BigInteger),  # URLs that bounds leave out, over_budget included; NULL: never ended
    Column("left_out_by", _Words),  # JSON, reason (crawler.left_out) -> URLs; NULL: nothing is left out
    Column("left_out_hashes", _Bytes),  # of these URLs (crawler.left_out.LeftOut.packed); NULL: none
    # The site whose pages it was found to have when it was last given back, though it is crawled all the same: as a
    # seed, or since it was finished by then. NULL: nobody else's, or it is left out (`alias_of`).
    Column("same_as", _Words),
)

pages = _table(
    "pages",
    # In order of arrival: with a hash as the key every row would dirty a leaf of its own.
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("site_id", BigInteger),
    _filled("url_hash", BigInteger),  # records.hash64 of url
    _filled("url", _Words),  # canonical; begins with the site's name, the rest is the path
    _filled("state", _Word),  # paper 001's life-cycle: init, visited, no_response_1, no_response_2, dead
    _filled("outcome", _Word),  # how the last turn ended: records.PageOutcome
    _filled("status", Integer),  # HTTP status; negative: no answer came (crawler.fetch.errors)
    _filled("depth", Integer),  # links from the site's first page
    _filled("tries", Integer),
    Column("error", _Words),  # one line for people
    _filled("size", BigInteger),  # bytes of the body, decoded
    _filled("latency_ms", Integer),
    Column("sha256", String(64)),  # hex, over the body's bytes: the form every load file takes
    Column("duplicate_of", _Words),  # canonical URL of the page of this site with the same bytes
    Column("redirect", _Words),  # canonical URL the answer points to
    Column("content_type", _Words),
    Column("title", _Words),
    Column("description", _Words),
    _filled("fetched_at", BigInteger),  # on the agent's clock; a row gives way to a newer one only
    # Sorted little-endian 64-bit hashes of the out-links. Behind the columns that most readers ask for, so that they
    # read none of its bytes.
    Column("links", _Bytes),
    Column("canonical", _Words),  # URL that the page names as the one to take for it; NULL: none, or itself
    Column("charset", _Word),  # that the text was read in
    Column("language", _Word),  # ISO 639-1; NULL: too little text to tell
    Column("content_hash", String(32)),  # hex, over the extracted text; NULL: there was none
    # JSON, for json_each and the like: an object kind -> count, then arrays of words.
    Column("media", _Words),
    Column("outside_hosts", _Words),
    Column("mail_domains", _Words),
    Column("ftp_domains", _Words),
    Column("robots", _Words),
    Column("keywords", _Words),
    Column("etag", _Words),
    Column("last_modified", _Words),  # as the server wrote it
    Column("address", _Words),  # of the server that answered
    Column("wire_size", BigInteger),  # bytes of the body as they came
    # Where the archive holds the answer: file below VAR_DIR/archive, first byte, bytes. NULL: it was not kept.
    Column("warc_file", _Words),
    Column("warc_offset", BigInteger),
    Column("warc_length", BigInteger),
    Column(
        "extracted_at", BigInteger
    ),  # when it was made anew from the archive; NULL: it is as its fetch left it
    # Its life (crawler.states) beside `state`: straight failures, when anything was last heard of it or waited for in
    # vain, when its content was last seen to be another (NULL: never), and when revive asks it (NULL: it does not).
    _filled("fails", Integer, server_default="0"),
    Column("last_checked", BigInteger),
    Column("last_changed", BigInteger),
    Column("next_check", BigInteger),
    # When its site's sitemap says that it changed last, and when that was news to us (ms); NULL: it does not, or never.
    Column("sitemap_lastmod", BigInteger),
    Column("signalled_at", BigInteger),
    # When the job `site` loaded it last, where recheck or revive loaded it since; NULL: at fetched_at.
    Column("walked_at", BigInteger),
    # URL that was asked for, as it was written where the page was first named; NULL: `url`.
    Column("asked_as", _Words),
    Column(
        "extra", _Words
    ),  # JSON, an object: what page pipelines of one's own say (records.Page); NULL: nothing
    UniqueConstraint("site_id", "url_hash", name="pages_site_url"),
)

# Every turn of every page, and every time it was asked again (`outcome` is then a records.Answer), never overwritten:
# what an agent says it did can be compared as a set.
fetches = _table(
    "fetches",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("agent", _Name),
    _filled("run", _Name),
    _filled("seq", BigInteger),  # the record's number in its run; other kinds of records have theirs too
    _filled("site_id", BigInteger),
    _filled("url_hash", BigInteger),
    _filled("fetched_at", BigInteger),
    _filled("status", Integer),
    _filled("outcome", _Word),
    _filled("size", BigInteger),
    _filled("latency_ms", Integer),
    Column("wire_size", BigInteger),
    Column("connect_ms", Integer),  # NULL: the connection was there already, or none came
    Column("head_ms", Integer),  # from the request's end to the head's; NULL: no head came
    Column("body_ms", Integer),  # from the head's end to the body's; NULL: it did not come whole
    Column("content_hash", String(32)),  # NULL: no text was extracted
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

# Status checks by foreign crawlers (crawler.status.packets). They load nothing, so no page's row gives way to them, and
# a packet may name its domain by a code alone.
checks = _table(
    "checks",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("crawler", BigInteger),
    Column("run", _Name),  # the sender's number of the packet, with seq; NULL: it does not number them
    Column("seq", BigInteger),
    _filled("code", BigInteger),  # of the domain, in that crawler's own list
    _filled("checked_at", BigInteger),  # on the sender's clock
    _filled("status", Integer),  # HTTP status; negative: no answer came
    Column("latency_ms", Integer),  # NULL: not told
    Column(
        "site_id", BigInteger
    ),  # as in pages, whether the crawl knows that site or not; NULL: no URL was told
    Column("url_hash", BigInteger),
    Column("url", _Words),
    Column("more", _Words),  # JSON array of the packet's further fields, as they came; NULL: none
    _filled("digest", String(32)),  # hex, over the packet's bytes: two that are equal are one check
    UniqueConstraint("digest", name="checks_packet"),
)

# How busy sites were: a row for each site and hour that an agent saw enough of (records.Visit), never overwritten.
# MariaDB keeps the word `load` for itself.
visits = _table(
    "visits",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("agent", _Name),
    _filled("run", _Name),
    _filled("seq", BigInteger),
    _filled("site_id", BigInteger),
    _filled("hour", BigInteger),  # hours (HOUR_SECONDS) since 1970
    Column("seconds", Double),  # that the median page took; NULL: none was timed
    _filled("refused", Double),  # share of the requests, 0 to 1
    _filled("pages", Integer),  # that were timed
    _filled("delay_seconds", Double),  # least pause between two requests
    Column("hours_open", _Word),  # robots.txt's Visit-time, HHMM-HHMM, UTC; NULL: it has none
    UniqueConstraint("agent", "run", "seq", name="visits_record"),
)

# How sites were, a row for each check, never overwritten (records.Health).
health = _table(
    "health",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("agent", _Name),
    _filled("run", _Name),
    _filled("seq", BigInteger),
    _filled("site_id", BigInteger),
    _filled("checked_at", BigInteger),  # on the agent's clock, when the answer was there
    _filled("health", _Word),
    _filled("status", Integer),  # HTTP status; negative: no answer came
    _filled("path", _Words),  # of the page that fared worst, if several were asked
    _filled("pages", Integer),
    _filled("tries", Integer),
    _filled("seen_by", _Word),  # check: asked for this; traffic: seen while its pages were loaded
    Column("latency_ms", Integer),  # to the head, name and connection included; NULL: none came
    Column("connect_ms", Integer),
    Column("head_ms", Integer),
    Column("body_ms", Integer),
    Column("address", _Words),
    Column("error", _Words),
    UniqueConstraint("agent", "run", "seq", name="health_record"),
    Index("health_of_site", "site_id", "checked_at"),
)

# Changes of sites' health that are told: made in the transaction that stores the check, told afterwards and at least
# once to each hook (crawler.coordinator.notify).
health_changes = _table(
    "health_changes",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("agent", _Name),  # of the check that showed it
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
    Column("told_at", BigInteger),  # to all hooks; NULL: it is still to be told
    Column("command_at", BigInteger),  # when the command had ended well; NULL: there is none, or not yet
    Column("webhook_at", BigInteger),
    Column("log_at", BigInteger),  # when a coordinator wrote its line
    UniqueConstraint("agent", "run", "seq", name="health_changes_record"),
    Index("health_changes_to_tell", "told_at"),
)

# Loads that were given from outside (`scrapy load import`), of sites that the crawl may not know yet.
profiles = _table(
    "profiles",
    Column("site_id", BigInteger, primary_key=True, autoincrement=False),
    _filled("site", _Words),
    # A byte for each hour, UTC, 24 of weekdays and 24 of weekends: 0 idle to 254 full, 255 not given.
    _filled("loads", _Bytes),
    _filled("imported_at", BigInteger),
)

# What `scrapy rank` did. The ranks of a run are whole once it has finished; those of the newest such run are in force.
rankings = _table(
    "rankings",
    Column("run", _Key, primary_key=True, autoincrement=True),
    _filled("source", _Words),  # the run of convert whose pages were ranked
    _filled("mode", _Words),
    _filled("block", _Word),
    _filled("damping", Double),
    _filled("pages", BigInteger),
    _filled("began_at", BigInteger),
    Column("finished_at", BigInteger),  # NULL: its ranks are being written, or whoever did that was killed
)

# A run's rows are next to each other, in the order of their key, and are found by it: no second tree of keys.
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
    _filled("pages", BigInteger),  # that were ranked
    sqlite_with_rowid=False,
)

# What is believed of a site's pages (crawler.recheck.change_model), as recheck last looked at them.
beliefs = _table(
    "beliefs",
    Column("site_id", BigInteger, primary_key=True, autoincrement=False),
    _filled("pages", BigInteger),
    _filled("looked_at", BigInteger),
    _filled("wake_at", BigInteger),  # when the next of them is worth a visit, by the price of then
    # One page after the other in both: 64-bit hashes of the URLs, little-endian, and crawler.recheck's columns.
    _filled("url_hashes", _Bytes),
    _filled("packed", _Bytes),
)

# What could not be stored, and why; loses nothing, so that it can be put back.
dead_letters = _table(
    "dead_letters",
    Column("id", _Key, primary_key=True, autoincrement=True),
    _filled("stream_id", String(64)),
    _filled("received_at", BigInteger),
    _filled("reason", _Words),
    # JSON object of the entry's fields; one that is no UTF-8 as {"base64": "…"}.
    _filled("fields", _Long),
    UniqueConstraint("stream_id", name="dead_letters_entry"),
)

QUEUED, UNFINISHED, FINISHED = SITE_STATES = ("queued", "unfinished", "finished")
PAUSED, BLOCKED = STOPS = ("paused", "blocked")
