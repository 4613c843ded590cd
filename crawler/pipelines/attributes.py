"""Title, description, canonical, robots, media and hosts of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crawler.content.html import canonical_url, parts
from crawler.content.text import content_hash, mail_and_ftp, media_of, outside_hosts

if TYPE_CHECKING:
    from crawler.agent.page import LoadedPage

TITLE_LENGTH = 500
DESCRIPTION_LENGTH = 1000
# Maximum robots directives, and their length.
ROBOTS_WORDS = 20
ROBOTS_WORD_LENGTH = 60


class Attributes:
    """Fills fields from the parsed page and headers."""

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
        # Not the title of an SVG icon.
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
    """One line of at most `length` characters."""
    return " ".join(text[: length * 4].split())[:length]
