"""Visible text of a parsed page and its hash; media and domains. Never raises; linear time.

Style sheets are not applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lxml import etree

from crawler.records import MOST_HOSTS
from crawler.urls.url import UrlError, ascii_host, host_of

if TYPE_CHECKING:
    from crawler.content.html import Links


_HIDDEN = ("script", "style", "template", "noscript", "noframes", "iframe")
# XPath: four times faster than `itertext`.
_PIECES: Any = etree.XPath("descendant::text()", smart_strings=False)
# White space in UTF-8 bytes; wide spaces are replaced first.
_WHITE = b" \t\n\r\f\v\x1c\x1d\x1e\x1f"
_WIDE = "\xa0\u3000\u2002\u2003\u2009\u200b\u202f\ufeff"


def visible(root: Any) -> str:
    """The body's text without scripts and the like; empty: none."""
    body = next(root.iterchildren("body"), None) if root is not None else None
    if body is None:
        return ""
    pieces: list[str] = _PIECES(body)
    start = 0
    for piece in _hidden(body):
        # Hidden pieces keep their order. An equal visible piece may be dropped instead.
        start = pieces.index(piece, start)
        pieces[start] = ""
    text = " ".join(pieces)
    return "" if text.isspace() else text


def _hidden(body: Any) -> Iterator[str]:
    """In order; a single XPath would be quadratic."""
    elements = body.iter(*_HIDDEN)
    for element in elements:
        yield from _PIECES(element)
        if len(element):
            inside = sum(1 for _ in element.iterdescendants(*_HIDDEN))
            next(islice(elements, inside, inside), None)


def collapsed(text: str, most: int | None = None) -> str:
    """The text with single blanks, truncated to `most` characters."""
    if most is None:
        return " ".join(text.split())
    # A word with a blank has at least two characters.
    words = text.split(None, most // 2 + 1)[: most // 2 + 1]
    return " ".join(words)[:most]


def content_hash(text: str) -> str:
    """Hex hash of the text without white space; empty for no text."""
    if not text:
        return ""
    if not text.isascii():
        for space in _WIDE:
            text = text.replace(space, " ")
    bare = text.encode("utf-8", "surrogatepass").translate(None, _WHITE)
    return blake2b(bare, digest_size=16).hexdigest() if bare else ""


# --- Media: images, audio, video, documents, archives, programs ---


_ENDINGS = {
    "image": "jpg jpeg jpe jfif png gif webp avif heic svg svgz bmp ico tif tiff psd",
    "audio": "mp3 m4a aac ogg oga opus wav flac wma mid midi ra ram aif aiff au",
    "video": "mp4 m4v webm ogv mov avi mkv mpg mpeg mpe wmv asf asx flv swf 3gp rm rmvb m3u8",
    "document": "pdf doc docx docm rtf odt xls xlsx xlsm csv ods ppt pptx pps ppsx odp hwp hwpx ps eps tex djvu epub "
    "txt",
    "archive": "zip 7z rar gz tgz bz2 tbz xz zst tar lzh alz egg cab jar iso",
    "program": "exe msi apk ipa dmg pkg deb rpm appimage bin",
}
KIND_OF = {ending: kind for kind, endings in _ENDINGS.items() for ending in endings.split()}
# Elements that embed media; `object` and `embed` may be any kind.
_SHOWN = {"img": "image", "video": "video", "audio": "audio", "embed": "", "object": ""}
# Maximum elements that are read: a page may have a million.
_MOST_ELEMENTS = 5_000


def media_of(root: Any, found: Links) -> dict[str, int]:
    """Distinct files by kind; kinds without files are omitted."""
    files: dict[str, set[str]] = {}
    for kind, file in (*_shown(root), *_linked(found)):
        files.setdefault(kind, set()).add(file)
    return {kind: len(files[kind]) for kind in _ENDINGS if kind in files}


def kind_of(path: str) -> str | None:
    """The kind by file extension, or None."""
    name = path.partition("?")[0]
    return KIND_OF.get(name[name.rfind(".") + 1 :].lower())


def shown_media(root: Any) -> Iterator[str]:
    """Embedded files as written, with repetitions."""
    return (file for _, file in _shown(root))


def _linked(found: Links) -> Iterator[tuple[str, str]]:
    for path in found.inside:
        if kind := kind_of(path):
            yield kind, path
    for site, paths in found.outside.items():
        for path in paths:
            if kind := kind_of(path):
                yield kind, site + path


def _shown(root: Any) -> Iterator[tuple[str, str]]:
    elements = root.iter(*_SHOWN) if root is not None else ()
    for number, element in enumerate(islice(elements, _MOST_ELEMENTS)):
        file = _file_of(element)
        kind = _SHOWN[element.tag] or kind_of(file) or element.get("type", "").partition("/")[0].lower()
        if kind in _ENDINGS:
            # A video without a file is loaded by a script: count each.
            yield kind, file or f"#{number}"


def _file_of(element: Any) -> str:
    """Empty if absent or a placeholder."""
    for name in ("src", "data", "data-src"):
        file = element.get(name, "").strip()
        if file and file[:5].lower() != "data:":
            return str(file)
    source = next(element.iterchildren("source"), None)
    return "" if source is None else str(source.get("src", ""))


# --- Linked hosts, domains of mail addresses and FTP links ---


# Maximum names of each list.
MOST_DOMAINS = MOST_HOSTS
# Maximum candidates: a page may have a million.
_MOST_LOOKED_AT = 2_000
_ELSEWHERE = re.compile(r"[\x00-\x20]*+(?i:(mailto)|ftp):")
_MAIL_HOST = re.compile(r"@([^@\s,;<>]++)")
# Starts with @ for a fast search. ASCII only: Korean appends particles without a blank.
_MAIL_IN_TEXT = re.compile(
    r"@(?<=[A-Za-z0-9._%+-]@)((?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24})(?![A-Za-z0-9-])"
)


def outside_hosts(found: Links, site: str) -> list[str]:
    """Other hosts that a page of `site` links to."""
    hosts = dict.fromkeys(map(host_of, islice(found.outside, _MOST_LOOKED_AT)))
    hosts.pop(host_of(site), None)
    return list(islice(hosts, MOST_DOMAINS))


def mail_and_ftp(hrefs: Iterable[str], text: str) -> tuple[list[str], list[str]]:
    """Domains of mail addresses, and hosts of FTP links."""
    mail: list[str] = []
    ftp: list[str] = []
    for href in hrefs:
        found = _ELSEWHERE.match(href)
        if found is None:
            continue
        rest = href[found.end() :]
        if found[1]:
            mail += _MAIL_HOST.findall(unquote(rest.partition("?")[0]))
        else:
            with suppress(ValueError):
                ftp.append(urlsplit(f"ftp:{rest}").hostname or "")
    if "@" in text:
        mail += _in_text(text)
    return _names(mail), _names(ftp)


def _in_text(text: str) -> list[str]:
    """`picture@2x.png` is a file."""
    found = (match[1] for match in islice(_MAIL_IN_TEXT.finditer(text), _MOST_LOOKED_AT))
    return [host for host in found if KIND_OF.get(host.rpartition(".")[2].lower()) != "image"]


def _names(hosts: list[str]) -> list[str]:
    names: dict[str, None] = {}
    for host in dict.fromkeys(hosts[:_MOST_LOOKED_AT]):
        with suppress(UrlError):
            name = ascii_host(host)
            if "." in name or ":" in name:
                names[name.strip("[]")] = None
    return list(islice(names, MOST_DOMAINS))
