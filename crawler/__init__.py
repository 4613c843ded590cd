"""Lowtide's crawler: from seeds to tables. docs/architecture.md follows one site and one page through it."""
