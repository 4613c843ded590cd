"""The state machine of a URL (paper 001, III.1.3). Pure functions.

    Init --loaded--> Visited --silent--> NoResponse1 --silent--> NoResponse2 --silent--> Dead

Not in the paper:

- An unreachable page that answers and was never loaded goes to Init.
- A successful load makes any page Visited, also a dead one (`--again`).
- A failed load counts from Init and Visited only; otherwise revive counts, after its delays.
- 404 and 410 are `silent`; 408, 425, 429 and 5xx are `delayed`, or after a load's retries a failure.
- Our own refusals (robots.txt, the address guard, limits) change nothing.

Writers check a transition's start state and the event's time.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from crawler.records import PageOutcome, PageState

Event = Literal[
    "found", "loaded", "not_loaded", "left_out", "unchanged", "changed", "answers", "silent", "delayed"
]
STATES: Final[tuple[PageState, ...]] = get_args(PageState)
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
# States in which revive fetches a page.
SILENT: Final[tuple[PageState, ...]] = ("no_response_1", "no_response_2")

_INIT, _VISITED, _NO_RESPONSE_1, _NO_RESPONSE_2, _DEAD = STATES

# (state, event) -> next state; other pairs are refused. State None: the page was unknown.
NEXT: Final[dict[tuple[PageState | None, Event], PageState]] = {
    (None, "found"): _INIT,
    **{(state, "found"): state for state in STATES},
    **{(state, "loaded"): _VISITED for state in (None, *STATES)},
    (None, "not_loaded"): _NO_RESPONSE_1,
    (_INIT, "not_loaded"): _NO_RESPONSE_1,
    (_VISITED, "not_loaded"): _NO_RESPONSE_1,
    **{(state, "not_loaded"): state for state in (_NO_RESPONSE_1, _NO_RESPONSE_2, _DEAD)},
    (None, "left_out"): _INIT,
    **{(state, "left_out"): state for state in STATES},
    (_VISITED, "unchanged"): _VISITED,
    (_VISITED, "changed"): _INIT,
    (_VISITED, "silent"): _NO_RESPONSE_1,
    (_NO_RESPONSE_1, "answers"): _VISITED,
    (_NO_RESPONSE_1, "silent"): _NO_RESPONSE_2,
    (_NO_RESPONSE_2, "answers"): _VISITED,
    (_NO_RESPONSE_2, "silent"): _DEAD,
    **{(state, "delayed"): state for state in (_VISITED, _NO_RESPONSE_1, _NO_RESPONSE_2)},
}

# Statuses of our own decisions (crawler.fetch.errors): robots.txt, the guard, a limit, a middleware, a trap, a
# cancelled or impossible request.
OUR_OWN: Final = frozenset({-9, -10, -11, -13, -14, -15})
_GONE: Final = frozenset({404, 410})
_LATER: Final = frozenset({408, 425, 429})


class IllegalTransitionError(ValueError):
    """Another process was first, or the record is wrong."""


def after(state: PageState | None, event: Event, *, has_body: bool = True) -> PageState:
    """Raises IllegalTransitionError if there is no next state.

    `has_body`: the page was loaded before. State None: the page was unknown.
    """
    following = NEXT.get((state, event))
    if following is None:
        raise IllegalTransitionError(f"a page in state {state} does not allow {event}")
    return _INIT if event == "answers" and not has_body else following


def load_event(outcome: PageOutcome, status: int) -> Event:
    """The event of a load."""
    if outcome == "denied" or (outcome == "failed" and status in OUR_OWN):
        return "left_out"
    if outcome != "failed":
        return "loaded"
    answered = 300 <= status < 500 and status not in _GONE and status not in _LATER
    return "loaded" if answered else "not_loaded"


def ask_event(status: int) -> Event:
    """answers, silent or delayed, before any comparison."""
    if status in OUR_OWN or status in _LATER or status >= 500:
        return "delayed"
    return "silent" if status < 0 or status in _GONE else "answers"


def delay_until_next(state: PageState, delays: tuple[float, ...]) -> float | None:
    """Seconds until revive fetches a page new in this state; None: never.

    `delays`: before the first and the second retry.
    """
    if state not in SILENT:
        return None
    return delays[min(SILENT.index(state), len(delays) - 1)]
