"""Verbs on streams as a whole: create, ls, info, close, delete, fork."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from bottomless.commands.moments import offset_of, seconds_of
from bottomless.commands.registry import verb_app
from bottomless.commands.server import Server, StreamArgument, find_stream, server_verb
from bottomless.output import Format, FormatFlag, print_document, print_rows, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bottomless.blocking import Client
    from bottomless.client import ListedStream

app = verb_app()

TYPES: Final = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "csv": "text/csv",
    "msgpack": "application/msgpack",
    "text": "text/plain; charset=utf-8",
    "binary": "application/octet-stream",
}
_PAGE: Final = 1000
_COLUMNS: Final = ("name", "content_type", "records", "bytes", "files", "last_append", "closed")
_SIZES: Final = (
    *("records", "bytes", "files", "last_append"),
    *("uncommitted_records", "commit_lag_ms", "readers", "writers"),
)
_RARE: Final = ("ttl_seconds", "expires_at", "fault")


def content_type_of(text: str) -> str:
    """A short word, or the content type itself."""
    if text in TYPES:
        return TYPES[text]
    if "/" not in text:
        raise typer.BadParameter(f"{text!r} is none of {', '.join(TYPES)}, and no content type")
    return text


TypeFlag = Annotated[
    str | None,
    typer.Option(
        "--type",
        "-t",
        help=f"What it holds: {', '.join(TYPES)}, or a content type.",
        show_default="json",
    ),
]


@server_verb(
    app,
    "create",
    "bottomless create orders",
    "bottomless create sensors --type csv --ttl 30d",
    "bottomless create photos/2026 --type image/png",
)
def create(
    server: Server,
    stream: StreamArgument,
    type_: TypeFlag = None,
    ttl: Annotated[
        str | None,
        typer.Option(help="It ends when nobody read or wrote it for so long: 90s, 12h, 30d."),
    ] = None,
) -> None:
    """Make a stream. One that is there already, just like that, is left as it is."""
    content_type = content_type_of(type_ or "json")
    ttl_s = None if ttl is None else seconds_of(ttl)
    with server.connect() as client:
        is_new = client.create(stream, content_type, ttl_s=ttl_s)
    say(f"{stream}: made, {content_type}" if is_new else f"{stream}: there already")


@server_verb(
    app,
    "ls",
    "bottomless ls",
    "bottomless ls shop/ -o jsonl",
    "bottomless ls -n 5 -o raw",
)
def list_streams(
    server: Server,
    prefix: Annotated[
        str, typer.Argument(help="Only streams whose names begin so.", show_default=False)
    ] = "",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=0, help="At most so many.")
    ] = None,
    output: FormatFlag = Format.TABLE,
) -> None:
    """List streams, in the order of their names."""
    with server.connect() as client:
        # The server filters and cuts the pages; what is not shown is not asked for.
        page = _PAGE if limit is None else max(1, min(limit, _PAGE))
        rows = islice(client.streams(prefix, page=page), limit)
        print_rows(_listed(rows), output, _COLUMNS, name="name")


@server_verb(
    app,
    "info",
    "bottomless info orders",
    "bottomless info orders -o json",
    "bottomless info orders -o raw",
)
def info(server: Server, stream: StreamArgument, output: FormatFlag = Format.TABLE) -> None:
    """Show a stream: its type, tail, size and settings. Raw is the tail alone."""
    with server.connect() as client:
        print_document(describe(client, stream), output, raw="tail")


@server_verb(app, "close", "bottomless close orders")
def close(server: Server, stream: StreamArgument) -> None:
    """Close a stream: its readers come to an end, and nothing is added any more."""
    with server.connect() as client:
        find_stream(client, stream)
        client.close(stream)
    say(f"{stream}: closed")


@server_verb(app, "delete", "bottomless delete orders --yes")
def delete(
    server: Server,
    stream: StreamArgument,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; needed where nobody can be asked.")
    ] = False,
) -> None:
    """Delete a stream with everything in it. On a terminal it wants to see the name typed again."""
    with server.connect() as client:
        found = find_stream(client, stream)
        if not yes:
            _confirm(f"{stream} ({found.content_type}) and all its records will be gone.", stream)
        client.delete(stream)
    say(f"{stream}: deleted")


@server_verb(
    app, "fork", "bottomless fork orders orders-test", "bottomless fork orders before-lunch --at 1h"
)
def fork(
    server: Server,
    source: StreamArgument,
    name: Annotated[str, typer.Argument(help="Name of the new stream.", show_default=False)],
    at: Annotated[
        str | None,
        typer.Option(
            help="The last offset it shares, or a time: it shares what is older.",
            show_default="all there is now",
        ),
    ] = None,
) -> None:
    """Make a stream that begins with the records of another one, without copying them."""
    with server.connect() as client:
        found = find_stream(client, source)
        fork_at = None if at is None else _fork_point(at, found.tail)
        is_new = client.create(name, found.content_type, fork_of=source, fork_at=fork_at)
    say(f"{name}: made, a fork of {source}" if is_new else f"{name}: there already")


def describe(client: Client, stream: str) -> dict[str, Any]:
    """What the server knows about a stream."""
    found = find_stream(client, stream)
    document: dict[str, Any] = {
        "name": stream,
        "content_type": found.content_type,
        "tail": found.tail.replace("_", ""),
        "closed": found.is_closed,
    }
    listed = _row_of(client, stream)
    if listed is not None:
        document |= {key: listed[key] for key in _SIZES if key in listed}
        document |= {key: listed[key] for key in _RARE if listed.get(key) is not None}
    settings = client.settings(stream)
    document["own"], document["in_force"] = settings["own"], settings["in_force"]
    return document


def _row_of(client: Client, stream: str) -> dict[str, Any] | None:
    """Its row in the list, which not every token may see."""
    from bottomless.errors import NotAllowed

    try:
        # Of all names that begin so this one is the first.
        row = next(client.streams(stream, page=1), None)
    except NotAllowed:
        return None
    return next(_listed(iter([row]))) if row is not None and row.name == stream else None


def _listed(rows: Iterator[ListedStream]) -> Iterator[dict[str, Any]]:
    for row in rows:
        found = msgspec.structs.asdict(row)
        yield {**found, "tail": row.tail.replace("_", "")}


def _fork_point(at: str, tail: str) -> str:
    offset = offset_of(at)
    # A time that is still to come means all there is.
    return min(offset, tail.replace("_", ""))


def _confirm(warning: str, name: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter("there is no terminal to ask on: add --yes to delete it")
    say(warning)
    typed = typer.prompt("Type its name to go on", default="", show_default=False, err=True)
    if typed != name:
        say("nothing was deleted")
        raise typer.Exit(1)
