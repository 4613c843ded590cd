"""What agents told: the records in a server's results stream. Where a coordinator runs it has taken them out."""

from __future__ import annotations

from crawler import records
from tests.servers import RunningServer


def told(server: RunningServer, prefix: str = "lt") -> list[records.Record]:
    """All records, in the order in which they came."""
    return [records.decode(fields)[0] for _, fields in server.client.xrange(f"{prefix}:{{0}}:results")]


def told_pages(server: RunningServer, prefix: str = "lt") -> list[records.Page]:
    """The records of pages; a page that was published twice is there twice."""
    return [record for record in told(server, prefix) if isinstance(record, records.Page)]


def outcomes(server: RunningServer, prefix: str = "lt") -> dict[str, str]:
    """How the turn of each page ended, by URL; AssertionError where a page was published twice."""
    pages = told_pages(server, prefix)
    found = {page.url: page.outcome for page in pages}
    assert len(found) == len(pages), sorted(page.url for page in pages)
    return found
