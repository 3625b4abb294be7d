"""The Durable Streams wire format: header names, parsing and rendering rules. Pure functions."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes

from api.errors import BadHeader
from engine import START, Ack, ProducerStamp, check_stream_name, parse_offset
from engine.errors import BadOffset, BadStreamName, InvalidRequest

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from api.asgi import Headers
    from engine import Offset, StreamName
    from engine.settings import LimitSettings

STREAM_PREFIX: Final = b"/v1/stream/"
JSON_TYPE: Final = "application/json"
SSE_TYPE: Final = b"text/event-stream"
NUMBER_MAX: Final = 2**53 - 1
CURSOR_EPOCH_MS: Final = 1_728_432_000_000
"""2024-10-09T00:00:00Z, from which the protocol counts cursor intervals."""
CURSOR_INTERVAL_MS: Final = 20_000
CURSOR_JITTER_S: Final = 3600

_ONLY_ONE_PARAMETER: Final = frozenset(
    {"ack", "limit", "offset", "since", "timeout_sec", "version"}
)
_ONLY_ONE_HEADER: Final = frozenset(
    {
        b"content-type",
        b"content-encoding",
        b"producer-id",
        b"producer-epoch",
        b"producer-seq",
        b"stream-ack",
        b"stream-closed",
        b"stream-expires-at",
        b"stream-fork-offset",
        b"stream-fork-sub-offset",
        b"stream-forked-from",
        b"stream-seq",
        b"stream-ttl",
    }
)

_NUMBER: Final = re.compile(rb"0|[1-9][0-9]{0,18}")
_BAD_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})|%2[fF]|%5[cC]")
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_CONTENT_TYPE: Final = re.compile(
    rb"%b/%b(?:[ \t]*;[ \t]*(?:%b=(?:%b|\"[ !#-\[\]-~]*\"))?)*[ \t]*"
    % (_TOKEN, _TOKEN, _TOKEN, _TOKEN)
)
_VISIBLE: Final = re.compile(rb"[\x20-\x7e\x80-\xff]*")
_ASCII_VISIBLE: Final = re.compile(rb"[\x20-\x7e]+")
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


@lru_cache(maxsize=8192)
def parse_stream_path(
    raw_path: bytes, *, bytes_max: int, prefix: bytes = STREAM_PREFIX
) -> StreamName:
    """The stream a path names: decoded once, strictly, so that two URLs never name one by mistake.

    An encoded slash is refused: it would be a second spelling of the same name.
    """
    if not raw_path.startswith(prefix):
        raise BadStreamName(f"the path of a stream begins with {prefix.decode('ascii')}")
    encoded = raw_path[len(prefix) :]
    if b"%" not in encoded and encoded.isascii():
        return check_stream_name(encoded.decode("ascii"), bytes_max=bytes_max)
    if _BAD_PERCENT.search(encoded):
        raise BadStreamName(
            "the stream name holds an encoded slash, backslash or a bad % sequence",
            hint="Write / as it is, and every other special character percent-encoded.",
        )
    try:
        name = unquote_to_bytes(encoded).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadStreamName("the stream name is not valid UTF-8") from error
    return check_stream_name(name, bytes_max=bytes_max)


def parse_query(query: bytes) -> dict[str, str]:
    """The parameters of a request. Unknown ones are ignored; what decides may not be repeated."""
    found: dict[str, str] = {}
    for part in query.split(b"&") if query else ():
        raw_name, _, raw_value = part.partition(b"=")
        name = unquote_to_bytes(raw_name).decode("latin-1")
        if name in found and name in _ONLY_ONE_PARAMETER:
            raise (BadOffset if name == "offset" else InvalidRequest)(
                f"{name} is given more than once"
            )
        found[name] = unquote_to_bytes(raw_value).decode("latin-1")
    return found


def headers_by_name(pairs: Headers) -> dict[bytes, bytes]:
    """By name. A protocol header that is sent twice could mean either value: refused."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        for name in _ONLY_ONE_HEADER & found.keys():
            if names.count(name) > 1:
                raise BadHeader(f"{name.decode('ascii')} is sent more than once")
    return found


