"""Records of the site queue as plain data, and how each is written in Redis."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha1
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
from msgspec import Meta

from crawler.queue import connection
from crawler.queue.errors import BrokenRecordError, found_in, text_of
from crawler.records import Work

# Of a possible alias: it is to be compared; its pages are equal and it is crawled nevertheless; it is no alias, by its
# pages or by the operator's command.
Likeness = Literal["open", "same", "no"]


# States of a site in a lost queue; an unfinished one is `waiting`.
State = Literal["waiting", "suspended", "finished", "alias", "blocked"]


# Sites per discover call: a longer call delays the leases of every other agent.
DISCOVER_BATCH = 100


# Pages per probe: a median needs three, the first one is not timed (it includes the connection), and a redirect is not.
PROBE_PAGES = 5


# Characters per entry of paths from outside of a site (one path may be longer): limits are counted in entries.
ENTRY_CHARACTERS = 4096


# Names per call that fills an hour's list.
FILL_BATCH = 5_000


# Depth of an entry's paths, and number of redirects.
_ENTRY_HEAD = re.compile(r"(\d{1,9}) (\d{1,9})")


# Names in `details` for the other site.
LIKENESS: dict[Likeness, str] = {"open": "may_be_alias_of", "same": "same_pages_as", "no": "no_alias_of"}


# No process of any system has a larger number.
MOST_PID = 2**31 - 1


STATES = {
    "w": "waiting",
    "s": "suspended",
    "l": "later",
    "f": "finished",
    "a": "alias",
    "b": "blocked",
}


class Leased(NamedTuple):
    """A leased site; `address`: None until resolved."""

    site: str
    token: str
    suspended: bool  # it has a checkpoint
    address: str | None
    more: bool = True  # a checkpoint or paths from outside exist: read `checkpoint`
    probe: bool = False  # fetch a few pages to learn its load at this hour
    work: Work = "site"
    may_be_alias: bool = False  # release it after some pages, to be compared


class Renewed(NamedTuple):
    """Reply to a renewal: the server's time in ms, sites to release, sites with new paths."""

    server_ms: int
    stop: list[str]  # by the operator's command
    suspend: list[str]  # by the plan
    given: Sequence[str] = ()  # with new paths from outside: read `given`


class Hand(NamedTuple):
    """Reply to a lease call, with counts for a fair share among the agents."""

    sites: list[Leased]
    # Waiting and suspended sites; for another job than the crawl some of those that can be leased.
    ready: int
    leased: int
    agents: int
    missing: int = 0  # sites that other starved agents lacked within the last 2 s


class Newcomer(NamedTuple):
    """A site to queue: its record for the tables (JSON), and its first paths; none means `/`."""

    site: str
    record: bytes
    paths: tuple[str, ...] = ()


class Offer(NamedTuple):
    """Paths for a site from outside of it, all at one depth and behind the same number of redirects."""

    site: str
    paths: Sequence[str]
    depth: int = 0
    redirects: int = 0
    # For the tables (JSON) if the site is new; empty: unknown sites are left out.
    record: bytes = b""
    with_root: bool = False  # a new site starts with its root too
    seeded: bool = False  # a seed redirects here: the site counts as a seed

    @property
    def entry(self) -> str:
        """Its value in Redis; `read_entry` reads it."""
        head = f"{self.depth} {self.redirects}\n" if self.depth or self.redirects else ""
        return head + "\n".join(self.paths)

    def parts(self) -> list[Offer]:
        """The offer in parts whose entries are short."""
        return [self._replace(paths=some) for some in parts_of(self.paths)]


class Given(NamedTuple):
    """The content of an entry; `bad` are words that are not paths."""

    paths: list[str]
    depth: int = 0
    redirects: int = 0
    bad: Sequence[str] = ()


