"""The application: FastAPI owns it; the data plane inside it is a raw ASGI callable (F12)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from typing_extensions import override

from api.asgi import NO_STORE, PREFLIGHT, add_header, allow_origin, respond
from api.auth.gate import OPEN_PATHS
from api.errors import PROBLEM_TYPE, problem, render_error
from api.openapi import describe_records, describe_settings, describe_streams
from api.protocol import STREAM_PREFIX
from api.records import RECORDS_PREFIX, is_bare_path, render_refusal
from api.routes.admin import SETTINGS_SUFFIX, StreamSettingsResource, list_router
from api.routes.ops import ops_router
from api.routes.records import RecordsDialect
from api.routes.streams import StreamDialect
from engine import BottomlessError, SystemClock

if TYPE_CHECKING:
    from api.asgi import Receive, Scope, Send
    from api.auth.gate import Gate
    from api.settings import HttpSettings, Settings
    from engine import Log

_log: Final = structlog.get_logger("api.app")


class Application(FastAPI):
    """FastAPI for everything but the data plane, which is reached before any middleware."""

    def __init__(
        self,
        streams: StreamDialect,
        records: RecordsDialect,
        stream_settings: StreamSettingsResource,
        gate: Gate,
        *,
        http: HttpSettings,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._streams = streams
        self._records = records
        self._stream_settings = stream_settings
        self._has_bare_records = http.bare_records
        self._gate = gate
        self._origins = frozenset(origin.encode() for origin in http.cors_origins if origin != "*")

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Through the gate, then to whoever serves the path."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        if self._origins:
            send = allow_origin(self._origins, scope, send)
        if scope["method"] == "OPTIONS":
            # A preflight carries no token, tells nothing and changes nothing.
            await respond(send, 204, PREFLIGHT)
            return
        try:
            self._enter(scope)
        except BottomlessError as error:
            is_records = self._dialect(scope["raw_path"]) is self._records
            await respond(send, *(render_refusal if is_records else render_error)(error))
            return
        await self._serve(scope, receive, send)

    def _dialect(
        self, raw_path: bytes
    ) -> StreamDialect | RecordsDialect | StreamSettingsResource | None:
        """Whose a path is. By the raw path: a name is decoded once, strictly, by the dialect."""
        if raw_path.startswith(STREAM_PREFIX):
            is_settings = raw_path.endswith(SETTINGS_SUFFIX)
            return self._stream_settings if is_settings else self._streams
        if raw_path.startswith(RECORDS_PREFIX):
            return self._records
        return self._records if self._has_bare_records and is_bare_path(raw_path) else None

    def _enter(self, scope: Scope) -> None:
        """Raises unless the caller may go on. What no dialect asks about needs admin on all."""
        if scope["raw_path"] in OPEN_PATHS:
            return
        self._gate.admit(scope)
        # A dialect asks for the stream in question; everything else is the operator's.
        if self._dialect(scope["raw_path"]) is None:
            self._gate.require_everywhere(scope, "admin")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        dialect = self._dialect(scope["raw_path"])
        if dialect is None:
            if self._gate.is_on:
                send = add_header(send, NO_STORE)
            await super().__call__(scope, receive, send)
            return
        try:
            await dialect(scope, receive, send)
        except Exception:
            _log.exception("request failed", method=scope["method"], path=repr(scope["raw_path"]))
            raise

    @override
    def openapi(self) -> dict[str, Any]:
        """The schema, with the data plane that FastAPI does not route."""
        if self.openapi_schema is None:
            schema = super().openapi()
            schema["paths"] |= describe_streams() | describe_records() | describe_settings()
        assert self.openapi_schema is not None
        return self.openapi_schema


def create_app(settings: Settings, log: Log, gate: Gate) -> Application:
    """The whole server as one ASGI application; whoever runs it starts and stops the log."""
    http, limits, clock = settings.http, settings.limits, SystemClock()
    app = Application(
        StreamDialect(log, http, limits, gate=gate, clock=clock, rng=random.SystemRandom()),
        RecordsDialect(log, http, limits, gate=gate, clock=clock),
        StreamSettingsResource(log, settings, gate),
        gate,
        http=http,
        title="Bottomless",
        summary="Durable streams that are Delta tables",
        version="0.1.0",
    )
    app.include_router(ops_router(log))
    app.include_router(list_router(log, clock))

    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> JSONResponse:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
        body = {"status": error.status_code, "code": code, "detail": str(error.detail)}
        return JSONResponse(
            body,
            status_code=error.status_code,
            headers=dict(error.headers or {}),
            media_type=PROBLEM_TYPE.decode(),
        )

    @app.exception_handler(RequestValidationError)
    async def correct(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][1:]))
        body = problem(400, "invalid_request", f"{where}: {first['msg']}")
        return Response(body, 400, media_type=PROBLEM_TYPE.decode())

    @app.exception_handler(BottomlessError)
    async def explain(_: Request, error: BottomlessError) -> Response:
        status, headers, body = render_error(error)
        response = Response(body, status)
        response.raw_headers += headers
        return response

    return app
