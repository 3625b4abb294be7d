"""Structured logs: one JSON object per line in service, text for people at a terminal."""

from __future__ import annotations

import json
import logging
import re
import sys
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

    from api.settings import LoggingSettings

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_REDACTED: Final = "[redacted]"
# What follows "Bearer", our own keys (api.auth.tokens), and JWTs wherever they are.
_TOKENS: Final = re.compile(
    r"(?i:(?<=bearer )|(?<=bearer%20))[^\s'\"\\,]+"
    r"|bl_[A-Za-z0-9_-]{8,}"
    r"|eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
)


def configure_logs(settings: LoggingSettings, secrets: tuple[str, ...] = ()) -> None:
    """Send everything, uvicorn's own lines included, through one pipeline to standard error.

    Nothing here logs a token on purpose. What looks like one, and the ``secrets``, are taken out of
    every finished line all the same: a library's exception may quote what it choked on.
    """
    is_text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: Processor
    if is_text:
        # Not the default, which prints the values of variables: requests, with their tokens.
        render = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    else:
        shared.append(structlog.processors.format_exc_info)
        render = structlog.processors.JSONRenderer()
    last = _redacting(render, secrets)
    level = _LEVELS[settings.level]
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processor=last)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _redacting(render: Processor, secrets: tuple[str, ...]) -> Processor:
    """The renderer, with every secret taken out of what it has rendered."""
    spellings = {
        spelling
        for secret in secrets
        for spelling in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])
    }
    known = sorted(map(re.escape, spellings), key=len, reverse=True)
    pattern = re.compile("|".join([*known, _TOKENS.pattern]))

    def redact(logger: WrappedLogger, name: str, event: EventDict) -> str:
        line = render(logger, name, event)
        assert isinstance(line, str)
        return pattern.sub(_REDACTED, line)

    return redact