def parts_of(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    """The paths in parts, each short enough for one entry."""
    first, length = 0, 0
    for place, path in enumerate(paths):
        if length and length + len(path) > ENTRY_CHARACTERS:
            yield paths[first:place]
            first, length = place, 0
        length += len(path) + 1
    yield paths[first:]


def read_entry(entry: str) -> Given:
    """Read one entry of paths from outside of a site."""
    depth = redirects = 0
    words = entry.split("\n")
    if head := _ENTRY_HEAD.fullmatch(words[0]):
        depth, redirects = int(head[1]), int(head[2])
        del words[0]
    paths = [word for word in words if word.startswith("/")]
    return Given(paths, depth, redirects, [word for word in words if not word.startswith("/")])


class Delivery(NamedTuple):
    """What the holder of one site publishes at once; `seq` counts the deliveries of a lease from 1."""

    site: str
    token: str
    seq: int
    delta: bytes  # journal entry; the whole checkpoint if `fold`
    fold: bool
    root: str  # what an alias has in common with the site (root_marks); empty: unchanged
    records: Sequence[tuple[bytes, bytes]]  # JSON, packed out-links
    # For the next holder, if this agent crashes:
    delay_ms: int = 0  # minimum delay between two requests
    until_ms: int = 0  # server's time before the next request; 0: none
    # Progress; None: unchanged, since the job is not the crawl.
    known: int | None = 0  # of its URLs
    done: int = 0  # of these, fetched or given up
    done_hash: int = 0  # records.set_hash of these
    given: int = 0  # entries of paths from outside that the delta contains: the server deletes them
    # Its records send pages back to the crawl: the site is reopened when they are stored.
    sends_back: bool = False
    left_out: str = ""  # URLs that bounds leave out (crawler.left_out.to_text)


class HandedIn(NamedTuple):
    """A finished status check: its record, and when the site is due again. Times in ms on the server's clock."""

    site: str
    token: str
    due_ms: int
    rests_until_ms: int  # no request before; 0: none
    permit: str  # its robots.txt for later checks; empty: unchanged
    record: bytes  # JSON; empty: none


class Published(NamedTuple):
    """Result of a delivery; `alias_of` names the site that this one may be an alias of."""

    verdict: Literal["OK", "AGAIN", "STALE", "GAP"]
    alias_of: str = ""


class Depth(NamedTuple):
    """Number of sites by state; `records` in the results stream, `agents` with a session.

    `coordinated` is 1 if a coordinator was alive within the last 15 s, else 0.
    """

    waiting: int
    suspended: int
    leased: int
    later: int
    paused: int
    finished: int
    alias: int
    blocked: int
    added: int
    records: int
    agents: int
    coordinated: int

    @property
    def open(self) -> int:
        """Sites that are leased or can be leased now."""
        return self.waiting + self.suspended + self.leased


class TablesWord(NamedTuple):
    """The coordinators' last comparison of queue and tables (crawler.reconcile.comparing.tables_key)."""

    added: int  # sites that the queue knew then
    lost: int  # unfinished sites of the tables that it lacks
    at_ms: int  # when they were counted, on the server's clock


class SiteRecord(NamedTuple):
    """A site as the queue knows it."""

    site: str
    state: str  # waiting, suspended, later, finished, alias, blocked
    paused: bool
    address: str | None
    token: str = ""
    agent: str = ""  # its holder; empty: none
    work: str = ""
    known: int = 0  # its URLs at its last release; 0: none yet
    done: int = 0  # of these, fetched or given up
    done_hash: int | None = None  # records.set_hash of these; None: unknown (older version)
    left_out: str = ""  # URLs that bounds leave out (crawler.left_out.to_text)
    linked: bool = False  # found by a link, not a seed


class Suspect(NamedTuple):
    """A possible alias of another site, or one that is left out as an alias."""

    record: SiteRecord
    state: Likeness
    first: SiteRecord | None  # the other; None: forgotten
    name: str  # of the other
    since_ms: int  # only pages fetched later are compared
    looked_ms: int  # when the comparison was due, on the server's clock
    own_budget: bool  # the other has a page budget of its own


class Holding(NamedTuple):
    """A leased site of any job, with its progress."""

    site: str
    agent: str
    known: int
    done: int
    done_hash: int | None = None  # as in SiteRecord
    left_out: str = ""


class Restored(NamedTuple):
    """A site for a queue that was lost, with the operator's commands."""

    site: str
    state: State
    address: str | None = None
    paused: bool = False
    known: int = 0
    done: int = 0
    done_hash: int = 0
    budget: int | None = None  # pages; 0: no limit, None: the crawl's own
    why: str = ""  # the command's reason, or the original of an alias
    left_out: str = ""  # as in SiteRecord
    linked: bool = False  # as in SiteRecord
    owed: str = ""  # rows that the tables lost (crawler.reconcile.agreement); empty: none


class Undecided(NamedTuple):
    """What a coordinator has to decide of one site."""

    record: SiteRecord | None  # None: forgotten
    entries: list[str]  # first entries of its offered paths; `read_entry` reads each
    noted: int  # how often pages were sent back to the crawl
    since_ms: int  # as in `to_decide`; 0: nothing is to be decided


def is_later(text: object) -> bool:
    """Whether the text of a record has the state `later`."""
    return isinstance(text, bytes) and text[:1] in (b"l", b"L")


def bucket_of(base: str, site: str) -> str:
    """The key of the hash with a site's record; `base` is the common prefix of all keys."""
    return f"{base}sites:{sha1(site.encode(), usedforsecurity=False).hexdigest()[:4]}"


def of_bucket(key: bytes | str, error: Exception) -> Exception:
    """BrokenRecordError if a bucket of records has the wrong type, else the error itself."""
    return BrokenRecordError(key, "no hash") if connection.is_of_wrong_kind(error) else error


def read_record(key: bytes | str, site: bytes | str, text: bytes | str) -> SiteRecord:
    """A site's record from its text in Redis; raises BrokenRecordError for anything else."""
    try:
        letter, address, *rest = text_of(key, text).split(" ")
        progress = _read_progress(rest.pop(0)) if rest and "/" in rest[0] else Progress()
        token, agent, work = rest or ("", "", "")
        state, paused = STATES[letter.lower()], letter.isupper()
        linked, address = address.endswith("*"), address.removesuffix("*")
        place = None if address == "-" else address
        record = SiteRecord(text_of(key, site), state, paused, place, token, agent, work, *progress)
        return record._replace(linked=True) if linked else record
    except (ValueError, KeyError):
        raise BrokenRecordError(key, found_in(site, text)) from None


def root_marks(site: str, address: str, sha256: str, robots: str) -> str:
    """What an alias has in common with its original, one per line: address, port, robots.txt and root page.

    Other ports are other servers, except http and https of one name on their default ports.
    """
    scheme, _, place = site.partition("://")
    port = place.rpartition("]")[2].partition(":")[2]
    pages = f"{robots} {sha256[:16]}"
    if port:
        return f"{address} {port} {pages}"
    return f"{address} {443 if scheme == 'https' else 80} {pages}\n{address} //{place} {pages}"


def read_likeness(key: str, site: str, text: bytes) -> tuple[Likeness, str, int]:
    """State, other site and start time (ms) of a possible alias; raises BrokenRecordError for anything else."""
    try:
        state, first, since, _, _ = text_of(key, text).split(" ")
        kinds: dict[str, Likeness] = {kind: kind for kind in LIKENESS}
        return kinds[state], first, int(since)
    except (ValueError, KeyError):
        raise BrokenRecordError(key, found_in(site, text), "what is known of aliases") from None


class Progress(NamedTuple):
    """A site's progress in its record."""

    known: int = 0
    done: int = 0
    done_hash: int | None = None
    left_out: str = ""


def progress_text(done: int, known: int, done_hash: int, left_out: str) -> str:
    """Progress as it stands in a record."""
    return f"{done}/{known}/{done_hash:x}{f'/{left_out}' if left_out else ''}"


def progress_of(record: SiteRecord) -> str:
    """A record's progress as it stands in Redis; empty: none."""
    if not record.known:
        return ""
    if record.done_hash is None:
        return f"{record.done}/{record.known}"
    return progress_text(record.done, record.known, record.done_hash, record.left_out)


def _read_progress(text: str) -> Progress:
    """Read `done/known[/hash[/left out]]`."""
    done, known, *more = text.split("/")
    return Progress(int(known), int(done), int(more[0], 16) if more else None, more[1] if more[1:] else "")


class About(TypedDict, total=False):
    """What an agent reports when it joins."""

    host: str
    pid: Annotated[int, Meta(ge=1, le=MOST_PID)]
    spider: str
    works: list[str]
    slots: Annotated[int, Meta(ge=0)]
    scheduler: str
    scheduler_options: dict[str, Any]
    hour_seconds: Annotated[float, Meta(gt=0)]
    delay_seconds: Annotated[float, Meta(ge=0)]
    pages_per_site: Annotated[int, Meta(ge=0)]


def read_about(key: str, text: bytes) -> About:
    """Read what an agent reported; raises BrokenRecordError for anything else."""
    try:
        return msgspec.json.decode(text, type=About)
    except (msgspec.DecodeError, ValueError):
        raise BrokenRecordError(key, found_in("about", text), "what an agent said of itself") from None


def read_holding(key: str, site: bytes, agent: str, text: bytes) -> Holding:
    """A field of `held:AGENT`; raises BrokenRecordError for anything else."""
    try:
        return Holding(text_of(key, site), agent, *_read_progress(text_of(key, text).rpartition(" ")[2]))
    except ValueError:
        raise BrokenRecordError(key, found_in(site, text), "an agent's sites") from None


def read_token(key: str, site: bytes, text: bytes) -> str:
    """The token in a field of `held:AGENT`; raises BrokenRecordError for anything else."""
    words = text_of(key, text).split()
    if not words:
        raise BrokenRecordError(key, found_in(site, text), "an agent's sites")
    return words[0]
