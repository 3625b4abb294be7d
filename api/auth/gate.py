"""The gate: one object in front of every route and dialect: whose a request is, and what it may do.

Two steps. `admit` runs before anything else of a request is looked at, in `api.app`. `require` runs
in the dialect, as soon as it knows the stream's name and what is to be done with it, and before it
knows whether there is such a stream: so a foreign stream and a missing one are answered alike, by
the same code, in the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import structlog

from api.auth.grants import EVERYTHING, Grant
from api.auth.keyring import KeyRing
from api.auth.limits import FailureTable
from api.auth.store import TokenFile
from api.auth.tokens import digest_of
from api.errors import Forbidden, RateLimited, Unauthorized
from api.settings import BadSettings
from engine.errors import StreamNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from api.asgi import Scope
    from api.auth.grants import Action
    from api.auth.jwt import JwtVerifier
    from api.settings import AuthSettings, Settings
    from engine import Clock

GRANT: Final = "bottomless.grant"
"""Where a request's scope holds its grant, once it is admitted."""
OPEN_PATHS: Final = frozenset({b"/healthz", b"/readyz"})
TOKEN_BYTES_MAX: Final = 8192
# A change of the tokens is seen within this time and the time to read the file: well below 2 s.
REFRESH_INTERVAL_S: Final = 0.5
_CREDENTIALS: Final = frozenset({b"authorization", b"auth"})
_BEARER: Final = b"Bearer "
_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
_log: Final = structlog.get_logger("api.auth")


