"""Reads captures from WARC files, in order or by offset. Bounded memory; damage loses only the captures in it."""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import msgspec
from isal import isal_zlib

from crawler.archive import warc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from scrapy.http import Headers

SUFFIX: Final = ".warc.gz"
# Suffix of a file that is still being written.
OPEN: Final = ".open"
_MAGIC: Final = b"\x1f\x8b\x08"
_CHUNK: Final = 16 * 1024
# Decompressed size; larger members are invalid.
LARGEST_MEMBER: Final = 1 << 30
# Files that a Library keeps open: rows of many agents alternate.
OPEN_FILES: Final = 32

_fetch_decoder = msgspec.json.Decoder(warc.Fetch)


class CaptureError(Exception):
    """A capture cannot be read."""


class CaptureNotFoundError(CaptureError):
    """The file is missing, or ends before the offset."""


class DamagedCaptureError(CaptureError):
    """The capture is incomplete, or differs from the expected one."""


class Member(NamedTuple):
    """One decompressed gzip member."""

    offset: int
    length: int  # compressed
    data: bytes


class Damage(NamedTuple):
    """Bytes that are not part of a valid member."""

    offset: int
    length: int


class Capture(NamedTuple):
    """A stored response and its fetch."""

    url: str
    fetched_at: int  # milliseconds since 1970
    status: int
    headers: Headers
    body: bytes  # empty for a revisit: use Library.body
    sha256: str  # hex, of the body, from the record
    address: str
    protocol: str
    fetch: warc.Fetch
    earlier: warc.Earlier | None
    file: str
    offset: int
    length: int
    user_agent: str = ""  # of the request record; set by `captures` only


class Kept(NamedTuple):
    """A page row's data about its capture."""

    url: str
    sha256: str
    file: str
    offset: int
    length: int


# --- Files --------------------------------------------------------------------------------------------------


def whole_members(path: Path) -> Iterator[Member]:
    """Members up to the first invalid one."""
    with path.open("rb", buffering=0) as file:
        offset = 0
        while member := _member_at(file, offset):
            yield member
            offset += member.length


def members(path: Path) -> Iterator[Member | Damage]:
    """All members and damages of a file."""
    with path.open("rb", buffering=0) as file:
        offset, size = 0, os.fstat(file.fileno()).st_size
        while offset < size:
            member = _member_at(file, offset)
            if member is None:
                following = _next_record(file, offset + 1, size)
                yield Damage(offset, following - offset)
                offset = following
            else:
                yield member
                offset += member.length


def captures(path: Path) -> Iterator[Capture | Damage]:
    """Captures and damages of a file, in order."""
    name = path.name.removesuffix(OPEN)
    held: Capture | None = None  # until the next record is read
    for member in members(path):
        found = member if isinstance(member, Damage) else _found(member, name)
        if isinstance(found, warc.Record):
            if held is not None and found.kind == "request" and _url(found) == held.url:
                held = held._replace(user_agent=_user_agent(found))
            continue
        if held is not None:
            yield held
            held = None
        if isinstance(found, Damage):
            yield found
        else:
            held = found
    if held is not None:
        yield held


def _found(member: Member, name: str) -> Capture | Damage | warc.Record:
    try:
        record = warc.read(member.data)
        return _capture_of(record, member, name) or record
    except warc.WarcError:
        return Damage(member.offset, member.length)


def _user_agent(request: warc.Record) -> str:
    fields = warc.http_parts(request.block)[1]
    return (fields.get("User-Agent") or b"").decode("latin-1")


def _url(record: warc.Record) -> str:
    return record.field("WARC-Target-URI").strip("<>")


def entry_of(member: Member, name: str) -> warc.Entry | None:
    """The index entry of a member, or None."""
    try:
        found = _capture(member, name)
    except warc.WarcError:
        return None
    if found is None:
        return None
    content_type = (found.headers.get("Content-Type") or b"").decode("latin-1")
    mime = warc.REVISIT_MIME if found.earlier else warc.mime_of(content_type)
    place = (found.file, found.offset, found.length)
    return warc.Entry(found.url, found.fetched_at, mime, found.status, found.sha256, *place)


def _member_at(file: BinaryIO, offset: int) -> Member | None:
    """The member at an offset; None if it is invalid."""
    file.seek(offset)
    unpacking = isal_zlib.decompressobj(wbits=31)
    parts, taken, size = [], 0, 0
    try:
        while not unpacking.eof:
            chunk = file.read(_CHUNK)
            if not chunk:
                return None
            taken += len(chunk)
            parts.append(unpacking.decompress(chunk))
            size += len(parts[-1])
            if size > LARGEST_MEMBER:
                return None
    except isal_zlib.error:  # type: ignore[misc]
        return None
    return Member(offset, taken - len(unpacking.unused_data), b"".join(parts))


