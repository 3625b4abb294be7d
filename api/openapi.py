"""The data plane as OpenAPI paths, so that /docs shows what most callers come for."""

from __future__ import annotations

from typing import Any

_PATH = "/v1/stream/{name}"
_TEXT = {"type": "string"}


def describe_streams() -> dict[str, Any]:
    """The paths object of /v1/stream/{name}."""
    name = _parameter("path", "name", "Name of the stream; may have several segments.")
    return {
        _PATH: {
            "parameters": [name],
            "put": _put(),
            "post": _post(),
            "get": _get(),
            "head": _operation("Position, content type and life time of a stream.", {"200": "ok"}),
            "delete": _operation("Delete a stream.", {"204": "deleted", "404": "no such stream"}),
        }
    }


def describe_records() -> dict[str, Any]:
    """The paths object of /v1/records/{name}."""
    name = _parameter("path", "name", "Name of the stream; may have several segments.")
    replies = {"200": "deleted, or there was none"}
    return {
        "/v1/records/{name}": {
            "parameters": [name],
            "post": _post_records(),
            "get": _get_records(),
            "delete": _operation("Delete a stream.", replies, tag="records"),
        }
    }


def describe_settings() -> dict[str, Any]:
    """The paths object of /v1/stream/{name}/_settings."""
    name = _parameter("path", "name", "Name of the stream; may have several segments.")
    replies = {"200": "the settings", "404": "no such stream"}
    patch = _operation(
        "Change some of a stream's own settings; null gives one back to the server's.",
        {**replies, "400": "unknown, out of range, or fixed when the stream is created"},
        body=True,
    )
    example = {"ack": "table", "commit": {"interval_ms": 200}, "retain": {"age_seconds": 2592000}}
    patch["requestBody"]["content"]["application/json"]["example"] = example
    return {
        "/v1/stream/{name}/_settings": {
            "parameters": [name],
            "get": _operation("What a stream is told, and what is in force.", replies),
            "patch": patch,
        }
    }


def _post_records() -> dict[str, Any]:
    query = {
        "version": "The producer's version; refused if a higher one was seen, raises it if higher.",
        "ack": "wal or table: when to answer.",
    }
    replies = {
        "200": "the offsets of the records, which are durable; or the version, for no records",
        "400": "not JSON, no array of records, or a bad parameter",
        "409": "a higher version was seen, the stream is closed, or it holds no JSON",
        "413": "too large",
    }
    operation = _operation(
        "Append records; the first append creates the stream.",
        replies,
        query=query,
        tag="records",
        body=True,
    )
    operation["requestBody"]["content"]["application/json"]["example"] = {"records": [{"a": 1}]}
    return operation


def _get_records() -> dict[str, Any]:
    query = {
        "offset": "- (the start), or the last offset read; blank: only what comes next.",
        "since": "Instead of offset: a time (RFC 3339), a date, now, or -2h.",
        "limit": "Most records, 1 to 10000; 10 if missing.",
        "timeout_sec": "How long to wait for the first record.",
    }
    replies = {"200": "records, each with its offset", "410": "older than what is retained"}
    summary = "Read records, or wait for the next ones."
    return _operation(summary, replies, query=query, tag="records")


def _put() -> dict[str, Any]:
    headers = {
        "Stream-TTL": "Seconds without access after which the stream expires.",
        "Stream-Expires-At": "Moment (RFC 3339) at which the stream expires.",
        "Stream-Closed": "true creates a stream that is closed already.",
        "Stream-Forked-From": "Path of a stream whose history the new one begins with.",
        "Stream-Fork-Offset": "Offset in the source after which the fork goes its own way.",
        "Stream-Fork-Sub-Offset": "Records (or bytes) of the next append that the fork keeps too.",
    }
    replies = {"201": "created", "200": "exists, equal", "409": "exists, different"}
    return _operation("Create a stream.", replies, headers=headers, body=True)


def _post() -> dict[str, Any]:
    headers = {
        "Stream-Closed": "true closes the stream after the append.",
        "Stream-Ack": "wal or table: answered when the record is in the log, or in the table.",
        "Stream-Seq": "Must be greater than the last one, byte by byte.",
        "Producer-Id": "With epoch and sequence: an append that can be repeated safely.",
        "Producer-Epoch": "Raised by a producer that starts over.",
        "Producer-Seq": "0, 1, 2, ... within an epoch.",
    }
    replies = {
        "204": "appended, durable",
        "200": "appended, durable (with producer headers)",
        "403": "a newer producer epoch exists",
        "404": "no such stream",
        "409": "closed, wrong content type, or a sequence gap",
        "413": "too large",
    }
    return _operation("Append records, close the stream, or both.", replies, headers, body=True)


def _get() -> dict[str, Any]:
    query = {
        "offset": "-1 (the start), now, or an offset the server returned.",
        "since": "Instead of offset: a time (RFC 3339), a date, now, or -2h.",
        "live": "long-poll or sse.",
        "cursor": "The last Stream-Cursor, for caches.",
    }
    replies = {
        "200": "records after the offset",
        "204": "nothing yet (long-poll)",
        "304": "not modified",
        "404": "no such stream",
        "410": "deleted, or older than what is retained",
    }
    return _operation("Read, or follow a stream live.", replies, query=query)


def _operation(
    summary: str,
    replies: dict[str, str],
    headers: dict[str, str] | None = None,
    *,
    query: dict[str, str] | None = None,
    body: bool = False,
    tag: str = "streams",
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "tags": [tag],
        "summary": summary,
        "responses": {status: {"description": text} for status, text in replies.items()},
    }
    parameters = [_parameter("header", key, text) for key, text in (headers or {}).items()]
    parameters += [_parameter("query", key, text) for key, text in (query or {}).items()]
    if parameters:
        operation["parameters"] = parameters
    if body:
        content = {"application/json": {"schema": {}, "example": [{"hello": "world"}]}}
        operation["requestBody"] = {"content": content}
    return operation


def _parameter(place: str, name: str, text: str) -> dict[str, Any]:
    return {
        "in": place,
        "name": name,
        "required": place == "path",
        "description": text,
        "schema": _TEXT,
    }
