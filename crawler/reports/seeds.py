"""Seeds with no page, or only one: the reason, and what to do."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from crawler.records import STATUS_OF_ERROR, STATUS_WORDS, status_in_words
from crawler.store import queries
from crawler.store.tables import FINISHED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Engine

    from crawler.reports import Crawl
    from crawler.store.queries import PoorPage, PoorSeed

# Hosts of a page's links in the text.
HOSTS_SHOWN = 3
# Seeds kept at a time if only some are wanted.
HELD = 1000
# Limit for texts of servers and libraries.
LONGEST_WORDS = 160

# Advice for a seed by the status of its page; {later}: how it is retried.
_ADVICE = {
    -1: "check how its name is spelt",
    -2: "check that a server runs there, and whether it is http or https",
    -3: "it may be down: {later}; CONNECT_TIMEOUT_SECONDS is the limit",
    -4: "it may be down: {later}; HEAD_TIMEOUT_SECONDS is the limit",
    -5: "it may be slow: {later}; BODY_TIMEOUT_SECONDS is the limit",
    -6: "check whether it is http or https; {later}",
    -7: "its owner must fix that; DOWNLOAD_VERIFY_CERTIFICATES=False accepts any certificate, for sites of your own",
    -8: "{later}",
    -9: "its owner allows no crawler there: ask for permission",
    -10: "ALLOW_PRIVATE_ADDRESSES names the private networks that may be crawled",
    -11: "DOWNLOAD_MAXSIZE is the limit",
    -12: "check that a web server runs there, and whether it is http or https",
    401: "it requires a login: SITE_OVERRIDES can send headers or cookies, with the owner's permission",
    403: "it refuses this crawler: check that USER_AGENT names you and a contact, and ask its owner",
    404: "check the path, or give the site's first page",
    410: "check the path, or give the site's first page",
    429: "it accepts fewer requests; raise DOWNLOAD_DELAY: {later}",
}
_WAITS = "the same command tries it again later, `--when-idle wait` waits for it"
_OVER = "`--again` tries it once more"
# For these the library's text adds nothing to ours.
_PLAIN = (-1, -2, -3, -4, -5, -6)
_BROKEN = "its server has an error or is overloaded: {later}"
_GO_ON = "the same command resumes it"
_RENDERING = "if a browser shows more, scripts create it, and the crawler runs none: seed a sitemap or an API"

# Advice for redirects that were not followed, by the setting in the error.
_NOT_FOLLOWED = {
    "REDIRECT_MAX_TIMES": "open it in a browser and seed the page where it ends; a loop may require a cookie",
    "USER_AGENT": "USER_AGENT must name you and a contact before other sites are crawled",
    "SCOPE_": "SCOPE_INCLUDE and SCOPE_EXCLUDE exclude it: change them to crawl it",
}

_ANSWERED = re.compile(r"(it|robots\.txt) answered (\d{3})\b")
_ERROR = re.compile(rf"\b({'|'.join(STATUS_OF_ERROR)}): ")
# What surrounds libcurl's own text: URL and address before, its number after.
_BEFORE = re.compile(r"^https?://\S+(?: \([^)]*\))?: ")
_BEHIND = re.compile(r" \(libcurl \d+\)$")
ROBOTS_DENIED = -9


def figures(crawl: Crawl) -> dict[str, Any]:
    """Seeds without a page (`empty`) and with only one (`single`)."""
    return _told(crawl.engine, None)


def latest(engine: Engine, most: int) -> dict[str, Any]:
    """As `figures`, at most `most` of each kind, latest first."""
    return _told(engine, most)


def text(found: dict[str, Any]) -> str:
    """Each seed with reason and advice."""
    lines = _block(found, "empty", "without_a_page", "seeds gave no page")
    lines += _block(found, "single", "with_one_page", "seeds gave one page and no more")
    return "\n".join(lines) or f"  all {found['seeds']:,} seeds gave more than one page"


def short(found: dict[str, Any]) -> list[str]:
    """For a crawl's summary; empty if every seed gave pages."""
    return text(found).split("\n") if found["without_a_page"] or found["with_one_page"] else []


def verdict(found: dict[str, Any]) -> str:
    """For a crawl without pages: the first seed's reason and advice; empty: none."""
    if not found["empty"]:
        return ""
    one, many = _line(found["empty"][0]), found["without_a_page"]
    return f"no page was stored: {one}" + (
        f" (and {many - 1:,} more: `scrapy report seeds`)" if many > 1 else ""
    )


def rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """One table."""
    return [*found["empty"], *found["single"]]


def _block(found: dict[str, Any], kind: str, count: str, what: str) -> list[str]:
    many, listed = found[count], found[kind]
    if not many:
        return []
    lines = [f"  {many:,} of {found['seeds']:,} {what}:"]
    lines += [f"    {_line(one)}" for one in listed]
    if many > len(listed):
        lines.append(f"    … and {many - len(listed):,} more: `scrapy report seeds` lists them")
    return lines


def _line(one: dict[str, Any]) -> str:
    led = f" ({one['asked_as']} redirects there)" if one["asked_as"] else ""
    advice = f"; {one['what_to_do']}" if one["what_to_do"] else ""
    return f"{one['site']}{led}: {one['why']}{advice}"