def _next_record(file: BinaryIO, start: int, size: int) -> int:
    """Offset of the next valid record, or the file's end."""
    while start < size:
        file.seek(start)
        chunk = file.read(1 << 20)
        place = chunk.find(_MAGIC)
        if place < 0:
            start += max(1, len(chunk) - len(_MAGIC) + 1)
            continue
        member = _member_at(file, start + place)
        if member is not None and member.data.startswith(warc.BEGINNING):
            return start + place
        start += place + 1
    return size


# --- Captures -----------------------------------------------------------------------------------------------


def _capture(member: Member, file: str) -> Capture | None:
    """None for other records. Raises WarcError."""
    return _capture_of(warc.read(member.data), member, file)


def _capture_of(record: warc.Record, member: Member, file: str) -> Capture | None:
    kind = record.kind
    if kind not in ("response", "revisit"):
        return None
    status, headers, body = warc.http_parts(record.block)
    return Capture(
        url=_url(record),
        fetched_at=warc.milliseconds(record.field("WARC-Date")),
        status=status,
        headers=headers,
        body=body if kind == "response" else b"",
        sha256=record.field("WARC-Payload-Digest").removeprefix("sha256:"),
        address=record.field("WARC-IP-Address"),
        protocol=record.field("WARC-Protocol"),
        fetch=_fetch(record),
        earlier=_earlier(record) if kind == "revisit" else None,
        file=file,
        offset=member.offset,
        length=member.length,
    )


def _fetch(record: warc.Record) -> warc.Fetch:
    fields = record.fields.get("X-Crawler-Fetch")
    if fields:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return _fetch_decoder.decode(fields)
    return warc.Fetch()  # another crawler's file


def _earlier(record: warc.Record) -> warc.Earlier:
    offset = record.field("WARC-Refers-To-File-Offset")
    refers_to = record.field("WARC-Refers-To-Date")
    return warc.Earlier(
        record.field("WARC-Refers-To-Target-URI").strip("<>"),
        warc.milliseconds(refers_to) if refers_to else 0,
        record.field("WARC-Refers-To-Filename") if offset.isdigit() else "",
        int(offset) if offset.isdigit() else 0,
    )


class Library:
    """Captures of one folder; a context manager. Raises CaptureError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: OrderedDict[str, BinaryIO] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def read(self, file: str, offset: int) -> Capture:
        """The capture at an offset, also in an unfinished file."""
        member = _member_at(self._open(file, offset), offset)
        if member is None:
            raise DamagedCaptureError(f"{file} has no valid member at {offset}")
        try:
            capture = _capture(member, file)
        except warc.WarcError as error:
            raise DamagedCaptureError(f"{file} at {offset}: {error}") from None
        if capture is None:
            raise DamagedCaptureError(f"{file} at {offset}: expected a response record")
        return capture

    def body(self, capture: Capture) -> bytes:
        """The body, also of a revisit. Raises DamagedCaptureError if its SHA-256 differs."""
        body = capture.body if capture.earlier is None else self._earlier(capture.earlier).body
        found = sha256(body).hexdigest()
        if found != capture.sha256:
            raise DamagedCaptureError(
                f"{capture.file} at {capture.offset}: the body's SHA-256 is {found}; expected {capture.sha256}"
            )
        return body

    def _earlier(self, earlier: warc.Earlier) -> Capture:
        if not earlier.file:
            raise CaptureNotFoundError(
                f"{earlier.url}: the revisit record names no file of the earlier capture"
            )
        return self.read(earlier.file, earlier.offset)

    def _open(self, name: str, offset: int) -> BinaryIO:
        file = self._files.pop(name, None) or self._find(name)
        self._files[name] = file
        if len(self._files) > OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        size = os.fstat(file.fileno()).st_size
        if offset >= size:
            raise CaptureNotFoundError(f"{name} ends at {size}, before {offset}")
        return file

    def _find(self, name: str) -> BinaryIO:
        # The final name twice: the file may be renamed between the attempts.
        for path in (self._folder / name, self._folder / (name + OPEN), self._folder / name):
            with suppress(FileNotFoundError):
                return path.open("rb", buffering=0)
        raise CaptureNotFoundError(f"no file {name} in {self._folder}")


# --- Checking rows ------------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """The result for one row."""

    kept: Kept
    word: str  # ok, missing, damaged
    why: str = ""


def check(rows: Iterable[Kept], folder: Path) -> Iterator[Verdict]:
    """Compare every row with its capture."""
    with Library(folder) as library:
        for kept in rows:
            try:
                _compare(library, kept)
            except CaptureNotFoundError as error:
                yield Verdict(kept, "missing", str(error))
            except DamagedCaptureError as error:
                yield Verdict(kept, "damaged", str(error))
            else:
                yield Verdict(kept, "ok")


def _compare(library: Library, kept: Kept) -> None:
    capture = library.read(kept.file, kept.offset)
    for what, found, wanted in (
        ("URL", capture.url, kept.url),
        ("length", capture.length, kept.length),
        ("SHA-256", capture.sha256, kept.sha256),
    ):
        if found != wanted:
            raise DamagedCaptureError(
                f"{kept.file} at {kept.offset}: its {what} is {found}; the row of {kept.url} has {wanted}"
            )
    library.body(capture)
