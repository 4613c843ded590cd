"""The life of a URL (paper 001, III.1.3): five states, and what leads from one to another. Pure functions.

    Init --loaded--> Visited --silent--> NoResponse1 --silent--> NoResponse2 --silent--> Dead

Three straight failures end a life: one of loading or recheck, two of revive. The paper's arrows stand in NEXT, and what
it leaves open is ours:

- A page that answers after it was silent, and was never loaded, goes back to Init, so that it is loaded; the paper's
  arrow leads to Visited, with no body to show for it.
- A load that succeeds makes any page Visited, a dead one too: it is asked for by nobody but a person (`--again`).
- A load that fails is a step where the page was Init or Visited. Where it was silent before it is none: those steps are
  revive's, after its delays, or an outage of a minute would end a life.
- 404 and 410 are silence: the server answers, the page does not. 408, 425, 429 and 5xx are a delay and no step, for
  whoever asks again; for a load that had its tries they are a failure. All other answers show that the page is there.
- What we leave out ourselves (robots.txt, the address guard, our limits) says nothing about the page.
- Dead is final, but for that load.

Whoever writes a transition guards it by the state that it starts from and by the time of the event.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

from crawler.records import PageOutcome, PageState

Event = Literal[
    "found", "loaded", "not_loaded", "left_out", "unchanged", "changed", "answers", "silent", "delayed"
]
STATES: Final[tuple[PageState, ...]] = get_args(PageState)
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
# In these a page is asked again by revive.
SILENT: Final[tuple[PageState, ...]] = ("no_response_1", "no_response_2")

_INIT, _VISITED, _NO_RESPONSE_1, _NO_RESPONSE_2, _DEAD = STATES

# From (state, event) to the next state; a pair that is not here is refused. None: the page was not known.
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

# Status codes of what we decided ourselves (crawler.fetch.errors): robots.txt, the guard, a limit, a middleware, a
# trap, a cancelled or impossible request.
OUR_OWN: Final = frozenset({-9, -10, -11, -13, -14, -15})
_GONE: Final = frozenset({404, 410})
_LATER: Final = frozenset({408, 425, 429})


class IllegalTransitionError(ValueError):
    """The event cannot meet a page in that state: somebody was there first, or the record is not to be believed."""


def after(state: PageState | None, event: Event, *, has_body: bool = True) -> PageState:
    """The state that an event leads to; IllegalTransitionError where there is none.

    `has_body`: whether the page was ever loaded. None as the state: nobody knew the page.
    """
    following = NEXT.get((state, event))
    if following is None:
        raise IllegalTransitionError(f"{event} meets a page that is {state}")
    return _INIT if event == "answers" and not has_body else following


def load_event(outcome: PageOutcome, status: int) -> Event:
    """What a page's turn in loading means for its life."""
    if outcome == "denied" or (outcome == "failed" and status in OUR_OWN):
        return "left_out"
    if outcome != "failed":
        return "loaded"
    answered = 300 <= status < 500 and status not in _GONE and status not in _LATER
    return "loaded" if answered else "not_loaded"


def ask_event(status: int) -> Event:
    """What the answer to a page that is asked again says, before anything is compared: answers, silent or delayed."""
    if status in OUR_OWN or status in _LATER or status >= 500:
        return "delayed"
    return "silent" if status < 0 or status in _GONE else "answers"


def delay_until_next(state: PageState, delays: tuple[float, ...]) -> float | None:
    """Seconds until revive asks a page that has just come into this state; None: it does not.

    `delays`: before its first and before its second question.
    """
    if state not in SILENT:
        return None
    return delays[min(SILENT.index(state), len(delays) - 1)]
