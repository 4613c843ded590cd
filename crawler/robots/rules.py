"""Parses robots.txt as RFC 9309 does, and misspelt files as their owners meant them. Pure; never raises.

Where both differ, the stricter reading wins (docs/robots.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from crawler.urls.url import UrlError, ascii_host

# --- Visit-time ---


DAY_SECONDS: Final = 86_400.0
DAY_MINUTES: Final = 1440
_TEXT: Final = re.compile(r"(\d\d)(\d\d)-(\d\d)(\d\d)")


class Window(NamedTuple):
    """Minutes of the UTC day; `closes` is excluded, and below `opens` on the next day."""

    opens: int
    closes: int

    @classmethod
    def between(cls, opens: int, closes: int) -> Self | None:
        """None for the whole day (0000-2359 too)."""
        if closes == DAY_MINUTES - 1:
            closes = DAY_MINUTES
        return None if opens == closes % DAY_MINUTES else cls(opens, closes)

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Inverse of `str`; None for "". Raises ValueError."""
        if not text:
            return None
        if found := _TEXT.fullmatch(text):
            opens, closes = _minutes(found[1], found[2]), _minutes(found[3], found[4])
            if opens < DAY_MINUTES and closes <= DAY_MINUTES:
                return cls(opens, closes)
        raise ValueError(f"{text!r} is not a time window; expected HHMM-HHMM")

    def __str__(self) -> str:
        return f"{self.opens // 60:02}{self.opens % 60:02}-{self.closes // 60:02}{self.closes % 60:02}"

    @property
    def in_words(self) -> str:
        """In readable form."""
        (opens, closes) = (f"{minute // 60:02}:{minute % 60:02}" for minute in self)
        return f"from {opens} to {closes} UTC"

    def wait(self, at: float) -> float:
        """Seconds from a Unix time until the window opens; 0.0: open."""
        opens, closes = 60.0 * self.opens, 60.0 * self.closes
        second = at % DAY_SECONDS
        is_open = opens <= second < closes if opens < closes else second >= opens or second < closes
        return 0.0 if is_open else (opens - second) % DAY_SECONDS

    def share(self, at: float, seconds: float) -> float:
        """The fraction of the next `seconds` in which it is open."""
        length = 60.0 * ((self.closes - self.opens) % DAY_MINUTES)
        first = (at // DAY_SECONDS - 1) * DAY_SECONDS + 60.0 * self.opens
        days = int(seconds // DAY_SECONDS) + 3
        starts = (first + DAY_SECONDS * day for day in range(days))
        overlaps = (min(start + length, at + seconds) - max(start, at) for start in starts)
        return sum(max(0.0, overlap) for overlap in overlaps) / seconds


def _minutes(hours: str, minutes: str) -> int:
    return int(hours) * 60 + int(minutes) if int(minutes) < 60 else DAY_MINUTES + 1


# Maximum wildcards that are matched per URL. A Disallow rule past it forbids everything that starts like it, up to
# its first wildcard.
MOST_WILDCARDS: Final = 5_000
# Query fields that are tried in first position.
_MOST_FIRST: Final = 10

# Google's misspellings, and some more; none of Allow, since it would permit.
_NAMES: Final = {
    "agent": rb"user[-_ ]?agents?",
    "disallow": rb"dis[- ]?allow(?:s|ed)?|dissallow|dissalow|disalow|diasllow|disallaw|disallov|desallow|dissalov",
    "allow": rb"allow",
    "delay": rb"crawl[-_ ]?delay",
    "rate": rb"request[-_ ]?rate",
    "hours": rb"visit[-_ ]?time",
}
_NAME: Final = b"|".join(b"(?P<%s>%s)" % (kind.encode(), words) for kind, words in _NAMES.items())
# Colon, full-width colon (Korean, Chinese and Japanese keyboards), or white space.
_LINE: Final = re.compile(
    rb"^[^\S\n]*+(?:%s)[^\S\n]*+(?::|\xef\xbc\x9a|(?<=[^\S\n]))(?P<value>[^\n]*+)" % _NAME, re.I | re.M
)
_COMMENT: Final = re.compile(rb"#[^\n]*+")
# Lost line ends: before a name with a colon, and in HTML.
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
# Longest prefix of a unit first.
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

# A full URL in place of a path: scheme, user, host and port.
_WHOLE_URL: Final = re.compile(rb"https?://(?:[^/@\s]*+@)?(?P<host>[^/:?#\s]*+)(?::[0-9]*+)?", re.I)

_ESCAPE: Final = re.compile(rb"%[0-9a-fA-F]{2}")
# Escapes that stay: the bare character has a different meaning.
_KEPT_IN_PATH: Final = frozenset(b"/?#%*")
_KEPT_IN_QUERY: Final = frozenset(b"&#%*+")
_PRINTABLE: Final = bytes(range(0x21, 0x7F))


class _Rule(NamedTuple):
    """A rule with wildcards."""

    weight: int
    allows: bool
    head: bytes
    parts: tuple[bytes, ...]
    tail: bytes | None  # end of the path; None: any

    def fits(self, path: bytes) -> bool:
        """Whether the rule matches."""
        if not path.startswith(self.head):
            return False
        at = len(self.head)
        for part in self.parts:
            at = path.find(part, at) + len(part)
            if at < len(part):
                return False
        return self.tail is None or (len(path) - at >= len(self.tail) and path.endswith(self.tail))


class Said:
    """The rules for one crawler."""

    def __init__(
        self, rules: Iterable[tuple[bool, bytes]], delay: float | None, window: Window | None
    ) -> None:
        self.delay = delay  # seconds between two requests, or None
        self.window = window  # Visit-time; None: at all times
        self._whole: dict[bytes, bool] = {}  # rules ending in $
        self._begun: dict[bytes, bool] = {}  # prefix rules
        self._patterns: list[_Rule] = []
        self._left = MOST_WILDCARDS
        self._forbids = False
        # Whether a rule depends on the order of query fields.
        self._sees_order = False
        beyond: set[bytes] = set()
        for allows, pattern in dict.fromkeys(rules):
            self._take(allows, pattern, beyond)
        self._beyond = tuple(beyond)
        self._lengths = sorted({len(path) for path in self._begun}, reverse=True)
        self._patterns.sort(key=lambda rule: (rule.weight, rule.allows), reverse=True)

    def allows(self, url: str) -> bool:
        """Whether a URL may be fetched: all its spellings must be allowed."""
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
        """Weight of the longest matching rule without wildcards (-1: none), and whether it allows."""
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
    """Lines for one crawler."""

    named: bool = False
    rules: list[tuple[bool, bytes]] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    window: Window | None = None

    def take_rule(self, kind: str, value: bytes) -> None:
        """An Allow or Disallow line; empty values are ignored."""
        if value:
            self.rules += ((kind == "allow", path) for path in _paths(value, kind == "allow"))

    def take_time(self, kind: str, value: bytes) -> None:
        """A Crawl-delay, Request-rate or Visit-time line."""
        if kind == "hours":
            self.window = _window(value) or self.window
        elif (seconds := _seconds(value) if kind == "delay" else _pause(value)) is not None:
            self.delays.append(seconds)


class _Group:
    """The current User-agent group.

    For rules it ends at its first rule (RFC 9309, 2.2.4); for delays at any line, since some files list delays
    without rules.
    """

    def __init__(self) -> None:
        self._ruled: list[_Heard] = []
        self._timed: list[_Heard] = []
        self._rules_seen = self._any_seen = False

    def call(self, named: list[_Heard]) -> None:
        """A User-agent line."""
        if self._rules_seen:
            self._ruled, self._rules_seen = [], False
        if self._any_seen:
            self._timed, self._any_seen = [], False
        for heard in named:
            heard.named = True
            self._ruled += [heard] if heard not in self._ruled else []
            self._timed += [heard] if heard not in self._timed else []

    def tell(self, kind: str, value: bytes) -> None:
        """Any other line."""
        self._any_seen = True
        if kind in ("allow", "disallow"):
            self._rules_seen = True
            for heard in self._ruled:
                heard.take_rule(kind, value)
        else:
            for heard in self._timed:
                heard.take_time(kind, value)


class RobotsFile:
    """A host's robots.txt; parsed once per crawler."""

    def __init__(self, body: bytes, host: str) -> None:
        self._body = body
        self._host = host
        self._said: dict[str, Said] = {}

    def to(self, agent: str) -> Said:
        """The rules for this product token, else for `*`."""
        if agent not in self._said:
            self._said[agent] = read_robots(self._body, agent, self._host)
        return self._said[agent]


def read_robots(body: bytes, agent: str, host: str) -> Said:
    """As RobotsFile.to; rules for hosts other than `host` are ignored."""
    own, default = _Heard(), _Heard()
    called = {agent.lower().encode(): own, b"*": default}
    group = _Group()
    for kind, value in _lines(_text(body)):
        if kind == "agent":
            group.call([called[name] for name in _names(value) if name in called])
        else:
            group.tell(kind, b"" if _is_of_another_host(value, host) else value)
    found = own if own.named else default
    return Said(found.rules, max(found.delays, default=None), found.window)


def _text(body: bytes) -> bytes:
    """The file in UTF-8 with uniform line ends, without comments."""
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
    """Product tokens in lower case, without version."""
    if value == b"*":
        return {b"*"}
    words = _PARTS_AGENTS.split(value.lower())
    return {word.partition(b"/")[0].strip(b"*") or word for word in words} - {b""}


def _paths(value: bytes, allows: bool) -> Iterator[bytes]:
    """The patterns of a rule's value."""
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
    """Also accepts a URL, a missing slash, a file extension or a query."""
    if value.startswith((b"/", b"*")):
        return value
    if url := _WHOLE_URL.match(value):
        return b"/" + value[url.end() :].removeprefix(b"/")
    return (b"*" if value.startswith((b".", b"?")) else b"/") + value


def _is_of_another_host(value: bytes, host: str) -> bool:
    """`www.` is ignored; an invalid host counts as ours."""
    url = _WHOLE_URL.match(value)
    if url is None:
        return False
    try:
        named = ascii_host(url["host"].decode())
    except (UrlError, UnicodeDecodeError):
        return False
    return named.removeprefix("www.") != host.removeprefix("www.")


def _other_letters(pattern: bytes) -> Iterator[bytes]:
    """The path in UTF-8 if the file is in CP949."""
    try:
        pattern.decode()
    except UnicodeDecodeError:
        yield pattern.decode("cp949", "replace").encode()


def _seconds(value: bytes) -> float | None:
    found = _DELAY.fullmatch(value)
    return _times(found[1], found[2]) if found else None


def _pause(value: bytes) -> float | None:
    """Seconds between requests by a rate like 1/10m."""
    found = _RATE.fullmatch(value)
    if found is None or not int(found[1]):
        return None
    return _times(found[2], found[3]) / int(found[1])


def _times(number: bytes, unit: bytes | None) -> float:
    seconds = next(seconds for start, seconds in _SECONDS if (unit or b"").lower().startswith(start))
    return float(number.replace(b",", b".")) * seconds


def _window(value: bytes) -> Window | None:
    """None for the whole day or an invalid value."""
    found = _HOURS.fullmatch(value)
    if found is None:
        return None
    hours, minutes = (int(found[1]), int(found[3])), (int(found[2]), int(found[4]))
    opens, closes = (60 * hour + minute for hour, minute in zip(hours, minutes, strict=True))
    if max(minutes) > 59 or opens >= 24 * 60 or closes > 24 * 60:
        return None
    return Window.between(opens, closes)


def _path(url: str) -> bytes:
    """Path and query, as written."""
    host, slash, path = url.partition("://")[2].partition("#")[0].partition("/")
    if "?" in host:
        path = f"?{host.partition('?')[2]}{slash}{path}"
    return b"/" + path.encode("utf-8", "surrogatepass")


def _orders(path: bytes) -> Iterator[bytes]:
    """The path with each of its first query fields in front, with and without empty values."""
    base, _, query = path.partition(b"?")
    fields = query.split(b"&")
    for first in range(min(len(fields), _MOST_FIRST)):
        ordered = [fields[first], *fields[:first], *fields[first + 1 :]]
        yield base + b"?" + b"&".join(ordered)
        if query.endswith(b"=") or b"=&" in query:
            yield base + b"?" + b"&".join(one.removesuffix(b"=") for one in ordered)


def _plain(path: bytes) -> bytes:
    """Normalized bytes, for comparison."""
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
    """Octets of the rule; bytes that need escaping count three."""
    return len(path) + 2 * len(path.translate(None, _PRINTABLE))
