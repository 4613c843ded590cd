"""Detects a text's language as ISO 639-1 code, or empty: East Asian by letters, others by CLD3."""

from __future__ import annotations

import re
from typing import Any

import gcld3

# Characters of a text that are read.
LOOKED_AT = 1_000
# Characters for CLD3, whose time grows with them; from the middle, since menus and footers may be English.
GIVEN = 400

_HANGUL = re.compile("[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]+")
_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa\u30fc\u31f0-\u31ff\uff66-\uff9d]+")
_HAN = re.compile("[\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
_EAST_ASIAN_LETTERS = re.compile(f"(?:{_HANGUL.pattern}|{_KANA.pattern}|{_HAN.pattern})+")
_EAST_ASIAN = {"ko", "ja", "zh"}
# Minimum share of East Asian letters, and the same if the page declares such a language. Pages in other languages
# have names, and language links such as 한국어 and 日本語.
_EAST_ASIAN_SHARE = 0.1
_EAST_ASIAN_SHARE_DECLARED = 0.02
# Minimum share of kana for Japanese: a headline has 14 %, Chinese text at most 2 %.
_KANA_SHARE = 0.08
# Minimum share of Hangul for Korean.
_HANGUL_SHARE = 0.2

# Chinese characters up to this count may be names on a Japanese or Korean page.
_FEW_CHARACTERS = 50

_LETTER = re.compile(r"[^\W\d_]+")
_LATIN = re.compile("[A-Za-z\u00aa-\u024f\u1e00-\u1eff]+")
_OTHER = re.compile(
    "[\u0370-\u1dff\u1f00-\u1fff\u2c00-\u2dff\u3005-\uabff\uf900-\ufaff\ufb1d-\ufdff\uff66-\uff9d]+"
)
# English boilerplate on pages in any language; ignored for long texts.
_BOILERPLATE = re.compile(r"(?:copyright|©|all rights reserved)[^.|\u0370-\U0010ffff]*\.?", re.IGNORECASE)
_LITTLE_TEXT = 400
# Below this count CLD3 guesses. Of 117 texts of 20 to 150 letters in 20 languages it gets 114 right.
_LEAST_LETTERS = 10
# Control characters and noncharacters (CLD3 rejects lone surrogates).
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]|[\U0001fffe-\U0010ffff]")
# Languages that are hard to distinguish in short texts.
_NEIGHBOURS = (
    {"af", "nl"},
    {"ar", "fa", "ps", "ur"},
    {"be", "bg", "mk", "ru", "sr", "uk"},
    {"bs", "hr", "sl", "sr"},
    {"ca", "es", "gl", "pt"},
    {"cs", "sk"},
    {"da", "no", "sv"},
    {"hi", "mr", "ne"},
    {"id", "ms"},
)
# Below these probabilities the page's declaration wins: over any language, and over a similar one. Of 146 short texts
# 145 are right if each declares its own language, and 141 to 143 if all declare the same one.
_UNSURE, _UNSURE_OF_NEIGHBOURS = 0.5, 0.9

# Allocates per call; reads no file.
_DETECTOR = gcld3.NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=4 * GIVEN)

_DECLARED = re.compile(r"\s*([a-z]{2})(?![a-z])", re.IGNORECASE)
# Country codes used as language codes, and old codes.
_MEANT = {"kr": "ko", "jp": "ja", "cn": "zh", "nb": "no", "iw": "he", "in": "id", "ji": "yi", "jw": "jv"}


def declared(root: Any) -> str:
    """The language in `<html lang>`, or empty."""
    found = _DECLARED.match(root.get("lang") or root.get("xml:lang") or "")
    code = found[1].lower() if found else ""
    return _MEANT.get(code, code)


def language(text: str, said: str = "") -> str:
    """The language of the first LOOKED_AT characters; `said` is the page's declaration."""
    text = text[:LOOKED_AT]
    if len(text) < _LITTLE_TEXT:
        text = _BOILERPLATE.sub(" ", text)
    if not text.isascii():
        if east_asian := _east_asian(text, said):
            return east_asian
        # CLD3 mistakes text with a few East Asian names or language links for East Asian.
        text = _of_one_script(_EAST_ASIAN_LETTERS.sub(" ", text))
    if len(text) < _LITTLE_TEXT and (letters := _count(_LETTER, text)) < _LEAST_LETTERS:
        return said if letters else ""
    return _likeliest(text, said) or said


def _east_asian(text: str, said: str) -> str:
    """ko, ja or zh, or empty."""
    hangul, kana, han = _count(_HANGUL, text), _count(_KANA, text), _count(_HAN, text)
    found = hangul + kana + han
    share = _EAST_ASIAN_SHARE_DECLARED if said in _EAST_ASIAN else _EAST_ASIAN_SHARE
    if not found or found < share * _count(_LETTER, text):
        return ""
    if kana > hangul and kana >= _KANA_SHARE * (kana + han):
        return "ja"
    if hangul >= _HANGUL_SHARE * (hangul + han):
        return "ko"
    return said if said in _EAST_ASIAN and found < _FEW_CHARACTERS else "zh"


def _of_one_script(text: str) -> str:
    """Drop letters of the less frequent script."""
    other = _count(_OTHER, text)
    if not other:
        return text
    return (_LATIN if 2 * other >= _count(_LATIN, text) else _OTHER).sub(" ", text)


def _count(letters: re.Pattern[str], text: str) -> int:
    return sum(map(len, letters.findall(text)))


def _likeliest(text: str, said: str) -> str:
    begin = max(0, len(text) - GIVEN) // 2
    found = _DETECTOR.FindLanguage(_REFUSED.sub(" ", text[begin : begin + GIVEN]))
    code = found.language.partition("-")[0]
    code = _MEANT.get(code, code)
    if said and found.probability < (_UNSURE_OF_NEIGHBOURS if _neighbours(code, said) else _UNSURE):
        return said
    return code if len(code) == 2 and code not in _EAST_ASIAN else ""


def _neighbours(one: str, other: str) -> bool:
    return any(one in group and other in group for group in _NEIGHBOURS)
