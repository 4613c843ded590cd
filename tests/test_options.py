"""Settings as typed values: every one is read, every wrong one is told by name, with what came and what is wanted."""

from __future__ import annotations

import re
from typing import Any, get_type_hints

import pytest
from scrapy import Request
from scrapy.extensions.httpcache import DummyPolicy
from scrapy.http import Response
from scrapy.settings import Settings, default_settings

from crawler import options
from crawler.options import NAMES, OptionError, Options
from tests.crawling import Place
from tests.small_site import SmallSite, links


def read(**given: Any) -> Options:
    settings = Settings()
    settings.setmodule("settings.base")
    settings.update(given, priority="cmdline")
    return options.read(settings)


def test_the_defaults_are_fine() -> None:
    found = read()
    assert found.site_slots >= 1
    assert found.works == ()
    assert found.database == f"sqlite:///{found.var}/crawl.db"
    assert found.var.is_absolute()


def test_texts_of_a_command_line_become_values() -> None:
    found = read(
        SITE_SLOTS="7", LEASE_SECONDS="2.5", WALK_AGAIN="true", WITH_WORKS=" recheck, revive ", MAX_SITES="0"
    )
    assert (found.site_slots, found.lease_seconds, found.walk_again, found.max_sites) == (7, 2.5, True, 0)
    assert found.works == ("recheck", "revive")
    assert read(DATABASE_URL="postgresql://h/d").database == "postgresql://h/d"


def wrong_value(name: str) -> Any:
    """A value that no setting of this kind takes."""
    kind = get_type_hints(Options)[name.lower()]
    return None if kind is str else {"a": "b"} if name == "PAGE_PIPELINES" else "perhaps"


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_wrong_value_is_told_by_name(name: str) -> None:
    value = wrong_value(name)
    with pytest.raises(OptionError) as caught:
        read(**{name: value})
    said = str(caught.value)
    assert re.match(rf"{name} is ", said), said
    assert "expected" in said
    assert name == "PAGE_PIPELINES" or repr(value) in said


NO_WEBHOOKS = (
    "notaurl",
    "http://",
    "https:///told",
    "http://host/a b",
    "http://host/ä",
    "http://host/a\tb",
    "ftp://host/",
    "http://[::1",
    "http://host:x/",
)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("SITE_SLOTS", "0", ">= 1"),
        ("SITE_SLOTS", "4.5", "a whole number"),
        ("MAX_SITES", "-1", ">= 0"),
        ("HOUR_SECONDS", "0", "> 0"),
        ("LEASE_SECONDS", "0.5", ">= 1"),
        ("HOUR_SECONDS", "nan", "> 0"),
        ("RECHECK_INTERVAL_SECONDS", "1e300", "a number <= 1576800000.0"),
        ("HEALTH_DAYS", "18251", "a number <= 18250.0"),
        ("SCOPE", "planet", "one of seeds, host, domain, any"),
        ("WHEN_IDLE", "", "one of stop, wait"),
        ("WALK_AGAIN", "perhaps", "True or False"),
        ("WORK_SLOTS", '{"nosuch": 3}', "some of site, recheck, revive"),
        ("WORK_SLOTS", '{"site": 0}', ">= 1"),
        (
            "SITE_OVERRIDES",
            '{"x": {"delay": 1}}',
            "some of headers, cookies, delay_seconds, connections, proxy, and no delay",
        ),
        *(("STATUS_WEBHOOK", text, "an address, as https://") for text in NO_WEBHOOKS),
    ],
)
def test_bounds_and_choices_are_told(name: str, value: str, wanted: str) -> None:
    with pytest.raises(OptionError) as caught:
        read(**{name: value})
    assert str(caught.value).startswith(f"{name} is {value!r}; expected")
    assert wanted in str(caught.value)


