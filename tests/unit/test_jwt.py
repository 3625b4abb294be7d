"""Signed tokens: the attacks of row 117 of the list of bad inputs, and what a good one may do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from api.auth.gate import TokenGate, open_gate
from api.auth.jwt import JwtVerifier
from api.auth.keyring import KeyRing
from api.auth.store import DamagedFile, TokenFile
from api.errors import RateLimited, Unauthorized
from api.settings import AuthSettings, BadSettings, JwtSettings, Settings, load_settings
from engine import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

ISSUER = "https://id.example.com"
AUDIENCE = "bottomless"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SHORT_RSA = rsa.generate_private_key(public_exponent=65537, key_size=1024)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
FOREIGN = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def jwk(algorithm: Any, key: Any, **fields: str) -> dict[str, Any]:
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), **fields}


KEYS = [
    jwk(RSAAlgorithm, RSA, kid="rsa", use="sig", alg="RS256"),
    jwk(ECAlgorithm, EC, kid="ec"),
    jwk(OKPAlgorithm, ED, kid="ed"),
    jwk(RSAAlgorithm, SHORT_RSA, kid="short"),
    jwk(RSAAlgorithm, RSA, kid="for-encryption", use="enc"),
    {"kty": "oct", "kid": "shared", "k": base64.urlsafe_b64encode(b"x" * 32).decode()},
]


class Provider:
    """An identity provider, and a gate that trusts it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.path = root / "jwks.json"
        self.write(KEYS)
        jwt_settings = JwtSettings(
            jwks_file=str(self.path), issuer=ISSUER, audience=AUDIENCE, **settings
        )
        self.verifier = JwtVerifier(jwt_settings)
        self.verifier.load()
        keys = KeyRing(TokenFile(root))
        auth = AuthSettings(mode="on", failures_per_minute=1000)
        self.gate = TokenGate(auth, keys, SystemClock(), jwts=self.verifier)

    def write(self, keys: list[dict[str, Any]]) -> None:
        self.path.write_text(json.dumps({"keys": keys}))

    def admit(self, token: str) -> dict[str, Any]:
        headers = [(b"authorization", b"Bearer " + token.encode())]
        scope = {"headers": headers, "client": ("10.0.0.1", 1)}
        self.gate.admit(scope)
        return scope


@pytest.fixture
def provider(root: Path) -> Provider:
    return Provider(root)


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    found = {"iss": ISSUER, "aud": AUDIENCE, "exp": now + 600, "sub": "ann", "scope": "read:a/"}
    found |= changes
    return {name: value for name, value in found.items() if value is not None}


def sign(
    key: Any = RSA,
    algorithm: str = "RS256",
    kid: Any = "rsa",
    /,
    *,
    header: Any = None,
    **changes: Any,
) -> str:
    headers = {**({} if kid is None else {"kid": kid}), **(header or {})}
    return jwt.encode(claims(**changes), key, algorithm, headers)


def encode(part: object) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("key", [(RSA, "RS256", "rsa"), (EC, "ES256", "ec"), (ED, "EdDSA", "ed")])
def test_jwt_gives_its_scopes(provider: Provider, key: tuple[Any, str, str]):
    scopes = "openid read:a/ append:a/b profile:x write:all"
    for claim in (scopes, scopes.split()):
        scope = provider.admit(sign(*key, scope=claim))
        provider.gate.require(scope, "read", "a/x")
        provider.gate.require(scope, "append", "a/b")
        for action, name in (("append", "a/x"), ("delete", "a/b"), ("read", "b")):
            with pytest.raises(Exception, match=r"may not|no such"):
                provider.gate.require(scope, action, name)


@pytest.mark.parametrize("scope", [None, "", 7, {"read:a": 1}, "openid", ["x", 1]])
def test_jwt_without_scopes_may_do_nothing(provider: Provider, scope: Any):
    admitted = provider.admit(sign(scope=scope))
    assert not admitted["bottomless.grant"].actions_on("a/x")


def unsigned(algorithm: str) -> str:
    return f"{encode({'alg': algorithm, 'kid': 'rsa'})}.{encode(claims())}."


def signed_with_public_key() -> str:
    # PyJWT refuses to make such a token, so it is made by hand.
    head = f"{encode({'alg': 'HS256', 'kid': 'rsa'})}.{encode(claims())}"
    return f"{head}.{encode(hmac.new(PEM, head.encode(), hashlib.sha256).digest())}"


def with_payload(payload: bytes) -> str:
    head = f"{encode({'alg': 'RS256', 'kid': 'rsa'})}.{encode(payload)}".encode()
    signer = RSAAlgorithm(RSAAlgorithm.SHA256)
    return f"{head.decode()}.{encode(signer.sign(head, RSA))}"


