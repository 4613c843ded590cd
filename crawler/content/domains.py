"""Whom a page names beside its own site: hosts that it links to, domains of its mail addresses and of its FTP links.

Names are as written, in lower case and punycode; which part of one somebody registered is for whoever reads the
tables. Each list is of distinct names in the page's order and bounded; what can be no host's name is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from crawler.content.media import KIND_OF
from crawler.records import MOST_HOSTS
from crawler.urls.url import UrlError, ascii_host, host_of

if TYPE_CHECKING:
    from crawler.content.html import Links

# Names of a kind that are kept of a page.
MOST = MOST_HOSTS
# Names that are looked at for these: a page may have a million.
_MOST_LOOKED_AT = 2_000
_ELSEWHERE = re.compile(r"[\x00-\x20]*+(?i:(mailto)|ftp):")
_MAIL_HOST = re.compile(r"@([^@\s,;<>]++)")
# Begins with the mark, so that a text is searched for that alone. ASCII letters only: Korean puts its particles behind
# an address without a blank.
_MAIL_IN_TEXT = re.compile(
    r"@(?<=[A-Za-z0-9._%+-]@)((?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24})(?![A-Za-z0-9-])"
)


def outside_hosts(found: Links, site: str) -> list[str]:
    """Hosts of the other sites that a page of `site` links to; its own host under another port is none."""
    hosts = dict.fromkeys(map(host_of, islice(found.outside, _MOST_LOOKED_AT)))
    hosts.pop(host_of(site), None)
    return list(islice(hosts, MOST))


def mail_and_ftp(hrefs: Iterable[str], text: str) -> tuple[list[str], list[str]]:
    """Domains of the mail addresses in links and then in the text, and hosts of the links to FTP servers."""
    mail: list[str] = []
    ftp: list[str] = []
    for href in hrefs:
        found = _ELSEWHERE.match(href)
        if found is None:
            continue
        rest = href[found.end() :]
        if found[1]:
            mail += _MAIL_HOST.findall(unquote(rest.partition("?")[0]))
        else:
            with suppress(ValueError):
                ftp.append(urlsplit(f"ftp:{rest}").hostname or "")
    if "@" in text:
        mail += _in_text(text)
    return _names(mail), _names(ftp)


def _in_text(text: str) -> list[str]:
    """Hosts of mail addresses; `picture@2x.png` is a file."""
    found = (match[1] for match in islice(_MAIL_IN_TEXT.finditer(text), _MOST_LOOKED_AT))
    return [host for host in found if KIND_OF.get(host.rpartition(".")[2].lower()) != "image"]


def _names(hosts: list[str]) -> list[str]:
    names: dict[str, None] = {}
    for host in dict.fromkeys(hosts[:_MOST_LOOKED_AT]):
        with suppress(UrlError):
            name = ascii_host(host)
            if "." in name or ":" in name:
                names[name.strip("[]")] = None
    return list(islice(names, MOST))
