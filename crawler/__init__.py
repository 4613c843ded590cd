"""The crawler, from seeds to tables. See docs/architecture.md."""
