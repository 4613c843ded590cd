"""Links, text, language, keywords, sitemaps and traps of a page. Pure functions."""
