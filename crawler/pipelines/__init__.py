"""What happens to a page between download and results stream: one file per step, ordered by PAGE_PIPELINES.

The contract of a step is crawler.agent.page.PagePipeline. These are not Scrapy's item pipelines: those stay the
user's own, for the items that `parse` yields.
"""
