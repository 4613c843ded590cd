"""What an ordinary crawl meets on an untidy site: one function for each kind of oddity.

A new one is a function here with `@kind`, and its name in `plan.KINDS`. Each gives the links that are put
on an ordinary page and the resources that answer; the truth about them is in their fields. For misbehaviour
below HTTP's manners see behaviours.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .resource import HTML, Link, Resource, document

if TYPE_CHECKING:
    from .site import Site

OVERLONG = 2_200


@dataclass(frozen=True)
class Oddity:
    """Links to put on a page, and what answers under them."""

    links: tuple[Link, ...]
    resources: tuple[Resource, ...] = ()


Maker = Callable[["Site"], Oddity]
REGISTRY: dict[str, Maker] = {}


def kind(make: Maker) -> Maker:
    """Registers a kind under the function's name."""
    REGISTRY[make.__name__] = make
    return make


@kind
def nofollow(site: Site) -> Oddity:
    """Pages to which only rel=nofollow links lead."""
    rels = {"/hidden/one.html": "nofollow", "/hidden/two.html": "external NoFollow"}
    links = tuple(_link(site, path, follow=False, rel=rel) for path, rel in rels.items())
    return Oddity(links, tuple(_page(site, path, kind="nofollow") for path in rels))


@kind
def private(site: Site) -> Oddity:
    """A folder that robots.txt disallows."""
    paths = ("/private/", "/private/deep/letter.html?x=1")
    links = tuple(_link(site, path, follow=False) for path in paths)
    return Oddity(links, tuple(_page(site, path, kind="denied") for path in paths))


@kind
def duplicate(site: Site) -> Oddity:
    """The same bytes under two URLs."""
    first, second = "/twin/one.html", "/twin/two.html"
    body = _html(site, "The twins", "one like the other")
    resources = (_resource(first, body), _resource(second, body, kind="duplicate"))
    return Oddity((_link(site, first), _link(site, second)), resources)


@kind
def redirect(site: Site) -> Oddity:
    """Redirects inside the site: to a page that nothing else links, and to the root."""
    old, new, home = "/moved/old.html", "/moved/new.html", "/moved/home"
    resources = (
        _redirect(old, 301, new, site.url(new)),
        _page(site, new),
        _redirect(home, 302, site.url("/"), site.url("/")),
    )
    return Oddity((_link(site, old), _link(site, home)), resources)


@kind
def away(site: Site) -> Oddity:
    """A redirect to another site; a site without neighbours has none."""
    if not site.neighbours:
        return Oddity(())
    target = site.neighbours[-1] + "/"
    return Oddity((_link(site, "/away"),), (_redirect("/away", 302, target, target),))


@kind
def missing(site: Site) -> Oddity:
    """A link to nothing: 404."""
    resource = _resource("/missing.html", _html(site, "Not here", "gone"), kind="error", status=404)
    return Oddity((_link(site, resource.path),), (resource,))


@kind
def broken(site: Site) -> Oddity:
    """A page that always answers 500."""
    resource = _resource("/broken.html", _html(site, "Broken", "error"), kind="error", status=500)
    return Oddity((_link(site, resource.path),), (resource,))


@kind
def busy(site: Site) -> Oddity:
    """A page whose first answer is 503 with Retry-After: 1, fine afterwards."""
    resource = _page(site, "/busy.html", busy_first=True)
    return Oddity((_link(site, resource.path),), (resource,))


@kind
def charset(site: Site) -> Oddity:
    """Latin-1 told by the header, EUC-KR with letters that only CP949 has, UTF-8 that nothing tells."""
    french = _html(site, "Café", "Le café près de la forêt coûte un élan", charset="latin-1")
    text = "똠방각하는 낮에 바다가 조용하고 밤에 물이 들어온다고 했다 " * 8
    korean = _html(site, "밀물과 썰물", text, '<meta charset="euc-kr">', charset="cp949")
    resources = (
        _resource("/charset/latin1.html", french, content_type="text/html; charset=ISO-8859-1"),
        _resource("/charset/cp949.html", korean, content_type="text/html"),
        _resource("/charset/none.html", _html(site, "Ключ", "ключ от дома " * 8), content_type="text/html"),
    )
    return Oddity(tuple(_link(site, resource.path) for resource in resources), resources)


@kind
def base(site: Site) -> Oddity:
    """A page whose relative links count from <base href>."""
    path, child = "/base/index.html", _link(site, "/based/on/child.html", href="child.html")
    body = _html(site, "Based", "elsewhere", '<base href="/based/on/">', (child,))
    resources = (Resource(path, lambda: body, links=(child,)), _page(site, "/based/on/child.html"))
    return Oddity((_link(site, path),), resources)


@kind
def session(site: Site) -> Oddity:
    """One page whose query is written in two orders; the canonical one is sorted."""
    path = "/session?id=7&sid=a1b2c3"
    # The one that is met first is asked for.
    links = (_link(site, path, href=path + "#top"), _link(site, path, href="/session?sid=a1b2c3&id=7"))
    # Both orders answer: a crawl that does not canonicalise is caught by its own list, not by a 404.
    return Oddity(links, (_page(site, path), _page(site, "/session?sid=a1b2c3&id=7", kind="alias")))


