"""Spiders of the agent. Subclass SiteSpider and write `parse`."""
