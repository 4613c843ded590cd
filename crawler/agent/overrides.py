"""Headers, cookies, delay, connections and proxy of single sites (SITE_OVERRIDES)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from scrapy import Request
from scrapy.http import Response
from scrapy.http.cookies import CookieJar
from w3lib.url import parse_url

from crawler.agent.responses import REDIRECTS
from crawler.fetch import proxies
from crawler.options import OptionError, SiteOverride
from crawler.robots import policy
from crawler.urls.url import UrlError, host_of, resolve, split_page

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAIN = SiteOverride()
# Cookies kept per site, the first ones, and characters per cookie: the limits of browsers.
MOST_COOKIES: Final = 180
LONGEST_COOKIE: Final = 4_096
# Headers about routing or content, which libcurl and the site define.
_NOT_OVERRIDDEN = frozenset({"host", "cookie", "content-length", "transfer-encoding", "connection"})


class Overrides:
    """Raises OptionError for an invalid entry."""

    def __init__(self, entries: dict[str, SiteOverride]) -> None:
        self._entries: dict[str, SiteOverride] = {}
        keys: dict[str, str] = {}
        for key, entry in entries.items():
            _check(key, entry)
            meant = _meant(key)
            if meant in keys:
                raise OptionError(
                    f"SITE_OVERRIDES names {keys[meant]!r} and {key!r}, both for {meant}; expected only one of them"
                )
            keys[meant], self._entries[meant] = key, entry

    def of(self, site: str) -> SiteOverride:
        """The entry of the site, its host or the nearest parent domain, or PLAIN."""
        if not self._entries:
            return PLAIN
        host = host_of(site)
        parts = host.split(".")
        above = (f".{'.'.join(parts[place:])}" for place in range(len(parts)))
        return next((self._entries[key] for key in (site, host, *above) if key in self._entries), PLAIN)


class SiteSession:
    """Headers and cookies of one leased site.

    Without an entry, redirects' cookies are held, and sent if the site requires them.
    """

    def __init__(self, site: str, override: SiteOverride, user_agent: str) -> None:
        """`user_agent` is the crawl's product token."""
        self._site = site
        self._plain = override is PLAIN
        names = {name.lower(): value for name, value in override.headers.items()}
        self.user_agent = policy.product(names["user-agent"]) if "user-agent" in names else user_agent
        self._headers = override.headers
        self._proxy = override.proxy
        self._jar = None if override.cookies is None else CookieJar()
        self._only_held = self._jar is None
        self._held: CookieJar | None = None
        self.cookies = 0  # number of times the site set new cookies
        if override.cookies:
            self._keep(site, override.cookies.items())

    def apply(self, request: Request) -> None:
        """Add headers, proxy and cookies; a user's own win, and other sites get none."""
        if (self._plain and self._jar is None) or resolve(request.url)[0] != self._site:
            return
        for name, value in self._headers.items():
            request.headers.setdefault(name, value)
        if self._proxy:
            request.meta.setdefault("proxy", self._proxy)
        if self._jar is not None:
            self._keep(request.url, _own_cookies(request))
            self._jar.add_cookie_header(request)

    def take_in(self, response: Response) -> None:
        """Store cookies; while none are sent, only those of redirects."""
        if self._jar is None and response.status not in REDIRECTS:
            return
        if "Set-Cookie" not in response.headers or resolve(response.url)[0] != self._site:
            return
        assert response.request
        jar = self._jar
        if jar is None:
            jar = self._held = self._held or CookieJar()
        before = _values(jar)
        jar.extract_cookies(response, response.request)
        _bound(jar)
        self.cookies += _values(jar) != before

    @property
    def worn(self) -> int:
        """Value of `cookies` for the next request; 0: none sent."""
        return 0 if self._jar is None else self.cookies

    def wear(self) -> None:
        """Send the held cookies from now on."""
        if self._jar is None:
            self._jar, self._held = self._held or CookieJar(), None

    def take_off(self) -> None:
        """Stop sending, unless a setting requires it."""
        if self._only_held:
            self._held, self._jar = self._jar, None

    def _keep(self, url: str, cookies: Iterable[tuple[str, str]]) -> None:
        assert self._jar is not None
        lines = [f"{name}={value}; Path=/" for name, value in cookies]
        if lines:
            answer = Response(url, headers={"Set-Cookie": lines})
            self._jar.extract_cookies(answer, Request(url))


def _bound(jar: CookieJar) -> None:
    """Remove cookies beyond the limits."""
    kept = 0
    for one in list(jar.jar):
        if kept < MOST_COOKIES and len(one.name) + len(one.value or "") <= LONGEST_COOKIE:
            kept += 1
        else:
            jar.jar.clear(one.domain, one.path, one.name)


def _values(jar: CookieJar) -> dict[tuple[str, str, str], str | None]:
    return {(one.domain, one.path, one.name): one.value for one in jar.jar}


def _check(key: str, entry: SiteOverride) -> None:
    """Raises OptionError for an invalid header or proxy."""
    wrong = sorted(name for name in entry.headers if name.lower() in _NOT_OVERRIDDEN)
    if wrong:
        hint = "; expected `cookies` for it" if wrong[0].lower() == "cookie" else "; expected any other"
        raise OptionError(f"SITE_OVERRIDES has the header {wrong[0]!r} for {key!r}{hint}")
    if entry.proxy:
        try:
            proxies.read(entry.proxy)
        except proxies.ProxyError as error:
            raise OptionError(f"SITE_OVERRIDES has the proxy for {key!r}: {error}") from None


def _meant(key: str) -> str:
    """The canonical site, host or .host."""
    url = key if "://" in key else f"http://{key.removeprefix('.')}"
    try:
        site, path = split_page(url)
    except UrlError as error:
        raise OptionError(
            f"SITE_OVERRIDES names {key!r}: {error}; expected a site, a host or .host"
        ) from None
    parts = parse_url(url)
    # Ignoring a part would apply the entry to more sites than intended.
    if path != "/" or parts.fragment or "@" in parts.netloc:
        expected = site if url == key else host_of(site)
        raise OptionError(f"SITE_OVERRIDES names {key!r}; expected {expected}")
    if url == key:
        return site
    if parts.port is not None:
        raise OptionError(f"SITE_OVERRIDES names {key!r}, a host with a port; expected a site like {site}")
    return f"{'.' if key.startswith('.') else ''}{host_of(site)}"


def _own_cookies(request: Request) -> Iterable[tuple[str, str]]:
    """In either of Scrapy's forms."""
    given: Any = request.cookies
    if isinstance(given, dict):
        return given.items()
    return [(one["name"], one["value"]) for one in given]
