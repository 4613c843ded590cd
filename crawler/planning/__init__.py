"""At which hour a site is crawled: what is known of sites' load, and the plan for the hour."""
