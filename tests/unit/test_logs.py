"""What the log never holds: tokens, in whatever way they come in (row 138 of the bad inputs)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parents[2]
KEY = "bl_CanaryCanaryCanaryCanaryCanaryCanaryCanary1"
JWT = "eyJjYW5hcnk.eyJjYW5hcnkiOjF9.Y2FuYXJ5LWNhbmFyeQ"
SECRET = 'canary "with" \\ and \ttab'

# A process of its own: the configuration is global, and tests share theirs.
SCRIPT = """
import asyncio, logging, sys
import structlog
from api.app import Application
from api.auth.gate import OpenGate
from api.logs import configure_logs
from api.settings import HttpSettings, LoggingSettings

style, key, jwt, secret = sys.argv[1:]
configure_logs(LoggingSettings(level="debug", format=style), (secret,))
log = structlog.get_logger("test")


async def broken(scope, receive, send):
    values = (key, jwt, secret)
    raise RuntimeError(f"no {key} {jwt} {secret} {scope['headers']}")


async def main():
    headers = [
        (b"authorization", b"Bearer " + key.encode()),
        (b"authorization", b"bearer opaque-canary"),
        (b"auth", secret.encode()),
    ]
    scope = {
        "type": "http", "method": "GET", "raw_path": b"/v1/stream/x", "headers": headers,
        "path": "/v1/stream/x", "query_string": b"",
    }
    application = Application.__new__(Application)
    application._gate, application._origins, application._streams = OpenGate(), (), broken
    application._dialect = lambda _: broken
    try:
        await application(scope, None, None)
    except RuntimeError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application %s", scope)
    log.warning("kept", url=f"/x?apiKey={key}&jwt={jwt}", header="Bearer opaque-canary")
    log.warning("kept", text=secret)
    log.info("harmless", name="bearer of news", path="/v1/stream/bl_short")

asyncio.run(main())
"""


@pytest.mark.parametrize("style", ["json", "text"])
def test_log_never_holds_a_token(style: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, style, KEY, JWT, SECRET],
        cwd=CLONE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    log = done.stderr
    assert log.count("RuntimeError") >= 2
    assert log.count("[redacted]") >= 10
    spellings = [SECRET, json.dumps(SECRET)[1:-1], repr(SECRET)[1:-1]]
    for canary in (KEY, KEY[3:20], JWT, "opaque-canary", *spellings):
        assert canary not in log, canary
    assert "harmless" in log
    assert "/v1/stream/bl_short" in log
    if style == "json":
        for line in log.splitlines():
            json.loads(line)
