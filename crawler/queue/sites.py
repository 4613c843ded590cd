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

# What is known of a site that may be another one under a second name: it is to be compared with it; their pages are
# equal, and it is crawled all the same; they are not equal, or the operator says so.
Likeness = Literal["open", "same", "no"]


# What a site of a lost queue may have been; an unfinished one waits.
State = Literal["waiting", "suspended", "finished", "alias", "blocked"]


# Sites one discover call adds: a longer call would hold up every other agent's lease.
DISCOVER_BATCH = 100


# Turns of a site that is leased for a probe: a median of fewer than three pages says nothing, and the first one is not
# timed (it pays for the connection), nor is one that is redirected.
PROBE_PAGES = 5


# Paths from outside of a site wait in entries of so many characters (one path may be longer): their number bounds them.
ENTRY_CHARACTERS = 4096


# Names one call writes into an hour's list.
FILL_BATCH = 5_000


# Depth of an entry's paths, and how many redirects led to them.
_ENTRY_HEAD = re.compile(r"(\d{1,9}) (\d{1,9})")


# What `details` calls the site that another one may be.
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
    """A site in hand. `address` is None until somebody has looked it up."""

    site: str
    token: str
    suspended: bool  # it has a checkpoint
    address: str | None
    more: bool = True  # there is a checkpoint, or paths given from outside: read `checkpoint`
    probe: bool = False  # a few pages are wanted of it, to learn how busy it is at this hour
    work: Work = "site"
    may_be_alias: bool = False  # it goes back after some pages, to be compared with the site that it may be


class Renewed(NamedTuple):
    """What a renewal tells: the server's clock in ms, the sites to give back, and those that were given paths."""

    server_ms: int
    stop: list[str]  # by the operator's order
    suspend: list[str]  # by the plan: others are worth more at this hour
    given: Sequence[str] = ()  # paths were given for them from outside: read `given`


class Hand(NamedTuple):
    """What a lease call gave, and what it saw before: for a fair share among the agents."""

    sites: list[Leased]
    # Sites that waited, suspended ones included; of another work than `site`: some of those left that could be had.
    ready: int
    leased: int
    agents: int
    missing: int = 0  # sites that hungry agents, this one left out, asked for in vain within the last 2 s


class Newcomer(NamedTuple):
    """A site to be queued: its record for the tables (JSON), and paths to begin with; none means `/`."""

    site: str
    record: bytes
    paths: tuple[str, ...] = ()


class Offer(NamedTuple):
    """Paths for a site from outside of it, all at one depth and behind as many redirects."""

    site: str
    paths: Sequence[str]
    depth: int = 0
    redirects: int = 0
    # For the tables (JSON) if the site is new; empty: a site that is not known is left out.
    record: bytes = b""
    with_root: bool = False  # a new site begins with its root too
    seeded: bool = False  # a seed led here: the site counts as given by the user

    @property
    def entry(self) -> str:
        """As it stands in Redis; `read_entry` reads it."""
        head = f"{self.depth} {self.redirects}\n" if self.depth or self.redirects else ""
        return head + "\n".join(self.paths)

    def parts(self) -> list[Offer]:
        """The same in several, none of which makes a long entry."""
        return [self._replace(paths=some) for some in parts_of(self.paths)]


class Given(NamedTuple):
    """What an entry of paths holds; `bad` are the words in it that are no path."""

    paths: list[str]
    depth: int = 0
    redirects: int = 0
    bad: Sequence[str] = ()


