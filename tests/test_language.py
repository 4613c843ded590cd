"""Languages of short texts, of mixed ones and of none; what a page declares."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from lxml import html

from crawler.content.charset import encoding_of
from crawler.content.language import LOOKED_AT, declared, language
from tests.crawling import Place
from tests.farm import Farm
from tests.languages import PAGE_BYTES, PAGES_EACH, TEXTS, pages, told
from tests.servers import eventually

ALL = [(code, text) for code, texts in TEXTS.items() for text in texts]
ENGLISH = "The ferry between the two islands does not run this weekend because of strong winds. "


def wrong(said: dict[str, str] | str = "") -> list[tuple[str, str, str]]:
    """What comes out otherwise than it should, with what is declared: the same for all, or by language."""
    found = [
        (code, language(text, said if isinstance(said, str) else said[code]), text) for code, text in ALL
    ]
    return [(code, told, text) for code, told, text in found if code != told]


def test_most_short_texts_are_told_by_themselves() -> None:
    missed = wrong()
    assert len(missed) <= 4, missed


def test_what_is_declared_decides_where_the_text_does_not() -> None:
    assert len(wrong({code: code for code in TEXTS})) <= 1


def test_a_wrong_declaration_spoils_next_to_nothing() -> None:
    """Templates come with `<html lang=en>`, whatever is put into them."""
    assert len(wrong("en")) <= 4


def test_pages_of_two_kilobytes_are_told_in_every_language() -> None:
    """95 in a hundred over all of them, and no language far below: `python -m tests.languages` prints the table."""
    found = told()
    assert len(found) >= 20
    assert sum(found.values()) >= 0.95 * PAGES_EACH * len(found), found
    assert min(found.values()) >= 0.9 * PAGES_EACH, found
    assert all(PAGE_BYTES <= len(page.encode()) < 2 * PAGE_BYTES for code in found for page in pages(code))


MENU = "Home About us Products Services Contact Login Register Search Terms of use Privacy policy Careers News Help "
FOOTER = (
    "Follow us on Facebook. Terms and conditions. Privacy policy. All rights reserved. Powered by WordPress. "
)


@pytest.mark.parametrize(
    ("menu", "length", "footer"), [(300, 700, 0), (0, 600, 340), (300, 300, 170), (500, 2_000, 0)]
)
def test_english_around_the_text_does_not_count(menu: int, length: int, footer: int) -> None:
    missed = []
    for code in TEXTS.keys() - {"en", "ja", "ko", "zh"}:
        text = " ".join(TEXTS[code])
        parts = ((MENU * 9)[:menu], (text * (length // len(text) + 1))[:length], (FOOTER * 9)[:footer])
        missed += [code] if language(" ".join(parts).strip()) != code else []
    assert not missed


@pytest.mark.parametrize("encoding", ["euc_kr", "cp949", "utf-8"])
@pytest.mark.parametrize("is_declared", [True, False])
def test_korean_in_each_of_its_encodings(encoding: str, is_declared: bool) -> None:
    """Told or found out, and read to the last syllable; EUC-KR lacks those that CP949 adds."""
    for page in pages("ko"):
        text = page.replace("©", "(c)")
        if encoding == "euc_kr":
            text = text.replace("똠방각하와 펲시도", "모두")
        body = f"<html><body><p>{text}</p></body></html>".encode(encoding)
        found = encoding_of(body, f"text/html; charset={encoding}" if is_declared else "text/html")
        assert text in body.decode(found)
        assert language(text) == "ko"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        # English that stands on every page of some sites.
        ("한국전산원 Copyright © 1999-2001 National Agency. All rights reserved. Powered by X", "ko"),
        ("Copyright 2001 株式会社見本 All Rights Reserved. お知らせ", "ja"),
        ("Home About Contact 공지사항 자료실 Copyright 2001 Example Corp. All rights reserved.", "ko"),
        # Names, and words to change the language by, on a page in another one.
        (f"English 한국어 日本語 中文 Русский {ENGLISH * 3}", "en"),
        (f"{ENGLISH * 2} It was first seen in Seoul (서울) and Tokyo (東京).", "en"),
        (f"한국어 日本語 English {TEXTS['ru'][4]}", "ru"),
        (f"{TEXTS['th'][1]} Powered by WordPress Facebook Twitter", "th"),
        ("漢字를 섞어 쓴 新聞 記事의 例示 文章이다 大韓民國 政府는", "ko"),
        ("東京都千代田区霞が関一丁目 電話番号のご案内", "ja"),
        ("由於強風,本週末兩島之間的渡輪停航。の", "zh"),
    ],
)
def test_mixed_texts(text: str, code: str) -> None:
    assert language(text) == code


@pytest.mark.parametrize("text", ["", "   ", "1234 12:30 45,00 € 19.99 $", "-- | -- ©", "\ufffd" * 50])
def test_no_letters_are_no_language_whatever_is_declared(text: str) -> None:
    assert language(text, "de") == ""


@pytest.mark.parametrize("text", ["OK", "Page 3", "404 nginx/1.18.0"])
def test_too_little_text_leaves_it_to_the_page(text: str) -> None:
    assert language(text) == ""
    assert language(text, "de") == "de"


def test_names_in_chinese_characters_alone_are_of_the_declared_language() -> None:
    names = "田中一郎 鈴木花子 山田太郎"
    assert language(names) == "zh"
    assert language(names, "ja") == "ja"
    assert language(names, "de") == "zh"
    assert language(TEXTS["zh"][4] * 3, "ja") == "zh"


def test_only_the_beginning_counts() -> None:
    assert language(ENGLISH * 20 + TEXTS["ko"][4] * 200) == "en"
    assert len(ENGLISH * 20) > LOOKED_AT


@given(text=some.text(max_size=200), said=some.sampled_from(["", "en", "ko", "xx"]))
@settings(max_examples=200, deadline=None)
def test_any_text_is_taken(text: str, said: str) -> None:
    assert language(text, said) == "" or len(language(text, said)) == 2


@pytest.mark.parametrize(
    ("root", "code"),
    [
        ("<html lang=de>", "de"),
        ("<html lang=' EN-us '>", "en"),
        ("<html lang=zh_TW>", "zh"),
        ("<html xml:lang=fr>", "fr"),
        ("<html lang=kr>", "ko"),
        ("<html lang=nb-NO>", "no"),
        ("<html lang=deu>", ""),
        ("<html lang>", ""),
        ("<html>", ""),
    ],
)
def test_what_a_page_declares(root: str, code: str) -> None:
    assert declared(html.document_fromstring(f"{root}<p>x")) == code


# --- in a crawl -------------------------------------------------------------------------------------------


def test_no_page_of_a_crawl_goes_without(place: Place) -> None:
    with Farm(sites=2, pages=5, kinds=("charset",), names=()) as farm:
        place.start_crawl(farm.seeds, LANGUAGE_ENABLED=True).wait().succeeded()
    told = languages(place.var / "crawl.db", sites=2)
    assert told.pop("en") >= 10
    assert told.pop("fr") == told.pop("ko") == 2


def test_it_can_be_off(place: Place) -> None:
    with Farm(sites=1, pages=2, kinds=(), names=()) as farm:
        place.start_crawl(farm.seeds, LANGUAGE_ENABLED=False).wait().succeeded()
    assert languages(place.var / "crawl.db", sites=1) == {None: 2}


def languages(database: Path, sites: int) -> dict[str | None, int]:
    """Stored pages by language, when so many sites are in the tables as finished."""

    def asked(sql: str) -> list[tuple[str | None, int]]:
        with closing(sqlite3.connect(database)) as connection:
            return connection.execute(sql).fetchall()

    finished = "select state, count(*) from sites where state = 'finished' group by state"
    eventually(lambda: asked(finished) == [("finished", sites)], "all sites finished in the tables")
    return dict(asked("select language, count(*) from pages where outcome = 'stored' group by language"))
