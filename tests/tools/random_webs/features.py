"""What real sites do. Each feature adds pages to a site, and gives the places that one of its pages must link to."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable
from itertools import count

from tests.small_site import RESET, Reply
from tests.tools.random_webs.html import Writer, stored
from tests.tools.random_webs.model import Page, Place, Site

HTML = {"Content-Type": "text/html; charset=utf-8"}
MAX_TRIES = 3
MOST_REDIRECTS = 5
# Paths that a server with an eye for spelling knows in this one alone, and how pages write them.
SPELLINGS = [
    ("/git?p=x.git;a=summary", "/git?p=x.git;a=summary"),
    ("/wiki?FrontPage", "/wiki?FrontPage"),
    ("/signed?b=2&a=1&sig=ab%2Bc%3D", "/signed?b=2&a=1&sig=ab%2Bc%3D"),
    ("/list?x%5B%5D=1", "/list?x%5B%5D=1"),
    ("/list2?x[]=1", "/list2?x[]=1"),
    ("/type;year=2017", "/type;year=2017"),
    ("/field;", "/field;"),
    ("/double//slash", "/double//slash"),
    ("/lone?", "/lone?"),
    ("/lower%c3%a9", "/lower%c3%a9"),
    ("/upper%C3%A9", "/upper%C3%A9"),
    ("/raw%C3%A9", "/rawé"),
    ("/blank%20here", "/blank here"),
    ("/ask?q=two%20words", "/ask?q=two words"),
    ("/search?q=two+words", "/search?q=two+words"),
    ("/quote?q=%27x%27", "/quote?q='x'"),
    ("/tilde~user", "/tilde~user"),
    ("/comma,semi;star*", "/comma,semi;star*"),
    ("/at@sign:colon", "/at@sign:colon"),
    ("/pipe|bar", "/pipe|bar"),
    ("/empty?a=&b", "/empty?a=&b"),
    ("/amps?a=1&&b=2&", "/amps?a=1&&b=2&"),
    ("/slashes/in?path=/a/../b//c", "/slashes/in?path=/a/../b//c"),
    ("/question?a?b?c", "/question?a?b?c"),
    ("/percent%zz", "/percent%zz"),
]


class Features:
    """Adds features to one site after another."""

    def __init__(self, chance: random.Random, writer: Writer, sites: list[Site]) -> None:
        self._random, self._writer, self._sites = chance, writer, sites
        self._folders = count()

    def add(self, name: str, site: Site) -> list[Place]:
        """What a page of the site must link to, so that all of the feature is found."""
        feature: Callable[[Site, str], list[Place]] = getattr(self, name)
        return feature(site, f"/{name.replace('_', '-')}-{next(self._folders)}")

    def _leaf(self, site: Site, path: str) -> Place:
        return self._writer.page(site, path)

    # --- what is found ---

    def twins(self, site: Site, folder: str) -> list[Place]:
        """Folders whose first pages have the same bytes, and whose other pages differ."""
        first = "<p>Talk</p><a href=p1.html>1</a><a href='sub/p2.html'>2</a>"
        found = []
        for number in range(self._random.randrange(2, 8)):
            inner = f"{folder}/{number}"
            leads = [self._leaf(site, f"{inner}/p1.html"), self._leaf(site, f"{inner}/sub/p2.html")]
            place = self._writer.page(site, f"{inner}/", leads, title="Talk", body=first)
            site.pages[place.path].twins = folder
            found.append(place)
        return found

    def spellings(self, site: Site, folder: str) -> list[Place]:
        """Links that are right in one spelling only."""
        links, leads = [], []
        for wire, written in self._random.sample(SPELLINGS, 8):
            leads.append(self._leaf(site, folder + wire))
            href = self._random.choice(("", site.name)) + folder + written
            quoted = href.replace("&", "&amp;").replace('"', "&quot;")
            links.append(f'<a href="{quoted}">x</a>')
        return [self._writer.page(site, f"{folder}/", leads, body="".join(links))]

    def bare_ampersands(self, site: Site, folder: str) -> list[Place]:
        """Queries whose ampersands are not escaped: no names of characters, since a letter or = follows."""
        names = self._random.sample(
            ("copy", "reg", "region", "para", "notit", "lt", "sect", "times", "degrees", "amp"), 5
        )
        leads, links = [], []
        for name in names:
            path = f"{folder}/view?id=1&{name}=2"
            leads.append(self._leaf(site, path))
            quote = self._random.choice("\"' ").strip()
            links.append(f"<p><a href={quote}{path}{quote} class=x>{self._writer.words(2)}</a></p>")
        return [self._writer.page(site, f"{folder}/", leads, body="".join(links))]

    def two_spellings(self, site: Site, folder: str) -> list[Place]:
        """One page by two spellings of its query: asked for once, as it was met."""
        one, other = f"{folder}/shop?a=1&b=2", f"{folder}/shop?b=2&a=1"
        self._writer.page(site, one, also=[other])
        place = Place(site.number, one)
        pages = []
        for number, path in enumerate((one, other)):
            body = f'<p>{self._writer.words()}</p><a href="{path.replace("&", "&amp;")}">x</a>'
            pages.append(self._writer.page(site, f"{folder}/{number}", [place], body=body))
        return pages

    def frames(self, site: Site, folder: str) -> list[Place]:
        """A frameset and an iframe."""
        menu, text, inner = (self._leaf(site, f"{folder}/{name}.html") for name in ("menu", "text", "inner"))
        frameset = "<frameset cols='20%,*'><frame src=menu.html><frame src='text.html' name=t></frameset>"
        outer = self._writer.page(
            site, f"{folder}/outer.html", [inner], body="<p>outer</p><iframe src='inner.html#x'></iframe>"
        )
        title = self._writer.words(3)
        markup = f"<html><head><title>{title}</title></head>{frameset}</html>"
        reply = Reply(200, HTML, markup)
        row = {**stored(reply), "title": title}
        return [site.add(Page(f"{folder}/", [reply], [menu, text], row)), outer]

    def crowd(self, site: Site, folder: str) -> list[Place]:
        """A menu of thousands of anchors to few pages, and a comment of a megabyte, before the page's own links."""
        own = [self._leaf(site, f"{folder}/own-{number}") for number in range(3)]
        menu = "".join(f'<a href="#part-{number}">{number}</a>' for number in range(5_500))
        long = f"<!-- {'x' * 1_100_000} -->" if self._random.random() < 0.3 else ""
        return [self._writer.page(site, f"{folder}/", own, before=long + menu)]

    def slides(self, site: Site, folder: str) -> list[Place]:
        """A slide show: a picture a page, and no words."""
        following: list[Place] = []
        for number in reversed(range(self._random.choice((20, 130)))):
            link = f'<a href="img{number + 1}.html">&gt;</a>' if following else ""
            body = f'<img src="img{number}.png">{link}'
            following = [
                self._writer.page(site, f"{folder}/img{number}.html", following, title="Show", body=body)
            ]
        return following

    def chain(self, site: Site, folder: str) -> list[Place]:
        """Pages of which each leads to one more."""
        following: list[Place] = []
        for number in reversed(range(90)):
            following = [self._writer.page(site, f"{folder}/step-{number}", following)]
        return following

    def base_element(self, site: Site, folder: str) -> list[Place]:
        """Relative links below a base."""
        target = self._leaf(site, f"{folder}/deep/below.html")
        other = self._leaf(site, f"{folder}/beside.html")
        base = self._random.choice(
            (
                f"{folder}/deep/",
                "deep/",
                f"{site.name}{folder}/deep/x.html",
                "\\".join(("", *folder.split("/")[1:], "deep", "")),
            )
        )
        body = "<a href=below.html>1</a><a href='..\\beside.html'>2</a>"
        return [
            self._writer.page(
                site, f"{folder}/", [target, other], head=f'<base href="{base}"><base href="/x/">', body=body
            )
        ]

    def refreshes(self, site: Site, folder: str) -> list[Place]:
        """Refreshes: in the head, in its noscript, and as a header."""
        first, second, third = (self._leaf(site, f"{folder}/{number}") for number in range(3))
        return [
            self._writer.page(
                site,
                f"{folder}/a",
                [first],
                head=f'<meta http-equiv=Refresh content="5; URL={first.path}">',
                body="<p>a",
            ),
            self._writer.page(
                site,
                f"{folder}/b",
                [second],
                head=f'<noscript><meta http-equiv="refresh" content="0;url=\'{second.path}\'"></noscript>',
                body="<p>b",
            ),
            self._writer.page(
                site, f"{folder}/c", [third], fields={"Refresh": f"3; url={third.path}"}, body="<p>c"
            ),
        ]

    def canonical(self, site: Site, folder: str) -> list[Place]:
        """A page that names another one as the URL to take for it."""
        better = self._leaf(site, f"{folder}/better")
        head = f'<link rel="canonical" href="{site.name}{better.path}">'
        return [
            self._writer.page(
                site, f"{folder}/?from=menu", [better], head=head, row={"canonical": site.name + better.path}
            )
        ]

    def documents(self, site: Site, folder: str) -> list[Place]:
        """What is no HTML."""
        found = []
        for name, kind in (
            ("report.pdf", "application/pdf"),
            ("data.json", "application/json"),
            ("notes.txt", "text/plain"),
        ):
            reply = Reply(200, {"Content-Type": kind}, packed=self._writer.words().encode())
            found.append(site.add(Page(f"{folder}/{name}", [reply], row=stored(reply))))
        return found

    # --- sitemaps ---

    def sitemap(self, site: Site, folder: str) -> list[Place]:
        """An index behind a redirect, with sitemaps of every type that servers give them."""
        index = f"{folder}/index.xml"
        kinds = ["application/xml", "text/html", "text/plain", "application/octet-stream", ""]
        maps = []
        for number, kind in enumerate(self._random.sample(kinds, 3)):
            pages = [self._leaf(site, f"{folder}/only-{number}-{page}") for page in range(3)]
            urls = "".join(f"<url><loc>{site.name}{place.path}</loc></url>" for place in pages)
            body = f'<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{urls}</urlset>'
            fields = {"Content-Type": kind} if kind else {}
            reply = Reply(200, fields, body)
            maps.append(site.add(Page(f"{folder}/map-{number}.php", [reply], pages, stored(reply))))
        text_pages = [self._leaf(site, f"{folder}/listed-{page}") for page in range(2)]
        listing = Reply(
            200, {"Content-Type": "text/plain"}, "\n".join(site.name + place.path for place in text_pages)
        )
        maps.append(site.add(Page(f"{folder}/urls.txt", [listing], text_pages, stored(listing))))
        entries = "".join(f"<sitemap><loc>{site.name}{place.path}</loc></sitemap>" for place in maps)
        body = f'<sitemapindex xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{entries}</sitemapindex>'
        reply = Reply(200, {"Content-Type": "text/xml"}, body)
        place = site.add(Page(index, [reply], row=stored(reply), beside=maps))
        named = self._redirect(site, f"{folder}/sitemap.xml", place)
        site.sitemaps.append(named.path)
        return []

    def atom(self, site: Site, folder: str) -> list[Place]:
        """A feed that is named as a sitemap: of each entry the alternate link counts."""
        posts = [self._leaf(site, f"{folder}/post-{number}") for number in range(3)]
        entries = "".join(
            f'<entry><link rel="replies" href="{site.name}{place.path}/comments"/>'
            f'<link rel="edit" href="{site.name}/edit"/>'
            f'<link rel="alternate" type="text/html" href="{site.name}{place.path}"/></entry>'
            for place in posts
        )
        reply = Reply(
            200,
            {"Content-Type": "application/atom+xml"},
            f'<feed xmlns="http://www.w3.org/2005/Atom">{entries}</feed>',
        )
        site.sitemaps.append(site.add(Page(f"{folder}/feed.xml", [reply], posts, stored(reply))).path)
        return []

    # --- redirects ---

    def _redirect(self, site: Site, path: str, to: Place, *, status: int = 301, location: str = "") -> Place:
        target = self._sites[to.site].name + to.path
        reply = Reply(status, {"Location": location or target})
        row = {"outcome": "redirected", "status": status, "redirect": target}
        return site.add(Page(path, [reply], row=row, beside=[to]))

    def redirect_chain(self, site: Site, folder: str) -> list[Place]:
        """Redirects, one behind the other, as many as REDIRECT_MAX_TIMES allows."""
        place = self._leaf(site, f"{folder}/end")
        for number in range(self._random.randrange(2, MOST_REDIRECTS + 1)):
            location = self._random.choice(
                (place.path, "", f"{site.name}{place.path}#part", place.path.rpartition("/")[2])
            )
            status = self._random.choice((301, 302, 303, 307, 308))
            place = self._redirect(site, f"{folder}/{number}", place, status=status, location=location)
        return [place]

    def redirect_loop(self, site: Site, folder: str) -> list[Place]:
        """Redirects that lead back."""
        one, other = Place(site.number, f"{folder}/one"), Place(site.number, f"{folder}/other")
        self._redirect(site, one.path, other)
        self._redirect(site, other.path, one)
        own = Place(site.number, f"{folder}/own")
        self._redirect(site, own.path, own)
        for place in (one, other, own):
            site.pages[place.path].circles = True
        return [one, own]

    def redirect_elsewhere(self, site: Site, folder: str) -> list[Place]:
        """A redirect to a page of another site that nothing else names."""
        other = self._random.choice(self._sites)
        return [self._redirect(site, f"{folder}/away", self._leaf(other, f"{folder}/here"))]

    def cookie_wall(self, site: Site, folder: str) -> list[Place]:
        """A page that first redirects, with a cookie, to itself or to another page and back."""
        place = self._writer.page(site, f"{folder}/inside", [self._leaf(site, f"{folder}/behind")])
        page = site.pages[place.path]
        seen = f"seen{folder.replace('/', '-')}=1"
        cookie = {"Set-Cookie": f"{seen}; Path=/"}
        if self._random.random() < 0.5:
            _wall_off(page, seen, Reply(302, {"Location": place.path, **cookie}))
            return [place]
        consent = Place(site.number, f"{folder}/consent")
        _wall_off(page, seen, Reply(302, {"Location": consent.path}))
        page.beside.append(consent)
        row: dict[str, object] = {"outcome": "redirected", "redirect": site.name + place.path}
        back = Reply(302, {"Location": place.path, **cookie})
        site.add(Page(consent.path, [back], row=row, beside=[place]))
        return [place]

    # --- what fails ---

    def errors(self, site: Site, folder: str) -> list[Place]:
        """Pages that are not there; what their bodies link to is nobody's page."""
        found = []
        for status in (403, 404, 410):
            body = f'<a href="{folder}/never">x</a>'
            page = Page(f"{folder}/{status}", [Reply(status, HTML, body)], loads=False)
            page.row = {"outcome": "failed", "status": status}
            found.append(site.add(page))
        return found

    def heals(self, site: Site, folder: str) -> list[Place]:
        """Pages that fail at first, and what they lead to then."""
        found = []
        for number in range(2):
            place = self._writer.page(
                site, f"{folder}/{number}", [self._leaf(site, f"{folder}/behind-{number}")]
            )
            failures = [
                self._random.choice((Reply(500), Reply(502), Reply(503), RESET))
                for _ in range(self._random.randrange(1, MAX_TRIES))
            ]
            site.pages[place.path].replies[:0] = failures
            found.append(place)
        return found

    def never_heals(self, site: Site, folder: str) -> list[Place]:
        """A page that fails for ever."""
        row: dict[str, object] = {"outcome": "failed", "status": 500}
        return [site.add(Page(f"{folder}/broken", [Reply(500)] * MAX_TRIES, row=row, loads=False))]

    # --- bodies ---

    def bodies(self, site: Site, folder: str) -> list[Place]:
        """Gzip as servers damage it: what browsers read is read."""
        found = []
        for name, pack in PACKINGS.items():
            place = self._writer.page(site, f"{folder}/{name}", [self._leaf(site, f"{folder}/{name}/behind")])
            page = site.pages[place.path]
            (reply,) = page.replies
            page.replies = [
                reply._replace(fields={**reply.fields, "Content-Encoding": "gzip"}, packed=pack(reply.packed))
            ]
            found.append(place)
        return found

    def charsets(self, site: Site, folder: str) -> list[Place]:
        """Titles in other encodings, and in entities."""
        found = []
        for name, told, title in (
            ("iso-8859-1", "header", "Dit is één pagina"),
            ("windows-1251", "meta", "Гавань и фонарь"),
            ("shift_jis", "meta", "港の灯り"),
            ("utf-8", "meta", "Fish & Chips “here”"),
        ):
            meta = f"<meta charset={name}>" if told == "meta" else ""
            target = self._leaf(site, f"{folder}/from-{name}")
            shown = title.replace("&", "&amp;")
            markup = f'<html><head>{meta}<title>{shown}</title></head><body><a href="from-{name}">x</a></body></html>'
            kind = f"text/html; charset={name}" if told == "header" else "text/html"
            reply = Reply(200, {"Content-Type": kind}, packed=markup.encode(name))
            found.append(
                site.add(Page(f"{folder}/{name}", [reply], [target], {**stored(reply), "title": title}))
            )
        return found

    # --- what must not be asked ---

    def never(self, site: Site, folder: str) -> list[Place]:
        """Names of URLs that are no links."""
        path = f"{folder}/never"
        markup = [
            f"<!-- <a href='{path}-comment'>x</a> -->",
            f"<script>document.write('<a href=\"{path}-script\">x</a>')</script>",
            f"<style>a {{ background: url({path}-style) }}</style>",
            f"<textarea><a href='{path}-textarea'>x</a></textarea>",
            f"<a rel='nofollow noopener' href='{path}-nofollow'>x</a>",
            f"<a href='mailto:me@example.org?subject={path}'>x</a>",
            f"<a href='javascript:go(\"{path}-javascript\")'>x</a>",
            f"<a href='data:text/html,<a href={path}-data>'>x</a>",
            "<a href='tel:+1'>x</a><a href='ftp://127.0.0.1/x'>x</a><a name='x'>x</a><a href='http://'>x</a>",
            "<a href='http://[broken/'>x</a><a href='http://127.0.0.1:99999/'>x</a>",
            f"<img src='{path}-picture.png'><link rel=stylesheet href='{path}-sheet.css'>",
            f"<form action='{path}-form'><button>x</button></form>",
        ]
        self._random.shuffle(markup)
        real = self._leaf(site, f"{folder}/real")
        return [
            self._writer.page(
                site, f"{folder}/", [real], before="".join(markup[:6]), after="".join(markup[6:])
            )
        ]

    def robots_words(self, site: Site, folder: str) -> list[Place]:
        """Pages whose links may not be followed."""
        link = f"<a href='{folder}/never'>x</a>"
        pages: list[tuple[str, dict[str, str]]] = [
            ('<meta name="robots" content="nofollow">', {}),
            ('<META NAME=ROBOTS CONTENT="noarchive, NOFOLLOW">', {}),
            ("", {"X-Robots-Tag": "nofollow"}),
            ('<meta name="robots" content="none">', {}),
        ]
        return [
            self._writer.page(site, f"{folder}/{number}", head=head, fields=fields, before=link)
            for number, (head, fields) in enumerate(pages)
        ]

    def private(self, site: Site, folder: str) -> list[Place]:
        """Pages that robots.txt forbids."""
        site.disallow.append(f"{folder}/closed/")
        place = Place(site.number, f"{folder}/closed/page")
        self._writer.page(site, place.path, [self._leaf(site, f"{folder}/behind")], row={"outcome": "denied"})
        return [place]

    def foreign_rules(self, site: Site, folder: str) -> list[Place]:
        """Rules that name another host, as sites that moved have them, and lines that are none."""
        site.more_rules += [
            "Disallow: http://www.example.org/",
            "Disallow: https://other.example.net",
            "Disallow:",
            "Nonsense: /",
        ]
        return [self._leaf(site, f"{folder}/page")]


