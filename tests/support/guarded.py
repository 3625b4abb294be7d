"""A server that asks for tokens, and clients that have some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from api.auth.issue import create_token
from tests.support.wire import JSON, connect, wait_until

if TYPE_CHECKING:
    import httpx

    from tests.support.server import ServerProcess

# What docs/security.md promises for revocation and expiry.
BOUND_S = 2.0
SECRET = "the-secret-of-durable-streams"
WRONG = "bl_" + "w" * 43


class Guarded:
    """A server that asks for tokens, and one client per kind of token."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._clients: list[httpx.Client] = []
        self.admin = self.client("read,append,create,delete,admin:*")
        for name in ("mine/s", "theirs/s", "ab", "a/b"):
            assert self.admin.put(f"/v1/stream/{name}", headers=JSON).status_code == 201
            assert self.append(self.admin, name).status_code == 204

    def token(self, *scopes: str, expires: str | None = None, rate: int | None = None) -> str:
        self.token_id, secret = self.mint(*scopes, expires=expires, rate=rate)
        return secret

    def mint(self, *scopes: str, expires: str | None = None, rate: int | None = None):
        token, secret = create_token(self.server.root, "t", scopes, expires=expires, rate=rate)
        with connect(self.server) as client:
            bearer = {"authorization": f"Bearer {secret}"}
            path = "/v1/stream/nobody-knows"
            wait_until(
                lambda: client.get(path, headers=bearer).status_code == 404, "the token counts"
            )
        return token.id, secret

    def client(self, *scopes: str, **options) -> httpx.Client:
        client = connect(self.server)
        client.headers["authorization"] = f"Bearer {self.token(*scopes, **options)}"
        self._clients.append(client)
        return client

    def append(self, client: httpx.Client, name: str, **headers: str) -> httpx.Response:
        return client.post(f"/v1/stream/{name}", headers={**JSON, **headers}, content=b'[{"x":1}]')

    def close(self) -> None:
        for client in self._clients:
            client.close()


def bearer_line(client: httpx.Client) -> list[str]:
    """The header of this client's token, for requests by hand."""
    return [f"Authorization: {client.headers['authorization']}"]
