"""What a page says of itself: title, description, and the URL it names as the one to take for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crawler.agent import links

if TYPE_CHECKING:
    from crawler.agent.pages import LoadedPage

TITLE_LENGTH = 500
DESCRIPTION_LENGTH = 1000


class Attributes:
    """Fills title and description from the parsed page, canonical also from its header; empty where there are none."""

    def process(self, page: LoadedPage) -> None:
        """Read the document's head."""
        root, record = page.document, page.record
        record.canonical = links.named_canonical(
            root,
            b",".join(page.response.headers.getlist("Link")).decode("latin-1"),
            record.url,
            page.agent.max_url_length,
            lambda: links.encoding_of(page.body, record.content_type),
        )
        if root is None:
            return
        record.title = _clean(_title(root), TITLE_LENGTH)
        record.description = _clean(_description(root), DESCRIPTION_LENGTH)


def _title(root: Any) -> str:
    for element in root.iter("title"):
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
