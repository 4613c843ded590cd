"""Crawls on one machine: server, coordinator, several agents."""
