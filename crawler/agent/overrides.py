"""What single sites are asked with otherwise than all others: headers, cookies, delay, connections, proxy.

Finds a site's entry in SITE_OVERRIDES, and dresses its requests. Cookies are kept for as long as the site is in
hand and are lost when it goes back. Where no entry says that they are sent, those that redirects set are merely held,
until it shows that the site lets nobody in without them (crawler.agent.responses). OptionError at start for an entry
that can hold for no site.
"""

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
# Cookies of one site that are kept, the first ones, and characters of the longest: as browsers have it.
MOST_COOKIES: Final = 180
LONGEST_COOKIE: Final = 4_096
# Headers that say where a request goes or what is in it: they are libcurl's and the site's own.
_NOT_OVERRIDDEN = frozenset({"host", "cookie", "content-length", "transfer-encoding", "connection"})


class Overrides:
    """The entries of SITE_OVERRIDES by what they hold for."""

    def __init__(self, entries: dict[str, SiteOverride]) -> None:
        self._entries: dict[str, SiteOverride] = {}
        given: dict[str, str] = {}
        for key, entry in entries.items():
            _check(key, entry)
            meant = _meant(key)
            if meant in given:
                raise OptionError(
                    f"SITE_OVERRIDES names {given[meant]!r} and {key!r}, both for {meant}; expected one of them"
                )
            given[meant], self._entries[meant] = key, entry

    def of(self, site: str) -> SiteOverride:
        """The site's own entry, else its host's, else that of the nearest name above; else one that changes nothing."""
        if not self._entries:
            return PLAIN
        host = host_of(site)
        parts = host.split(".")
        above = (f".{'.'.join(parts[place:])}" for place in range(len(parts)))
        return next((self._entries[key] for key in (site, host, *above) if key in self._entries), PLAIN)


class SiteSession:
    """What the requests of one site in hand wear."""

    def __init__(self, site: str, override: SiteOverride, user_agent: str) -> None:
        """`user_agent` is the crawl's, as a product's name."""
        self._site = site
        self._plain = override is PLAIN
        names = {name.lower(): value for name, value in override.headers.items()}
        self.user_agent = policy.product(names["user-agent"]) if "user-agent" in names else user_agent
        self._headers = override.headers
        self._proxy = override.proxy
        self._jar = None if override.cookies is None else CookieJar()
        self._only_held = self._jar is None
        self._held: CookieJar | None = None
        self.cookies = 0  # times that the site has set some that were new
        if override.cookies:
            self._keep(site, override.cookies.items())

    def apply(self, request: Request) -> None:
        """Add what the site is to be asked with; what a user's own request already says stays.

        A redirect of robots.txt may lead to a stranger, who gets nothing of it.
        """
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
        """Keep the cookies that the site sets; as long as none are sent, those of redirects."""
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
        """How many of these times are in what is sent now."""
        return 0 if self._jar is None else self.cookies

    def wear(self) -> None:
        """Send what was held, and from now on what the site sets."""
        if self._jar is None:
            self._jar, self._held = self._held or CookieJar(), None

    def take_off(self) -> None:
        """Send none any more, where no setting says so."""
        if self._only_held:
            self._held, self._jar = self._jar, None

    def _keep(self, url: str, cookies: Iterable[tuple[str, str]]) -> None:
        assert self._jar is not None
        lines = [f"{name}={value}; Path=/" for name, value in cookies]
        if lines:
            answer = Response(url, headers={"Set-Cookie": lines})
            self._jar.extract_cookies(answer, Request(url))


def _bound(jar: CookieJar) -> None:
    """Take out what is too long, and what came behind the first MOST_COOKIES."""
    kept = 0
    for one in list(jar.jar):
        if kept < MOST_COOKIES and len(one.name) + len(one.value or "") <= LONGEST_COOKIE:
            kept += 1
        else:
            jar.jar.clear(one.domain, one.path, one.name)


def _values(jar: CookieJar) -> dict[tuple[str, str, str], str | None]:
    return {(one.domain, one.path, one.name): one.value for one in jar.jar}


def _check(key: str, entry: SiteOverride) -> None:
    """OptionError for headers and a proxy that no request can have."""
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
    """What a key holds for, in one spelling."""
    url = key if "://" in key else f"http://{key.removeprefix('.')}"
    try:
        site, path = split_page(url)
    except UrlError as error:
        raise OptionError(
            f"SITE_OVERRIDES names {key!r}: {error}; expected a site, a host or .host"
        ) from None
    parts = parse_url(url)
    # A part that was left out would be sent to more sites than their owner agreed to.
    if path != "/" or parts.fragment or "@" in parts.netloc:
        wanted = site if url == key else host_of(site)
        raise OptionError(f"SITE_OVERRIDES names {key!r}; expected no more of it than {wanted}")
    if url == key:
        return site
    if parts.port is not None:
        raise OptionError(f"SITE_OVERRIDES names {key!r}, a host with a port; expected a site like {site}")
    return f"{'.' if key.startswith('.') else ''}{host_of(site)}"


def _own_cookies(request: Request) -> Iterable[tuple[str, str]]:
    """The cookies that a user gave to a request of his own, in either of Scrapy's forms."""
    given: Any = request.cookies
    if isinstance(given, dict):
        return given.items()
    return [(one["name"], one["value"]) for one in given]
