"""The API keys that count now: a copy of the token file in memory, kept current."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from api.auth.grants import Grant
from api.auth.limits import TokenBucket
from api.auth.store import DamagedFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from api.auth.store import Stamp, TokenFile
    from api.auth.tokens import Token

_log: Final = structlog.get_logger("api.auth")


class _Key(NamedTuple):
    token: Token
    grant: Grant


class KeyRing:
    """Finds the grant of a key by the key's digest."""

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self._stamp: Stamp | None = None
        self._keys: dict[bytes, _Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, digest: bytes) -> Grant | None:
        """The grant of the key with this SHA-256 digest; it may have expired.

        Constant-time where it matters: a dict compares the digest, not the secret. Whoever tries
        secrets cannot steer the digest's bytes, so how many of them agree with a stored digest, or
        how long comparing them took, says nothing about any secret.
        """
        found = self._keys.get(digest)
        return None if found is None else found.grant

    def load(self) -> None:
        """Read the file; DamagedFile if it is not whole."""
        # Stamped before it is read: a change in between is seen as one more change.
        self._stamp = self._file.stamp()
        self.apply(self._file.load())

    def look(self) -> tuple[Token, ...] | None:
        """The tokens if the file has changed since the last look. May run on another thread.

        A damaged file is no change: it neither opens what was closed nor locks everybody out.
        """
        stamp = self._file.stamp()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            return self._file.load()
        except DamagedFile as error:
            _log.error("the tokens stay as they were", error=str(error))
            return None

    def apply(self, tokens: Iterable[Token]) -> None:
        """From now on these count. A token that is as it was keeps its grant, and so its rate limit
        and its live reads.
        """
        keys = {}
        for token in tokens:
            known = self._keys.get(token.digest)
            is_same = known is not None and known.token == token
            keys[token.digest] = known if known and is_same else _Key(token, _grant(token))
        for digest, old in self._keys.items():
            if digest not in keys or keys[digest].grant is not old.grant:
                old.grant.is_ended = True
        self._keys = keys


def _grant(token: Token) -> Grant:
    return Grant(
        token.id,
        token.permissions,
        expires_at_ms=token.expires_at_ms,
        bucket=None if token.rate is None else TokenBucket(token.rate),
    )
