"""The records dialect (DurableStreams) on the wire: parsing and rendering. Pure functions."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from api.errors import render_error
from api.protocol import (
    JSON_TYPE,
    NUMBER_MAX,
    parse_ack,
    parse_closed,
    parse_producer,
    parse_stream_path,
    parse_stream_seq,
)
from engine import START, AppendRequest, PayloadKind, json_member, parse_offset
from engine.errors import BadJson, BadOffset, BadStreamName, InvalidRequest, VersionTooOld

if TYPE_CHECKING:
    from collections.abc import Mapping

    from api.asgi import Headers
    from engine import AppendResult, BottomlessError, Offset, RecordsResult, StreamName
    from engine.settings import LimitSettings

RECORDS_PREFIX: Final = b"/v1/records/"
BARE_PREFIX: Final = b"/"
RESERVED_PATHS: Final = frozenset(
    {"v1", "healthz", "readyz", "metrics", "docs", "redoc", "openapi.json", "console"}
)
"""First segments of our own routes: at the bare path no stream can have them."""
LIMIT_DEFAULT: Final = 10
LIMIT_MAX: Final = 10_000
TIMEOUT_MS_MAX: Final = 60_000
"""A reader may always ask for this much patience, however short the server's own is."""
RESPONSE_BYTES: Final = 8 * 1024 * 1024
JSON_HEADERS: Final[Headers] = [
    (b"content-type", JSON_TYPE.encode()),
    (b"cache-control", b"no-store"),
]

_JSON_SPACE: Final = b" \t\r\n"
_VERSION: Final = re.compile(r"-?[0-9]{1,16}", re.ASCII)
_LIMIT: Final = re.compile(r"0*([1-9][0-9]*)", re.ASCII)
_TIMEOUT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_NUMBER_LENGTH_MAX: Final = 64


def parse_records_path(raw_path: bytes, *, bytes_max: int) -> StreamName:
    """The stream a path names; at the bare path none of our own, however it is encoded."""
    is_bare = not raw_path.startswith(RECORDS_PREFIX)
    prefix = BARE_PREFIX if is_bare else RECORDS_PREFIX
    name = parse_stream_path(raw_path, bytes_max=bytes_max, prefix=prefix)
    if is_bare and name.partition("/")[0] in RESERVED_PATHS:
        raise BadStreamName(
            "this path is the server's own",
            hint=f"A stream of that name is at {RECORDS_PREFIX.decode()}.",
        )
    return name


def is_bare_path(raw_path: bytes) -> bool:
    """Whether a path names a stream where every path does that is not one of our own."""
    first = raw_path[1:].partition(b"/")[0]
    return raw_path.startswith(BARE_PREFIX) and first.decode("latin-1") not in RESERVED_PATHS


# Requests.


def parse_version(text: str | None) -> int | None:
    """The producer's version; one below zero is simply too old."""
    if text is None:
        return None
    if _VERSION.fullmatch(text):
        version = int(text)
        if abs(version) <= NUMBER_MAX:
            return version
    raise InvalidRequest(
        "Invalid version parameter", hint=f"Send a whole number up to {NUMBER_MAX}."
    )


def parse_records(body: bytes) -> bytes | None:
    """The member records with its own bytes; None where there is none. BadJson if it is no JSON."""
    try:
        if not body.isascii():
            body.decode("utf-8")
        return json_member(body, "records")
    except UnicodeDecodeError as error:
        raise BadJson("Invalid JSON body", hint="The body is not valid UTF-8.") from error
    except BadJson as error:
        raise BadJson("Invalid JSON body", hint=error.message) from error


def parse_post(
    query: Mapping[str, str], headers: Mapping[bytes, bytes], limits: LimitSettings, body: bytes
) -> AppendRequest:
    """What a POST asks for, looked at in the order of the original: body, version, records."""
    records = parse_records(body)
    version = parse_version(query.get("version"))
    if records is None or not records.startswith(b"["):
        raise InvalidRequest(
            "records must be an array", hint='Send {"records": [...]}; any JSON value is a record.'
        )
    return AppendRequest(
        content_type=JSON_TYPE,
        body=records if records[1:-1].strip(_JSON_SPACE) else b"",
        close=parse_closed(headers.get(b"stream-closed")),
        producer=parse_producer(headers, limits),
        stream_seq=parse_stream_seq(headers.get(b"stream-seq"), limits),
        fence=version,
        ack=parse_ack(query.get("ack"), headers.get(b"stream-ack")),
    )


