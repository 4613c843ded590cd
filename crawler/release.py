"""Lowtide's version."""

from __future__ import annotations


def version() -> str:
    """As `0.1.0`; `unknown` if not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("lowtide")
    except PackageNotFoundError:
        return "unknown"