@kind
def schemes(site: Site) -> Oddity:
    """Links that no HTTP request can follow."""
    ftp = f"ftp://{site.host}/pub/file.txt"
    hrefs = ("javascript:void(0)", "mailto:a@example.org", "tel:+123", "data:,x", "file:///etc/hostname", ftp)
    return Oddity(tuple(Link(href, follow=False) for href in hrefs))


@kind
def overlong(site: Site) -> Oddity:
    """A URL longer than any crawler should take (2,083 characters)."""
    path = "/long/" + "x" * OVERLONG
    return Oddity((_link(site, path, follow=False),), (_page(site, path, kind="overlong"),))


@kind
def binary(site: Site) -> Oddity:
    """Bytes that look like a PDF file and hold something that looks like a link."""
    data = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + bytes(range(256)) * 4 + site.host.encode()
    data += b'<a href="/not-a-link.html">\n%%EOF\n'
    resource = _resource("/files/paper.pdf", data, kind="binary", content_type="application/pdf")
    return Oddity((_link(site, resource.path),), (resource,))


@kind
def meta(site: Site) -> Oddity:
    """Pages whose links may not be followed: said in a meta element, and in X-Robots-Tag."""
    hidden = _link(site, "/hidden/three.html", follow=False)
    element, field = "/meta/element.html", "/meta/field.html"
    told = _html(site, "Meta", "element", '<meta name="robots" content="nofollow">', (hidden,))
    bare = _html(site, "Meta", "field", links=(hidden,))
    resources = (
        Resource(element, lambda: told, links=(hidden,)),
        Resource(field, lambda: bare, links=(hidden,), fields=(("X-Robots-Tag", "nofollow"),)),
        _page(site, "/hidden/three.html", kind="nofollow"),
    )
    return Oddity((_link(site, element), _link(site, field)), resources)


@kind
def canonical(site: Site) -> Oddity:
    """Pages that name another one as canonical, to which nothing else leads, and names that come to nothing.

    The print view of an article, a file whose HTTP header names one, a page that says nofollow beside it, one whose
    author wrote nonsense before what he meant, one that names itself, and one that claims to be another site's.
    """
    views = [
        _naming(site, "print", "/canonical/article.html"),
        _naming(site, "closed", "/hidden/four.html", before='<meta name="robots" content="nofollow">'),
        _naming(site, "odd", "/canonical/meant.html", "../canonical/meant.html#x", before=_NONSENSE),
        _naming(site, "itself", "/canonical/itself.html"),
        *(_naming(site, "claim", "/", neighbour + "/") for neighbour in site.neighbours[:1]),
    ]
    scan, paper = "/canonical/scan.pdf", _link(site, "/canonical/paper.html", rel="canonical")
    field = ("Link", '</style.css>; rel=preload, <paper.html>; rel="canonical"')
    data = b"%PDF-1.7\n" + bytes(range(256)) + site.host.encode()
    views.append(Resource(scan, lambda: data, "binary", 200, "application/pdf", (field,), (paper,)))
    found = [_page(site, f"/canonical/{name}.html") for name in ("article", "meant", "paper")]
    hidden = _page(site, "/hidden/four.html", kind="nofollow")
    return Oddity(tuple(_link(site, view.path) for view in views), (*views, *found, hidden))


_NONSENSE = "".join(
    f'<link rel="canonical" href="{odd}">' for odd in ("javascript:x", "http://a b/", "#", "x" * 2_200)
)


def _naming(site: Site, name: str, path: str, href: str = "", before: str = "") -> Resource:
    """A page that names another as canonical, in an element that is written `href`."""
    target = href if href.startswith("http") else site.url(path)
    link = Link(href or path, target, follow="nofollow" not in before, rel="canonical")
    head = f'{before}<link rel="CANONICAL alternate" href="{link.href}">'
    body = _html(site, name, f"canonical {name}", head)
    return Resource(f"/canonical/{name}.html", lambda: body, links=(link,))


def _html(
    site: Site, title: str, text: str, head: str = "", links: tuple[Link, ...] = (), charset: str = "utf-8"
) -> bytes:
    """A document that no other site has."""
    return document(f"{title}, {site.host}", text, links, head).encode(charset)


def _link(site: Site, path: str, *, href: str = "", follow: bool = True, rel: str = "") -> Link:
    return Link(href or path, site.url(path), follow=follow, rel=rel, text=f"to {path[:60]}")


def _resource(
    path: str, body: bytes, *, kind: str = "page", status: int = 200, content_type: str = HTML
) -> Resource:
    return Resource(path, lambda: body, kind=kind, status=status, content_type=content_type)


def _page(site: Site, path: str, *, kind: str = "page", busy_first: bool = False) -> Resource:
    title = path[:60]
    return Resource(path, lambda: _html(site, title, f"oddity {title}"), kind=kind, busy_first=busy_first)


def _redirect(path: str, status: int, written: str, target: str) -> Resource:
    fields = (("Location", written),)
    return Resource(path, lambda: b"", kind="redirect", status=status, fields=fields, location=target)
