"""What an operator asks of streams: which there are, and what each one is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import orjson
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from api.asgi import NO_STORE, Headers, respond
from api.body import ClientGone, check_framing, read_body
from api.errors import PROBLEM_TYPE, problem, render_error
from api.protocol import headers_by_name, parse_stream_path
from api.refusal import send_refusal
from engine import BottomlessError, format_wire
from engine.errors import BadSetting

if TYPE_CHECKING:
    from api.asgi import Receive, Scope, Send
    from api.auth.gate import Gate
    from api.auth.grants import Action
    from api.settings import Settings
    from engine import Log, StreamInfo, StreamName, StreamSummary
    from engine.settings import Section

SETTINGS_SUFFIX: Final = b"/_settings"
_PAGE_DEFAULT: Final = 100
_PAGE_MAX: Final = 1000
_BODY_BYTES_MAX: Final = 64 * 1024
_FIXED: Final = frozenset({"stream", "content_type", "ttl_seconds", "expires_at", "closed"})
_ACTIONS: Final[dict[str, Action]] = {"GET": "read", "PATCH": "admin"}
_ALLOW: Final = (b"allow", b"GET, PATCH, OPTIONS")
_PROBLEM: Final = (b"content-type", PROBLEM_TYPE)
_JSON: Final[Headers] = [(b"content-type", b"application/json"), NO_STORE]


class StreamEntry(BaseModel):
    """One stream of a list."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    content_type: str
    tail: str
    """Offset of the last record."""
    closed: bool
    records: int
    """Records that can be read; of a fork, those of its own."""
    bytes: int
    """Size of the table's files, and of what waits for its commit."""
    files: int
    last_append: str | None
    """When the last record was flushed (RFC 3339)."""
    ttl_seconds: int | None
    expires_at: str | None
    fault: str | None
    """The error code of a stream that cannot be served."""


class StreamPage(BaseModel):
    """A page of streams, in the order of their names."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    streams: list[StreamEntry]
    next: str | None
    """Ask again with after=... for the next page; null on the last one."""


def list_router(log: Log) -> APIRouter:
    """GET /v1/streams."""
    router = APIRouter(tags=["streams"])

    @router.get("/v1/streams")
    async def list_streams(
        prefix: Annotated[str, Query(max_length=4096)] = "",
        after: Annotated[str, Query(max_length=4096)] = "",
        limit: Annotated[int, Query(ge=1, le=_PAGE_MAX)] = _PAGE_DEFAULT,
    ) -> StreamPage:
        """Streams whose name begins with a prefix, page by page."""
        found = await log.list_streams(prefix=prefix, after=after, count_max=limit + 1)
        page = found[:limit]
        following = page[-1].info.name if len(found) > limit else None
        return StreamPage(streams=[_entry(summary) for summary in page], next=following)

    return router


def _entry(summary: StreamSummary) -> StreamEntry:
    info, last_ms = summary.info, summary.last_append_ms
    moment = None if last_ms is None else datetime.fromtimestamp(last_ms / 1000, UTC)
    return StreamEntry(
        name=info.name,
        content_type=info.content_type,
        tail=format_wire(info.tail),
        closed=info.closed,
        records=summary.records,
        bytes=summary.bytes,
        files=summary.files,
        last_append=None if moment is None else moment.isoformat(timespec="milliseconds"),
        ttl_seconds=info.ttl_seconds,
        expires_at=info.expires_at,
        fault=summary.fault,
    )


class StreamSettingsResource:
    """GET and PATCH of /v1/stream/{name}/_settings."""

    def __init__(self, log: Log, settings: Settings, gate: Gate) -> None:
        self._log = log
        self._settings = settings
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        action = _ACTIONS.get(scope["method"])
        try:
            if action is None:
                body = problem(405, "method_not_allowed", "settings are for GET and PATCH")
                await respond(send, 405, [_ALLOW, _PROBLEM], body)
                return
            path = scope["raw_path"].removesuffix(SETTINGS_SUFFIX)
            name = parse_stream_path(path, bytes_max=self._settings.limits.name_bytes)
            self._gate.require(scope, action, name)
            if action == "admin":
                headers = headers_by_name(scope["headers"])
                check_framing(headers, _BODY_BYTES_MAX)
                patch = parse_patch(await read_body(receive, _BODY_BYTES_MAX))
                # Durable and in force when it is answered.
                await self._log.change_settings(name, patch)
            document = orjson.dumps(self.render(name), option=orjson.OPT_INDENT_2)
            await respond(send, 200, _JSON, document + b"\n")
        except ClientGone:
            return
        except BottomlessError as error:
            await send_refusal(send, scope["method"], error, render_error)

    def render(self, name: StreamName) -> dict[str, Any]:
        """The settings as a document: what cannot be changed, what is its own, what counts."""
        own, in_force = self._log.stream_settings(name)
        info = self._log.head(name)
        return {**_fixed(info), "own": own.model_dump(exclude_defaults=True)} | {
            "in_force": {
                "ack": in_force.ack or "wal",
                "commit": _on_top(self._settings.commit, in_force.commit),
                "compact": _on_top(self._settings.compact, in_force.compact),
                "retain": _on_top(self._settings.retain, in_force.retain),
            }
        }


def parse_patch(body: bytes) -> dict[str, Any]:
    """A JSON object of settings; BadSetting where it is none, or wants what cannot change."""
    try:
        patch = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadSetting(f"the body is not valid JSON: {error}") from error
    if not isinstance(patch, dict):
        raise BadSetting("the body must be a JSON object", hint='Send {"ack": "table"}, e.g.')
    if fixed := _FIXED & patch.keys():
        raise BadSetting(
            f"{sorted(fixed)[0]} is fixed when a stream is created",
            hint="Create another stream, with PUT.",
        )
    return patch


def _fixed(info: StreamInfo) -> dict[str, Any]:
    return {
        "stream": info.name,
        "content_type": info.content_type,
        "ttl_seconds": info.ttl_seconds,
        "expires_at": info.expires_at,
        "closed": info.closed,
    }


def _on_top(section: Section, overrides: Section) -> dict[str, Any]:
    """The settings a stream can have of its own, with those it has on top of the server's."""
    fields = set(type(overrides).model_fields)
    return section.model_dump(include=fields) | overrides.model_dump(exclude_none=True)
