"""`bottomless ctx …`: servers and tokens that are saved under a name."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated, Any

import typer

from bottomless.commands.registry import Examples, verb_app
from bottomless.contexts import (
    Context,
    Contexts,
    contexts_path,
    load_contexts,
    save_contexts,
    shown_token,
)
from bottomless.errors import BottomlessError, InvalidRequest
from bottomless.output import Format, FormatFlag, print_document, print_rows, say

app = verb_app()
ctx_app = typer.Typer(
    name="ctx",
    help="Contexts: save servers and tokens under a name, and choose one.",
    no_args_is_help=True,
)
app.add_typer(ctx_app)


def complete_context(incomplete: str) -> list[str]:
    """Names of contexts, for the shell."""
    with contextlib.suppress(BottomlessError):
        return [name for name in load_contexts().contexts if name.startswith(incomplete)]
    return []


Name = Annotated[
    str,
    typer.Argument(help="Of the context.", autocompletion=complete_context, show_default=False),
]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="For it.", show_default=False)]


@ctx_app.command(
    epilog=Examples(
        "bottomless ctx add local http://127.0.0.1:4437",
        "echo $SECRET | bottomless ctx add prod https://streams.example.com --token - --use",
    )
)
def add(
    name: NewName,
    server: Annotated[str, typer.Argument(help="Its address.", show_default=False)],
    token: Annotated[
        str | None,
        typer.Option(help="Its token; - reads it from standard input, where nobody else sees it."),
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
) -> None:
    """Save a server under a name, in place of one of that name. The first one is used at once."""
    if not server.startswith(("http://", "https://")):
        raise InvalidRequest(f"{server!r} is no address of a server, like http://127.0.0.1:4437")
    if token == "-":  # noqa: S105  (standard input)
        token = sys.stdin.readline().strip() or None
        if token is None:
            raise InvalidRequest("there is no token on standard input")
    contexts = load_contexts()
    contexts.add(name, Context(server.rstrip("/"), token))
    if use:
        contexts.current = name
    save_contexts(contexts)
    say(f"{name}: saved{', in use' if contexts.current == name else ''}")


@ctx_app.command("ls", epilog=Examples("bottomless ctx ls", "bottomless ctx ls -o raw"))
def list_contexts(output: FormatFlag = Format.TABLE) -> None:
    """List what was saved; of tokens only their beginnings are shown."""
    contexts = load_contexts()
    rows = [_shown(contexts, name) for name in sorted(contexts.contexts)]
    print_rows(rows, output, ("name", "in_use", "server", "token"), name="name")


@ctx_app.command(epilog=Examples("bottomless ctx use prod"))
def use(name: Name) -> None:
    """Use one from now on, where neither a flag nor the environment says another."""
    contexts = load_contexts()
    contexts.find(name)
    contexts.current = name
    save_contexts(contexts)
    say(f"{name}: in use")


@ctx_app.command(epilog=Examples("bottomless ctx rm old"))
def rm(name: Name) -> None:
    """Forget one, and its token."""
    contexts = load_contexts()
    contexts.remove(name)
    save_contexts(contexts)
    say(f"{name}: removed")


@ctx_app.command(epilog=Examples("bottomless ctx show", "bottomless ctx show prod -o json"))
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Of the context.", autocompletion=complete_context, show_default="the one in use"
        ),
    ] = None,
    output: FormatFlag = Format.TABLE,
) -> None:
    """Show one, and where it is kept."""
    contexts = load_contexts()
    name = name or contexts.current
    if name is None:
        raise InvalidRequest("no context is in use", hint="Save one: bottomless ctx add.")
    document = {**_shown(contexts, name), "file": str(contexts_path())}
    print_document(document, output)


def _shown(contexts: Contexts, name: str) -> dict[str, Any]:
    found = contexts.find(name)
    return {
        "name": name,
        "in_use": name == contexts.current,
        "server": found.server,
        "token": shown_token(found.token),
    }
