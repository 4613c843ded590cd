"""The settings as typed values; defaults and reasons are in settings/base.py.

`read` raises OptionError with the setting, its value and what is expected; `read_checked` also for misspelt
names.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints
from urllib.parse import quote, urlsplit

import msgspec
from scrapy.settings import SETTINGS_PRIORITIES, default_settings

from crawler.records import WORKS, Work

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

ENVIRONMENT_PREFIX = "LOWTIDE_"
# Settings as JSON for child processes, with priority over all others there (crawler/local/start.py). Unlike a
# command line, an environment can be read by its user only.
HANDED_ON = "LOWTIDE_HANDED_ON"
# Variables with our prefix that are not settings: kill points of drills, and whether tests may be skipped.
NOT_SETTINGS = frozenset({"HANDED_ON", "KILL_POINT", "TESTS_REQUIRE"})

AtLeast0 = Annotated[int, msgspec.Meta(ge=0)]
AtLeast1 = Annotated[int, msgspec.Meta(ge=1)]
# Fifty years: due times stay before HELD_UP_MS (2096), the time of held sites in the queue, and have a valid date.
LONGEST_DAYS = 18_250.0
LONGEST_SECONDS = LONGEST_DAYS * 86_400.0
Seconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_SECONDS)]
SomeSeconds = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_SECONDS)]
Days = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_DAYS)]
AboveZero = Annotated[float, msgspec.Meta(gt=0)]


class OptionError(ValueError):
    """The text is for the user."""


class SiteOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a single site."""

    headers: dict[str, str] = {}
    cookies: dict[str, str] | None = None  # None: no cookies; {}: keep cookies that the site sets
    delay_seconds: Seconds | None = None  # None: DOWNLOAD_DELAY
    connections: AtLeast1 = 1
    proxy: str = ""

    def delay_or(self, usual: float) -> float:
        """The site's delay in seconds, `usual` if it has none."""
        return usual if self.delay_seconds is None else self.delay_seconds


# The value of RECRAWL_MODE that fetches every page at the same interval.
PLAIN = "interval"
# Share of RECHECK_INTERVAL_SECONDS until a new site's pages are first considered.
FIRST_LOOK_SHARE = 0.02


