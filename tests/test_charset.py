"""What pages are written in: told rightly, wrongly or not at all; and that text ends up valid Unicode everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from crawler.content import html, text
from crawler.content.charset import encoding_of
from tests.costs import ratio

TEXTS = {
    "ko": "대한민국의 아름다운 금수강산에서 똠방각하가 펲시를 마신다. 오늘의 날씨는 맑고 기온은 이십도이다.",
    "ko-euc": "대한민국의 아름다운 금수강산, 漢字도 조금.",
    "ja": "日本語のページです。今日は東京の天気がとても良いので、散歩に行きました。カタカナも。",
    "zh": "中国是世界上人口最多的国家之一，我们在这里介绍中国的历史和文化。",
    "zh-hant": "中國是世界上人口最多的國家之一，我們在這裡介紹中國的歷史和文化。",
    "fr": "Le café près de la forêt coûte un élan, déjà vu à l’œuvre.",
    "ru": "Привет, это страница на русском языке.",
}
PLACES = [
    ("ko", "utf-8"),
    ("ko", "cp949"),
    ("ko-euc", "euc_kr"),
    ("ja", "utf-8"),
    ("ja", "cp932"),
    ("ja", "euc_jp"),
    ("ja", "iso2022_jp"),
    ("zh", "utf-8"),
    ("zh", "gb2312"),
    ("zh", "gb18030"),
    ("zh-hant", "big5"),
    ("zh-hant", "big5hkscs"),
    ("zh-hant", "gb18030"),
    ("fr", "utf-8"),
    ("fr", "cp1252"),
    ("ru", "utf-8"),
]
# In codes for a single script nothing but a declaration can be believed.
DECLARED = [*PLACES, ("ru", "cp1251"), ("ru", "koi8_r"), ("fr", "utf-16-le"), ("ko", "gb18030")]


def page(words: str, encoding: str, head: str = "") -> bytes:
    body = f'<html><head>{head}<title>{words}</title></head><body><p>{words}<a href="/{words[:2]}">x</a>'
    return body.encode(encoding)


def read(body: bytes, content_type: str) -> tuple[str, str, list[str]]:
    """Title, text and links of a page."""
    root = html.document(body, content_type)
    found = html.links(root, "http://example.org/", "http://example.org", 10, 2_083)
    return root.findtext(".//title"), text.collapsed(text.visible(root)), found.inside


def told(words: str) -> tuple[str, str, list[str]]:
    return read(page(words, "utf-8"), "text/html; charset=utf-8")


@pytest.mark.parametrize(("language", "encoding"), PLACES)
def test_an_undeclared_page(language: str, encoding: str) -> None:
    words = TEXTS[language]
    assert read(page(words, encoding), "text/html") == told(words)
    # A long head in ASCII before the first letter that tells anything.
    assert read(page(words, encoding, f"<script>{'x' * 30_000}</script>"), "")[0] == words


@pytest.mark.parametrize(("language", "encoding"), DECLARED)
def test_a_declared_page(language: str, encoding: str) -> None:
    words = TEXTS[language]
    assert read(page(words, encoding), f"text/html; charset={encoding}") == told(words)


@pytest.mark.parametrize(("language", "encoding"), [one for one in PLACES if one[1] != "iso2022_jp"])
@pytest.mark.parametrize("where", ["header", "meta"])
def test_a_page_that_says_utf_8_and_is_none(language: str, encoding: str, where: str) -> None:
    words = TEXTS[language]
    head = "<meta charset=utf-8>" if where == "meta" else ""
    kind = "text/html; charset=utf-8" if where == "header" else "text/html"
    assert read(page(words, encoding, head), kind)[:2] == told(words)[:2]


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("said", ["euc-kr", "shift_jis", "gb2312", "big5", "iso-8859-1", "windows-1251"])
def test_a_page_in_utf_8_that_says_something_else(language: str, said: str) -> None:
    words = TEXTS[language] * 2
    assert read(page(words, "utf-8"), f"text/html; charset={said}")[:2] == told(words)[:2]
    assert read(page(words, "utf-8", f"<meta charset={said}>"), "")[:2] == told(words)[:2]


def test_a_bom_wins_over_what_is_said() -> None:
    words = TEXTS["ko"]
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        assert read(page(words, encoding), "text/html; charset=euc-kr")[0] == words


@pytest.mark.parametrize("words", ["한글", "가", "똠방", "안녕하세요", "처음", "짜장"])
@pytest.mark.parametrize("kind", ["text/html", "text/html; charset=no-such", "text/html; charset=euc-kr"])
def test_two_syllables_are_korean(words: str, kind: str) -> None:
    assert read(f"<p>{words}".encode("cp949"), kind)[1] == words
    assert encoding_of(words.encode("cp949"), kind) == "cp949"


@pytest.mark.parametrize("broken", [b"\xed\x95", b"\xff", b"\xed\xa0\x80"])
def test_a_few_broken_characters_make_no_other_encoding(broken: bytes) -> None:
    body = page(TEXTS["ko"], "utf-8") + broken + TEXTS["ko"].encode()
    for kind in ("text/html", "text/html; charset=utf-8"):
        assert encoding_of(body, kind) == "utf-8"


def test_cut_off_inside_a_character_it_is_what_it_was() -> None:
    for language, encoding in PLACES:
        body = page(TEXTS[language] * 3, encoding)
        whole = encoding_of(body, "")
        assert {encoding_of(body[:-cut], "") for cut in range(1, 40)} == {whole}, encoding


def test_an_ordinary_page_is_told_soon() -> None:
    """Where its server names the encoding little is looked at: it takes less than the decoding of the page."""
    words = TEXTS["ko"]
    row = (
        f"<div class='item'><a href='/list?x=1' class=link>{words[:13]}</a><span>{words[:10]}</span></div>\n"
    )
    body = (row * 200).encode()

    def told() -> None:
        for _ in range(500):
            encoding_of(body, "text/html; charset=utf-8")

    def decoded() -> None:
        for _ in range(500):
            body.decode()

    assert ratio(told, decoded, 1) < 1


@given(
    some.lists(
        some.one_of(
            some.binary(max_size=8),
            some.sampled_from(["한", "語", "é", "\u200b"]).flatmap(
                lambda one: some.sampled_from(
                    [one.encode(name, "ignore") for name in ("utf-8", "cp949", "gb18030", "utf-16")]
                )
            ),
            some.sampled_from([b"<meta charset=", b"euc-kr>", b"utf-8>", b"hz>", b"\x1b$B", b"\xff\xfe"]),
        ),
        max_size=20,
    ).map(b"".join),
    some.one_of(
        some.text(max_size=10),
        some.sampled_from(["euc-kr", "big5", "utf-8"]).map("text/html; charset={}".format),
    ),
)
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_some_text(body: bytes, kind: str) -> None:
    name = encoding_of(body, kind)
    body.decode(name, "replace")
    root = html.document(body, kind)
    if root is not None:
        text.visible(root).encode("utf-8")