def parse_ack(query: str | None, header: bytes | None) -> Ack | None:
    """When the append shall be answered; None for what the stream's settings say."""
    asked = {query, None if header is None else header.decode("latin-1")} - {None}
    if not asked:
        return None
    if len(asked) > 1:
        raise InvalidRequest("the parameter ack and the header Stream-Ack contradict each other")
    try:
        return Ack(asked.pop())
    except ValueError as error:
        raise InvalidRequest("ack (or Stream-Ack) must be wal or table") from error


def parse_position(text: str | None, *, tail: Offset) -> Offset:
    """Where a read begins."""
    if text is None or text == "-1":
        return START
    if text == "now":
        return tail
    return parse_offset(text)


def parse_number(value: bytes, name: str) -> int:
    """A non-negative decimal number without sign, zeros in front or anything else Python takes."""
    if _NUMBER.fullmatch(value):
        number = int(value)
        if number <= NUMBER_MAX:
            return number
    raise BadHeader(f"{name} must be a whole number from 0 to {NUMBER_MAX}")


def parse_closed(value: bytes | None) -> bool:
    """Only ``true`` counts, in any case."""
    return value is not None and value.lower() == b"true"


@lru_cache(maxsize=1024)
def parse_content_type(value: bytes | None, *, bytes_max: int) -> str | None:
    """The content type as sent; None where there is none."""
    if value is None or not value:
        return None
    if len(value) > bytes_max or not _CONTENT_TYPE.fullmatch(value):
        raise BadHeader("Content-Type is malformed or too long", hint="Send e.g. application/json.")
    return value.decode("ascii")


def parse_producer(headers: Mapping[bytes, bytes], limits: LimitSettings) -> ProducerStamp | None:
    """All three producer headers, or none."""
    id_, epoch = headers.get(b"producer-id"), headers.get(b"producer-epoch")
    seq = headers.get(b"producer-seq")
    if id_ is None and epoch is None and seq is None:
        return None
    if id_ is None or epoch is None or seq is None:
        raise BadHeader("Producer-Id, Producer-Epoch and Producer-Seq go together")
    if len(id_) > limits.producer_id_bytes or not _ASCII_VISIBLE.fullmatch(id_):
        raise BadHeader(
            f"Producer-Id must be 1 to {limits.producer_id_bytes} visible ASCII characters"
        )
    return ProducerStamp(
        id_.decode("ascii"),
        parse_number(epoch, "Producer-Epoch"),
        parse_number(seq, "Producer-Seq"),
    )


def parse_stream_seq(value: bytes | None, limits: LimitSettings) -> str | None:
    """Compared byte by byte; latin-1 keeps every byte and their order."""
    if value is None:
        return None
    if not value or len(value) > limits.stream_seq_bytes or not _VISIBLE.fullmatch(value):
        raise BadHeader(f"Stream-Seq must be 1 to {limits.stream_seq_bytes} visible characters")
    return value.decode("latin-1")


def parse_expires_at(value: bytes) -> tuple[str, int]:
    """The text as sent and the moment in ms since 1970."""
    text = value.decode("latin-1")
    match = _RFC3339.fullmatch(text)
    try:
        if match is None:
            raise ValueError(text)
        whole = datetime.fromisoformat(text[:19].upper() + match[8].upper().replace("Z", "+00:00"))
        seconds = int((whole - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    except (ValueError, OverflowError) as error:
        raise BadHeader(
            "Stream-Expires-At must be an RFC 3339 time with a zone",
            hint="Send e.g. 2030-01-31T12:00:00Z.",
        ) from error
    fraction = (match[7] or ".0")[1:4].ljust(3, "0")
    return text, seconds * 1000 + int(fraction)


def next_cursor(client: str | None, *, now_ms: int, rng: random.Random) -> str:
    """The cursor that lets a CDN collapse live reads; it always moves forward."""
    interval = (now_ms - CURSOR_EPOCH_MS) // CURSOR_INTERVAL_MS
    if client is not None and client.isascii() and client.isdigit() and len(client) <= 16:
        asked = int(client)
        if asked >= interval:
            jitter_s = rng.randint(1, CURSOR_JITTER_S)
            return str(asked + max(1, -(-jitter_s * 1000 // CURSOR_INTERVAL_MS)))
    return str(interval)


def etag_matches(header: bytes | None, etag: bytes) -> bool:
    """Whether If-None-Match names this tag."""
    if header is None:
        return False
    if header.strip() == b"*":
        return True
    return any(tag.strip().removeprefix(b"W/") == etag for tag in header.split(b","))