class Options(msgspec.Struct, frozen=True, rename=str.upper):
    """All settings; settings/base.py documents them."""

    var_dir: Annotated[str, msgspec.Meta(min_length=1)]
    redis_url: str
    database_url: str
    key_prefix: str
    start_urls_key: str
    site_scheduler: str
    site_scheduler_options: dict[str, Any]
    site_slots: AtLeast1
    site_queue_size: AtLeast1
    sites_per_address: AtLeast1
    shared_address_after: AtLeast1
    sites_per_shared_address: AtLeast1
    find_aliases: bool
    hour_seconds: SomeSeconds
    lease_seconds: Annotated[float, msgspec.Meta(ge=1, le=LONGEST_SECONDS)]
    when_idle: Literal["stop", "wait"]
    walk_again: bool
    with_works: str
    work_slots: dict[Work, AtLeast1]
    scope: Literal["seeds", "host", "domain", "any"]
    scope_include: str
    scope_exclude: str
    max_sites: AtLeast0
    max_pages_per_site: AtLeast0
    max_depth: AtLeast0
    max_links_per_page: AtLeast1
    max_html_bytes: AtLeast1
    sitemaps: Literal["off", "named", "tried"]
    sitemap_max_bytes: AtLeast1
    trap_pages: AtLeast0
    site_requests_per_day: AtLeast0
    site_bytes_per_day: AtLeast0
    download_delay: Seconds
    download_timeout: Seconds
    site_overrides: dict[str, SiteOverride]
    max_tries: AtLeast1
    retry_delay_seconds: Seconds
    site_probe_seconds: SomeSeconds
    max_crawl_delay_seconds: Seconds
    recheck_interval_seconds: Seconds
    recheck_method: Literal["get", "head"]
    recrawl_mode: str
    recheck_requests_per_hour: AtLeast0
    recheck_bytes_per_hour: AtLeast0
    recheck_longest_seconds: SomeSeconds
    revive_first_seconds: SomeSeconds
    revive_second_seconds: SomeSeconds
    robots_max_bytes: AtLeast1
    robots_lifetime_seconds: SomeSeconds
    connect_timeout_seconds: SomeSeconds
    head_timeout_seconds: SomeSeconds
    body_timeout_seconds: SomeSeconds
    adaptive_timeouts: bool
    least_connect_seconds: SomeSeconds
    least_head_seconds: SomeSeconds
    least_body_seconds: SomeSeconds
    timeout_probe_share: Annotated[float, msgspec.Meta(ge=0, le=1)]
    max_header_bytes: AtLeast1
    max_header_fields: AtLeast1
    http2_enabled: bool
    allow_private_addresses: str
    flush_seconds: SomeSeconds
    flush_records: AtLeast1
    spool_records: AtLeast1
    stream_max_records: AtLeast1
    batch_seconds: SomeSeconds
    batch_records: AtLeast1
    fetches_days: Days
    visits_days: Days
    checks_days: Days
    health_days: Days
    status_interval_seconds: SomeSeconds
    status_by_traffic: bool
    status_tries: AtLeast1
    status_delay_seconds: SomeSeconds
    status_error_patterns: str
    status_depth: AtLeast0
    status_links: AtLeast0
    status_slots: AtLeast1
    status_slow_slots: AtLeast1
    status_damping_seconds: Seconds
    status_command: str
    status_webhook: str
    status_hook_timeout_seconds: SomeSeconds
    page_pipelines: dict[str, int | None]
    language_enabled: bool
    keywords_per_page: AtLeast0
    archive_content_types: str
    archive_file_bytes: AtLeast1
    archive_file_seconds: SomeSeconds
    archive_buffer_bytes: AtLeast1
    listen_address: str
    listen_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    listen_allow: str
    listen_acknowledge: Literal["never", "stream", "disk"]
    listen_several: bool
    listen_utc_offset: str
    listen_connections: AtLeast1
    listen_packet_bytes: Annotated[int, msgspec.Meta(ge=64, le=1_000_000)]
    listen_seconds: SomeSeconds
    listen_spool_bytes: AtLeast1
    convert_processes: AtLeast0
    domain_private_suffixes: bool
    community_resolution: AboveZero
    rank_mode: str
    rank_block: Literal["site", "domain", "community"]
    rank_damping: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    live_view: bool
    dashboard_address: str
    dashboard_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    dashboard_password: str
    national_domain: Annotated[str, msgspec.Meta(min_length=2)]
    domestic_networks: str
    resolve_domains: bool

    @property
    def var(self) -> Path:
        """VAR_DIR as an absolute path."""
        return Path(self.var_dir).expanduser().absolute()

    @property
    def database(self) -> str:
        """The database's URL; SQLite in VAR_DIR if DATABASE_URL is empty."""
        return self.database_url or f"sqlite:///{quote(str(self.var / 'crawl.db'))}"

    @property
    def revive_delays(self) -> tuple[float, float]:
        """Seconds before revive's first and second retry."""
        return self.revive_first_seconds, self.revive_second_seconds

    @property
    def recheck_chooses(self) -> bool:
        """Whether recheck chooses pages by value."""
        return self.recrawl_mode != PLAIN and self.recheck_interval_seconds > 0

    @property
    def first_recheck_seconds(self) -> float:
        """Seconds from a page's load to its site's first recheck; 0: never."""
        return self.recheck_interval_seconds * (FIRST_LOOK_SHARE if self.recheck_chooses else 1.0)

    @property
    def archive_folder(self) -> Path:
        """The archive folder of this machine."""
        return self.var / "archive"

    @property
    def archive_types(self) -> tuple[str, ...]:
        """The patterns of ARCHIVE_CONTENT_TYPES; empty: no archive."""
        return tuple(word.strip().lower() for word in self.archive_content_types.split(",") if word.strip())

    @property
    def works(self) -> tuple[Work, ...]:
        """The jobs of WITH_WORKS. Raises OptionError for an unknown one."""
        named = tuple(word.strip() for word in self.with_works.split(",") if word.strip())
        unknown = [word for word in named if word not in WORKS]
        if unknown:
            raise OptionError(f"WITH_WORKS names {unknown[0]!r}; expected some of {', '.join(WORKS)}")
        if "status" in self.work_slots:
            raise OptionError(
                "WORK_SLOTS has 'status', which has slots of its own; expected STATUS_SLOTS for it"
            )
        return named  # type: ignore[return-value]

    @property
    def error_pages(self) -> tuple[re.Pattern[str], ...]:
        """STATUS_ERROR_PATTERNS, compiled. Raises OptionError for an invalid one."""
        lines = [line.strip() for line in self.status_error_patterns.splitlines()]
        try:
            return tuple(re.compile(line) for line in lines if line)
        except re.error as error:
            raise OptionError(
                f"STATUS_ERROR_PATTERNS has {error.pattern!r}: {error}; expected regular expressions, one per line"
            ) from None

    @property
    def status_command_words(self) -> list[str]:
        """Raises OptionError for unmatched quotes."""
        try:
            return shlex.split(self.status_command)
        except ValueError as error:
            raise OptionError(
                f"STATUS_COMMAND is {self.status_command!r}: {error}; expected a command line as in a shell"
            ) from None

    @property
    def webhook(self) -> str:
        """STATUS_WEBHOOK. Raises OptionError for an unusable address."""
        if self.status_webhook and not _is_web_address(self.status_webhook):
            raise OptionError(
                f"STATUS_WEBHOOK is {without_password(self.status_webhook)!r}; expected an address, as "
                "https://example.org/hook, in ASCII (spaces as %20) and without user or password, or empty"
            )
        return self.status_webhook


