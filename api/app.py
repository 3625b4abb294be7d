"""The application: FastAPI owns it; the data plane inside it is a raw ASGI callable (F12)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from typing_extensions import override

from api.errors import PROBLEM_TYPE
from api.openapi import describe_streams
from api.protocol import STREAM_PREFIX
from api.routes.ops import ops_router
from api.routes.streams import StreamDialect
from engine import SystemClock

if TYPE_CHECKING:
    from api.asgi import Receive, Scope, Send
    from api.settings import Settings
    from engine import Log

_log: Final = structlog.get_logger("api.app")


class Application(FastAPI):
    """FastAPI for everything but the data plane, which is reached before any middleware."""

    def __init__(self, data_plane: StreamDialect, **options: Any) -> None:
        super().__init__(**options)
        self._data_plane = data_plane

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route by the raw path: a name is decoded once, strictly, by the dialect itself."""
        if scope["type"] != "http" or not scope["raw_path"].startswith(STREAM_PREFIX):
            await super().__call__(scope, receive, send)
            return
        try:
            await self._data_plane(scope, receive, send)
        except Exception:
            _log.exception("request failed", method=scope["method"], path=repr(scope["raw_path"]))
            raise

    @override
    def openapi(self) -> dict[str, Any]:
        """The schema, with the data plane that FastAPI does not route."""
        if self.openapi_schema is None:
            schema = super().openapi()
            schema["paths"].update(describe_streams())
        assert self.openapi_schema is not None
        return self.openapi_schema


def create_app(settings: Settings, log: Log) -> Application:
    """The whole server as one ASGI application; whoever runs it starts and stops the log."""
    dialect = StreamDialect(
        log,
        settings.http,
        settings.limits,
        clock=SystemClock(),
        rng=random.SystemRandom(),
    )

    app = Application(
        dialect,
        title="Bottomless",
        summary="Durable streams that are Delta tables",
        version="0.1.0",
    )
    app.include_router(ops_router(log))

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

    return app
