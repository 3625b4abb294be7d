"""The end of a token, its limits, the server's start, and what its log says: rows 119, 120, 138,
140 of the list of bad inputs.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from api.auth.issue import create_token, revoke_token
from tests.support.guarded import BOUND_S, SECRET, WRONG, Guarded
from tests.support.server import EXECUTABLE, ServerProcess, child_environment
from tests.support.wire import (
    JSON,
    Wire,
    assert_refused,
    connect,
    request,
    resident_mib,
    serving,
    wait_until,
)

if TYPE_CHECKING:
    from pathlib import Path


# 119: the end of a token.


def test_auth_revocation_ends_live_reads_and_kept_connections(guarded: Guarded):
    token_id, secret = guarded.mint("read,append:mine/s")
    kept, poll, sse = (Wire(guarded.server.port) for _ in range(3))
    bearer = f"Authorization: Bearer {secret}"
    append = request(
        *("POST", "/v1/stream/mine/s", "Content-Type: application/json", "Content-Length: 3"),
        bearer,
        body=b"[1]",
    )
    kept.send(append)
    assert kept.reply().status == 204
    poll.send(request("GET", "/v1/stream/mine/s?offset=now&live=long-poll", bearer))
    sse.send(request("GET", "/v1/stream/mine/s?offset=now&live=sse", bearer))
    sse.read_until(b"event: control")
    revoke_token(guarded.server.root, token_id)
    begun = time.monotonic()
    reply = poll.reply(method="GET")
    assert_refused(reply, 401)
    rest = sse.read_until(b"\r\n0\r\n\r\n")
    assert b"event: data" not in rest
    assert time.monotonic() - begun < BOUND_S
    kept.send(append)
    assert assert_refused(kept.reply(), 401) == "unauthorized"
    for wire in (kept, poll, sse):
        wire.socket.close()


def test_auth_expiry_ends_live_reads_too(guarded: Guarded):
    secret = guarded.token("read:mine/s", expires="2s")
    ends_at = time.monotonic() + 2
    with Wire(guarded.server.port) as wire:
        bearer = f"Authorization: Bearer {secret}"
        wire.send(request("GET", "/v1/stream/mine/s?offset=now&live=long-poll", bearer))
        assert_refused(wire.reply(method="GET"), 401)
    assert time.monotonic() < ends_at + BOUND_S


def test_auth_damaged_file_changes_nothing(guarded: Guarded):
    path = guarded.server.root / "_auth" / "tokens.json"
    whole = path.read_bytes()
    seen = guarded.server.log_path.stat().st_size
    try:
        path.write_bytes(whole[: len(whole) // 2])
        wait_until(
            lambda: b"the tokens stay as they were" in _log_after(guarded.server, seen),
            "the damage is told",
        )
        assert guarded.admin.head("/v1/stream/ab").status_code == 200
        with connect(guarded.server) as client:
            assert client.head("/v1/stream/ab").status_code == 401
    finally:
        path.write_bytes(whole)
    wait_until(
        lambda: b"tokens read" in _log_after(guarded.server, seen), "the whole file is read again"
    )
    # It was on purpose: the fixture looks for faults in the log.
    text = guarded.server.log_path.read_text()
    lines = [line for line in text.splitlines(keepends=True) if "stay as they were" not in line]
    guarded.server.log_path.write_text("".join(lines))


def test_auth_takes_the_tokens_of_an_identity_provider(tmp_path: Path):
    """All of it by environment variables; the attacks are in tests/unit/test_jwt.py."""
    key = ec.generate_private_key(ec.SECP256R1())
    jwks = tmp_path / "jwks.json"
    public = {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "1"}
    jwks.write_text(json.dumps({"keys": [public]}))
    claims = {"iss": "https://id", "aud": "streams", "exp": int(time.time()) + 60}
    settings = {
        "auth__mode": "on",
        "auth__jwt__jwks_file": jwks,
        "auth__jwt__issuer": claims["iss"],
        "auth__jwt__audience": claims["aud"],
        "auth__jwt__algorithms": '["ES256"]',
    }

    def bear(scope: str, signer: ec.EllipticCurvePrivateKey = key) -> dict[str, str]:
        token = jwt.encode({**claims, "scope": scope}, signer, "ES256", {"kid": "1"})
        return {"authorization": f"Bearer {token}"}

    with serving(tmp_path, **settings) as server, connect(server) as client:
        writer, reader = bear("openid append,create:a/"), bear("read:a/")
        assert client.put("/v1/stream/a/s", headers=writer | JSON).status_code == 201
        for _ in range(2):
            sent = client.post("/v1/stream/a/s", headers=writer | JSON, content=b"[1]")
            assert sent.status_code == 204
        assert client.get("/v1/stream/a/s?offset=-1", headers=reader).json() == [1, 1]
        assert client.get("/v1/stream/a/s", headers=writer).status_code == 403
        assert client.get("/v1/stream/b", headers=reader).status_code == 404
        forged = bear("read:a/", ec.generate_private_key(ec.SECP256R1()))
        assert client.get("/v1/stream/a/s", headers=forged).status_code == 401
        jwks.write_text(json.dumps({"keys": [{**public, "kid": "2"}]}))
        wait_until(
            lambda: client.get("/v1/stream/a/s", headers=reader).status_code == 401,
            "the old key is gone",
            timeout_s=BOUND_S,
        )


# 120 and rates.


def test_auth_bounds_the_requests_of_a_token(guarded: Guarded):
    limited = guarded.client("read,append:mine/s", rate=20)
    time.sleep(1)
    for headers in ({}, {"x-not-plain": "1"}):
        replies = [guarded.append(limited, "mine/s", **headers) for _ in range(60)]
        statuses = [reply.status_code for reply in replies]
        assert 15 <= statuses.count(204) < 60
        refused = replies[statuses.index(429)]
        assert assert_refused(refused, 429) == "rate_limited"
        assert int(refused.headers["retry-after"]) >= 1
        time.sleep(1)
    assert guarded.append(limited, "mine/s").status_code == 204


def test_auth_slows_down_wrong_tokens_and_nobody_else(tmp_path: Path):
    with serving(tmp_path, auth__mode="on") as server:
        _, secret = create_token(server.root, "t", ["read:*"], expires=None, rate=None)
        with connect(server) as client:
            good = {"authorization": f"Bearer {secret}"}
            wait_until(lambda: client.get("/v1/stream/x", headers=good).status_code == 404, "known")
            client.get("/v1/stream/x", headers={"authorization": f"Bearer {WRONG}"})
            before = resident_mib(server)
            statuses = _guess(server, 10_000)
            assert statuses.count(401) <= 60
            assert statuses.count(401) + statuses.count(429) == 10_000
            wrong = client.get("/v1/stream/x", headers={"authorization": f"Bearer {WRONG}"})
            assert assert_refused(wrong, 429) == "rate_limited"
            assert int(wrong.headers["retry-after"]) >= 1
            assert client.get("/v1/stream/x", headers=good).status_code == 404
            assert client.get("/v1/stream/x").status_code == 401
            assert resident_mib(server) - before < 20


def _guess(server: ServerProcess, count: int) -> list[int]:
    """Different wrong tokens, pipelined, over one connection."""
    statuses: list[int] = []
    with Wire(server.port) as wire:

        def send() -> None:
            for number in range(count):
                line = f"Authorization: Bearer bl_{number:043}"
                wire.send(request("GET", "/v1/stream/x?offset=-1", line))

        sender = threading.Thread(target=send)
        sender.start()
        statuses += [wire.reply(method="GET").status for _ in range(count)]
        sender.join()
    return statuses


# Start and logs.


def serve_and_fail(root: Path, *args: str, **env: str) -> str:
    """Start a server that must not start; returns what it said."""
    done = subprocess.run(
        [EXECUTABLE, "serve", "--root", str(root), "--port", "0", *args],
        env=child_environment(env),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode in (1, 2), done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_auth_is_needed_where_others_can_reach_the_server(tmp_path: Path):
    said = serve_and_fail(tmp_path / "data", "--host", "0.0.0.0")
    assert "auth.mode is off" in said
    assert "bottomless token create" in said
    assert not (tmp_path / "data" / "_wal").exists()


def test_auth_refuses_to_start_on_a_damaged_file(tmp_path: Path):
    create_token(tmp_path, "t", ["read:*"], expires=None, rate=None)
    (tmp_path / "_auth" / "tokens.json").write_text('{"version": 1, "tokens": [')
    assert "damaged" in serve_and_fail(tmp_path, BOTTOMLESS_AUTH__MODE="on")


def test_auth_command_makes_lists_and_revokes(tmp_path: Path):
    def run(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [EXECUTABLE, "token", *args, "--root", str(tmp_path)],
            env=child_environment({}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done
        return done

    scopes = ("--scope", "read,append:orders/*", "--scope", "read:logs")
    secret = run(
        "create", "--name", "ci", *scopes, "--expires", "30d", "--rate", "9"
    ).stdout.strip()
    assert secret.startswith("bl_")
    [row] = [json.loads(line) for line in run("list", "--json").stdout.splitlines()]
    assert row["scopes"] == "read,append:orders/  read:logs"
    assert row["rate"] == "9/s"
    assert row["id"] in run("list").stdout
    assert secret not in run("list").stdout
    assert "write" in run("create", "--name", "x", "--scope", "write:a", code=2).stderr
    run("revoke", "00000000", code=2)
    run("revoke", row["id"])
    assert run("list").stdout == ""


@pytest.mark.parametrize("style", ["json", "text"])
def test_auth_secrets_never_reach_the_log(tmp_path: Path, style: str):
    """138: good and bad tokens, refused and failing requests, both formats."""
    root = tmp_path / "data"
    _, secret = create_token(root, "canary", ["read,append,create:*"], expires=None, rate=None)
    env = {
        "AUTH_HEADER": SECRET,
        "BOTTOMLESS_LOGGING__LEVEL": "debug",
        "BOTTOMLESS_LOGGING__FORMAT": style,
        "BOTTOMLESS_COMMIT__INTERVAL_MS": "20",
    }
    with ServerProcess.start(root, env=env) as server, connect(server) as client:
        heritage, bearer = {"auth": SECRET}, {"authorization": f"Bearer {secret}"}
        assert client.get("/metrics", headers=heritage).status_code == 200
        assert client.put("/v1/stream/s", headers=bearer | JSON).status_code == 201
        assert client.post("/v1/stream/s", headers=bearer | JSON, content="[1]").status_code == 204
        for headers in (
            {"authorization": f"Basic {secret}"},
            {"authorization": f"Bearer {secret}x"},
            {"auth": SECRET + "x"},
            bearer | heritage,
        ):
            assert client.get("/v1/stream/s", headers=headers).status_code == 401
        assert client.delete("/v1/stream/s", headers=bearer).status_code == 403
        with Wire(server.port) as wire:
            wire.send(
                b"GET /v1/stream/s HTTP/1.1\r\nAuthorization: Bearer %b\r\n\r\n" % secret.encode()
            )
            assert wire.reply(method="GET").status == 400
        wait_until(lambda: any((root / "s").rglob("*.parquet")), "a commit")
        server.terminate()
        for file in (root / "s").rglob("*.parquet"):
            file.write_bytes(b"\0" * file.stat().st_size)
        server.restart()
        failed = client.get("/v1/stream/s?offset=-1", headers=bearer)
        assert failed.status_code >= 500, failed.text
        assert secret not in failed.text
        assert server.terminate() == 0
    log = server.log_path.read_text()
    assert "listening" in log
    for canary in (secret, secret[3:], SECRET):
        assert canary not in log


def _log_after(server: ServerProcess, size: int) -> bytes:
    return server.log_path.read_bytes()[size:]