def _told(engine: Engine, most: int | None) -> dict[str, Any]:
    found: dict[str, list[PoorSeed]] = {"empty": [], "single": []}
    many = dict.fromkeys(found, 0)
    for seed in queries.poor_seeds(engine):
        kind = "single" if seed.stored else "empty"
        many[kind] += 1
        found[kind].append(seed)
        if most is not None and len(found[kind]) > max(HELD, most):
            found[kind] = _latest(found[kind], most)
    return {
        "seeds": queries.count_poor_seeds(engine),
        "without_a_page": many["empty"],
        "with_one_page": many["single"],
        **{kind: [_row(seed) for seed in _latest(seeds, most)] for kind, seeds in found.items()},
    }


def _latest(seeds: Iterable[PoorSeed], most: int | None) -> list[PoorSeed]:
    return sorted(seeds, key=lambda seed: (-seed.found_at, seed.site))[:most]


def _row(seed: PoorSeed) -> dict[str, Any]:
    why, what_to_do = _of_single(seed) if seed.stored else _of_empty(seed)
    return {
        "site": seed.site,
        "asked_as": seed.asked_as,
        "pages": seed.stored,
        "why": why,
        "what_to_do": what_to_do,
    }


# --- Without a page ---


def _of_empty(seed: PoorSeed) -> tuple[str, str]:
    """Reason and advice."""
    later = _OVER if seed.state == FINISHED else _WAITS
    if seed.stopped:
        return f"{seed.stopped} by the operator", f"`scrapy site resume {seed.site}` resumes it"
    if seed.reason and (seed.page is None or seed.state != FINISHED):
        why, advice = _of_reason(seed.reason)
    elif seed.page is not None:
        why, advice = _of_page(seed.site, seed.page)
    elif seed.state != FINISHED:
        return "the crawl ended before it was fetched", _GO_ON
    else:
        return "none of its pages was fetched", f"`scrapy site show {seed.site}` shows what limits exclude"
    return why, advice.format(later=later)


def _of_reason(reason: str) -> tuple[str, str]:
    """From the reason that its agent stored."""
    if named := _ERROR.search(reason):
        return _of_status(STATUS_OF_ERROR[named[1]], reason[named.end() :])
    if answered := _ANSWERED.match(reason):
        return answered[0], _advice(int(answered[2]))
    return _cut(reason), _GO_ON


def _of_page(site: str, page: PoorPage) -> tuple[str, str]:
    """Why the first page is not stored."""
    if page.outcome == "redirected":
        return _of_redirect(site, page)
    if page.outcome == "filtered":
        return f"{page.url} has a content type that is not kept", ""
    if page.status == ROBOTS_DENIED:
        return "robots.txt forbids it to this crawler", _advice(ROBOTS_DENIED)
    return _of_status(page.status, _ERROR.sub("", page.error))


def _of_redirect(site: str, page: PoorPage) -> tuple[str, str]:
    why = f"it redirects to {page.redirect}" + (f", {page.error}" if page.error else "")
    for setting, advice in _NOT_FOLLOWED.items():
        if setting in page.error:
            return why, advice
    if page.redirect.startswith(f"{site}/"):
        return why, "open it in a browser: it may require a cookie"
    return why, "seed that URL, if SCOPE_INCLUDE and SCOPE_EXCLUDE allow it"


def _of_status(status: int, words: str) -> tuple[str, str]:
    what = STATUS_WORDS.get(status) or f"it answered {status_in_words(status).removeprefix('HTTP ')}"
    words = _cut(_BEFORE.sub("", _BEHIND.sub("", words)))
    says_more = words and status < 0 and status not in _PLAIN
    return f"{what}: {words}" if says_more else what, _advice(status)


def _advice(status: int) -> str:
    return _ADVICE.get(status, _BROKEN if status >= 500 else "")


def _cut(words: str) -> str:
    return words if len(words) <= LONGEST_WORDS else f"{words[: LONGEST_WORDS - 1]}…"


# --- With one page ---


def _of_single(seed: PoorSeed) -> tuple[str, str]:
    """Reason and advice."""
    page = seed.page
    assert page is not None
    hosts = json.loads(page.outside_hosts) if page.outside_hosts else []
    if not page.size:
        return f"{page.url} is empty", "open it in a browser: it may require a login, or another path"
    if page.content_type and "html" not in page.content_type:
        return (
            f"{page.url} is {page.content_type}, which is not searched for links",
            "seed a page that has links",
        )
    if seed.redirect:
        why = f"it redirects to {seed.redirect}, which links to no other page"
        return (
            why,
            "if that is a login: SITE_OVERRIDES can send headers or cookies, with the owner's permission",
        )
    if hosts:
        more = f" and {len(hosts) - HOSTS_SHOWN} more" if len(hosts) > HOSTS_SHOWN else ""
        why = f"all its links lead to other sites ({', '.join(hosts[:HOSTS_SHOWN])}{more})"
        return why, "seed these too, or include them with SCOPE (`domain`, `any`)"
    if not page.has_text:
        return f"{page.url} has neither text nor links", _RENDERING
    return f"{page.url} links to no other page", _RENDERING
