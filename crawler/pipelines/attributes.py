"""What a page says of itself and whom and what it points to: everything that is read without knowing its language.

On a page of 26 kB with 60 links it takes 0.08 CPU-ms beside the links themselves, most of it for the text and its hash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crawler.content.html import canonical_url, parts
from crawler.content.text import content_hash, mail_and_ftp, media_of, outside_hosts

if TYPE_CHECKING:
    from crawler.agent.page import LoadedPage

TITLE_LENGTH = 500
DESCRIPTION_LENGTH = 1000
# Words of meta robots and X-Robots-Tag that are kept, and the longest of them.
ROBOTS_WORDS = 20
ROBOTS_WORD_LENGTH = 60


class Attributes:
    """Fills what the parsed page tells, canonical and robots also from its header; empty where there is nothing."""

    def process(self, page: LoadedPage) -> None:
        """Read head, text and links."""
        root, record = page.document, page.record
        if page.canonical:
            record.canonical = canonical_url(*parts(page.canonical))
        record.robots = sorted(word[:ROBOTS_WORD_LENGTH] for word in page.directives)[:ROBOTS_WORDS]
        if root is None:
            return
        record.charset = page.charset
        record.title = _clean(_title(root), TITLE_LENGTH)
        record.description = _clean(_description(root), DESCRIPTION_LENGTH)
        record.content_hash = content_hash(page.raw_text)
        record.media = media_of(root, page.links)
        record.outside_hosts = outside_hosts(page.links, page.lease.site)
        record.mail_domains, record.ftp_domains = mail_and_ftp(page.written.hrefs, page.raw_text)


def _title(root: Any) -> str:
    for element in root.iter("title"):
        # That of an icon is none of the page's.
        if next(element.iterancestors("svg"), None) is None:
            return "".join(element.itertext()) if len(element) else element.text or ""
    return ""


def _description(root: Any) -> str:
    for element in root.iter("meta"):
        content = element.get("content")
        if content is not None and element.get("name", "").lower() == "description":
            return str(content)
    return ""


def _clean(text: str, length: int) -> str:
    """On one line, at most `length` characters."""
    return " ".join(text[: length * 4].split())[:length]
