"""What every verb has that speaks to a server: which one, as whom, and how patient it is."""

from __future__ import annotations

import contextlib
import functools
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bottomless.commands.registry import Examples, help_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from bottomless.blocking import Client
    from bottomless.client import StreamInfo

DEFAULT_SERVER: Final = "http://127.0.0.1:4437"
# Long enough for a restart, short enough for somebody who mistyped the address.
_WAIT_S: Final = 3.0
_COMPLETION_S: Final = 1.0
_COMPLETIONS: Final = 50
_PANEL: Final = "Server"

Url = Annotated[
    str | None,
    typer.Option(
        "--server",
        "-s",
        envvar="BOTTOMLESS_SERVER",
        help=f"Address of the server; else the context's, else {DEFAULT_SERVER}.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="BOTTOMLESS_TOKEN",
        help="Its token; better in the environment or a context, where others cannot see it.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        envvar="BOTTOMLESS_CONTEXT",
        help="A saved server and token (bottomless ctx), instead of the one in use.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        envvar="BOTTOMLESS_WAIT",
        min=0,
        metavar="SECONDS",
        help="How long to try to reach it.",
        rich_help_panel=_PANEL,
    ),
]
_FLAGS: Final = {
    "server": (Url, None),
    "token": (Token, None),
    "context": (ContextName, None),
    "wait": (Wait, _WAIT_S),
}


@dataclass(frozen=True, slots=True)
class Server:
    """Where the verbs go."""

    url: str
    token: str | None = None
    wait_s: float = _WAIT_S

    def connect(self, *, patience_s: float = 0.0, timeout_s: float = 30.0) -> Client:
        """A client that tries so long to reach it, or as long as the user wants it to."""
        from bottomless.backoff import Retry
        from bottomless.blocking import Client

        retry = Retry(give_up_s=max(self.wait_s, patience_s))
        return Client(self.url, token=self.token, timeout_s=timeout_s, retry=retry)


def find_server(url: str | None, token: str | None, context: str | None) -> Server:
    """An address that is given; else a context; else the one in use; else the usual address."""
    if url is not None:
        # A token that was saved for one server is not shown to another.
        return Server(url, token)
    from bottomless.contexts import load_contexts

    saved = load_contexts()
    name = context or saved.current
    if name is None:
        return Server(DEFAULT_SERVER, token)
    found = saved.find(name)
    return Server(found.server, token or found.token)


def server_verb(
    app: typer.Typer, name: str, *lines: str, **how: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a verb whose first argument is the `Server`; it gets the flags that say which."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        _, *own = signature.parameters.values()
        flags = [
            inspect.Parameter(
                flag, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for flag, (annotation, default) in _FLAGS.items()
        ]
        asked = inspect.Parameter(
            "typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
        )

        @functools.wraps(function)
        def run(*, typer_context: typer.Context, **given: Any) -> None:
            told = {flag: given.pop(flag) for flag in _FLAGS}
            function(_server_of(typer_context, **told), **given)

        # What typer looks at: the flags instead of the server.
        del run.__wrapped__
        run.__annotations__ = {}
        shown = [*(keyword_only(parameter) for parameter in own), *flags, asked]
        run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        app.command(name, help=help_of(function), epilog=Examples(*lines), **how)(run)
        return function

    return add


def keyword_only(parameter: inspect.Parameter) -> inspect.Parameter:
    """The same, by name: its place says nothing about its default."""
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def complete_stream(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of streams, for the shell; none where there is no answer at once."""
    told = {flag: ctx.params.get(flag) for flag in _FLAGS}
    with contextlib.suppress(Exception):
        from itertools import islice

        server = replace(_server_of(ctx, **told), wait_s=0.0)
        with server.connect(timeout_s=_COMPLETION_S) as client:
            return [
                row.name
                for row in islice(client.streams(incomplete, page=_COMPLETIONS), _COMPLETIONS)
            ]
    return []


def find_stream(client: Client, stream: str) -> StreamInfo:
    """What it is; NotFound, in words, where there is none."""
    from bottomless.errors import NotFound

    try:
        return client.info(stream)
    except NotFound as error:
        raise NotFound(f"there is no stream {stream!r}", code=error.code) from error


StreamArgument = Annotated[
    str,
    typer.Argument(
        metavar="STREAM",
        help="Name of the stream, e.g. shop/orders.",
        autocompletion=complete_stream,
        show_default=False,
    ),
]


def _server_of(
    asked: typer.Context,
    *,
    server: str | None,
    token: str | None,
    context: str | None,
    wait: float | None,
) -> Server:
    if _is_typed(asked, "context"):
        if _is_typed(asked, "server"):
            raise typer.BadParameter("give --server or --context, not both")
        # What is typed wins over the environment.
        server = None
        token = token if _is_typed(asked, "token") else None
    found = find_server(server, token, context)
    return found if wait is None else replace(found, wait_s=wait)


def _is_typed(asked: typer.Context, flag: str) -> bool:
    source = asked.get_parameter_source(flag)
    return source is not None and source.name == "COMMANDLINE"
