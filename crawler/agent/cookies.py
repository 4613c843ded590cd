"""Scrapy's cookies, for those who switch COOKIES_ENABLED on: a downloader middleware that is loaded only then.

Its module brings a list of all public suffixes, and a library for HTTP to renew that: an eighth of a crawl's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy.exceptions import NotConfigured

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.downloadermiddlewares.cookies import CookiesMiddleware

STOCK = "scrapy.downloadermiddlewares.cookies.CookiesMiddleware"


class Cookies:
    """Stands in Scrapy's place in DOWNLOADER_MIDDLEWARES_BASE."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> CookiesMiddleware:
        """Scrapy's own; NotConfigured where it is off, or where the user's DOWNLOADER_MIDDLEWARES have it."""
        settings = crawler.settings
        if not settings.getbool("COOKIES_ENABLED") or STOCK in settings.getdict("DOWNLOADER_MIDDLEWARES"):
            raise NotConfigured
        from scrapy.downloadermiddlewares.cookies import CookiesMiddleware

        return CookiesMiddleware.from_crawler(crawler)
