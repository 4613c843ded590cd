"""A page's life with its straight failures counted, as the tables are to have it: what tests hold them against."""

from __future__ import annotations

from typing import NamedTuple

from crawler.records import PageState
from crawler.states import Event, after


class Life(NamedTuple):
    """What is known of a page's life: its state, and its straight failures."""

    state: PageState
    fails: int = 0


def lived(life: Life, event: Event, *, has_body: bool = True) -> Life:
    """The life after an event: each step towards death is a failure more, and what answers begins anew."""
    state = after(life.state, event, has_body=has_body)
    if event in ("loaded", "unchanged", "answers", "changed"):
        return Life(state)
    stepped = event in ("silent", "not_loaded") and state != life.state
    return Life(state, life.fails + stepped)
