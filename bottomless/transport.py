"""One HTTP request of the server's API: names, errors, and what happens when the line breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

import httpx

from bottomless.backoff import Retry
from bottomless.errors import InvalidRequest, Unavailable, error_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_CONNECT_S: Final = 10.0
_CONNECTIONS: Final = 100


class Transport:
    """A pool of connections to one server."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        retry: Retry | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidRequest(f"{url!r} is no address of a server, like http://127.0.0.1:4437")
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self.retry = retry or Retry()
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = http or httpx.AsyncClient(
            limits=httpx.Limits(max_connections=_CONNECTIONS), timeout=timeout_s
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    async def once(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        headers: dict[str, str] | None = None,
        params: dict[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> httpx.Response:
        """One try. Raises what the server says, or Unavailable where no whole answer came."""
        request = {"content": content, "params": params, "timeout": self._timeout(wait_s)}
        return await self._ask(method, path, headers, request)

    async def post(
        self, path: str, content: bytes, headers: dict[str, str], *, sent: Callable[[], None]
    ) -> httpx.Response:
        """One try. ``sent`` is told when the whole body is on its way, or else never."""

        async def trace(event: str, _: object) -> None:
            if event.endswith("send_request_body.complete"):
                sent()

        request = {
            "content": content,
            "timeout": self._timeout(0.0),
            "extensions": {"trace": trace},
        }
        return await self._ask("POST", path, headers, request)

    def _timeout(self, wait_s: float) -> httpx.Timeout:
        return httpx.Timeout(self.timeout_s + wait_s, connect=min(_CONNECT_S, self.timeout_s))

    async def _ask(
        self, method: str, path: str, headers: dict[str, str] | None, request: dict[str, Any]
    ) -> httpx.Response:
        try:
            response = await self._http.request(
                method,
                self.url + path,
                headers={**self._headers, **(headers or {})},
                **request,
            )
        except httpx.InvalidURL as error:
            raise InvalidRequest(f"{self.url}{path} is not a URL: {error}") from error
        except httpx.TransportError as error:
            raise NoAnswer(f"no answer from {self.url}: {error or type(error).__name__}") from error
        if response.is_success:
            return response
        raise error_of(response, response.content)

    async def call(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        headers: dict[str, str] | None = None,
        params: dict[str, str] | None = None,
    ) -> httpx.Response:
        """Tries until there is an answer, for what may be done twice."""
        backoff = self.retry.begin()
        while True:
            try:
                return await self.once(
                    method, path, content=content, headers=headers, params=params
                )
            except Unavailable as error:
                await backoff.pause(error)


class NoAnswer(Unavailable):
    """The line broke: whether the request was carried out is not known."""


def stream_path(name: str) -> str:
    """Where a stream is, in the dialect of streams."""
    return f"/v1/stream/{_quoted(name)}"


def records_path(name: str) -> str:
    """Where its records are, each with its offset."""
    return f"/v1/records/{_quoted(name)}"


def _quoted(name: str) -> str:
    if not name:
        raise InvalidRequest("a stream needs a name")
    return quote(name, safe="/")
