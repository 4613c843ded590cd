"""URLs as browsers read them, one name for each page, and what belongs to the crawl. Pure."""
