"""WARC files: written while a crawl runs, read back, and processed again."""
