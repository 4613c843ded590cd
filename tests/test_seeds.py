"""Seeds as people write them: texts, files, standard input, values of the inlet; and the command that adds them."""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler.urls import seeds
from crawler.urls.seeds import BadSeed, Seed
from tests.crawling import Place, fetched
from tests.farm import Farm

# --- One seed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "site", "path"),
    [
        ("https://example.org", "https://example.org", "/"),
        ("  https://Example.ORG:443/a?b=2&a=1#x ", "https://example.org", "/a?b=2&a=1"),
        ("http://example.org:8080/", "http://example.org:8080", "/"),
        ("example.org", "https://example.org", "/"),
        ("example.org:8443/a/b", "https://example.org:8443", "/a/b"),
        ("https://bücher.example/ä", "https://xn--bcher-kva.example", "/%C3%A4"),
        ("http://127.0.0.1:80/", "http://127.0.0.1", "/"),
        ("http://[::1]:8000/x", "http://[::1]:8000", "/x"),
        ("http://user:secret@example.org/", "http://example.org", "/"),
    ],
)
def test_a_seed(text: str, site: str, path: str) -> None:
    assert seeds.parse(text, 3) == Seed(site, path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no url", "a URL has no spaces"),
        ("https://a b.example/", "a URL has no spaces"),
        ("ftp://example.org/", "has scheme 'ftp'; expected http or https"),
        ("file:///etc/hostname", "expected http or https"),
        ("javascript:alert(1)", "expected http or https"),
        ("https://", "has no host"),
        ("https://example.org:port/", "port"),
        ("https://exa$mple.org/", "is not a host name"),
        ("https://" + "a" * 64 + ".org/", "is not a host name"),
        ("word", "expected http or https"),
    ],
)
def test_what_is_no_seed_says_why(text: str, reason: str) -> None:
    found = seeds.parse(text, 7)
    assert isinstance(found, BadSeed)
    assert (found.line, found.text) == (7, text[:200])
    assert reason in found.reason


# --- Many -------------------------------------------------------------------------------------------------


def test_lines_are_counted_comments_and_blanks_included(tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    # As a Windows editor saves it: a byte order mark, CR LF, and one byte that is no UTF-8.
    file.write_bytes(b"\xef\xbb\xbfhttps://a.example\r\n# comment\r\n\r\n  b.example  \r\njunk \xff\r\n")
    first, second, bad = seeds.read(str(file))
    assert (first, second) == (Seed("https://a.example", "/"), Seed("https://b.example", "/"))
    assert isinstance(bad, BadSeed)
    assert bad.line == 5


def test_urls_with_commas_between() -> None:
    found = list(seeds.read("https://a.example, b.example/x,,ftp://c.example"))
    assert found[:2] == [Seed("https://a.example", "/"), Seed("https://b.example", "/x")]
    assert isinstance(found[2], BadSeed)
    assert len(found) == 3


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffhttps://a.example\n"))
    assert list(seeds.read("-")) == [Seed("https://a.example", "/")]


@pytest.mark.parametrize("source", ["example.org", "example.org:8443/a", "a.localhost", "127.0.0.1,b"])
def test_a_host_alone_is_one(source: str) -> None:
    assert next(iter(seeds.read(source))) == seeds.parse(f"https://{source.split(',')[0]}")


@pytest.mark.parametrize(
    "source", ["missing.txt", "seeds.lst,more.lst", "wiki.corp", "/no/such/file", "word"]
)
def test_neither_a_file_nor_a_url(source: str) -> None:
    with pytest.raises(FileNotFoundError, match="is neither a file nor a URL"):
        list(seeds.read(source))


# --- The inlet --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [b"https://a.example/x", b' {"url": "https://a.example/x", "meta": {"job": 1}}']
)
def test_values_of_the_inlet(value: bytes) -> None:
    assert seeds.from_inlet(value) == Seed("https://a.example", "/x")


@pytest.mark.parametrize(
    "value",
    [
        *(b"\xff\xfe", b"{", b'{"link": "https://a.example"}', b'{"url": null}', b"[]", b"\x80\x04K\x01."),
        pytest.param(b'{"url":' + b"[" * 50_000, id="deep"),
    ],
)
def test_values_that_are_no_seeds(value: bytes) -> None:
    found = seeds.from_inlet(value)
    assert isinstance(found, BadSeed)
    assert found.line == 0
    assert "expected" in found.reason


_PIECES = st.sampled_from(
    (
        *("http://", "https://", "//", "/", "?", "#", "@", ":", "[", "]", "::1", ".", "..", "%", "%2f", "\\"),
        *("a", "é", "。", "{", "}", '"url"', '"', " ", "\t", "\n", "\0", "\ud800", "\ufeff", ":80", ":99999"),
        *("example.org", "xn--"),
    )
)


