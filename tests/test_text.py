"""The text of a page: what is seen and what is not, a hash that only a change of it changes, hostile pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from crawler.content import html
from crawler.content.text import collapsed, content_hash, visible
from tests.costs import STEEP, growth, ratio
from tests.tools.hostile_pages import ordinary_page

HTML = "text/html; charset=utf-8"


def seen(page: str) -> str:
    """The collapsed text of a page."""
    return collapsed(visible(html.document(page.encode("utf-8", "surrogatepass"), HTML)))


def hashed(page: str) -> str:
    return content_hash(visible(html.document(page.encode(), HTML)))


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<title>not</title><p>One</p>two", "One two"),
        ("<body>a<script>not()</script>b<style>not{}</style>c<!-- not -->d", "a b cd"),
        ("<body>a<noscript><p>not</p><script>nor()</script></noscript>b<template>not</template>c", "a b c"),
        ("<body>a<iframe src=x>not</iframe>b<noframes>not</noframes>c", "a b c"),
        # The hidden text is among the seen one too: one of the two goes, whichever.
        ("<body><p>x</p><script>x</script><p>y</p>", "x y"),
        ("<body><p>x</p><noscript><p>x</p></noscript><p>x</p>", "x x"),
        ("<ul><li>Home<li>About</ul>", "Home About"),
        ("<table><tr><td>1<td>2</table>", "1 2"),
        ("<pre>a\n\t b&nbsp; c\u3000d\r\ne</pre>", "a b c d e"),
        ("<p>&lt;b&gt; &amp; &#54620;&eacute;", "<b> & 한é"),
        ("<p>a\x00b\x0bc\x1fd", "ab c d"),
        ("<frameset><frame src=x></frameset>", ""),
        ("<title>x</title>", ""),
        ("<p> \n </p>&nbsp;", ""),
        ("<script>x</script>", ""),
        ("<p>never <b>closed", "never closed"),
        ("<p>\ud800 x", "\ufffd x"),
    ],
)
def test_what_is_seen(page: str, text: str) -> None:
    assert seen(page).replace("\ufffd\ufffd\ufffd", "\ufffd") == text


def test_nothing_is_seen_where_nothing_was_parsed() -> None:
    assert visible(None) == ""
    assert content_hash("") == ""


def test_a_first_part_is_cut_between_or_in_words() -> None:
    text = f"{' ' * 5_000}one\n\n  two three"
    assert collapsed(text, 100) == "one two three"
    assert collapsed(text, 5) == "one t"
    assert collapsed("한" * 5_000, 1_000) == "한" * 1_000
    assert collapsed("a " * 5_000, 1_000) == ("a " * 500)


# --- the hash ---------------------------------------------------------------------------------------------

PLAIN = "<html><body><h1>Low tide</h1><p>At nine, then at ten.</p></body></html>"


@pytest.mark.parametrize(
    "page",
    [
        "<html lang=en><head><title>Other</title></head><body class=x><h1>Low tide</h1><p>At nine, then at ten.",
        "<body>\n\n  <h1>\n Low\ttide </h1>\r\n\r\n<p>At nine,   then at&nbsp;ten.</p>",
        "<body><div id=1 class=b><b>L</b>ow tide<br>At <i>nine</i>, then <!-- 10 --> at ten.</div>",
        "<body><script>n=1</script><h1>Low tide</h1><style>p{}</style><p>At nine, then at ten.<noscript>n</noscript>",
        "<body><h1>Low\u3000tide</h1><p>At\u2003nine, then at\u200bten.",
    ],
)
def test_markup_and_white_space_change_no_hash(page: str) -> None:
    assert hashed(page) == hashed(PLAIN) != ""


@pytest.mark.parametrize("other", ["nine", "nine.", "Nine,", "9,", "nin\u0435,"])
def test_another_text_is_another_hash(other: str) -> None:
    changed = PLAIN.replace("nine,", other)
    assert hashed(changed) != hashed(PLAIN)
    assert len(hashed(changed)) == 32


def test_all_of_the_text_counts() -> None:
    """Also what comes late: a page that grows at its end has changed."""
    long = "<body>" + "<p>word word word</p>" * 100_000
    assert hashed(long) != hashed(f"{long}<p>more</p>")


def test_a_number_that_changes_is_a_change() -> None:
    """Said where a reader meets it: nothing tells a counter from what the page is about."""
    assert hashed("<p>Visitor 41</p>") != hashed("<p>Visitor 42</p>")


words = some.text(some.sampled_from("abcé한日1.,&<"), min_size=1, max_size=5)
wraps = some.sampled_from(
    ["{}", "<b>{}</b>", "<p class='a' id=b>{}</p>", "<div\nid=b class=a>{}</div>\n", " {} "]
)


@given(pieces=some.lists(some.tuples(words, wraps, wraps), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_two_ways_to_mark_up_the_same_words_have_one_hash(pieces: list[tuple[str, str, str]]) -> None:
    def page(way: Callable[[tuple[str, str, str]], str]) -> str:
        return "<body>" + "".join(
            way(piece).format(piece[0].replace("&", "&amp;").replace("<", "&lt;")) for piece in pieces
        )

    assert hashed(page(lambda piece: piece[1])) == hashed(page(lambda piece: piece[2]))


# --- hostile pages ----------------------------------------------------------------------------------------

# What its text may take of the time of an ordinary page that is about as large; the parsing of neither counts.
TIMES_THE_ORDINARY = 6.0
# Of each thing in a page; the second in `make drills`.
MANY, VERY_MANY = 250_000, 1_000_000


@cache
def hostile(many: int) -> dict[str, bytes]:
    return {
        "one text": b"<body>" + b"word " * (19 * many // 10),  # less than the most that is parsed
        "no blank": b"<body>" + b"x" * (9 * many),
        "blanks": b"<body>a" + b" \n" * (4 * many) + b"b",
        "many tags": b"<body>" + b"<b>a</b>" * many,
        "empty tags": b"<body>" + b"<br>" * many,
        "scripts": b"<body>" + b"<script>a</script>b" * (many // 4),
        "scripts in noscript": b"<body><noscript>" + b"<script>a</script>" * (many // 4) + b"</noscript>",
        "open noscripts": b"<body>" + b"<noscript>a" * (many // 8),
        "deep": b"<body>" + b"<div>a" * (many // 8),
        "entities": b"<body>" + b"&#54620;" * many,
    }


def read(root: Any) -> None:
    text = visible(root)
    content_hash(text)
    collapsed(text, 1_000)
    collapsed(text)


@cache
def ordinary(many: int) -> Any:
    return html.document(ordinary_page(8 * many), HTML)


@pytest.mark.parametrize("many", [MANY, pytest.param(VERY_MANY, marks=pytest.mark.drill)])
@pytest.mark.parametrize("name", hostile(1))
def test_a_hostile_page_takes_bounded_time(name: str, many: int) -> None:
    whole, quarter = (html.document(hostile(size)[name], HTML) for size in (many, many // 4))
    assert growth(read, whole, quarter) < STEEP
    assert ratio(lambda: read(whole), lambda: read(ordinary(many)), TIMES_THE_ORDINARY) < TIMES_THE_ORDINARY
