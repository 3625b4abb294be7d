"""Errors on the wire: one table from code to status, and the problem body of every refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson
import structlog

from engine import BottomlessError, Offset, format_wire
from engine.errors import (
    InvalidRequest,
    OffsetTrimmed,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
    Unavailable,
)

if TYPE_CHECKING:
    from api.asgi import Headers

_TOLD_MAX: Final = 1000
_told: Final[set[str]] = set()
_log: Final = structlog.get_logger("api.errors")

STATUS: Final[dict[str, int]] = {
    "internal_error": 500,
    "invalid_request": 400,
    "bad_stream_name": 400,
    "bad_offset": 400,
    "bad_json": 400,
    "bad_text": 400,
    "bad_fork": 400,
    "bad_producer": 400,
    "bad_setting": 400,
    "bad_header": 400,
    "payload_too_large": 413,
    "encoding_unsupported": 415,
    "unauthorized": 401,
    "forbidden": 403,
    "rate_limited": 429,
    "method_not_allowed": 405,
    "conflict": 409,
    "stream_exists": 409,
    "content_type_mismatch": 409,
    "sequence_gap": 409,
    "sequence_regressed": 409,
    "stream_closed": 409,
    "version_too_old": 409,
    "change_lost": 409,
    "not_found": 404,
    "stream_not_found": 404,
    "gone": 410,
    "stream_gone": 410,
    "offset_trimmed": 410,
    "fenced": 403,
    "stale_epoch": 403,
    "ownership_lost": 503,
    "unavailable": 503,
    "overloaded": 503,
    "too_many_producers": 429,
    "too_many_readers": 429,
    "too_many_streams": 429,
    "root_locked": 503,
    "storage_unavailable": 503,
    "commit_unknown": 503,
    "data_corrupt": 500,
    "checksum_mismatch": 500,
    "table_damaged": 500,
    "version_unsupported": 500,
}


class BadHeader(InvalidRequest):
    """A header's value breaks its format."""

    code = "bad_header"


class EncodingUnsupported(InvalidRequest):
    """The body is compressed; what is stored is what was sent, so that is refused."""

    code = "encoding_unsupported"


class Unauthorized(BottomlessError):
    """There is no token, or none that counts."""

    code = "unauthorized"


class Forbidden(BottomlessError):
    """The token counts, but not for this."""

    code = "forbidden"


class RateLimited(Unavailable):
    """More requests than the token, or wrong tokens than the address, may send."""

    code = "rate_limited"


PROBLEM_TYPE: Final = b"application/problem+json"
# Faults of the storage: what they say is for the operator's log, not for the caller.
_PRIVATE: Final = frozenset(
    {"data_corrupt", "checksum_mismatch", "table_damaged", "version_unsupported", "ownership_lost"}
)


def problem(status: int, code: str, detail: str, hint: str | None = None) -> bytes:
    """The body of a refusal: small, stable code, and what to do."""
    body = {"status": status, "code": code, "detail": detail}
    if hint:
        body["hint"] = hint
    return orjson.dumps(body)


def _tell_operator(error: BottomlessError) -> None:
    """What the client is not told goes into the log, once: clients ask again and again."""
    if error.message not in _told:
        if len(_told) >= _TOLD_MAX:
            _told.clear()
        _told.add(error.message)
        _log.error("a stream cannot be served", error=error.message, hint=error.hint)


def render_error(error: BottomlessError) -> tuple[int, Headers, bytes]:
    """Status, headers and body for an error of the engine."""
    status = STATUS[error.code]
    headers: Headers = [(b"content-type", PROBLEM_TYPE), (b"cache-control", b"no-store")]
    if isinstance(error, Unavailable):
        seconds = max(1, -(-error.retry_after_ms // 1000))
        headers.append((b"retry-after", b"%d" % seconds))
    elif isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b'Bearer realm="bottomless"'))
    elif isinstance(error, StreamClosed):
        headers.append((b"stream-closed", b"true"))
        headers.append((b"stream-next-offset", format_wire(Offset(error.tail)).encode()))
    elif isinstance(error, SequenceGap):
        headers.append((b"producer-expected-seq", b"%d" % error.expected))
        headers.append((b"producer-received-seq", b"%d" % error.received))
    elif isinstance(error, OffsetTrimmed):
        earliest = format_wire(Offset(error.earliest))
        headers.append((b"stream-earliest-offset", earliest.encode()))
    elif isinstance(error, StaleEpoch):
        headers.append((b"producer-epoch", b"%d" % error.current))
    if error.code in _PRIVATE:
        _tell_operator(error)
        detail = "the stream cannot be served; the server's log says why"
        return status, headers, problem(status, error.code, detail)
    return status, headers, problem(status, error.code, error.message, error.hint)
