"""Redirects of a user's own requests; those of pages are the frontier's business (crawler/agent/fetcher.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.downloadermiddlewares.redirect import RedirectMiddleware

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response


class OwnRedirects(RedirectMiddleware):
    """Scrapy's, without a Referer: no page is told where we came from."""

    def handle_referer(self, request: Request, response: Response) -> None:  # noqa: ARG002 - Scrapy's
        """Keep none."""
        request.headers.pop("Referer", None)
