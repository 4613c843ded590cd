"""What a page says of itself: title and description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lxml import etree

if TYPE_CHECKING:
    from crawler.agent.pages import LoadedPage

TITLE_LENGTH = 500
DESCRIPTION_LENGTH = 1000

_TITLE: Any = etree.XPath("string(//title)")
_DESCRIPTION: Any = etree.XPath(
    "string(//meta[translate(@name, 'DESCRIPTON', 'descripton')='description']/@content)"
)


class Attributes:
    """Fills title and description from the parsed page; empty where there are none."""

    def process(self, page: LoadedPage) -> None:
        """Read the document's head."""
        root = page.document
        if root is None:
            return
        page.record.title = _clean(_TITLE(root), TITLE_LENGTH)
        page.record.description = _clean(_DESCRIPTION(root), DESCRIPTION_LENGTH)


def _clean(text: str, length: int) -> str:
    """On one line, at most `length` characters."""
    return " ".join(text[: length * 4].split())[:length]