def _wall_off(page: Page, cookie: str, reply: Reply) -> None:
    """Only who sends the cookie sees the page. Told by that and not by the times: a killed agent asks again."""
    page.replies = [one._replace(wall=(cookie, reply)) for one in page.replies]


def _multi(body: bytes) -> bytes:
    half = len(body) // 2
    return gzip.compress(body[:half]) + gzip.compress(body[half:])


def _wrong_sum(body: bytes) -> bytes:
    packed = gzip.compress(body)
    return packed[:-8] + bytes(byte ^ 0xFF for byte in packed[-8:-4]) + packed[-4:]


def _raw_deflate_in_gzip(body: bytes) -> bytes:
    maker = zlib.compressobj(9, zlib.DEFLATED, 31)
    return maker.compress(body) + maker.flush(zlib.Z_SYNC_FLUSH) + maker.flush()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "whole": gzip.compress,
    "newline": lambda body: gzip.compress(body) + b"\r\n",
    "zeros": lambda body: gzip.compress(body) + bytes(64),
    "members": _multi,
    "wrong-sum": _wrong_sum,
    "flushed": _raw_deflate_in_gzip,
    "no-end": lambda body: gzip.compress(body)[:-8],
}

NAMES = [
    name
    for name, kind in vars(Features).items()
    if not name.startswith("_") and name != "add" and callable(kind)
]
