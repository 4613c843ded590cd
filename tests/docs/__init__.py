"""Pages of the docs, done as they say: commands, scripts, machines of a cluster."""
