"""Views of a crawl: figures, pictures, terminal, dashboard. Read-only."""
