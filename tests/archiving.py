"""What tests of the archive share: captures to write, other people's eyes to read them with, and a fault.

`warcio`, which shares no code with ours, is the judge: `check_files` runs its check over every finished file, and
`judged` reads a row's capture by nothing but the row's own words.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from warcio.archiveiterator import ArchiveIterator

from crawler.archive import warc
from crawler.archive import writer as archive
from tests.crawling import Place
from tests.faults import Fault

WARCIO = Path(sys.executable).with_name("warcio")
CAPTURES = ".warc.gz.open"
ARCHIVED = "select url, sha256, warc_file, warc_offset, warc_length from pages where warc_file is not null"

logger = logging.getLogger("faults")


def exchange(path: str, body: bytes, fetched_at: int = 1_794_999_000_123) -> warc.Exchange:
    """A page of http://a.example as it is kept."""
    url = f"http://a.example{path}"
    return warc.Exchange(
        url=url,
        fetched_at=fetched_at,
        address="192.0.2.1",
        protocol="",
        request=warc.request_head(url, None, ""),
        head=warc.stored_head([b"HTTP/1.1 200 OK\r\n", b"Content-Type: text/html\r\n"], len(body)),
        body=body,
        sha256=hashlib.sha256(body).hexdigest(),
        truncated="",
        fetch=warc.Fetch(depth=1),
    )


def writer(
    folder: Path, name: str = "agent-run", most: int = 1 << 30, seconds: float = 3600.0
) -> archive.Writer:
    """A writer into that folder."""
    return archive.Writer(folder, name, most, seconds, lambda: {"software": "test"})


def noise(number: int, size: int = 5_000) -> bytes:
    """Bytes that gzip cannot shrink, the same for the same number."""
    return b"".join(hashlib.sha256(f"{number} {part}".encode()).digest() for part in range(size // 32 + 1))[
        :size
    ]


def check_files(folder: Path) -> list[Path]:
    """Every finished file, once `warcio check` has found nothing wrong with it, and a digest in each capture."""
    files = archive.finished(folder)
    assert files, f"no finished file in {folder}"
    for file in files:
        command = [str(WARCIO), "check", "-v", str(file)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "digest pass" in ended.stdout
        assert "no digest" not in ended.stdout
        assert file.with_name(file.name.removesuffix(".warc.gz") + ".cdxj").is_file()
    return files


class Judged(NamedTuple):
    """A capture as warcio reads it."""

    kind: str
    fields: dict[str, str]  # of the record
    status: str
    head: dict[str, str]  # of the answer
    body: bytes


def judged(folder: Path, file: str, offset: int, length: int) -> Judged:
    """The one record in those bytes of a file, finished or not."""
    path = folder / file
    data = (path if path.exists() else folder / f"{file}.open").read_bytes()[offset : offset + length]
    [record] = [_judged(one) for one in ArchiveIterator(BytesIO(data), check_digests="raise")]
    return record


def _judged(record: Any) -> Judged:
    head = record.http_headers
    return Judged(
        record.rec_type,
        dict(record.rec_headers.headers),
        head.statusline,
        dict(head.headers),
        record.content_stream().read(),
    )


def check_rows(place: Place) -> int:
    """Every row that says where its page is kept is right, revisits by the page that they refer to; how many."""
    rows = place.rows(ARCHIVED)
    folder = place.var / "archive"
    for url, sha256, *where in rows:
        found = judged(folder, *where)
        assert found.fields["WARC-Target-URI"] == url
        if found.kind == "revisit":
            refers_to = found.fields["WARC-Refers-To-Target-URI"]
            [(first,)] = place.rows(f"select sha256 from pages where url = '{refers_to}'")
            assert first == sha256
        else:
            assert hashlib.sha256(found.body).hexdigest() == sha256
    return len(rows)


class KilledInWrite(Fault):
    """Dies half way through the write that follows the one named in FAULT_AFTER."""

    def bend(self) -> None:
        whole = archive._drain
        left = int(os.environ["FAULT_AFTER"])

        def drain(descriptor: int, waiting: bytearray, taken: bytearray) -> None:
            nonlocal left
            if len(waiting) > 1_000 and str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith(
                CAPTURES
            ):
                left -= 1
                if left < 0:
                    os.write(descriptor, bytes(waiting[: len(waiting) // 2 + 100]))
                    logger.warning("killed: in mid-write")
                    os.kill(os.getpid(), signal.SIGKILL)
            whole(descriptor, waiting, taken)

        archive._drain = drain