@pytest.mark.parametrize("address", ["http://me:pa55@host/", "http://me@/", "https://:pa55@host/x"])
def test_a_webhook_with_a_password_is_refused_and_the_password_is_not_told(address: str) -> None:
    with pytest.raises(
        OptionError, match=r"^STATUS_WEBHOOK is 'https?://\*\*\*@.*'; expected an address, as"
    ) as caught:
        read(STATUS_WEBHOOK=address)
    assert "pa55" not in str(caught.value)


TIMES = sorted(name for name in NAMES if re.search("_(SECONDS|DAYS|DELAY|TIMEOUT)$", name))


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", ["inf", "1e300", "1.6e9"])
def test_no_time_is_longer_than_fifty_years(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=f"^{name} is {value!r}; expected a number <= "):
        read(**{name: value})


def test_a_sites_own_delay_is_no_longer_either() -> None:
    with pytest.raises(OptionError, match=r"expected a number <= 1576800000\.0 in delay_seconds"):
        read(SITE_OVERRIDES='{"https://a.example": {"delay_seconds": 1e300}}')


def test_unknown_works_are_told() -> None:
    with pytest.raises(OptionError, match="WITH_WORKS names 'sleep'; expected some of site, recheck"):
        read(WITH_WORKS="recheck,sleep")


def test_settings_that_lack_ours_are_told() -> None:
    with pytest.raises(OptionError, match=r"is missing: .* `from settings.base import \*`"):
        options.read(Settings())


# --- Scrapy's own -----------------------------------------------------------------------------------------


def test_what_a_server_cannot_do_now_is_not_kept_in_the_cache() -> None:
    settings = Settings()
    settings.setmodule("settings.base")
    policy = DummyPolicy(settings)
    request = Request("http://127.0.0.1/")
    statuses = range(200, 600)
    left_out = {
        one for one in statuses if not policy.should_cache_response(Response(request.url, one), request)
    }
    assert left_out == {408, 429, *range(500, 600)}


def test_no_limit_of_a_urls_length_is_no_limit(place: Place) -> None:
    long = f"/{'x' * 3000}"
    with SmallSite({"/": links("/short", long), "*": links()}) as site:
        place.crawl([site.root], URLLENGTH_LIMIT=0).succeeded()
    assert site.pages == {"/": 1, "/short": 1, long: 1}


# --- Names ------------------------------------------------------------------------------------------------

KNOWN = {name for name in dir(default_settings) if name.isupper()}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("SITE_SLOT", "SITE_SLOTS"),
        ("MAX_PAGES_PER_SITES", "MAX_PAGES_PER_SITE"),
        ("DATABASEURL", "DATABASE_URL"),
    ],
)
def test_a_name_like_ours_is_refused(name: str, near: str) -> None:
    with pytest.raises(OptionError, match=f"^unknown setting {name}; did you mean {near}\\?$"):
        options.check_names([name], KNOWN)


@pytest.mark.parametrize("name", ["SITE_SLOTS", "LOG_LEVEL", "MY_OWN_SETTING", "ITEM_PIPELINES"])
def test_ours_scrapys_and_strangers_pass(name: str) -> None:
    options.check_names([name], KNOWN)


def test_the_environment_gives_settings() -> None:
    given = {"LOWTIDE_SITE_SLOTS": "7", "LOWTIDE_LOG_LEVEL": "DEBUG", "HOME": "/", "LOWTIDE_KILL_POINT": "x"}
    assert options.from_environment(given, KNOWN) == {"SITE_SLOTS": "7", "LOG_LEVEL": "DEBUG"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [("LOWTIDE_SITE_SLOT", "; did you mean LOWTIDE_SITE_SLOTS?"), ("LOWTIDE_QQQQQQ", ""), ("LOWTIDE_", "")],
)
def test_the_environment_takes_no_strangers(name: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        options.from_environment({name: "1"}, KNOWN)
    assert str(caught.value) == f"unknown setting {name} in the environment{hint}"
