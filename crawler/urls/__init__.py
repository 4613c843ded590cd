"""URL parsing, canonical names of pages, seeds and scope. Pure."""
