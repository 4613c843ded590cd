"""Writes pages, and links in the ways in which real sites write them. Each way is right by the URL standard."""

from __future__ import annotations

import html
import posixpath
import random
from collections.abc import Callable, Iterable
from hashlib import sha256

from tests.small_site import Reply
from tests.tools.random_webs.model import Page, Place, Site

WORDS = (
    "tide",
    "harbour",
    "lantern",
    "orchard",
    "granite",
    "meadow",
    "copper",
    "violin",
    "saddle",
    "walnut",
    "ember",
)


class Writer:
    """Writes pages of some sites; `names` are the sites' own, http://host:port."""

    def __init__(self, chance: random.Random, names: list[str]) -> None:
        self._random = chance
        self._names = names
        self._written = 0

    def words(self, many: int = 12) -> str:
        """Words that no other page has."""
        self._written += 1
        chosen = self._random.choices(WORDS, k=many)
        return f"{' '.join(chosen)} number {self._written}"

    def page(
        self,
        site: Site,
        path: str,
        leads: Iterable[Place] = (),
        *,
        before: str = "",
        after: str = "",
        head: str = "",
        body: str | None = None,
        fields: dict[str, str] | None = None,
        title: str | None = None,
        also: Iterable[str] = (),
        row: dict[str, object] | None = None,
    ) -> Place:
        """An HTML page that links to `leads`, added to the site.

        `before` and `after` is markup around the links that leads nowhere; `body` is all of the body instead.
        """
        leads = list(leads)
        title = self.words(3) if title is None else title
        if body is None:
            written = "\n".join(self.link(place, site, path) for place in leads)
            body = f"<p>{self.words()}</p>{before}{written}{after}"
        text = f"<!DOCTYPE html><html><head><title>{html.escape(title)}</title>{head}</head><body>{body}</body></html>"
        reply = Reply(
            200, {"Content-Type": "text/html; charset=utf-8", **(fields or {})}, packed=text.encode("utf-8")
        )
        columns = {**stored(reply), "title": title, **(row or {})}
        return site.add(Page(path, [reply], leads, columns, also=list(also)))

    def link(self, place: Place, site: Site, path: str) -> str:
        """Markup of a link from a page to a place."""
        return self._element(self.href(place, site, path))

    def href(self, place: Place, site: Site, path: str) -> str:
        """One of the ways to write where a link leads, as text (not yet escaped for HTML)."""
        ways: list[Callable[[], str]] = [lambda: self._names[place.site] + place.path]
        ways.append(lambda: self._names[place.site].removeprefix("http:") + place.path)
        ways.append(lambda: self._names[place.site].replace("http:", "HTTP:") + place.path)
        ways.append(lambda: (self._names[place.site] + place.path).replace("/", "\\", 2))
        if place.site == site.number and not place.path.startswith("//"):
            ways += [lambda: place.path] * 3
            if is_plain(place.path) and is_plain(path):
                ways += [lambda: relative(place.path, path)] * 3
                ways.append(lambda: "/no/such/../.." + place.path)
                ways.append(lambda: place.path.replace("/", "/./", 1))
        return self._dressed(self._random.choice(ways)())

    def _dressed(self, href: str) -> str:
        site_session = self._random.random()
        if site_session < 0.1:
            return f"{href}#part-{self._random.randrange(9)}"
        if site_session < 0.15:
            return f"  {href}\n"
        if site_session < 0.2 and len(href) > 3:
            return f"{href[:3]}{self._random.choice(chr(10) + chr(9) + chr(13))}{href[3:]}"
        return href

    def _element(self, href: str) -> str:
        escaped = html.escape(href)
        ways = [f'<a href="{escaped}">'] * 4 + [
            f"<a href='{escaped}' title='a > b'>",
            f'<A CLASS=x HREF="{escaped}">',
        ]
        if not set(escaped) & set(" \t\r\n\"'=<>`") and not escaped.endswith("/"):
            ways.append(f"<a href={escaped}>")
        if self._random.random() < 0.08:
            return f'<map name=m><area shape=rect coords=0,0,9,9 href="{escaped}" alt=x></map>'
        return f"<p>{self._random.choice(ways)}{self.words(2)}</a></p>"


def stored(reply: Reply) -> dict[str, object]:
    """What the row of a page says that was stored as it came."""
    body = reply.packed or reply.body.encode()
    return {
        "outcome": "stored",
        "status": reply.status,
        "sha256": sha256(body).hexdigest(),
        "size": len(body),
    }


def is_plain(path: str) -> bool:
    """Whether a path can be the target of a relative link that is computed by folders alone."""
    return not set(path) & set("?#;:%\\") and "//" not in path


def relative(target: str, page: str) -> str:
    """The target as a link relative to the page's folder."""
    folder = posixpath.dirname(page)
    if target == folder:  # "." would be the folder itself, with a slash
        return target
    return posixpath.relpath(target, folder) + ("/" if target.endswith("/") else "")