def parts_of(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    """The paths in turn, as many at a time as one entry may have."""
    first, length = 0, 0
    for place, path in enumerate(paths):
        if length and length + len(path) > ENTRY_CHARACTERS:
            yield paths[first:place]
            first, length = place, 0
        length += len(path) + 1
    yield paths[first:]


def read_entry(entry: str) -> Given:
    """One entry of paths that came from outside of a site."""
    depth = redirects = 0
    words = entry.split("\n")
    if head := _ENTRY_HEAD.fullmatch(words[0]):
        depth, redirects = int(head[1]), int(head[2])
        del words[0]
    paths = [word for word in words if word.startswith("/")]
    return Given(paths, depth, redirects, [word for word in words if not word.startswith("/")])


class Delivery(NamedTuple):
    """What one site's holder publishes in one go; seq counts the deliveries of a lease from 1."""

    site: str
    token: str
    seq: int
    delta: bytes  # journal entry; the whole checkpoint if `fold`
    fold: bool
    root: str  # what an alias has in common with the site (root_marks); empty: not this time
    records: Sequence[tuple[bytes, bytes]]  # JSON, packed out-links
    # For whoever holds the site next, should this agent die:
    delay_ms: int = 0  # least pause between two requests to the site
    until_ms: int = 0  # server's time before which it must not be asked; 0: none
    # How far the site is by now; None: as it was, since the work is not loading.
    known: int | None = 0  # of its URLs
    done: int = 0  # of these, have had their turn
    done_hash: int = 0  # records.set_hash of these
    given: int = 0  # entries of paths from outside that the delta has taken in: the server forgets them
    # By its records pages are to be loaded again: the site is opened once they are stored.
    sends_back: bool = False
    left_out: str = ""  # URLs that bounds leave out (crawler.left_out.to_text)


class HandedIn(NamedTuple):
    """A site whose check is over: what is told of it, and when it is due again. Times: server's ms."""

    site: str
    token: str
    due_ms: int
    rests_until_ms: int  # nobody asks it before; 0: anybody may
    permit: str  # what is kept of its robots.txt; empty: as it was
    record: bytes  # JSON; empty: nothing is told


class Published(NamedTuple):
    """What became of a delivery; `alias_of` names the site that this one may be under a second name."""

    verdict: Literal["OK", "AGAIN", "STALE", "GAP"]
    alias_of: str = ""


class Depth(NamedTuple):
    """How much there is, in sites; `records` in the results stream, `agents` with a session.

    `coordinated` is 1 where some coordinator was alive within the last 15 s, else 0.
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
        """Sites that somebody has or could have right now."""
        return self.waiting + self.suspended + self.leased


class TablesWord(NamedTuple):
    """What coordinators last counted of queue and tables (crawler.reconcile.comparing.tables_key)."""

    added: int  # sites that the queue knew then
    lost: int  # unfinished sites of the tables that it did not know
    at_ms: int  # when they were counted, on the server's clock


class SiteRecord(NamedTuple):
    """A site as the queue knows it."""

    site: str
    state: str  # waiting, suspended, later, finished, alias, blocked
    paused: bool
    address: str | None
    token: str = ""
    agent: str = ""  # who holds it; empty: nobody
    work: str = ""
    known: int = 0  # its URLs when it was last given back; 0: it never was
    done: int = 0  # of these, how many had had their turn
    done_hash: int | None = None  # records.set_hash of these; None: an older version did not write it
    left_out: str = ""  # URLs that bounds leave out (crawler.left_out.to_text)
    linked: bool = False  # a link led to it, and it was not given as a seed


class Suspect(NamedTuple):
    """A site that may be another one under a second name, or is left out as such."""

    record: SiteRecord
    state: Likeness
    first: SiteRecord | None  # the other; None: it was forgotten
    name: str  # of the other
    since_ms: int  # pages that were fetched before say nothing
    looked_ms: int  # when there was something to look at, on the server's clock
    own_budget: bool  # the other has a page budget of its own


class Holding(NamedTuple):
    """A site in an agent's hand, for whatever work, and how many of its URLs are known and done by now."""

    site: str
    agent: str
    known: int
    done: int
    done_hash: int | None = None  # as in SiteRecord
    left_out: str = ""


class Restored(NamedTuple):
    """A site for a queue that was lost, with what the operator expected of it."""

    site: str
    state: State
    address: str | None = None
    paused: bool = False
    known: int = 0
    done: int = 0
    done_hash: int = 0
    budget: int | None = None  # pages; 0: no limit, None: the crawl's own
    why: str = ""  # the order's reason, or for an alias the site that came first
    left_out: str = ""  # as in SiteRecord
    linked: bool = False  # as in SiteRecord
    owed: str = ""  # what the tables lost of it (crawler.reconcile.agreement); empty: nothing


class Undecided(NamedTuple):
    """What a coordinator decides of one site."""

    record: SiteRecord | None  # None: the site was forgotten
    entries: list[str]  # the first ones of its offered paths; `read_entry` reads each
    noted: int  # how often it was noted that pages of it are to be loaded again
    since_ms: int  # as `to_decide` gives it; 0: nothing is to be decided of it any more


def is_later(text: object) -> bool:
    """Whether the text of a record has the state `later`."""
    return isinstance(text, bytes) and text[:1] in (b"l", b"L")


def bucket_of(base: str, site: str) -> str:
    """The key of the hash that holds a site's record; `base` is what all keys of the crawl begin with."""
    return f"{base}sites:{sha1(site.encode(), usedforsecurity=False).hexdigest()[:4]}"


def of_bucket(key: bytes | str, error: Exception) -> Exception:
    """BrokenRecordError if a bucket of records has the wrong type, else the error itself."""
    return BrokenRecordError(key, "no hash") if connection.is_of_wrong_kind(error) else error


def read_record(key: bytes | str, site: bytes | str, text: bytes | str) -> SiteRecord:
    """The record of a site as the script writes it; BrokenRecordError for anything else."""
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
    """What an alias has in common with its site, one a line: address, port, robots.txt and root page.

    Another port is another server, but for http and https of one name on their own ports.
    """
    scheme, _, place = site.partition("://")
    port = place.rpartition("]")[2].partition(":")[2]
    pages = f"{robots} {sha256[:16]}"
    if port:
        return f"{address} {port} {pages}"
    return f"{address} {443 if scheme == 'https' else 80} {pages}\n{address} //{place} {pages}"


def read_likeness(key: str, site: str, text: bytes) -> tuple[Likeness, str, int]:
    """What is known of a site that may be an alias, the other site, and since when (ms) pages count."""
    try:
        state, first, since, _, _ = text_of(key, text).split(" ")
        kinds: dict[str, Likeness] = {kind: kind for kind in LIKENESS}
        return kinds[state], first, int(since)
    except (ValueError, KeyError):
        raise BrokenRecordError(key, found_in(site, text), "what is known of aliases") from None


class Progress(NamedTuple):
    """How far a site is, as its record has it."""

    known: int = 0
    done: int = 0
    done_hash: int | None = None
    left_out: str = ""


def progress_text(done: int, known: int, done_hash: int, left_out: str) -> str:
    """Progress as it stands in a record."""
    return f"{done}/{known}/{done_hash:x}{f'/{left_out}' if left_out else ''}"


def progress_of(record: SiteRecord) -> str:
    """As it stands in the queue."""
    if not record.known:
        return ""
    if record.done_hash is None:
        return f"{record.done}/{record.known}"
    return progress_text(record.done, record.known, record.done_hash, record.left_out)


def _read_progress(text: str) -> Progress:
    """`done/known`, in later versions `/hash` behind it, and `/left out` where something is."""
    done, known, *more = text.split("/")
    return Progress(int(known), int(done), int(more[0], 16) if more else None, more[1] if more[1:] else "")


class About(TypedDict, total=False):
    """What an agent says of itself as it joins."""

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
    """What an agent said of itself as it joined; BrokenRecordError for anything else."""
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
