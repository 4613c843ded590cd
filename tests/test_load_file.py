"""Loads as CSV files: both headers, which days count for more, and mistakes told by line and column."""

from __future__ import annotations

import io

import numpy as np
import pytest

from crawler.planning.load import (
    CSV_HEADER,
    FULL,
    SIMPLE_CSV_HEADER,
    UNKNOWN,
    LoadFileError,
    read_csv,
    write_csv,
)

SITE = "https://example.org"
LONG, SIMPLE = ",".join(CSV_HEADER), ",".join(SIMPLE_CSV_HEADER)


def row(site: str, load: object, day: str = "", hours: int = 24) -> str:
    return ",".join((site, *([day] if day else []), *[str(load)] * hours))


def test_the_papers_form_is_for_all_days() -> None:
    found = read_csv([SIMPLE, row("example.org", 0.5), "", row("http://Example.com:80/x", 1)])
    assert {site: set(loads.tolist()) for site, loads in found.items()} == {
        SITE: {127},
        "http://example.com": {FULL},
    }
    assert all(loads.dtype == np.uint8 and loads.shape == (48,) for loads in found.values())


@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_some_days_count_for_more(turned: bool) -> None:
    rows = [row(SITE, 0.2, "all"), row(SITE, 1, "weekend")]
    loads = read_csv([f"\ufeff{LONG}", *(rows[::-1] if turned else rows)])[SITE]
    assert set(loads[:24].tolist()) == {51}
    assert set(loads[24:].tolist()) == {FULL}


def test_an_empty_field_is_not_known() -> None:
    loads = read_csv([LONG, row(SITE, "", "all"), f"{SITE},weekday,0{',' * 22},1"])[SITE]
    assert (loads[0], loads[23]) == (0, FULL)
    assert set(loads[1:23].tolist()) == set(loads[24:].tolist()) == {UNKNOWN}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "line 1: the header is ''; expected site,day,h00"),
        (["host,load"], "line 1: the header is 'host,load'; expected site,day,h00"),
        ([LONG, f"{SITE},all,0.5"], "line 2: 3 fields; expected 26 as in the header"),
        ([SIMPLE, row(SITE, 0), row("no host", 0)], "line 3, column site: "),
        ([SIMPLE, row("ftp://example.org", 0)], "expected a URL or a host"),
        ([LONG, row(SITE, 0, "monday")], "line 2, column day: 'monday'; expected all, weekday, weekend"),
        ([LONG, f"{SITE},all,0,0,busy{',0' * 21}"], "line 2, column h02: 'busy'; expected a number from 0"),
        ([SIMPLE, f"{SITE},0,0,1.5{',0' * 21}"], "line 2, column 2: '1.5'; expected a number from 0"),
        ([SIMPLE, row(SITE, "nan")], "line 2, column 0: 'nan'"),
        ([SIMPLE, row(SITE, -0.1)], "line 2, column 0: '-0.1'"),
        (
            [SIMPLE, row(SITE, 0), row(SITE, 1)],
            "line 3: https://example.org on day 'all' is already in line 2",
        ),
        ([SIMPLE, '"unclosed'], "line 2: "),
    ],
)
def test_mistakes_are_told(lines: list[str], told: str) -> None:
    with pytest.raises(LoadFileError) as caught:
        read_csv(lines)
    assert told in str(caught.value)


def test_what_is_written_is_read() -> None:
    loads = np.linspace(0, 1, 48)
    loads[5] = np.nan
    out = io.StringIO()
    assert write_csv(out, [(SITE, loads)]) == 1
    found = read_csv(out.getvalue().splitlines())[SITE]
    assert found[5] == UNKNOWN
    known = ~np.isnan(loads)
    assert np.abs(found[known] - loads[known] * FULL).max() <= 0.7
