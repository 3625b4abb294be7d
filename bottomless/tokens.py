"""`bottomless token …`: who may use the server. The only place where tokens are made."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from bottomless.commands.registry import verb_app
from bottomless.options import Config, Root, fail, read_settings

app = verb_app()
token_app = typer.Typer(
    name="token",
    help="API keys: create, list, revoke. A running server follows within two seconds.",
    no_args_is_help=True,
)
app.add_typer(token_app)


@token_app.command()
def create(
    name: Annotated[str, typer.Option(help="Who or what it is for.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What it may do, as in 'read,append:orders/'. Actions: read, append, create,"
            " delete, admin. Streams: a name, everything below a slash, or * for all."
            " Can be repeated."
        ),
    ],
    expires: Annotated[
        str | None,
        typer.Option(
            help="30d, 12h, 90m … or a time like 2030-01-31T12:00:00Z.", show_default="never"
        ),
    ] = None,
    rate: Annotated[
        int | None, typer.Option(help="Most requests per second.", show_default="no bound")
    ] = None,
    root: Root = None,
    config: Config = None,
) -> None:
    """Make a token and print its secret, once: only a digest of it is kept."""
    from api.auth.issue import create_token

    settings = read_settings(root, config)
    try:
        token, secret = create_token(settings.root, name, scope, expires=expires, rate=rate)
    except (ValueError, OSError) as error:
        fail(str(error))
    # The secret alone on standard output: `TOKEN=$(bottomless token create …)` works.
    typer.echo(secret)
    typer.echo(f"token {token.id} ({name}): shown only this once", err=True)
    if settings.auth.mode == "off":
        typer.echo("nobody is asked for it yet: set BOTTOMLESS_AUTH__MODE=on", err=True)


@token_app.command("list")
def list_(
    root: Root = None,
    config: Config = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line, for programs.")
    ] = False,
) -> None:
    """Show the tokens, without their secrets."""
    from api.auth.issue import list_tokens

    try:
        rows = list_tokens(read_settings(root, config).root)
    except (ValueError, OSError) as error:
        fail(str(error))
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row, ensure_ascii=False))
        return
    if not rows:
        typer.echo("no tokens", err=True)
        return
    columns = list(rows[0])
    widths = {key: max(len(key), *(len(row[key]) for row in rows)) for key in columns}
    for row in [{key: key for key in columns}, *rows]:
        typer.echo("  ".join(row[key].ljust(widths[key]) for key in columns).rstrip())


@token_app.command()
def revoke(
    id_: Annotated[str, typer.Argument(metavar="ID", help="As `bottomless token list` shows it.")],
    root: Root = None,
    config: Config = None,
) -> None:
    """Revoke a token: refused from now on, and its live reads end."""
    from api.auth.issue import revoke_token

    settings = read_settings(root, config)
    try:
        token = revoke_token(settings.root, id_)
    except (ValueError, OSError) as error:
        fail(str(error))
    typer.echo(f"revoked {token.id} ({token.name})", err=True)
