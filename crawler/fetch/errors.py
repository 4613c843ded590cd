"""Download errors, and the status codes stored for them (STATUS_CODES).

The bases are Scrapy's exceptions, so its retry middleware and errbacks work unchanged. Pages are retried after
transient errors only.
"""

from __future__ import annotations

from typing import Final

from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    IgnoreRequest,
    ResponseDataLossError,
    StopDownload,
    UnsupportedURLSchemeError,
)


class AddressRefusedError(IgnoreRequest):
    """The guard forbids the address (loopback, private, ...); nothing was sent."""


class RobotsDeniedError(IgnoreRequest):
    """robots.txt forbids the page, or could not be fetched."""


class ConnectTimeoutError(DownloadTimeoutError):
    """No connection (TCP, proxy, TLS) within `CONNECT_TIMEOUT_SECONDS`."""


class HeadTimeoutError(DownloadTimeoutError):
    """No complete response head within `HEAD_TIMEOUT_SECONDS` after sending."""


class BodyTimeoutError(DownloadTimeoutError):
    """No complete body within `BODY_TIMEOUT_SECONDS`."""


class ConnectionLostError(DownloadFailedError):
    """The connection was closed or reset before the response head was complete."""


class TlsError(DownloadFailedError):
    """The TLS handshake failed, or the certificate is not trusted."""


class MalformedResponseError(DownloadFailedError):
    """The response is not HTTP, or contradicts itself."""


class ProxyRefusedError(DownloadFailedError):
    """The proxy requires authentication (407). The site waits; never stored."""


class NotSentError(DownloadCancelledError):
    """Not sent: `may_send` returned False. Never stored."""


class TooLargeError(DownloadCancelledError):
    """The body exceeds `DOWNLOAD_MAXSIZE`, on the wire or decoded."""


class HeaderLimitError(TooLargeError):
    """The response head exceeds `MAX_HEADER_BYTES` or `MAX_HEADER_FIELDS`."""


OTHER: Final = -13  # any error that is not in STATUS_CODES
CUT_SHORT: Final = -8
ROBOTS_DENIED: Final = -9
IN_A_TRAP: Final = -15  # not an error: the page of a trap, never requested

# Subclasses before their bases: the first match counts.
STATUS_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (CannotResolveHostError, -1),
    (DownloadConnectionRefusedError, -2),
    (ConnectTimeoutError, -3),
    (BodyTimeoutError, -5),
    (DownloadTimeoutError, -4),
    (ConnectionLostError, -6),
    (TlsError, -7),
    (ResponseDataLossError, CUT_SHORT),
    (RobotsDeniedError, ROBOTS_DENIED),
    (AddressRefusedError, -10),
    (TooLargeError, -11),
    (MalformedResponseError, -12),
    (IgnoreRequest, -14),
)

# Transient: no response, or a broken one. Addresses, robots and sizes are permanent.
_PASSING: Final = frozenset({-1, -2, -3, -4, -5, -6, -7, -8, -12, OTHER})
# Decisions of the crawler, a setting or the URL: a retry would end the same way.
_LASTING: Final = (StopDownload, DownloadCancelledError, UnsupportedURLSchemeError)

# libcurl error codes with an exception of their own. Timeouts and sizes are built elsewhere, with their limits.
_OF_LIBCURL: Final[dict[int, type[Exception]]] = {
    **dict.fromkeys((1, 3, 67), UnsupportedURLSchemeError),
    **dict.fromkeys((5, 6), CannotResolveHostError),
    7: DownloadConnectionRefusedError,
    **dict.fromkeys((8, 16, 92), MalformedResponseError),
    **dict.fromkeys((52, 55, 56), ConnectionLostError),
    **dict.fromkeys((35, 51, 53, 54, 58, 59, 60, 66, 77, 80, 82, 83, 90, 91, 98), TlsError),
}


def status_code_of(error: BaseException) -> int:
    """The negative status code stored for an error; `OTHER` by default."""
    return next((code for kind, code in STATUS_CODES if isinstance(error, kind)), OTHER)


def worth_another_try(error: BaseException) -> bool:
    """Whether a retry may succeed."""
    return status_code_of(error) in _PASSING and not isinstance(error, _LASTING)


def error_of_libcurl(code: int) -> type[Exception]:
    """The exception class for a libcurl error code."""
    return _OF_LIBCURL.get(code, DownloadFailedError)


def in_one_line(error: BaseException) -> str:
    """Name and message, at most 300 characters, encodable as UTF-8."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text.encode("utf-8", "backslashreplace").decode()[:300]
