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
    operation = _operation("Read, or follow a stream live.", replies)
    operation["parameters"] = [_parameter("query", key, text) for key, text in query.items()]
    return operation


def _operation(
    summary: str,
    replies: dict[str, str],
    headers: dict[str, str] | None = None,
    *,
    body: bool = False,
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "tags": ["streams"],
        "summary": summary,
        "responses": {status: {"description": text} for status, text in replies.items()},
    }
    if headers:
        operation["parameters"] = [_parameter("header", key, text) for key, text in headers.items()]
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
