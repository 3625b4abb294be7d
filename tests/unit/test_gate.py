"""The gate and its limits: whose a request is, what it may do, how often, and for how long."""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Any

import pytest

from api.auth import gate as gate_module
from api.auth.exposure import check_exposure, is_loopback
from api.auth.gate import GRANT, TokenGate
from api.auth.grants import ACTIONS, parse_permission
from api.auth.issue import revoke_token
from api.auth.keyring import KeyRing
from api.auth.limits import FailureTable, TokenBucket, group_of
from api.auth.store import TokenFile
from api.auth.tokens import digest_of, mint
from api.errors import Forbidden, RateLimited, Unauthorized
from api.routes.quick import QuickAppend
from api.settings import AuthSettings, BadSettings, HttpSettings, Settings, load_settings
from engine.errors import StreamNotFound
from engine.settings import LimitSettings
from tests.support.clock import ManualClock
from tests.unit.test_quick_append import HOST, JSON, LENGTH, Submitted, post

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = 1_800_000_000_000
SECRET = "a-long-enough-secret"


# The gate.


class Front:
    """A gate over a folder of its own, and requests for it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.clock = ManualClock(NOW_MS)
        self.keys = KeyRing(TokenFile(root))
        self.gate = TokenGate(AuthSettings(mode="on", **settings), self.keys, self.clock, jwts=None)

    def mint(self, *scopes: str, expires_at_ms: int | None = None, rate: int | None = None) -> str:
        permissions = tuple(map(parse_permission, scopes))
        token, secret = mint(
            "t", permissions, now_ms=NOW_MS, expires_at_ms=expires_at_ms, rate=rate
        )
        with TokenFile(self.root).editing() as tokens:
            tokens.append(token)
        self.keys.load()
        return secret

    def admit(self, *headers: tuple[bytes, bytes], address: str = "10.0.0.1") -> dict[str, Any]:
        scope = {"headers": list(headers), "client": (address, 1)}
        self.gate.admit(scope)
        return scope

    def bear(self, secret: str, address: str = "10.0.0.1") -> dict[str, Any]:
        return self.admit(bearer(secret), address=address)


def bearer(secret: str) -> tuple[bytes, bytes]:
    return b"authorization", b"Bearer " + secret.encode()


@pytest.fixture
def front(root: Path) -> Front:
    return Front(root)


def test_gate_takes_a_token_in_both_headers(front: Front):
    secret = front.mint("read:a")
    for headers in ([bearer(secret)], [(b"auth", secret.encode())]):
        scope = front.admit(*headers, (b"host", b"x"))
        front.gate.require(scope, "read", "a")


WRONG = {
    "empty": [(b"authorization", b"")],
    "bearer-empty": [(b"authorization", b"Bearer ")],
    "bearer-alone": [(b"authorization", b"Bearer")],
    "lower-case": [(b"authorization", b"bearer %s")],
    "basic": [(b"authorization", b"Basic %s")],
    "no-scheme": [(b"authorization", b"%s")],
    "twice": [(b"authorization", b"Bearer %s"), (b"authorization", b"Bearer %s")],
    "twice-the-first-wrong": [(b"authorization", b"x"), (b"authorization", b"Bearer %s")],
    "both-headers": [(b"authorization", b"Bearer %s"), (b"auth", b"%s")],
    "bearer-in-auth": [(b"auth", b"Bearer %s")],
    "list": [(b"authorization", b"Bearer %s, Bearer %s")],
    "cut": [(b"authorization", b"Bearer %.20s")],
    "longer": [(b"authorization", b"Bearer %sA")],
    "other-case": [(b"authorization", b"Bearer BL_%s")],
    "non-ascii": [(b"authorization", "Bearer ключ".encode())],
    "latin-1": [(b"authorization", b"Bearer \xff\xfe")],
    "nul": [(b"authorization", b"Bearer %s\0")],
    "1-mb": [(b"authorization", b"Bearer " + b"x" * 2**20)],
    "1-mb-auth": [(b"auth", b"x" * 2**20)],
    "auth-empty": [(b"auth", b"")],
    "auth-non-ascii": [(b"auth", "ключ".encode())],
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_gate_refuses_every_other_spelling(root: Path, case: str):
    front = Front(root, header_secret=SECRET)
    secret = front.mint("read:*").encode()
    headers = [(name, value.replace(b"%.20s", secret[:20])) for name, value in WRONG[case]]
    headers = [(name, value.replace(b"%s", secret)) for name, value in headers]
    with pytest.raises(Unauthorized):
        front.admit(*headers)


def test_gate_refuses_who_shows_nothing(front: Front):
    front.mint("read:*")
    for _ in range(100):
        with pytest.raises(Unauthorized, match="needs a token"):
            front.admit()


def test_gate_knows_the_secret_of_the_auth_header(root: Path):
    front = Front(root, header_secret=SECRET)
    scope = front.admit((b"auth", SECRET.encode()))
    for action in ACTIONS:
        front.gate.require(scope, action, "anything")
        front.gate.require_everywhere(scope, action)
    for headers in ([(b"auth", SECRET[:-1].encode())], [bearer(SECRET)]):
        with pytest.raises(Unauthorized):
            front.admit(*headers)


def test_gate_takes_a_key_that_came_another_way(root: Path):
    front = Front(root, header_secret=SECRET, failures_per_minute=3)
    for key in (front.mint("read:a").encode(), SECRET.encode()):
        scope: dict[str, Any] = {"headers": [], "client": ("10.0.0.1", 1)}
        front.gate.admit_key(scope, key)
        front.gate.require(scope, "read", "a")
    refused: list[type[Exception]] = []
    for _ in range(4):
        with pytest.raises((Unauthorized, RateLimited)) as caught:
            front.gate.admit_key(scope, b"wrong")
        refused.append(caught.type)
    assert refused == [Unauthorized] * 3 + [RateLimited]


def test_gate_compares_digests_only(root: Path, monkeypatch: pytest.MonkeyPatch):
    """Row 113. Both comparisons are between SHA-256 digests: the one of the header in constant
    time, the other by a dict whose keys they are. A guess with a right prefix has a digest that has
    nothing in common with the right one, so no measurement can tell it from any other guess.
    """
    compared: list[tuple[bytes, bytes]] = []

    def spy(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return hmac.compare_digest(left, right)

    looked_up: list[bytes] = []
    front = Front(root, header_secret=SECRET)
    secret = front.mint("read:*")
    find = front.keys.find
    monkeypatch.setattr(gate_module, "hmac", type("Spy", (), {"compare_digest": staticmethod(spy)}))
    monkeypatch.setattr(front.keys, "find", lambda digest: looked_up.append(digest) or find(digest))
    guesses = [secret[:-1] + "!", secret[:-1] + "x", "bl_" + "x" * 43, "x", "ключ"]
    for guess in guesses:
        with pytest.raises(Unauthorized):
            front.admit((b"auth", guess.encode()))
    assert compared == [
        (digest_of(guess.encode()), digest_of(SECRET.encode())) for guess in guesses
    ]
    # Whatever is no token at all is not even looked up.
    assert looked_up == [digest_of(guess.encode()) for guess in guesses[1:4]]


def test_gate_tells_nothing_about_foreign_streams(front: Front):
    scope = front.bear(front.mint("read:mine/", "append:mine/inbox"))
    front.gate.require(scope, "read", "mine/x")
    with pytest.raises(Forbidden):
        front.gate.require(scope, "append", "mine/x")
    with pytest.raises(Forbidden):
        front.gate.require_everywhere(scope, "read")
    told = set()
    for name in ("theirs", "mine", "mineral", "Mine/x"):
        with pytest.raises(StreamNotFound) as caught:
            front.gate.require(scope, "read", name)
        told.add((caught.value.message, caught.value.hint))
    assert len(told) == 1


def test_gate_fails_closed_where_nobody_was_admitted(front: Front):
    with pytest.raises(KeyError):
        front.gate.require({"headers": []}, "read", "a")


def test_gate_ends_a_token_at_its_time(front: Front):
    secret = front.mint("read:*", expires_at_ms=NOW_MS + 1000)
    grant = front.bear(secret)[GRANT]
    ended = []
    with front.gate.watch({GRANT: grant}, lambda: ended.append(True)):
        front.gate.end_watchers()
        assert front.gate.holds(grant)
        assert not ended
        front.clock.advance(1000)
        front.gate.end_watchers()
    assert ended
    assert not front.gate.holds(grant)
    with pytest.raises(Unauthorized):
        front.bear(secret)


async def test_gate_follows_the_file(front: Front, capsys: pytest.CaptureFixture[str]):
    kept, revoked = front.mint("read:*", rate=5), front.mint("read:*")
    kept_grant, revoked_grant = front.bear(kept)[GRANT], front.bear(revoked)[GRANT]
    ended: list[str] = []
    with (
        front.gate.watch({GRANT: kept_grant}, lambda: ended.append("kept")),
        front.gate.watch({GRANT: revoked_grant}, lambda: ended.append("revoked")),
    ):
        revoke_token(front.root, revoked_grant.id)
        await front.gate.refresh()
    assert ended == ["revoked"]
    with pytest.raises(Unauthorized):
        front.bear(revoked)
    assert front.bear(kept)[GRANT] is kept_grant

    path = TokenFile(front.root).path
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    await front.gate.refresh()
    assert front.bear(kept)[GRANT] is kept_grant
    with pytest.raises(Unauthorized):
        front.bear(revoked)
    assert "the tokens stay as they were" in capsys.readouterr().out
    path.unlink()
    await front.gate.refresh()
    with pytest.raises(Unauthorized):
        front.bear(kept)


async def test_gate_goes_on_following_after_a_fault(front: Front, monkeypatch: pytest.MonkeyPatch):
    looks, is_third = [], asyncio.Event()
    loop = asyncio.get_running_loop()

    def look() -> None:
        looks.append(True)
        if len(looks) == 3:
            loop.call_soon_threadsafe(is_third.set)
        raise PermissionError("no")

    monkeypatch.setattr(gate_module, "REFRESH_INTERVAL_S", 0.001)
    monkeypatch.setattr(front.keys, "look", look)
    task = asyncio.create_task(front.gate.keep_current())
    await is_third.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Limits.


def test_bucket_gives_its_rate_and_no_more():
    bucket = TokenBucket(10)
    assert [bucket.take(5.0) for _ in range(10)] == [0] * 10
    assert bucket.take(5.0) == pytest.approx(0.1)
    assert bucket.wait_s(5.05) == pytest.approx(0.05)
    assert bucket.take(5.15) == 0
    assert bucket.take(5.15) > 0
    # A clock that goes back earns nothing, a long pause not more than the burst.
    assert bucket.take(4.0) > 0
    assert [bucket.take(1000.0) for _ in range(11)].count(0) == 10


def test_gate_bounds_the_requests_of_a_token(front: Front):
    secret, other = front.mint("read:*", rate=2), front.mint("read:*")
    front.bear(secret)
    front.bear(secret)
    with pytest.raises(RateLimited) as caught:
        front.bear(secret)
    assert caught.value.retry_after_ms <= 1000
    front.bear(other)
    front.clock.advance(500)
    front.bear(secret)


def test_gate_slows_down_wrong_tokens_and_nobody_else(root: Path):
    front = Front(root, failures_per_minute=20)
    secret = front.mint("read:*")
    outcomes = []
    for _ in range(10_000):
        try:
            front.bear("bl_wrong")
        except (Unauthorized, RateLimited) as error:
            outcomes.append(type(error))
    assert outcomes == [Unauthorized] * 20 + [RateLimited] * 9980
    front.bear(secret)
    with pytest.raises(Unauthorized):
        front.bear("bl_wrong", address="10.0.0.2")
    front.clock.advance(60_000)
    with pytest.raises(Unauthorized):
        front.bear("bl_wrong")


def test_failures_of_many_addresses_take_bounded_memory():
    table = FailureTable(1, addresses_max=100)
    for number in range(10_000):
        table.count(f"10.{number >> 8}.{number & 255}.1", 1.0)
        table.count("10.0.0.1", 1.0)
    assert len(table) == 100
    assert table.count("10.0.0.1", 1.0) > 0


def test_failures_count_a_network_of_ipv6_as_one():
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff:1") != group_of("2001:db8:0:1::1")
    assert group_of("::ffff:10.0.0.1") == group_of("10.0.0.1") == "10.0.0.1"
    assert group_of("fe80::1%eth0") == group_of("fe80::2")
    assert group_of("") == ""


# The short way of appends.


def test_quick_append_asks_for_the_grant_each_time(front: Front):
    secret = front.mint("append:s", rate=3)
    log = Submitted()
    quick = QuickAppend(log, HttpSettings(), LimitSettings(), front.gate)  # type: ignore[arg-type]
    good = post(HOST, JSON, LENGTH, b"Authorization: Bearer " + secret.encode())

    def take(data: bytes) -> bool:
        return quick(data, lambda *_: None)

    assert [take(good) for _ in range(4)] == [True, True, True, False]
    front.clock.advance(1000)
    assert take(good)
    assert not take(post(HOST, JSON, LENGTH))
    assert not take(post(HOST, JSON, LENGTH, b"Auth: wrong"))
    assert not take(
        post(HOST, JSON, LENGTH, b"Authorization: Bearer " + secret.encode(), path=b"/v1/stream/t")
    )
    front.keys.apply(())
    assert not take(good)
    assert len(log.requests) == 4


# Where the server listens, and what it is told.


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True)],
        *[("::ffff:127.0.0.1", True), ("0.0.0.0", False), ("::", False), ("", False)],
        *[("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("no-such-host.invalid", False)],
    ],
)
def test_exposure_is_decided_by_the_address(host: str, expected: bool):
    assert is_loopback(host) == expected


def test_exposure_needs_access_control():
    http = HttpSettings(host="0.0.0.0")
    with pytest.raises(BadSettings, match="bottomless token create"):
        check_exposure(Settings(http=http), "0.0.0.0")
    check_exposure(Settings(http=http, auth=AuthSettings(mode="on")), "0.0.0.0")
    check_exposure(Settings(), "127.0.0.1")


def test_settings_take_the_auth_header_of_durable_streams(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AUTH_HEADER", SECRET)
    settings = load_settings()
    assert settings.auth.mode == "on"
    assert settings.auth.header_secret.get_secret_value() == SECRET
    assert SECRET not in repr(settings)
    monkeypatch.setenv("BOTTOMLESS_AUTH__MODE", "off")
    with pytest.raises(BadSettings, match="nobody would be asked") as caught:
        load_settings()
    assert SECRET not in str(caught.value)
    monkeypatch.delenv("BOTTOMLESS_AUTH__MODE")
    monkeypatch.setenv("AUTH_HEADER", "short")
    with pytest.raises(BadSettings, match="at least 16"):
        load_settings()


@pytest.mark.parametrize(
    "origins",
    [["null"], ["*", "https://a.example"], ["https://a.example/"], ["https://*.example"], ["a.b"]],
)
def test_settings_refuse_origins_that_would_not_match(origins: list[str]):
    with pytest.raises(BadSettings):
        load_settings({"http": {"cors_origins": origins}})


def test_settings_need_both_halves_of_tls():
    with pytest.raises(BadSettings, match="go together"):
        load_settings({"http": {"tls_cert": "x.pem"}})
