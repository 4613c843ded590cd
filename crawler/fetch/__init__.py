"""HTTP download handler on libcurl. Independent of the crawl's logic."""
