"""No regular expression takes longer than in proportion to what it reads: servers choose the text."""

from __future__ import annotations

import re

import pytest

from tests.tools import patterns
from tests.tools.patterns import Use

# As a tag's attributes were once counted: a run of blanks was read again from each of its places.
QUADRATIC = re.compile(rb"""[\s/]*+=?[^\s/>=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>]*+))?+""")


@pytest.mark.parametrize("use", patterns.uses(), ids=lambda use: use.place)
def test_time_grows_with_the_text_alone(use: Use) -> None:
    times, text = patterns.growth(use)
    assert times < patterns.STEEP, (
        f"{use.pattern.pattern!r} takes {times:.1f} times longer for four times the text: {text}"
    )


def test_a_pattern_that_reads_its_text_again_and_again_is_found() -> None:
    times, text = patterns.growth(Use("here", QUADRATIC, ("finditer",)))
    assert times > patterns.STEEP
    assert any(repr(blank) in text for blank in " \t\n/"), text
