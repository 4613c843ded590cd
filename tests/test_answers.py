"""What an answer means for its page and its site, case by case."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, formatdate

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crawler.agent.responses import LONGEST_REST_SECONDS, Verdict, rest_asked, rest_of, seconds_asked, verdict

TRIES = 3


@pytest.mark.parametrize(
    ("expected", "statuses"),
    [
        ("stored", [200, 201, 203, 204, 206, 226, 299]),
        ("redirected", [301, 302, 303, 307, 308]),
        ("failed", [300, 304, 305, 306, 400, 401, 403, 404, 408, 410, 418, 425, 451, 499]),
        ("again", [429, 500, 501, 502, 503, 504, 520, 599]),
    ],
)
def test_what_a_status_means_for_the_page(expected: Verdict, statuses: list[int]) -> None:
    for status in statuses:
        assert verdict(status, 1, TRIES) == expected, status


@pytest.mark.parametrize(
    ("retry_after", "strikes", "seconds"),
    [
        ("7", 5, 7.0),
        ("0", 5, 0.0),
        ("9" * 30, 0, LONGEST_REST_SECONDS),
        ("Fri, 31 Dec 2999 23:59:59 GMT", 0, LONGEST_REST_SECONDS),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 2, 0.0),
    ],
)
def test_a_site_that_names_a_time_is_left_alone_so_long(
    retry_after: str, strikes: int, seconds: float
) -> None:
    for status in (301, 404, 413, 429, 500, 503):
        assert rest_asked(status, retry_after, strikes) == seconds
    # There it is about the result of a task.
    assert rest_asked(202, retry_after, strikes) == 0.0


@pytest.mark.parametrize(("strikes", "seconds"), [(0, 60.0), (1, 120.0), (3, 480.0)])
@pytest.mark.parametrize("retry_after", ["", "nonsense"])
def test_a_site_that_names_no_time_rests_after_429_alone(
    retry_after: str, strikes: int, seconds: float
) -> None:
    assert rest_asked(429, retry_after, strikes) == seconds
    for status in (200, 301, 404, 500, 502, 503, 504):
        assert rest_asked(status, retry_after, strikes) == 0.0, "it belongs to its URL"


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_tries_are_counted(status: int) -> None:
    verdicts = [verdict(status, tries, TRIES) for tries in range(1, 5)]
    assert verdicts == ["again", "again", "failed", "failed"]


def test_the_rest_doubles_up_to_a_day() -> None:
    assert [rest_of(strikes) for strikes in (0, 1, 2, 10, 11, 1000, 2**64)] == [
        60.0,
        120.0,
        240.0,
        61_440.0,
        *[86_400.0] * 3,
    ]


# --- Retry-After ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("120", 120.0), ("  5 ", 5.0), ("007", 7.0)])
def test_seconds(text: str, seconds: float) -> None:
    assert seconds_asked(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "-1", "1.5", "1e3", "\xb2", "\u0663", "soon", "0 0 0", ",,", "12, 13"),
        "Mon, 99 Nov 2094 99:99:99 GMT",
        "Sun, 06 Nov 99999 08:49:37 GMT",
        "Sun, 06 Nov 99999999999999999999 08:49:37 GMT",
        "Sun, 06 Nov 2094 08:49:37 +99999999999",
    ],
)
def test_what_cannot_be_read_is_nothing(text: str) -> None:
    assert seconds_asked(text) is None


@pytest.fixture(params=["UTC", "Asia/Seoul", "America/New_York"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    request.addfinalizer(lambda: (monkeypatch.undo(), time.tzset()))


@pytest.mark.usefixtures("_zone")
def test_a_date_is_meant_in_gmt_wherever_we_are() -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1000)
    written = [
        formatdate(soon.timestamp(), usegmt=True),
        formatdate(soon.timestamp(), localtime=True),
        format_datetime(soon.replace(tzinfo=None)),  # "-0000"
        soon.strftime("%A, %d-%b-%y %H:%M:%S GMT"),
        soon.strftime("%a %b %d %H:%M:%S %Y"),
    ]
    for text in written:
        seconds = seconds_asked(text)
        assert seconds is not None
        assert 990 < seconds < 1001, text


def test_a_date_that_has_passed_asks_for_nothing() -> None:
    assert seconds_asked(formatdate(0, usegmt=True)) == 0.0


_PARTS = st.sampled_from(
    ["Sun,", "06", "Nov", "1994", "08:49:37", "GMT", "-0000", "+9999", "0001", ",", "-", "99", ":"]
)


@given(st.one_of(st.text(max_size=20), st.lists(_PARTS, max_size=9).map(" ".join)))
@example("Mon, 01 Jan 0001 00:00:00 +2359")
@example("Fri, 31 Dec 9999 23:59:59 -2359")
@settings(max_examples=300, deadline=None)
def test_no_header_does_harm(text: str) -> None:
    assert 0 <= rest_asked(503, text, 0) <= LONGEST_REST_SECONDS
