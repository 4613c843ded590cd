"""Which Lowtide this is."""

from __future__ import annotations


def version() -> str:
    """The installed version, as in `0.1.0`; `unknown` where the code is used without being installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("lowtide")
    except PackageNotFoundError:
        return "unknown"