@dataclass(frozen=True, slots=True)
class RecordsQuery:
    """What a GET asks for."""

    position: Offset | None
    """None: only what comes next, or since a moment."""
    since: str | None
    limit: int
    timeout_ms: int


def parse_get(query: Mapping[str, str], *, timeout_ms_max: int) -> RecordsQuery:
    """Where to begin, how many records, how long to wait for the first of them."""
    offset, since = query.get("offset") or None, query.get("since")
    if offset is not None and since is not None:
        raise BadOffset("offset and since exclude each other")
    return RecordsQuery(
        position=None if offset is None else _parse_position(offset),
        since=since,
        limit=_parse_limit(query.get("limit", "")),
        timeout_ms=_parse_timeout(query.get("timeout_sec", ""), timeout_ms_max),
    )


def _parse_position(text: str) -> Offset:
    if text == "-":
        return START
    try:
        return parse_offset(text)
    except BadOffset as error:
        raise BadOffset(
            "not an offset",
            hint="Send - for the beginning, nothing for what comes next, or an offset of this"
            " server (32 digits).",
        ) from error


def _parse_limit(text: str) -> int:
    if not text:
        return LIMIT_DEFAULT
    match = _LIMIT.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"limit must be a whole number from 1 to {LIMIT_MAX}")
    digits = match[1]
    return LIMIT_MAX if len(digits) > len(str(LIMIT_MAX)) else min(int(digits), LIMIT_MAX)


def _parse_timeout(text: str, timeout_ms_max: int) -> int:
    if not text:
        return 0
    if len(text) > _NUMBER_LENGTH_MAX or not _TIMEOUT.fullmatch(text):
        raise InvalidRequest("timeout_sec must be a number of seconds", hint="Send e.g. 10 or 0.5.")
    return int(min(max(0.0, float(text)), timeout_ms_max / 1000) * 1000)


# Responses.


def render_records(result: RecordsResult) -> bytes:
    """The records with their offsets; JSON ones keep their own bytes."""
    if result.kind is PayloadKind.JSON:
        parts = [b'{"offset":"%032d","data":%b}' % pair for pair in result.records]
    elif result.kind is PayloadKind.TEXT:
        parts = [
            b'{"offset":"%032d","data":%b}' % (offset, orjson.dumps(data.decode("utf-8")))
            for offset, data in result.records
        ]
    else:
        parts = [
            b'{"offset":"%032d","data":"%b","encoding":"base64"}' % (offset, base64.b64encode(data))
            for offset, data in result.records
        ]
    return b'{"records":[%b]}' % b",".join(parts)


NO_RECORDS: Final = b'{"records":[]}'


def render_appended(result: AppendResult) -> bytes:
    """One offset per record. Where a repeated append lies is not kept: it says so instead."""
    if result.duplicate:
        return b'{"offsets":[],"duplicate":true}'
    first = result.tail - result.count + 1
    offsets = b",".join([b'"%032d"' % offset for offset in range(first, result.tail + 1)])
    return b'{"offsets":[%b]}' % offsets


def render_version(version: int) -> bytes:
    """The answer to an append of no records."""
    return b'{"version":%d}' % version


def render_refusal(error: BottomlessError) -> tuple[int, Headers, bytes]:
    """Status, headers and body of a refusal, as this dialect's clients know it."""
    status, headers, body = render_error(error)
    known = orjson.loads(body)
    answer: dict[str, object] = {"error": known["detail"], "code": known["code"]}
    if isinstance(error, VersionTooOld):
        answer["error"] = "Producer version too old"
        answer["current_version"] = error.current
        answer["provided_version"] = error.provided
    if "hint" in known:
        answer["hint"] = known["hint"]
    others = [header for header in headers if header[0] not in (b"content-type", b"cache-control")]
    return status, [*JSON_HEADERS, *others], orjson.dumps(answer)


def render_not_allowed(method: str) -> bytes:
    """The body of a 405."""
    return orjson.dumps(
        {
            "error": f"{method} is not implemented here",
            "code": "method_not_allowed",
            "hint": "The settings of a stream are at /v1/stream/{name}/_settings.",
        }
    )
