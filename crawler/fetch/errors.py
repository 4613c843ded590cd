"""What can go wrong with one download, as exceptions and as the status codes that are stored.

    IgnoreRequest                    -14     a downloader middleware refused page or answer; never retried
    ├── AddressRefusedError               -10     the address is one that a crawler must not visit
    └── RobotsDeniedError                  -9     the site's robots rules forbid the page
    CannotResolveHostError            -1     no address for the name
    DownloadConnectionRefusedError    -2     nobody listens there, or no way leads there
    DownloadTimeoutError              -4     a limit passed; which stage is not known
    ├── ConnectTimeoutError                -3     no connection (TCP, TLS, proxy)
    ├── HeadTimeoutError                   -4     connected, but no complete response head
    └── BodyTimeoutError                   -5     a head, but no complete body
    DownloadFailedError              -13
    ├── ConnectionLostError                -6     closed or reset before the head was complete
    ├── TlsError                      -7     handshake failed, or the certificate is not trusted
    ├── ProxyRefusedError                 -13     the proxy wants a login; its sites wait, and it is never stored
    └── MalformedResponseError              -12     not HTTP, or HTTP that cannot be believed
    ResponseDataLossError             -8     the body ended too early, or breaks in its encoding
    StopDownload                     -13     who listens to a signal ended the download
    DownloadCancelledError           -13     the crawler itself ended the download
    ├── NotSentError                      -13     the lease may have run out while it was on its way; never stored
    └── TooLargeError                     -11     body above the limit, on the wire or decoded
        └── HeaderLimitError      -11     response head above its limits
    UnsupportedURLSchemeError        -13     not http or https, or not a URL

-15 is no error: a page of a trap, never asked for.

The branches are ours, their stems are Scrapy's own; so its retry middleware and errbacks work unchanged:
timeouts, failures and refused connections are retried by default, refused addresses and too large answers
are not. A page gets another turn for what may pass: not for what the crawler, a setting or the URL decides.
Hides nothing; raises nothing by itself.
"""

# Their names say what happened, as Scrapy's IgnoreRequest does; "Error" would add nothing.

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
    """The guard refuses the address (loopback, private, ...); no byte was sent there."""


class RobotsDeniedError(IgnoreRequest):
    """The site's robots rules forbid the page, or could not be had."""


class ConnectTimeoutError(DownloadTimeoutError):
    """No connection within `CONNECT_TIMEOUT_SECONDS`: TCP, proxy and TLS together."""


class HeadTimeoutError(DownloadTimeoutError):
    """The request was sent, but the response head was not complete within `HEAD_TIMEOUT_SECONDS`."""


class BodyTimeoutError(DownloadTimeoutError):
    """The head had come, but the body was not complete within `BODY_TIMEOUT_SECONDS`."""


class ConnectionLostError(DownloadFailedError):
    """The other side closed or reset the connection before the response head was complete."""


class TlsError(DownloadFailedError):
    """The TLS handshake failed, or the certificate is not trusted."""


class MalformedResponseError(DownloadFailedError):
    """What came is not HTTP, or HTTP that contradicts itself."""


class ProxyRefusedError(DownloadFailedError):
    """The proxy wants another user or password (407); nothing is known of the site."""


class NotSentError(DownloadCancelledError):
    """The request was held back at the last moment: its `sending` said no. The page's turn did not take place."""


class TooLargeError(DownloadCancelledError):
    """The body is above `DOWNLOAD_MAXSIZE`, on the wire or decoded; what had come is dropped."""


class HeaderLimitError(TooLargeError):
    """The response head is above `MAX_HEADER_BYTES` or `MAX_HEADER_FIELDS`."""


OTHER: Final = -13
CUT_SHORT: Final = -8
ROBOTS_DENIED: Final = -9
IN_A_TRAP: Final = -15

# Subclasses stand before their bases: the first match counts.
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

# No answer, or a broken one. Refused addresses, robots and sizes stay as they are.
_PASSING: Final = frozenset({-1, -2, -3, -4, -5, -6, -7, -8, -12, OTHER})
# What the crawler itself, a setting or the URL decides, it decides so again; other handlers raise the plain kinds.
_LASTING: Final = (StopDownload, DownloadCancelledError, UnsupportedURLSchemeError)

# Of libcurl's error numbers, those that say more than "failed"; timeouts and sizes need the limit in words.
_OF_LIBCURL: Final[dict[int, type[Exception]]] = {
    **dict.fromkeys((1, 3, 67), UnsupportedURLSchemeError),
    **dict.fromkeys((5, 6), CannotResolveHostError),
    7: DownloadConnectionRefusedError,
    **dict.fromkeys((8, 16, 92), MalformedResponseError),
    **dict.fromkeys((52, 55, 56), ConnectionLostError),
    **dict.fromkeys((35, 51, 53, 54, 58, 59, 60, 66, 77, 80, 82, 83, 90, 91, 98), TlsError),
}


def status_code_of(error: BaseException) -> int:
    """The negative status code that is stored for a failed download; `OTHER` for what is not in the tree."""
    return next((code for kind, code in STATUS_CODES if isinstance(error, kind)), OTHER)


def worth_another_try(error: BaseException) -> bool:
    """Whether a later try may bring what this one did not."""
    return status_code_of(error) in _PASSING and not isinstance(error, _LASTING)


def error_of_libcurl(code: int) -> type[Exception]:
    """The exception that libcurl's error number stands for; DownloadFailedError for one without its own."""
    return _OF_LIBCURL.get(code, DownloadFailedError)


def in_one_line(error: BaseException) -> str:
    """The error's name and words, whatever these are: half a character cannot be written into a record."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text.encode("utf-8", "backslashreplace").decode()[:300]