NOW = int(time.time())
BAD: dict[str, Any] = {
    "alg-none": lambda: unsigned("none"),
    "alg-None": lambda: unsigned("None"),
    "alg-empty": lambda: unsigned(""),
    "hs256-with-the-public-key": signed_with_public_key,
    "hs256-with-the-shared-key": lambda: sign(b"x" * 32, "HS256", "shared"),
    "algorithm-not-listed": lambda: sign(RSA, "RS512"),
    "algorithm-of-another-key": lambda: sign(EC, "ES256", "rsa"),
    "encryption-key": lambda: sign(RSA, "RS256", "for-encryption"),
    "short-key": lambda: sign(SHORT_RSA, "RS256", "short"),
    "foreign-key": lambda: sign(FOREIGN),
    "kid-unknown": lambda: sign(RSA, "RS256", "other"),
    "kid-missing": lambda: sign(RSA, "RS256", None),
    "kid-path": lambda: sign(RSA, "RS256", "../../x"),
    "kid-sql": lambda: sign(RSA, "RS256", "' OR 1=1 --"),
    "kid-list": lambda: f"{encode({'alg': 'RS256', 'kid': ['rsa']})}.{encode(claims())}.AAAA",
    "jku": lambda: sign(FOREIGN, "RS256", "evil", header={"jku": "http://127.0.0.1:1/jwks"}),
    "x5u": lambda: sign(FOREIGN, "RS256", "evil", header={"x5u": "http://127.0.0.1:1/cert"}),
    "jwk-in-the-header": lambda: sign(FOREIGN, header={"jwk": jwk(RSAAlgorithm, FOREIGN)}),
    "crit": lambda: sign(header={"crit": ["b64"], "b64": True}),
    "no-exp": lambda: sign(exp=None),
    "no-aud": lambda: sign(aud=None),
    "no-iss": lambda: sign(iss=None),
    "wrong-aud": lambda: sign(aud="other"),
    "aud-prefix": lambda: sign(aud="bottomless-evil"),
    "wrong-iss": lambda: sign(iss="https://id.example.com.evil"),
    "expired": lambda: sign(exp=NOW - 3600),
    "not-yet": lambda: sign(nbf=NOW + 3600),
    "issued-in-the-future": lambda: sign(iat=NOW + 3600),
    "exp-infinite": lambda: with_payload(json.dumps(claims()).replace(
        f'"exp": {claims()["exp"]}', '"exp": 1e999').encode()),
    "exp-text": lambda: with_payload(json.dumps(claims(exp="tomorrow")).encode()),
    "exp-list": lambda: with_payload(json.dumps(claims(exp=[1])).encode()),
    "payload-no-object": lambda: with_payload(b"[]"),
    "payload-no-json": lambda: with_payload(b"\xff\xfe"),
    "payload-deep": lambda: with_payload(b"[" * 4000),
    "nested": lambda: with_payload(sign().encode()),
    "tampered": lambda: sign().replace(".", ".A", 1),
    "cut": lambda: sign()[:-10],
    "two-parts": lambda: sign().rpartition(".")[0],
    "four-parts": lambda: sign() + ".x",
    "too-long": lambda: sign(pad="x" * 9000),
    "10-mb": lambda: "eyJ" + "x" * 10_000_000 + ".x.x",
    "dots": lambda: "..",
    "header-deep": lambda: f"{encode(b'[' * 4000)}.e30.AAAA",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
@pytest.mark.parametrize("case", BAD)
def test_jwt_attack_is_refused(provider: Provider, case: str):
    with pytest.raises(Unauthorized):
        provider.admit(BAD[case]())
    provider.admit(sign())


def test_jwt_leeway_is_bounded_and_then_it_is_over(root: Path):
    provider = Provider(root, leeway_seconds=300)
    now = int(time.time())
    scope = provider.admit(sign(exp=now - 200))
    grant = scope["bottomless.grant"]
    assert grant.expires_at_ms == (now + 100) * 1000
    assert not grant.is_valid((now + 100) * 1000)
    with pytest.raises(BadSettings):
        load_settings({"auth": {"jwt": {"leeway_seconds": 301}}})


async def test_jwt_keys_are_replaced_while_it_runs(provider: Provider):
    token, other = sign(), sign(EC, "ES256", "ec")
    grant = provider.admit(token)["bottomless.grant"]
    assert provider.admit(token)["bottomless.grant"] is grant
    provider.path.write_text("{")
    await provider.gate.refresh()
    assert provider.admit(token)["bottomless.grant"] is grant
    provider.write(KEYS[1:])
    await provider.gate.refresh()
    assert grant.is_ended
    provider.admit(other)
    with pytest.raises(Unauthorized):
        provider.admit(token)


def test_jwt_has_a_rate(root: Path):
    provider, token = Provider(root, rate=2), sign()
    provider.admit(token)
    provider.admit(token)
    with pytest.raises(RateLimited):
        provider.admit(token)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "7", '{"keys":7}', '{"keys":[7]}', '{"keys":[]}', "[" * 100_000]
)
def test_jwt_keys_that_are_none_keep_the_server_from_starting(root: Path, text: str):
    path = root / "jwks.json"
    settings = JwtSettings(jwks_file=str(path), issuer=ISSUER, audience=AUDIENCE)
    auth = AuthSettings(mode="on", jwt=settings)
    with pytest.raises(DamagedFile, match="no file"):
        open_gate(Settings(root=root, auth=auth), SystemClock())
    path.write_text(text)
    with pytest.raises(DamagedFile):
        open_gate(Settings(root=root, auth=auth), SystemClock())


def test_jwt_without_its_library_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jwt", None)
    monkeypatch.delitem(sys.modules, "api.auth.jwt", raising=False)
    settings = JwtSettings(jwks_file="x", issuer=ISSUER, audience=AUDIENCE)
    with pytest.raises(BadSettings, match="pip install"):
        open_gate(Settings(root=root, auth=AuthSettings(mode="on", jwt=settings)), SystemClock())


@pytest.mark.parametrize("algorithm", ["none", "HS256", "HS512", "rs256"])
def test_jwt_algorithms_without_a_public_key_cannot_be_set(algorithm: str):
    with pytest.raises(BadSettings):
        load_settings({"auth": {"jwt": {"algorithms": [algorithm]}}})


def test_jwt_needs_issuer_and_audience():
    with pytest.raises(BadSettings, match="needs issuer"):
        load_settings({"auth": {"jwt": {"jwks_file": "x", "issuer": ISSUER}}})
