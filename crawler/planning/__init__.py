"""Plans at which hour each site is crawled, from sites' measured and imported loads."""