@given(st.lists(st.one_of(_PIECES, st.text(max_size=3)), max_size=12).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_seed_or_none(text: str) -> None:
    """What is one is spelt as all URLs are: it is the same seed again."""
    for found in (seeds.parse(text, 7), *seeds.from_lines(text.split("\n")), seeds.from_inlet(_sent(text))):
        if isinstance(found, Seed):
            assert found.site.startswith(("http://", "https://"))
            assert found.path.startswith("/")
            assert seeds.parse(found.site + found.path) == found
        else:
            assert found.reason
            assert len(found.text) <= 200


def _sent(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# --- Manners ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "leaves"),
    [
        ("http://localhost:8000/", False),
        ("http://a.localhost/", False),
        ("http://127.1.2.3/", False),
        ("http://[::1]/", False),
        ("http://localhost.example/", True),
        ("http://127.0.0.1.example/", True),
        ("http://10.0.0.1/", True),
        ("http://[::2]/", True),
    ],
)
def test_what_leaves_loopback(url: str, leaves: bool) -> None:
    seed = seeds.parse(url)
    assert isinstance(seed, Seed)
    assert seeds.leaves_loopback(seed) is leaves


@pytest.mark.parametrize(
    ("user_agent", "names"),
    [
        ("lowtide", False),
        ("bot/1.0", False),
        ("bot (+https://example.org)", True),
        ("bot (me@example.org)", True),
    ],
)
def test_a_contact(user_agent: str, names: bool) -> None:
    assert seeds.names_contact(user_agent) is names


# --- The command ------------------------------------------------------------------------------------------


def test_seeds_may_come_before_the_crawl(place: Place, tmp_path: Path) -> None:
    with Farm(sites=3, pages=3, kinds=(), names=()) as farm:
        file = tmp_path / "seeds.txt"
        file.write_text(f"{farm.seeds[0]}\nno seed\n")
        run = place.run("seed", str(file), farm.seeds[1]).succeeded()
        assert run.out == "2 sites added, 0 known before, 0 walked again, 1 lines left out\n"
        assert "line 2: 'no seed' is not a seed" in run.err
        place.check_nothing_left()
        assert farm.hits() == []
        place.crawl(farm.seeds[2:]).succeeded()
        assert place.stored() == farm.expected()

        # A page that no link leads to may be a seed of a site that is being walked, or is walked again.
        before = fetched(farm.hits())
        run = place.run("seed", "--again", "--json", farm.seeds[0]).succeeded()
        assert json.loads(run.out) == {
            "new": 0,
            "known": 0,
            "again": 1,
            "refused": 0,
            "bad": 0,
            "left_out": 0,
            "blocked": 0,
        }
        place.crawl(()).succeeded()
        again = fetched(farm.hits()) - before
        assert set(again) == farm.expected()[farm.site(0)]


def test_a_seed_below_the_root_is_where_the_walk_begins(place: Place) -> None:
    with Farm(sites=1, pages=30, kinds=("nofollow",), names=()) as farm:
        seed = f"{farm.site(0)}/hidden/one.html"
        place.crawl([seed]).succeeded()
        assert place.stored() == {farm.site(0): {seed}}
        assert [hit.path for hit in farm.hits()] == ["/robots.txt", "/hidden/one.html"]


def test_seeds_of_a_blocked_site_are_refused_by_name(place: Place) -> None:
    with Farm(sites=2, pages=3, kinds=("nofollow",), names=()) as farm:
        site, other = farm.site(0), farm.site(1)
        place.crawl(farm.seeds[:1]).succeeded()
        place.run("site", "block", site).succeeded()
        hidden = f"{site}/hidden/one.html"
        for words in ((), ("--again",)):
            run = place.run("seed", *words, hidden)
            assert run.code == 2
            assert "0 sites added, 0 known before, 0 walked again" in run.out
            assert "1 blocked by the operator: nothing of them is fetched" in run.out
            assert f"seeds of blocked sites dropped: {site};" in run.err
        run = place.run("seed", "--json", site, other).succeeded()
        assert json.loads(run.out)["blocked"] == json.loads(run.out)["new"] == 1

        # What else there is to do is done; then there is nothing.
        place.crawl([hidden]).succeeded()
        assert other in place.stored()
        run = place.crawl([hidden])
        run.refused("no seeds: the sites of all seeds are blocked", code=2)
        assert f"seeds of blocked sites dropped: {site}" in run.err
        run = place.crawl(()).succeeded()
        assert "nothing left to do: 1 sites are finished, 1 are blocked" in run.err
        assert hidden not in place.stored().get(site, ())

        place.run("site", "resume", site).succeeded()
        place.run("seed", hidden).succeeded()
        place.crawl(()).succeeded()
        assert hidden in place.stored()[site]


def test_seeds_of_the_command_are_checked(place: Place) -> None:
    place.run("seed").refused("no seeds: expected files or URLs", code=2)
    place.run("seed", "/no/such/file").refused("'/no/such/file' is neither a file nor a URL", code=2)
    run = place.run("seed", "ftp://a.example/")
    run.refused("no seeds", "is no seed", "expected http or https", "nothing was added", code=2)
    assert not place.var.exists()


# --- Files as people have them ----------------------------------------------------------------------------

ONE, TWO = "https://a.example/x", "https://b.example/y?p=1,2"
BOTH = [seeds.parse(ONE), seeds.parse(TWO)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.txt", f"{ONE}\n{TWO}\n"),
        ("windows.txt", f"{ONE}\r\n\r\n{TWO}\r\n"),
        ("old.txt", f"{ONE}\r{TWO}"),
        ("mark.txt", f"\ufeff{ONE}\n{TWO}"),
        ("comments.txt", f"# seeds\n\n{ONE}   # the first\n  \n{TWO}\t# the second\n"),
        ("quotes.txt", f'"{ONE}"\n<{TWO}>'),
        ("tabs.txt", f"{ONE}\tfirst\n{TWO}\tsecond"),
        ("header.csv", f'Name,URL\n"One, the first",{ONE}\nTwo,"{TWO}"\n'),
        ("header.txt", f'\ufeffurl;name\n{ONE};one\n# none\n\n{TWO};"two\nlines"\n'),
        ("ranked.csv", f'1,{ONE}\n2,"{TWO}"\n'),
        ("one column.csv", f"website\n{ONE}\n{TWO}\n"),
        ("table.tsv", f"rank\tdomain\n1\t{ONE}\n2\t{TWO}\n"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])
def test_files_as_people_have_them(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    file = tmp_path / name
    file.write_bytes(text.encode(encoding))
    assert list(seeds.read(str(file))) == BOTH
    assert seeds.why_not(str(file), "bot (+https://bot.example/)") == ""


def test_a_url_with_a_comma_is_no_row_of_a_table() -> None:
    assert list(seeds.from_lines([f"{TWO}\n", f"{ONE}\n"])) == [BOTH[1], BOTH[0]]


def test_rows_of_a_table_that_are_no_seeds(tmp_path: Path) -> None:
    file = tmp_path / "seeds.csv"
    file.write_text(f"rank,url\n1,{ONE}\n2\n# none\n4,\n5,ftp://c.example/\n")
    good, *bad = seeds.read(str(file))
    assert good == BOTH[0]
    assert [(one.line, one.text) for one in bad if isinstance(one, BadSeed)] == [
        (3, "2"),
        (5, ""),
        (6, "ftp://c.example/"),
    ]


def test_letters_that_are_not_utf_8_are_no_seed(tmp_path: Path) -> None:
    file = tmp_path / "seeds.txt"
    file.write_bytes(f"{ONE}\nhttps://a.example/caf".encode() + b"\xe9\n")
    good, bad = seeds.read(str(file))
    assert good == BOTH[0]
    assert isinstance(bad, BadSeed)
    assert (bad.line, bad.reason) == (2, "not UTF-8; expected a UTF-8 file")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "has none; expected one URL per line"),
        (b"# nothing\n\n", "has none; expected one URL per line"),
        (b"%PDF-1.4\n\0\1\xff\n", "none of the 2 lines given is one; line 1: '%PDF-1.4' is no seed: host"),
        (
            ONE.encode(),
            "USER_AGENT 'bot' has no contact; expected a URL or e-mail address before crawling https://a.example",
        ),
        (b"no url\n" * (seeds.LOOKED_AT + 1), ""),
        (b"http://localhost/", ""),
    ],
)
def test_why_a_file_is_none_of_seeds(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "seeds.txt"
    file.write_bytes(data)
    why = seeds.why_not(str(file), "bot")
    assert says in why if says else not why


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(f"{ONE}\n{TWO}\n",))
    writer.start()
    assert seeds.why_not(str(pipe), "bot") == ""
    assert list(seeds.read(str(pipe))) == BOTH
    writer.join()


# --- Before anything starts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            (),
            "no seeds: expected -a seeds=FILE or -a seeds=URL,URL, as in `scrapy crawl site -a seeds=https://",
        ),
        (
            ("-a", f"seeds={ONE}"),
            "has no contact; expected a URL or e-mail address before crawling https://a.example, as -s USER_AGENT=",
        ),
        (("-a", "seeds=ftp://a.example"), "'ftp://a.example' is no seed: 'ftp://a.example' has scheme 'ftp'"),
    ],
)
def test_the_first_mistakes_are_told_before_anything_starts(
    place: Place, words: tuple[str, ...], says: str
) -> None:
    run = place.run("crawl", "site", *words).refused(code=2)
    assert says in run.err.splitlines()[-1]
    assert not place.var.exists()


def test_many_urls_are_no_name_of_a_file() -> None:
    urls = ",".join(f"https://s{number}.example/" for number in range(1000))
    assert seeds.why_not(urls, "bot (+https://bot.example/)") == ""
