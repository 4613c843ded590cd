"""Detects traps: endless families of URLs without new content. Pure, bounded.

By URL: folders repeat (`/a/b/a/b/a/b`). By content: many pages in a row of one family (URLs equal but for numbers and
codes) show only known text and pictures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from itertools import islice
from typing import Final

from crawler.urls.url import page_of

# Limits per site: families (the most frequent ones), remembered texts of each (an endless calendar has about a
# hundred), and traps.
MOST_FAMILIES: Final = 32
MOST_SEEN: Final = 512
MOST_TRAPS: Final = 200
# Repetitions that make a trap, and folders of one cycle; single folders repeat on honest sites too.
REPEATS: Final = 3
REPEATS_OF_ONE: Final = 5
LONGEST_ROUND: Final = 4
# Pages in a row without new content whose links carry codes.
SESSION_PAGES: Final = 10
# Pictures that are compared per page.
MOST_SHOWN: Final = 50
# Characters of text per page: ten megabytes would take a second.
MOST_TEXT: Final = 1_000_000
_LEAST_FOLDERS: Final = min(REPEATS_OF_ONE, 2 * REPEATS)

# A word with a digit. Possessive and anchored at word starts: linear time.
_NUMBERED = re.compile(r"(?<![0-9A-Za-z])[A-Za-z]*+[0-9][0-9A-Za-z]*+")
_FROM_DIGIT = re.compile(r"[0-9][0-9A-Za-z]*+")
# Length of a date or a session code.
_CODE: Final = 8
_DIGITS = re.compile(r"[0-9]++")
# A code as a field's value, a parameter, in parentheses, or as a folder.
_LONG_CODE = re.compile(r"(?<=[=;(])[A-Za-z0-9_.~%-]{16,}+|(?<=/)[A-Za-z0-9]{20,}+(?=[/?;)]|\Z)")


def family_of(path: str) -> str:
    """The path with numbers and codes masked."""
    return _NUMBERED.sub(_blank, _LONG_CODE.sub("*", path))


def repeats(path: str) -> bool:
    """Whether the path's folders repeat in cycles."""
    if path.count("/") < _LEAST_FOLDERS:
        return False
    folders = path.partition("?")[0].split("/")[1:]
    return any(_goes_round(folders, size) for size in range(1, LONGEST_ROUND + 1))


def _goes_round(folders: list[str], size: int) -> bool:
    """Whether `size` folders repeat often enough, not of numbers only (`/1/1/1/1/1` may be a map tile)."""
    wanted = size * ((REPEATS_OF_ONE if size == 1 else REPEATS) - 1)
    alike, named = 0, False
    for one, next_one in zip(folders, folders[size:], strict=False):
        alike = alike + 1 if one == next_one else 0
        named = alike > 0 and (named or not (one.isdigit() or one == ""))
        if alike >= wanted and named:
            return True
    return False


def _blank(found: re.Match[str]) -> str:
    word = found[0]
    return "*" if len(word) >= _CODE else _DIGITS.sub("0", word)


class _Family:
    """Contents of one family's pages."""

    __slots__ = ("_seen", "pages", "run")

    def __init__(self) -> None:
        self.pages = 0
        self.run = 0  # pages in a row without new content
        self._seen: dict[int, None] = {}  # hashes, oldest first

    def shows(self, what: Hashable) -> bool:
        """Remember this; whether it is new."""
        number = hash(what)
        new = number not in self._seen
        self._seen.pop(number, None)
        self._seen[number] = None
        if len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return new


class Traps:
    """Traps of one leased site."""

    __slots__ = ("_families", "_known", "_pages", "_repeated")

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._families: dict[str, _Family] = {}
        self._known: set[str] = set()  # families that are traps
        self._repeated = ""  # the first path with repeating folders

    @property
    def why(self) -> str:
        """Detected traps in words, or empty."""
        signs = [f"nothing new in {self._pages} pages of {family[:80]}" for family in sorted(self._known)[:3]]
        signs += [f"folders repeat in {self._repeated[:80]}"] if self._repeated else []
        more = len(self._known) - 3
        signs += [f"and {more} more"] if more > 0 else []
        return "; ".join(signs)

    def holds(self, path: str) -> bool:
        """Whether the path belongs to a detected trap."""
        return bool(self._known) and family_of(path) in self._known

    def leads_in(self, path: str) -> bool:
        """The same for a link, including repeating folders."""
        if self.holds(path):
            return True
        if not repeats(path):
            return False
        self._repeated = self._repeated or path
        return True

    def look(self, path: str, text: str, links: Collection[str], shown: Callable[[], Iterable[str]]) -> str:
        """Check a page that led to new URLs; returns its family if that is now a trap, else "".

        `links` are distinct paths of its site; `shown` returns embedded files.
        """
        family = family_of(path)
        if family == path or family in self._known or not text or text.isspace():
            return ""
        if len(self._known) >= MOST_TRAPS:
            return ""
        text = text[:MOST_TEXT]
        known = self._family(family)
        known.pages += 1
        # Cheap first check, enough for nearly all pages: is the text without digits known?
        plain = text.encode("utf-8", "surrogatepass").translate(None, b"0123456789")
        new = known.shows(plain)
        if not new:
            files = [_LONG_CODE.sub("*", file) for file in islice(shown(), MOST_SHOWN)]
            names = [page_of(link) for link in links]
            new = known.shows((plain, *_substance(family, path, text, names, files)))
            # Remember each, even after a new one.
            pictures = [known.shows(file) for file in files if "?" not in file]
            new = new or any(pictures)
        known.run = 0 if new else known.run + 1
        if known.run < min(SESSION_PAGES, self._pages):
            return ""
        if known.run < self._pages and not _carry_codes(links):
            return ""
        del self._families[family]
        self._known.add(family)
        return family

    def _family(self, name: str) -> _Family:
        if name not in self._families:
            if len(self._families) >= MOST_FAMILIES:
                del self._families[min(self._families, key=lambda one: self._families[one].pages)]
            self._families[name] = _Family()
        return self._families[name]


def _substance(
    family: str, path: str, text: str, links: Iterable[str], shown: Iterable[str]
) -> Iterator[str]:
    """Words with digits and files, without numbers of the page's own URLs."""
    own = {_plain(word) for link in (path, *links) if family_of(link) == family for word in _words(link)}
    yield from (word for word in _words_of_text(text) if _plain(word) not in own)
    for file in shown:
        yield _NUMBERED.sub(lambda found: "" if _plain(found[0]) in own else found[0], file)


def _words_of_text(text: str) -> Iterator[str]:
    """A faster `_words`."""
    end = 0
    for found in _FROM_DIGIT.finditer(text):
        start = found.start()
        while start > end and (before := text[start - 1]).isascii() and before.isalpha():
            start -= 1
        end = found.end()
        yield text[start:end]


def _carry_codes(links: Collection[str]) -> bool:
    coded = sum(1 for link in links if any(not code.isdigit() for code in _LONG_CODE.findall(link)))
    return 2 * coded > len(links)


def _words(path: str) -> list[str]:
    return _NUMBERED.findall(path)


def _plain(word: str) -> str:
    """05 and 5 are equal."""
    return word.lstrip("0")
