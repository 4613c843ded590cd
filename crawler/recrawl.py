"""Public import path of `crawler.recheck`."""

from crawler.recheck import NAMES, Mode, RecrawlError, get
from crawler.recheck.core import Recrawl

__all__ = ["NAMES", "Mode", "Recrawl", "RecrawlError", "get"]
