"""A local web that tests, demo and benchmarks crawl; it misbehaves on purpose, and it is the judge.

Hides the server process, its port and its log. `Farm` starts it and tells the truth about it: what a right
crawl must find, and what was asked of it. A farm that does not start raises RuntimeError with its last words.
"""

from .farm import Farm, Hit
from .plan import KINDS, NAMES, Plan
from .site import Web
from .truth import FORBIDDEN, STORED, Declared

__all__ = ["FORBIDDEN", "KINDS", "NAMES", "STORED", "Declared", "Farm", "Hit", "Plan", "Web"]
