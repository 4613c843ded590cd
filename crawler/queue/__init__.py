"""Which site, and who holds it: the site queue in Redis, its jobs, the results stream, connections."""
