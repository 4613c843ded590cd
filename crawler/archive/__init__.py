"""Writes, reads and reprocesses WARC files."""
