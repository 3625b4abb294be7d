"""The baseline: a bare ASGI app on uvicorn that reads a request, stores nothing and answers.

What it costs is what HTTP costs in Python; a ratio against it says what durability costs.
"""

from __future__ import annotations

import sys

import uvicorn

CHUNK = b"[" + b",".join([b'{"pad":"' + b"x" * 190 + b'"}'] * 5000) + b"]"


async def app(scope, receive, send):
    message = await receive()
    while message.get("more_body"):
        message = await receive()
    body = CHUNK if scope["method"] == "GET" else b""
    status = {"GET": 200, "PUT": 201}.get(scope["method"], 204)
    headers = [(b"stream-next-offset", b"0000000000000001_0000000000000001")]
    if body:
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off")
