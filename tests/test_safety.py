"""What a crawl must never do: reach into private networks, open files, listen, or trust any certificate.

Each test also shows that the thing would happen if it were allowed, so that a look at nothing cannot pass.
"""

from __future__ import annotations

import os
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crawling import Place, listening, wait_for_hits
from tests.farm import Farm
from tests.raw_server import RawServer, answer, in_loop, page
from tests.servers import eventually
from tests.small_site import Reply, SmallSite


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    with Farm(sites=2, pages=6, names=("one.localhost",), kinds=("schemes",), delay_ms=30) as started:
        yield started


# --- Addresses --------------------------------------------------------------------------------------------


def test_no_byte_reaches_a_private_address(place: Place, farm: Farm) -> None:
    before = len(farm.hits())
    seeds = [farm.site(0), farm.site("one.localhost"), "http://[::1]:9", "http://localhost:9"]
    place.crawl(seeds, ALLOW_PRIVATE_ADDRESSES="").stored_nothing()
    assert farm.hits()[before:] == []
    rows = {
        url: (outcome, status, error)
        for url, outcome, status, error in place.rows("select url, outcome, status, error from pages")
    }
    for seed in seeds:
        outcome, status, error = rows[f"{seed}/"]
        assert (outcome, status) == ("failed", -10), error
        assert "AddressRefusedError" in error


def test_only_the_allowed_networks_are_reached(place: Place, farm: Farm) -> None:
    place.crawl(farm.seeds, ALLOW_PRIVATE_ADDRESSES="127.0.1.2/32").succeeded()
    assert set(place.stored()) == {farm.site(1)}
    refused = place.rows("select url, status from pages where outcome = 'failed'")
    assert refused == [(f"{farm.site(0)}/", -10)]


def test_what_leads_into_a_private_network_ends_there(place: Place, farm: Farm) -> None:
    """A redirect, a meta refresh, links in odd notations, and a robots.txt that lies there."""
    seed = f"{farm.site(0)}/_/redirect-private"
    odd = (
        "http://0x0a.2.3.4/",
        "http://167903237/",
        "http://[::ffff:a02:306]/",
        "http://0251.0376.0251.0376/",
    )
    body = '<meta http-equiv=refresh content="0; url=http://10.2.3.3/">' + "".join(
        f'<a href="{to}">x</a>' for to in odd
    )
    away = Reply(302, {"Location": "http://10.2.3.7/robots.txt"})
    with (
        SmallSite({"/": Reply(fields={"Content-Type": "text/html"}, body=body)}) as leading,
        SmallSite({"/robots.txt": away, "/": Reply(body="never asked for")}, "127.0.1.9") as hiding,
    ):
        contact = "lowtide (+https://lowtide.example/bot)"
        place.crawl([seed, leading.root, hiding.root], SCOPE="any", USER_AGENT=contact).succeeded()
        assert hiding.paths == ["/robots.txt"]
    rows = dict(place.rows("select url, status from pages"))
    assert rows.pop(seed) == 302
    assert rows.pop(leading.root) == 200
    # As browsers read these addresses.
    meant = ("http://10.2.3.4/", "http://10.2.0.5/", "http://[::ffff:a02:306]/", "http://169.254.169.254/")
    assert rows == dict.fromkeys(["http://10.1.2.3/", "http://10.2.3.3/", *meant], -10)


# --- Schemes ----------------------------------------------------------------------------------------------


def test_nothing_but_the_web_is_opened(place: Place, farm: Farm) -> None:
    name = Path("/etc/hostname").read_text().strip() if Path("/etc/hostname").exists() else "root:"
    seeds = [farm.site(0), f"{farm.site(0)}/_/redirect-file"]
    run = place.crawl(
        [*seeds, "file:///etc/hostname", "ftp://127.0.0.1/x"], SCOPE="any", MAX_SITES=1
    ).succeeded()
    assert run.err.count("expected http or https") == 2
    urls = {
        url: (outcome, error) for url, outcome, error in place.rows("select url, outcome, error from pages")
    }
    assert urls
    assert all(url.startswith("http://") for url in urls)
    outcome, error = urls[seeds[1]]
    assert outcome == "failed"
    assert "redirects to 'file:///etc/hostname'" in error
    bodies = place.rows("select title, description from pages")
    assert not any(name in (text or "") for row in bodies for text in row)


# --- Doors ------------------------------------------------------------------------------------------------


def test_no_process_of_a_crawl_listens(place: Place, farm: Farm) -> None:
    run = place.start_crawl(farm.seeds, "--agents", "2", "--when-idle", "wait")
    wait_for_hits(farm, 1)
    eventually(
        lambda: run.err.count("Spider opened") == 2 and place.processes("coordinate"), "all have started"
    )
    processes = place.processes()
    assert len(processes) >= 5  # supervisor, two agents, server, coordinator
    assert {pid: found for pid in processes if (found := listening(pid))} == {}
    assert listening(farm.pid), "a process that does listen is seen"
    run.end().succeeded()


# --- Certificates -----------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> ssl.SSLContext:
    """For `localhost`, signed by nobody."""
    file = tmp_path / "certificate.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
            ),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", file, "-out", file),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def test_a_certificate_that_nobody_signed_is_refused(place: Place, certificate: ssl.SSLContext) -> None:
    @in_loop
    async def scene() -> None:
        import asyncio

        async with RawServer(
            answer(page(b"<title>secret</title>", b"Content-Type: text/html")), tls=certificate
        ) as server:
            seeds = [server.url]
            networks = "127.0.0.0/8,::1/128"
            refused = await asyncio.to_thread(place.crawl, seeds, ALLOW_PRIVATE_ADDRESSES=networks)
            refused.stored_nothing()
            assert server.requests == []
            assert "self-signed certificate" in refused.err
            assert place.stored() == {}
            # The same server, where the person says that certificates do not matter.
            trusting = await asyncio.to_thread(
                place.crawl,
                seeds,
                ALLOW_PRIVATE_ADDRESSES=networks,
                KEY_PREFIX="trusting",
                DOWNLOAD_VERIFY_CERTIFICATES=False,
            )
            trusting.succeeded()
            assert place.stored() == {server.url: {f"{server.url}/"}}

    scene()


# --- Settings that must stay ------------------------------------------------------------------------------


def test_consoles_are_off_and_checks_are_on() -> None:
    from scrapy.settings import Settings

    settings = Settings()
    settings.setmodule("settings.base")
    assert not settings.getbool("TELNETCONSOLE_ENABLED")
    assert not settings.getbool("REMOTE_CONTROL_ENABLED")
    assert settings.getbool("DOWNLOAD_VERIFY_CERTIFICATES")
    assert not settings.getbool("COOKIES_ENABLED")
    assert not settings.getbool("REFERER_ENABLED")
    handlers = settings.getwithbase("DOWNLOAD_HANDLERS")
    assert {scheme for scheme, handler in handlers.items() if handler} == {"http", "https"}
    assert settings["ALLOW_PRIVATE_ADDRESSES"] == ""
    assert os.environ.get("LOWTIDE_ALLOW_PRIVATE_ADDRESSES") is None
