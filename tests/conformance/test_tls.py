"""HTTPS by the server itself, with a certificate made here."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.support.server import EXECUTABLE, HOST, ServerProcess, child_environment
from tests.support.wire import (
    BYTES,
    JSON,
    Wire,
    assert_refused,
    is_held,
    request,
    serving,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1024 * 1024


def make_certificate(folder: Path, name: str = "server") -> tuple[Path, Path]:
    """A self-signed certificate for this machine's loopback address, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bottomless.test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = folder / f"{name}.pem", folder / f"{name}.key"
    certificate_path.write_bytes(certificate.public_bytes(Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    return certificate_path, key_path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[ServerProcess]:
    with serving(
        tmp_path_factory.mktemp("tls"),
        http__tls_cert=certificate[0],
        http__tls_key=certificate[1],
        http__write_timeout_ms=1000,
    ) as process:
        yield process


@pytest.fixture
def trusting(server: ServerProcess, certificate: tuple[Path, Path]) -> Iterator[httpx.Client]:
    """A client that checks the certificate, as every client should."""
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with httpx.Client(base_url=server.url, verify=context, trust_env=False) as client:
        yield client


class TlsWire(Wire):
    """A connection by hand, inside TLS."""

    def __init__(self, port: int, context: ssl.SSLContext, **options: int) -> None:
        super().__init__(port, **options)
        self.socket = context.wrap_socket(self.socket, server_hostname=HOST)


def test_tls_serves_everything_as_without(trusting: httpx.Client) -> None:
    created = trusting.put("/v1/stream/s", headers=JSON)
    assert created.status_code == 201
    assert created.headers["location"].startswith("https://127.0.0.1:")
    for headers in (JSON, {**JSON, "x-not-plain": "1"}):
        assert trusting.post("/v1/stream/s", headers=headers, content=b"[1]").status_code == 204
    assert trusting.get("/v1/stream/s?offset=-1").json() == [1, 1]
    assert trusting.get("/healthz").json() == {"status": "ok"}
    with trusting.stream("GET", "/v1/stream/s?offset=-1&live=sse") as events:
        assert next(events.iter_lines()) == "event: data"


def test_tls_is_modern(server: ServerProcess, certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with TlsWire(server.port, context) as wire:
        assert wire.socket.version() == "TLSv1.3"
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with TlsWire(server.port, context) as wire:
        name, version, _ = wire.socket.cipher()
        assert version == "TLSv1.2"
        assert name.startswith("ECDHE-")
        assert "GCM" in name or "CHACHA20" in name


def test_tls_gives_no_answer_in_clear(server: ServerProcess, trusting: httpx.Client) -> None:
    with Wire(server.port) as wire:
        wire.send(request("GET", "/healthz"))
        assert b"HTTP/" not in wire.read_to_end()
    assert trusting.get("/healthz").status_code == 200


def test_tls_refuses_bad_requests_as_without(
    server: ServerProcess, certificate: tuple[Path, Path]
) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with TlsWire(server.port, context) as wire:
        wire.send(b"nonsense\r\n\r\n")
        assert_refused(wire.reply(), 400)
        assert wire.has_ended()


def test_tls_reader_that_takes_nothing_is_cut_off(
    server: ServerProcess, trusting: httpx.Client, certificate: tuple[Path, Path]
) -> None:
    """The bytes the kernel still holds are asked for through TLS as well."""
    assert trusting.put("/v1/stream/stalled", headers=BYTES).status_code == 201
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with TlsWire(server.port, context, receive_buffer=4096) as wire:
        wire.send(request("GET", "/v1/stream/stalled?offset=-1&live=sse"))
        wire.read_until(b"event: control")
        for _ in range(12):
            part = os.urandom(MIB)
            sent = trusting.post("/v1/stream/stalled", headers=BYTES, content=part)
            assert sent.status_code == 204
        wait_until(lambda: not is_held(server, wire), "the reader was not cut off")


def test_tls_handshake_that_never_ends_holds_nobody_up(
    server: ServerProcess, trusting: httpx.Client
) -> None:
    silent = [socket.create_connection((HOST, server.port)) for _ in range(50)]
    assert trusting.get("/healthz").status_code == 200
    for connection in silent:
        connection.close()


@pytest.mark.parametrize("case", ["missing", "not-pem", "foreign-key"])
def test_tls_that_cannot_work_keeps_the_server_from_starting(
    tmp_path: Path, certificate: tuple[Path, Path], case: str
) -> None:
    _, foreign_key = make_certificate(tmp_path, "foreign")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    pairs = {
        "missing": (tmp_path / "none.pem", certificate[1]),
        "not-pem": (nonsense, certificate[1]),
        "foreign-key": (certificate[0], foreign_key),
    }
    env = {
        "BOTTOMLESS_HTTP__TLS_CERT": str(pairs[case][0]),
        "BOTTOMLESS_HTTP__TLS_KEY": str(pairs[case][1]),
    }
    done = subprocess.run(
        [EXECUTABLE, "serve", "--root", str(tmp_path / "data"), "--port", "0"],
        env=child_environment(env),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 1
    assert "http.tls_cert" in done.stderr
    assert "Traceback" not in done.stderr
