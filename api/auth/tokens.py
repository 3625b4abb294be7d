"""API keys: what is known about one, how it is minted, how its file spells it.

The secret is 256 random bits, so a plain SHA-256 is a safe thing to store: there is nothing to
guess, and a slow hash would only cost every request.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from api.auth.grants import PERMISSIONS_MAX, Permission, parse_permission

SECRET_PREFIX: Final = "bl_"  # noqa: S105  (what a secret begins with, so that scanners find it)
RATE_MAX: Final = 1_000_000
_SECRET_BYTES: Final = 32
_ID_BYTES: Final = 4
_NAME_CHARACTERS_MAX: Final = 100
_DURATION: Final = re.compile(r"([1-9][0-9]{0,6})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_ID: Final = re.compile(r"[0-9a-f]{8}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class BadToken(ValueError):
    """Something about a token is not right; the message says what."""


@dataclass(frozen=True, slots=True)
class Token:
    """One API key, without its secret."""

    id: str
    name: str
    digest: bytes
    permissions: tuple[Permission, ...]
    created_at_ms: int
    expires_at_ms: int | None = None
    rate: int | None = None
    """Requests per second; None for no bound."""

    def __post_init__(self) -> None:
        if not self.name.isprintable() or not 0 < len(self.name) <= _NAME_CHARACTERS_MAX:
            raise BadToken(f"a name has 1 to {_NAME_CHARACTERS_MAX} printable characters")
        if not 0 < len(self.permissions) <= PERMISSIONS_MAX:
            raise BadToken(f"a token has 1 to {PERMISSIONS_MAX} scopes")
        if self.rate is not None and not 0 < self.rate <= RATE_MAX:
            raise BadToken(f"a rate is a number of requests per second from 1 to {RATE_MAX}")


def mint(
    name: str,
    permissions: tuple[Permission, ...],
    *,
    now_ms: int,
    expires_at_ms: int | None = None,
    rate: int | None = None,
) -> tuple[Token, str]:
    """A new token and its secret, which is kept nowhere."""
    secret = SECRET_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    token = Token(
        id=secrets.token_hex(_ID_BYTES),
        name=name,
        digest=digest_of(secret.encode("ascii")),
        permissions=permissions,
        created_at_ms=now_ms,
        expires_at_ms=expires_at_ms,
        rate=rate,
    )
    return token, secret


def digest_of(secret: bytes) -> bytes:
    """What is stored and compared in place of a secret."""
    return hashlib.sha256(secret).digest()


def parse_expiry(text: str, *, now_ms: int) -> int:
    """``30d``, ``12h`` …, or a moment (RFC 3339, with a zone) in the future; in ms since 1970."""
    match = _DURATION.fullmatch(text)
    if match is not None:
        return now_ms + int(match[1]) * _SECONDS[match[2]] * 1000
    try:
        moment = _parse_time(text)
    except ValueError as error:
        raise BadToken(
            f"{text!r} is neither a duration like 30d, 12h, 90m nor a time like"
            " 2030-01-31T12:00:00Z"
        ) from error
    if moment <= now_ms:
        raise BadToken(f"{text} is in the past")
    return moment


def format_time(moment_ms: int) -> str:
    """RFC 3339 in UTC."""
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def dump_token(token: Token) -> dict[str, Any]:
    """As the file holds it."""
    return {
        "id": token.id,
        "name": token.name,
        "digest": token.digest.hex(),
        "scopes": [str(permission) for permission in token.permissions],
        "created_at": format_time(token.created_at_ms),
        "expires_at": None if token.expires_at_ms is None else format_time(token.expires_at_ms),
        "rate": token.rate,
    }


def load_token(found: dict[str, Any]) -> Token:
    """Back from the file; ValueError, KeyError or TypeError where it is not what we wrote."""
    if found.keys() != {"id", "name", "digest", "scopes", "created_at", "expires_at", "rate"}:
        raise BadToken("a token has other fields than it should")
    if not _ID.fullmatch(found["id"]) or not _DIGEST.fullmatch(found["digest"]):
        raise BadToken("an id or a digest is malformed")
    rate = found["rate"]
    if rate is not None and type(rate) is not int:
        raise BadToken("a rate is not a number")
    expires_at = found["expires_at"]
    return Token(
        id=found["id"],
        name=found["name"],
        digest=bytes.fromhex(found["digest"]),
        permissions=tuple(parse_permission(scope) for scope in found["scopes"]),
        created_at_ms=_parse_time(found["created_at"]),
        expires_at_ms=None if expires_at is None else _parse_time(expires_at),
        rate=rate,
    )


def _parse_time(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise BadToken(f"{text!r} has no time zone")
    return round(moment.timestamp() * 1000)
