"""What keeps tables from being converted, in one line for the person."""

from __future__ import annotations


class ConvertError(Exception):
    """The tables cannot be converted as they are, or not to this place."""
