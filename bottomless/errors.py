"""Everything the client library raises.

BottomlessError             the root: message, code, hint, status
  InvalidRequest            fix the call
  NotAllowed                the token is missing, or may not do that
  NotFound                  there is no such stream
  Gone                      it was, and is no more: deleted, or trimmed at that offset
  Conflict                  the state of the stream says no: closed, exists, another type
  Fenced                    somebody else has taken over this producer, version or group
  Unavailable               the server cannot, now: full, starting, out of reach
  DeliveryUnknown           whether a batch is stored is not known, and nobody may guess
  DataDamaged               what came back is not what a server sends
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import httpx


class BottomlessError(Exception):
    """The root: says what happened and, where that is known, what to do."""

    def __init__(
        self, message: str, *, code: str = "", hint: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.message = message
        self.code = code
        """The server's stable word for it, e.g. ``stream_closed``."""
        self.hint = hint
        self.status = status
        """The HTTP status, where there was an answer."""
        self.headers: dict[str, str] = {}
        self.retry_after_s: float | None = None


class InvalidRequest(BottomlessError):
    """The call is wrong; sending it again changes nothing."""


class NotAllowed(BottomlessError):
    """The token is missing, has ended, or may not do this."""


class NotFound(BottomlessError):
    """There is no such stream."""


class Gone(BottomlessError):
    """It was there and is no more: a deleted stream, a trimmed offset."""


class Conflict(BottomlessError):
    """The stream is in a state that does not allow this."""


class Fenced(BottomlessError):
    """Somebody else has taken over."""


class Unavailable(BottomlessError):
    """The server cannot do this now; later it may."""


class DeliveryUnknown(BottomlessError):
    """An answer was lost, and it cannot be found out any more whether the batch is stored."""


class DataDamaged(BottomlessError):
    """An answer that no server of ours sends."""


_KINDS: Final[dict[int, type[BottomlessError]]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    410: Gone,
    408: Unavailable,
    429: Unavailable,
}
_FENCED: Final = frozenset({"stale_epoch", "fenced", "version_too_old"})


def error_of(response: httpx.Response, body: bytes) -> BottomlessError:
    """What a refusal means."""
    path = response.request.url.path
    status = response.status_code
    try:
        problem = msgspec.json.decode(body, type=dict[str, object])
    except msgspec.DecodeError:
        problem = {}
    code = str(problem.get("code", ""))
    detail = str(
        problem.get("detail") or problem.get("error") or f"{path}: {response.reason_phrase}"
    )
    hint = problem.get("hint")
    kind = _KINDS.get(status, Unavailable if status >= 500 else InvalidRequest)
    if code in _FENCED or (status == 403 and "producer-epoch" in response.headers):
        kind = Fenced
    error = kind(detail, code=code, hint=None if hint is None else str(hint), status=status)
    error.headers = {name.lower(): value for name, value in response.headers.items()}
    error.retry_after_s = _seconds(response.headers.get("retry-after"))
    return error


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None
