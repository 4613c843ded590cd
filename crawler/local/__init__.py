"""One machine: the bundled server, the coordinator of a crawl, several agents, their start and end."""
