"""A second of `make fuzz` for every parser, and that the driver finds what it is there to find."""

from __future__ import annotations

import re

import pytest

from tests import fuzz

SECONDS = 0.5


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_half_a_second_of_broken_input_does_no_harm(name: str) -> None:
    many, found = fuzz.fuzz(name, SECONDS, run=1)
    assert found is None, str(found)
    assert many >= 3


def test_seeds_are_what_the_parser_takes() -> None:
    """Or most input would end at the first check."""
    for name, one in fuzz.TARGETS.items():
        taken = 0
        for data in one.seeds():
            try:
                one.feed(data)
                taken += 1
            except one.foreseen:
                pass
        assert taken, name


def _dies_at_two(data: bytes) -> None:
    if b"\x02" in data:
        raise KeyError("two")


def _takes_long(data: bytes) -> None:
    for _ in range(len(data) // 20):
        data.count(b"aaaaaaaaab")


@pytest.mark.parametrize(("feed", "what"), [(_dies_at_two, "KeyError: 'two'"), (_takes_long, "took")])
def test_a_crash_and_a_slow_input_are_found_and_repeated(
    feed: object, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(fuzz.TARGETS, "bad", fuzz.Target(feed, lambda: [b"aaaa"], (b"\x02",)))  # type: ignore[arg-type]
    monkeypatch.setattr(fuzz, "SLOW_SECONDS", 0.05)
    assert fuzz.main(["bad", "--seconds", "20", "--run", "7"]) == 1
    told = capsys.readouterr().out
    assert what in told
    words = re.search(r"repeat: python -m tests\.fuzz (.*)", told)
    assert words
    assert fuzz.main(words[1].split()) == 1
    assert what in capsys.readouterr().out


def test_what_does_no_harm_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(fuzz.TARGETS, "good", fuzz.Target(len, lambda: [b"a"], foreseen=(ValueError,)))
    assert fuzz.main(["good", "--seconds", "0.1"]) == 0
    assert "nothing found" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        fuzz.main(["none"])
