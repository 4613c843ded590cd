"""What a page is written in: told by BOM, header or meta, checked against the bytes, else the likeliest.

Declarations are wrong often enough: a page that says UTF-8 and is none is read as what it most looks like, one in
UTF-8 that says something else as UTF-8. Takes any bytes and header without raising. A page in UTF-8 that says so takes
as long as it takes to check that it is.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from typing import Final, NamedTuple

from w3lib.encoding import (
    html_body_declared_encoding,
    http_content_type_encoding,
    read_bom,
    to_unicode,
)

# Python's codecs that no page is written in: of work that grows with the square of the size, or full of escapes.
_NO_PAGE_HAS: Final = frozenset(
    ("punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7")
)
# Of the characters outside ASCII that may be broken in a page of UTF-8: where something cut texts between their bytes.
# Of EUC-KR, Shift_JIS or Big5 taken for UTF-8 half and more are.
_BROKEN_SHARE: Final = 0.2
# Bytes of UTF-8's sequences behind their first that prove a page to be in it: in EUC-KR two syllables may look like it.
_PROOF: Final = 8
# Bytes that are looked at, from the first block with one outside ASCII on.
_LOOKED_AT: Final = 12_000
_BLOCK: Final = 4_000

_HANGUL: Final = re.compile("[\uac00-\ud7a3]")
_KANA: Final = re.compile("[\u3041-\u3096\u30a1-\u30fa\u30fc]")
# The commonest of Chinese texts, in both scripts. In a text that is read in a wrong code hardly any is found.
_CHINESE: Final = re.compile(
    "[的一是不了在人有我他她它你这這个個们們中来來上大为為和国國地到以说說时時要就出会會可也对對生能而子那得于於自之年"
    "发發后後作家新文日本公司关關网網学學电電业業务務产產品]"
)
_IDEOGRAPH: Final = re.compile("[\u3400-\u9fff\uf900-\ufaff]")
_OUTSIDE_ASCII: Final = re.compile("[^\x00-\x7f]")
# Where ISO-2022-JP leaves ASCII.
_SHIFTS: Final = re.compile(rb"\x1b\$[@B]")


class _Script(NamedTuple):
    """How texts of a script are known that were read in the right one of its codes."""

    encodings: tuple[str, ...]
    signs: re.Pattern[str]
    among: re.Pattern[str]
    least: float  # share of the signs among the others

    def share(self, text: str) -> float:
        """What of the text are signs; 0.0: nothing that could be some."""
        found = len(self.among.findall(text))
        return len(self.signs.findall(text)) / found if found else 0.0


# The first that fits. Chinese read as Korean is half Hangul.
_SCRIPTS: Final = (
    _Script(("cp949",), _HANGUL, re.compile(f"{_HANGUL.pattern}|{_IDEOGRAPH.pattern}"), 0.8),
    _Script(("cp932", "euc_jp"), _KANA, _OUTSIDE_ASCII, 0.2),
    _Script(("gb18030", "big5hkscs"), _CHINESE, _IDEOGRAPH, 0.08),
)


def encoding_of(body: bytes, content_type: str) -> str:
    """The name of a codec of Python's for text."""
    encoding, _ = read_bom(body)
    # A page of ASCII is to be taken at its word: it may be in one of the codes that escape into others.
    if encoding is None and (declared := _declared(body, content_type)) and _fits(body, declared):
        encoding = declared
    with suppress(LookupError):
        if encoding:
            # Raised by those that are none for text: base64, zlib, …
            "".encode(encoding)
            return encoding
    return _likeliest(body)


def as_utf8(body: bytes, encoding: str) -> bytes:
    """The page in UTF-8, without its BOM."""
    _, bom = read_bom(body)
    if bom:
        body = body[len(bom) :]
    return body if encoding == "utf-8" else to_unicode(body, encoding).encode("utf-8", "replace")


def _declared(body: bytes, content_type: str) -> str | None:
    """The encoding that header or meta name; None: they name none that pages are written in."""
    encoding = http_content_type_encoding(content_type)
    if encoding is None:
        encoding = html_body_declared_encoding(body)
        if encoding and encoding.startswith(("utf-16", "utf-32")):
            # Such a page's meta could not have been read.
            encoding = "utf-8"
    return None if encoding is None or encoding.replace("_", "-") in _NO_PAGE_HAS else encoding


def _fits(body: bytes, declared: str) -> bool:
    """Whether the bytes may be what the page says of them."""
    sample = _sample(body)
    if declared in ("utf-8", "utf-8-sig"):
        return _is_utf8(sample)
    return not _is_surely_utf8(sample)


def _sample(body: bytes) -> bytes:
    """Where the first bytes are that tell anything; empty: the page is in ASCII."""
    for start in range(0, len(body), _BLOCK):
        if not body[start : start + _BLOCK].isascii():
            return body[start : start + _LOOKED_AT]
    return b""


def _is_utf8(body: bytes) -> bool:
    """Whether it is UTF-8 as far as it goes, but for a few broken characters."""
    # Halves of surrogate pairs are what some programs make of it.
    if _decodes(body, "utf-8", "surrogatepass"):
        return True
    text = body.decode("utf-8", "replace")
    outside = len(text) - len(text.encode("ascii", "ignore"))
    return text.count("\ufffd") <= _BROKEN_SHARE * outside


def _is_surely_utf8(body: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(body)
    except UnicodeDecodeError:
        return False
    return len(body) - len(text) >= _PROOF


def _likeliest(body: bytes) -> str:
    sample = _sample(body)
    if not sample and _SHIFTS.search(body):
        return "iso2022_jp"
    if _is_utf8(sample):
        return "utf-8"
    for script in _SCRIPTS:
        share, encoding = max((script.share(_read(sample, name)), name) for name in script.encodings)
        if share >= script.least:
            return encoding
    return "cp949" if _decodes(sample, "cp949") else "cp1252"


def _read(sample: bytes, encoding: str) -> str:
    """The text in this code; empty: it is in another."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError:
        return ""


def _decodes(body: bytes, encoding: str, errors: str = "strict") -> bool:
    try:
        # Not `final`: a body that was cut off may end inside a character.
        codecs.getincrementaldecoder(encoding)(errors).decode(body)
    except UnicodeDecodeError:
        return False
    return True
