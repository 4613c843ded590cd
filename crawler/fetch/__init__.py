"""HTTP over libcurl, as Scrapy's download handler. Knows no crawl."""
