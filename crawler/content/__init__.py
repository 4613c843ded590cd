"""What a page says: links, text, language, keywords, sitemaps, traps. Pure functions."""