class Gate(Protocol):
    """What routes and dialects may ask for."""

    is_on: bool

    def admit(self, scope: Scope) -> None:
        """Find out whose request this is; Unauthorized or RateLimited if that is not to be."""

    def admit_key(self, scope: Scope, key: bytes) -> None:
        """The same for a key that did not come in a header (apiKey of a WebSocket)."""

    def require(self, scope: Scope, action: Action, name: str) -> None:
        """The caller may do this with streams of that name: else StreamNotFound if it may do
        nothing at all with them, Forbidden if it may do something else.
        """

    def require_everywhere(self, scope: Scope, action: Action) -> None:
        """The caller may do this with all streams; else Forbidden."""

    def watch(
        self, scope: Scope, end: Callable[[], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Call ``end`` (again and again) when the caller's right ends while this runs."""

    def quick_grant(self, headers: dict[bytes, bytes], action: Action, name: str) -> Grant | None:
        """What `admit` and `require` would say, for the short way of appends; counts nothing."""

    def holds(self, grant: Grant) -> bool:
        """Whether a grant found before still counts, and may send one more request now."""

    def spend(self, grant: Grant) -> None:
        """Count that request."""

    async def keep_current(self) -> None:
        """Follow the files until cancelled."""


class OpenGate:
    """No access control: everybody may do everything."""

    is_on = False

    def admit(self, scope: Scope) -> None:
        """Everybody comes in."""

    def admit_key(self, scope: Scope, key: bytes) -> None:
        """Everybody comes in."""

    def require(self, scope: Scope, action: Action, name: str) -> None:
        """Everything is allowed."""

    def require_everywhere(self, scope: Scope, action: Action) -> None:
        """Everything is allowed."""

    def watch(
        self, scope: Scope, end: Callable[[], None]
    ) -> contextlib.AbstractContextManager[None]:
        """No right ever ends."""
        del scope, end
        return contextlib.nullcontext()

    def quick_grant(self, headers: dict[bytes, bytes], action: Action, name: str) -> None:
        """There is nothing to check."""

    def holds(self, grant: Grant) -> bool:
        """Nothing ever ends."""
        del grant
        return True

    def spend(self, grant: Grant) -> None:
        """There is nothing to count."""

    async def keep_current(self) -> None:
        """There is nothing to follow."""


class TokenGate:
    """Every request but the health routes needs a token."""

    is_on = True

    def __init__(
        self, settings: AuthSettings, keys: KeyRing, clock: Clock, *, jwts: JwtVerifier | None
    ) -> None:
        self._keys = keys
        self._jwts = jwts
        self._clock = clock
        self._failures = FailureTable(settings.failures_per_minute)
        secret = settings.header_secret.get_secret_value().encode()
        self._header_digest = digest_of(secret) if secret else None
        self._header_grant = Grant("header_secret", EVERYTHING)
        self._watchers: set[tuple[Grant, Callable[[], None]]] = set()

    def admit(self, scope: Scope) -> None:
        """Find out whose request this is, count it, and note it in the scope."""
        credentials = [pair for pair in scope["headers"] if pair[0] in _CREDENTIALS]
        if not credentials:
            raise Unauthorized(
                "this needs a token", hint="Send the header Authorization: Bearer <token>."
            )
        self._let_in(scope, self._find(credentials))

    def admit_key(self, scope: Scope, key: bytes) -> None:
        """An API key, a JWT, or the secret of the auth header."""
        self._let_in(scope, self._find_key(key))

    def require(self, scope: Scope, action: Action, name: str) -> None:
        """Look at nothing but the grant and the name."""
        _check(scope[GRANT], action, name)

    def require_everywhere(self, scope: Scope, action: Action) -> None:
        """For what is not about one stream."""
        if action not in scope[GRANT].actions_everywhere:
            raise Forbidden(f"this needs a token with the scope {action}:*")

    @contextlib.contextmanager
    def watch(self, scope: Scope, end: Callable[[], None]) -> Iterator[None]:
        """Revocation and expiry end what runs already, too."""
        watcher = (scope[GRANT], end)
        self._watchers.add(watcher)
        try:
            yield
        finally:
            self._watchers.discard(watcher)

    def quick_grant(self, headers: dict[bytes, bytes], action: Action, name: str) -> Grant | None:
        """Raises for whatever the long way shall refuse, in its own words."""
        grant = self._find([pair for pair in headers.items() if pair[0] in _CREDENTIALS])
        if grant is None:
            raise Unauthorized("no token")
        _check(grant, action, name)
        return grant

    def holds(self, grant: Grant) -> bool:
        """Asked anew for every request, however long ago the grant was found."""
        if not grant.is_valid(self._clock.now_ms()):
            return False
        return grant.bucket is None or not grant.bucket.wait_s(self._clock.monotonic_s())

    def spend(self, grant: Grant) -> None:
        """One request less in the bucket."""
        if grant.bucket is not None:
            grant.bucket.take(self._clock.monotonic_s())

    async def keep_current(self) -> None:
        """Follow the files, and tell live readers whose right has ended."""
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001  (supervised: the next round tries again)
                _log.exception("the tokens could not be looked at; they stay as they were")

    async def refresh(self) -> None:
        """One look at the files."""
        loop = asyncio.get_running_loop()
        tokens = await loop.run_in_executor(None, self._keys.look)
        if tokens is not None:
            self._keys.apply(tokens)
            _log.info("tokens read", count=len(tokens))
        if self._jwts is not None:
            keys = await loop.run_in_executor(None, self._jwts.look)
            if keys is not None:
                self._jwts.apply(keys)
                _log.info("keys of the JWTs read", count=len(keys))
        self.end_watchers()

    def end_watchers(self) -> None:
        """Tell those whose grant does not hold any more."""
        now_ms = self._clock.now_ms()
        for grant, end in list(self._watchers):
            if not grant.is_valid(now_ms):
                end()

    def _find(self, credentials: Iterable[tuple[bytes, bytes]]) -> Grant | None:
        """Exactly one credential; two could be read differently by whatever stands before us."""
        match list(credentials):
            case [(b"authorization", value)] if value.startswith(_BEARER):
                return self._find_token(value[len(_BEARER) :].strip(b" "))
            case [(b"auth", value)]:
                return self._find_key(value)
        return None

    def _find_key(self, key: bytes) -> Grant | None:
        digest = digest_of(key)
        if self._header_digest is not None and hmac.compare_digest(digest, self._header_digest):
            return self._header_grant
        return self._find_token(key)

    def _find_token(self, token: bytes) -> Grant | None:
        """The grant of an API key or JWT, however it was handed over."""
        if len(token) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token):
            return None
        digest = digest_of(token)
        grant = self._keys.find(digest)
        if grant is None and self._jwts is not None and token.count(b".") == 2:
            grant = self._jwts.find(token, digest)
        if grant is None or not grant.is_valid(self._clock.now_ms()):
            return None
        return grant

    def _let_in(self, scope: Scope, grant: Grant | None) -> None:
        if grant is None:
            self._refuse(scope)
        elif grant.bucket is not None and (wait_s := grant.bucket.take(self._clock.monotonic_s())):
            raise _too_many("this token may not send that many requests", wait_s)
        scope[GRANT] = grant

    def _refuse(self, scope: Scope) -> NoReturn:
        client = scope["client"]
        address = client[0] if client else ""
        wait_s = self._failures.count(address, self._clock.monotonic_s())
        if wait_s:
            raise _too_many("too many wrong tokens from this address", wait_s)
        raise Unauthorized(
            "this token does not count",
            hint="It is unknown, malformed, expired or revoked. Send one Authorization: Bearer"
            " <token>.",
        )


def _check(grant: Grant, action: Action, name: str) -> None:
    actions = grant.actions_on(name)
    if action in actions:
        return
    if not actions:
        raise StreamNotFound("there is no such stream", hint="Create it with PUT.")
    raise Forbidden(f"this token may not {action} this stream")


def _too_many(message: str, wait_s: float) -> RateLimited:
    return RateLimited(message, retry_after_ms=int(wait_s * 1000) + 1)


def open_gate(settings: Settings, clock: Clock) -> Gate:
    """The gate that the settings ask for. DamagedFile or BadSettings where it cannot be trusted."""
    if settings.auth.mode == "off":
        return OpenGate()
    keys = KeyRing(TokenFile(settings.root))
    keys.load()
    jwts = _load_jwts(settings.auth)
    if not keys and jwts is None and not settings.auth.header_secret.get_secret_value():
        _log.warning("there is no token yet", hint="bottomless token create --help")
    return TokenGate(settings.auth, keys, clock, jwts=jwts)


def _load_jwts(settings: AuthSettings) -> JwtVerifier | None:
    if not settings.jwt.jwks_file:
        return None
    try:
        from api.auth.jwt import JwtVerifier
    except ImportError as error:
        raise BadSettings(
            f"auth.jwt needs a library that is missing ({error.name}):"
            " pip install 'bottomless[jwt]', or 'pyjwt[crypto]'"
        ) from error
    verifier = JwtVerifier(settings.jwt)
    verifier.load()
    return verifier
