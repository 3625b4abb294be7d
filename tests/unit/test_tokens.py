"""Scopes, API keys and the file they are kept in."""

from __future__ import annotations

import json
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest

from api.auth.gate import open_gate
from api.auth.grants import BadPermission, Grant, parse_permission
from api.auth.issue import create_token, list_tokens, revoke_token
from api.auth.store import DamagedFile, TokenFile
from api.auth.tokens import BadToken, digest_of, dump_token, load_token, mint, parse_expiry
from api.settings import AuthSettings, Settings
from tests.support.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = 1_800_000_000_000
SECRET = "a-long-enough-secret"


# Scopes.


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("read:orders", "read:orders"),
        ("append,read:orders/", "read,append:orders/"),
        ("read:orders/*", "read:orders/"),
        ("read,read:*", "read:*"),
        ("admin:a/b/", "admin:a/b/"),
        ("read:with space:and colon", "read:with space:and colon"),
        ("read:bücher/", "read:bücher/"),
    ],
)
def test_permission_is_read_and_written(text: str, canonical: str):
    assert str(parse_permission(text)) == canonical
    assert parse_permission(canonical) == parse_permission(text)


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            "read",
            ":x",
            "read:",
            "read:/",
            "write:x",
            "read,:x",
            "Read:x",
            "read :x",
            "read:/*",
        ],
        *["read:ord*", "read:**", "read:*/a", "read:a/*/b", "read:a//b", "read:a//", "read:../a/"],
        *["read:/a", "read:a\n", "read:a\u202eb", "read:__ds/x", "read:a\\b", "*:x"],
    ],
)
def test_permission_refuses_what_could_be_misread(text: str):
    with pytest.raises(BadPermission):
        parse_permission(text)


@pytest.mark.parametrize(
    ("scope", "inside", "outside"),
    [
        ("read:a", ["a"], ["ab", "A", "a/b", "", "b/a"]),
        ("read:a/", ["a/b", "a/b/c", "a/ b"], ["a", "ab", "ab/c", "A/b", "b/a/c"]),
        ("read:a/b/", ["a/b/c"], ["a/b", "a/bc", "a/c"]),
        ("read:*", ["a", "a/b"], []),
    ],
)
def test_grant_ends_a_prefix_at_a_slash(scope: str, inside: list[str], outside: list[str]):
    grant = Grant("t", [parse_permission(scope)])
    assert [grant.actions_on(name) for name in inside] == [{"read"}] * len(inside)
    assert not any(grant.actions_on(name) for name in outside)


def test_grant_adds_its_scopes_up():
    scopes = ["read:*", "append:a/", "delete:a/b", "create:a/b", "read:a/b"]
    grant = Grant("t", map(parse_permission, scopes))
    assert grant.actions_on("a/b") == {"read", "append", "delete", "create"}
    assert grant.actions_on("a/c") == {"read", "append"}
    assert grant.actions_everywhere == {"read"}


# Keys and their file.


def a_token(scope: str = "read:*", **others: Any):
    return mint("test", (parse_permission(scope),), now_ms=NOW_MS, **others)


def test_token_is_long_unlike_others_and_not_in_its_file():
    minted = [a_token() for _ in range(100)]
    assert len({secret for _, secret in minted}) == len({token.id for token, _ in minted}) == 100
    for token, secret in minted:
        assert secret.startswith("bl_")
        assert len(secret) == 46
        assert secret not in json.dumps(dump_token(token))
        assert token.digest == digest_of(secret.encode())


def test_token_comes_back_from_its_file_as_it_was():
    for token, _ in (a_token(), a_token("read,append:a/", expires_at_ms=NOW_MS + 1, rate=7)):
        assert load_token(json.loads(json.dumps(dump_token(token)))) == token


@pytest.mark.parametrize("rate", [0, -1, 2_000_000])
def test_token_refuses_rates_out_of_range(rate: int):
    with pytest.raises(BadToken):
        a_token(rate=rate)


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", "a\x1b[0m"])
def test_token_refuses_names_that_forge_lines(name: str):
    with pytest.raises(BadToken):
        mint(name, (parse_permission("read:*"),), now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "after_ms"),
    [("30d", 2_592_000_000), ("12h", 43_200_000), ("1w", 604_800_000), ("5s", 5000)],
)
def test_expiry_is_a_duration(text: str, after_ms: int):
    assert parse_expiry(text, now_ms=NOW_MS) == NOW_MS + after_ms


def test_expiry_is_a_moment_in_the_future():
    assert parse_expiry("2099-01-01T00:00:00Z", now_ms=NOW_MS) == 4_070_908_800_000
    for text in ("2020-01-01T00:00:00Z", "2099-01-01T00:00:00", "0d", "-1d", "x", "", "1y"):
        with pytest.raises(BadToken):
            parse_expiry(text, now_ms=NOW_MS)


def test_token_file_is_private_and_whole(root: Path):
    token, secret = create_token(root, "ci", ["read:a"], expires=None, rate=None)
    path = TokenFile(root).path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert secret not in path.read_text()
    assert TokenFile(root).load() == (token,)
    [row] = list_tokens(root)
    assert row["id"] == token.id
    assert secret not in str(row)
    assert token.digest.hex() not in str(row)
    assert revoke_token(root, token.id) == token
    assert TokenFile(root).load() == ()
    with pytest.raises(BadToken):
        revoke_token(root, token.id)
    assert sorted(one.name for one in path.parent.iterdir()) == ["lock", "tokens.json"]


def test_token_file_is_edited_by_one_at_a_time(root: Path):
    def add_some() -> None:
        for _ in range(10):
            create_token(root, "x", ["read:a"], expires=None, rate=None)

    threads = [threading.Thread(target=add_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(TokenFile(root).load()) == 40


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "",
        lambda _: "[]",
        lambda _: "\0" * 100,
        lambda _: "[" * 100_000,
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace("read:a", "everything:a"),
        lambda text: text.replace('"digest": "', '"digest": "0'),
        lambda text: text.replace('"rate": null', '"rate": true'),
        lambda text: text.replace('"rate": null', '"rate": null, "admin": true'),
        lambda text: text.replace('"name": "ci"', '"name": 7'),
        lambda text: text.replace('"tokens": [', '"tokens": [1, '),
    ],
)
def test_token_file_damaged_is_never_taken_for_another(root: Path, damage: Any):
    create_token(root, "ci", ["read:a"], expires=None, rate=None)
    file = TokenFile(root)
    whole = file.path.read_text()
    file.path.write_text(damage(whole))
    assert file.path.read_text() != whole
    with pytest.raises(DamagedFile):
        file.load()
    with pytest.raises(DamagedFile):
        create_token(root, "more", ["read:a"], expires=None, rate=None)
    with pytest.raises(DamagedFile):
        open_gate(Settings(root=root, auth=AuthSettings(mode="on")), ManualClock(NOW_MS))
