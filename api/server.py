"""Runs the server: recover, listen, and on SIGTERM drain, commit and exit 0."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn
import uvloop
from typing_extensions import override

from api.app import create_app
from api.asgi import EVERY_RESPONSE
from api.connection import Connection, connection_class
from api.logs import configure_logs
from api.routes.quick import QuickAppend
from engine import BottomlessError, Log

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from api.settings import Settings

# uvicorn ticks ten times a second; connections are looked at once a second.
_TICKS_PER_SWEEP: Final = 10
_GC_THRESHOLDS: Final = (50_000, 20, 20)
_log: Final = structlog.get_logger("api.server")


def run(settings: Settings) -> int:
    """Serve until told to stop; returns the exit code."""
    configure_logs(settings.logging)
    try:
        return uvloop.run(_run(settings))
    except BottomlessError as error:
        _log.error("cannot start", error=error.message, code=error.code, hint=error.hint)
        return 1
    except OSError as error:
        _log.error("cannot start", error=str(error))
        return 1


async def _run(settings: Settings) -> int:
    log = Log.at(settings.root, settings.engine)
    listener = _listen(settings)
    try:
        await log.start()
        server = Server(settings, log)
        _tame_garbage_collection()
        _log.info("listening", address=_address(listener), root=str(settings.root.resolve()))
        await server.serve(sockets=[listener])
    finally:
        listener.close()
    await log.stop()
    _log.info("stopped")
    return 0


def _tame_garbage_collection() -> None:
    """Appends make many objects and hardly any cycles; with the defaults the collector looks at the
    whole hot tail again and again (5 % of an append's CPU).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _listen(settings: Settings) -> socket.socket:
    """Taken before recovery: a port in use is told at once."""
    config = uvicorn.Config("", host=settings.http.host, port=settings.http.port, log_config=None)
    return config.bind_socket()


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Server(uvicorn.Server):
    """uvicorn with our connections, time-outs and way of stopping."""

    def __init__(self, settings: Settings, log: Log) -> None:
        http = settings.http
        config = uvicorn.Config(
            create_app(settings, log),
            http=connection_class(http, QuickAppend(log, http, settings.limits)),
            ws="none",
            lifespan="off",
            loop="uvloop",
            log_config=None,
            access_log=False,
            server_header=False,
            headers=[(name.decode(), value.decode()) for name, value in EVERY_RESPONSE],
            proxy_headers=False,
            timeout_keep_alive=max(1, http.keep_alive_ms // 1000),
            timeout_graceful_shutdown=max(1, http.drain_timeout_ms // 1000),
        )
        super().__init__(config)
        self._stream_log = log

    @contextlib.contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's own, does not raise the signal again: a clean stop exits with 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    @override
    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_SWEEP == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.check_timeouts(now)
        return await super().on_tick(counter)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Live readers first: they would otherwise hold the drain until its time-out."""
        self._stream_log.release_followers()
        await super().shutdown(sockets)
