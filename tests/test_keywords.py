"""Keywords: what stands out on a page, in languages with and without blanks between words."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from msgspec.structs import replace

from crawler.content import html
from crawler.content.keywords import LOOKED_AT, headings, keywords
from crawler.pipelines.keywords import Keywords
from tests.contracts.test_page_pipelines import Bench
from tests.costs import STEEP, growth, ratio

TIDE = {
    "en": (
        "Tide tables",
        "A tide table lists times and heights of high and low water for a harbour. Sailors use tide tables to "
        "plan when to leave the harbour, and fishermen to know when the tide turns. The heights are given above "
        "chart datum. Don't rely on the table of another harbour: there the tide may be hours apart.",
        ["tide", "tables", "harbour"],
    ),
    "de": (
        "Gezeitentafeln",
        "Gezeitentafeln nennen die Zeiten von Hochwasser und Niedrigwasser für einen Hafen. Die Segler nutzen "
        "Gezeitentafeln, um den Hafen zu verlassen, und die Fischer, um das Hochwasser zu kennen.",
        ["gezeitentafeln", "hochwasser", "hafen"],
    ),
    "ru": (
        "Таблица приливов",
        "Таблица приливов показывает время полной и малой воды для порта. Моряки смотрят в таблицу приливов, чтобы "
        "выйти из порта, и рыбаки тоже смотрят, когда приливы.",
        ["приливов", "таблица", "порта"],
    ),
    "ko": (
        "조석표",
        "조석표는 항구의 만조와 간조 시각을 알려 줍니다. 선원은 조석표를 보고 항구에서 떠날 시각을 정하고 "
        "어민은 조석표로 물때를 압니다. 조석표의 높이는 기본수준면을 기준으로 합니다.",
        ["조석표", "항구", "시각"],
    ),
    "zh": (
        "潮汐表",
        "潮汐表列出港口高潮和低潮的时间。船员看潮汐表决定什么时候离开港口,渔民看潮汐表知道潮水。国家海洋局发布潮汐表。"
        "国家海洋局在北京。",
        ["潮汐表", "港口"],
    ),
    "ja": (
        "潮汐表",
        "潮汐表は港の満潮と干潮の時刻を示す。船員は潮汐表を見て時刻を決める。スマートフォンのアプリもある。アプリは無料。",
        ["潮汐表", "時刻", "アプリ"],
    ),
}


@pytest.mark.parametrize("code", TIDE)
def test_what_a_page_is_about_comes_first(code: str) -> None:
    title, text, wanted = TIDE[code]
    found = keywords(title, title, text, code, 5)
    assert found[0] == wanted[0]
    assert set(wanted) <= set(found)


def test_a_word_says_nothing_in_its_own_language_alone() -> None:
    assert keywords("", "", "die die die ferry", "de", 5) == ["ferry"]
    assert keywords("", "", "die die die ferry", "en", 5) == ["die", "ferry"]
    assert keywords("", "", "die die die ferry", "", 5) == ["ferry"]


def test_place_counts_more_than_number_and_order_breaks_ties() -> None:
    text = "alpha beta gamma delta gamma gamma"
    assert keywords("", "", text, "en", 9) == ["gamma", "alpha", "beta", "delta"]
    assert keywords("", "beta", text, "en", 2) == ["beta", "gamma"]
    assert keywords("delta", "beta", text, "en", 2) == ["delta", "beta"]
    assert keywords("omega", "", text, "en", 2) == ["omega", "gamma"]


def test_numbers_and_scraps_are_no_words() -> None:
    assert keywords("2026 a_b", "", "12 x1 ab \u00e9 ---", "en", 5) == []


def test_korean_words_lose_their_particles_and_keep_two_syllables() -> None:
    assert keywords("", "", "나무가 나무를 나무에서 나무로", "ko", 5) == ["나무"]
    assert keywords("", "", "회의 회의", "ko", 5) == ["회의"]
    assert keywords("", "", "Android용 전화는", "ko", 5) == ["android", "전화"]


def test_chinese_words_are_strings_that_come_again() -> None:
    assert keywords("", "", "甲乙丙丁戊", "zh", 5) == []
    assert keywords("", "", "甲乙丙,丁甲乙丙", "zh", 5) == ["甲乙丙"]
    assert keywords("", "", "甲乙丙丁戊己 甲乙丙丁戊己", "zh", 1) == ["甲乙丙丁"]


def test_scripts_without_blanks_have_none() -> None:
    assert keywords("", "", "หน้าแรก เกี่ยวกับเรา " * 3, "th", 5) == []


def test_headings_are_read_from_the_page() -> None:
    root = html.document(b"<h1>One <b>two</b></h1><p>x<h3>three</h3><h4>four</h4>", "")
    assert headings(root).split() == ["One", "two", "three"]


def test_they_are_as_many_as_are_asked_for() -> None:
    bench = Bench()
    found = {}
    for most in (0, 1, 5):
        bench.agent.options = replace(bench.agent.options, keywords_per_page=most)
        page = bench.page(b"<title>harbour</title><h1>harbour</h1>tide", "text/html")
        page.record.title = "harbour"
        Keywords().process(page)
        found[most] = page.record.keywords
    asyncio.run(bench.agent._client.aclose())
    assert found == {0: [], 1: ["harbour"], 5: ["harbour", "tide"]}


@given(text=some.text(max_size=300), code=some.sampled_from(["", "en", "ko", "zh", "xx"]))
@settings(max_examples=200, deadline=None)
def test_any_text_is_taken(text: str, code: str) -> None:
    found = keywords(text[:50], text[50:80], text, code, 5)
    assert len(found) == len(set(found)) <= 5
    assert all(found)


@pytest.mark.parametrize(
    "text",
    [
        "".join(chr(0x4E00 + number * 7919 % 0x5000) for number in range(10 * LOOKED_AT)),
        "一" * 10 * LOOKED_AT,
        "가" * 10 * LOOKED_AT,
        "x" * 10 * LOOKED_AT,
        "aé " * 10 * LOOKED_AT,
        "aé한一ア" * 10 * LOOKED_AT,
        " ".join(
            f"{chr(97 + number % 26)}b{chr(97 + number // 26 % 26)}" for number in range(10 * LOOKED_AT)
        ),
    ],
    ids=["characters", "one character", "hangul", "one word", "short words", "scripts", "many words"],
)
def test_a_hostile_text_takes_bounded_time(text: str) -> None:
    def found(text: str) -> None:
        keywords(text[:500], text[:10_000], text, "", 10)

    assert growth(found, text[:LOOKED_AT], text[: LOOKED_AT // 4]) < STEEP
    assert ratio(lambda: found(text), lambda: found(text[:LOOKED_AT]), 3) < 3
