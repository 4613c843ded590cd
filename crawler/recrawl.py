"""The name under which other programs import the model of changing pages; it lives in crawler.recheck."""

from crawler.recheck import NAMES, Mode, RecrawlError, get
from crawler.recheck.core import Recrawl

__all__ = ["NAMES", "Mode", "Recrawl", "RecrawlError", "get"]
