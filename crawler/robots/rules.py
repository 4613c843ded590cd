"""A robots.txt as RFC 9309 reads it, and as the owner of a misspelt one meant it. Pure.

Where the two differ, the reading that forbids more counts: docs/robots.md lists the cases. Rules are compared with what
is asked for; what canonical URLs spell alike is one page, so a query is looked at in more than one order of its fields.

Takes any bytes without raising. Reading takes time that grows with the file alone; a URL is judged in time that grows
with its length and with the file's wildcards, of which only so many are read as they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from crawler.urls.url import UrlError, ascii_host

# ------------------------------------------------------------------------------------------------------------
# The hours of the day in which a site lets itself be visited: robots.txt's Visit-time, UTC. Pure.
#
# A window may cross midnight. What it says holds by real time, however long an hour of the plan is.


DAY_SECONDS: Final = 86_400.0
DAY_MINUTES: Final = 1440
_TEXT: Final = re.compile(r"(\d\d)(\d\d)-(\d\d)(\d\d)")


class Window(NamedTuple):
    """From a minute of the day until another one, that one left out; `closes` below `opens`: on the next day."""

    opens: int
    closes: int

    @classmethod
    def between(cls, opens: int, closes: int) -> Self | None:
        """The window of these minutes of the day; None where it is the whole day, as people write it."""
        if closes == DAY_MINUTES - 1:
            closes = DAY_MINUTES
        return None if opens == closes % DAY_MINUTES else cls(opens, closes)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """What `str` gave; None for an empty text: open at all times. ValueError for any other."""
        if not text:
            return None
        if found := _TEXT.fullmatch(text):
            opens, closes = _minutes(found[1], found[2]), _minutes(found[3], found[4])
            if opens < DAY_MINUTES and closes <= DAY_MINUTES:
                return cls(opens, closes)
        raise ValueError(f"{text!r} is no window of the day; expected HHMM-HHMM")

    def __str__(self) -> str:
        return f"{self.opens // 60:02}{self.opens % 60:02}-{self.closes // 60:02}{self.closes % 60:02}"

    @property
    def in_words(self) -> str:
        """The window as a person reads it."""
        (opens, closes) = (f"{minute // 60:02}:{minute % 60:02}" for minute in self)
        return f"from {opens} to {closes} UTC"

    def wait(self, at: float) -> float:
        """Seconds from a time (since 1970) until it is open; 0.0: it is."""
        opens, closes = 60.0 * self.opens, 60.0 * self.closes
        second = at % DAY_SECONDS
        is_open = opens <= second < closes if opens < closes else second >= opens or second < closes
        return 0.0 if is_open else (opens - second) % DAY_SECONDS

    def share(self, at: float, seconds: float) -> float:
        """The share of so many seconds from a time on in which it is open, 0 to 1."""
        length = 60.0 * ((self.closes - self.opens) % DAY_MINUTES)
        first = (at // DAY_SECONDS - 1) * DAY_SECONDS + 60.0 * self.opens
        days = int(seconds // DAY_SECONDS) + 3
        starts = (first + DAY_SECONDS * day for day in range(days))
        overlaps = (min(start + length, at + seconds) - max(start, at) for start in starts)
        return sum(max(0.0, overlap) for overlap in overlaps) / seconds


def _minutes(hours: str, minutes: str) -> int:
    return int(hours) * 60 + int(minutes) if int(minutes) < 60 else DAY_MINUTES + 1


# Wildcards of all rules together that are followed at every URL. The rules behind them forbid all that begins like
# them, up to their first wildcard: to leave one out would be to fetch what it forbids.
MOST_WILDCARDS: Final = 5_000
# Fields of a query that are tried as its first one.
_MOST_FIRST: Final = 10

# Misspellings are those that Google's parser takes too, and some more; of Allow there is none, as it would permit.
_NAMES: Final = {
    "agent": rb"user[-_ ]?agents?",
    "disallow": rb"dis[- ]?allow(?:s|ed)?|dissallow|dissalow|disalow|diasllow|disallaw|disallov|desallow|dissalov",
    "allow": rb"allow",
    "delay": rb"crawl[-_ ]?delay",
    "rate": rb"request[-_ ]?rate",
    "hours": rb"visit[-_ ]?time",
}
_NAME: Final = b"|".join(b"(?P<%s>%s)" % (kind.encode(), words) for kind, words in _NAMES.items())
# A colon, one of those that Korean, Chinese and Japanese keyboards give, or none.
_LINE: Final = re.compile(
    rb"^[^\S\n]*+(?:%s)[^\S\n]*+(?::|\xef\xbc\x9a|(?<=[^\S\n]))(?P<value>[^\n]*+)" % _NAME, re.I | re.M
)
_COMMENT: Final = re.compile(rb"#[^\n]*+")
# Where a file has lost its line ends: before a name with a colon, and in HTML.
_LOST_END: Final = re.compile(
    rb"</?(?:br|p|pre|div|body)\b[^<>\n]*+>|(?<!dis)(?:\\n|[ \t])(?=(?:%s)[ \t]*+:)"
    % b"|".join(_NAMES.values()),
    re.I,
)
_PARTS_AGENTS: Final = re.compile(rb"[\s,;()\"']+")

_NUMBER: Final = rb"([0-9]{1,9}(?:[.,][0-9]{0,9})?|[.,][0-9]{1,9})"
_UNIT: Final = rb"(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)?"
_DELAY: Final = re.compile(_NUMBER + rb"\s*" + _UNIT + rb"\.?", re.I)
_RATE: Final = re.compile(rb"([0-9]{1,9})\s*/\s*" + _NUMBER + rb"\s*" + _UNIT + rb"(?:\s.*)?", re.I)
# The first that a unit begins with.
_SECONDS: Final = (
    (b"ms", 0.001),
    (b"mil", 0.001),
    (b"m", 60.0),
    (b"h", 3600.0),
    (b"d", 86_400.0),
    (b"", 1.0),
)
_HOURS: Final = re.compile(
    rb"([0-9]{1,2}):?([0-9]{2})(?:\s*+(?:-|to)\s*+|\s++)([0-9]{1,2}):?([0-9]{2})(?:\s*+(?:utc|gmt|z))?", re.I
)

# A URL in the place of a path, as far as its path: the name, the port, and who asks, as far as it says.
_WHOLE_URL: Final = re.compile(rb"https?://(?:[^/@\s]*+@)?(?P<host>[^/:?#\s]*+)(?::[0-9]*+)?", re.I)

_ESCAPE: Final = re.compile(rb"%[0-9a-fA-F]{2}")
# Escapes that stay, since what they stand for means something else where it stands bare.
_KEPT_IN_PATH: Final = frozenset(b"/?#%*")
_KEPT_IN_QUERY: Final = frozenset(b"&#%*+")
_PRINTABLE: Final = bytes(range(0x21, 0x7F))


class _Rule(NamedTuple):
    """A rule with a wildcard: what a path begins with, what follows in this order, and how it ends."""

    weight: int
    allows: bool
    head: bytes
    parts: tuple[bytes, ...]
    tail: bytes | None  # the path ends so; None: it may go on

    def fits(self, path: bytes) -> bool:
        """Whether the rule speaks of this path."""
        if not path.startswith(self.head):
            return False
        at = len(self.head)
        for part in self.parts:
            at = path.find(part, at) + len(part)
            if at < len(part):
                return False
        return self.tail is None or (len(path) - at >= len(self.tail) and path.endswith(self.tail))


class Said:
    """What a file says to one crawler."""

    def __init__(
        self, rules: Iterable[tuple[bool, bytes]], delay: float | None, window: Window | None
    ) -> None:
        self.delay = delay  # seconds between two requests; None: none asked for
        self.window = window  # pages are fetched within it only; None: at all times
        self._whole: dict[bytes, bool] = {}  # paths that a rule ending in $ names
        self._begun: dict[bytes, bool] = {}  # what paths begin with
        self._patterns: list[_Rule] = []
        self._left = MOST_WILDCARDS
        self._forbids = False
        # Whether a rule can tell two orders of a query from each other.
        self._sees_order = False
        beyond: set[bytes] = set()
        for allows, pattern in dict.fromkeys(rules):
            self._take(allows, pattern, beyond)
        self._beyond = tuple(beyond)
        self._lengths = sorted({len(path) for path in self._begun}, reverse=True)
        self._patterns.sort(key=lambda rule: (rule.weight, rule.allows), reverse=True)

    def allows(self, url: str) -> bool:
        """Whether an absolute URL may be asked for."""
        path = _path(url)
        if not self._forbids or path.partition(b"?")[0] == b"/robots.txt":
            return True
        spellings = _orders(path) if self._sees_order and b"?" in path else (path,)
        return all(self._allows(_plain(one.replace(b"*", b"%2A"))) for one in spellings)

    def _allows(self, path: bytes) -> bool:
        if self._beyond and path.startswith(self._beyond):
            return False
        weight, allowed = self._longest(path)
        for rule in self._patterns:
            if rule.weight < weight or (rule.weight == weight and (allowed or not rule.allows)):
                break
            if rule.fits(path):
                return rule.allows
        return allowed

    def _longest(self, path: bytes) -> tuple[int, bool]:
        """Weight of the longest rule without a wildcard that speaks of the path, and whether it allows it."""
        if (allows := self._whole.get(path)) is not None:
            return _weight(path) + 1, allows
        for length in self._lengths:
            if length <= len(path) and (allows := self._begun.get(path[:length])) is not None:
                return _weight(path[:length]), allows
        return -1, True

    def _take(self, allows: bool, pattern: bytes, beyond: set[bytes]) -> None:
        ends = pattern.endswith(b"$")
        bare = _plain(pattern[:-1] if ends else pattern)
        self._forbids |= not allows
        self._sees_order |= any(mark in bare for mark in (b"?", b"&", b"="))
        if b"*" not in bare:
            rules = self._whole if ends else self._begun
            rules[bare] = allows or rules.get(bare, False)
            return
        head, *parts = bare.split(b"*")
        tail = parts.pop() if ends else None
        self._left -= len(parts) + 1
        if self._left >= 0:
            between = tuple(filter(None, parts))
            self._patterns.append(_Rule(_weight(bare) + ends, allows, head, between, tail))
        elif not allows:
            beyond.add(head)


@dataclass(eq=False)
class _Heard:
    """The lines that are said to somebody."""

    named: bool = False
    rules: list[tuple[bool, bytes]] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    window: Window | None = None

    def take_rule(self, kind: str, value: bytes) -> None:
        """One line about paths; without a value it says nothing."""
        if value:
            self.rules += ((kind == "allow", path) for path in _paths(value, kind == "allow"))

    def take_time(self, kind: str, value: bytes) -> None:
        """One line about when, or how often."""
        if kind == "hours":
            self.window = _window(value) or self.window
        elif (seconds := _seconds(value) if kind == "delay" else _pause(value)) is not None:
            self.delays.append(seconds)


class _Group:
    """Whom the lines are said to that come next.

    For rules a list of names ends at the first rule: what is none of the RFC's must not end it (2.2.4). For delays it
    ends at any line, since some files give each name its own and no rules.
    """

    def __init__(self) -> None:
        self._ruled: list[_Heard] = []
        self._timed: list[_Heard] = []
        self._rules_told = self._told = False

    def call(self, named: list[_Heard]) -> None:
        """A line of names, of which these count."""
        if self._rules_told:
            self._ruled, self._rules_told = [], False
        if self._told:
            self._timed, self._told = [], False
        for heard in named:
            heard.named = True
            self._ruled += [heard] if heard not in self._ruled else []
            self._timed += [heard] if heard not in self._timed else []

    def tell(self, kind: str, value: bytes) -> None:
        """Any other line."""
        self._told = True
        if kind in ("allow", "disallow"):
            self._rules_told = True
            for heard in self._ruled:
                heard.take_rule(kind, value)
        else:
            for heard in self._timed:
                heard.take_time(kind, value)


class RobotsFile:
    """The file of one host, for any crawler; what it says to one is read once."""

    def __init__(self, body: bytes, host: str) -> None:
        self._body = body
        self._host = host
        self._said: dict[str, Said] = {}

    def to(self, agent: str) -> Said:
        """What it says to the crawler with this product token, or to all where it does not name it."""
        if agent not in self._said:
            self._said[agent] = read_robots(self._body, agent, self._host)
        return self._said[agent]


def read_robots(body: bytes, agent: str, host: str) -> Said:
    """What the file says to the crawler with this product token, or to all where it does not name it.

    A rule that names another host than `host` says nothing of this one.
    """
    own, everybody = _Heard(), _Heard()
    called = {agent.lower().encode(): own, b"*": everybody}
    group = _Group()
    for kind, value in _lines(_text(body)):
        if kind == "agent":
            group.call([called[name] for name in _names(value) if name in called])
        else:
            group.tell(kind, b"" if _is_of_another_host(value, host) else value)
    said = own if own.named else everybody
    return Said(said.rules, max(said.delays, default=None), said.window)


def _text(body: bytes) -> bytes:
    """The file in UTF-8 as far as it is text, every line ended alike, without comments."""
    for bom, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if body.startswith(bom):
            body = body.decode(encoding, "replace").encode("utf-8", "replace")
    body = body.replace(b"\xef\xbb\xbf", b"").replace(b"\0", b"").replace(b"\xc2\xa0", b" ")
    body = _COMMENT.sub(b"", body.replace(b"\r", b"\n"))
    return _LOST_END.sub(b"\n", body)


def _lines(text: bytes) -> Iterator[tuple[str, bytes]]:
    for line in _LINE.finditer(text):
        kind = next(name for name, found in zip(_NAMES, line.groups(), strict=False) if found is not None)
        yield kind, line["value"].strip()


def _names(value: bytes) -> set[bytes]:
    """The crawlers that a line names, in lower case, without version; `*`: all."""
    if value == b"*":
        return {b"*"}
    words = _PARTS_AGENTS.split(value.lower())
    return {word.partition(b"/")[0].strip(b"*") or word for word in words} - {b""}


def _paths(value: bytes, allows: bool) -> Iterator[bytes]:
    """The patterns that a rule's value means: one, but where it is none of the RFC's and forbids."""
    if allows:
        if value.startswith((b"/", b"*")):
            yield value
        return
    several = value.split()
    for one in several if len(several) > 1 and all(word.startswith(b"/") for word in several) else [value]:
        pattern = _mended(one)
        yield pattern
        if not pattern.isascii():
            yield from _other_letters(pattern)


def _mended(value: bytes) -> bytes:
    """A path for what should have been one: a URL, a name without its slash, an ending, a query."""
    if value.startswith((b"/", b"*")):
        return value
    if url := _WHOLE_URL.match(value):
        return b"/" + value[url.end() :].removeprefix(b"/")
    return (b"*" if value.startswith((b".", b"?")) else b"/") + value


def _is_of_another_host(value: bytes, host: str) -> bool:
    """Whether a rule is a URL of another host. With and without `www.` is one host; one that cannot exist is ours."""
    url = _WHOLE_URL.match(value)
    if url is None:
        return False
    try:
        named = ascii_host(url["host"].decode())
    except (UrlError, UnicodeDecodeError):
        return False
    return named.removeprefix("www.") != host.removeprefix("www.")


def _other_letters(pattern: bytes) -> Iterator[bytes]:
    """The path in UTF-8, as browsers ask for it, where a file was written in the older Korean code."""
    try:
        pattern.decode()
    except UnicodeDecodeError:
        yield pattern.decode("cp949", "replace").encode()


def _seconds(value: bytes) -> float | None:
    found = _DELAY.fullmatch(value)
    return _times(found[1], found[2]) if found else None


def _pause(value: bytes) -> float | None:
    """Seconds from one request to the next that a rate like 1/10m means."""
    found = _RATE.fullmatch(value)
    if found is None or not int(found[1]):
        return None
    return _times(found[2], found[3]) / int(found[1])


def _times(number: bytes, unit: bytes | None) -> float:
    seconds = next(seconds for start, seconds in _SECONDS if (unit or b"").lower().startswith(start))
    return float(number.replace(b",", b".")) * seconds


def _window(value: bytes) -> Window | None:
    """The hours that a line means; None: the whole day, or not to be understood."""
    found = _HOURS.fullmatch(value)
    if found is None:
        return None
    hours, minutes = (int(found[1]), int(found[3])), (int(found[2]), int(found[4]))
    opens, closes = (60 * hour + minute for hour, minute in zip(hours, minutes, strict=True))
    if max(minutes) > 59 or opens >= 24 * 60 or closes > 24 * 60:
        return None
    return Window.between(opens, closes)


def _path(url: str) -> bytes:
    """Path and query of an absolute URL, as they are written."""
    host, slash, path = url.partition("://")[2].partition("#")[0].partition("/")
    if "?" in host:
        path = f"?{host.partition('?')[2]}{slash}{path}"
    return b"/" + path.encode("utf-8", "surrogatepass")


def _orders(path: bytes) -> Iterator[bytes]:
    """The path with its query as it stands and with each of its first fields in front, empty values told and not.

    All of these name one page, and the owner may know it by another one than this.
    """
    base, _, query = path.partition(b"?")
    fields = query.split(b"&")
    for first in range(min(len(fields), _MOST_FIRST)):
        ordered = [fields[first], *fields[:first], *fields[first + 1 :]]
        yield base + b"?" + b"&".join(ordered)
        if query.endswith(b"=") or b"=&" in query:
            yield base + b"?" + b"&".join(one.removesuffix(b"=") for one in ordered)


def _plain(path: bytes) -> bytes:
    """The path in the one spelling in which rules and URLs are compared: bytes, unescaped as far as that is safe."""
    if b"%" not in path and b"+" not in path:
        return path
    path, mark, query = path.partition(b"?")
    return _unescaped(path, _KEPT_IN_PATH) + mark + _unescaped(query.replace(b"+", b" "), _KEPT_IN_QUERY)


def _unescaped(text: bytes, kept: frozenset[int]) -> bytes:
    def one(escape: re.Match[bytes]) -> bytes:
        byte = int(escape[0][1:], 16)
        return escape[0].upper() if byte in kept else bytes((byte,))

    return _ESCAPE.sub(one, text) if b"%" in text else text


def _weight(path: bytes) -> int:
    """Octets of the rule as the RFC counts them: those that cannot stand in a URL as three."""
    return len(path) + 2 * len(path.translate(None, _PRINTABLE))
