"""One agent: leased sites, their frontiers, robots rules, downloads, and the way of a finished page out."""
