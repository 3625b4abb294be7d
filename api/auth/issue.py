"""What `bottomless token` does: makes, lists and revokes tokens of a data folder.

There is no route for this: whoever may write to the data folder decides who may use the server, so
no token can ever make a wider one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.auth.grants import parse_permission
from api.auth.store import TokenFile
from api.auth.tokens import BadToken, Token, format_time, mint, parse_expiry
from engine import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def create_token(
    root: Path, name: str, scopes: Sequence[str], *, expires: str | None, rate: int | None
) -> tuple[Token, str]:
    """A new token and its secret; ValueError says what is not right."""
    now_ms = SystemClock().now_ms()
    token, secret = mint(
        name,
        tuple(parse_permission(scope) for scope in scopes),
        now_ms=now_ms,
        expires_at_ms=None if expires is None else parse_expiry(expires, now_ms=now_ms),
        rate=rate,
    )
    with TokenFile(root).editing() as tokens:
        tokens.append(token)
    return token, secret


def list_tokens(root: Path) -> list[dict[str, str]]:
    """All tokens, for people to read; never a secret or a digest."""
    now_ms = SystemClock().now_ms()
    return [describe(token, now_ms) for token in TokenFile(root).load()]


def revoke_token(root: Path, id_: str) -> Token:
    """Take a token out of the file; BadToken where there is none of that id."""
    with TokenFile(root).editing() as tokens:
        for token in tokens:
            if token.id == id_:
                tokens.remove(token)
                return token
        raise BadToken(f"there is no token {id_}; `bottomless token list` shows them")


def describe(token: Token, now_ms: int) -> dict[str, str]:
    """One token as text, by column."""
    expires = "never"
    if token.expires_at_ms is not None:
        expires = format_time(token.expires_at_ms)
        if token.expires_at_ms <= now_ms:
            expires += " (expired)"
    return {
        "id": token.id,
        "name": token.name,
        "scopes": "  ".join(str(permission) for permission in token.permissions),
        "rate": "" if token.rate is None else f"{token.rate}/s",
        "expires": expires,
        "created": format_time(token.created_at_ms),
    }
