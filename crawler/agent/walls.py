"""Cookie walls: a site lets nobody see its pages who does not send the cookie that it sets on the way to them. Pure.

It redirects a page to itself, or to another one that leads back. Redirects are followed as pages of the frontier, which
remembers them; so where one leads to a page that has redirected, here is decided whether that one is worth asking once
more, with the cookies of the way. Bounded, for each page and for the site: a wall that sets another cookie each time is
left standing, and its cookies are sent no longer. Recheck, whose frontier has no other pages, goes the way in the turn
of a page that was loaded before.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

# Times that a page is asked again: a second check may stand behind the first.
MOST_TIMES: Final = 2
# Walls of a site that stood in a row, until no more are tried.
MOST_IN_VAIN: Final = 3
# Redirects of a site that are remembered, the latest.
MOST_REDIRECTS: Final = 10_000


class Walls:
    """What one site in hand does with visitors that have no cookie."""

    def __init__(self) -> None:
        # By path that redirected, how many times the site had set a cookie by then that was sent along.
        self._worn: dict[str, int] = {}
        self._times: Counter[str] = Counter()
        self._in_vain = 0
        self._passed = False

    def redirected(self, path: str, worn: int) -> None:
        """The page redirects, though asked with the cookies that were set `worn` times by then."""
        self._worn.pop(path, None)
        self._worn[path] = worn
        if len(self._worn) > MOST_REDIRECTS:
            del self._worn[next(iter(self._worn))]

    def answered(self, path: str) -> None:
        """The page is no redirect: a wall that was in front of it was passed."""
        if path in self._times:
            self._in_vain, self._passed = 0, True

    def worth_asking(self, path: str, cookies: int, *, in_circle: bool) -> bool:
        """Whether a page that a redirect leads back to is asked again; the site has set cookies so many times by now.

        Of one that redirected in an earlier lease is not known what was set on the way: in a circle it is asked again.
        """
        if self.stand or self._times.get(path, 0) >= MOST_TIMES:
            return False
        if cookies <= self._worn.get(path, -1 if in_circle else 0):
            return False
        self._times[path] += 1
        return True

    def stood(self, path: str) -> bool:
        """The page redirects to no avail; whether the site's cookies have opened nothing so far."""
        if path not in self._times:
            return False
        self._in_vain += 1
        return not self._passed

    @property
    def stand(self) -> bool:
        """Whether no more are looked for."""
        return self._in_vain >= MOST_IN_VAIN

    def led_nowhere(self) -> None:
        """A redirect that was followed on trial leads to no wall."""
        self._in_vain += 1

    def leave(self) -> None:
        """Look for no more of them."""
        self._in_vain = MOST_IN_VAIN


def in_words(circle: Sequence[str], *, with_cookies: bool) -> str:
    """What becomes of a page in a circle; this ends with the page itself, and begins with where it leads."""
    what = "redirects to itself" if len(circle) == 1 else "redirects in a circle"
    asked = " with and without its cookies" if with_cookies else ""
    return f"{what}{asked}: {' -> '.join((circle[-1], *circle))}"[:300]