# Settings that are mappings; JSON if given as text.
MAPPINGS = frozenset({"SITE_OVERRIDES", "SITE_SCHEDULER_OPTIONS", "WORK_SLOTS"})
NAMES: frozenset[str] = frozenset(field.encode_name for field in msgspec.structs.fields(Options))
# No other setting has fields of its own.
_OVERRIDE_FIELDS = ", ".join(field.encode_name for field in msgspec.structs.fields(SiteOverride))
# Characters allowed in a request line.
_PRINTED = re.compile("[!-~]+")
_FIELD = re.compile(r"\$\.(\w+)")
_PLAIN_WORDS = (
    ("int", "a whole number"),
    ("float", "a number"),
    ("bool", "True or False"),
    ("object", "a mapping"),
)


def read(settings: BaseSettings) -> Options:
    """Raises OptionError for an unusable value."""
    raw = {name: _raw(settings, name) for name in NAMES}
    try:
        options = msgspec.convert(raw, Options, strict=False)
    except msgspec.ValidationError as error:
        raise _explain(error, settings) from None
    _ = options.works, options.error_pages, options.status_command_words, options.webhook
    return options


# Settings of scrapy-redis and plug-ins that are not in Scrapy's defaults.
_FOREIGN = frozenset(
    {
        "REDIS_HOST", "REDIS_PORT", "REDIS_DB", "REDIS_PARAMS", "REDIS_ENCODING", "REDIS_DECODE_RESPONSES",
        "REDIS_START_URLS_KEY", "REDIS_ITEMS_KEY", "REDIS_ITEMS_SERIALIZER",
    }
)  # fmt: skip


def read_checked(settings: BaseSettings) -> Options:
    """As `read`. Raises OptionError for misspelt names too."""
    given = [name for name in settings if (settings.getpriority(name) or 0) >= SETTINGS_PRIORITIES["project"]]
    check_names(given, _FOREIGN.union(filter(str.isupper, dir(default_settings))))
    return read(settings)


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Raises OptionError if an unknown name resembles a setting."""
    known = set(known)
    for name in names:
        if name in NAMES or name in known:
            continue
        near = nearest(name, NAMES, cutoff=0.82)
        if near:
            raise OptionError(f"unknown setting {name}; did you mean {near}?")


def from_environment(environment: dict[str, str], known: Iterable[str]) -> dict[str, str]:
    """Settings from variables LOWTIDE_NAME. Raises OptionError for an unknown name."""
    given = {
        key.removeprefix(ENVIRONMENT_PREFIX): value
        for key, value in environment.items()
        if key.startswith(ENVIRONMENT_PREFIX) and key.removeprefix(ENVIRONMENT_PREFIX) not in NOT_SETTINGS
    }
    known = set(known) | NAMES
    for name in given:
        if name not in known:
            near = nearest(name, known)
            hint = f"; did you mean {ENVIRONMENT_PREFIX}{near}?" if near else ""
            raise OptionError(f"unknown setting {ENVIRONMENT_PREFIX}{name} in the environment{hint}")
    return given


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The most similar known name; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)), None)


def _raw(settings: BaseSettings, name: str) -> Any:
    if name not in settings:
        raise OptionError(
            f"{name} is missing: this project's settings start with `from settings.base import *`"
        )
    value = settings[name]
    if name == "PAGE_PIPELINES":
        return dict(settings.getwithbase(name)) if hasattr(settings, "getwithbase") else dict(value)
    if name in MAPPINGS and isinstance(value, str):
        with suppress(json.JSONDecodeError):
            return json.loads(value or "{}", object_pairs_hook=partial(_each_once, name))
    return value


def _each_once(name: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises OptionError for a duplicate key."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise OptionError(f"{name} has {twice!r} twice; expected each key once")
    return found


def without_password(url: str) -> str:
    """The address without its password, for messages."""
    url = re.sub(r"([?&](?:ssl_)?password=)[^&#]*", r"\1***", url)
    if "@" not in url:
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://***@{rest.rpartition('@')[2]}"


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname) and parts.port != 0 and "@" not in parts.netloc
        return parts.scheme in ("http", "https") and named and _PRINTED.fullmatch(text) is not None
    except ValueError:  # unmatched brackets or an invalid port
        return False


def _explain(error: msgspec.ValidationError, settings: BaseSettings) -> OptionError:
    """Msgspec's error as an OptionError."""
    text = str(error)
    found = _FIELD.search(text)
    name = found.group(1) if found else "a setting"
    text, _, place = text.replace("`", "").partition(" - at ")
    inner = place.removeprefix(f"$.{name}").removeprefix("[...]").removeprefix(".")
    wanted = text.removeprefix("Expected ").split(", got")[0]
    wanted = re.sub("Object contains unknown field (.*)", rf"some of {_OVERRIDE_FIELDS}, and no \1", wanted)
    for word, plain in _PLAIN_WORDS:
        wanted = re.sub(rf"\b{word}\b", plain, wanted)
    if wanted.startswith("Invalid enum value"):
        wanted, inner = _choices(name), ""
    return OptionError(f"{name} is {settings[name]!r}; expected {wanted}{f' in {inner}' if inner else ''}")


def _choices(name: str) -> str:
    """The allowed values, or keys of a mapping."""
    if name == "WORK_SLOTS":
        return f"some of {', '.join(work for work in WORKS if work != 'status')}"
    return f"one of {', '.join(get_args(get_type_hints(Options)[name.lower()]))}"
