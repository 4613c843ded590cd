"""Strangers' words in logs and terminals: what is shown is one line, and gives no orders."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as some

from crawler.printable import guard_log, printable, printable_lines
from tests.crawling import Place
from tests.servers import RunningServer
from tests.small_site import Reply, SmallSite, links
from tests.told import told_pages

RED = "\x1b[31m"
TURNED = "\u202e"
FORGED = "12:00:00 ERROR [agent] agent: all is lost"
# Line ends, orders to a terminal, and marks that turn text around.
UNFIT = [
    *map(chr, range(32)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u2028\u2029\u202a\u202e\u2066\u2069\u200e\ufeff\ud800",
]


@pytest.mark.parametrize("one", UNFIT, ids=ascii)
def test_what_a_terminal_obeys_is_written_as_its_escape(one: str) -> None:
    shown = printable(f"a{one}b")
    assert shown.startswith("a\\")
    assert shown.endswith("b")
    assert shown.isascii()
    assert shown.isprintable()


@pytest.mark.parametrize(
    "words",
    ["", "a b", "한글 제목", "日本語", "e\u0301", "👩\u200d👧", "\xa0", "<script>alert(1)</script>", "=1+1"],
)
def test_other_words_stay(words: str) -> None:
    assert printable(words) == words == printable_lines(words)


def test_lines_stay_where_lines_are_meant() -> None:
    assert printable_lines(f"a\n\tb\r{RED}") == "a\n\tb\\r\\x1b[31m"


@given(some.text())
def test_any_text_becomes_one_line(words: str) -> None:
    assert len(f"x{printable(words)}x".splitlines()) == 1
    printable_lines(words).encode()


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a guarded log of this process writes."""
    before, written = logging.getLogRecordFactory(), io.StringIO()
    handler = logging.StreamHandler(written)
    logger = logging.getLogger("test_printable")
    logger.addHandler(handler)
    logger.propagate = False
    guard_log()
    yield written
    logging.setLogRecordFactory(before)
    logger.removeHandler(handler)


def test_no_value_makes_a_line_of_a_log(log: io.StringIO) -> None:
    logger = logging.getLogger("test_printable")
    logger.error("%s rests: %s", "http://a", f"x\n{FORGED}{RED}")
    logger.error("%(title)s", {"title": f"{TURNED}a\r\nb"})
    logger.error("told:\n%s", f"a{RED}")
    assert log.getvalue().splitlines() == [
        f"http://a rests: x\\n{FORGED}\\x1b[31m",
        "\\u202ea\\r\\nb",
        "told:",
        "a\\x1b[31m",
    ]


def test_no_error_orders_about_the_terminal_that_shows_its_traceback(log: io.StringIO) -> None:
    try:
        raise ValueError(f"bad {RED}")
    except ValueError:
        logging.getLogger("test_printable").exception("failed")
    assert "ValueError: bad \\x1b[31m" in log.getvalue()
    assert "\x1b" not in log.getvalue()


def test_a_crawl_shows_no_stranger_s_words_as_they_are(place: Place, valkey: RunningServer) -> None:
    """Not in its log at any level, and not in an answer of `scrapy site`; the record has them."""
    html = {"Content-Type": "text/html; charset=utf-8"}
    title = f"<title>{RED}x\n{FORGED}{TURNED}<script>alert(1)</script></title>"
    routes = {
        "/robots.txt": Reply(404),
        "/": links("/away", "/odd", "/title"),
        "/title": Reply(200, html, title),
        "/away": Reply(302, {"Location": f"ftp://x/{RED}"}),
        "/odd": Reply(
            200, {"Content-Type": f"text/html; charset={RED}", "X-Robots-Tag": f"{RED}{FORGED}"}, title
        ),
    }
    with SmallSite(routes) as site:
        run = place.crawl([site.root], REDIS_URL=valkey.url, LOG_LEVEL="DEBUG").succeeded()
        shown = place.run("site", "show", site.site, REDIS_URL=valkey.url)
    pages = {page.path: page for page in told_pages(valkey)}
    assert FORGED in pages["/title"].title
    assert "\\x1b" in pages["/away"].error
    for words in (run.err, run.out, shown.err, shown.out):
        assert "\x1b" not in words
        assert TURNED not in words
        assert not any(line.startswith(FORGED) for line in words.splitlines())
