"""How a refusal is sent: the same for every dialect, but for its form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from api.asgi import respond
from engine import metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from api.asgi import Headers, Send
    from engine import BottomlessError

# The rest of the body is not looked at: the connection ends with it.
_UNREAD: Final = frozenset({413, 415})


async def send_refusal(
    send: Send,
    method: str,
    error: BottomlessError,
    render: Callable[[BottomlessError], tuple[int, Headers, bytes]],
) -> None:
    """Answer a request that an error has ended; refused appends are counted by their code."""
    if method == "POST":
        metrics.append_rejected.labels(code=error.code).inc()
    status, headers, body = render(error)
    if status in _UNREAD:
        headers = [*headers, (b"connection", b"close")]
    await respond(send, status, headers, body)
