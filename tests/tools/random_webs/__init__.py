"""Random webs with a truth of their own: what must be asked, what never, what each row of `pages` must say.

    python -m tests.tools.random_webs [--webs 100] [--kills 20] [--first 0]

`model` is a web and the walk that says what a crawl of it must find; it reads no HTML and knows nothing of the crawler.
`html` writes pages, their links in all the ways in which real sites write them. `features` are what real sites do.
`judging` crawls a web with `scrapy crawl` and compares the servers' logs and the tables with the truth.
"""
