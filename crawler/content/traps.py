"""Traps: families of URLs without end whose pages say nothing new: calendars, session numbers, folders in folders.

Two signs. Of a link alone: folders that repeat one behind the other (`/a/b/a/b/a/b`), as a wrong relative link makes
them. Of pages: those of one family (their URLs alike but for numbers and codes) that lead to URLs nobody knew, and yet
so many of them in a row show text and pictures that the family has shown before. Numbers that stand in the page's own
URL or in its links within the family do not count in text, for they are what such a page is made of; every other word
or number is new, and so is a picture of another name. So the pages of archives, catalogues, tables of figures and slide
shows are no trap, however many there are, nor are pages without a word. Fewer pages are enough where most links of each
carry a code, as those of a session do, in any letters.

Pure, in memory, bounded for each site. What it cannot tell it lets pass: MAX_PAGES_PER_SITE ends the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from itertools import islice
from typing import Final

from crawler.urls.url import page_of

# Families of a site that are watched, the most frequent ones; texts of each that are remembered (an endless calendar
# has a hundred or so); and traps, above which no more are looked for.
MOST_FAMILIES: Final = 32
MOST_SEEN: Final = 512
MOST_TRAPS: Final = 200
# Times that folders repeat, and how many of them may make one round; a single folder repeats in honest places too.
REPEATS: Final = 3
REPEATS_OF_ONE: Final = 5
LONGEST_ROUND: Final = 4
# Pages of a family in a row that show nothing new and whose links carry codes: there is no honest site of such.
SESSION_PAGES: Final = 10
# Pictures of a page that are looked at.
MOST_SHOWN: Final = 50
# Characters of its text: of a page of ten megabytes all would take a second.
MOST_TEXT: Final = 1_000_000
_LEAST_FOLDERS: Final = min(REPEATS_OF_ONE, 2 * REPEATS)

# A word that has a digit. Possessive and begun at a word's beginning only: nobody can make these slow.
_NUMBERED = re.compile(r"(?<![0-9A-Za-z])[A-Za-z]*+[0-9][0-9A-Za-z]*+")
_FROM_DIGIT = re.compile(r"[0-9][0-9A-Za-z]*+")
# As long as a date or a code of a session is.
_CODE: Final = 8
_DIGITS = re.compile(r"[0-9]++")
# A code in any letters, as the value of a field or a parameter, in parentheses, or as a folder.
_LONG_CODE = re.compile(r"(?<=[=;(])[A-Za-z0-9_.~%-]{16,}+|(?<=/)[A-Za-z0-9]{20,}+(?=[/?;)]|\Z)")


def family_of(path: str) -> str:
    """The path with what changes within its family left out; the path itself where nothing does."""
    return _NUMBERED.sub(_blank, _LONG_CODE.sub("*", path))


def repeats(path: str) -> bool:
    """Whether the path's folders go round and round."""
    if path.count("/") < _LEAST_FOLDERS:
        return False
    folders = path.partition("?")[0].split("/")[1:]
    return any(_goes_round(folders, size) for size in range(1, LONGEST_ROUND + 1))


def _goes_round(folders: list[str], size: int) -> bool:
    """Whether `size` folders follow each other often enough, not of numbers alone: `/1/1/1/1/1` is a place on a map."""
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
    """What the pages of one family have shown."""

    __slots__ = ("_seen", "pages", "run")

    def __init__(self) -> None:
        self.pages = 0
        self.run = 0  # of them in a row showed nothing new
        self._seen: dict[int, None] = {}  # hashes, the oldest first

    def shows(self, what: Hashable) -> bool:
        """Whether this is new to it."""
        number = hash(what)
        new = number not in self._seen
        self._seen.pop(number, None)
        self._seen[number] = None
        if len(self._seen) > MOST_SEEN:
            del self._seen[next(iter(self._seen))]
        return new


class Traps:
    """The traps of one site in hand; `pages` of a family in a row that show nothing new make one."""

    __slots__ = ("_families", "_known", "_pages", "_repeated")

    def __init__(self, pages: int) -> None:
        self._pages = pages
        self._families: dict[str, _Family] = {}
        self._known: set[str] = set()  # families that are traps
        self._repeated = ""  # the first path whose folders go round

    @property
    def why(self) -> str:
        """By which signs traps are known; empty: none is."""
        signs = [f"nothing new in {self._pages} pages of {family[:80]}" for family in sorted(self._known)[:3]]
        signs += [f"folders repeat in {self._repeated[:80]}"] if self._repeated else []
        more = len(self._known) - 3
        signs += [f"and {more} more"] if more > 0 else []
        return "; ".join(signs)

    def holds(self, path: str) -> bool:
        """Whether the path is of a trap that is known by now; it is left out then."""
        return bool(self._known) and family_of(path) in self._known

    def leads_in(self, path: str) -> bool:
        """The same for a link, of which its folders may tell as well."""
        if self.holds(path):
            return True
        if not repeats(path):
            return False
        self._repeated = self._repeated or path
        return True

    def look(self, path: str, text: str, links: Collection[str], shown: Callable[[], Iterable[str]]) -> str:
        """A page that led to new URLs: the family that it proves to be a trap; empty: none.

        `links` are its paths of the same site, as written, each once; `shown` gives the pictures and the like that it
        shows.
        """
        family = family_of(path)
        if family == path or family in self._known or not text or text.isspace():
            return ""
        if len(self._known) >= MOST_TRAPS:
            return ""
        text = text[:MOST_TEXT]
        known = self._family(family)
        known.pages += 1
        # The first look is cheap and enough for nearly all pages: without its digits, is the text one that was there?
        plain = text.encode("utf-8", "surrogatepass").translate(None, b"0123456789")
        new = known.shows(plain)
        if not new:
            files = [_LONG_CODE.sub("*", file) for file in islice(shown(), MOST_SHOWN)]
            names = [page_of(link) for link in links]
            new = known.shows((plain, *_substance(family, path, text, names, files)))
            # Each is noted, also behind one that is new.
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
    """The words with digits of the text, and what is shown, without those that make up the page's URL and its way on.

    Of two texts that are one but for digits, these words tell the difference.
    """
    own = {_plain(word) for link in (path, *links) if family_of(link) == family for word in _words(link)}
    yield from (word for word in _words_of_text(text) if _plain(word) not in own)
    for file in shown:
        yield _NUMBERED.sub(lambda found: "" if _plain(found[0]) in own else found[0], file)


def _words_of_text(text: str) -> Iterator[str]:
    """What `_words` gives, in a third of the time where most words have no digit."""
    end = 0
    for found in _FROM_DIGIT.finditer(text):
        start = found.start()
        while start > end and (before := text[start - 1]).isascii() and before.isalpha():
            start -= 1
        end = found.end()
        yield text[start:end]


def _carry_codes(links: Collection[str]) -> bool:
    """Whether most links carry a code: longer than numbers and dates are."""
    coded = sum(1 for link in links if any(not code.isdigit() for code in _LONG_CODE.findall(link)))
    return 2 * coded > len(links)


def _words(path: str) -> list[str]:
    return _NUMBERED.findall(path)


def _plain(word: str) -> str:
    """05 and 5 are one number."""
    return word.lstrip("0")
