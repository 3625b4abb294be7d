"""Runs the server: recover, listen, and on SIGTERM drain, commit and exit 0."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
from typing import TYPE_CHECKING, Final

import structlog
import uvicorn
import uvloop
from typing_extensions import override

from api.app import create_app
from api.asgi import every_response
from api.auth.exposure import check_exposure, is_loopback
from api.auth.gate import open_gate
from api.auth.store import DamagedFile
from api.connection import Connection, connection_class
from api.logs import configure_logs
from api.protocol import parse_content_type
from api.routes.quick import QuickAppend
from api.settings import BadSettings
from engine import BottomlessError, CreateRequest, Log, SystemClock, check_stream_name
from engine.errors import InvalidRequest, StreamExists

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from api.auth.gate import Gate
    from api.settings import Settings

# uvicorn ticks ten times a second; connections are looked at once a second.
_TICKS_PER_SWEEP: Final = 10
_GC_THRESHOLDS: Final = (50_000, 20, 20)
# TLS 1.2 with forward secrecy and authenticated encryption; TLS 1.3 has nothing else.
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_FULL_DISK_HINT: Final = (
    "Free some space on the disk of the root and on that of its _wal folder, then start again."
    " Nothing acknowledged is lost by trying."
)
_log: Final = structlog.get_logger("api.server")


def run(settings: Settings) -> int:
    """Serve until told to stop; returns the exit code."""
    secret = settings.auth.header_secret.get_secret_value()
    configure_logs(settings.logging, (secret,) if secret else ())
    try:
        check_exposure(settings, settings.http.host)
        gate = open_gate(settings, SystemClock())
        return uvloop.run(_run(settings, gate))
    except BottomlessError as error:
        _log.error("cannot start", error=error.message, code=error.code, hint=error.hint)
        return 1
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        _log.error("cannot start", error=str(error), hint=_FULL_DISK_HINT if is_full else None)
        return 1
    except (BadSettings, DamagedFile) as error:
        _log.error("cannot start", error=str(error))
        return 1


async def _run(settings: Settings, gate: Gate) -> int:
    log = Log.at(settings.root, settings.engine)
    server = Server(settings, log, gate)
    listener = _listen(settings)
    keeper = asyncio.get_running_loop().create_task(gate.keep_current(), name="tokens")
    try:
        check_exposure(settings, listener.getsockname()[0])
        await log.start()
        await _create_declared(log, settings)
        _tame_garbage_collection()
        _tell_where(settings, listener)
        await server.serve(sockets=[listener])
    finally:
        keeper.cancel()
        listener.close()
    await log.stop()
    _log.info("stopped")
    return 0


async def _create_declared(log: Log, settings: Settings) -> None:
    """Streams of conf/streams.toml; those that are there already are left as they are."""
    for text, declaration in settings.declared.items():
        if declaration.content_type is None:
            continue
        try:
            name = check_stream_name(text, bytes_max=settings.limits.name_bytes)
            content_type = parse_content_type(
                declaration.content_type.encode(), bytes_max=settings.limits.content_type_bytes
            )
            result = await log.create(name, CreateRequest(content_type, declaration.ttl_seconds))
        except (StreamExists, InvalidRequest) as error:
            _log.error("a declared stream is not there as declared", stream=text, error=str(error))
        else:
            if result.created:
                _log.info("declared stream created", stream=text)


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


def _tell_where(settings: Settings, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    scheme = "https" if settings.http.tls_cert else "http"
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    _log.info("listening", address=address, root=str(settings.root.resolve()))
    if scheme == "http" and not is_loopback(host):
        _log.warning(
            "tokens and records cross the network unencrypted, unless a proxy does TLS",
            hint="Set http.tls_cert and http.tls_key, or see docs/security.md for a proxy.",
        )


class Server(uvicorn.Server):
    """uvicorn with our connections, time-outs and way of stopping."""

    def __init__(self, settings: Settings, log: Log, gate: Gate) -> None:
        http = settings.http
        every = every_response(http.cors_origins, is_guarded=gate.is_on)
        config = uvicorn.Config(
            create_app(settings, log, gate),
            http=connection_class(
                http,
                QuickAppend(log, http, settings.limits, gate),
                bodies_bytes_max=settings.limits.tail_bytes,
            ),
            ws="none",
            lifespan="off",
            loop="uvloop",
            log_config=None,
            access_log=False,
            server_header=False,
            headers=[(name.decode(), value.decode()) for name, value in every],
            proxy_headers=False,
            ssl_certfile=http.tls_cert or None,
            ssl_keyfile=http.tls_key or None,
            ssl_ciphers=_CIPHERS,
            timeout_keep_alive=max(1, http.keep_alive_ms // 1000),
            timeout_graceful_shutdown=max(1, http.drain_timeout_ms // 1000),
        )
        try:
            # Before anything is listened on: it reads the certificate.
            config.load()
        except OSError as error:
            raise BadSettings(
                f"http.tls_cert and http.tls_key cannot be used: {error}. They must be a PEM"
                " certificate (with its chain) and the private key of it, without a passphrase"
            ) from error
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
