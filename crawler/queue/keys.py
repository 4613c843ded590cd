"""Every key of the site queue in Redis: name, type, content, and a command that shows it.

docs/redis-keys.md has this table (`make docs` writes it). tests/test_redis_keys.py checks that the Lua script and the
methods of this room use these keys only.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple


class Key(NamedTuple):
    """One kind of key. SITE, NAME, WORK, PLACE, N and XXXX in `name` stand for values."""

    name: str  # below `KEY_PREFIX:{0}:`
    type: str  # in words: string, hash, list, set, sorted set or stream
    content: str
    look: str  # Markdown: the command that shows one

    @property
    def row(self) -> str:
        """Its row in the page's table."""
        return f"| `{self.name}` | {self.type} | {self.content} | {self.look} |"


KEYS = (
    Key(
        "lt:{0}:crawl",
        "string",
        "the spider of this prefix",
        "`get 'lt:{0}:crawl'`",
    ),
    Key(
        "lt:{0}:count",
        "hash",
        "number of sites waiting, suspended, leased, later, paused, finished, alias, blocked, and `added`"
        " in total; the last token and lock, the last planned hour, and `every:WORK` if all sites have "
        "due times for a job",
        "`hgetall 'lt:{0}:count'`",
    ),
    Key(
        "lt:{0}:sites:XXXX",
        "hash",
        "site -> `state address [done/known/hash] [token agent work]` (see below)",
        "`hget 'lt:{0}:sites:XXXX' SITE`",
    ),
    Key(
        "lt:{0}:fresh",
        "list",
        "new sites, first in first out",
        "`lrange 'lt:{0}:fresh' 0 9`",
    ),
    Key(
        "lt:{0}:again:WORK",
        "list",
        "returned, resumed and due sites; leased first",
        "`lrange 'lt:{0}:again:site' 0 9`",
    ),
    Key(
        "lt:{0}:hour:N",
        "list",
        "the plan of an hour (hours since 1970), best site first",
        "`lrange 'lt:{0}:hour:498615' 0 9`",
    ),
    Key(
        "lt:{0}:probe:N",
        "list",
        "sites to probe with a few pages in an hour, to learn their load",
        "`lrange 'lt:{0}:probe:498615' 0 9`",
    ),
    Key(
        "lt:{0}:suspended",
        "set",
        "unfinished sites without a lease; leased when all lists are empty",
        "`scard 'lt:{0}:suspended'`",
    ),
    Key(
        "lt:{0}:wake:WORK",
        "sorted set",
        "sites by due time; a site in `wake:site` is not requested before its time",
        "`zrange 'lt:{0}:wake:site' 0 9 withscores`",
    ),
    Key(
        "lt:{0}:behind",
        "hash",
        "leased site -> jobs that wait for it, each with the time of its next try; they become due when "
        "the lease ends",
        "`hgetall 'lt:{0}:behind'`",
    ),
    Key(
        "lt:{0}:spent:N",
        "hash",
        "`requests SITE`, `bytes SITE` -> usage of a site with a daily limit on a day (days since 1970); "
        "kept for two days",
        "`hgetall 'lt:{0}:spent:20776'`",
    ),
    Key(
        "lt:{0}:parked",
        "set",
        "the sites in the lists `park:PLACE`; a few may no longer wait",
        "`scard 'lt:{0}:parked'`",
    ),
    Key(
        "lt:{0}:park:PLACE",
        "list",
        "sites that wait for a slot on that address, or on that host (`//host`)",
        "`lrange 'lt:{0}:park:192.0.2.1' 0 9`",
    ),
    Key(
        "lt:{0}:busy",
        "hash",
        "address or `//host` -> number of leases",
        "`hgetall 'lt:{0}:busy'`",
    ),
    Key(
        "lt:{0}:crowd",
        "hash",
        "address or `//host` -> the highest number of sites that waited for it at the same time: a high "
        "number means a shared front end",
        "`hgetall 'lt:{0}:crowd'`",
    ),
    Key(
        "lt:{0}:checkpoint:SITE",
        "list",
        "the site's journal: packed, the first entry is complete",
        "`llen 'lt:{0}:checkpoint:https://example.org'`",
    ),
    Key(
        "lt:{0}:paths:SITE",
        "list",
        "paths from outside the site (seeds, links and redirects of other sites) that are not in its "
        "checkpoint yet; an entry is one path per line, and its first line may be their depth and number "
        "of redirects",
        "`lrange 'lt:{0}:paths:https://example.org' 0 9`",
    ),
    Key(
        "lt:{0}:visit:SITE",
        "hash",
        "job -> the request batch for the next lease of that job (packed); deleted with the lease",
        "`hkeys 'lt:{0}:visit:https://example.org'`",
    ),
    Key(
        "lt:{0}:offered:SITE",
        "list",
        "the same for a finished site, until a coordinator has compared them with the tables: known paths"
        " are dropped; new ones reopen the site, or are left out if it has reached its page limit",
        "`lrange 'lt:{0}:offered:https://example.org' 0 9`",
    ),
    Key(
        "lt:{0}:undecided",
        "sorted set",
        "sites with a pending decision of a coordinator (paths offered to a finished site, or the site is"
        " in `reopen`), by start time",
        "`zrange 'lt:{0}:undecided' 0 9 withscores`",
    ),
    Key(
        "lt:{0}:reopen",
        "hash",
        "site -> how often recheck or revive returned pages of it to the crawl; takes effect when the "
        "site is finished",
        "`hlen 'lt:{0}:reopen'`",
    ),
    Key(
        "lt:{0}:owed",
        "hash",
        "site -> rows that the tables lost and must have again: since when, number of rows, hash of their"
        " URLs, number of lost rows, and hash of the lost ones (`-`: unknown)",
        "`hgetall 'lt:{0}:owed'`",
    ),
    Key(
        "lt:{0}:rootless",
        "set",
        "sites that started with other pages than their root",
        "`scard 'lt:{0}:rootless'`",
    ),
    Key(
        "lt:{0}:moved:SITE",
        "hash",
        "where seeds of the site redirect to: URLs of other sites, each with its path",
        "`hgetall 'lt:{0}:moved:http://example.org'`",
    ),
    Key(
        "lt:{0}:opener",
        "string",
        "the coordinator that decides about finished sites, and its fencing number; expires after 10 s",
        "`get 'lt:{0}:opener'`",
    ),
    Key(
        "lt:{0}:recrawl",
        "hash",
        "recheck's budget: the price of a second, the mean change rate, the balance",
        "`hgetall 'lt:{0}:recrawl'`",
    ),
    Key(
        "lt:{0}:budget",
        "hash",
        "site -> pages, set by `scrapy site budget`",
        "`hgetall 'lt:{0}:budget'`",
    ),
    Key(
        "lt:{0}:why",
        "hash",
        "site -> the reason of a pause, block or delay, or the site that it is an alias of",
        "`hget 'lt:{0}:why' https://example.org`",
    ),
    Key(
        "lt:{0}:alias:XXXX",
        "hash",
        "address, port, checksums of robots.txt and of a root page -> the first site with these; XXXX: "
        "first four digits of their SHA-1",
        "`keys 'lt:{0}:alias:*'`, then `hgetall`",
    ),
    Key(
        "lt:{0}:suspected",
        "hash",
        "site -> result for a possible alias (`open`: its pages are to be compared, `same`, `no`), the "
        "other site, the time from which pages count, the time before which it must not be requested, and"
        " the time until which it waits to be compared",
        "`hgetall 'lt:{0}:suspected'`",
    ),
    Key(
        "lt:{0}:suspects",
        "sorted set",
        "possible aliases that a coordinator has to compare, by the time since when the comparison is due",
        "`zrange 'lt:{0}:suspects' 0 9 withscores`",
    ),
    Key(
        "lt:{0}:namesakes:SITE",
        "set",
        "sites that are, or may be, this one under a second name",
        "`smembers 'lt:{0}:namesakes:https://example.org'`",
    ),
    Key(
        "lt:{0}:agents",
        "sorted set",
        "sessions by expiry time; 0: expired, its sites are being released",
        "`zrange 'lt:{0}:agents' 0 -1 withscores`",
    ),
    Key(
        "lt:{0}:renewed",
        "string",
        "the last renewal of any session: after a long silence no session is expired at once",
        "`get 'lt:{0}:renewed'`",
    ),
    Key(
        "lt:{0}:agent:NAME",
        "hash",
        "`about`: host, process, spider, slots, policy; when it joined, how many pages it has fetched, "
        "how often it offered links to other sites",
        "`hgetall 'lt:{0}:agent:NAME'`",
    ),
    Key(
        "lt:{0}:held:NAME",
        "hash",
        "site -> token, number of the last delivery, minimum delay between requests, time before which it"
        " must not be requested, done/known/hash of its URLs",
        "`hgetall 'lt:{0}:held:NAME'`",
    ),
    Key(
        "lt:{0}:stop:NAME",
        "set",
        "sites that this agent has to release",
        "`smembers 'lt:{0}:stop:NAME'`",
    ),
    Key(
        "lt:{0}:suspend:NAME",
        "set",
        "sites that this agent has to suspend for the plan",
        "`smembers 'lt:{0}:suspend:NAME'`",
    ),
    Key(
        "lt:{0}:given:NAME",
        "set",
        "sites of this agent that received paths since its last renewal",
        "`smembers 'lt:{0}:given:NAME'`",
    ),
    Key(
        "lt:{0}:hungry",
        "hash",
        "agent -> time of its last unsuccessful lease request, and the number of missing sites",
        "`hgetall 'lt:{0}:hungry'`",
    ),
    Key(
        "lt:{0}:permits",
        "hash",
        "site -> its robots.txt for status checks: expiry (s), delay (s), name, paths that may be requested",
        "`hgetall 'lt:{0}:permits'`",
    ),
    Key(
        "lt:{0}:hooks",
        "string",
        "the coordinator that sends notifications of status changes",
        "`get 'lt:{0}:hooks'`",
    ),
    Key(
        "lt:{0}:planner",
        "string",
        "the planner of the hours, and its fencing number; expires after 5 s",
        "`get 'lt:{0}:planner'`",
    ),
    Key(
        "lt:{0}:coordinator:NAME",
        "string",
        "heartbeat of a coordinator: JSON, expires after 15 s",
        "`keys 'lt:{0}:coordinator:*'`, then `get`",
    ),
    Key(
        "lt:{0}:coordinated",
        "string",
        "the coordinator that sent the last heartbeat; expires after 15 s, when none is alive",
        "`get 'lt:{0}:coordinated'`",
    ),
    Key(
        "lt:{0}:thinning",
        "string",
        "the coordinator that deletes old rows of the histories (`FETCHES_DAYS`, `VISITS_DAYS`, "
        "`CHECKS_DAYS`), or `done` until the next time",
        "`get 'lt:{0}:thinning'`",
    ),
    Key(
        "lt:{0}:tables",
        "hash",
        "the coordinators' last count: sites that the queue knew (`added`), unfinished sites of the "
        "tables that it lacks (`lost`), when (`at`), and after which reset (`counted_with`). `reset`: "
        "time of the last reset of the queue; sites found before do not count as lost",
        "`hgetall 'lt:{0}:tables'`",
    ),
    Key(
        "lt:{0}:results",
        "stream",
        "results and commands that are not stored yet; group `coordinators`",
        "`xinfo groups 'lt:{0}:results'`",
    ),
    Key(
        "lt:{0}:scope",
        "set",
        "what the seeds added to the scope",
        "`smembers 'lt:{0}:scope'`",
    ),
    Key(
        "site:start_urls",
        "list, set or sorted set",
        "start URLs (`START_URLS_KEY`)",
        "`lrange site:start_urls 0 9`",
    ),
)


def page_with_table(page: str) -> str:
    """The page with the rows of its table replaced by those of KEYS."""
    lines = page.splitlines()
    places = [place for place, line in enumerate(lines) if line.startswith("| `")]
    first, last = places[0], places[-1]
    return "\n".join([*lines[:first], *(key.row for key in KEYS), *lines[last + 1 :], ""])


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(page_with_table(file.read_text(encoding="utf-8")), encoding="utf-8")
