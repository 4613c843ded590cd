"""What an agent does with the sites it leases. A spider of yours subclasses SiteSpider and writes `parse`."""
