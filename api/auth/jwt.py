"""Signed tokens (JWT) of an identity provider. The only module that imports PyJWT, an extra.

What a token says about itself is believed only after its signature: the keys come from one file,
the algorithms from the settings, each key is bound to its own algorithm, and ``jku``, ``x5u`` or
``jwk`` in a token's header are never looked at.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jwt
import structlog

from api.auth.grants import PERMISSIONS_MAX, BadPermission, Grant, parse_permission
from api.auth.limits import TokenBucket
from api.auth.store import DamagedFile, read_bounded, stamp_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from api.auth.grants import Permission
    from api.auth.store import Stamp
    from api.settings import JwtSettings

_GRANTS_MAX: Final = 10_000
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521", "EdDSA": "Ed25519"}
_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
Keys = dict[tuple[str, str], jwt.PyJWK]
"""By key id and algorithm."""
# What PyJWT and the json module raise on something made to break them.
_BROKEN: Final = (jwt.PyJWTError, ValueError, TypeError, LookupError, ArithmeticError)
_log: Final = structlog.get_logger("api.auth")


class JwtVerifier:
    """Turns signed tokens into grants; each is verified once and remembered by its digest."""

    def __init__(self, settings: JwtSettings) -> None:
        self._settings = settings
        self._path = Path(settings.jwks_file)
        self._stamp: Stamp | None = None
        self._keys: Keys = {}
        self._grants: OrderedDict[bytes, Grant] = OrderedDict()

    def load(self) -> None:
        """Read the keys; DamagedFile if there are none that can be used."""
        self._stamp = stamp_of(self._path)
        self._keys = self._read_keys()

    def look(self) -> Keys | None:
        """The keys if the file has changed since the last look; a damaged one is no change.

        May run on another thread.
        """
        stamp = stamp_of(self._path)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            return self._read_keys()
        except DamagedFile as error:
            _log.error("the keys of the JWTs stay as they were", error=str(error))
            return None

    def apply(self, keys: Keys) -> None:
        """From now on these count. Every token has to prove itself again: its key may be gone."""
        for grant in self._grants.values():
            grant.is_ended = True
        self._grants.clear()
        self._keys = keys

    def find(self, token: bytes, digest: bytes) -> Grant | None:
        """The grant of a token that is signed, for us, and not expired."""
        known = self._grants.get(digest)
        if known is not None:
            self._grants.move_to_end(digest)
            return known
        try:
            claims = self._verify(token.decode("ascii"))
            grant = self._grant(claims)
        except (*_BROKEN, RecursionError):
            return None
        if len(self._grants) >= _GRANTS_MAX:
            # Whoever still holds it looks for it anew: it must not outlive its key.
            self._grants.popitem(last=False)[1].is_ended = True
        self._grants[digest] = grant
        return grant

    def _verify(self, token: str) -> dict[str, Any]:
        header = jwt.get_unverified_header(token)
        # Nothing critical is understood here; PyJWT knows one extension (b64) that we do not want.
        if "crit" in header or "b64" in header:
            raise ValueError("critical header parameters")
        key = self._keys[header.get("kid", ""), header["alg"]]
        settings = self._settings
        return jwt.decode(
            token,
            key,
            algorithms=list(settings.algorithms),
            audience=settings.audience,
            issuer=settings.issuer,
            leeway=settings.leeway_seconds,
            options={"require": ["exp", "aud", "iss"], "enforce_minimum_key_length": True},
        )

    def _grant(self, claims: dict[str, Any]) -> Grant:
        settings = self._settings
        subject = claims.get("sub", "")
        return Grant(
            f"jwt:{subject}",
            list(_permissions(claims.get(settings.scope_claim)))[:PERMISSIONS_MAX],
            expires_at_ms=(int(claims["exp"]) + settings.leeway_seconds) * 1000,
            bucket=TokenBucket(settings.rate) if settings.rate else None,
        )

    def _read_keys(self) -> Keys:
        """By key id and algorithm. Keys for something else than our signatures are left out."""
        data = read_bounded(self._path)
        if data is None:
            raise DamagedFile(f"auth.jwt.jwks_file: there is no file {self._path}")
        found: Keys = {}
        try:
            entries = json.loads(data)["keys"]
            for entry in entries:
                for algorithm in self._algorithms_of(entry):
                    found[entry.get("kid", ""), algorithm] = jwt.PyJWK(entry, algorithm)
        except (*_BROKEN, AttributeError, RecursionError) as error:
            # What it holds may be private by mistake: it is not quoted.
            raise DamagedFile(
                f"auth.jwt.jwks_file: {self._path} is no key set ({type(error).__name__})"
            ) from None
        if not found:
            algorithms = ", ".join(self._settings.algorithms)
            raise DamagedFile(f"auth.jwt.jwks_file: {self._path} has no key for {algorithms}")
        return found

    def _algorithms_of(self, entry: dict[str, Any]) -> list[str]:
        if entry.get("use", "sig") != "sig":
            return []
        return [
            algorithm
            for algorithm in self._settings.algorithms
            if entry.get("alg", algorithm) == algorithm
            and entry.get("kty") == _KEY_TYPES[algorithm[:2]]
            and entry.get("crv") == _CURVES.get(algorithm)
        ]


def _permissions(claim: object) -> Iterator[Permission]:
    """Scopes of ours; a provider's own (openid, profile) give no right here."""
    scopes = claim.split(" ") if isinstance(claim, str) else claim
    if not isinstance(scopes, list):
        return
    for scope in scopes:
        if isinstance(scope, str):
            try:
                yield parse_permission(scope)
            except BadPermission:
                continue
