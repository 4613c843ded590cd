"""A proxy that wants another password: its sites wait, none is finished, and the next run gets all of their pages."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.crawling import Place
from tests.servers import eventually
from tests.small_site import Reply, SmallSite, links

pytestmark = pytest.mark.timeout(120)

PAGES = ["/", "/a", "/b", "/c"]
SITES = [f"http://127.0.4.{number}" for number in (1, 2)]


class Proxy(SmallSite):
    """Gives the pages of every site to those who have the password, and after `refuses` requests to nobody."""

    refuses = 1_000

    def _reply(self, path: str, name: str) -> Reply:
        login = "Basic " + b64encode(b"me:right").decode()
        if self.log[-1].fields.get("Proxy-Authorization") != login or len(self.log) > self.refuses:
            return Reply(407, {"Proxy-Authenticate": "Basic realm=x"}, "no")
        path = urlsplit(path).path
        return Reply(404) if path not in PAGES else links(*PAGES, path + "#")

    def with_password(self, password: str) -> str:
        return f"http://me:{password}@{self.host}:{self.port}"


def goes_on(place: Place, proxy: str) -> None:
    """The next run, as soon as the sites are due."""
    place.run("site", "resume", *SITES).succeeded()
    place.crawl([], env={"http_proxy": proxy}).succeeded()


@pytest.mark.parametrize("refuses", [0, 5])
def test_a_wrong_password_finishes_no_site(tmp_path: Path, refuses: int) -> None:
    """From the beginning, and where it is changed on the way."""
    with Proxy({}) as proxy, Place(tmp_path) as place:
        proxy.refuses = refuses or 1_000
        first = proxy.with_password("right" if refuses else "wrong")
        run = place.crawl(SITES, env={"http_proxy": first})
        (run.succeeded if refuses else run.stored_nothing)()
        assert (
            f"the proxy http://{proxy.host}:{proxy.port} answered 407; expected its user and password"
            in run.err
        )
        assert "SITE_OVERRIDES" in run.err
        assert " answered 407; expected its user and password in http_proxy" in run.out
        assert place.queue().get("finished", 0) == 0
        assert place.rows("select 1 from pages where outcome not in ('stored', 'duplicate')") == []
        proxy.refuses = 1_000
        goes_on(place, proxy.with_password("right"))
        assert place.queue().get("finished", 0) == len(SITES)
        assert place.stored() == {site: {site + path for path in PAGES} for site in SITES}


def test_an_https_site_waits_too_however_often_it_is_refused(tmp_path: Path) -> None:
    site = "https://127.0.4.3"
    with Proxy({}) as proxy, Place(tmp_path) as place:
        given = {"env": {"https_proxy": proxy.with_password("wrong")}, "MAX_TRIES": 1}
        place.crawl([site], **given).stored_nothing()
        for times in range(2, 4):
            place.run("site", "resume", site).succeeded()
            place.crawl([], **given).stored_nothing()
            eventually(lambda times=times: len(proxy.log) >= times, "the proxy was asked again")
        assert place.queue().get("finished", 0) == 0
        assert place.rows("select 1 from pages") == []
        assert {asked.method for asked in proxy.log} == {"CONNECT"}
