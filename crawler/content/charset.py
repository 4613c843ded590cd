"""Detects a page's encoding: BOM, header or meta, verified against the bytes, else the most likely. Never raises."""

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

# Codecs that no page uses: quadratic, or escapes only.
_NO_PAGE_HAS: Final = frozenset(
    ("punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7")
)
# Share of broken non-ASCII characters that a UTF-8 page may have, since programs cut texts between bytes. EUC-KR,
# Shift_JIS or Big5 read as UTF-8 have half or more.
_BROKEN_SHARE: Final = 0.2
# Continuation bytes that prove UTF-8: two EUC-KR syllables may look like it.
_PROOF: Final = 8
# Sample size, from the first block with a non-ASCII byte.
_LOOKED_AT: Final = 12_000
_BLOCK: Final = 4_000

_HANGUL: Final = re.compile("[\uac00-\ud7a3]")
_KANA: Final = re.compile("[\u3041-\u3096\u30a1-\u30fa\u30fc]")
# Most frequent characters of Chinese, both scripts; rare in text decoded wrongly.
_CHINESE: Final = re.compile(
    "[的一是不了在人有我他她它你这這个個们們中来來上大为為和国國地到以说說时時要就出会會可也对對生能而子那得于於自之年"
    "发發后後作家新文日本公司关關网網学學电電业業务務产產品]"
)
_IDEOGRAPH: Final = re.compile("[\u3400-\u9fff\uf900-\ufaff]")
_OUTSIDE_ASCII: Final = re.compile("[^\x00-\x7f]")
# ISO-2022-JP's escape sequences.
_SHIFTS: Final = re.compile(rb"\x1b\$[@B]")


class _Script(NamedTuple):
    """How to recognize correctly decoded text of one script."""

    encodings: tuple[str, ...]
    signs: re.Pattern[str]
    among: re.Pattern[str]
    least: float  # least share of `signs` in `among`

    def share(self, text: str) -> float:
        """Share of `signs` in `among`; 0.0 if the text has neither."""
        found = len(self.among.findall(text))
        return len(self.signs.findall(text)) / found if found else 0.0


# First match wins. Chinese decoded as Korean is half Hangul.
_SCRIPTS: Final = (
    _Script(("cp949",), _HANGUL, re.compile(f"{_HANGUL.pattern}|{_IDEOGRAPH.pattern}"), 0.8),
    _Script(("cp932", "euc_jp"), _KANA, _OUTSIDE_ASCII, 0.2),
    _Script(("gb18030", "big5hkscs"), _CHINESE, _IDEOGRAPH, 0.08),
)


def encoding_of(body: bytes, content_type: str) -> str:
    """The name of a Python text codec."""
    encoding, _ = read_bom(body)
    # An ASCII page keeps its declared encoding: it may be an escape-based one.
    if encoding is None and (declared := _declared(body, content_type)) and _fits(body, declared):
        encoding = declared
    with suppress(LookupError):
        if encoding:
            # LookupError for codecs that are not for text: base64, zlib, …
            "".encode(encoding)
            return encoding
    return _likeliest(body)


def as_utf8(body: bytes, encoding: str) -> bytes:
    """The page in UTF-8, without BOM."""
    _, bom = read_bom(body)
    if bom:
        body = body[len(bom) :]
    return body if encoding == "utf-8" else to_unicode(body, encoding).encode("utf-8", "replace")


def _declared(body: bytes, content_type: str) -> str | None:
    encoding = http_content_type_encoding(content_type)
    if encoding is None:
        encoding = html_body_declared_encoding(body)
        if encoding and encoding.startswith(("utf-16", "utf-32")):
            # A meta tag in UTF-16 would not have been readable.
            encoding = "utf-8"
    return None if encoding is None or encoding.replace("_", "-") in _NO_PAGE_HAS else encoding


def _fits(body: bytes, declared: str) -> bool:
    sample = _sample(body)
    if declared in ("utf-8", "utf-8-sig"):
        return _is_utf8(sample)
    return not _is_surely_utf8(sample)


def _sample(body: bytes) -> bytes:
    """The first bytes that include non-ASCII ones; empty for an ASCII page."""
    for start in range(0, len(body), _BLOCK):
        if not body[start : start + _BLOCK].isascii():
            return body[start : start + _LOOKED_AT]
    return b""


def _is_utf8(body: bytes) -> bool:
    """Tolerates truncation and few broken characters."""
    # Some programs encode surrogate pairs separately.
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
    """Empty if the sample is invalid."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError:
        return ""


def _decodes(body: bytes, encoding: str, errors: str = "strict") -> bool:
    try:
        # Not `final`: a truncated body may end inside a character.
        codecs.getincrementaldecoder(encoding)(errors).decode(body)
    except UnicodeDecodeError:
        return False
    return True
