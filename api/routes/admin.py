"""What an operator asks of streams: which there are, and what each one is told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import orjson
from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict

from api.asgi import NO_STORE, Headers, respond
from api.body import ClientGone, check_framing, read_body
from api.errors import PROBLEM_TYPE, problem, render_error
from api.protocol import headers_by_name, parse_stream_path
from api.refusal import send_refusal
from engine import BottomlessError, format_wire
from engine.errors import BadSetting, InvalidRequest

if TYPE_CHECKING:
    from api.asgi import Receive, Scope, Send
    from api.auth.gate import Gate
    from api.auth.grants import Action
    from api.settings import Settings
    from engine import Clock, Log, StreamInfo, StreamName, StreamSummary
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
    id: str
    """Another one when the name is deleted and created again."""
    appended_records: int
    """Since the server started, what it found in its log included: two answers with the same
    `started` tell what came in between."""
    appended_bytes: int
    """Their payload; JSON records with the commas between them."""
    uncommitted_records: int
    """Durable in the log, not yet in the table."""
    uncommitted_bytes: int
    commit_lag_ms: int
    """Age of the oldest of them."""
    readers: int
    """Live readers (SSE, long-poll) that are connected."""
    writers: int
    """Idempotent producers that sent more than one append, the last within a minute."""


class StreamPage(BaseModel):
    """A page of streams, in the order of their names."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    streams: list[StreamEntry]
    next: str | None
    """Ask again with after=... for the next page; null on the last one."""
    has_more: bool
    """There are streams that match and are not on this page."""
    now: str
    """The server's clock (RFC 3339)."""
    started: str
    """When the server started: its counters began there."""


def list_router(log: Log, clock: Clock) -> APIRouter:
    """GET /v1/streams."""
    router = APIRouter(tags=["streams"])
    started = _moment(clock.now_ms())

    @router.get("/v1/streams", response_model=StreamPage)
    async def list_streams(
        prefix: Annotated[str, Query(max_length=4096)] = "",
        contains: Annotated[str, Query(max_length=4096)] = "",
        order: Annotated[Literal["name", "newest"], Query()] = "name",
        after: Annotated[str, Query(max_length=4096)] = "",
        limit: Annotated[int, Query(ge=1, le=_PAGE_MAX)] = _PAGE_DEFAULT,
    ) -> Response:
        """Streams whose name begins with a prefix and contains a text, page by page; or, with
        order=newest, those that were appended to last, on one page.
        """
        is_newest = order == "newest"
        if is_newest and after:
            raise InvalidRequest(
                "the order newest has one page",
                hint="Raise limit, or leave order or after out.",
            )
        found = await log.list_streams(
            prefix=prefix,
            contains=contains,
            after=after,
            count_max=limit + 1,
            newest_first=is_newest,
        )
        page, has_more = found[:limit], len(found) > limit
        answer = {
            "streams": [_entry(summary) for summary in page],
            "next": page[-1].info.name if has_more and not is_newest else None,
            "has_more": has_more,
            "now": _moment(clock.now_ms()),
            "started": started,
        }
        # Not checked against the model again: a page of 1,000 would hold up appends.
        return Response(orjson.dumps(answer), media_type="application/json")

    return router


def _moment(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _entry(summary: StreamSummary) -> dict[str, Any]:
    info, activity, last_ms = summary.info, summary.activity, summary.last_append_ms
    return {
        "name": info.name,
        "content_type": info.content_type,
        "tail": format_wire(info.tail),
        "closed": info.closed,
        "records": summary.records,
        "bytes": summary.bytes,
        "files": summary.files,
        "last_append": None if last_ms is None else _moment(last_ms),
        "ttl_seconds": info.ttl_seconds,
        "expires_at": info.expires_at,
        "fault": summary.fault,
        "id": str(info.id),
        "appended_records": activity.appended_records,
        "appended_bytes": activity.appended_bytes,
        "uncommitted_records": activity.uncommitted_records,
        "uncommitted_bytes": activity.uncommitted_bytes,
        "commit_lag_ms": activity.commit_lag_ms,
        "readers": activity.readers,
        "writers": activity.writers,
    }


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
